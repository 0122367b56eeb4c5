"""The nouns: ids, events, commands, messages, envelopes, references, errors; their codec and upcasts.

Everything here is frozen data and pure functions. Imports nothing else of NoETL; everything may import it.
"""
