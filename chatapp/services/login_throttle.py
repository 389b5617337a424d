"""How often a password may be guessed: a growing pause for each account and for each address, counted in the cache.

The cache, not the database: a flood of guesses must not become a flood of writes. It is this process's own memory, or
Redis where several processes serve. A restart forgets the counts, which whoever guesses cannot bring about.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import time
from dataclasses import dataclass

from django.core.cache import cache
from django.utils.translation import gettext as _

from chatapp.errors import Throttled

_FORGET_S = 900  # without another attempt


@dataclass(frozen=True, slots=True)
class _Rule:
    """After `num_free` failures each further one doubles the pause, from a second up to max_pause_s."""

    kind: str
    num_free: int
    max_pause_s: int


# An account's pause stays short: else anybody could lock its owner out by guessing.
_ACCOUNT = _Rule("account", num_free=5, max_pause_s=60)
_ADDRESS = _Rule("address", num_free=20, max_pause_s=_FORGET_S)


def attempt_begin(*, username: str, address: str) -> None:
    """Count an attempt, before the password is looked at: guesses that come side by side count as well.

    Raises Throttled during a pause; what comes then is neither counted nor looked at.
    """
    rules = ((_ACCOUNT, username), (_ADDRESS, _network(address)))
    for rule, name in rules:
        pause_s = cache.get(_key(rule, name, "until"), 0.0) - time.time()
        if pause_s > 0:
            seconds = math.ceil(pause_s)
            raise Throttled(
                _("Too many attempts. Try again in %(seconds)s s.") % {"seconds": seconds}, retry_after_s=seconds
            )
    for rule, name in rules:
        num_failures = _count(_key(rule, name, "num"))
        if num_failures >= rule.num_free:
            pause_s = min(rule.max_pause_s, 2 ** (num_failures - rule.num_free))
            cache.set(_key(rule, name, "until"), time.time() + pause_s, timeout=pause_s)


def attempt_succeeded(*, username: str, address: str) -> None:
    """The password was right: the account's failures are forgotten. The address keeps its own, or a guesser who has an
    account could clear them with it; only this attempt is taken back."""
    cache.delete_many([_key(_ACCOUNT, username, "num"), _key(_ACCOUNT, username, "until")])
    network = _network(address)
    if cache.decr(_key(_ADDRESS, network, "num")) < _ADDRESS.num_free:
        cache.delete(_key(_ADDRESS, network, "until"))


def _count(key: str) -> int:
    cache.add(key, 0, timeout=_FORGET_S)
    num = cache.incr(key)
    cache.touch(key, timeout=_FORGET_S)
    return num


def _key(rule: _Rule, name: str, what: str) -> str:
    digest = hashlib.sha256(name.casefold().encode("utf-8", "surrogatepass")).hexdigest()  # a key of any name's length
    return f"login.{rule.kind}.{what}.{digest}"


def _network(address: str) -> str:
    """What one guesser has: an IPv4 address, but a whole /64 of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)
