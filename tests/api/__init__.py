"""An HTTP API to test against: paged in every way, flaky, slow or refusing when asked to be, and the same answers every time.

    python -m tests.api --port 5555

`process.py` starts it for a test, in a process of its own. Lists have 35 entries unless `total` says otherwise; what was asked
for is counted at `/api/v1/calls`. Pages and patients are functions of what is asked; only the counters, `flaky`, jobs, inboxes
and the windows of rate limits are remembered.
"""
