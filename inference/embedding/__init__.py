"""Sentences as vectors: what lies close together means something alike. Knows nothing of prompts and the engine."""
