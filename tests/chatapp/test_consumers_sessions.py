"""Who has a socket: sessions that are there, that are not, and that end while it is open."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.test import Client

from chatapp import consumers
from chatapp.errors import StorageUnavailable
from chatapp.models import User
from tests.chatapp.conftest import Socket, log_in, opened

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("cookies", [{}, {settings.SESSION_COOKIE_NAME: "made-up"}])
async def test_without_a_session_the_socket_closes_with_4401(db: Any, cookies: dict[str, str]) -> None:
    socket = Socket(cookies)
    assert await socket.open()
    assert await socket.close_code() == 4401


async def test_a_disabled_account_gets_no_socket(alice: User) -> None:
    cookies = await log_in(alice)
    await User.objects.filter(pk=alice.pk).aupdate(is_active=False)
    socket = Socket(cookies)
    assert await socket.open()
    assert await socket.close_code() == 4401


async def test_a_database_that_is_away_says_try_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(session_key: str) -> None:
        raise StorageUnavailable("The database cannot be reached.")

    cookies = await log_in(alice)
    monkeypatch.setattr("chatapp.sessions.user_of", away)
    socket = Socket(cookies)
    assert await socket.open()
    assert (await socket.next())["code"] == "storage_unavailable"
    assert await socket.close_code() == 1013


@pytest.mark.parametrize("change", ["log out", "password", "disable", "delete"])
async def test_a_session_that_ends_closes_its_sockets(alice: User, change: str) -> None:
    client = Client()
    await sync_to_async(client.force_login)(alice)
    cookies = {name: morsel.value for name, morsel in client.cookies.items()}
    sockets = [Socket(cookies) for _ in range(3)]
    for socket in sockets:
        assert await socket.open()
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    if change == "log out":
        await sync_to_async(client.logout)()
    elif change == "delete":
        await alice.adelete()
    else:
        if change == "password":
            alice.set_password("another correct horse")
        else:
            alice.is_active = False
        await alice.asave()
    assert [await socket.close_code() for socket in sockets] == [4401] * 3


async def test_logging_out_here_leaves_the_other_session_alone(alice: User) -> None:
    async with opened(alice) as elsewhere:
        client = Client()
        await sync_to_async(client.force_login)(alice)
        await sync_to_async(client.logout)()
        assert (await elsewhere.ask({"type": "ping"}))["type"] == "pong"


async def test_a_session_that_ends_without_a_hint_is_noticed(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SESSION_CHECK_S", 0.0)
    async with opened(alice) as socket:
        await User.objects.filter(pk=alice.pk).aupdate(is_active=False)
        await socket.send({"type": "ping"})
        assert await socket.close_code() == 4401
