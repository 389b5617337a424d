"""SentenceEncoder: texts to unit vectors, whose dot product says how much two of them mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from inference.embedding.bert import Bert
from inference.embedding.encoder_file import EncoderFile
from inference.errors import ModelFileError
from inference.types import F32

_MAX_CHARS_PER_TOKEN = 32  # what of a text is tokenized at all: far more than words of any language have


class SentenceEncoder:
    """Opened from a folder (see EncoderFile, also for what it raises), weights read at once. Safe from any thread.

    num_dims: of a vector. fingerprint: vectors of different ones cannot be compared. Memory: the weights in float32.
    """

    def __init__(self, path: Path) -> None:
        file = EncoderFile(path)
        self.path = path
        self.fingerprint = file.fingerprint
        self.num_dims = file.config.hidden_size
        self.max_tokens = file.max_tokens
        self._tokenizer = _read_tokenizer(file)
        self._model = Bert(file.config, file.tensor)

    def encode(self, texts: Sequence[str], *, max_tokens: int | None = None) -> F32:
        """(N, D), each row of length 1. Cost: a text at a time, at most max_tokens of it; None: as many as may be.

        Lone surrogates, which are no text, count as replacement characters."""
        out = np.empty((len(texts), self.num_dims), np.float32)
        for row, text in zip(out, texts, strict=True):
            text = text[: _MAX_CHARS_PER_TOKEN * self.max_tokens].encode(errors="replace").decode()
            ids = np.array(self._tokenizer.encode(text).ids, np.int64)
            if max_tokens is not None and len(ids) > max_tokens:
                ids = np.append(ids[: max_tokens - 1], ids[-1])  # which is [SEP]
            row[:] = self._model.hidden_states(ids).mean(0)
            row /= max(float(np.linalg.norm(row)), 1e-12)
        return out


def _read_tokenizer(file: EncoderFile) -> Tokenizer:
    """Cuts what is too long and pads nothing, whatever tokenizer.json says."""
    path = file.path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(file.tokenizer_json)
    except Exception as error:  # the library raises nothing more special
        raise ModelFileError(path, f"the tokenizer cannot be read ({error})") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(file.max_tokens)
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if size > file.config.vocab_size:
        problem = f"the tokenizer has ids up to {size - 1}, the model {file.config.vocab_size} rows"
        raise ModelFileError(path, problem)
    if not tokenizer.encode("").ids:
        raise ModelFileError(path, "an empty text has no tokens: [CLS] and [SEP] are missing", field="post_processor")
    return tokenizer
