"""Measure llama.cpp (the prebuilt wheel `xllamacpp`) with the prompts and the keys of `python -m inference.bench`.

Runs in an environment of its own, see compare.py. Prints progress, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

WORDS = (  # noqa: SIM905 - a list of 28 strings reads worse
    "the quick brown fox jumps over lazy dog while seven bright stars shine above a quiet river town where people "
    "walk and talk about history science music art"
).split()
NUM_DECODED = 64
NUM_PARALLEL = 4


def prompt_text(num_words: int, seed: int) -> str:
    """num_words words, about as many tokens; the same in every engine that is compared."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


class Peer:
    """One llama.cpp server in this process."""

    def __init__(self, model: str, num_threads: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_parallel = 16_384, NUM_PARALLEL
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
        self._server = xllamacpp.Server(params)

    def complete(self, prompt: str, num_tokens: int) -> dict[str, Any]:
        """llama.cpp's own timings of one greedy completion of exactly num_tokens."""
        asked = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "cache_prompt": True, "ignore_eos": True}
        answer = self._server.handle_completions(asked)
        timings: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)["timings"]
        return timings


def measure(model: str, contexts: list[int], num_threads: int) -> dict[str, Any]:
    """prefill_tok_s cold, decode_tok_s right after it, warm_ttft_ms with two words more; then four at once."""
    peer, result = Peer(model, num_threads), {}
    for size in contexts:
        prompt = prompt_text(size, seed=size)
        cold = peer.complete(prompt, NUM_DECODED)
        warm = peer.complete(prompt + " and then", 1)
        result[str(size)] = {
            "prefill_tok_s": cold["prompt_per_second"],
            "decode_tok_s": cold["predicted_per_second"],
            "warm_ttft_ms": warm["prompt_ms"],
        }
        print(size, result[str(size)], flush=True)
    prompts = [prompt_text(64, seed=900 + i) for i in range(NUM_PARALLEL)]
    with ThreadPoolExecutor(NUM_PARALLEL) as pool:
        list(pool.map(lambda prompt: peer.complete(prompt, 1), prompts))
        start = time.perf_counter()
        list(pool.map(lambda prompt: peer.complete(prompt, NUM_DECODED), prompts))
        seconds = time.perf_counter() - start
    parallel = {"sequences": NUM_PARALLEL, "decode_tok_s": NUM_PARALLEL * NUM_DECODED / seconds}
    return {"contexts": result, "parallel": parallel}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="path of the GGUF file")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    figures = measure(args.model, args.contexts, args.threads)
    print(json.dumps({"peer": "llamacpp", "model": args.model, "threads": args.threads, **figures}))


if __name__ == "__main__":
    main()
