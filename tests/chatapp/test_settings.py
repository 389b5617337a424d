"""The product's settings as a process of their own sees them: data folder, secret key, database, cookies, policy."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from chatapp import databases, keys, logs
from chatapp.models import User
from tests.chatapp.rows import send

ROOT = Path(__file__).resolve().parent.parent.parent


def _run(arguments: list[str], data: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python process with these variables and none of the developer's."""
    environment = {"PATH": os.environ["PATH"], "RECOLLECT_DATA": str(data), **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def _read(data: Path, *names: str, **variables: str) -> list[Any]:
    """The values of these settings."""
    code = f"import json; from chatapp import settings as s; print(json.dumps([s.{', s.'.join(names)}], default=str))"
    done = _run(["-c", code], data, **variables)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


# --- data folder and secret key ---------------------------------------------------------------------------------------


def test_data_folder_and_key_are_made_for_their_owner_only(tmp_path: Path) -> None:
    data = tmp_path / "a" / "data"
    (first,) = _read(data, "SECRET_KEY")
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "keys" / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in (data / "keys").iterdir()] == ["secret_key"]
    assert len(first) >= 50
    assert _read(data, "SECRET_KEY") == [first]


def test_given_secret_key_is_used_and_none_is_made(tmp_path: Path) -> None:
    assert _read(tmp_path, "SECRET_KEY", RECOLLECT_SECRET_KEY="given") == ["given"]
    assert not (tmp_path / "keys").exists()


def test_processes_that_start_at_once_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: keys.secret_key(tmp_path), range(16)))
    assert len(found) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_data_folder_that_cannot_be_made_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _run(["manage.py", "check"], tmp_path / "file" / "data")
    assert done.returncode != 0
    assert done.stderr.startswith("recollect: RECOLLECT_DATA is ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("RECOLLECT_PORT", "70000", "whole numbers from 0 to 65535"),
        ("RECOLLECT_BLOCK_SIZE", "0", "whole numbers from 1 to 1024"),
        ("RECOLLECT_HTTPS", "maybe", "on, off"),
        ("RECOLLECT_LANGUAGE", "tlh", "en, zh-hans"),
        ("RECOLLECT_LOG_LEVEL", "LOUD", "DEBUG, INFO"),
        ("RECOLLECT_TIME_ZONE", "Mars/Olympus", "Asia/Shanghai"),
        ("RECOLLECT_ROOT_PATH", "chat", "/chat"),
        ("RECOLLECT_ROOT_PATH", "/my chat?x", "/chat"),
        ("RECOLLECT_ROOT_PATH", "//chat", "/chat"),
        ("RECOLLECT_REDIS_URL", "http://x", "redis://"),
        ("DATABASE_URL", "mysql://x/y", "postgresql://"),
    ],
)
def test_bad_value_stops_the_start_and_names_the_legal_ones(tmp_path: Path, name: str, value: str, legal: str) -> None:
    done = _run(["manage.py", "check"], tmp_path, **{name: value})
    assert done.returncode != 0
    assert done.stderr.startswith(f"recollect: {name} ")
    assert legal in done.stderr
    assert done.stderr.count("\n") == 1


# --- production -------------------------------------------------------------------------------------------------------


def test_deployment_check_is_clean_with_production_settings(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0o700)
    (tmp_path / "models" / "model.gguf").write_bytes(b"")
    tmp_path.chmod(0o700)
    done = _run(
        ["-W", "error::DeprecationWarning:chatapp", "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        tmp_path,
        RECOLLECT_HTTPS="on",
        RECOLLECT_HOST="0.0.0.0",
        RECOLLECT_ALLOWED_HOSTS="chat.example.org",
        RECOLLECT_MODEL=str(tmp_path / "models" / "model.gguf"),
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "no issues" in done.stdout


def test_migrations_are_complete(tmp_path: Path) -> None:
    done = _run(["manage.py", "makemigrations", "--check", "--dry-run"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variables", "is_exposed"),
    [
        ({}, False),
        ({"RECOLLECT_HOST": "localhost"}, False),
        ({"RECOLLECT_HOST": "::1"}, False),
        ({"RECOLLECT_HOST": "0.0.0.0"}, True),
        ({"RECOLLECT_HOST": "192.0.2.1"}, True),
        ({"RECOLLECT_ALLOWED_HOSTS": "chat.example.org"}, True),
        ({"RECOLLECT_HTTPS": "on"}, True),
    ],
)
def test_server_that_others_can_reach_counts_as_exposed(
    tmp_path: Path, variables: dict[str, str], is_exposed: bool
) -> None:
    assert _read(tmp_path, "RECOLLECT_IS_EXPOSED", **variables) == [is_exposed]


def test_host_that_it_listens_on_is_answered(tmp_path: Path) -> None:
    assert "[::1]" in _read(tmp_path, "ALLOWED_HOSTS", RECOLLECT_HOST="::1")[0]
    assert "192.0.2.1" in _read(tmp_path, "ALLOWED_HOSTS", RECOLLECT_HOST="192.0.2.1")[0]
    assert "0.0.0.0" not in _read(tmp_path, "ALLOWED_HOSTS", RECOLLECT_HOST="0.0.0.0")[0]


def test_cookies_are_bound_to_host_and_tls_only_with_tls(tmp_path: Path) -> None:
    names = ("SESSION_COOKIE_NAME", "SESSION_COOKIE_SECURE", "SESSION_COOKIE_PATH", "SECURE_HSTS_SECONDS")
    assert _read(tmp_path, *names) == ["sessionid", False, "/", 0]
    assert _read(tmp_path, *names, RECOLLECT_HTTPS="1") == ["__Host-sessionid", True, "/", 31_536_000]
    assert _read(tmp_path, *names, RECOLLECT_HTTPS="1", RECOLLECT_ROOT_PATH="/chat/") == [
        *("__Secure-sessionid", True, "/chat/", 31_536_000),
    ]


def test_a_pool_in_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    done = _run(["-c", "from chatapp import settings"], tmp_path, RECOLLECT_POOL_TOKENS="2")
    assert done.returncode == 1
    assert "RECOLLECT_POOL_TOKENS is '2'; legal are whole numbers from 256 to 2147483648" in done.stderr


# --- database ---------------------------------------------------------------------------------------------------------


def test_sqlite_is_durable_and_waits(tmp_path: Path) -> None:
    entry = databases.from_url("", default=tmp_path / "x.sqlite3")
    assert entry["NAME"] == tmp_path / "x.sqlite3"
    assert (entry["OPTIONS"]["transaction_mode"], entry["OPTIONS"]["timeout"]) == ("IMMEDIATE", 20)


def test_pragmas_reach_the_connection(tmp_path: Path) -> None:
    code = """
import django
django.setup()
from django.db import connection
with connection.cursor() as cursor:
    for name in ("journal_mode", "synchronous", "foreign_keys", "journal_size_limit"):
        cursor.execute(f"PRAGMA {name}")
        print(cursor.fetchone()[0])
"""
    done = _run(["-c", code], tmp_path, DJANGO_SETTINGS_MODULE="chatapp.settings")
    assert done.stdout.split() == ["wal", "2", "1", "67108864"], done.stderr


def test_postgres_address_is_read_with_its_parameters(tmp_path: Path) -> None:
    url = "postgres://me:p%40ss@db.example.org:6432/chat?sslmode=require&options=-c%20statement_timeout%3D5s"
    entry = databases.from_url(url, default=tmp_path)
    assert [entry[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")] == [
        *("chat", "me", "p@ss", "db.example.org", "6432"),
    ]
    assert entry["OPTIONS"]["sslmode"] == "require"
    assert entry["OPTIONS"]["options"].endswith("-c statement_timeout=5s")
    assert entry["OPTIONS"]["pool"]["max_size"] == 10
    assert (entry["CONN_MAX_AGE"], entry["CONN_HEALTH_CHECKS"]) == (0, True)


def test_postgres_address_may_name_a_socket_folder(tmp_path: Path) -> None:
    assert databases.from_url("postgresql://me@/chat?host=/run/pg", default=tmp_path)["HOST"] == "/run/pg"


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "postgresql://u:secret@h:port/d", "postgresql://u:secret@h", "x"]
)
def test_bad_address_is_refused_without_showing_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        databases.from_url(url, default=tmp_path)
    assert "secret" not in str(caught.value)


# --- the log ----------------------------------------------------------------------------------------------------------


@given(text=st.text(st.characters()))  # surrogates among them: names of files may hold bytes that are no UTF-8
def test_log_line_holds_no_control_character(text: str) -> None:
    line = logs.escaped(text)
    assert line.isprintable() or not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in line)
    assert len(line.splitlines()) <= 1
    line.encode()


def test_log_line_of_an_error_is_one_line() -> None:
    try:
        raise ValueError("a\r\nb\x1b[31m")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "in %s", ("a\nb",), sys.exc_info())
    line = logs.LineFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: a\\r\\nb\\x1b[31m" in line


@pytest.mark.django_db
def test_log_of_a_refused_row_does_not_quote_the_row(alice: User) -> None:
    question = send(alice, " ".join(["My", "secret"])).user_message  # a traceback quotes source lines
    question.status = "failed"
    try:
        with transaction.atomic():
            question.save()
    except IntegrityError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "refused", (), sys.exc_info())
    line = logs.LineFormatter().format(record)
    assert "message_user_is_done" in line
    assert "My secret" not in line


# --- language ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(("chosen", "shown"), [("", "en"), ("zh-hans", "zh-hans"), ("tlh", "en")])
def test_language_of_the_account_goes_before_that_of_the_browser(
    alice: User, client: Client, chosen: str, shown: str
) -> None:
    alice.language = chosen
    alice.save()
    client.force_login(alice)
    answer = client.get(reverse("settings"), headers={"Accept-Language": "en"})
    assert answer.headers["Content-Language"] == shown


# --- headers ----------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_strict_policy(client: Client) -> None:
    headers = client.get("/no-such-page/").headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    for name in ("Opener-Policy", "Resource-Policy"):
        assert headers[f"Cross-Origin-{name}"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "Strict-Transport-Security" not in headers
