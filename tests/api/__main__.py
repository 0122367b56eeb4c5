"""`python -m tests.api`: serves until it is told to end."""

import argparse
import os

import uvicorn

from tests.api.app import make


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.api")
    parser.add_argument("--port", type=int, default=5555)
    parser.add_argument(
        "--rate-limit",
        type=int,
        default=int(os.environ.get("PFT_RATE_LIMIT", "0")),
        help="requests per second of the patient routes; 0 is none",
    )
    options = parser.parse_args()
    uvicorn.run(
        make(options.rate_limit),
        host="127.0.0.1",
        port=options.port,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
