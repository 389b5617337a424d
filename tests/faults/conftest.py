"""A real server in a process of its own, on a data folder of its own (SQLite), to be killed, starved and restarted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.patience import PATIENCE_S
from tests.shared_kernels import share_kernels


def environment(data: Path, **changes: str) -> dict[str, str]:
    """Nothing of the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RECOLLECT_", "DATABASE_URL"))}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "chatapp.settings",
        "RECOLLECT_DATA": str(data),
        "RECOLLECT_TITLES": "off",
        **changes,
    }


@dataclass
class ServerProcess:
    """`serve` with the paced engine. `cookies`: name -> session."""

    data: Path
    cookies: dict[str, str]
    module: str = "tests.faults.paced_server"
    port: int = 0
    process: subprocess.Popen[str] | None = None
    output: list[str] = field(default_factory=list)

    def start(self, *, path: str = "/healthz/ready", **changes: str) -> None:
        """Returns when that path answers 200."""
        share_kernels(self.data)
        log = (self.data / "log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, "serve", "--port", str(self.port)],
            cwd=ROOT,
            env=environment(self.data, **changes),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if line.startswith("Recollect runs at"):
                self.port = int(line.rstrip("/\n").rsplit(":", 1)[1])
            if line.startswith("Stop with"):
                break
        else:
            raise AssertionError(f"the server did not start:\n{self.log()}")
        while self.get(path)[0] != 200:
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body; 0 when nobody answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0, ""

    def rss_bytes(self) -> int:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Straight from the file, past the server. UUIDs are 32 hexadecimal digits there."""
        connection = sqlite3.connect(self.data / "recollect.sqlite3")
        try:
            return connection.execute(sql, [str(value).replace("-", "") for value in values]).fetchall()
        finally:
            connection.close()

    def message(self, message_id: str) -> tuple[str, str]:
        """Status and text of a reply."""
        ((status, text),) = self.query("SELECT status, text FROM chatapp_message WHERE id = ?", message_id)
        return status, text

    def log(self) -> str:
        return (self.data / "log").read_text()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A data folder with people in it, to be copied."""
    data = tmp_path_factory.mktemp("data")
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.prepare"],
        cwd=ROOT,
        env=environment(data),
        capture_output=True,
        text=True,
        check=True,
    )
    return data, json.loads(done.stdout)


@pytest.fixture
def data(prepared: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    copy = shutil.copytree(prepared[0], tmp_path / "data")
    kernels = ROOT / "var" / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (copy / "kernels").symlink_to(kernels)  # compiling them takes a minute, and is not what fails here
    return copy


@pytest.fixture
def stopped_server(prepared: tuple[Path, dict[str, str]], data: Path) -> Iterator[ServerProcess]:
    """Not started yet; ended at the end of the test, whatever happened."""
    server = ServerProcess(data, prepared[1])
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()


@pytest.fixture
def server(stopped_server: ServerProcess) -> ServerProcess:
    stopped_server.start()
    return stopped_server


@pytest.fixture
def slow_server(stopped_server: ServerProcess) -> ServerProcess:
    """Its replies do not end by themselves."""
    stopped_server.start(RECOLLECT_TEST_WORDS="1000000", RECOLLECT_TEST_PACE="0.02")
    return stopped_server


@pytest.fixture
def manage(data: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`manage.py` with arguments, on this data folder."""

    def call(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *args]
        return subprocess.run(
            command, cwd=ROOT, env=environment(data, **changes), capture_output=True, text=True, timeout=60
        )

    return call
