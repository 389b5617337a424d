"""Architecture name -> the class that runs it."""

from __future__ import annotations

from collections.abc import Callable

from inference.formats.model_file import ModelFile
from inference.model.base import Model

ProgressFn = Callable[[float], None]  # called with 0.0 .. 1.0


def load_model(model_file: ModelFile, *, num_threads: int = 0, on_progress: ProgressFn | None = None) -> Model:
    """Reads the weights and returns a model ready to run.

    num_threads 0 means one per core. Raises UnsupportedModelError, with the known architectures, for one that is not
    here, and ModelFileError for a tensor that is missing or misshapen.
    """
    raise NotImplementedError
