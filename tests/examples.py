"""How many examples a property is tried on: its own number in the thorough run, a quarter of it in the quick one.

`make test` takes the profile `quick`, `make test-slow` runs all properties again with --hypothesis-profile=thorough.
"""

from __future__ import annotations

from hypothesis import settings

LEAST = 25


def examples(num: int) -> int:
    """For `max_examples`. Asked while modules are imported, when pytest has read its options."""
    is_thorough = settings.get_current_profile_name() == "thorough"
    return num if is_thorough else min(num, max(LEAST, num // 4))


def register_profiles() -> None:
    settings.register_profile("thorough", deadline=None)
    settings.register_profile("quick", deadline=None, max_examples=LEAST)
    settings.load_profile("quick")
