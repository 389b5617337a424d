"""`python -m inference.bench --suite core|roofline|start|prefix`. The last line is JSON.

core      {"peer": "recollect", "model": ..., "threads": ..., "kernel_tier": ..., "blas_core": ...,
           "contexts": {"512": {"prefill_tok_s": .., "decode_tok_s": .., "warm_ttft_ms": ..}, ..},
           "parallel": {"sequences": 4, "decode_tok_s": ..},
           "beside": {"longest_gap_ms": .., "prefill_tok_s": ..}}
roofline  the same, and {"read_gb_s": .., "multiply_gflop_s": .., "shares": {"512": {"decode_bandwidth": ..,
          "prefill_multiply": ..}, ..}}: what this machine can do, and what share of it the engine reaches
start     {"first_s": .., "cached_s": ..}: process start to first token, without and with compiled kernels on disk
prefix    {"cold": {"prompt_tokens": .., "reused_ram": .., "reused_disk": .., "computed": .., "ttft_ms": ..},
          "warm": .., "edited": .., "branch": .., "regenerate": .., "after_title": .., "restart_disk": ..,
          "restart_cold": ..}: one conversation in all these ways, restarts in new processes; a table stands above it

prefill_tok_s   prompt tokens computed per second until the first token, cold
decode_tok_s    tokens per second after the first one, of 64 right after that prompt (greedy, nothing stops them)
warm_ttft_ms    time to the first token when the same prompt comes again with two words more
parallel        four short sequences at once, tokens of all together per second
beside          one reply is written while the longest prompt is read: the longest wait between two of its tokens
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from inference.bench.prefix import measure_prefix
from inference.bench.roofline import shares
from inference.bench.start import measure_start
from inference.bench.workload import measure_core
from inference.config import KERNELS, EngineConfig
from inference.engine.model_loader import load_engine
from inference.errors import InferenceError
from inference.kernels.blas import Blas

DEFAULT_MODEL = Path("var/models/SmolLM2-135M-Instruct.Q4_1.gguf")
KERNEL_CACHE = "var/kernels"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite. Exit code 2 for a model that cannot be loaded and for kernels that cannot run, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["core", "roofline", "start", "prefix"], default="core")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a GGUF file or a Hugging Face directory")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 512, 2048], help="prompt sizes, in words")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", choices=KERNELS, default="auto")
    parser.add_argument("--guesses", type=int, default=0, help="tokens guessed in a step; these prompts repeat words")
    parser.add_argument("--history", type=int, default=1800, help="prefix: words of the conversation")
    parser.add_argument("--rounds", type=int, default=3, help="prefix: of which the median counts")
    parser.add_argument("--turns", type=int, default=100, help="prefix: of many conversations in a small pool")
    parser.add_argument(
        "--folder", type=Path, default=Path("var"), help="prefix: where KV files are written for a while"
    )
    options = parser.parse_args(arguments)
    config = EngineConfig(
        num_threads=options.threads,
        kernels=options.kernels,
        kernel_cache=KERNEL_CACHE,
        max_draft_tokens=options.guesses,
    )
    common = {"peer": "recollect", "model": str(options.model), "threads": options.threads}
    try:
        if options.suite == "start":
            print(json.dumps(common | measure_start(options.model, config)))
            return 0
        if options.suite == "prefix":
            sizes = {"num_words": options.history, "num_rounds": options.rounds, "num_turns": options.turns}
            print(json.dumps(measure_prefix(options.model, config, options.folder, **sizes)))
            return 0
        engine = load_engine(options.model, config)
        machine = {"kernel_tier": engine.info.kernel_tier, "blas_core": Blas().core}
        figures = common | machine | measure_core(engine, options.contexts)
        if options.suite == "roofline":
            figures |= shares(engine, figures["contexts"], options.threads)
    except InferenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
