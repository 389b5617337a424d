"""The server under test: `manage.py serve` as a process of its own, on a free port, with a data folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.shared_kernels import share_kernels

ROOT = Path(__file__).resolve().parent.parent.parent
START_WITHIN_S = 3 * PATIENCE_S
_INSTALL = """
from django.core.management import call_command
for command in {commands}:
    call_command(command, interactive=False, verbosity=0)
from chatapp.models import Preset
sampling = {{"temperature": 0.0, "repetition_penalty": 1.1, "max_tokens": {max_tokens}}}
Preset.objects.update_or_create(is_default=True, defaults={{"name": "Tests", "sampling": sampling}})
"""
_static_files: list[Path] = []  # whose installation collected them; they lie beside the source and serve all


class Server:
    """Can be stopped, killed and started again on the same data and port."""

    def __init__(self, data: Path, model: Path, **settings: str) -> None:
        """settings: environment variables of the server, beside data folder and model."""
        self.data = data
        data.chmod(0o700)
        share_kernels(data)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RECOLLECT_", "DJANGO_"))}
        kept.pop("DATABASE_URL", None)
        self._env = kept | {
            "RECOLLECT_DATA": str(data),
            "RECOLLECT_MODEL": str(model),
            "RECOLLECT_LOG_LEVEL": "WARNING",
            "RECOLLECT_TITLES": "off",
            **settings,
        }
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def install(self, *, max_tokens: int) -> None:
        """Database, static files, and a default preset: greedy, so that tests are repeatable. One process for all."""
        commands = ["migrate"] if _static_files else ["migrate", "collectstatic"]
        self.manage("shell", "-v0", "-c", _INSTALL.format(commands=commands, max_tokens=max_tokens))
        _static_files.append(self.data)

    def manage(self, *command: str) -> None:
        """Run a management command. Raises when it fails."""
        subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=self._env, check=True)

    def start(self) -> None:
        """Returns when the server listens; the model may still be loading."""
        command = [sys.executable, "-u", "manage.py", "serve", "--port", str(self._port)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        is_listening = threading.Event()
        threading.Thread(target=self._read, args=(self._process, is_listening), daemon=True).start()
        if not is_listening.wait(START_WITHIN_S) or self._process.poll() is not None:
            self.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.log[-50:]))

    def _read(self, process: subprocess.Popen[str], is_listening: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.log.append(line)
            if found := re.search(r"Recollect runs at\s+http://127\.0\.0\.1:(\d+)/", line):
                self._port = int(found.group(1))
            if line.startswith("Stop with"):
                is_listening.set()
        is_listening.set()

    def stop(self) -> None:
        """As Ctrl-C does."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a power cut does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
        self._process = None
