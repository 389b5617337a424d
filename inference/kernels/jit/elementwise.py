"""What happens to one token between the matrix products: norm, rotation, gated activation, residual, choice of experts.

Rows are float32 at plain addresses, n numbers of them; nothing behind the n-th is read or written. Sums are taken in 16
lanes, ascending, then as a tree of halvings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inference.kernels.jit.kernel_cache import kernel
from inference.kernels.jit.vectors import (
    LANE_BYTES,
    NUM_LANES,
    exp,
    get_f32,
    get_i16,
    get_i32,
    load_first,
    set_f32,
    set_i16,
    set_i32,
    splat,
    store_first,
    store_words,
    sum_lanes,
    widest,
    widest_lane,
)

ZERO, ONE = np.float32(0), np.float32(1)
# gelu(x) = x / (1 + exp(x (1 + GELU_CUBIC x x) GELU_FACTOR)), the approximation by tanh. Source: arXiv:1606.08415.
GELU_CUBIC, GELU_FACTOR = np.float32(0.044715), np.float32(-2 * (2 / math.pi) ** 0.5)
SILU, GELU = 0, 1  # as in `activate`
MINUS_INFINITY, INFINITY, NAN = np.float32(-np.inf), np.float32(np.inf), np.float32(np.nan)
# Of int16 in attention: the products of 64 such numbers add up within int32.
MAX_WORD = np.float32(5792)
LEAST = np.float32(1e-30)  # numbers of which the largest magnitude is below count as zeros


@kernel
def padded(n: int) -> int:
    """n, or the next number that fills whole vectors."""
    return -(-n // NUM_LANES) * NUM_LANES


@kernel
def group_bytes(dim: int) -> int:
    """Of a group of 16 keys or values in the pool: their scales, then their numbers."""
    return LANE_BYTES + 2 * NUM_LANES * padded(dim)


@kernel
def pool_at(index: int, num_slots: int, dim: int) -> int:
    """Where the index-th pool, of one layer and kv head, begins among those of keys, or of values."""
    return index * (num_slots // NUM_LANES) * group_bytes(dim)


@kernel
def rms_norm(x: int, weight: int, eps: float, n: int, out: int) -> None:
    """x * (1 / root of the mean square) * weight; out may be x. Source: arXiv:1910.07467."""
    total = splat(ZERO)
    for at in range(0, n, NUM_LANES):
        part = load_first(x + 4 * at, n - at)
        total = total + part * part
    factor = splat(ONE / np.sqrt(sum_lanes(total) / np.float32(n) + eps))
    for at in range(0, n, NUM_LANES):
        part = load_first(x + 4 * at, n - at) * factor * load_first(weight + 4 * at, n - at)
        store_first(out + 4 * at, part, n - at)


@kernel
def add(x: int, added: int, n: int) -> None:
    """x += added."""
    for at in range(0, n, NUM_LANES):
        store_first(x + 4 * at, load_first(x + 4 * at, n - at) + load_first(added + 4 * at, n - at), n - at)


@kernel
def add_scaled(x: int, added: int, factor: float, n: int) -> None:
    """x += added * factor."""
    times = splat(factor)
    for at in range(0, n, NUM_LANES):
        store_first(x + 4 * at, load_first(x + 4 * at, n - at) + load_first(added + 4 * at, n - at) * times, n - at)


@kernel
def scale(x: int, factor: float, n: int) -> None:
    """x *= factor."""
    times = splat(factor)
    for at in range(0, n, NUM_LANES):
        store_first(x + 4 * at, load_first(x + 4 * at, n - at) * times, n - at)


@kernel
def copy(x: int, n: int, out: int) -> None:
    for at in range(0, n, NUM_LANES):
        store_first(out + 4 * at, load_first(x + 4 * at, n - at), n - at)


@kernel
def clear(x: int, n: int) -> None:
    zero = splat(ZERO)
    for at in range(0, n, NUM_LANES):
        store_first(x + 4 * at, zero, n - at)


@kernel
def rotate(head: int, cos: int, sin: int, half: int) -> None:
    """Rotary embedding of the components 0 .. 2 half - 1, in pairs (i, i + half). Source: arXiv:2104.09864."""
    for at in range(0, half, NUM_LANES):
        low, high = load_first(head + 4 * at, half - at), load_first(head + 4 * (half + at), half - at)
        c, s = load_first(cos + 4 * at, half - at), load_first(sin + 4 * at, half - at)
        store_first(head + 4 * at, low * c - high * s, half - at)
        store_first(head + 4 * (half + at), high * c + low * s, half - at)


@kernel
def activate(gate: int, up: int, kind: int, n: int, out: int) -> None:
    """silu(gate) * up, or gelu(gate) * up; out may be gate."""
    one = splat(ONE)
    for at in range(0, n, NUM_LANES):
        x = load_first(gate + 4 * at, n - at)
        if kind == SILU:
            exponent = splat(ZERO) - x
        else:
            exponent = (x * x * splat(GELU_CUBIC) + one) * x * splat(GELU_FACTOR)
        store_first(out + 4 * at, x / (exp(exponent) + one) * load_first(up + 4 * at, n - at), n - at)


@kernel
def word_factor(largest: float) -> Any:
    """What numbers of that largest magnitude are multiplied by to become words."""
    return MAX_WORD / largest if LEAST <= largest < INFINITY else ZERO


@kernel
def word_scale(largest: float) -> Any:
    """What words are multiplied by to become numbers again; NaN if those are not all finite."""
    if largest < LEAST:
        return ZERO
    return largest / MAX_WORD if largest < INFINITY else NAN


@kernel
def make_words(x: int, n: int) -> Any:
    """n numbers become int16 in their place, an even number of them, the last one 0. Returns their scale."""
    top = splat(ZERO)
    for at in range(0, n, NUM_LANES):
        top = widest(top, load_first(x + 4 * at, n - at))
    largest = widest_lane(top)
    factor = word_factor(largest)
    for at in range(0, n, NUM_LANES):
        store_words(x + 2 * at, load_first(x + 4 * at, n - at), factor, n - at)
    if n % 2:
        set_i16(x + 2 * n, 0)
    return word_scale(largest)


@kernel
def write_key(words: int, scale: float, slot: int, dim: int, pool: int) -> None:
    """A key (D) int16 into the pool of one layer and head (storage.py)."""
    group, key = pool + slot // NUM_LANES * group_bytes(dim), slot % NUM_LANES
    set_f32(group + 4 * key, scale)
    for pair in range((dim + 1) // 2):
        set_i32(group + LANE_BYTES * (1 + pair) + 4 * key, get_i32(words + 4 * pair))


@kernel
def write_value(words: int, scale: float, slot: int, dim: int, pool: int) -> None:
    """A value (D) int16 likewise."""
    group, key = pool + slot // NUM_LANES * group_bytes(dim), slot % NUM_LANES
    set_f32(group + 4 * key, scale)
    at = group + LANE_BYTES + key // 2 * 4 * padded(dim) + 2 * (key % 2)
    for d in range(dim):
        set_i16(at + 4 * d, get_i16(words + 2 * d))


@kernel
def read_key(pool: int, slot: int, dim: int, words: int) -> float:
    """What write_key() has been given, of an even dim; returns the scale."""
    group, key = pool + slot // NUM_LANES * group_bytes(dim), slot % NUM_LANES
    for pair in range(dim // 2):
        set_i32(words + 4 * pair, get_i32(group + LANE_BYTES * (1 + pair) + 4 * key))
    return get_f32(group + 4 * key)


@kernel
def read_value(pool: int, slot: int, dim: int, words: int) -> float:
    """What write_value() has been given; returns the scale."""
    group, key = pool + slot // NUM_LANES * group_bytes(dim), slot % NUM_LANES
    at = group + LANE_BYTES + key // 2 * 4 * padded(dim) + 2 * (key % 2)
    for d in range(dim):
        set_i16(words + 2 * d, get_i16(at + 4 * d))
    return get_f32(group + 4 * key)


@kernel
def choose_experts(
    scores: int, num_experts: int, num_chosen: int, is_normalised: bool, odds: int, chosen: int, shares: int
) -> None:
    """Which experts a token goes to, ascending (int32), and their shares (f32), by softmax of the scores.

    Of equal scores the first one wins; with a NaN among them all shares are NaN. The shares are of all experts, or of
    the chosen ones if is_normalised. odds: room for as many numbers as scores.
    """
    top = get_f32(scores)
    for index in range(1, num_experts):
        score = get_f32(scores + 4 * index)
        if score > top or np.isnan(score):  # max() would overlook NaN, and its expert as well
            top = score
    for at in range(0, num_experts, NUM_LANES):
        part = load_first(scores + 4 * at, num_experts - at)
        store_first(odds + 4 * at, exp(part - splat(top)), num_experts - at)
    for count in range(num_chosen):
        which = _best_other(scores, num_experts, chosen, count)
        rank = count
        while rank > 0 and get_i32(chosen + 4 * (rank - 1)) > which:
            set_i32(chosen + 4 * rank, get_i32(chosen + 4 * (rank - 1)))
            rank -= 1
        set_i32(chosen + 4 * rank, which)
    for rank in range(num_chosen):
        set_f32(shares + 4 * rank, get_f32(odds + 4 * get_i32(chosen + 4 * rank)))
    whole, length = (shares, num_chosen) if is_normalised else (odds, num_experts)
    total = splat(ZERO)
    for at in range(0, length, NUM_LANES):
        total = total + load_first(whole + 4 * at, length - at)
    times = ONE / sum_lanes(total)
    for rank in range(num_chosen):
        set_f32(shares + 4 * rank, get_f32(shares + 4 * rank) * times)


@kernel
def _best_other(scores: int, num_experts: int, chosen: int, count: int) -> int:
    """The expert of the highest score that is not among the first `count` of the chosen."""
    best, which = MINUS_INFINITY, 0
    for index in range(num_experts):
        is_free = True
        for rank in range(count):
            is_free = is_free and get_i32(chosen + 4 * rank) != index
        if is_free and get_f32(scores + 4 * index) > best:
            best, which = get_f32(scores + 4 * index), index
    return which
