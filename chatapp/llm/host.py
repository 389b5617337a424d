"""The worker of this process: its life, its models and their memory, and the places in its queue."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from django.conf import settings
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _

from chatapp.errors import Busy, Conflict, Draining, EngineUnavailable
from chatapp.places import Ticket
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_hub import ModelState
from inference.engine.model_loader import ProgressFn, load_opened
from inference.engine.opened_model import OpenedModel, open_model
from inference.engine.worker import Worker
from inference.errors import EngineStopped, InferenceError, ModelBusy, ModelTooLarge, PoolTooLarge
from inference.model.base import RunKernels
from inference.types import EngineStats, ModelInfo

FETCH_COMMAND = "python manage.py fetch_model"


class EngineState(StrEnum):
    """OFF: not started in this process (a management command, a test). UNLOADED: comes with the next message.
    DRAINING: about to stop, takes no new turns."""

    OFF = "off"
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What a page or a health check is told of a model. `message` is a sentence for a person; "" when all is well."""

    state: EngineState
    progress: float  # of loading, 0 to 1
    message: str
    model: ModelInfo | None
    stats: EngineStats | None
    memory_bytes: int = 0  # that the model takes
    num_requests: int = 0  # running, or waiting for it


@dataclass(slots=True)
class Handle:
    """The worker of this process, and who waits for it. Changed on the event loop only.

    There are as many places as the worker takes requests: what was reserved here is not refused there.
    run_id: of this worker; what its engines hold in memory ends with it.
    """

    worker: Worker | None = None
    run_id: str = ""
    default_model: str = ""
    is_draining: bool = False
    places: Counter[int] = field(default_factory=Counter)  # by user
    is_server: bool = False  # others ask this process to forget cached KV (kv_requests)

    @property
    def num_places(self) -> int:
        return settings.RECOLLECT_MAX_RUNNING + settings.RECOLLECT_MAX_WAITING


handle = Handle()


def new_worker(locate: Callable[[str], Path], kind: type[Worker] | None = None) -> Worker:
    """A worker as the settings say. locate: name of a model -> its path; may block and raise ChatError."""
    return (kind or Worker)(lambda name: _open(locate(name)), max_bytes=settings.RECOLLECT_MODEL_MEMORY, load=_load)


def start(worker: Worker, *, default_model: str = "") -> None:
    """Start the worker and begin to load the default model. Returns at once; see `status`."""
    if handle.worker is not None and handle.worker.state == "running":
        raise RuntimeError("the engine of this process has been started already")
    handle.worker = worker
    handle.run_id = secrets.token_hex(8)
    handle.default_model = default_model
    handle.is_draining = False
    handle.places.clear()
    worker.start()
    worker.load_soon(default_model)


def drain() -> None:
    """Refuse new turns from now on; running ones go on."""
    handle.is_draining = True


def shutdown(timeout_s: float = 5.0) -> bool:
    """End the worker; running requests finish as cancelled. False when it did not end in time."""
    return handle.worker is None or handle.worker.shutdown(timeout_s)


def _open(path: Path) -> OpenedModel:
    """The model without its weights. RECOLLECT_MAX_MODEL_LEN is a limit here: not every model has so long a window."""
    config = EngineConfig(
        block_size=settings.RECOLLECT_BLOCK_SIZE,
        pool_tokens=settings.RECOLLECT_POOL_TOKENS,
        max_batch_tokens=settings.RECOLLECT_MAX_BATCH_TOKENS,
        max_running=settings.RECOLLECT_MAX_RUNNING,
        max_waiting=settings.RECOLLECT_MAX_WAITING,
        num_threads=settings.RECOLLECT_THREADS,
        kernels=settings.RECOLLECT_KERNELS,
        kernel_cache=str(settings.RECOLLECT_DATA / "kernels"),
        is_prefix_cache_enabled=settings.RECOLLECT_PREFIX_CACHE,
        kv_dir=Path(settings.RECOLLECT_DATA) / "kv",
        kv_disk_bytes=settings.RECOLLECT_KV_DISK_BYTES,
    )
    opened = open_model(path, config)
    limit: int = settings.RECOLLECT_MAX_MODEL_LEN
    return opened.limited(limit) if 0 < limit < opened.max_model_len else opened


def _load(opened: OpenedModel, /, *, on_progress: ProgressFn, run_kernels: RunKernels) -> LLMEngine:
    try:
        return load_opened(opened, on_progress=on_progress, run_kernels=run_kernels)
    except PoolTooLarge as error:
        raise InferenceError(f"{error}: lower RECOLLECT_POOL_TOKENS") from error


def default_model() -> str:
    """The name of the model that answers where no other was chosen; "" before `start`."""
    return handle.default_model


def status(model: str = "") -> EngineStatus:
    """The state of a model, cheap enough for every page view. Never raises."""
    worker = handle.worker
    if worker is None:
        return EngineStatus(EngineState.OFF, 0.0, _("No model runs in this process."), None, None)
    name = model or handle.default_model
    found = worker.model(name)
    if worker.state == "failed":
        state, message = EngineState.FAILED, _("The engine has failed: %(error)s. Start the server again.")
        message %= {"error": worker.error.rstrip(".")}
    elif worker.state == "stopped":
        state, message = EngineState.STOPPED, _("The model has been stopped. Start the server again.")
    elif handle.is_draining:
        state, message = EngineState.DRAINING, _("The server is about to stop.")
    else:
        state = _STATES[found.state]
        message = {
            EngineState.LOADING: _("The model is being loaded."),
            EngineState.FAILED: _not_loaded(name, found.error),
            EngineState.UNLOADED: _("The model is not loaded. The next message loads it."),
        }.get(state, "")
    stats = worker.stats(name) if found.state == "ready" else None
    return EngineStatus(state, found.progress, message, found.info, stats, found.memory_bytes, found.num_requests)


_STATES: dict[ModelState, EngineState] = {
    "unloaded": EngineState.UNLOADED,
    "waiting": EngineState.LOADING,
    "loading": EngineState.LOADING,
    "ready": EngineState.READY,
    "failed": EngineState.FAILED,
}


def _not_loaded(name: str, error: str) -> str:
    sentence = _("The model %(name)s could not be loaded: %(error)s.")
    if name == handle.default_model:
        sentence = _(
            "The model could not be loaded: %(error)s. Fetch the default one with the command %(command)s, or set "
            "RECOLLECT_MODEL to a model of yours."
        )
    return sentence % {"name": name, "error": error.rstrip("."), "command": FETCH_COMMAND}


def takes_turns() -> bool:
    """Whether a send to the default model would be answered: it has been there, and comes back when it is asked for."""
    worker = handle.worker
    if worker is None or worker.state != "running" or handle.is_draining:
        return False
    found = worker.model(handle.default_model)
    return found.info is not None and found.state != "failed"


def loaded_models() -> list[str]:
    """The names of the models that are in memory."""
    return [] if handle.worker is None else handle.worker.loaded


def memory() -> tuple[int, int]:
    """Bytes that the loaded models take, and that they may take. (0, 0) without a worker."""
    worker = handle.worker
    return (worker.used_bytes, worker.max_bytes) if worker is not None else (0, 0)


def load(model: str) -> None:
    """Have a model loaded, when there is room. Blocking while it is opened. Raises EngineUnavailable."""
    opened_model(model)
    with unavailable_when_stopped():
        running_worker().load(name_of(model))


def load_if_free(model: str) -> bool:
    """Have a model loaded if no other has to leave for it; False if one would. Blocking as load(). Raises as load().

    For what nobody waits for: it may use what is free, and takes nothing from anybody.
    """
    worker, name = running_worker(), name_of(model)
    if worker.model(name).state in ("ready", "loading"):
        return True  # mostly so, and known without waiting for the end of a step
    opened_model(model)
    with unavailable_when_stopped():
        return worker.load_if_free(name)


def prepares() -> bool:
    """Whether it makes sense to compute anything ahead: there is an engine, it goes on, and it remembers."""
    is_running = handle.worker is not None and handle.worker.state == "running"
    return is_running and not handle.is_draining and settings.RECOLLECT_PREFIX_CACHE


def unload(model: str) -> None:
    """Give a model's memory back. Raises Conflict while replies need it, EngineUnavailable."""
    try:
        with unavailable_when_stopped():
            running_worker().unload(name_of(model))
    except ModelBusy as error:
        raise Conflict(
            _("%(name)s cannot be unloaded: %(num)s replies need it.")
            % {"name": error.name, "num": error.num_requests},
            num_requests=error.num_requests,
        ) from error


def model_info(model: str = "") -> ModelInfo | None:
    """The model as it was when it was last loaded; None before that."""
    return None if handle.worker is None else handle.worker.model(name_of(model)).info


def reserve(user_id: int) -> Ticket:
    """A place in the queue, in constant time. Raises Busy, EngineUnavailable or Draining.

    The last eighth of the places is for people who hold none: one person alone cannot fill the queue.
    """
    if handle.is_draining:
        raise Draining(_("The server is about to stop and takes nothing new. Nothing has been stored; try again soon."))
    running_worker()
    num_held = handle.places.total()
    num_open = handle.num_places - (handle.num_places // 8 if handle.places[user_id] else 0)
    if num_held >= num_open:
        raise Busy(
            _("Too many replies are waiting (%(num)s). Nothing has been stored; try again.") % {"num": num_held},
            num_waiting=num_held,
            max_waiting=handle.num_places,
        )
    return Ticket(handle.places, user_id)


def running_worker() -> Worker:
    if handle.worker is None or handle.worker.state != "running":
        raise EngineUnavailable(status().message)
    return handle.worker


def name_of(model: str) -> str:
    return model or handle.default_model


def opened_model(model: str) -> OpenedModel:
    worker, name = running_worker(), name_of(model)
    try:
        return worker.open(name)
    except ModelTooLarge as error:
        raise EngineUnavailable(
            _(
                "%(name)s needs %(need)s of memory, and all models together may take %(max)s: raise "
                "RECOLLECT_MODEL_MEMORY, or lower RECOLLECT_POOL_TOKENS."
            )
            % {"name": name, "need": filesizeformat(error.num_bytes), "max": filesizeformat(error.max_bytes)},
            num_bytes=error.num_bytes,
            max_bytes=error.max_bytes,
        ) from error
    except (InferenceError, ValueError) as error:
        raise EngineUnavailable(_not_loaded(name, str(error))) from error


@contextmanager
def unavailable_when_stopped() -> Iterator[None]:
    """An engine that has stopped meanwhile is a refusal."""
    try:
        yield
    except EngineStopped as error:
        raise EngineUnavailable(_("The engine has stopped: %(error)s.") % {"error": error}) from error
