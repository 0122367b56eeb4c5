"""Port: the result store. Payloads live here; the control plane holds references to them.

`router.py` is what a worker uses: it chooses a tier by size. Small payloads travel with the report that names them and live in
the log's database (`kv.py`). Large ones (`large.py`, their format in `blocks.py`) are encoded into a local file first
(`staging.py`) and handed to a tier that keeps bytes: files (`files.py`). `cache.py` is in front of both.
"""
