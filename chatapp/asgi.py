"""The application that a server runs: Django for HTTP, Channels for WebSockets, and one wrapper around both.

The wrapper decides where the application is mounted (a client's header does not) and which pages may open a socket.
What a server has to limit before it calls an application (bodies, frames, connections) is in chatapp.server.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http.request import split_domain_port, validate_host

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings")
django_application = get_asgi_application()

from chatapp.routing import websocket_urlpatterns  # noqa: E402  # models can be imported only from here on

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Mounted:
    """Serves the application below settings.RECOLLECT_ROOT_PATH, whatever a Daphne-Root-Path header says.

    As Django does, it takes a path without that prefix as one from which a proxy has removed it.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root_path = settings.RECOLLECT_ROOT_PATH
        inner = {**scope, "root_path": root_path}
        if scope["type"] == "websocket":  # Channels fails where the prefix is missing
            inner["path_remaining"] = scope["path"].removeprefix(root_path).lstrip("/")
        await self._application(inner, receive, send)


class SameOrigin:
    """Lets only the application's own pages open a socket. A browser tells the origin, and a foreign page cannot lie.

    Own is: the scheme, host and port under which this request came, the host being one of ALLOWED_HOSTS; or one of
    CSRF_TRUSTED_ORIGINS. Without an origin, or with "null", it is refused.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if is_own_origin(headers.get(b"origin", b"").decode("latin1"), headers.get(b"host", b"").decode("latin1")):
            await self._application(scope, receive, send)
        else:
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})  # before accepting: the handshake gets 403


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin is ours, given the Host header of the request."""
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    scheme = "https" if settings.RECOLLECT_HTTPS else "http"
    domain, _port = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    own = _place(f"{scheme}://{host}")
    return own is not None and _place(origin) == own


def _place(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of an origin; None when it is not one."""
    try:
        parts: SplitResult = urlsplit(url.lower())
        port = parts.port
    except ValueError:  # a port that is no number, half an IPv6 address
        return None
    if (
        parts.scheme not in _DEFAULT_PORTS
        or not parts.hostname
        or parts.path
        or parts.query
        or parts.username is not None
    ):
        return None
    return parts.scheme, parts.hostname.rstrip("."), port or _DEFAULT_PORTS[parts.scheme]


application = Mounted(
    ProtocolTypeRouter(
        {
            "http": django_application,
            "websocket": SameOrigin(CookieMiddleware(URLRouter(websocket_urlpatterns))),
        }
    )
)
