"""The BLAS library behind NumPy: how many threads it uses, and which of its kernels runs on this CPU.

The number of threads is a property of the process. Whoever calls a model (one thread, the engine's) owns it.
"""

from __future__ import annotations

import os

from threadpoolctl import ThreadpoolController


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Blas:
    """A handle on NumPy's BLAS. Setting the thread count costs about a microsecond."""

    def __init__(self) -> None:
        self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers

    def set_num_threads(self, num_threads: int) -> None:
        """Every product from now on uses so many threads. A library that threadpoolctl cannot steer is left alone:
        the call plan is probed, so its bits are checked all the same."""
        for library in self._libraries:
            library.set_num_threads(num_threads)

    @property
    def core(self) -> str:
        """The kernel family in use, for people: "Haswell", "SkylakeX"."""
        names = [str(library.info().get("architecture") or library.internal_api) for library in self._libraries]
        return names[0] if names else "unknown"
