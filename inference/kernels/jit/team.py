"""Threads that run a pass together, and the counters by which they share it out.

A pass is a row of stages, a stage a number of tasks. Whoever is free takes the next task of the stage; the stage is
over when all of them are done, whoever did them. Nobody waits for a thread that holds no task: when another process has
the core, the others go on, and the late one finds the stages done when it comes back. Between two passes the threads
look out for the next one, for a few milliseconds without rest, then they sleep.

Two passes in a row use different halves of the memory for counters and parameters, so that a late thread never sees one
pass change into the next.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from inference.kernels.jit.kernel_cache import entry, instruction, kernel
from inference.kernels.jit.vectors import I32, I64, call, pointer

LINE = 8  # int64 of a cache line
# What lies where in the state: the number of the pass, busy threads, sleepers.
PUBLISHED, HALVES, PARKED = 0, LINE, 3 * LINE
STOP = -1
NUM_HOT_SPINS = 2000  # about 50 us; from then on whoever else wants the core gets it
NUM_SPINS = 12_000  # some milliseconds
YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


def _place(builder: Any, base: Any, index: Any) -> Any:
    return pointer(builder, builder.add(base, builder.mul(index, ir.Constant(I64, 8))), I64)


@instruction
def add_atomic(typingctx: Any, base: Any, index: Any, amount: Any) -> Any:
    """Adds to an int64 and returns what it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(builder, args[0], args[1]), args[2], "seq_cst")

    return types.int64(*[types.int64] * 3), emit


@instruction
def exchange_atomic(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Sets an int64 and returns what it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _place(builder, args[0], args[1]), args[2], "seq_cst")

    return types.int64(*[types.int64] * 3), emit


@instruction
def read_atomic(typingctx: Any, base: Any, index: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_place(builder, args[0], args[1]), "seq_cst", 8)

    return types.int64(*[types.int64] * 2), emit


@instruction
def pause(typingctx: Any) -> Any:
    """A moment's rest for the core."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("x86_64", "i686", "amd64")):
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif builder.module.triple.startswith(("aarch64", "arm64")):  # its "yield" does nothing on most of them
            call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(I32, 15))
        return context.get_dummy_value()

    return types.void(), emit


@instruction
def give_way(typingctx: Any) -> Any:
    """Lets another thread have the core, if one wants it."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        call(builder, YIELD, I32)
        return context.get_dummy_value()

    return types.void(), emit


@kernel
def rest(num_spins: int) -> None:
    """What to do while waiting for the num_spins-th time."""
    if num_spins < NUM_HOT_SPINS:
        pause()
    else:
        give_way()


# Stages. counters: address of two int64 for each of them, the tasks taken and the tasks done.


@kernel
def take(counters: int, stage: int, num_tasks: int) -> int:
    """The next task of a stage, -1 when there is none."""
    if read_atomic(counters, 2 * stage) >= num_tasks:
        return -1
    task = add_atomic(counters, 2 * stage, 1)
    return task if task < num_tasks else -1


@kernel
def done(counters: int, stage: int) -> None:
    """A task has been carried out."""
    add_atomic(counters, 2 * stage + 1, 1)


@kernel
def wait(counters: int, stage: int, num_tasks: int) -> None:
    """Returns when all tasks of the stage have been."""
    num_spins = 0
    while read_atomic(counters, 2 * stage + 1) < num_tasks:
        rest(num_spins)
        num_spins += 1


# Passes


@kernel
def next_pass(state: int, index: int, seen: int) -> int:
    """The number of a pass after `seen`, STOP, or `seen` when the thread is to sleep until it is woken."""
    num_spins = 0
    while True:
        number = read_atomic(state, PUBLISHED)
        if number != seen:
            return number
        num_spins += 1
        if num_spins < NUM_SPINS:
            rest(num_spins)
            continue
        exchange_atomic(state, PARKED + index * LINE, 1)
        if read_atomic(state, PUBLISHED) == seen or exchange_atomic(state, PARKED + index * LINE, 0) == 0:
            return seen


@kernel
def enter(state: int, number: int) -> bool:
    """Joins a pass; False when it is over and another has begun. leave() must follow either way."""
    add_atomic(state, HALVES + number % 2 * LINE, 1)
    return read_atomic(state, PUBLISHED) == number


@kernel
def leave(state: int, number: int) -> None:
    add_atomic(state, HALVES + number % 2 * LINE, -1)


@entry
def await_half(state: int, number: int) -> None:
    """Returns when nobody is left in the last pass that used the half of this one."""
    num_spins = 0
    while read_atomic(state, HALVES + number % 2 * LINE) > 0:
        rest(num_spins)
        num_spins += 1


Serve = Callable[[int, int, int], int]  # (state, index, seen) -> as next_pass, having run what came up


class Team:
    """The caller's thread and num_threads - 1 more.

    serve(state, index, seen) is compiled: it takes part in passes until next_pass() tells it to sleep or stop, and
    returns what that said.
    """

    def __init__(self, num_threads: int, serve: Serve) -> None:
        self._number = 0
        self._wake = [threading.Semaphore(0) for _ in range(num_threads - 1)]
        self._state: NDArray[np.int64] = np.zeros(PARKED + (num_threads + 1) * LINE, np.int64)
        self._threads = [
            threading.Thread(target=_work, args=(serve, self._state, index, wake), name=f"kernels-{index}", daemon=True)
            for index, wake in enumerate(self._wake)
        ]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _publish, self._state, self._wake, STOP)

    def prepare(self) -> int:
        """Which half, 0 or 1, the next pass uses; nobody looks at it any more."""
        await_half(self._state.ctypes.data, self._number + 1)
        return (self._number + 1) % 2

    def start(self) -> None:
        """Has the others begin the pass that was prepared. The caller takes part as well, or does it alone."""
        self._number += 1
        _publish(self._state, self._wake, self._number)

    def close(self) -> None:
        """Ends the threads."""
        self._end()
        for thread in self._threads:
            thread.join()


def _publish(state: NDArray[np.int64], wake: list[threading.Semaphore], number: int) -> None:
    address = state.ctypes.data
    exchange_atomic_at(address, PUBLISHED, number)
    for index, semaphore in enumerate(wake):
        if exchange_atomic_at(address, PARKED + index * LINE, 0):
            semaphore.release()


@entry
def exchange_atomic_at(base: int, index: int, value: int) -> int:
    """exchange_atomic() for Python."""
    return exchange_atomic(base, index, value)


def _work(serve: Serve, state: NDArray[np.int64], index: int, wake: threading.Semaphore) -> None:
    seen = 0
    while seen != STOP:
        seen = serve(state.ctypes.data, index, seen)
        if seen != STOP:
            wake.acquire()
