"""OpenVINO GenAI (the wheel `openvino-genai`), measured with our prompts. Runs in an environment of its own.

With a workload: its speed, in the keys of `python -m inference.bench`; the last line is JSON. With --logprobs: what it
thinks of each position of a text, as raw float32. By default OpenVINO rounds activations, to 8 bits for large products;
--exact has it compute in float32 throughout.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


class Peer:
    """One pipeline with continuous batching and a prefix cache, as its documentation advises for chats."""

    def __init__(self, model: str, properties: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = 2048
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, **properties)

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


def write_logits(model: str, token_ids: list[int], properties: dict[str, Any], path: Path) -> None:
    """Logits (T, V) of all positions in one pass, by the network that the pipeline builds from the file."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "model.gguf")
        link.symlink_to(model)
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)  # writes beside the file
        request = (
            openvino.Core().compile_model(Path(folder, "openvino_model.xml"), "CPU", properties).create_infer_request()
        )
        inputs = {
            "input_ids": np.array([token_ids], np.int64),
            "attention_mask": np.ones((1, len(token_ids)), np.int64),
            "position_ids": np.arange(len(token_ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer(inputs)[0].astype(np.float32).tofile(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="path of a GGUF file in Q8_0 or Q4_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workload", type=Path, required=True, help="JSON, written by compare.py or fidelity.py")
    parser.add_argument("--logprobs", type=Path, help="write logits here, for the ids of the workload")
    parser.add_argument("--exact", action="store_true", help="activations in float32")
    args = parser.parse_args()
    workload = json.loads(args.workload.read_text())
    properties = {"INFERENCE_NUM_THREADS": args.threads} | (EXACT if args.exact else {})
    if args.logprobs:
        write_logits(args.model, workload["token_ids"], properties, args.logprobs)
    else:
        print(json.dumps(measure(Peer(args.model, properties), workload)))


if __name__ == "__main__":
    main()
