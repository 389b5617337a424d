"""Arithmetic: matrix products, attention over block tables, norms, and the pool they read. Knows no architecture.

Two kinds: compiled (jit; the oracle defines what it computes), and NumPy on BLAS (call_plan, attention, reference).
"""
