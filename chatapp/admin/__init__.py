"""The admin: all models, for looking and for what may be changed, and a page about the engine.

The history is never overwritten here either: messages and generations can only be read, and conversations are deleted
through the service, which also purges their cached KV.

Imports nothing: Django makes the site (site.py) when it first looks into this package, and only then can the tables be
registered with it, which apps.AdminConfig does.
"""
