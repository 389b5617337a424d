"""From the start of a process to its first token: without compiled kernels on disk, and with them."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inference.bench.workload import complete, prompt_text
from inference.config import EngineConfig
from inference.engine.model_loader import load_engine

NUM_CACHED = 3  # starts with compiled kernels, of which the quickest counts


def measure_start(model: Path, config: EngineConfig) -> dict[str, float]:
    """{"first_s": .., "cached_s": ..}, each of a new interpreter. Prints as it goes."""
    with tempfile.TemporaryDirectory() as folder:
        first_s = _seconds_to_first_token(model, config, folder)
        print(f"first start, nothing compiled yet: {first_s:.1f} s to the first token", flush=True)
        cached_s = min(_seconds_to_first_token(model, config, folder) for _ in range(NUM_CACHED))
        print(f"start with compiled kernels: {cached_s:.1f} s", flush=True)
    return {"first_s": first_s, "cached_s": cached_s}


def _seconds_to_first_token(model: Path, config: EngineConfig, folder: str) -> float:
    command = [sys.executable, "-m", "inference.bench.start", "--model", str(model), "--kernel-cache", folder]
    command += ["--threads", str(config.num_threads), "--kernels", config.kernels]
    started_at = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603  our own interpreter and module
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.perf_counter() - started_at
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return seconds


def main() -> None:
    """The process that is measured: one line on stdout when the first token is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--kernel-cache", required=True)
    options = parser.parse_args()
    config = EngineConfig(num_threads=options.threads, kernels=options.kernels, kernel_cache=options.kernel_cache)
    complete(load_engine(options.model, config), [prompt_text(16, seed=1)], 1)
    print("first token", flush=True)


if __name__ == "__main__":
    main()
