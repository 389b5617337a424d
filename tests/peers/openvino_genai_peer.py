"""OpenVINO GenAI (the wheel `openvino-genai`), measured with our prompts. Runs in an environment of its own.

The keys are those of `python -m inference.bench`; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import openvino_genai


class Peer:
    """One pipeline with continuous batching and a prefix cache, as its documentation advises for chats."""

    def __init__(self, model: str, num_threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = 2048
        self._pipeline = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=num_threads
        )

    def complete(self, prompts: list[str], num_tokens: int) -> Any:
        """OpenVINO's own figures of greedy completions of exactly num_tokens."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = num_tokens, True
        config.do_sample, config.apply_chat_template = False, False
        return self._pipeline.generate(prompts, config).perf_metrics


def measure(peer: Peer, workload: dict[str, Any]) -> dict[str, Any]:
    """prefill_tok_s cold, decode_tok_s right after it, warm_ttft_ms with a few words more; then several at once."""
    result, num_decoded = {}, workload["num_decoded"]
    for size, prompt in workload["prompts"].items():
        cold = peer.complete([prompt], num_decoded)
        warm = peer.complete([prompt + workload["more"]], num_decoded)
        result[size] = {
            "prefill_tok_s": cold.get_num_input_tokens() / cold.get_ttft().mean * 1e3,
            "decode_tok_s": 1e3 / cold.get_tpot().mean,
            "warm_ttft_ms": warm.get_ttft().mean,
        }
    prompts = workload["parallel"]
    peer.complete(prompts, 1)
    start = time.perf_counter()
    peer.complete(prompts, num_decoded)
    seconds = time.perf_counter() - start
    return {"contexts": result, "parallel": {"decode_tok_s": len(prompts) * num_decoded / seconds}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="path of a GGUF file in Q8_0 or Q4_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workload", type=Path, required=True, help="JSON, written by compare.py")
    args = parser.parse_args()
    print(json.dumps(measure(Peer(args.model, args.threads), json.loads(args.workload.read_text()))))


if __name__ == "__main__":
    main()
