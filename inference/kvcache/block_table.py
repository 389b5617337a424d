"""BlockTable: the blocks of one sequence; Reuse: what was found for it; KeyChain: the keys of its blocks.

Knows how tokens become keys, and where the private part begins. Knows no pool and no contents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.kvcache.cached_blocks import Place
from inference.kvcache.keys import block_key, prompt_key, salted_key
from inference.types import F32, I32, MissCause

UNTAGGED = ""  # the tag of those who give none: a purge must not take their blocks


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence, and what the cache has to know about their owner. Only the cache changes it."""

    salt: bytes = b""
    num_public_tokens: int = 0
    tags: set[str] = field(default_factory=lambda: {UNTAGGED})
    is_low_retention: bool = False
    num_lasting_tokens: int = 0  # of low retention: so many tokens at the head are kept like anybody's
    is_gentle: bool = False  # takes only blocks that are empty or expendable
    block_ids: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the full blocks, as far as they have been asked for
    num_hit_blocks: int = 0  # leading blocks that were found in memory at the last allocation
    num_published: int = 0  # leading blocks that are cached under their key
    can_publish: bool = False

    def is_side(self, num_tokens: int) -> bool:
        """Whether a block that ends behind so many tokens is one of low retention."""
        return self.is_low_retention and num_tokens > self.num_lasting_tokens


@dataclass(frozen=True, slots=True)
class Reuse:
    """What an allocation has found: so many leading tokens have their KV.

    logits (V,) are those after the last token, if all have; otherwise the last one has to be computed.
    """

    num_ram: int
    num_disk: int = 0
    logits: F32 | None = None
    cause: MissCause = MissCause.NONE

    @property
    def num_tokens(self) -> int:
        return self.num_ram + self.num_disk


class KeyChain:
    """Keys for tables over the same root. token_ids (T,) are all tokens of the table; they only ever grow."""

    def __init__(self, root: bytes, block_size: int) -> None:
        self._root = root
        self._block_size = block_size

    def place(self, table: BlockTable, i: int, token_ids: I32) -> Place:
        """Where block i hangs: the salt enters at the first private block."""
        parent = self.key_of(table, i - 1, token_ids) if i > 0 else self._root
        first_private = table.num_public_tokens // self._block_size
        link = salted_key(parent, table.salt) if i == first_private else parent
        return Place(parent, link, salted_key(self._root, table.salt) if i >= first_private else b"")

    def key_of(self, table: BlockTable, i: int, token_ids: I32) -> bytes:
        """The key of full block i. The tokens of a table never change, so its keys are computed once."""
        while len(table.keys) <= i:
            n = len(table.keys)
            table.keys.append(block_key(self.place(table, n, token_ids).link, self.rows(token_ids, n)))
        return table.keys[i]

    def prompt_key(self, table: BlockTable, token_ids: I32) -> bytes:
        """The key of all of token_ids."""
        i = len(token_ids) // self._block_size
        return prompt_key(self.place(table, i, token_ids).link, self.rows(token_ids, i))

    def rows(self, token_ids: I32, i: int) -> I32:
        """The tokens of block i, fewer at the end."""
        return token_ids[i * self._block_size : (i + 1) * self._block_size]
