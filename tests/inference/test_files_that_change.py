"""A model's files change under our hands: cut short, written over, removed; before they are read, meanwhile, or later.

In a process of its own: touching memory behind the end of a mapped file would end this one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inference.errors import ModelFileError
from inference.formats.file_bytes import FileBytes
from tests.conftest import ROOT
from tests.inference.gguf_families import write_gguf
from tests.inference.row_invariance import FIXTURES
from tests.inference.test_formats_gguf_parts import split

LLAMA = next(path for path in FIXTURES if path.name == "llama")
KINDS = ("safetensors", "GGUF", "split GGUF")
HOWS = ("emptied", "cut", "written over", "removed")
WHENS = ("before", "meanwhile", "later")

# For each case: loads the model, does something to one of its files, and notes what loading said or, if it was loaded,
# whether it still answers as before.
PROGRAM = """
import json, os, sys
import numpy as np
from inference.config import EngineConfig
from inference.engine.model_loader import load_opened
from inference.engine.opened_model import open_model
from inference.errors import ModelFileError
from inference.types import FinishedEvent, Request, SamplingParams

def change(file, how):
    size = os.path.getsize(file)
    if how == "written over":
        with open(file, "r+b") as target:
            target.write(bytes(size))
    elif how == "removed":
        os.remove(file)
    else:
        os.truncate(file, {"emptied": 0, "cut": size // 2}[how])

def answer(engine, name):
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    engine.add_request(Request(name, np.arange(40, dtype=np.int32) % 7, sampling))
    while True:
        for event in engine.step():
            if isinstance(event, FinishedEvent):
                return list(event.token_ids)

def outcome(path, file, how, when):
    left = [None]
    def on_progress(fraction):
        if when == "meanwhile" and fraction > 0.2 and left:
            left.pop()
            change(file, how)
    opened = open_model(path, EngineConfig(pool_tokens=128, kernels=sys.argv[1], num_threads=1))
    if when == "before":
        change(file, how)
    try:
        engine = load_opened(opened, on_progress=on_progress)
    except ModelFileError as error:
        return str(error)
    before = answer(engine, "before")
    engine.clear_cache()
    if when == "later":
        change(file, how)
    return before == answer(engine, "after")

print(json.dumps([outcome(*case) for case in json.loads(sys.argv[2])]))
"""


def model(folder: Path, kind: str) -> tuple[Path, Path]:
    """What is opened, and the file that holds the weights which are read last."""
    folder.mkdir()
    if kind == "safetensors":
        return (path := Path(shutil.copytree(LLAMA, folder / "llama"))), path / "model.safetensors"
    if kind == "GGUF":
        return (path := write_gguf(LLAMA, folder / "llama.gguf")), path
    parts = split(folder)
    return parts[0], parts[-1]


@pytest.mark.parametrize(("kernels", "whens"), [("numpy", WHENS), ("auto", ("meanwhile",))])
def test_files_that_change_are_refused_or_read_no_more(tmp_path: Path, kernels: str, whens: tuple[str, ...]) -> None:
    cases = [(kind, how, when) for kind in KINDS for how in HOWS for when in whens]
    files = [model(tmp_path / " ".join(case), case[0]) for case in cases]
    sizes = {case: file.stat().st_size for case, (_, file) in zip(cases, files, strict=True)}
    arguments = [(str(path), str(file), *case[1:]) for case, (path, file) in zip(cases, files, strict=True)]
    command = [sys.executable, "-c", PROGRAM, kernels, json.dumps(arguments)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    for case, outcome in zip(cases, json.loads(ran.stdout), strict=True):
        _, how, when = case
        size = sizes[case]
        if when == "later":
            assert outcome is True, case
        elif when == "meanwhile" and how in ("emptied", "cut"):
            left = {"emptied": 0, "cut": size // 2}[how]
            assert f"the file has {left} bytes now, it had {size}: cut short" in outcome, case
        else:
            assert "its files have changed since they were opened: ask for it again" in outcome, case


def test_bytes_are_those_of_the_file_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(200)))
    file = FileBytes(path)
    (tmp_path / "others").write_bytes(bytes(300))
    (tmp_path / "others").replace(path)
    assert file.read(10, 20).tolist() == list(range(10, 30))
    assert file.read(200, 0).shape == (0,)
    with pytest.raises(ModelFileError, match="the file has 200 bytes now"):
        file.read(190, 11)
    assert file.digest() != FileBytes(path).digest()
    assert not np.shares_memory(file.read(0, 5), file.read(0, 5))
