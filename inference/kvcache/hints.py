"""RetentionHints: what the application knows about the owners of cached blocks, and the cache cannot.

Tags are opaque. Knows no blocks; the cache asks for a retention whenever something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from inference.kvcache.block_pool import Retention


class RetentionHints:
    """protect(): somebody looks at it, evict it last. archive(): it was put away, evict it first; a request takes it
    back out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._protected_until: dict[str, float] = {}
        self._archived: set[str] = set()

    def protect(self, tag: str, seconds: float) -> bool:
        """From now on for so long; 0 ends it. Takes the tag out of the archive. False: it changes no retention now."""
        is_news = tag in self._archived or (tag in self._protected_until) != (seconds > 0)
        self._archived.discard(tag)
        if seconds > 0:
            self._protected_until[tag] = self._clock() + seconds
        else:
            self._protected_until.pop(tag, None)
        return is_news

    def archive(self, tag: str) -> None:
        self._protected_until.pop(tag, None)
        self._archived.add(tag)

    def forget(self, tag: str) -> None:
        self._protected_until.pop(tag, None)
        self._archived.discard(tag)

    def take_out(self, tags: Collection[str]) -> list[str]:
        """A request with these tags has come: returns those that were archived and no longer are."""
        taken = [tag for tag in tags if tag in self._archived]
        self._archived.difference_update(taken)
        return taken

    def expire(self) -> list[str]:
        """The tags whose protection has just ended."""
        if not self._protected_until:
            return []
        now = self._clock()
        ended = [tag for tag, until in self._protected_until.items() if until <= now]
        for tag in ended:
            del self._protected_until[tag]
        return ended

    def repeat(self, protect: Callable[[str, float], None], archive: Callable[[str], None]) -> None:
        """Give all that holds now to somebody who did not hear it."""
        self.expire()
        now = self._clock()
        for tag, until in self._protected_until.items():
            protect(tag, until - now)
        for tag in self._archived:
            archive(tag)

    def retention_of(self, tags: Collection[str]) -> Retention:
        """Of a block that all these use. One protected owner protects it; only archived ones give it up."""
        if any(tag in self._protected_until for tag in tags):
            return Retention.PROTECTED
        return Retention.LOW if tags and self._archived.issuperset(tags) else Retention.NORMAL
