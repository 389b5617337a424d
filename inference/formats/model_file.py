"""Open a model: one call, whatever the format. The contract itself lies in `base`."""

from __future__ import annotations

from pathlib import Path

from inference.formats.base import ModelFile, TokenizerSpec

__all__ = ["ModelFile", "TokenizerSpec", "open_model_file"]


def open_model_file(path: Path | str) -> ModelFile:
    """A .gguf file, or a directory with config.json, *.safetensors and tokenizer.json.

    Reads and checks headers only; weights are memory-mapped and converted when asked for.
    Raises ModelFileError (missing, truncated, malformed) or UnsupportedModelError (sound, but not ours), naming the field.
    """
    raise NotImplementedError
