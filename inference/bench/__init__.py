"""How fast the engine is on this machine: `python -m inference.bench --suite core`, `roofline` or `start`."""
