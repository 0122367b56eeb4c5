"""Port: the result store. Payloads live here; the control plane holds references to them.

Workers and Spark tasks write and read payloads; a server reads them only to show them to people.
Tools, the pipeline, workers and Spark may import it.

`router.py` chooses a tier by size. A small payload travels with the report that names it and is
stored in the log's database (`kv.py`); `cache.py` caches it in memory, `shared.py` in NATS. A large
payload (`large.py`, its format in `blocks.py`) is encoded into a local file first (`staging.py`). A
tier then stores the file: a directory (`files.py`) or an object store (`objects.py`). `cached.py`
and `pool.py` cache blocks of remote objects on the local disk.
"""
