"""What a model file is and whether it can be run, found out without reading its weights.

Opens the file, its tokenizer and its chat template as the engine does, and stops there: tens of milliseconds, up to a
second for the largest vocabularies. Knows nothing about folders of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a person is told about a model that is not loaded.

    problem: a sentence that says why it cannot be run, "" when it can. Numbers that are not known then are 0, texts "".
    """

    name: str  # as ModelInfo.name once it is loaded
    path: Path
    kind: str  # "GGUF" or "safetensors"
    num_bytes: int  # on disk, all parts
    architecture: str  # model_type; as the file says it when it is not one of ours
    problem: str
    num_parameters: int
    window: int  # tokens that the model was made for
    quantisations: tuple[str, ...]  # types of its tensors, the one of the most numbers first
    kv_bytes_per_token: int
    has_chat_template: bool  # false: ChatML is used in its place
    notes: tuple[str, ...]  # sentences: parts left out, history rewritten by the template

    @property
    def can_run(self) -> bool:
        return not self.problem


def inspect_model(path: Path | str) -> ModelFacts:
    """Look at a GGUF file (any part of a split one) or a Hugging Face directory. Never raises for what is there."""
    raise NotImplementedError
