"""llama.cpp (the prebuilt wheel `xllamacpp`), measured with our prompts. Runs in an environment of its own.

With a workload: its speed, in the keys of `python -m inference.bench`; the last line is JSON. With --logprobs: what it
thinks of each position of a text, as raw float32.
"""

from __future__ import annotations

import argparse
import array
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xllamacpp


class Peer:
    """One llama.cpp server in this process."""

    def __init__(self, model: str, num_threads: int, num_parallel: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_parallel = 16_384, num_parallel
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
        self._server = xllamacpp.Server(params)

    def complete(self, prompt: str | list[int], num_tokens: int, **options: Any) -> dict[str, Any]:
        """One greedy completion of exactly num_tokens, with llama.cpp's own timings."""
        asked = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "cache_prompt": True, "ignore_eos": True}
        answer = self._server.handle_completions(asked | options)
        found: dict[str, Any] = json.loads(answer) if isinstance(answer, str) else answer
        return found


def measure(peer: Peer, workload: dict[str, Any]) -> dict[str, Any]:
    """prefill_tok_s cold, decode_tok_s right after it, warm_ttft_ms with a few words more; then several at once."""
    result = {}
    for size, prompt in workload["prompts"].items():
        cold = peer.complete(prompt, workload["num_decoded"])["timings"]
        warm = peer.complete(prompt + workload["more"], 1)["timings"]
        result[size] = {
            "prefill_tok_s": cold["prompt_per_second"],
            "decode_tok_s": cold["predicted_per_second"],
            "warm_ttft_ms": warm["prompt_ms"],
        }
    prompts, num_decoded = workload["parallel"], workload["num_decoded"]
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: peer.complete(prompt, 1), prompts))
        start = time.perf_counter()
        list(pool.map(lambda prompt: peer.complete(prompt, num_decoded), prompts))
        seconds = time.perf_counter() - start
    return {"contexts": result, "parallel": {"decode_tok_s": len(prompts) * num_decoded / seconds}}


def write_logprobs(peer: Peer, token_ids: list[int], vocab_size: int, path: Path) -> None:
    """Log-probabilities (T, V) of what follows each position, each asked for as the next token of its prefix."""
    with path.open("wb") as file:
        for end in range(1, len(token_ids) + 1):
            answer = peer.complete(token_ids[:end], 1, n_probs=vocab_size, ignore_eos=False)
            row = array.array("f", [float("-inf")]) * vocab_size
            for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
                row[entry["id"]] = entry["logprob"]
            row.tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="path of the GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workload", type=Path, required=True, help="JSON, written by compare.py or fidelity.py")
    parser.add_argument("--logprobs", type=Path, help="write them here, for the ids of the workload")
    args = parser.parse_args()
    workload = json.loads(args.workload.read_text())
    if args.logprobs:
        peer = Peer(args.model, args.threads, num_parallel=1)
        write_logprobs(peer, workload["token_ids"], workload["vocab_size"], args.logprobs)
    else:
        print(json.dumps(measure(Peer(args.model, args.threads, len(workload["parallel"])), workload)))


if __name__ == "__main__":
    main()
