"""System checks, and the probes that `serve` and /healthz/ready ask. Each finding has an id and says what mends it."""

from __future__ import annotations

import filecmp
import os
import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from chatapp import llm, machine
from chatapp.errors import StorageUnavailable
from chatapp.storage import translated

TAG = "recollect"
_PROBE = "SELECT 1 FROM chatapp_message LIMIT 1"
_PROBE_S = 2.0
_MIN_OPEN_FILES = 4096  # one socket is one file; the usual 1024 is the first wall that a busy server meets
# WAL needs memory shared between processes and locks that work, and these give neither.
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"),
)

Check = Callable[..., list[CheckMessage]]


@translated()
def pending_migrations() -> list[str]:
    """Names of migrations that the database lacks, in order. Raises StorageUnavailable when it cannot be asked."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def storage_ok() -> bool:
    """Whether the database answers and has our tables; cheap enough for a health check every second.

    Whoever asks gives up after a few seconds: a pool is given less time than a person's request.
    """
    pool = getattr(connection, "pool", None)  # of PostgreSQL; None with SQLite
    try:
        with translated(), connection.wrap_database_errors:
            if pool is None:
                with connection.cursor() as cursor:
                    cursor.execute(_PROBE)
            else:
                pool.open()
                with pool.connection(timeout=_PROBE_S) as raw:
                    raw.execute(_PROBE)
    except (StorageUnavailable, DatabaseError):
        return False
    return True


def stale_static_files(storage: ManifestStaticFilesStorage) -> list[str]:
    """Names of static files that were not collected, or are another version than their source. A few ms."""
    stale = []
    sources: dict[str, Path] = {}
    for finder in get_finders():
        for name, found in finder.list(["CVS", ".*", "*~"]):  # what collectstatic leaves out
            sources.setdefault(name, Path(found.path(name)))  # the first finder wins, as there
    for name, source in sources.items():
        collected = Path(storage.path(name))
        if (
            name not in storage.hashed_files
            or not collected.is_file()
            or not filecmp.cmp(source, collected, shallow=False)
        ):
            stale.append(name)
    return sorted(stale)


def check_data_folder(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    folder: Path = settings.RECOLLECT_DATA
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return [
            Error(
                f"The data folder {folder} cannot be written to.",
                hint="Give it to the user that runs the server (chown), or set RECOLLECT_DATA to another folder.",
                id="recollect.E001",
            )
        ]
    if folder.stat().st_mode & 0o077:
        return [
            Warning(
                f"Other users of this machine can read the data folder {folder}.",
                hint=f"chmod 700 {folder}",
                id="recollect.W002",
            )
        ]
    return []


def check_file_system(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if connection.vendor != "sqlite":
        return []
    kind = file_system_of(Path(connection.settings_dict["NAME"]), Path("/proc/self/mounts"))
    if kind not in _NETWORK_FILE_SYSTEMS:
        return []
    return [
        Warning(
            f"The SQLite database lies on a network file system ({kind}), where it can lose data.",
            hint="Set RECOLLECT_DATA to a folder on a local disk, or DATABASE_URL to a PostgreSQL server.",
            id="recollect.W003",
        )
    ]


def check_open_files(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises the soft limit to the hard one
    if hard == resource.RLIM_INFINITY or hard >= _MIN_OPEN_FILES:
        return []
    return [
        Warning(
            f"This process may open {hard} files, and each browser tab takes one.",
            hint=f"Raise the limit to {_MIN_OPEN_FILES} or more: `ulimit -n`, or LimitNOFILE= in a systemd unit.",
            id="recollect.W004",
        )
    ]


def check_model(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.RECOLLECT_MODEL.exists():
        return []
    return [
        Warning(
            f"The model {settings.RECOLLECT_MODEL} does not exist.",
            hint="Fetch the default one with `python manage.py fetch_model`, or set RECOLLECT_MODEL to a GGUF file "
            "or a Hugging Face folder.",
            id="recollect.W005",
        )
    ]


def check_embeddings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    problem = llm.encoder_problem()
    if not problem:
        return []
    return [
        Error(
            f"RECOLLECT_EMBEDDINGS is {settings.RECOLLECT_EMBEDDINGS!r}, and that cannot be used: {problem}.",
            hint=llm.ENCODER_ADVICE,
            id="recollect.E011",
        )
    ]


def check_kv_files(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Cached KV on disk. Without it everything works, so there are no errors."""
    folder, budget = llm.kv_root(), settings.RECOLLECT_KV_DISK_BYTES
    if not budget or not settings.RECOLLECT_DATA.is_dir():
        return []
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)):
        return [
            Warning(
                f"{folder} cannot be written to: after a restart every conversation has to be read anew.",
                hint="Give the folder to the user that runs the server (chown), or set RECOLLECT_KV_DISK_BYTES=0.",
                id="recollect.W009",
            )
        ]
    if budget > _size_of(folder.glob("*/*.kv")) + machine.free_disk_bytes(settings.RECOLLECT_DATA):
        return [
            Warning(
                f"RECOLLECT_KV_DISK_BYTES ({budget}) is more than the disk under {folder} has free: cached KV would "
                "fill it, and leave nothing to the database.",
                hint="Lower RECOLLECT_KV_DISK_BYTES, or make room.",
                id="recollect.W010",
            )
        ]
    return []


def check_combinations(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Settings that are legal one by one and make no sense together."""
    found: list[CheckMessage] = []
    if settings.RECOLLECT_HOST in ("0.0.0.0", "::") and not settings.RECOLLECT_IS_EXPOSED_BY_NAME:  # noqa: S104
        found.append(
            Warning(
                f"The server listens on every address ({settings.RECOLLECT_HOST}) and answers only to localhost.",
                hint="Set RECOLLECT_ALLOWED_HOSTS to the names under which it is visited.",
                id="recollect.W006",
            )
        )
    if settings.DEBUG and settings.RECOLLECT_IS_EXPOSED:
        found.append(
            Error(
                "RECOLLECT_DEBUG shows settings and source to everybody who can reach the server.",
                hint="Switch it off, or listen on 127.0.0.1 only.",
                id="recollect.E007",
            )
        )
    if settings.RECOLLECT_MAX_MODEL_LEN > settings.RECOLLECT_POOL_TOKENS:
        found.append(
            Error(
                f"RECOLLECT_MAX_MODEL_LEN ({settings.RECOLLECT_MAX_MODEL_LEN}) is more than RECOLLECT_POOL_TOKENS "
                f"({settings.RECOLLECT_POOL_TOKENS}): a prompt of that length could never run.",
                hint="Raise RECOLLECT_POOL_TOKENS or lower RECOLLECT_MAX_MODEL_LEN.",
                id="recollect.E008",
            )
        )
    return found


def _size_of(paths: Iterable[Path]) -> int:
    """Bytes of files, some of which may be gone by now."""
    total = 0
    for path in paths:
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def file_system_of(path: Path, mounts: Path) -> str:
    """The kind of file system under `path`, out of a table like /proc/mounts; "" where there is no such table."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return ""
    best, kind = "", ""
    for line in lines:
        _, raw, found, *_ = line.split(" ")
        mount = raw.replace("\\040", " ")
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best):  # a later mount hides an earlier one
            best, kind = mount, found
    return kind


ALL: tuple[Check, ...] = (
    check_data_folder,
    check_file_system,
    check_open_files,
    check_model,
    check_embeddings,
    check_kv_files,
    check_combinations,
)
