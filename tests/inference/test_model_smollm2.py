"""The default model: the tokens of the reference, and the same bits in chunks, batches and scattered blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.formats.model_file import open_model_file
from inference.model.base import Model
from inference.model.registry import load_model
from tests.inference.random_model import make_batch
from tests.inference.row_invariance import BLOCK_SIZE, logits_in_company, whole_logits

pytestmark = pytest.mark.model
CASES = json.loads((Path(__file__).parents[1] / "data" / "smollm2-greedy.json").read_text())["cases"]
CERTAIN_MARGIN = 0.05  # below it, rounding may turn the choice


@pytest.fixture(scope="module")
def model(model_path: Path) -> Model:
    return load_model(open_model_file(model_path), num_threads=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_greedy_tokens_are_those_of_the_reference(model: Model, case: dict[str, Any]) -> None:
    num_prompt = len(case["prompt_ids"])
    table = np.arange(-(-(num_prompt + len(case["greedy_ids"])) // BLOCK_SIZE), dtype=np.int32)
    kv = model.new_kv(len(table), BLOCK_SIZE)
    logits = model.forward(make_batch([(case["prompt_ids"], 0, table)], BLOCK_SIZE, [num_prompt - 1]), kv)[0]
    for token_id, expected in case["first_logits"]:
        assert logits[token_id] == pytest.approx(expected, abs=0.02)
    for index, (token_id, margin) in enumerate(zip(case["greedy_ids"], case["greedy_margins"], strict=True)):
        if margin < CERTAIN_MARGIN:
            break
        assert int(logits.argmax()) == token_id, f"token {index}"
        logits = model.forward(make_batch([([token_id], num_prompt + index, table)], BLOCK_SIZE, [0]), kv)[0]


@pytest.mark.parametrize("sizes", [[512], [64], [7, 1, 200, 3], [1, 40]], ids=str)
def test_bits_do_not_depend_on_chunks_company_or_blocks(model: Model, sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    tokens = rng.integers(0, model.config.vocab_size, 290)
    expected = whole_logits(model, tokens)
    np.testing.assert_array_equal(logits_in_company(model, tokens, sizes, rng, max_strangers=1), expected)
