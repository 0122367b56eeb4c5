"""How many examples the tests of hypothesis try.

`HYPOTHESIS_PROFILE=search` looks for new examples, and for many more of them. The suite tries the same few every time, so
more of them would cost time and find nothing new.
"""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
SEARCH_FACTOR = 20


def count_examples(in_suite: int) -> int:
    """The number of examples of one test, for the profile of this run."""
    return in_suite * SEARCH_FACTOR if PROFILE == "search" else in_suite
