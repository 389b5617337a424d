"""One pass of a decoder: every thread of the team walks through all layers, stage by stage, without Python between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba import types
from numba.np.numpy_support import carray, from_dtype

from inference.config import MAX_LAYERS
from inference.kernels.jit import experts
from inference.kernels.jit.attending import attend
from inference.kernels.jit.attention import attend_chunk
from inference.kernels.jit.kernel_cache import compiled_function, entry, kernel
from inference.kernels.jit.products import product
from inference.kernels.jit.records import LAYER, PASS, Record
from inference.kernels.jit.stages import (
    activate_rows,
    add_rows,
    embed_rows,
    gather_wanted,
    norm_rows,
    norm_wanted,
    place_heads,
)
from inference.kernels.jit.team import STOP, enter, leave, next_pass
from inference.kernels.jit.vectors import as_pointer, call_code

_codes: list[Any] = []  # keeps compiled code alive
STAGES_PER_LAYER, OTHER_STAGES = 15, 6


@kernel
def run_pass(passes: Record, half: int, layers: Record, counters: int, thread: int) -> None:
    """The pass passes[2 * half]: K and V of its tokens into the pool, the wanted logits out. counters: of its stages.

    What follows in the last layer once K and V are there concerns the wanted rows only: passes[2 * half + 1] is a pass
    of these.
    """
    p = passes[2 * half]
    stage = embed_rows(p, counters, 0)
    stage = norm_rows(p, layers[0].norm, counters, stage)
    for layer in range(p.num_layers):
        w = layers[layer]
        stage = product(p, w.qkv, w.num_qkv, p.num_tokens, p.qkv, p.qkv_bytes, thread, counters, stage)
        stage = place_heads(p, w, layer, counters, stage)
        if p.has_tail and layer == p.num_layers - 1:
            stage = gather_wanted(p, counters, stage)
            p = passes[2 * half + 1]
            if p.num_tokens == 0:
                return
        num_tokens = p.num_tokens
        stage = attend(p, w, layer, thread, counters, stage)
        stage = product(p, w.output, w.num_output, num_tokens, p.wide, p.wide_bytes, thread, counters, stage)
        stage = add_rows(p, w.output_bias, w.post_norm, w.ff_norm, counters, stage)
        if w.num_experts:
            stage = product(p, w.router, w.num_router, num_tokens, p.scores, p.scores_bytes, thread, counters, stage)
            stage = experts.feed_forward(p, w, thread, counters, stage)
        else:
            stage = product(p, w.gate_up, w.num_gate_up, num_tokens, p.wide, p.wide_bytes, thread, counters, stage)
            stage = activate_rows(p, w, counters, stage)
            stage = product(p, w.down, w.num_down, num_tokens, p.wide, p.wide_bytes, thread, counters, stage)
        following = layers[layer + 1].norm if layer + 1 < p.num_layers else 0
        stage = add_rows(p, w.down_bias, w.ff_post_norm, following, counters, stage)
    if p.num_wanted:
        stage = norm_wanted(p, counters, stage)
        product(p, p.head, p.num_head, p.num_wanted, p.logits, 4 * p.vocab, thread, counters, stage)


def _pass_at(passes: int, half: int, layers: int, counters: int, thread: int) -> None:
    """run_pass() for the tables at two addresses."""
    run_pass(carray(as_pointer(passes), 4, PASS), half, carray(as_pointer(layers), MAX_LAYERS, LAYER), counters, thread)


def compile_parts() -> Iterator[float]:
    """Compiles what a pass consists of, piece by piece, and says each time how far it is, 0 to 1.

    A quarter of a minute or more, in which a person wants to see that something is going on. compile_pass() uses it.
    """
    p, w, i = from_dtype(PASS), from_dtype(LAYER), types.int64
    parts: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (attend_chunk, (i,) * 13),
        (attend, (p, w, i, i, i, i)),
        (product, (p, *(i,) * 8)),
        (place_heads, (p, w, i, i, i)),
        (add_rows, (p, *(i,) * 5)),
        (activate_rows, (p, w, i, i)),
        (experts.feed_forward, (p, w, i, i, i)),
    )
    for index, (function, signature) in enumerate(parts):
        function.compile(signature)
        yield (index + 1) / (len(parts) + 1)


def compile_pass() -> int:
    """Where the machine code of _pass_at() lies, which stays as long as the process. Seconds, or less from a cache."""
    code = compiled_function(types.void(*[types.int64] * 5), _pass_at)
    _codes.append(code)
    return int(code.address)


@entry
def take_part(code: int, passes: int, half: int, layers: int, counters: int, thread: int) -> None:
    """One thread's share of a pass; `code` is where the machine code of _pass_at() lies."""
    call_code(code, passes, half, layers, counters, thread)


@entry
def serve(
    state: int, index: int, seen: int, code: int, passes: int, layers: int, counters: int, counters_bytes: int
) -> int:
    """Takes part in passes until there is none for a while. See team.Serve."""
    while True:
        number = next_pass(state, index, seen)
        if number in (seen, STOP):
            return number
        seen = number
        if enter(state, number):
            half = number % 2
            call_code(code, passes, half, layers, counters + half * counters_bytes, index + 1)
        leave(state, number)
