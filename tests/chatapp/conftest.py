"""Two people: Alice owns, Bob does not."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache

from chatapp.models import User


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Counters of one test are no business of the next."""
    cache.clear()


@pytest.fixture
def alice(db: Any) -> User:
    return User.objects.create_user("alice", password="correct horse battery")


@pytest.fixture
def bob(db: Any) -> User:
    return User.objects.create_user("bob", password="correct horse battery")
