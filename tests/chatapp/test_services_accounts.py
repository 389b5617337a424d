"""Accounts: the first visitor, sign-up, log-in and how often a password may be guessed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest
from django.test import RequestFactory

from chatapp import keys, selectors
from chatapp.errors import Conflict, Invalid, NotFound, Throttled
from chatapp.models import User
from chatapp.services import accounts, login_throttle

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
Guess = Callable[..., User]


@pytest.fixture(autouse=True)
def _keys(tmp_path: Path, settings: Any) -> None:
    settings.RECOLLECT_KEYS = tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The throttle's time, to be moved by the test."""
    now = [1_000_000.0]
    monkeypatch.setattr(login_throttle.time, "time", lambda: now[0])
    return now


def _request(address: str = "192.0.2.1", **headers: str) -> HttpRequest:
    request = RequestFactory().post("/login/", REMOTE_ADDR=address, headers=headers)
    request.session = SessionStore()
    return request


def _log_in(username: str = "alice", password: str = PASSWORD, address: str = "192.0.2.1", **headers: str) -> User:
    return accounts.log_in(request=_request(address, **headers), username=username, password=password)


# --- the owner --------------------------------------------------------------------------------------------------------


def test_first_account_is_owner_staff_and_superuser() -> None:
    assert not selectors.is_set_up()
    owner = accounts.owner_create(username="ada", password=PASSWORD)
    assert (owner.is_owner, owner.is_staff, owner.is_superuser) == (True, True, True)
    assert owner.check_password(PASSWORD)
    assert selectors.is_set_up()


def test_the_owner_of_the_terminal_is_claimed_on_the_first_visit() -> None:
    owner = accounts.owner_for_terminal()
    assert (owner.is_owner, owner.is_superuser, owner.has_usable_password()) == (True, True, False)
    assert not selectors.is_set_up()
    assert accounts.owner_for_terminal() == owner
    claimed = accounts.owner_create(username="ada", password=PASSWORD)
    assert claimed == owner
    assert User.objects.get().check_password(PASSWORD)
    assert selectors.is_set_up()
    with pytest.raises(Conflict):
        accounts.owner_create(username="eve", password=PASSWORD)


def test_an_owner_who_has_been_logged_in_is_not_up_for_claiming() -> None:
    owner = accounts.owner_create(username="ada", password=PASSWORD)
    _log_in("ada")
    owner.refresh_from_db()
    owner.set_unusable_password()
    owner.save()
    assert selectors.is_set_up()
    with pytest.raises(Conflict):
        accounts.owner_create(username="eve", password=PASSWORD)


def test_the_terminal_belongs_to_the_owner_before_other_superusers() -> None:
    User.objects.create_superuser("root", password=PASSWORD)
    assert accounts.owner_for_terminal().username == "root"
    User.objects.create_superuser("ada", password=PASSWORD, is_owner=True)
    assert accounts.owner_for_terminal().username == "ada"


def test_without_an_owner_the_terminal_must_say_who() -> None:
    User.objects.create_user("alice", password=PASSWORD)
    with pytest.raises(Conflict):
        accounts.owner_for_terminal()


def test_second_owner_is_refused() -> None:
    accounts.owner_create(username="ada", password=PASSWORD)
    with pytest.raises(Conflict):
        accounts.owner_create(username="eve", password=PASSWORD)
    assert User.objects.get().username == "ada"


def test_set_up_ends_with_any_account(alice: User) -> None:
    with pytest.raises(Conflict):
        accounts.owner_create(username="eve", password=PASSWORD)


@pytest.mark.parametrize(
    ("username", "password", "field"),
    [
        ("", PASSWORD, "username"),
        ("a b", PASSWORD, "username"),
        ("a\x00b", PASSWORD, "username"),
        ("x" * 151, PASSWORD, "username"),
        ("ada", "short", "password"),
        ("ada", "1234567890123", "password"),
        ("ada", "password", "password"),
        ("longusername", "longusername", "password"),
        ("ada", "half a \ud800 surrogate", "password"),
    ],
)
def test_bad_name_or_password_is_refused_with_its_field(username: str, password: str, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        accounts.owner_create(username=username, password=password)
    assert list(caught.value.detail["fields"]) == [field]
    assert not User.objects.exists()


def test_exposed_server_wants_the_token_once(settings: Any) -> None:
    settings.RECOLLECT_IS_EXPOSED = True
    old, token = accounts.setup_token_create(), accounts.setup_token_create()
    for wrong in ("", old, token + "x", token[:-1], "\ud800"):
        with pytest.raises(NotFound):
            accounts.owner_create(username="eve", password=PASSWORD, token=wrong)
    accounts.owner_create(username="ada", password=PASSWORD, token=token)
    assert not keys.setup_token_matches(settings.RECOLLECT_KEYS, token)


def test_exposed_server_without_a_token_made_takes_nobody(settings: Any) -> None:
    settings.RECOLLECT_IS_EXPOSED = True
    with pytest.raises(NotFound):
        accounts.owner_create(username="eve", password=PASSWORD, token="")


def test_owner_is_not_deleted() -> None:
    owner = accounts.owner_create(username="ada", password=PASSWORD)
    with pytest.raises(Conflict):
        accounts.user_delete(user=owner)
    assert selectors.is_set_up()


# --- sign-up ----------------------------------------------------------------------------------------------------------


def test_sign_up_is_off_by_default(alice: User) -> None:
    with pytest.raises(NotFound):
        accounts.sign_up(username="carol", password=PASSWORD)


def test_sign_up_makes_an_account_without_rights(alice: User, settings: Any) -> None:
    settings.RECOLLECT_SIGNUP = True
    carol = accounts.sign_up(username="carol", password=PASSWORD, language="zh-hans")
    assert (carol.is_owner, carol.is_staff, carol.is_superuser, carol.language) == (False, False, False, "zh-hans")


def test_sign_up_before_the_owner_is_refused(settings: Any) -> None:
    settings.RECOLLECT_SIGNUP = True
    with pytest.raises(NotFound):
        accounts.sign_up(username="carol", password=PASSWORD)


@pytest.mark.parametrize("name", ["alice", "Alice", "ａｌｉｃｅ"])  # full width: the same name after NFKC
def test_sign_up_with_a_taken_name_is_a_conflict(alice: User, settings: Any, name: str) -> None:
    settings.RECOLLECT_SIGNUP = True
    with pytest.raises(Conflict, match="taken"):
        accounts.sign_up(username=name, password=PASSWORD)


# --- log-in -----------------------------------------------------------------------------------------------------------


def test_log_in_begins_a_session(alice: User) -> None:
    request = _request()
    assert accounts.log_in(request=request, username="alice", password=PASSWORD) == alice
    assert request.session["_auth_user_id"] == str(alice.pk)


def test_every_wrong_pair_gets_the_same_answer(alice: User, bob: User) -> None:
    bob.is_active = False
    bob.save()
    answers = set()
    for username, password in (("alice", "wrong"), ("nobody", "wrong"), ("bob", PASSWORD), ("a\x00", "\ud800")):
        with pytest.raises(Invalid) as caught:
            _log_in(username, password)
        answers.add((caught.value.message, str(caught.value.detail)))
    assert len(answers) == 1


def test_pause_grows_with_each_wrong_password_of_an_account(alice: User, clock: list[float]) -> None:
    pauses: list[int] = []
    for i in range(20):
        try:
            _log_in(password="wrong", address=f"192.0.2.{i}")
        except Invalid:
            continue
        except Throttled as error:
            pauses.append(error.detail["retry_after_s"])
            clock[0] += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_right_password_after_the_pause_forgets_the_failures(alice: User, clock: list[float]) -> None:
    for _ in range(5):
        with pytest.raises(Invalid):
            _log_in(password="wrong")
    with pytest.raises(Throttled):
        _log_in()
    clock[0] += 1
    assert _log_in() == alice
    for _ in range(5):
        with pytest.raises(Invalid):
            _log_in(password="wrong")


def test_address_is_throttled_over_many_accounts(clock: list[float]) -> None:
    for i in range(20):
        with pytest.raises(Invalid):
            _log_in(f"name{i}", "wrong", "2001:db8::1")
    with pytest.raises(Throttled):
        _log_in("other", "wrong", "2001:db8::ffff")  # the same /64
    with pytest.raises(Invalid):
        _log_in("other", "wrong", "2001:db8:0:1::1")


def test_right_passwords_never_throttle_their_address(alice: User, clock: list[float]) -> None:
    for _ in range(40):
        assert _log_in() == alice


def test_own_account_does_not_clear_the_guesses_of_an_address(alice: User, clock: list[float]) -> None:
    for i in range(20):
        assert _log_in() == alice
        with pytest.raises(Invalid):
            _log_in(f"victim{i}", "wrong")
    with pytest.raises(Throttled):
        _log_in()


def test_behind_the_proxy_the_last_forwarded_address_counts(settings: Any) -> None:
    request = _request("10.0.0.1", X_Forwarded_For="1.1.1.1, 2.2.2.2")
    assert accounts._address(request) == "10.0.0.1"
    settings.RECOLLECT_HTTPS = True
    assert accounts._address(request) == "2.2.2.2"


def test_unknown_language_is_refused(alice: User) -> None:
    with pytest.raises(Invalid):
        accounts.preferences_save(user=alice, language="tlh", preferences={})
    accounts.preferences_save(user=alice, language="zh-hans", preferences={"theme": "dark"})
    assert User.objects.get().preferences == {"theme": "dark"}
