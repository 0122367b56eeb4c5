"""Port: the result store. Payloads live here; the control plane holds references to them.

`router.py` is what a worker uses: it chooses a tier by size. Small payloads travel with the report that names them and live
in the log's database (`kv.py`); `cache.py` holds them in memory, `shared.py` in NATS. Large ones (`large.py`, their format in
`blocks.py`) are encoded into a local file first (`staging.py`) and handed to a tier that keeps bytes: files (`files.py`) or
an object store (`objects.py`), with blocks of it on this machine's disk before it (`cached.py`, `pool.py`).
"""
