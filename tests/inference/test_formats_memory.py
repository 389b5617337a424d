"""Reading and loading a model takes little more memory than the model: measured as the system sees it, in a process of
its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from tests.conftest import ROOT
from tests.inference import tiny_models as tiny

WIDTH, LAYERS = 512, 12
ALLOWED = 1.3
SLACK_BYTES = 8 << 20  # what the interpreter itself takes in between

# Keeps a copy of every tensor, as a model does that lays its weights out anew. VmHWM is the peak of this process alone;
# ru_maxrss begins with that of its parent.
HEAD = """
import sys
import numpy as np
from inference.formats.model_file import open_model_file

def status(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024
"""
READING = """
model = open_model_file(sys.argv[1])
before = status("VmRSS")
kept = [np.array(model.tensor(name)) for name in model.tensor_names()]
print(before, status("VmHWM"), sum(array.nbytes for array in kept))
"""
# The size of a loaded model is what the process has grown by once it can run, and at most that of its parameters.
LOADING = """
from inference.model.registry import load_model

model_file = open_model_file(sys.argv[1])
before = status("VmRSS")
model = load_model(model_file, num_threads=2, kernel_cache=sys.argv[2] if len(sys.argv) > 2 else "")
print(before, status("VmHWM"), min(status("VmRSS") - before, 4 * model.num_parameters))
"""


def big_weights() -> dict[str, NDArray[np.float32]]:
    """Some fifty megabytes in float32."""
    rng = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(tiny.TOKENS), WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkvo"}
        shapes |= {f"{prefix}mlp.{part}_proj.weight": (WIDTH, WIDTH) for part in ("gate", "up", "down")}
        shapes |= {f"{prefix}{part}_layernorm.weight": (WIDTH,) for part in ("input", "post_attention")}
    shapes["model.norm.weight"] = (WIDTH,)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


SIZES = {
    "embedding_length": WIDTH,
    "feed_forward_length": WIDTH,
    "block_count": LAYERS,
    "attention.head_count_kv": tiny.HEADS,
    "rope.dimension_count": WIDTH // tiny.HEADS,
}
CONFIG = tiny.tiny_config() | {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": tiny.HEADS,
}


def write(path: Path, kind: str) -> Path:
    weights = big_weights()
    if kind.startswith("GGUF"):
        made = tiny.tiny_gguf(kind=GGMLQuantizationType[kind.split()[1]], tensors=weights)
        for key, size in SIZES.items():
            made.set(f"llama.{key}", tiny.U32, size)
        return made.write(path / "m.gguf")
    dtype = {"F32": np.float32, "F16": np.float16}[kind.split()[1]]
    return tiny.write_directory(path, {name: w.astype(dtype) for name, w in weights.items()}, config=CONFIG)


def measure(program: str, *arguments: Path) -> tuple[int, int, int]:
    """Bytes before, at the peak, and of the model."""
    command = [sys.executable, "-c", HEAD + program, *map(str, arguments)]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    before, peak, size = map(int, found.stdout.split())
    return before, peak, size


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")


@needs_proc
@pytest.mark.parametrize("kind", ["safetensors F32", "safetensors F16", "GGUF F32", "GGUF Q8_0", "GGUF Q4_1"])
def test_reading_a_model_takes_little_more_memory_than_the_model(tmp_path: Path, kind: str) -> None:
    before, peak, size = measure(READING, write(tmp_path, kind))
    assert size > 40 << 20
    assert peak - before <= ALLOWED * size + SLACK_BYTES


@needs_proc
@pytest.mark.model
def test_loading_the_default_model_takes_little_more_memory_than_it_keeps(model_path: Path) -> None:
    """Its embedding is a fifth of it: whoever needs as much again on the way is found out."""
    before, peak, size = measure(LOADING, model_path)
    assert size > 80 << 20
    assert peak - before <= ALLOWED * size


@needs_proc
@pytest.mark.slow
@pytest.mark.model
def test_the_first_load_which_compiles_takes_no_more_than_later_ones(model_path: Path, tmp_path: Path) -> None:
    """A compiler leaves more behind than this model weighs, in whatever process it runs."""
    before, peak, _ = measure(LOADING, model_path, tmp_path)
    _, _, size = measure(LOADING, model_path, tmp_path)
    assert peak - before <= ALLOWED * size
