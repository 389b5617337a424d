"""Two people: Alice owns, Bob does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import translation

from chatapp import llm
from chatapp.models import User
from chatapp.services.accounts import owner_create
from tests.chatapp.fake_worker import FakeWorker


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Counters of one test are no business of the next."""
    cache.clear()


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """A request of the test client leaves its language behind."""
    with translation.override("en"):
        yield


@pytest.fixture
def alice(db: Any) -> User:
    return User.objects.create_user("alice", password="correct horse battery")


@pytest.fixture
def bob(db: Any) -> User:
    return User.objects.create_user("bob", password="correct horse battery")


@pytest.fixture
def owner(db: Any) -> User:
    """Who set the installation up: may use the admin."""
    return owner_create(username="ada", password="correct horse battery")


@pytest.fixture
def staff(owner: User) -> Client:
    """The owner's browser."""
    client = Client()
    client.force_login(owner)
    return client


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """An engine behind the door that answers as the test says."""
    llm.shutdown()
    fake = FakeWorker()
    llm.start(fake)
    yield fake
    llm.shutdown()
    llm._handle.worker = None  # as in a process that has never had one
