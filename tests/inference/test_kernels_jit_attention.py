"""What the compiled attention asks memory for ahead of time: keys that exist, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from inference.kernels.jit.attention import FOLLOWING_AT, NUM_GROUPS, expect
from inference.kernels.jit.attention_tiles import CHUNK
from inference.kernels.kv_storage import KEY_GROUP

DIM = 64
GROUP_BYTES = 2 * KEY_GROUP * DIM


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("context", [1, 16, 17, 255, 256, 257, 500, 512, 513])
def test_the_next_keys_are_those_of_the_context(context: int, block_size: int) -> None:
    blocks = np.random.default_rng(context).permutation(1000)[: -(-context // block_size)]
    table = np.concatenate([blocks, np.full(64, 1 << 20)]).astype(np.int32)  # behind it, what is not the context's
    scratch = np.zeros(FOLLOWING_AT + 8 * NUM_GROUPS, np.uint8)
    last = (context - 1) // KEY_GROUP
    for chunk in range(last * KEY_GROUP // CHUNK + 1):
        expect(chunk, context, table.ctypes.data, block_size, 4096, DIM, scratch.ctypes.data)
        positions = KEY_GROUP * np.minimum(chunk * NUM_GROUPS + np.arange(NUM_GROUPS), last)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        asked = scratch[FOLLOWING_AT:].view(np.int64)
        np.testing.assert_array_equal(asked, 4096 + slots // KEY_GROUP * GROUP_BYTES)
