"""The entry point of `noetl` and `python -m noetl`."""

import os
import sys


def main() -> None:
    cache_bytecode()
    from noetl.cli import main as run

    run()


def cache_bytecode() -> None:
    """Write compiled modules to the user's cache if Python must not write them beside the sources.

    Without compiled modules a command takes twice as long.
    """
    if sys.dont_write_bytecode and sys.pycache_prefix is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        sys.pycache_prefix = os.path.join(cache, "noetl", "python")
        sys.dont_write_bytecode = False


if __name__ == "__main__":
    main()
