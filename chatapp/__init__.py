"""Recollect: the Django project and its one app. Floors, from the top: see docs/ARCHITECTURE.md."""
