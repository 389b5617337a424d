"""The WebSocket: one socket per tab, for all its conversations. A handler parses, asks and returns; it awaits no reply.

Everything that leaves goes through the socket's Watcher, in order. Every refusal becomes an error frame here, once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, assert_never
from uuid import UUID

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.http import HttpRequest
from django.utils import translation
from django.utils.translation import gettext as _

from chatapp import executors, hints, selectors, sessions, wire, wire_parsing
from chatapp.errors import ChatError, Invalid, NotFound, StorageUnavailable
from chatapp.models import User
from chatapp.turn import run
from chatapp.turn.gauge import gauge
from chatapp.turn.live import Watcher, live
from chatapp.turn.preparation import addressed, preparation

logger = logging.getLogger(__name__)

CLOSE_UNAUTHENTICATED = 4401
CLOSE_FLOOD = 4429
CLOSE_TRY_AGAIN = 1013
ACK_CHARS = 90  # at least
COUNT_CHARS = 8 * 1024  # what counting costs besides the draft's own: at most four a second for long
SESSION_CHECK_S = 60.0  # a session that ended without a hint (expired, changed in another process) is found out by then
SESSION_RETRY_S = 5.0  # between two questions while the database is away


class TokenBucket:
    """Lets `rate` units a second pass, `burst` at once."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._filled_at = time.monotonic()

    def take(self, amount: float) -> bool:
        """Whether there is room for so much now."""
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def give_back(self, amount: float) -> None:
        """What was taken did not count after all."""
        self._level = min(self._burst, self._level + amount)


class ChatConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels is untyped
    """A tab. Closes with 4401 without a session, 4408 when it does not read, 4429 when it floods, 1001 at the end."""

    user: User

    async def connect(self) -> None:
        await self.accept()  # first: a browser sees a close code only on an open socket
        self.watcher = Watcher(live)
        self._relay = asyncio.create_task(self._send_frames())
        self._frames = TokenBucket(rate=20, burst=100)
        self._chars = TokenBucket(rate=1024**2 / 60, burst=2 * 1024**2)
        self._drafts = TokenBucket(rate=16 * 1024, burst=512 * 1024)  # characters; what is more is not read along
        self._counts = TokenBucket(rate=32 * 1024, burst=512 * 1024)  # characters; what is more is not counted
        self._counting: asyncio.Task[None] | None = None
        self._to_count: wire.WindowCount | None = None
        self._unanswered_at = -math.inf
        self._begun: UUID | None = None  # a conversation of which there is nothing but a draft; nobody else's
        self._session_key = self.scope["cookies"].get(settings.SESSION_COOKIE_NAME, "")
        self._language = _language_of_browser(self.scope)
        try:
            with translation.override(self._language):
                user = await self._check_session()
        except StorageUnavailable as error:
            self.watcher.reply(_error(error))
            self.watcher.close(CLOSE_TRY_AGAIN)
            return
        if user is not None:
            self.user = user
            if translation.check_for_language(user.language):
                self._language = user.language
            await self.channel_layer.group_add(hints.group_of(user.pk), self.channel_name)

    async def disconnect(self, code: int) -> None:
        self.watcher.close(code)
        if self._begun is not None:
            preparation.draft_left(self.user, self._begun)
        if self._counting is not None:
            self._counting.cancel()
        if hasattr(self, "user"):
            await self.channel_layer.group_discard(hints.group_of(self.user.pk), self.channel_name)
        await self._relay  # has ended with the watcher; what went wrong in it is raised here

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.watcher.close_code is not None:
            return
        if not (self._frames.take(1) and self._chars.take(len(text_data or bytes_data or ""))):
            logger.warning("socket of user %s closed: too many frames", self.user.pk)
            self.watcher.close(CLOSE_FLOOD)
            return
        with translation.override(self._language):
            try:
                await self._receive(text_data)
            except ChatError as error:
                self.watcher.reply(_error(error))

    async def _receive(self, text: str | None) -> None:
        if text is None:
            raise Invalid(_("The frame is not text."))
        frame = wire_parsing.parse(text)
        try:
            if await self._is_allowed(frame):
                await self._handle(frame)
        except ChatError as error:
            for name in ("client_id", "conversation"):
                if hasattr(frame, name):
                    error.detail[name] = str(getattr(frame, name))
            raise

    async def _is_allowed(self, frame: wire.ClientFrame) -> bool:
        """Whether the session still holds. Raises StorageUnavailable for frames that need rows.

        The others go on while the database is away: a running reply is shown and can be stopped all the same.
        """
        now = time.monotonic()
        if now - self._checked_at < SESSION_CHECK_S:
            return True
        needs_rows = not isinstance(frame, wire.Ping | wire.Ack | wire.TurnStop | wire.DraftWarm | wire.WindowCount)
        if not needs_rows and now - self._unanswered_at < SESSION_RETRY_S:
            return True
        try:
            return await self._check_session() is not None
        except StorageUnavailable:
            self._unanswered_at = time.monotonic()
            if needs_rows:
                raise
            return True

    async def _handle(self, frame: wire.ClientFrame) -> None:
        match frame:
            case wire.Ping():
                self.watcher.reply(wire.Pong())
            case wire.Ack():
                if self.watcher.ack(frame.message, frame.seq):  # as many as we sent frames: no flood
                    self._frames.give_back(1)
                    self._chars.give_back(ACK_CHARS)
            case wire.Watch():
                conversation = await executors.database(selectors.conversation_get, self.user, frame.conversation)
                self.watcher.watch(frame.conversation)
                preparation.opened(self.user, conversation)
            case wire.Unwatch():
                if not self.watcher.unwatch(frame.conversation):
                    raise NotFound(_("Not found."))
            case wire.DraftWarm():
                await self._warm(frame)
            case wire.WindowCount():
                await self._count(frame)
            case wire.TurnStop():
                await run.stop(live, self.user, frame)
            case wire.TurnSend() | wire.TurnEdit() | wire.TurnRegenerate() | wire.TurnContinue():
                await run.start(live, self.user, frame, accept=self._accept)
            case _:
                assert_never(frame)

    async def _warm(self, frame: wire.DraftWarm) -> None:
        """It takes no message's place in the limits. Raises NotFound."""
        num_chars = len(frame.text or "")
        if not self._drafts.take(num_chars):
            return
        self._chars.give_back(num_chars)
        await self._check_addressed(frame)
        preparation.draft(self.user, frame, self.watcher.reply)

    async def _count(self, frame: wire.WindowCount) -> None:
        """One at a time, the newest next. As _warm."""
        num_chars = len(frame.text or "")
        if not self._counts.take(COUNT_CHARS + num_chars):
            return
        self._chars.give_back(num_chars)
        await self._check_addressed(frame)
        self._to_count = frame
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count_all())

    async def _check_addressed(self, frame: wire.DraftWarm | wire.WindowCount) -> None:
        """Of a conversation that this tab shows, or that will begin with it. Raises NotFound.

        What may begin is asked once for each. Without a database nobody is told: then nothing is prepared or counted.
        """
        if not frame.is_new:
            if not self.watcher.follows(frame.conversation):
                raise NotFound(_("This conversation does not exist."))
        elif frame.conversation != self._begun:
            with suppress(StorageUnavailable):
                await executors.database(selectors.conversation_id_check, self.user, frame.conversation)
                self._begun = frame.conversation

    async def _count_all(self) -> None:
        while self._to_count is not None:
            frame, self._to_count = self._to_count, None
            try:
                count = await executors.database(_counted, self.user, frame)
            except ChatError as error:  # the send will say so, to somebody who has sent something
                logger.info("conversation %s: its window is not counted, %s", frame.conversation, error.code)
                count = wire.WindowCounted(frame.conversation, frame.number, window=0)
            self.watcher.reply(count)

    def _accept(self, frame: wire.TurnAccepted) -> None:
        self.watcher.reply(frame)
        self.watcher.watch(frame.conversation)
        if frame.conversation == self._begun:  # there is more of it now
            self._begun = None

    async def _send_frames(self) -> None:
        async for text in self.watcher.frames():
            await self.send(text_data=text)
        await self.close(code=self.watcher.close_code)

    async def _check_session(self) -> User | None:
        """Who this socket belongs to; without anybody it closes. Raises StorageUnavailable."""
        self._checked_at = -math.inf  # when the database does not answer, the next frame that needs rows asks again
        user = await executors.database(sessions.user_of, self._session_key) if self._session_key else None
        self._checked_at = time.monotonic()
        if user is None:
            self.watcher.close(CLOSE_UNAUTHENTICATED)
        return user

    # hints, see hints.py

    async def conversation_changed(self, event: dict[str, Any]) -> None:
        conversation_id = UUID(event["conversation"])
        self.watcher.reply(wire.ConversationChanged(conversation_id, event["title"], event["is_deleted"]))
        if event["is_deleted"]:
            self.watcher.unwatch(conversation_id)
        elif self.watcher.follows(conversation_id):
            preparation.changed(self.user, conversation_id)

    async def account_changed(self, event: dict[str, Any]) -> None:
        with suppress(StorageUnavailable):
            await self._check_session()

    async def session_ended(self, event: dict[str, Any]) -> None:
        if event["session_key"] == self._session_key:
            self.watcher.close(CLOSE_UNAUTHENTICATED)


def _counted(user: User, frame: wire.WindowCount) -> wire.WindowCounted:
    """Blocking. Raises ChatError."""
    conversation = addressed(user, frame)
    count = asdict(gauge.count(conversation, frame.text or ""))
    renamed = {
        "outside": "num_outside",
        "leaving": "num_leaving",
        "quoted": "num_recalled",
        "unsummarised": "num_unsummarised",
    }
    values = {name: count.pop(field) for name, field in renamed.items()}
    return wire.WindowCounted(
        frame.conversation,
        frame.number,
        **count,
        **values,
        policy=conversation.context_policy,
        recent_tokens=conversation.recent_tokens,
        has_recall=conversation.has_recall,
        is_stored=not conversation._state.adding,
    )


def _error(error: ChatError) -> wire.Error:
    detail = dict(error.detail)
    client_id, conversation = detail.pop("client_id", None), detail.pop("conversation", None)
    return wire.Error(
        code=error.code,
        message=error.message,
        detail=detail,
        client_id=UUID(client_id) if client_id else None,
        conversation=UUID(conversation) if conversation else None,
    )


def _language_of_browser(scope: dict[str, Any]) -> str:
    """As on the pages: by the handshake's cookie, else by what the browser accepts."""
    request = HttpRequest()
    request.COOKIES = scope["cookies"]
    accepted = dict(scope["headers"]).get(b"accept-language", b"").decode("latin1")
    request.META["HTTP_ACCEPT_LANGUAGE"] = accepted
    return translation.get_language_from_request(request)
