"""System checks and the probes of storage."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from chatapp import checks
from chatapp.management.commands.serve import Command as Serve
from chatapp.static_storage import StaticStorage
from tests.chatapp.word_encoder import write_encoder


def _ids() -> list[str | None]:
    return [found.id for found in run_checks(tags=[checks.TAG])]


@pytest.fixture(autouse=True)
def _sound(settings: Any, tmp_path: Path) -> None:
    """An installation that has nothing to complain about."""
    tmp_path.chmod(0o700)
    settings.RECOLLECT_DATA = tmp_path
    settings.RECOLLECT_MODEL = tmp_path


def test_sound_installation_has_no_findings() -> None:
    assert _ids() == []


def test_data_folder_that_others_can_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert _ids() == ["recollect.W002"]


def test_data_folder_that_cannot_be_written(settings: Any, tmp_path: Path) -> None:
    settings.RECOLLECT_DATA = tmp_path / "gone"  # for root, who may write anywhere, too
    assert _ids() == ["recollect.E001"]


def test_missing_model_names_the_command(settings: Any, tmp_path: Path) -> None:
    settings.RECOLLECT_MODEL = tmp_path / "gone.gguf"
    (found,) = run_checks(tags=[checks.TAG])
    assert found.id == "recollect.W005"
    assert found.hint is not None
    assert "manage.py fetch_model" in found.hint


def test_an_encoder_that_cannot_be_used_stops_the_start_with_the_way_out(settings: Any, tmp_path: Path) -> None:
    settings.RECOLLECT_EMBEDDINGS = str(tmp_path / "gone")
    (found,) = run_checks(tags=[checks.TAG])
    assert (found.id, found.is_serious()) == ("recollect.E011", True)
    assert "config.json" in found.msg
    assert found.hint is not None
    assert "Leave it empty" in found.hint
    path = write_encoder(tmp_path / "words", ["cat"])
    settings.RECOLLECT_EMBEDDINGS = str(path)
    assert _ids() == []
    Serve()._refuse_unusable_encoder()


def test_serve_refuses_an_encoder_whose_damage_no_header_tells(settings: Any, tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "words", ["cat"])
    (path / "tokenizer.json").write_text("{}")
    settings.RECOLLECT_EMBEDDINGS = str(path)
    assert _ids() == []
    with pytest.raises(CommandError, match=r"tokenizer.json.*Leave it empty"):
        Serve()._refuse_unusable_encoder()


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, 1024))
    assert _ids() == ["recollect.W004"]
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    assert _ids() == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"RECOLLECT_HOST": "0.0.0.0"}, ["recollect.W006"]),
        ({"RECOLLECT_HOST": "0.0.0.0", "RECOLLECT_IS_EXPOSED_BY_NAME": True}, []),
        ({"DEBUG": True, "RECOLLECT_IS_EXPOSED": True}, ["recollect.E007"]),
        ({"RECOLLECT_MAX_MODEL_LEN": 8192, "RECOLLECT_POOL_TOKENS": 4096}, ["recollect.E008"]),
    ],
)
def test_settings_that_make_no_sense_together(settings: Any, values: dict[str, Any], expected: list[str]) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    assert _ids() == expected


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/me/data", "ext4"),
        ("/mnt/share/data", "nfs4"),
        ("/mnt/share two/data", "cifs"),
        ("/mnt/sharing", "ext4"),
        ("/mnt/share/local", "xfs"),
    ],
)
def test_file_system_under_a_path(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\n/dev/sda1 / ext4 rw 0 0\nnas:/x /mnt/share nfs4 rw 0 0\n"
        "nas:/y /mnt/share\\040two cifs rw 0 0\n/dev/sdb1 /mnt/share/local xfs rw 0 0\n"
    )
    assert checks.file_system_of(Path(path), mounts) == kind


def test_file_system_without_a_table_is_unknown(tmp_path: Path) -> None:
    assert checks.file_system_of(tmp_path, tmp_path / "gone") == ""


@pytest.mark.django_db
def test_sqlite_on_a_network_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "file_system_of", lambda *_: "nfs4")
    assert _ids() == (["recollect.W003"] if connection.vendor == "sqlite" else [])


@pytest.mark.django_db
def test_migrated_database_has_nothing_pending() -> None:
    assert checks.pending_migrations() == []
    assert checks.storage_ok()


@pytest.mark.django_db
def test_pending_migration_is_named() -> None:
    MigrationRecorder.Migration.objects.filter(app="chatapp").delete()
    assert "chatapp.0001_initial" in checks.pending_migrations()


@pytest.mark.django_db(transaction=True)
def test_database_without_our_tables_is_not_ok() -> None:
    call_command("migrate", "chatapp", "zero", verbosity=0)
    try:
        assert not checks.storage_ok()
    finally:
        call_command("migrate", verbosity=0)
    assert checks.storage_ok()


# --- static files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def collected(settings: Any, tmp_path: Path) -> StaticStorage:
    """Two files of ours, collected."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.css", "b.css"):
        (source / name).write_text(f"/* {name} */")
    settings.STATICFILES_DIRS = [source]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    settings.STATIC_ROOT = tmp_path / "collected"
    settings.STORAGES = settings.STORAGES | {"staticfiles": {"BACKEND": "chatapp.static_storage.StaticStorage"}}
    finders.get_finder.cache_clear()
    call_command("collectstatic", interactive=False, verbosity=0)
    return StaticStorage(location=settings.STATIC_ROOT, base_url="/static/")


def test_collected_static_files_are_not_stale(collected: StaticStorage) -> None:
    assert checks.stale_static_files(collected) == []


@pytest.mark.parametrize("name", ["b.css", "new.css"])
def test_static_files_of_another_version_are_stale(collected: StaticStorage, tmp_path: Path, name: str) -> None:
    (tmp_path / "source" / name).write_text("/* after an update */")
    assert checks.stale_static_files(collected) == [name]


def test_without_a_manifest_all_static_files_are_stale(collected: StaticStorage, tmp_path: Path) -> None:
    (tmp_path / "collected" / "staticfiles.json").unlink()
    fresh = StaticStorage(location=tmp_path / "collected", base_url="/static/")
    assert checks.stale_static_files(fresh) == ["a.css", "b.css"]


def test_serve_refuses_stale_static_files_with_the_command(collected: StaticStorage, tmp_path: Path) -> None:
    (tmp_path / "source" / "b.css").unlink()
    (tmp_path / "source" / "c.css").write_text("")
    with pytest.raises(CommandError, match=r"1 are missing or old \(c.css, ...\). Run `python manage.py collectstatic"):
        Serve()._refuse_stale_static_files()
