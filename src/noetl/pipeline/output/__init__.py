"""From values to stored results and envelopes, and from stored results to people.

Writing runs in the worker; reading also serves the API and the command line.
Imported by the pipeline, `noetl.spark` and what wires processes.
"""
