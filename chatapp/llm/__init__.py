"""The one door to the engine: everything of `inference` that the application uses goes through here, and nowhere else.

One worker per process runs the engines of all models; each is loaded in the background when it is first asked for.
`model` is a name of the catalogue, "" the default. What the engine raises becomes a ChatError here, once. Knows no rows
and no sockets: it is asked with ids, texts and token ids.
"""

from __future__ import annotations

from chatapp.llm.host import (
    FETCH_COMMAND,
    EngineState,
    EngineStatus,
    default_model,
    drain,
    load,
    load_if_free,
    memory,
    model_info,
    new_worker,
    prepares,
    reserve,
    shutdown,
    start,
    status,
    takes_turns,
    unload,
)
from chatapp.llm.prompts import (
    build_history,
    build_prompt,
    decode,
    encode,
    extended,
    sampling_params,
    strips_thinking,
    thinking_reader,
    token_fingerprint,
    window,
)
from chatapp.llm.requests import archive, cancel, count_cached, generate, prepare, protect, purge
from chatapp.places import Ticket
from inference.formats.inspect import model_files, model_name, problem_of_config, problem_of_gguf
from inference.inspection import ModelFacts, inspect_model
from inference.tokenizer.thinking import PAIRS as THINKING_PAIRS
from inference.tokenizer.thinking import ThinkingReader, ThinkingSplit
from inference.types import (
    ChatMessage,
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ModelInfo,
    ProgressEvent,
    Prompt,
    RequestStats,
    SamplingParams,
    Stage,
    TokenEvent,
)

__all__ = [
    "FETCH_COMMAND",
    "THINKING_PAIRS",
    "ChatMessage",
    "EngineState",
    "EngineStats",
    "EngineStatus",
    "Event",
    "FinishReason",
    "FinishedEvent",
    "ModelFacts",
    "ModelInfo",
    "ProgressEvent",
    "Prompt",
    "RequestStats",
    "SamplingParams",
    "Stage",
    "ThinkingReader",
    "ThinkingSplit",
    "Ticket",
    "TokenEvent",
    "archive",
    "build_history",
    "build_prompt",
    "cancel",
    "count_cached",
    "decode",
    "default_model",
    "drain",
    "encode",
    "extended",
    "generate",
    "inspect_model",
    "load",
    "load_if_free",
    "memory",
    "model_files",
    "model_info",
    "model_name",
    "new_worker",
    "prepare",
    "prepares",
    "problem_of_config",
    "problem_of_gguf",
    "protect",
    "purge",
    "reserve",
    "sampling_params",
    "shutdown",
    "start",
    "status",
    "strips_thinking",
    "takes_turns",
    "thinking_reader",
    "token_fingerprint",
    "unload",
    "window",
]
