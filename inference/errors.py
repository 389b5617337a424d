"""The error family of the engine. Each error carries its numbers: whoever reports it need not parse a sentence."""

from __future__ import annotations

from pathlib import Path


class InferenceError(Exception):
    """Root of everything the engine raises on purpose."""


class ModelFileError(InferenceError):
    """A model file that is missing, truncated, malformed or hostile.

    `field` names the part at fault: a tensor, a metadata key or a header field.
    """

    def __init__(self, path: Path | str, problem: str, *, field: str = "") -> None:
        self.path = Path(path)
        self.problem = problem
        self.field = field
        super().__init__(f"{self.path.name}: {problem}" + (f" (in {field!r})" if field else ""))


class UnsupportedModelError(ModelFileError):
    """A sound file of a kind that this engine cannot run; `known` lists what it can."""

    def __init__(self, path: Path | str, problem: str, *, field: str = "", known: tuple[str, ...] = ()) -> None:
        self.known = known
        super().__init__(path, problem + (f"; known: {', '.join(known)}" if known else ""), field=field)


class TemplateError(InferenceError):
    """A chat template that does not compile, raises, or exceeds its budget; `line` is 1-based, 0 when unknown."""

    def __init__(self, problem: str, *, line: int = 0) -> None:
        self.problem = problem
        self.line = line
        super().__init__(f"chat template, line {line}: {problem}" if line else f"chat template: {problem}")


class PromptTooLong(InferenceError):
    """The prompt and the reply reserve do not fit the window or the pool."""

    def __init__(self, *, num_prompt_tokens: int, num_reserved_tokens: int, max_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_reserved_tokens = num_reserved_tokens
        self.max_tokens = max_tokens
        super().__init__(
            f"prompt has {num_prompt_tokens} tokens and {num_reserved_tokens} are kept for the reply, "
            f"the window holds {max_tokens}"
        )


class QueueFull(InferenceError):
    """No place is left in the queue; the caller may try again later."""

    def __init__(self, *, num_waiting: int, max_waiting: int) -> None:
        self.num_waiting = num_waiting
        self.max_waiting = max_waiting
        super().__init__(f"{num_waiting} requests wait already, the queue holds {max_waiting}")


class EngineStopped(InferenceError):
    """The engine has been shut down, or its worker thread has died; `cause` is the error that ended it, if any."""

    def __init__(self, problem: str = "the engine is stopped", *, cause: BaseException | None = None) -> None:
        self.cause = cause
        super().__init__(problem)


class SamplingError(InferenceError):
    """No token can be chosen: the logits hold NaN or infinity. An error of one request, not of the engine."""

    def __init__(self, *, num_nan: int, vocab_size: int) -> None:
        self.num_nan = num_nan
        self.vocab_size = vocab_size
        super().__init__(f"the model gave no usable logits ({num_nan} of {vocab_size} are not a number)")


class ModelTooLarge(InferenceError):
    """The model alone takes more memory than all models together may."""

    def __init__(self, *, name: str, num_bytes: int, max_bytes: int) -> None:
        self.name = name
        self.num_bytes = num_bytes
        self.max_bytes = max_bytes
        super().__init__(f"{name} needs {num_bytes} bytes with its KV pool, all models together may take {max_bytes}")


class ModelBusy(InferenceError):
    """The model cannot be unloaded: requests are running or waiting."""

    def __init__(self, *, name: str, num_requests: int) -> None:
        self.name = name
        self.num_requests = num_requests
        super().__init__(f"{num_requests} requests run with {name} or wait for it")


class KernelsUnavailable(InferenceError):
    """Kernels were asked for that cannot run here; `available` lists those that can."""

    def __init__(self, wanted: str, available: tuple[str, ...], problem: str = "this CPU lacks what they need") -> None:
        self.wanted = wanted
        self.available = available
        super().__init__(f"kernels {wanted!r} cannot run here ({problem}); there are {', '.join(available)}")


class PoolTooLarge(InferenceError):
    """The memory for the KV pool is not to be had."""

    def __init__(self, *, num_tokens: int, num_bytes: int) -> None:
        self.num_tokens = num_tokens
        self.num_bytes = num_bytes
        super().__init__(f"a KV pool of {num_tokens} tokens needs {num_bytes} bytes, and there is no room for them")
