"""The environment, typed. The only reader of os.environ; a bad value stops start-up and names the legal ones.

An empty variable counts as unset: that is what `NAME=` in a compose file or an .env file means.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SIZE = re.compile(r"([0-9]{1,15}) ?([A-Za-z]*)", re.ASCII)
_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{unit}": factor**power
    for unit, factor in (("B", 1000), ("IB", 1024))
    for power, prefix in enumerate("KMGT", start=1)
}
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(%?)", re.ASCII)
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}", re.ASCII)  # what RFC 6750 has for a bearer token
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.IGNORECASE | re.ASCII)


def text(name: str, default: str = "") -> str:
    """The value without surrounding blanks."""
    return os.environ.get(name, "").strip() or default


def secret(name: str) -> str:
    """What only those know who may come; "" for nobody. Raises ImproperlyConfigured when it can be guessed or sent
    in no header. The message does not repeat it."""
    value = text(name)
    if value and not _SECRET.fullmatch(value):
        raise ImproperlyConfigured(f"{name} cannot be used; legal are 16 to 256 letters, digits and -._~+/=")
    return value


def words(name: str, default: Sequence[str] = ()) -> list[str]:
    """A comma-separated list, blanks around the commas ignored."""
    found = [word.strip() for word in text(name).split(",")]
    return [word for word in found if word] or list(default)


def host(name: str, default: str) -> str:
    """A name or an address to listen on, IPv6 without brackets. Raises ImproperlyConfigured for what can be neither."""
    value = text(name, default)
    if not (_HOST.fullmatch(value) or _is_ipv6(value)):
        raise _illegal(name, value, "host names and addresses, like chat.example.org, 192.0.2.1 and ::1")
    return value


def host_patterns(name: str) -> list[str]:
    """A comma-separated list of Host headers without ports, as in Django's ALLOWED_HOSTS.

    Raises ImproperlyConfigured for one that no request could ever have.
    """
    found = words(name)
    for word in found:
        is_ipv6 = word.startswith("[") and word.endswith("]") and _is_ipv6(word[1:-1])
        if not (word == "*" or is_ipv6 or _HOST.fullmatch(word.removeprefix("."))):
            raise _illegal(
                name,
                word,
                "names without a port, separated by commas: chat.example.org, .example.org, 192.0.2.1, [::1]",
            )
    return found


def path(name: str, default: Path) -> Path:
    """An absolute path; `~` is the home directory, a relative one starts at the working directory."""
    return Path(text(name) or default).expanduser().absolute()


def boolean(name: str, default: bool) -> bool:
    """Raises ImproperlyConfigured for anything but the eight legal words, in any case."""
    value = text(name)
    if not value:
        return default
    if value.lower() not in _BOOLEANS:
        raise _illegal(name, value, "on, off, true, false, yes, no, 1 and 0")
    return _BOOLEANS[value.lower()]


def integer(name: str, default: int, *, low: int, high: int) -> int:
    """Raises ImproperlyConfigured when the value is no whole number from low to high."""
    value = text(name)
    if not value:
        return default
    # int() would also take "1_000", "١٢" and a sign with blanks
    if not (value.isascii() and value.removeprefix("-").isdigit()) or not low <= int(value) <= high:
        raise _illegal(name, value, f"whole numbers from {low} to {high}")
    return int(value)


def share(name: str, default: float) -> float:
    """A part of something: a number above 0 and at most 1, or a percentage. Raises ImproperlyConfigured for others."""
    value = text(name)
    if not value:
        return default
    found = _SHARE.fullmatch(value)
    part = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < part <= 1:
        raise _illegal(name, value, "shares above 0 and at most 1: 0.85, 85 %")
    return part


def num_bytes(name: str, default: int, *, low: int, high: int = 1 << 60) -> int:
    """A size: a whole number with a unit, like 6GB, 512 MiB or 800000000. Raises ImproperlyConfigured for others."""
    value = text(name)
    if not value:
        return default
    found = _SIZE.fullmatch(value)
    size = int(found[1]) * _UNITS[found[2].upper()] if found and found[2].upper() in _UNITS else -1
    if not low <= size <= high:
        legal = f"sizes from {low} to {high} bytes, with a unit or without: 6GB, 512 MiB, 800000000"
        raise _illegal(name, value, legal)
    return size


def choice(name: str, default: str, legal: Sequence[str]) -> str:
    """Raises ImproperlyConfigured when the value is not one of `legal` (compared without case)."""
    value = text(name)
    if not value:
        return default
    for candidate in legal:
        if candidate.lower() == value.lower():
            return candidate
    raise _illegal(name, value, ", ".join(legal))


def _is_ipv6(value: str) -> bool:
    try:
        return ipaddress.ip_address(value).version == 6
    except ValueError:
        return False


def _illegal(name: str, value: str, legal: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name} is {value!r}; legal are {legal}")
