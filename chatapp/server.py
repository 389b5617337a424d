# mypy: disable-error-code="no-untyped-call"
"""Daphne as this product runs it: with limits before anything is buffered, and an end that loses no reply.

Daphne itself reads bodies of any size before the application sees them, takes any number of connections, and cancels
everything at once when it is stopped.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from daphne.server import Server, twisted_loop  # isort: skip  # installs the asyncio reactor, so it comes before all of Twisted
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet import defer
from twisted.internet import reactor as _reactor
from twisted.internet.error import CannotListenError
from twisted.logger import globalLogBeginner
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

from chatapp import llm, wire
from chatapp.turn import run
from chatapp.turn.encoding import encoding
from chatapp.turn.live import live

__all__ = ["CannotListenError", "ChatServer", "raise_open_files"]

logger = logging.getLogger(__name__)
reactor: Any = _reactor  # its interfaces confuse the type checker

LINGER_S = 5.0  # after a refusal a body is still read, and thrown away, so that the client gets to see the answer
MAX_CONNECTIONS = 4096
RESERVED_FILES = 256  # for database, log, model and KV files
MAX_CONNECTIONS_PER_ADDRESS = 256
END_S = 9.6  # of the ten seconds after which supervisors kill
DRAIN_GRACE_S = 7.0  # of these, for replies
CLOSE_GRACE_S = 0.8
ENCODE_AFTER_S = 4.0  # after the start: the model and whoever has waited for it come first
SAVE_S = 1.0  # at least, for cached KV; what the above have left otherwise

_TOO_LARGE = (
    b"HTTP/1.1 413 Content Too Large\r\nContent-Type: text/plain\r\nContent-Length: 22\r\nConnection: close\r\n\r\n"
    b"The body is too large."
)


def raise_open_files() -> int:
    """Lift the soft limit of open files to the hard one; returns it. One browser tab is one file."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class LimitedRequest(WebRequest):  # type: ignore[misc]  # daphne and twisted are untyped
    """Refuses a body over the limit as soon as that is known: by its length, or while its chunks come in."""

    max_body_bytes: int
    _is_refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802  # Twisted's name
        super().gotLength(length)
        if length is not None and length > self.max_body_bytes:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        if not self._is_refused and self.content.tell() + len(data) > self.max_body_bytes:
            self._refuse()
        if not self._is_refused:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802
        if self._is_refused:
            self.channel.loseConnection()
        else:
            super().requestReceived(command, path, version)

    def _refuse(self) -> None:
        self._is_refused = True
        self.content.seek(0)
        self.content.truncate()
        transport = self.channel.transport
        transport.write(_TOO_LARGE)
        reactor.callLater(LINGER_S, transport.abortConnection)


class LimitedHTTPFactory(HTTPFactory):  # type: ignore[misc]
    """Makes connections whose requests are limited."""

    def __init__(self, server: Server, max_body_bytes: int) -> None:
        super().__init__(server)
        self._request_class = type("Request", (LimitedRequest,), {"max_body_bytes": max_body_bytes})

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = self._request_class
        return protocol


class ClosableProtocol(WebSocketProtocol):  # type: ignore[misc]
    """Can also close with 1001 and 1013, which Autobahn keeps from applications."""

    def serverClose(self, code: int | None = None) -> None:  # noqa: N802
        if code is None or code == 1000 or 3000 <= code <= 4999:
            super().serverClose(code)
        elif self.state == self.STATE_OPEN:
            self.sendCloseFrame(code=code, isReply=False)


class CappedFactory(WrappingFactory):
    """Drops connections over the caps: in all (files run out), and per public address.

    Private addresses have no cap of their own: a proxy in front makes all visitors come from one.
    """

    def __init__(self, factory: HTTPFactory, max_connections: int) -> None:
        super().__init__(factory)
        self._max_connections = max_connections
        self._num_from: Counter[str] = Counter()

    def buildProtocol(self, addr: Any) -> ProtocolWrapper | None:  # type: ignore[override]  # noqa: N802
        is_capped = ipaddress.ip_address(addr.host.partition("%")[0]).is_global
        if len(self.protocols) >= self._max_connections or (
            is_capped and self._num_from[addr.host] >= MAX_CONNECTIONS_PER_ADDRESS
        ):
            logger.warning(
                "connection refused: %d are open, %d from there", len(self.protocols), self._num_from[addr.host]
            )
            return None
        return super().buildProtocol(addr)

    def registerProtocol(self, protocol: ProtocolWrapper) -> None:  # noqa: N802
        super().registerProtocol(protocol)
        self._num_from[protocol.getPeer().host] += 1

    def unregisterProtocol(self, protocol: ProtocolWrapper) -> None:  # noqa: N802
        super().unregisterProtocol(protocol)
        self._num_from[protocol.getPeer().host] -= 1
        self._num_from += Counter()  # drops the entries at zero


class ChatServer(Server):  # type: ignore[misc]
    """One process: listens, serves, drains on SIGTERM and SIGINT. `run` returns when it has ended."""

    def __init__(self, application: Any, *, host: str, port: int, max_body_bytes: int, max_files: int) -> None:
        super().__init__(application, endpoints=[f"tcp:{port}:interface={host}"], server_name="")
        self._host = host
        self._port = port
        self._max_body_bytes = max_body_bytes
        self._max_connections = max(16, min(MAX_CONNECTIONS, max_files - RESERVED_FILES))
        self._drain_task: asyncio.Task[None] | None = None

    def run(self, on_listening: Callable[[int], None]) -> None:
        """Serve until a signal. on_listening gets the port. Raises CannotListenError."""
        self.connections: dict[Any, dict[str, Any]] = {}
        self.http_factory = LimitedHTTPFactory(self, self._max_body_bytes)
        self.ws_factory = WebSocketFactory(self, server="")
        self.ws_factory.protocol = ClosableProtocol
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,  # asgi.SameOrigin decides
            openHandshakeTimeout=self.websocket_handshake_timeout,
            closeHandshakeTimeout=CLOSE_GRACE_S,
            maxMessagePayloadSize=wire.MAX_FRAME_BYTES,
            maxFramePayloadSize=wire.MAX_FRAME_BYTES,
        )
        ignore: Any = lambda event: None  # Twisted's own log repeats what ours says
        globalLogBeginner.beginLoggingTo([ignore], redirectStandardIO=False, discardBuffer=True)
        factory = CappedFactory(self.http_factory, self._max_connections)
        port = reactor.listenTCP(self._port, factory, backlog=512, interface=self._host)
        asyncio.set_event_loop(twisted_loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            twisted_loop.add_signal_handler(number, self._on_signal)
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        reactor.callLater(ENCODE_AFTER_S, encoding.wake)
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        on_listening(port.getHost().port)
        reactor.run(installSignalHandlers=False)

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Cancel what is left when the reactor stops. Daphne's own fails on a connection without a request."""
        applications = [
            details["application_instance"]
            for details in self.connections.values()
            if "application_instance" in details
        ]
        for application in applications:
            application.cancel()
        return defer.Deferred.fromFuture(asyncio.gather(*applications, return_exceptions=True))

    def _on_signal(self) -> None:
        if self._drain_task is None:
            logger.info("draining: %d turns run, %d sockets are open", len(live.turns), live.num_sockets)
            self._drain_task = asyncio.get_running_loop().create_task(self._drain())
        else:  # a second Ctrl-C: whoever sends it does not want to wait
            reactor.stop()

    async def _drain(self) -> None:
        clock = asyncio.get_running_loop().time
        end_at = clock() + END_S
        try:
            await run.drain(live, grace_s=DRAIN_GRACE_S)
            deadline = clock() + CLOSE_GRACE_S
            while clock() < deadline and self._has_open_sockets():
                await asyncio.sleep(0.02)
            # A thread that a second signal does not wait for, as it would for one of a pool.
            ending = threading.Thread(target=llm.shutdown, args=(max(SAVE_S, end_at - clock()),), daemon=True)
            ending.start()
            while ending.is_alive():
                await asyncio.sleep(0.02)
        finally:
            if reactor.running:
                reactor.stop()

    def _has_open_sockets(self) -> bool:
        return any(
            isinstance(protocol, WebSocketProtocol) and "disconnected" not in details
            for protocol, details in self.connections.items()
        )
