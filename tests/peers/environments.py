"""The environments of the peers: virtual ones, each with one package and what that needs, never among our own."""

from __future__ import annotations

import subprocess
import venv
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Peer:
    """script: run by the environment's interpreter, with the options. needs_q8_0: it reads the model in that form only.

    is_aside: a way to run that nobody gets by default; shown beside the others, and no ratio is to it.
    """

    name: str
    title: str
    requirement: str
    script: str
    needs_q8_0: bool = False
    options: tuple[str, ...] = ()
    is_aside: bool = False

    @property
    def key(self) -> str:
        """Its name among figures."""
        return f"{self.name}_exact" if self.is_aside else self.name


OPENVINO = Peer("openvino", "OpenVINO GenAI", "openvino-genai==2026.4.1.0", "openvino_genai_peer.py", needs_q8_0=True)
EXACT_OPENVINO = replace(OPENVINO, title="OpenVINO, float32", options=("--exact",), is_aside=True)
PEERS = (Peer("llamacpp", "llama.cpp", "xllamacpp==2026.10.11549", "llamacpp.py"), OPENVINO, EXACT_OPENVINO)


def find_python(peer: Peer, folder: Path) -> Path | None:
    """The interpreter of a peer in a folder of environments that somebody else has made."""
    python = folder / f"peer-{peer.name}" / "bin" / "python"
    return python if python.exists() else None


def made_python(peer: Peer, folder: Path) -> Path:
    """The same in a folder of ours, made if it is not there: needs a package index once.

    Raises SystemExit with a sentence when the package cannot be installed.
    """
    environment = folder / f"peer-{peer.name}"
    finished = environment / "finished"
    if not finished.exists():
        print(f"Installing {peer.requirement} into {environment} (once) ...", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        command = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*command, peer.requirement], check=False).returncode:
            raise SystemExit(f"{peer.requirement} could not be installed: see above, or name environments by PEERS_DIR")
        finished.touch()
    return environment / "bin" / "python"
