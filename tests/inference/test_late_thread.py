"""A thread that comes to the stages of a pass when the others are through finds nothing to do, and waits for nobody.

It happens when another process has its core. Here the late one is the caller itself, which walks through a pass again
after its end, with the counters as the pass has left them.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from inference.formats.model_file import open_model_file
from inference.kernels.jit.forward import take_part
from inference.model.compiled import CompiledDecoder
from inference.model.registry import load_model
from tests.inference.random_model import make_batch
from tests.inference.row_invariance import BLOCK_SIZE, FIXTURES
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "qwen3_moe-some-dense"])
def test_a_thread_that_comes_when_all_is_done_takes_no_task(name: str) -> None:
    """Few tokens choose another number of experts in each layer: what one layer has to do is not what another has."""
    model = load_model(open_model_file(next(path for path in FIXTURES if path.name == name)), num_threads=1)
    assert isinstance(model, CompiledDecoder)
    runner, kv = model._runner, model.new_kv(1, BLOCK_SIZE)
    for seed in range(40):
        tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, 2)
        model.forward(make_batch([(tokens, 0, np.arange(1))], BLOCK_SIZE), kv)
        half, (code, passes, layers) = runner._team._number % 2, runner._tables
        counters = runner._counters_address + half * runner._counters[0].nbytes
        num_done = runner._counters[half, 1::2].copy()
        late = threading.Thread(target=take_part, args=(code, passes, half, layers, counters, 0), daemon=True)
        late.start()
        late.join(PATIENCE_S)
        assert not late.is_alive(), "it waits for tasks that nobody has"
        np.testing.assert_array_equal(runner._counters[half, 1::2], num_done)
