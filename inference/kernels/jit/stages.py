"""The stages of a layer. Each is called by every thread of the team and returns when all its tasks are done.

Stages over rows take some rows of the batch at a time; products and attention are in products.py and attending.py.
p is the pass, w the layer (records.py); `stage` is the number of the stage's counters (team.py), and what a stage
returns is the number of the next one.
"""

from __future__ import annotations

import numpy as np

from inference.kernels.jit import elementwise
from inference.kernels.jit.attention_tiles import query_scale_at
from inference.kernels.jit.elementwise import NAN, ZERO
from inference.kernels.jit.kernel_cache import kernel
from inference.kernels.jit.linear import embed, quantise
from inference.kernels.jit.records import Record
from inference.kernels.jit.team import done, take, wait
from inference.kernels.jit.vectors import get_i32, get_i64, set_f32

QUANTISED_STEP = 32  # inputs of products are rows of a multiple of so many numbers, zeros behind


@kernel
def embed_rows(p: Record, counters: int, stage: int) -> int:
    """The residual stream of every token begins with its embedding."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        for row in range(task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)):
            x = p.x + row * p.x_bytes
            embed(p.embedding, get_i32(p.tokens + 4 * row), x)
            if p.embedding_scale != 1:
                elementwise.scale(x, p.embedding_scale, p.hidden)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def add_rows(p: Record, bias: int, post_norm: int, norm: int, counters: int, stage: int) -> int:
    """Adds `wide` to the residual stream, with its bias and norm if there are any; then, if there is a norm for what
    comes next, the normalised rows are the next input."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)
        for row in range(first, end):
            added = p.wide + row * p.wide_bytes
            if bias:
                elementwise.add(added, bias, p.hidden)
            if post_norm:
                elementwise.rms_norm(added, post_norm, p.eps, p.hidden, added)
            elementwise.add(p.x + row * p.x_bytes, added, p.hidden)
        if norm:
            _normalise(p, norm, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def norm_rows(p: Record, norm: int, counters: int, stage: int) -> int:
    """The normalised residual stream as the next input."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        _normalise(p, norm, task * p.row_step, min((task + 1) * p.row_step, p.num_tokens))
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def gather_wanted(p: Record, counters: int, stage: int) -> int:
    """Residual stream and queries of the wanted rows, which ascend, come to the front.

    One task: a row may lie where the one before it has just been taken from.
    """
    if take(counters, stage, 1) == 0:
        for index in range(p.num_wanted):
            row = get_i32(p.wanted + 4 * index)
            if row > index:
                elementwise.copy(p.x + row * p.x_bytes, p.hidden, p.x + index * p.x_bytes)
                elementwise.copy(p.qkv + row * p.qkv_bytes, p.num_heads * p.dim, p.qkv + index * p.qkv_bytes)
        done(counters, stage)
    wait(counters, stage, 1)
    return stage + 1


@kernel
def norm_wanted(p: Record, counters: int, stage: int) -> int:
    """The last norm of the rows whose logits are wanted, in their order, as the next input."""
    num_tasks = -(-p.num_wanted // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, p.num_wanted)
        for index in range(first, end):
            x = p.x + get_i32(p.wanted + 4 * index) * p.x_bytes
            elementwise.rms_norm(x, p.final_norm, p.eps, p.hidden, p.input + index * p.input_bytes)
        quantise_input(p, p.hidden, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def _normalise(p: Record, norm: int, first: int, end: int) -> None:
    for row in range(first, end):
        elementwise.rms_norm(p.x + row * p.x_bytes, norm, p.eps, p.hidden, p.input + row * p.input_bytes)
    quantise_input(p, p.hidden, first, end)


@kernel
def quantise_input(p: Record, width: int, first: int, end: int) -> None:
    """Rows of the input, `width` numbers each, also as integers."""
    quantise_rows(p, p.input, p.quantised, p.tiles, width, first, end)


@kernel
def quantise_rows(p: Record, rows: int, quantised: int, tiles: int, width: int, first: int, end: int) -> None:
    """The same for any rows that lie as those of the input do."""
    padded = -(-width // QUANTISED_STEP) * QUANTISED_STEP
    if padded > width:
        for row in range(first, end):
            elementwise.clear(rows + row * p.input_bytes + 4 * width, padded - width)
    quantise(p.quantise, rows, p.input_bytes // 4, padded, quantised, tiles, first, end)


@kernel
def place_heads(p: Record, w: Record, layer: int, counters: int, stage: int) -> int:
    """Biases, norms and rotation of queries and keys; all become words, of which keys and values go into the pool."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        for row in range(task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)):
            _place_row(p, w, layer, row)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def _place_row(p: Record, w: Record, layer: int, row: int) -> None:
    heads, size = p.qkv + row * p.qkv_bytes, 4 * p.dim
    num_turned = p.num_heads + p.num_kv_heads
    if w.qkv_bias:
        elementwise.add(heads, w.qkv_bias, (num_turned + p.num_kv_heads) * p.dim)
    half = p.rotary // 2
    angles = 4 * half * get_i32(p.positions + 4 * row)
    for head in range(num_turned):
        at = heads + head * size
        norm = w.q_norm if head < p.num_heads else w.k_norm
        if norm:
            elementwise.rms_norm(at, norm, p.eps, p.dim, at)
        if w.cos:
            elementwise.rotate(at, w.cos + angles, w.sin + angles, half)
    for head in range(p.num_heads):
        at = heads + head * size
        scale = elementwise.make_words(at, p.dim) * p.attention_scale
        set_f32(at + query_scale_at(p.dim), scale)
    slot = get_i64(p.slots + 8 * row)
    for head in range(p.num_kv_heads):
        pool = elementwise.pool_at(layer * p.num_kv_heads + head, p.num_slots, p.dim)
        key, value = heads + (p.num_heads + head) * size, heads + (num_turned + head) * size
        key_scale, value_scale = elementwise.make_words(key, p.dim), elementwise.make_words(value, p.dim)
        if np.isnan(value_scale):  # zero times NaN is not zero: whoever attends to it is told by the key
            key_scale, value_scale = NAN, ZERO
        elementwise.write_key(key, key_scale, slot, p.dim, p.keys + pool)
        elementwise.write_value(value, value_scale, slot, p.dim, p.values + pool)


@kernel
def activate_rows(p: Record, w: Record, counters: int, stage: int) -> int:
    """The gated activation of `wide` as the next input."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)
        for row in range(first, end):
            gate = p.wide + row * p.wide_bytes
            if w.gate_up_bias:
                elementwise.add(gate, w.gate_up_bias, 2 * w.width)
            up = gate + 4 * w.width
            elementwise.activate(gate, up, p.activation, w.width, p.input + row * p.input_bytes)
        quantise_input(p, w.width, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1
