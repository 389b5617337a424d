"""Markdown of messages -> sanitised HTML of top-level blocks; cached for pages of history, incremental for streams.

The work is done in the jail (chatapp.markup, in a child process), because the grammars can be made to run for ever.
What the jail does not answer in time is shown as plain escaped text. Synchronous: call from a thread. Never raises for
a text.

A growing text. A block is finished, and never parsed or rendered again, once another one has begun behind it and the
last line, the only one that can still grow, can no longer change it (render.num_stable). Until then all may change: a
paragraph becomes a heading (===) or splits off a table, a list turns loose, an unclosed fence or $$ takes what follows.
Only one thing reaches back further: [label] becomes a link to a later "[label]: URL" with the final update.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from chatapp.jail import JAIL, CircuitBreaker, Jail
from chatapp.markup.plain import NEWLINE, normalise, plain_block, plain_blocks
from chatapp.wire import Block

DEADLINE_S = 0.25  # for one block, and for cutting each 20,000 characters into blocks
CHARS_PER_DEADLINE = 20_000
STREAM_BUDGET_S = 2.0
PAGE_BUDGET_S = 5.0
CHARS_PER_CALL = 64_000  # of a page; in between, streams get their turn
MAX_TEXT_CHARS = 200_000  # twice what a person can send; beyond it all is plain
MAX_CACHE_BYTES = 16 * 1024 * 1024
DEGRADED_TTL_S = 600.0  # a text that was too slow is not tried again with every page view

_PASSING = frozenset({"busy", "unavailable", "late"})  # causes that do not lie in the text


class StreamUpdate(NamedTuple):
    """What changed: these blocks replace or follow the ones with their index; from `num_blocks` on none is left."""

    blocks: tuple[Block, ...]
    num_blocks: int


class Renderer:
    """render_blocks with its cache, circuit breaker and jail. Thread-safe."""

    def __init__(self, jail: Jail, max_cache_bytes: int = MAX_CACHE_BYTES) -> None:
        self._jail = jail
        self._breaker = CircuitBreaker()
        self._cache = _Cache(max_cache_bytes)

    def render_many(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """render_blocks of each text, in as few calls to the jail as possible: for a page of history."""
        keys = [_key(text) for text in texts]
        found = {key: self._cache.get(key) for key in keys}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if found[key] is None}
        for key, rendering in zip(missing, self.render(list(missing.values()), PAGE_BUDGET_S), strict=True):
            found[key] = rendering.htmls
            if rendering.cause not in _PASSING:
                self._cache.put(key, rendering.htmls, is_degraded=bool(rendering.cause))
        return [found[key] or () for key in keys]

    def remember(self, text: str, htmls: tuple[str, ...]) -> None:
        """Put what a stream has rendered where a page of history will look for it."""
        self._cache.put(_key(text), htmls, is_degraded=False)

    def render(
        self, texts: Sequence[str], budget_s: float, *, is_open: bool = False, plain_languages: Collection[str] = ()
    ) -> list[Rendering]:
        """Every text rendered, as plain text where the jail gave up or the time ran out. `is_open`: they still grow."""
        until = time.monotonic() + budget_s
        renderings = [Rendering(text) for text in texts]
        for rendering in renderings:
            if len(rendering.text) > MAX_TEXT_CHARS:
                rendering.refuse("oversized")
        todo = deque(rendering for rendering in renderings if not rendering.is_complete)
        while todo and (left_s := until - time.monotonic()) > 0:
            languages = {*plain_languages, *self._breaker.open_keys(time.monotonic())}
            error = self._render_some(todo, left_s, is_open, languages)
            if error in ("busy", "unavailable"):
                for rendering in todo:
                    rendering.refuse(error)
                break
            if error and time.monotonic() < until:
                for label in todo[0].skip(error):
                    self._breaker.trip(label, time.monotonic())
            while todo and todo[0].is_complete:
                todo.popleft()
        for rendering in todo:
            rendering.refuse(rendering.cause or "late")
        return renderings

    def _render_some(self, todo: deque[Rendering], left_s: float, is_open: bool, languages: set[str]) -> str:
        """One call to the jail for the first texts of `todo`, which leave it complete. "" or why it broke off."""
        batch: list[Rendering] = []
        for rendering in todo:
            if batch and sum(len(other.text) for other in batch) + len(rendering.text) > CHARS_PER_CALL:
                break
            batch.append(rendering)
        payload = {
            "items": [rendering.request(is_open) for rendering in batch],
            "plain_languages": sorted(languages),
        }
        slices = 1 + max(len(rendering.text) for rendering in batch) // CHARS_PER_DEADLINE
        outcome = self._jail.collect("markdown.render", payload, deadline_s=DEADLINE_S * slices, total_s=left_s)
        for value in outcome.values:
            todo[0].take(value)
            if todo[0].is_complete:
                todo.popleft()
        return outcome.error.reason if outcome.error else ""


class Rendering:
    """How far one text has come."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.cause = ""  # why some of it is plain or without highlighting
        self.is_plain = False  # some of it is plain
        self.slow_labels: set[str] = set()  # languages without highlighting, because it was too slow
        self.has_definitions = False
        self.num_stable = 0
        self._spans: list[tuple[int, int, list[str]]] | None = None  # lines and languages of each block
        self._htmls: list[str] = []
        self._is_bare = False
        self._is_cut_again = False
        self._lines: list[str] = []  # of the text, once a block of it has to be shown plain

    @property
    def htmls(self) -> tuple[str, ...]:
        return tuple(self._htmls)

    @property
    def is_complete(self) -> bool:
        return self._spans is not None and len(self._htmls) == len(self._spans)

    @property
    def stable_chars(self) -> int:
        """Where in the text the last stable block ends."""
        if not self.num_stable or self._spans is None:
            return 0
        num_lines = self._spans[self.num_stable - 1][1]
        line_ends = NEWLINE.finditer(self.text)
        return next(line_end.end() for i, line_end in enumerate(line_ends, start=1) if i == num_lines)

    def request(self, is_open: bool) -> dict[str, Any]:
        self._is_cut_again = False
        return {"text": self.text, "first": len(self._htmls), "is_bare": self._is_bare, "is_open": is_open}

    def take(self, value: dict[str, Any] | str) -> None:
        """The next answer of the job."""
        if isinstance(value, str):
            self._htmls.append(value)
            self._is_bare = False
        else:
            self._is_cut_again = True
            self._spans = [(start, end, labels) for start, end, labels in value["spans"]]
            self.num_stable = value["num_stable"]
            self.has_definitions = value["has_definitions"]

    def skip(self, cause: str) -> list[str]:
        """The job broke off here: do the block without highlighting next time, or plain if that was it. Returns the
        languages whose highlighting was too slow."""
        self.cause = cause
        if self._spans is None or not self._is_cut_again:
            self._plain_rest()
            return []
        labels = self._spans[len(self._htmls)][2]
        if labels and not self._is_bare:
            self._is_bare = True
            slow_labels = labels if cause == "timeout" else []
            self.slow_labels.update(slow_labels)
            return slow_labels
        self._is_bare = False
        self.is_plain = True
        self._htmls.append(self._plain(len(self._htmls)))
        return []

    def refuse(self, cause: str) -> None:
        """Whatever is missing, plain."""
        self.cause = cause
        self._plain_rest()

    def _plain_rest(self) -> None:
        self.is_plain = True
        if self._spans is None:
            self._htmls = list(plain_blocks(self.text))
            self._spans = [(0, 0, [])] * len(self._htmls)
        else:
            self._htmls += [self._plain(i) for i in range(len(self._htmls), len(self._spans))]

    def _plain(self, i: int) -> str:
        assert self._spans is not None
        self._lines = self._lines or normalise(self.text).split("\n")
        start, end, _ = self._spans[i]
        return plain_block("\n".join(self._lines[start:end]))


class BlockStream:
    """The blocks of one growing text. Not thread-safe: one stream, one caller at a time.

    An update costs what the unfinished end of the text costs. Blocks that are done are sent once more when they become
    so, and change after that only with the final update of a text that defines links, or when the text was not an
    extension of the one before.
    """

    def __init__(self, renderer: Renderer | None = None) -> None:
        self._renderer = renderer or RENDERER
        self._blocks: tuple[Block, ...] = ()
        self._start_again()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks as of the last update: for a snapshot."""
        return self._blocks

    def update(self, full_text: str, is_final: bool = False) -> StreamUpdate:
        """Take the text as it is now. After the final update the blocks are those of render_blocks(full_text)."""
        if not full_text.startswith(self._done_text):
            self._start_again()
        tail = full_text[len(self._done_text) :]
        rendering = self._render(tail, is_final)
        if rendering.cause == "busy" and not is_final:
            return StreamUpdate((), len(self._blocks))  # what is shown stays; the next update brings it all
        self._has_definitions |= rendering.has_definitions
        self._is_degraded |= bool(rendering.cause or self._slow_labels) and (rendering.num_stable > 0 or is_final)
        if is_final:
            return self._finish(full_text, rendering)
        update = self._show(self._num_done, rendering.htmls, self._num_done + rendering.num_stable)
        self._num_done += rendering.num_stable
        self._done_text += tail[: rendering.stable_chars]
        return update

    def _finish(self, full_text: str, rendering: Rendering) -> StreamUpdate:
        if self._has_definitions:
            htmls = self._renderer.render_many([full_text])[0]
            return self._show(0, htmls, len(htmls))
        update = self._show(self._num_done, rendering.htmls, self._num_done + len(rendering.htmls))
        if not self._is_degraded:
            self._renderer.remember(full_text, tuple(block.html for block in self._blocks))
        return update

    def _start_again(self) -> None:
        self._done_text = ""
        self._num_done = 0
        self._has_definitions = False
        self._is_degraded = False
        self._slow_labels: set[str] = set()
        self._try_again_chars = 0

    def _render(self, tail: str, is_final: bool) -> Rendering:
        """A language that was too slow is not tried again, and a tail that was so only when it has doubled: kills are
        few."""
        if len(tail) < self._try_again_chars and not is_final:
            rendering = Rendering(tail)
            rendering.refuse("late")
            return rendering
        (rendering,) = self._renderer.render(
            [tail], STREAM_BUDGET_S, is_open=not is_final, plain_languages=self._slow_labels
        )
        self._slow_labels |= rendering.slow_labels
        self._try_again_chars = 2 * len(tail) if rendering.is_plain and rendering.cause not in _PASSING else 0
        return rendering

    def _show(self, start: int, htmls: Sequence[str], num_done: int) -> StreamUpdate:
        """The blocks from `start` on are `htmls`; those before it stay."""
        before = self._blocks
        after = tuple(Block(index=i, html=html, is_done=i < num_done) for i, html in enumerate(htmls, start))
        self._blocks = before[:start] + after
        changed = tuple(block for block in after if before[block.index : block.index + 1] != (block,))
        return StreamUpdate(changed, len(self._blocks))


class _Cache:
    """Least recently used renderings, bounded in bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[tuple[str, ...], int, float]] = OrderedDict()

    def get(self, key: bytes) -> tuple[str, ...] | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[2] < time.monotonic():
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, htmls: tuple[str, ...], *, is_degraded: bool) -> None:
        num_bytes = 200 + sum(100 + 2 * len(html) for html in htmls)  # about what CPython takes
        if num_bytes > self._max_bytes:
            return
        expires = time.monotonic() + DEGRADED_TTL_S if is_degraded else float("inf")
        with self._lock:
            self._num_bytes += num_bytes - self._entries.pop(key, ((), 0, 0.0))[1]
            self._entries[key] = (htmls, num_bytes, expires)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._entries.popitem(last=False)[1][1]


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


RENDERER = Renderer(JAIL)


def render_many(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """render_blocks of each text, in as few calls to the jail as possible: for a page of history."""
    return RENDERER.render_many(texts)


def render_blocks(text: str) -> tuple[str, ...]:
    """Sanitised HTML of each top-level block of `text`, in order. Cached."""
    return render_many([text])[0]
