"""The nouns: ids, events, commands, messages, envelopes, references, errors, and their codec.

Everything here is frozen data and pure functions, used in every process.
It imports nothing else of NoETL; every package may import it.
"""
