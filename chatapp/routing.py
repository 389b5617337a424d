"""The addresses of WebSockets; any other is refused with 403."""

from __future__ import annotations

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from chatapp.consumers import ChatConsumer

websocket_urlpatterns = [path("ws/", ChatConsumer.as_asgi()), re_path("", WebsocketDenier.as_asgi())]
