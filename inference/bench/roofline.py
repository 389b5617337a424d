"""What this machine can do at most, and what share of it the engine reaches.

Decoding is bound by bytes: each token reads the weights and the KV of its context. Reading a prompt is bound by
multiplications: each token meets every weight once, and each earlier token in attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from inference.bench.workload import NUM_DECODED
from inference.engine.llm_engine import LLMEngine
from inference.kernels.blas import Blas

READ_BYTES = 192 << 20  # a thread: far more than any cache holds
MATRIX_SIZE = 2048
NUM_TRIALS = 9


def measure_read(num_threads: int) -> float:
    """Bytes per second that so many threads read from memory together; the best of several trials."""
    arrays = [np.ones(READ_BYTES // 4, np.float32) for _ in range(num_threads)]  # written once: pages of their own
    with ThreadPoolExecutor(num_threads) as pool:
        seconds = _best(lambda: list(pool.map(np.max, arrays)))  # the cheapest that looks at every number
    return num_threads * READ_BYTES / seconds


def measure_multiply(num_threads: int) -> float:
    """Float32 operations per second of BLAS on that many threads; a multiplication and an addition are two."""
    Blas().set_num_threads(num_threads)
    left, right = (np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32) for _ in range(2))
    out = np.empty_like(left)
    return 2 * MATRIX_SIZE**3 / _best(lambda: np.matmul(left, right, out=out))


def decode_bytes(engine: LLMEngine, num_context: float) -> float:
    """Bytes that one sequence reads for one token: all weights, as the kernels hold them, and the KV of its context."""
    return engine.model.weight_bytes + num_context * engine.info.kv_bytes_per_token


def prefill_operations(engine: LLMEngine, num_tokens: int) -> float:
    """Operations for one token of a prompt of num_tokens, on average. The head is left out: one token needs it."""
    config = engine.model.config
    in_vocabulary = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    in_layers = 2 * (engine.model.num_parameters - in_vocabulary)
    pairs = num_tokens / 2  # the average token sees half of them
    return in_layers + 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs


def shares(engine: LLMEngine, contexts: Mapping[str, Mapping[str, float]], num_threads: int) -> dict[str, Any]:
    """Measures the machine, and sets the figures of measure_core against it. Prints both."""
    read, multiply = measure_read(num_threads), measure_multiply(num_threads)
    print(f"machine: reads {read / 1e9:.1f} GB/s, multiplies {multiply / 1e9:.0f} GFLOP/s in float32", flush=True)
    rows: dict[str, dict[str, float]] = {}
    for size, row in contexts.items():
        num_bytes = decode_bytes(engine, int(size) + NUM_DECODED / 2)
        operations = prefill_operations(engine, int(size))
        rows[size] = {
            "decode_bandwidth": row["decode_tok_s"] * num_bytes / read,
            "prefill_multiply": row["prefill_tok_s"] * operations / multiply,
        }
        share = rows[size]
        print(
            f"{size}: decode reads {num_bytes / 1e6:.0f} MB a token, {share['decode_bandwidth']:.0%} of the bandwidth; "
            f"prefill does {operations / 1e6:.0f} MFLOP a token, {share['prefill_multiply']:.0%}",
            flush=True,
        )
    return {"read_gb_s": read / 1e9, "multiply_gflop_s": multiply / 1e9, "shares": rows}


def _best(work: Callable[[], object]) -> float:
    """Seconds of the quickest trial: whatever else runs makes it slower, never quicker."""
    times = []
    for _ in range(NUM_TRIALS):
        started_at = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_at)
    return min(times)
