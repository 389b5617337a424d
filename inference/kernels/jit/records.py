"""What a pass is told: tables of plain numbers and addresses, filled by runner.py and read by compiled code.

All fields are int64 unless they say otherwise. An address of 0 means: this model has no such part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LAYER_FIELDS = (
    *("norm", "qkv", "num_qkv", "qkv_bias", "q_norm", "k_norm", "output", "num_output", "output_bias", "post_norm"),
    *("window", "cos", "sin"),  # tables of this layer's angles, (positions, R / 2); 0: positions are not rotated
    *("ff_norm", "gate_up", "num_gate_up", "gate_up_bias", "down", "num_down", "down_bias", "ff_post_norm"),
    # width: of the feed-forward part, or of an expert; segments: bytes from those of the first layer
    *("width", "router", "num_router", "num_experts", "experts", "segments"),
)
MODEL_FIELDS = (  # the same in every pass
    *("num_layers", "hidden", "num_heads", "num_kv_heads", "dim", "rotary", "vocab", "activation"),
    *("num_chosen", "is_normalised", "embedding", "final_norm", "head", "num_head", "num_threads", "quantise"),
)
EXPERT_FIELDS = (  # of those of a pass; segments: of the first layer
    *("scores", "scores_bytes", "chosen", "shares", "pairs", "segments"),
    *("pair_input", "pair_quantised", "pair_tiles", "pair_wide"),
)
PASS_FIELDS = (
    # has_tail: only the wanted rows go through the rest of the last layer, as the table's next record says
    *("num_tokens", "num_wanted", "has_tail", "num_jobs", "num_tasks", "is_split", "row_step"),
    *("tokens", "positions", "slots", "wanted", "jobs"),  # int32, int32, int64, int32, JOB_FIELDS
    *("keys", "values", "num_slots", "block_size"),
    *("x", "x_bytes", "input", "input_bytes", "quantised", "tiles", "qkv", "qkv_bytes", "wide", "wide_bytes"),
    *("logits", "scratch", "scratch_bytes"),
    *EXPERT_FIELDS,
)
FLOAT_FIELDS = ("eps", "attention_scale", "embedding_scale")  # float32
# Consecutive tokens of one sequence. table: address of its block ids; first_task: of a stage of attention with one task
# for each kv head and chunk; parts: where those tasks put their results.
JOB_FIELDS = ("first_row", "num_rows", "position", "table", "num_chunks", "first_task", "parts")

LAYER = np.dtype([(name, np.int64) for name in LAYER_FIELDS])
JOB = np.dtype([(name, np.int64) for name in JOB_FIELDS])
PASS = np.dtype(
    [(name, np.int64) for name in (*MODEL_FIELDS, *PASS_FIELDS)] + [(name, np.float32) for name in FLOAT_FIELDS]
)

Record = Any  # one element of an array of these types, inside compiled code
