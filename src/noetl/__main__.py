"""`python -m noetl` is `noetl`."""

from noetl.cli import main

if __name__ == "__main__":
    main()
