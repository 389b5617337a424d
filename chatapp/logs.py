"""One line a record: whatever a client sent, it cannot begin a line of its own or speak to the terminal."""

from __future__ import annotations

import logging
import re
import time
from types import TracebackType

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

# C0, DEL, C1, the line and paragraph separators, what reverses the direction of writing, and what has no UTF-8
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO chatapp.turn.run: ...`, a traceback behind it on the same line."""

    converter = time.gmtime  # type: ignore[assignment]  # as the manual of logging says to do it
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 -- overrides
        """Without the DETAIL of PostgreSQL's errors, which quotes the row that was refused: the text of a person."""
        text = super().formatException(ei)
        error: BaseException | None = ei[1]
        while error is not None:
            detail = getattr(getattr(error, "diag", None), "message_detail", None)
            if detail:
                text = text.replace(detail, "(left out)")
            error = error.__cause__ or error.__context__
        return text


def escaped(text: str) -> str:
    """`text` with every control character written as Python writes it: \\n, \\x1b, \\u2028."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


class NotReadyFilter(logging.Filter):
    """Drops Django's line for each 503 of the readiness check: a poll every few seconds that asks is not a failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        path = getattr(getattr(record, "request", None), "path_info", "")
        return not (getattr(record, "status_code", 0) == 503 and path == "/healthz/ready")
