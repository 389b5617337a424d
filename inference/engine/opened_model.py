"""OpenedModel: a model without its weights. Prompts are built and counted with it, and what loading it takes is known.

So a message can be checked and stored while its model is still being loaded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from inference.config import EngineConfig, ModelConfig
from inference.errors import ModelFileError
from inference.formats.base import ModelFile
from inference.formats.inspect import model_files
from inference.formats.model_file import open_model_file
from inference.model.registry import check_block_size, estimate_kv_bytes, estimate_weight_bytes
from inference.notes import Note
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer

Stamp = tuple[tuple[str, int, int, int], ...]

MAX_KEPT = 4  # opened models; a large vocabulary takes some 100 MB


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Safe from any thread. weight_bytes and pool_bytes are estimates until the engine states its own."""

    model_file: ModelFile
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    config: EngineConfig
    max_model_len: int  # the window: prompt and reply together
    weight_bytes: int
    pool_bytes: int
    stamp: Stamp  # of its files when they were opened

    @property
    def is_current(self) -> bool:
        """Whether its files are still those that were opened: of others, nothing that is known here would hold."""
        return self.stamp == _stamp(self.model_file.path)

    def check_current(self) -> None:
        """Raises ModelFileError when they are not."""
        if not self.is_current:
            problem = "its files have changed since they were opened: ask for it again"
            raise ModelFileError(self.model_file.path, problem)

    @property
    def name(self) -> str:
        return self.model_file.name

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes

    @property
    def notes(self) -> tuple[Note, ...]:
        """For whoever runs the model: what is left out of it, what its template does to the history."""
        return (*self.model_file.notes, *self.chat_template.history_notes)

    def limited(self, max_model_len: int) -> OpenedModel:
        """The same with a shorter window."""
        return replace(self, config=replace(self.config, max_model_len=max_model_len), max_model_len=max_model_len)


def open_model(path: Path | str, config: EngineConfig) -> OpenedModel:
    """Open the file, its tokenizer and its chat template: tens of milliseconds, up to a second for large vocabularies.

    Raises ModelFileError, UnsupportedModelError, TemplateError, and ValueError for a configuration that the model rules
    out.
    """
    stamp = _stamp(Path(path))
    model_file = open_model_file(path)
    max_model_len = window_of(model_file.config, config)
    check_block_size(config.kernels, config.block_size)
    tokenizer = Tokenizer(model_file.tokenizer_spec)
    return OpenedModel(
        model_file,
        tokenizer,
        ChatTemplate(tokenizer, model_file.chat_template),
        config,
        max_model_len,
        weight_bytes=estimate_weight_bytes(model_file, config.kernels),
        pool_bytes=config.num_blocks * config.block_size * estimate_kv_bytes(model_file.config, config.kernels),
        stamp=stamp,
    )


def _stamp(path: Path) -> Stamp:
    """Changes whenever a file of the model is replaced or written to; () where there is none."""
    try:
        found = [(file.name, file.stat()) for file in model_files(path)]
    except OSError:
        return ()
    return tuple((name, fact.st_ino, fact.st_size, fact.st_mtime_ns) for name, fact in found)


def window_of(model: ModelConfig, config: EngineConfig) -> int:
    """Tokens that prompt and reply may have together: what the model was trained for, or less if the configuration says
    so or the pool holds no more. Raises ValueError when the configuration asks for more than the model has."""
    window = config.max_model_len or model.max_position_embeddings
    if window > model.max_position_embeddings:
        raise ValueError(f"max_model_len is {window}, the model holds {model.max_position_embeddings}")
    return min(window, config.num_blocks * config.block_size)


class ModelShelf:
    """Opened models by name, the ones asked for last. Each is opened once, whoever asks meanwhile, and anew when its
    files have changed. Thread-safe.
    """

    def __init__(self, open_model: Callable[[str], OpenedModel]) -> None:
        self._open = open_model
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._kept: OrderedDict[str, OpenedModel] = OrderedDict()

    def get(self, name: str) -> OpenedModel:
        """Blocking while the model is being opened. Raises what opening it raises."""
        if (kept := self._current(name)) is not None:
            return kept
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            if (kept := self._current(name)) is not None:
                return kept
            opened = self._open(name)
            with self._lock:
                self._kept[name] = opened
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            return opened

    def _current(self, name: str) -> OpenedModel | None:
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
        return kept if kept is not None and kept.is_current else None

    def drop(self, name: str) -> None:
        """Open it anew when it is asked for again: its file may have changed."""
        with self._lock:
            self._kept.pop(name, None)
