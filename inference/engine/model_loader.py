"""Reading a model: here, or by a ModelLoader on a thread of its own, so that replies of others go on meanwhile.

One at a time: its owner begins the next one when it has heard of the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.opened_model import OpenedModel, open_model
from inference.engine.system_memory import give_back
from inference.errors import EngineStopped, InferenceError
from inference.model.base import RunKernels, run_here
from inference.model.registry import load_model

logger = logging.getLogger(__name__)

ProgressFn = Callable[[float], None]  # 0 to 1


def load_engine(path: Path | str, config: EngineConfig, *, on_progress: ProgressFn | None = None) -> LLMEngine:
    """Open a model and load it. Raises what open_model() and load_opened() raise."""
    return load_opened(open_model(path, config), on_progress=on_progress)


def load_opened(
    opened: OpenedModel, *, on_progress: ProgressFn | None = None, run_kernels: RunKernels = run_here
) -> LLMEngine:
    """Read the weights and build an engine around them. run_kernels: where another engine runs meanwhile.

    Raises ModelFileError, also when the files have changed since the model was opened; UnsupportedModelError,
    PoolTooLarge.
    """
    for note in opened.notes:
        logger.info("%s: %s", opened.name, note)
    opened.check_current()
    model = load_model(
        opened.model_file,
        kernels=opened.config.kernels,
        kernel_cache=opened.config.kernel_cache,
        num_threads=opened.config.num_threads,
        max_model_len=opened.config.max_model_len,
        on_progress=on_progress,
        run_kernels=run_kernels,
    )
    opened.check_current()  # weights of one file and of another are no model, and nothing in the bytes would tell
    engine = LLMEngine(
        model, opened.tokenizer, opened.chat_template, opened.config, name=opened.name, path=str(opened.model_file.path)
    )
    logger.info(
        "%s: kernels %s, weights %d MB, pool of %d tokens %d MB",
        opened.name,
        model.kernel_tier,
        model.weight_bytes // 1_000_000,
        opened.config.num_blocks * opened.config.block_size,
        engine.stats().pool_bytes // 1_000_000,
    )
    return engine


class LoadFn(Protocol):
    def __call__(self, opened: OpenedModel, /, *, on_progress: ProgressFn, run_kernels: RunKernels) -> LLMEngine: ...


class ModelLoader:
    """run_kernels: where the kernels may run meanwhile."""

    def __init__(self, load: LoadFn = load_opened, *, run_kernels: RunKernels) -> None:
        self._load_engine = load
        self._run_kernels = run_kernels
        self._thread = threading.Thread()  # the latest

    def begin(
        self,
        opened: OpenedModel,
        *,
        on_progress: ProgressFn,
        on_loaded: Callable[[LLMEngine], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Start to read; returns at once. All three are called on the loader's thread, one of the latter two last.

        EngineStopped, raised by on_progress or run_kernels, ends it without a further word.
        """

        def load() -> None:
            give_back()  # what has just been unloaded
            try:
                engine = self._load_engine(opened, on_progress=on_progress, run_kernels=self._run_kernels)
            except EngineStopped:
                return
            except InferenceError as error:  # says all there is to say: a missing tensor, a model of another kind
                logger.error("%s could not be loaded: %s", opened.name, error)
                on_failed(str(error))
            except Exception as error:
                logger.exception("%s could not be loaded", opened.name)
                on_failed(str(error) or type(error).__name__)
            else:
                on_loaded(engine)

        self._thread = threading.Thread(target=load, name="model loader", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the latest one; False when it goes on."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()
