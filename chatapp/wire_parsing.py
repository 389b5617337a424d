"""A client's frame from its text, and what a message may hold. Without I/O; nothing that a client sends is trusted."""

from __future__ import annotations

import json
import re
import types
import uuid
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from django.utils.translation import gettext as _

from chatapp.errors import Invalid
from chatapp.text import is_blank
from chatapp.wire import CLIENT_FRAMES, MAX_FRAME_BYTES, MAX_MESSAGE_CHARS, ClientFrame


def parse(text: str) -> ClientFrame:
    """A frame from a client: flat, exactly the fields of its type, each of exactly its type.

    Raises Invalid, with a sentence for a person, for anything else; its detail holds `client_id` and `conversation`
    where the frame had sound ones, so that the tab knows which of its sends was refused.
    """
    payload = _decode(text)
    named = {key: payload[key] for key in ("client_id", "conversation") if _is_uuid(payload.get(key))}
    try:
        return _build(payload)
    except Invalid as error:
        error.detail.update(named)
        raise


def _decode(text: str) -> dict[str, Any]:
    if len(text) > MAX_FRAME_BYTES:
        raise Invalid(f"The frame has {len(text)} characters, at most {MAX_FRAME_BYTES} are allowed.")
    try:
        payload = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # RecursionError: a hundred thousand opening brackets
        raise Invalid("The frame is not JSON.") from error
    if not isinstance(payload, dict):
        raise Invalid("The frame is not a JSON object.")
    return payload


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    payload = dict(pairs)
    if len(payload) != len(pairs):
        raise ValueError("duplicate key")
    return payload


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _build(payload: Mapping[str, Any]) -> ClientFrame:
    kind = payload.get("type")
    cls = CLIENT_FRAMES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise Invalid("The frame has an unknown type.")
    readers = _READERS[cls]
    unknown = payload.keys() - readers.keys() - {"type"}
    if unknown:
        raise Invalid(f"{cls.TYPE} has {len(unknown)} unknown field(s).")
    missing = [item.name for item in fields(cls) if item.default is MISSING and item.name not in payload]
    if missing:
        raise Invalid(f"{cls.TYPE} lacks {', '.join(missing)}.")
    return cls(**{name: readers[name](name, payload[name]) for name in readers if name in payload})


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_SEQ = 2**53 - 1  # what a JavaScript number holds exactly


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _read_uuid(name: str, value: Any) -> uuid.UUID:
    if not _is_uuid(value):
        raise Invalid(f"{name} is not a UUID in lower case with hyphens.")
    return uuid.UUID(value)


def _read_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name} is not text.")
    return checked_text(value)


def checked_text(value: str) -> str:
    """A message as it may be stored. Raises Invalid."""
    if len(value) > MAX_MESSAGE_CHARS:
        raise Invalid(
            _("The message has %(num)s characters, at most %(max)s are allowed.")
            % {"num": f"{len(value):,}", "max": f"{MAX_MESSAGE_CHARS:,}"},
            num_chars=len(value),
            max_chars=MAX_MESSAGE_CHARS,
        )
    if "\0" in value or _SURROGATE.search(value):
        raise Invalid(_("The message holds a character that cannot be stored (NUL or half a surrogate pair)."))
    if is_blank(value):
        raise Invalid(_("The message is empty."))
    return value


def _read_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"{name} is not true or false.")
    return value


def _read_int(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_SEQ:  # a bool is an int in Python, not in JSON
        raise Invalid(f"{name} is not a whole number from 0 to {_MAX_SEQ}.")
    return value


Reader = Callable[[str, Any], Any]
_READER_OF_TYPE: dict[Any, Reader] = {uuid.UUID: _read_uuid, str: _read_text, bool: _read_bool, int: _read_int}


def _reader(annotation: Any) -> Reader:
    if get_origin(annotation) not in (Union, types.UnionType):
        return _READER_OF_TYPE[annotation]
    (inner,) = (arg for arg in get_args(annotation) if arg is not type(None))
    read = _READER_OF_TYPE[inner]
    return lambda name, value: None if value is None else read(name, value)


_READERS: dict[type[ClientFrame], dict[str, Reader]] = {}
for _cls in CLIENT_FRAMES.values():
    _hints = get_type_hints(_cls)
    _READERS[_cls] = {item.name: _reader(_hints[item.name]) for item in fields(_cls)}
