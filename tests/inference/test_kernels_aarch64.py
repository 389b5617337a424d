"""On a 64-bit ARM the kernels round where the oracle does, and multiply integers by the instructions made for it.

Read from what LLVM emits for that CPU, since none is here to run it on; ARCHITECTURE (Kernels) says what did run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

FUSED = re.compile(r"\s(fn?m(la|ls|add|sub)|fml[as]l2?)\s")
# 16 rows by 32 k for one token.
NUM_PRODUCTS = 16 * 32
PRODUCTS_EACH = 4


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    program = [sys.executable, "-m", "tests.inference.aarch64_assembly"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def loop_of(text: str, function: str) -> list[str]:
    """Instructions of the longest loop without a branch in it."""
    body = re.split(rf"^{function}:$", text, flags=re.MULTILINE)[1].split(".Lfunc_end")[0]
    blocks = re.split(r"^(\.L\w+):.*$", body, flags=re.MULTILINE)
    loops = []
    for label, block in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = [line.strip() for line in block.splitlines() if line.startswith("\t") and line[1] != "."]
        if any(line.startswith("b") and line.endswith(label) for line in lines):
            loops.append(lines)
    return max(loops, key=len)


def test_nothing_is_fused_that_is_rounded_twice_elsewhere(texts: dict[str, str]) -> None:
    fused = {name for name, text in texts.items() if FUSED.search(text)}
    assert fused == {"fusible"}, "LLVM would, if it were allowed to"
    assert all(len(re.findall(r"\sfmul\s", texts[name])) > 3 for name in texts.keys() - fused)


def test_words_are_multiplied_and_added_up_four_at_a_time(texts: dict[str, str]) -> None:
    loop = loop_of(texts["u4"], "linear_1x1_first")
    products = [line for line in loop if re.match(r"sm(la|ul)l2?\s", line)]
    assert len(products) * PRODUCTS_EACH == NUM_PRODUCTS
    assert not [line for line in loop if re.match(r"(mla|mul|dup|xtn)\s+v", line)]
    assert len(loop) < 330


def test_sums_of_many_tokens_stay_in_registers(texts: dict[str, str]) -> None:
    loop = loop_of(texts["u4"], "linear_unpacked")
    assert len([line for line in loop if line.startswith("smlal")]) > 4 * 120
    assert not [line for line in loop if "[sp" in line]


def test_float16_is_converted_by_the_cpu(texts: dict[str, str]) -> None:
    assert re.search(r"\sfcvtl2?\s", texts["f16"])
    assert "__extendhfsf2" not in texts["f16"]
