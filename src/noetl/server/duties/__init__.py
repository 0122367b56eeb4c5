"""The background loops of a server: one file each with `run_once`, and one shared `loop` that repeats them."""
