"""The network end of a browser: a WebSocket of our own making, so that tests can also do what no browser does: not
read, name a foreign origin, send what is no frame. RFC 6455, client side, text frames.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import uuid
from typing import Any, Self

from tests.patience import PATIENCE_S

MAX_S = 5 * PATIENCE_S  # for one frame, whatever comes meanwhile
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Refused(Exception):
    """The handshake was refused; the status line says how."""


class Socket:
    """One open WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, cookie: str, **headers: str | None) -> Self:
        """Headers with None are left out. Raises Refused."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent: dict[str, str | None] = {
            "Host": f"127.0.0.1:{port}",
            "Origin": f"http://127.0.0.1:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Cookie": f"sessionid={cookie}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{name}: {value}" for name, value in sent.items() if value is not None]
        writer.write("\r\n".join(["GET /ws/ HTTP/1.1", *lines, "", ""]).encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        if " 101 " not in answer.splitlines()[0]:
            writer.close()
            raise Refused(answer.splitlines()[0])
        return cls(reader, writer)

    async def send(self, frame: dict[str, Any] | str) -> None:
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._write(TEXT, text.encode())
        await self._writer.drain()

    async def next(self, *types: str) -> dict[str, Any]:
        """The next frame, or the next one of these types; what is shown of a turn is acknowledged.

        Raises ConnectionResetError("closed with ...") when the socket ends.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + MAX_S
        async with asyncio.timeout(PATIENCE_S) as patience:
            while True:
                opcode, payload = await self._read()
                if opcode == PING:
                    self._write(PONG, payload)
                elif opcode == CLOSE:
                    raise ConnectionResetError(f"closed with {struct.unpack('>H', payload[:2])[0]}")
                elif opcode == TEXT:
                    # Where a turn gets on, however slowly, there is something to wait for; but a reply may be endless.
                    patience.reschedule(min(loop.time() + PATIENCE_S, end))
                    frame: dict[str, Any] = json.loads(payload)
                    if "seq" in frame:
                        await self.send({"type": "ack", "message": frame["message"], "seq": frame["seq"]})
                    if not types or frame["type"] in types:
                        return frame

    async def reach(self, stage: str) -> None:
        """Returns when the turn is in this stage; fails when it is past it, for a stage as short as a moment is not
        always told."""
        while True:
            frame = await self.next("turn.stage", "turn.delta", "turn.end")
            if frame.get("stage") == stage or (frame["type"], stage) == ("turn.delta", "writing"):
                return
            assert frame["type"] == "turn.stage", f"{frame['type']} came before {stage}"

    async def ask(self, frame: dict[str, Any] | str) -> dict[str, Any]:
        """Send one frame; the answer to it."""
        await self.send(frame)
        return await self.next("error", "pong", "turn.accepted")

    async def close_code(self) -> int:
        """What the server closes with; frames before that are skipped."""
        try:
            while True:
                await self.next()
        except ConnectionResetError as error:
            return int(str(error).split()[-1])

    def drop(self) -> None:
        """As when the Wi-Fi goes."""
        self._writer.transport.abort()

    def _write(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
        self._writer.write(head + bytes(4) + payload)  # a mask of zeros is a mask

    async def _read(self) -> tuple[int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack(">H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self._reader.readexactly(8))
        return first & 15, await self._reader.readexactly(size)


def send_frame(text: str = "Hello", **changes: Any) -> dict[str, Any]:
    """A first message in a new conversation."""
    ids = {"conversation": str(uuid.uuid4()), "client_id": str(uuid.uuid4())}
    return {"type": "turn.send", **ids, "text": text, "is_new": True, **changes}
