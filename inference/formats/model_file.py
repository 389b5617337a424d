"""Open a model: one call, whatever the format. The contract itself lies in `base`."""

from __future__ import annotations

from pathlib import Path

from inference.errors import ModelFileError
from inference.formats.base import ModelFile, TokenizerSpec
from inference.formats.gguf_file import GgufFile
from inference.formats.safetensors_dir import SafetensorsDir

__all__ = ["ModelFile", "TokenizerSpec", "open_model_file"]


def open_model_file(path: Path | str) -> ModelFile:
    """A .gguf file, any part of a split one, or a directory with config.json, *.safetensors and tokenizer.json.

    Reads and checks headers only; weights are read and converted when asked for.
    Raises ModelFileError (missing, truncated, malformed) or UnsupportedModelError (sound, not ours), naming the field.
    """
    path = Path(path)
    if path.is_dir():
        return SafetensorsDir(path)
    if path.suffix == ".safetensors":
        raise ModelFileError(path, "give the directory, which must also hold config.json and tokenizer.json")
    return GgufFile(path)
