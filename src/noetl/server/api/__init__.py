"""HTTP: one module per subject. Routes read a request, call a service, shape the answer; nothing is decided here."""
