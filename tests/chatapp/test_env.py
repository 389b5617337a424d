"""The environment: typed, and loud about a bad value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatapp import env, machine


@pytest.mark.parametrize("value", [None, "", "  "])
def test_unset_and_empty_are_the_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("NAME", raising=False)
    if value is not None:
        monkeypatch.setenv("NAME", value)
    assert env.text("NAME", "default") == "default"
    assert env.words("NAME", ["a"]) == ["a"]
    assert env.boolean("NAME", True) is True
    assert env.integer("NAME", 3, low=1, high=5) == 3
    assert env.choice("NAME", "a", ["a", "b"]) == "a"
    assert env.path("NAME", Path("/default")) == Path("/default")


@pytest.mark.parametrize(
    ("value", "read", "expected"),
    [
        (" x ", lambda: env.text("NAME"), "x"),
        ("a, b,,c ", lambda: env.words("NAME"), ["a", "b", "c"]),
        ("ON", lambda: env.boolean("NAME", False), True),
        ("0", lambda: env.boolean("NAME", True), False),
        ("-4", lambda: env.integer("NAME", 0, low=-5, high=5), -4),
        ("info", lambda: env.choice("NAME", "DEBUG", ["DEBUG", "INFO"]), "INFO"),
        ("~/data", lambda: env.path("NAME", Path("/")), Path.home() / "data"),
        ("data", lambda: env.path("NAME", Path("/")), Path.cwd() / "data"),
    ],
)
def test_legal_value_is_read(monkeypatch: pytest.MonkeyPatch, value: str, read: Any, expected: Any) -> None:
    monkeypatch.setenv("NAME", value)
    assert read() == expected


@pytest.mark.parametrize("value", ["0", "6", "-1", "1.5", "1e3", "1_0", "٣", "+3", "- 3", "--3", "-", "three"])
def test_integer_out_of_range_or_not_whole_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NAME", value)
    with pytest.raises(ImproperlyConfigured, match=r"NAME is .*; legal are whole numbers from 1 to 5"):
        env.integer("NAME", 3, low=1, high=5)


@pytest.mark.parametrize("value", ["2", "y", "enabled", "None"])
def test_boolean_of_another_word_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NAME", value)
    with pytest.raises(ImproperlyConfigured, match=r"NAME is .*; legal are on, off, true, false, yes, no, 1 and 0"):
        env.boolean("NAME", True)


def test_choice_of_another_word_names_the_legal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "c")
    with pytest.raises(ImproperlyConfigured, match=r"NAME is 'c'; legal are a, b"):
        env.choice("NAME", "a", ["a", "b"])


@pytest.mark.parametrize(
    "value", ["a b", "a:8000", "https://a", "a/b", "a..b", "::1", "[x]", "пример.рф", "a_b", "-" * 64, "a."]
)
def test_a_pattern_that_no_host_can_have_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NAME", f"chat.example.org, {value}")
    with pytest.raises(ImproperlyConfigured, match=r"legal are names without a port, separated by commas"):
        env.host_patterns("NAME")


def test_patterns_of_hosts_are_those_of_django(monkeypatch: pytest.MonkeyPatch) -> None:
    legal = [
        "*",
        "localhost",
        "Chat.Example.org",
        ".example.org",
        "192.0.2.1",
        "[2001:db8::1]",
        "xn--e1afmkfd.xn--p1ai",
    ]
    monkeypatch.setenv("NAME", ", ".join(legal))
    assert env.host_patterns("NAME") == legal


@pytest.mark.parametrize("value", ["a b", "a..b", "[::1]", "0.0.0.0:80", "http://a"])
def test_an_address_that_nobody_can_listen_on_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NAME", value)
    with pytest.raises(ImproperlyConfigured, match=r"NAME is .*; legal are host names and addresses"):
        env.host("NAME", "127.0.0.1")


@pytest.mark.parametrize("value", ["::1", "::", "0.0.0.0", "chat.example.org", "localhost"])
def test_an_address_to_listen_on_is_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NAME", value)
    assert env.host("NAME", "127.0.0.1") == value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 7),
        ("2000000", 2_000_000),
        ("6GB", 6 * 10**9),
        ("512 MiB", 512 << 20),
        ("1tib", 1 << 40),
        ("3000kb", 3_000_000),
    ],
)
def test_a_size_has_a_unit(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("RECOLLECT_X", text)
    assert env.num_bytes("RECOLLECT_X", 7, low=1_000_000) == size


@pytest.mark.parametrize("text", ["6 parsecs", "-1GB", "1.5GB", "999999", "GB", "٦GB"])
def test_a_size_that_makes_no_sense_is_refused_with_examples(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RECOLLECT_X", text)
    with pytest.raises(ImproperlyConfigured, match="512 MiB"):
        env.num_bytes("RECOLLECT_X", 7, low=1_000_000)


def test_a_container_has_the_memory_that_it_is_allowed(tmp_path: Path) -> None:
    limit, unlimited = tmp_path / "memory.max", tmp_path / "unlimited"
    limit.write_text("1048576\n")
    unlimited.write_text("max\n")
    assert machine.memory_bytes((limit,)) == 1 << 20
    assert machine.memory_bytes((unlimited, tmp_path / "none")) == machine.memory_bytes(()) > 1 << 28


@pytest.mark.parametrize("value", ["short", "with a blank in it!", "ümlaut-ümlaut-ümlaut", "x" * 257])
def test_a_secret_that_can_be_guessed_or_not_sent_is_refused_unrepeated(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NAME", value)
    with pytest.raises(ImproperlyConfigured, match="NAME cannot be used; legal are 16 to 256") as refused:
        env.secret("NAME")
    assert value not in str(refused.value)


def test_a_secret_is_read_and_none_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "dGhpcyBpcyBhIHRva2Vu==")
    assert env.secret("NAME") == "dGhpcyBpcyBhIHRva2Vu=="
    monkeypatch.setenv("NAME", "")
    assert env.secret("NAME") == ""
