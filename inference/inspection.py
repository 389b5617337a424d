"""What a model file is and whether it can be run, found out without reading its weights.

Opens the file, its tokenizer and its chat template as the engine does, and stops there: tens of milliseconds, up to a
second for the largest vocabularies. Knows nothing about folders of models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from inference.errors import InferenceError
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile
from inference.formats.inspect import kind_of, model_files, model_name, stated_architecture
from inference.formats.model_file import open_model_file
from inference.model.registry import estimate_kv_bytes, estimate_weight_bytes
from inference.notes import Note
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a person is told about a model that is not loaded.

    problem: a sentence that says why it cannot be run, "" when it can. Numbers that are not known then are 0, texts "".
    """

    name: str  # as ModelInfo.name once it is loaded
    path: Path
    kind: str  # "GGUF" or "safetensors"
    num_bytes: int = 0  # on disk, all parts
    architecture: str = ""  # model_type; as the file says it when it is not one of ours
    problem: str = ""
    num_parameters: int = 0
    window: int = 0  # tokens that the model was made for
    quantisations: tuple[str, ...] = ()  # types of its tensors, the one of the most numbers first
    weight_bytes: int = 0  # in memory
    kv_bytes_per_token: int = 0
    has_chat_template: bool = False  # without one ChatML is used, where the vocabulary has its tokens
    notes: tuple[Note, ...] = ()  # parts left out, history rewritten by the template

    @property
    def can_run(self) -> bool:
        return not self.problem


def inspect_model(path: Path | str, *, kernels: str = "auto") -> ModelFacts:
    """Look at a GGUF file (any part of a split one) or a Hugging Face directory. Never raises for what is there.

    kernels: those that would run it, as in EngineConfig; what it takes of the memory depends on them.
    """
    path = Path(path)
    facts = ModelFacts(path.name, path, "")
    try:
        facts = replace(facts, name=model_name(path), kind=kind_of(path))
        facts = replace(facts, num_bytes=sum(file.stat().st_size for file in model_files(path)))
        model_file = open_model_file(path)
    except (InferenceError, OSError) as error:
        return replace(facts, architecture=stated_architecture(path), problem=_sentence(error))
    facts = _with_numbers(facts, model_file)
    try:
        facts = replace(
            facts,
            weight_bytes=estimate_weight_bytes(model_file, kernels),
            kv_bytes_per_token=estimate_kv_bytes(model_file.config, kernels),
        )
        chat_template = ChatTemplate(Tokenizer(model_file.tokenizer_spec), model_file.chat_template)
    except InferenceError as error:
        return replace(facts, problem=_sentence(error))
    return replace(facts, notes=(*facts.notes, *chat_template.history_notes))


def _with_numbers(facts: ModelFacts, model_file: ModelFile) -> ModelFacts:
    config = model_file.config
    types = model_file.stored_types()
    return replace(
        facts,
        architecture=model_file.architecture,
        num_parameters=sum(prod(shape) for shape in expected_shapes(config).values()),
        window=config.max_position_embeddings,
        quantisations=tuple(sorted(types, key=lambda kind: (-types[kind], kind))),
        has_chat_template=model_file.chat_template is not None,
        notes=model_file.notes,
    )


def _sentence(error: Exception) -> str:
    """What was wrong. OSError: the name and what the system says, without the number."""
    if isinstance(error, OSError):
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return str(error)
