"""A language-model engine in NumPy: files in, tokens out, and a prefix cache that never reuses a wrong byte.

Knows nothing of Django, of settings or of the environment: whatever it needs arrives as an argument.
"""
