"""What every model file offers: tensors under Hugging Face's names, a config, a tokenizer, a chat template.

Knows nothing about bytes on disk (gguf_file, safetensors_dir) nor about computing (model/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inference.config import ModelConfig
from inference.kernels.quantized import WeightMatrix
from inference.notes import Note
from inference.types import F32


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """All that a tokenizer is rebuilt from: the text of tokenizer.json, or else a GGUF vocabulary.

    tokenizer_json     text of tokenizer.json; "" when the vocabulary below is used instead
    model              as tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE, byte fallback)
    pre                name of the pre-tokenizer, as tokenizer.ggml.pre
    tokens             text of token i; token_types its kind (TokenType), scores its SentencePiece score
    merges             "left right", in order of rank
    has_space_prefix   SentencePiece: text is encoded as if a space stood before it
    strips_right       control tokens swallow the white space behind them, but for those that begin a text
    named_tokens       "bos_token", "eos_token", "pad_token", "unk_token" -> text, as chat templates name them
    """

    source: Path  # named in errors
    vocab_size: int  # rows of the embedding; ids at or above it do not exist
    tokenizer_json: str = ""
    model: str = ""
    pre: str = ""
    tokens: tuple[str, ...] = ()
    token_types: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    has_space_prefix: bool = False
    strips_right: bool = False
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


class ModelFile(ABC):
    """An opened, checked model. Every tensor the architecture needs is there, with the shape that config implies.

    Names and row order are Hugging Face's: "model.embed_tokens.weight" (V, C), "model.layers.0.self_attn.q_proj.weight"
    (H * D, C), "model.norm.weight" (C,), "lm_head.weight" (V, C; absent when config.tie_word_embeddings).
    """

    path: Path
    name: str
    architecture: str
    config: ModelConfig
    chat_template: str | None
    tokenizer_spec: TokenizerSpec
    notes: tuple[Note, ...] = ()  # for whoever runs the model: what is left out of it

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hex digest of the content (weights and config). Reads the whole file once, then remembers."""

    @abstractmethod
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors, in the order in which the model uses them."""

    @abstractmethod
    def stored_types(self) -> Mapping[str, int]:
        """Type of stored numbers ("Q4_K", "BF16") -> how many of the model's numbers are stored so."""

    def has_tensor(self, name: str) -> bool:
        """Whether tensor(name) would answer."""
        return name in self.tensor_names()

    @abstractmethod
    def tensor(self, name: str) -> F32:
        """The tensor as float32, C order, in memory of its own.

        Raises ModelFileError naming it when it is not there, or the file when that was cut short meanwhile."""

    @abstractmethod
    def matrix(self, name: str) -> WeightMatrix:
        """The tensor (N, K) in the form that it is stored in, exactly: no float32 copy is made of narrower numbers.

        Nothing is read before its rows are. Raises as tensor() does; so does reading rows."""
