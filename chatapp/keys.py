"""Secrets that an installation makes for itself, as files that only their owner can read: the key of Django's
signatures, and the one-time token of the set-up link. Knows the folder, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path


def secret_key(folder: Path) -> str:
    """The installation's secret key; made on the first call, the same ever after.

    Safe when several processes start at once: one of them links its file into place, the others read that one.
    """
    target = folder / "secret_key"
    try:
        return target.read_text(encoding="ascii")
    except FileNotFoundError:
        made = _write_private(folder, secrets.token_urlsafe(64))
    try:
        os.link(made, target)
    except FileExistsError:
        pass  # another process was first; its key counts
    finally:
        made.unlink()
    return target.read_text(encoding="ascii")


def setup_token_create(folder: Path) -> str:
    """A new one-time token; voids the one before. Only its digest is kept: a copy of the folder opens nothing."""
    token = secrets.token_urlsafe(32)
    os.replace(_write_private(folder, _digest(token)), folder / "setup_token")
    return token


def setup_token_matches(folder: Path, token: str) -> bool:
    """Whether this is the token made last and not used since. Takes the same time for every wrong one."""
    try:
        kept = (folder / "setup_token").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return secrets.compare_digest(kept, _digest(token))


def setup_token_remove(folder: Path) -> None:
    """Used: no token is valid from here on."""
    (folder / "setup_token").unlink(missing_ok=True)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _write_private(folder: Path, content: str) -> Path:
    """A new file in `folder` with mode 0600, on disk before its name is returned."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f".{secrets.token_hex(8)}.tmp"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path
