"""The admin: all models, and a page about the engine."""
