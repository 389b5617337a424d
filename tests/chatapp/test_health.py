"""The readiness check answers whoever polls it, and the log stays readable meanwhile."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import Client

from chatapp.logs import NotReadyFilter
from chatapp.models import User

pytestmark = pytest.mark.django_db


def test_a_server_without_a_model_lives_and_is_not_ready(client: Client) -> None:
    assert client.get("/healthz/live").status_code == 200
    answer = client.get("/healthz/ready")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "database": "ok", "engine": "off"}


def test_readiness_asks_the_database_once_whoever_polls(
    alice: User, client: Client, django_assert_max_num_queries: Any
) -> None:
    """A session would wait for a database that is away, and answer with a page."""
    client.force_login(alice)
    with django_assert_max_num_queries(1):
        assert client.get("/healthz/ready").headers["Content-Type"] == "application/json"
    with django_assert_max_num_queries(0):
        assert client.get("/healthz/live").status_code == 200


def test_polls_of_the_readiness_check_leave_no_errors_in_the_log(client: Client) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("django.request"), Keep()
    logger.addHandler(handler)
    try:
        client.get("/healthz/ready")
        assert records == []
        client.get("/nothing/here")
        assert [record.levelname for record in records] == ["WARNING"]
    finally:
        logger.removeHandler(handler)


def test_only_that_answer_is_left_out() -> None:
    record = logging.LogRecord("django.request", logging.ERROR, "", 0, "Service Unavailable", (), None)
    record.status_code = 503
    assert NotReadyFilter().filter(record)
