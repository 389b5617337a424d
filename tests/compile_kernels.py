"""Compile what the default model runs, before all workers of a test run do so: `python -m tests.compile_kernels`."""

from __future__ import annotations

from inference.formats.model_file import open_model_file
from inference.model.registry import load_model
from tests.conftest import DEFAULT_MODEL
from tests.shared_kernels import KERNELS

if __name__ == "__main__":
    load_model(open_model_file(DEFAULT_MODEL), kernel_cache=str(KERNELS))
