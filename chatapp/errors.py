"""What can go wrong for a person. A ChatError carries a stable code for programs and a sentence for people.

Raised by services, turn and llm; turned into a frame by the consumer and into a page by the views, each in one place.
"""

from __future__ import annotations

from typing import Any


class ChatError(Exception):
    """Root. `code` never changes; `detail` holds the numbers that the message mentions; `status` is the HTTP answer."""

    code = "error"
    status = 400

    def __init__(self, message: str, **detail: Any) -> None:
        self.message = message
        self.detail = detail
        super().__init__(message)


class NotFound(ChatError):
    """It does not exist, or it is not yours: the two are not told apart."""

    code = "not_found"
    status = 404


class Invalid(ChatError):
    """The request makes no sense as it stands: empty or oversized text, a wrong role, an unknown frame."""

    code = "invalid"
    status = 400


class Conflict(ChatError):
    """It contradicts what is stored: a client id reused for another text, a turn that still runs."""

    code = "conflict"
    status = 409


class Busy(ChatError):
    """The queue is full. Nothing has been stored; try again."""

    code = "busy"
    status = 429


class Throttled(ChatError):
    """Too many wrong passwords for this account or from this address. detail: retry_after_s."""

    code = "throttled"
    status = 429


class WindowFull(ChatError):
    """The conversation does not fit the model's window. Nothing has been stored as sent."""

    code = "window_full"
    status = 422


class Unauthenticated(ChatError):
    """No session, or one that has ended."""

    code = "unauthenticated"
    status = 401


class EngineUnavailable(ChatError):
    """No model: still loading, failed to load, or stopped. The message says which and what to do."""

    code = "engine_unavailable"
    status = 503


class StorageUnavailable(ChatError):
    """The database cannot be written: down, full, or with pending migrations. Nothing has been stored."""

    code = "storage_unavailable"
    status = 503


class Draining(ChatError):
    """The server is about to stop and takes no new turns."""

    code = "draining"
    status = 503
