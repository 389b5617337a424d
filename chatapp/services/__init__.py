"""Writes that cross rows, own a transaction or have a side effect: keyword-only, named <entity>_<action>.

Each is one transaction, committed when it returns. All raise StorageUnavailable when the database cannot be written.
"""
