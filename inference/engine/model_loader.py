"""ModelLoader: reads a model on a thread of its own, so that replies of others go on meanwhile.

One at a time: the owner begins the next one when it has heard of the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from inference.engine.llm_engine import LLMEngine, ProgressFn, load_opened
from inference.engine.opened_model import OpenedModel
from inference.engine.system_memory import give_back
from inference.errors import EngineStopped, InferenceError
from inference.model.base import RunKernels

logger = logging.getLogger(__name__)


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
