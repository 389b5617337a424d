"""Our engine beside its peers in one run: `python -m tests.peers.compare --rounds 5`.

Each engine runs in a process of its own, by turns, so that whatever the machine does meanwhile hits all of them. Prints
the medians, the ratios to the best peer (above 1: ours is better) and which targets hold; the last line is JSON:

{"ratios": {"prefill_512", "prefill_2048", "decode_64", "decode_512", "decode_2048", "parallel_4", "warm_ttft_2048"},
 "kl": .., "kl_llamacpp": .., "bandwidth_share": .., ...}

kl               mean divergence of our next-token distribution from the float32 reference on the same file;
                 kl_llamacpp, kl_openvino and kl_openvino_exact likewise, on the form of the file that they read
bandwidth_share  what decoding one conversation reads of what memory gives, at the context where that is least

The peers' environments are made under var/peers, which needs a package index once, or taken from the folder that the
variable PEERS_DIR names (peer-llamacpp, peer-openvino); one that is not there is left out, and that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference.bench.__main__ import DEFAULT_MODEL
from inference.bench.workload import MORE_WORDS, NUM_DECODED, parallel_prompts, prompt_text
from inference.config import KERNELS, EngineConfig
from tests.peers.conversion import convert_to_q8_0
from tests.peers.environments import HERE, PEERS, Peer, find_python, made_python
from tests.peers.fidelity import measure_fidelity
from tests.peers.targets import RATIOS, START_S, Figures, medians, named, ratio, verdicts

ROOT = HERE.parent.parent
OURS = "Recollect"
CONTEXTS = (64, 512, 2048)
# Set by some environments to work around faults of old OpenBLAS builds; they force a slow kernel on a current one.
BLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def measured_peers(model: Path, folder: Path) -> dict[Peer, tuple[Path, Path]]:
    """Peer -> its interpreter and the model in the form that it reads. Raises SystemExit when there is none."""
    foreign = os.environ.get("PEERS_DIR")
    found = {}
    for peer in PEERS:
        python = find_python(peer, Path(foreign)) if foreign else made_python(peer, folder)
        if python is None:
            print(f"{peer.title} is not measured: {foreign} holds no peer-{peer.name}", flush=True)
        else:
            found[peer] = python, q8_0_of(model, folder) if peer.needs_q8_0 else model
    if not found:
        raise SystemExit("there is no peer to compare with")
    return found


def q8_0_of(model: Path, folder: Path) -> Path:
    converted = folder / f"{model.stem}.as-Q8_0.gguf"
    if not converted.exists():
        print(
            f"Converting {model.name} to Q8_0, because OpenVINO GenAI does not read every kind (once) ...", flush=True
        )
        convert_to_q8_0(model, converted)
    return converted


def workload(folder: Path) -> Path:
    """The prompts for the peers, which know nothing of our code."""
    path = folder / "workload.json"
    prompts = {str(size): prompt_text(size, seed=size) for size in CONTEXTS}
    parts = {"prompts": prompts, "more": MORE_WORDS, "parallel": parallel_prompts(), "num_decoded": NUM_DECODED}
    path.write_text(json.dumps(parts))
    return path


def last_line(command: list[str | Path]) -> dict[str, Any]:
    """The JSON that a benchmark prints last. Raises SystemExit with all that it said if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in BLAS_OVERRIDES}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{' '.join(map(str, command))} ended with {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def run_rounds(commands: Mapping[str, list[str | Path]], num_rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Everybody's figures, round by round."""
    runs: dict[str, list[dict[str, Any]]] = {title: [] for title in commands}
    for number in range(num_rounds):
        for title, command in commands.items():
            print(f"round {number + 1} of {num_rounds}: {title} ...", end=" ", flush=True)
            runs[title].append(last_line(command))
            print(", ".join(f"{name} {value:.0f}" for name, value in named(runs[title][-1]).items()), flush=True)
    return runs


def bandwidth_share(runs: list[dict[str, Any]]) -> float:
    """The median of each context, and of these the least."""
    return min(statistics.median(run["shares"][size]["decode_bandwidth"] for run in runs) for size in runs[0]["shares"])


def print_table(ours: Figures, peers: Mapping[str, Figures], aside: Mapping[str, Figures]) -> None:
    """Ratios to the best of the peers, then to each of those that are shown aside."""
    columns = [*(f"{title:>16}" for title in peers), f"{'ratio':>8}", *(f"{title:>19} {'ratio':>8}" for title in aside)]
    print(f"\n{'tok/s, or ms to a first token':28} {OURS:>12}", *columns)
    for name in ours:
        values = [f"{peer[name]:16.1f}" for peer in peers.values()]
        values.append(f"{ratio(name, ours, peers):8.2f}")
        values += [f"{other[name]:19.1f} {ratio(name, ours, {title: other}):8.2f}" for title, other in aside.items()]
        print(f"{name:28} {ours[name]:12.1f}", *values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="path of the GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", choices=KERNELS, default=os.environ.get("RECOLLECT_KERNELS") or "auto")
    args = parser.parse_args()
    model, folder = args.model.resolve(), ROOT / "var" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    peers = measured_peers(model, folder)
    bench: list[str | Path] = [sys.executable, "-m", "inference.bench", "--kernels", args.kernels]
    common = ["--threads", str(args.threads)]
    with tempfile.TemporaryDirectory() as temporary:
        prompts = workload(Path(temporary))
        commands: dict[str, list[str | Path]] = {OURS: [*bench, "--suite", "roofline", "--model", model, *common]}
        for peer, (python, path) in peers.items():
            options = [*common, *peer.options]
            commands[peer.title] = [python, HERE / peer.script, "--model", path, "--workload", prompts, *options]
        runs = run_rounds(commands, args.rounds)
    print("fidelity and start ...", flush=True)
    config = EngineConfig(num_threads=args.threads, kernels=args.kernels, pool_tokens=1024)
    kl, others = measure_fidelity(model, config, peers)
    quality = {"kl": kl} | {f"kl_{peer.key}": value for peer, value in others.items()}
    quality["bandwidth_share"] = bandwidth_share(runs[OURS])
    start = last_line([*bench, "--suite", "start", "--model", model, *common])
    quality |= {name: start[name] for name in START_S}
    middle = {title: medians([named(run) for run in found]) for title, found in runs.items()}
    ours = middle[OURS]
    best, aside = (
        {peer.title: middle[peer.title] for peer in peers if peer.is_aside == is_aside} for is_aside in (False, True)
    )
    ratios = {name: ratio(name, ours, best) for name in RATIOS}
    print(f"\nkernels: {runs[OURS][0]['kernel_tier']}, {args.threads} threads, medians of {args.rounds} rounds")
    print_table(ours, best, aside)
    print(
        "KL to float32:",
        ", ".join(
            f"{name} {value:.2g}"
            for name, value in {OURS: kl, **{peer.title: value for peer, value in others.items()}}.items()
        ),
    )
    print(f"\n{'ratio to the best peer':28} {'measured':>10}   target")
    print(*verdicts(ratios, quality), sep="\n")
    tier = {"kernel_tier": runs[OURS][0]["kernel_tier"], "medians": middle}
    print(json.dumps({"ratios": ratios, **quality, "rounds": args.rounds, **tier}))


if __name__ == "__main__":
    main()
