"""Arithmetic: matrix products, attention over block tables, norms, and the pool they read. Knows no architecture."""

active = "numpy"  # the tier that runs, for people
