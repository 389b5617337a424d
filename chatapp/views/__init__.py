"""HTTP: parse, permit, call, render. One file per noun; errors.py is the place where an exception becomes a page."""
