"""Keys of cached blocks: a chain of digests, so that a key stands for every token up to the end of its block.

Pure functions. Every field is typed and length-prefixed, so no two meanings share an encoding; a key depends on nothing
but its arguments, so it is the same in every process.
"""

from __future__ import annotations

from hashlib import blake2b

from inference.types import I32

KEY_BYTES = 16


def root_key(*, model_fingerprint: str, tokenizer_fingerprint: str, kv_format: str, adapter_digest: str = "") -> bytes:
    """What precedes the first block: all that the KV of a token depends on besides the tokens."""
    fields = {
        "model": model_fingerprint,
        "tokenizer": tokenizer_fingerprint,
        "kv format": kv_format,
        "adapter": adapter_digest,
    }
    return _digest(b"root", *(text.encode() for field in fields.items() for text in field))


def salted_key(parent_key: bytes, salt: bytes) -> bytes:
    """Takes the place of parent_key in front of the first block with private text. An empty salt is one too."""
    return _digest(b"salt", parent_key, salt)


def block_key(link: bytes, token_ids: I32) -> bytes:
    """The key of a full block; link is the key of its parent, or that key salted."""
    return _digest(b"block", link, token_ids.astype("<u4").tobytes())


def prompt_key(link: bytes, token_ids: I32) -> bytes:
    """The key of a whole prompt: link is that of its last block, token_ids the (0 to P - 1) tokens in it."""
    return _digest(b"prompt", link, token_ids.astype("<u4").tobytes())


def _digest(*fields: bytes) -> bytes:
    digest = blake2b(digest_size=KEY_BYTES, person=b"recollect kv 1")
    for field in fields:
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()
