"""Our engine beside llama.cpp in one run: `python -m tests.peers.compare --rounds 3`.

Each engine runs in a process of its own, by turns, so that whatever the machine does meanwhile hits both. Prints the
medians and their ratios (above 1: ours is better), then one line of JSON. Needs a package index once, for the peer's
environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEFAULT_MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PEER_REQUIREMENT = "xllamacpp==2026.10.11549"
# Set by some environments to work around faults of old OpenBLAS builds; they force a slow kernel on a current one.
BLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def peer_python() -> Path:
    """The interpreter of the peer's environment, made if it is not there."""
    folder = ROOT / "var" / "peers" / "llamacpp"
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"Installing {PEER_REQUIREMENT} into {folder} (once) ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER_REQUIREMENT], check=True)
    return python


def last_line(command: list[str | Path]) -> dict[str, Any]:
    """The JSON that a benchmark prints last."""
    environment = {name: value for name, value in os.environ.items() if name not in BLAS_OVERRIDES}
    output = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return figures


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """{"prefill_tok_s 512": ..., ...}"""
    named = {f"{key} {size}": value for size, row in figures["contexts"].items() for key, value in row.items()}
    return {**named, "parallel decode_tok_s": figures["parallel"]["decode_tok_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="path of the GGUF file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    common = ["--model", str(args.model), "--threads", str(args.threads)]
    commands: dict[str, list[str | Path]] = {
        "llama.cpp": [peer_python(), HERE / "llamacpp.py", *common],
        "recollect": [sys.executable, "-m", "inference.bench", "--suite", "core", *common],
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for number in range(args.rounds):
        for name, command in commands.items():
            print(f"round {number + 1} of {args.rounds}: {name} ...", flush=True)
            runs[name].append(flat(last_line(command)))
    medians = {
        name: {key: statistics.median(run[key] for run in rows) for key in rows[0]} for name, rows in runs.items()
    }
    ours, theirs = medians["recollect"], medians["llama.cpp"]
    ratios = {
        key: theirs[key] / ours[key] if key.startswith("warm_ttft_ms") else ours[key] / theirs[key] for key in ours
    }
    for key in ours:
        print(f"{key:24} ours {ours[key]:9.1f}   llama.cpp {theirs[key]:9.1f}   ratio {ratios[key]:5.2f}")
    print(json.dumps({"rounds": args.rounds, "medians": medians, "ratios": ratios}))


if __name__ == "__main__":
    main()
