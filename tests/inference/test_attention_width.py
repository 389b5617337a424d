"""Attention has tiles of two widths and four ways to add products; a CPU has one of each. Here the others run.

The text of the kernels is copied and changed; the copy keeps its compiled code apart by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inference.kernels.jit import attention_tiles
from inference.kernels.jit.cpu import available_tiers
from tests.conftest import ROOT

CHILD = """
import sys
import numpy as np
from inference.formats.model_file import open_model_file
from inference.kernels.jit import attention_tiles
from inference.model.registry import load_model
from tests.inference.q15_model import oracle_logits
from tests.inference.random_model import RandomModelFile, small_config
from tests.inference.row_invariance import FIXTURES, check, whole_logits

assert str(attention_tiles.IS_WIDE) == sys.argv[1]
shapes = [dict(heads=5, kv_heads=5, head_dim=10, hidden=72), dict(heads=4, kv_heads=2, head_dim=40),
          dict(heads=14, kv_heads=2, head_dim=16), dict(heads=2, kv_heads=1, head_dim=256)]
files = [RandomModelFile(small_config(**shape)) for shape in shapes]
files += [open_model_file(path) for path in FIXTURES if "gemma" in path.name or "mistral" in path.name]
assert len(files) > len(shapes)
ids = np.random.default_rng(0).integers(0, 96, 600)
for file in files:
    model = load_model(file, num_threads=2)
    np.testing.assert_array_equal(whole_logits(model, ids), oracle_logits(file, ids))
    check(model, 530, [1, 40, 3, 200], seed=0)
    print("equal", flush=True)
"""


WAYS = {tier.adds: tier.lanes for tier in available_tiers() if tier.adds} | {"": 16}


@pytest.mark.slow
@pytest.mark.parametrize("adds", WAYS)
def test_tiles_of_other_cpus_have_the_bits_of_the_oracle(adds: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "inference", tmp_path / "inference", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "inference" / "kernels" / "jit"
    text = folder / "attention_tiles.py"
    lines = text.read_text().splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("IS_WIDE = "))
    lines[at] = f"IS_WIDE = {not attention_tiles.IS_WIDE}"
    text.write_text("\n".join(lines) + "\n")
    with (folder / "vectors.py").open("a") as vectors:
        vectors.write(f"\n\nADDS, ADDED_LANES = {adds!r}, {WAYS[adds]}\n")
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(not attention_tiles.IS_WIDE)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
