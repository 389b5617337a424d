"""The wrapper around the application: which pages may open a socket, and where everything is mounted."""

from __future__ import annotations

from typing import Any

import pytest
from channels.testing import WebsocketCommunicator

from chatapp.asgi import Mounted, application, is_own_origin

pytestmark = pytest.mark.django_db  # the application closes old connections: of earlier tests, when run among them


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://LOCALHOST:8000", "localhost:8000"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://127.0.0.1:8123", "127.0.0.1:8123"),
    ],
)
def test_own_pages_may_open_a_socket(origin: str, host: str) -> None:
    assert is_own_origin(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "localhost:8000",
        "//localhost:8000",
        "http://",
        "http://localhost",
        "http://localhost:8001",
        "https://localhost:8000",
        "ws://localhost:8000",
        "file://localhost:8000",
        "http://127.0.0.1:8000",
        "http://evil.example",
        "http://localhost.evil.example:8000",
        "http://evil.example/localhost:8000",
        "http://localhost:8000@evil.example",
        "http://user@localhost:8000",
        "http://localhost:8000/path",
        "http://localhost:port",
        "http://[::1",
        "http://localhost:8000, http://evil.example",
        "http://localhost:80000",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    assert not is_own_origin(origin, "localhost:8000")


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8000", "localhost:8000:8000", "local host"])
def test_a_host_that_is_not_ours_is_nobodys_origin(host: str) -> None:
    assert not is_own_origin(f"http://{host}", host)


def test_behind_tls_the_origin_is_https(settings: Any) -> None:
    settings.RECOLLECT_HTTPS = True
    settings.ALLOWED_HOSTS = ["chat.example"]
    assert is_own_origin("https://chat.example", "chat.example")
    assert not is_own_origin("http://chat.example", "chat.example")
    assert not is_own_origin("https://chat.example:8443", "chat.example")


def test_a_trusted_origin_is_ours_whatever_the_host(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://chat.example"]
    assert is_own_origin("https://chat.example", "10.0.0.7:8000")


async def handshake(path: str, origin: str = "http://localhost:8000", **headers: str) -> bool:
    sent = {"host": "localhost:8000", "origin": origin, **headers}
    communicator = WebsocketCommunicator(application, path, [(k.encode(), v.encode()) for k, v in sent.items() if v])
    is_accepted, _ = await communicator.connect()
    await communicator.disconnect()
    return bool(is_accepted)


@pytest.mark.parametrize(
    ("path", "origin", "is_accepted"),
    [
        ("/ws/", "http://localhost:8000", True),
        ("/ws/", "", False),
        ("/ws/", "null", False),
        ("/ws/", "https://evil.example", False),
        ("/ws/more", "http://localhost:8000", False),
        ("/", "http://localhost:8000", False),
    ],
)
async def test_foreign_pages_and_unknown_addresses_are_refused_in_the_handshake(
    path: str, origin: str, is_accepted: bool
) -> None:
    assert await handshake(path, origin) == is_accepted


async def test_a_socket_below_a_root_path(settings: Any) -> None:
    settings.RECOLLECT_ROOT_PATH = "/chat"
    assert await handshake("/chat/ws/")
    assert await handshake("/ws/")  # a proxy has removed the prefix
    assert not await handshake("/other/ws/")


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_the_root_path_is_that_of_the_settings(settings: Any, kind: str) -> None:
    settings.RECOLLECT_ROOT_PATH = "/chat"
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    # what Daphne makes of a Daphne-Root-Path header
    scope = {"type": kind, "path": "/chat/ws/", "root_path": "/evil"}
    await Mounted(application)(scope, None, None)  # type: ignore[arg-type]
    assert seen[0]["root_path"] == "/chat"
    assert scope["root_path"] == "/evil"  # the server's own is left alone
