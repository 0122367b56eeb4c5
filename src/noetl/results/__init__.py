"""Port: the result store. Payloads live here; the control plane holds references to them."""
