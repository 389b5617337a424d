"""The tile instructions of AMX, carried out by a signal handler on CPUs that do not have them.

Such a CPU stops at a tile instruction with SIGILL. The handler reads the instruction, does to the thread's emulated
registers what Intel's manual says (Software Developer's Manual, volume 2), and lets the thread go on behind it. So the
machine code of the amx tier runs here as it is, thousands of times more slowly. What the CPU would refuse, a register
used before it is configured or with another shape, ends the process.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys
from dataclasses import replace
from functools import cache

import numpy as np
from numba import carray, cfunc, njit, types

from inference.kernels.jit.cpu import TILES, Target, Tier, available_tiers, host
from inference.kernels.jit.vectors import as_pointer, get_i32, get_i64, set_i64

NUM_TILES, TILE_BYTES, CONFIG_BYTES = 8, 1024, 64
SLOT_BYTES = CONFIG_BYTES + NUM_TILES * TILE_BYTES
NUM_SLOTS = 1 << 15  # a thread's is found by its number
GREGS_AT, RIP = 40, 16  # in ucontext_t of Linux on x86-64
SA_SIGINFO, SA_NODEFER = 4, 0x40000000


def can_emulate() -> bool:
    """Whether this is Linux on x86-64, where instructions and signals are as above; or has the instructions."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


if can_emulate():  # others may not have these functions
    _libc = ctypes.CDLL(None, use_errno=True)
    _gettid, _signal = _libc.gettid, _libc.signal
    _gettid.argtypes, _gettid.restype = [], ctypes.c_int
    _signal.argtypes, _signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

_slots = np.zeros(NUM_SLOTS * SLOT_BYTES + 64, np.uint8)  # pages come as they are touched
_counts = np.zeros(1, np.int64)  # of multiplications
SLOTS, COUNTS = int(_slots.ctypes.data), int(_counts.ctypes.data)
SIGILL = int(signal.SIGILL)
# The order of general registers in an instruction -> their place in the context of a signal.
_PLACES = (13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)
_SHIFTS = sum(place << (4 * number) for number, place in enumerate(_PLACES) if number < 8)
NONE, ZERO, LOAD, STORE, MULTIPLY, CONFIGURE, RELEASE = range(7)


@njit(error_model="numpy")
def byte(at):  # type: ignore[no-untyped-def]
    return get_i32(at) & 255


@njit(error_model="numpy")
def greg(context, number):  # type: ignore[no-untyped-def]
    """Address of a general register in the context."""
    place = number - 8 if number >= 8 else (_SHIFTS >> (4 * number)) & 15
    return context + GREGS_AT + 8 * place


@njit(error_model="numpy")
def operation(prefix, code, modrm):  # type: ignore[no-untyped-def]
    """prefix: pp of the VEX prefix: 0 none, 1 66, 2 F3, 3 F2."""
    is_register = modrm >> 6 == 3
    if code == 0x49:
        if prefix == 3 and is_register:
            return ZERO
        if prefix == 0:
            return RELEASE if is_register else CONFIGURE
    if code == 0x4B and not is_register:
        return LOAD if prefix == 3 else STORE if prefix == 2 else NONE
    if code == 0x5C and prefix == 2 and is_register:
        return MULTIPLY
    return NONE


@njit(error_model="numpy")
def rows_of(slot, tile):  # type: ignore[no-untyped-def]
    return byte(slot + 48 + tile)


@njit(error_model="numpy")
def width_of(slot, tile):  # type: ignore[no-untyped-def]
    return get_i32(slot + 16 + 2 * tile) & 0xFFFF


@njit(error_model="numpy")
def clear(at, size):  # type: ignore[no-untyped-def]
    for offset in range(0, size, 8):
        set_i64(at + offset, 0)


@njit(error_model="numpy")
def copy(source, target, size):  # type: ignore[no-untyped-def]
    a, b = carray(as_pointer(source), size, np.uint8), carray(as_pointer(target), size, np.uint8)
    for index in range(size):
        b[index] = a[index]


@njit(error_model="numpy")
def tile_at(slot, tile):  # type: ignore[no-untyped-def]
    return slot + CONFIG_BYTES + tile * TILE_BYTES


@njit(error_model="numpy")
def widened(bfloat16):  # type: ignore[no-untyped-def]
    return np.uint32(np.uint32(bfloat16) << 16).view(np.float32)


@njit(error_model="numpy")
def multiply(slot, target, left, right):  # type: ignore[no-untyped-def]
    """tdpbf16ps: target += left @ right, pairs of bfloat16 along k; False where shapes do not fit."""
    rows, columns, pairs = rows_of(slot, target), width_of(slot, target) // 4, width_of(slot, left) // 4
    if not (rows and columns and pairs) or rows_of(slot, left) != rows:
        return False
    if rows_of(slot, right) != pairs or width_of(slot, right) != 4 * columns:
        return False
    a = carray(as_pointer(tile_at(slot, left)), (16, 32), np.uint16)
    b = carray(as_pointer(tile_at(slot, right)), (16, 16, 2), np.uint16)
    c = carray(as_pointer(tile_at(slot, target)), (16, 16), np.float32)
    for row in range(rows):
        for column in range(columns):
            even, odd = np.float32(0), np.float32(0)
            for k in range(pairs):
                even += widened(a[row, 2 * k]) * widened(b[k, column, 0])
                odd += widened(a[row, 2 * k + 1]) * widened(b[k, column, 1])
            c[row, column] += even + odd
    set_i64(COUNTS, get_i64(COUNTS) + 1)  # may miss some when threads meet: it is for "more than none"
    return True


@njit(error_model="numpy")
def move(slot, tile, start, stride, is_load):  # type: ignore[no-untyped-def]
    rows, width = rows_of(slot, tile), width_of(slot, tile)
    if not rows or not width:
        return False
    place = tile_at(slot, tile)
    if is_load:
        clear(place, TILE_BYTES)
    for row in range(rows):
        if is_load:
            copy(start + row * stride, place + 64 * row, width)
        else:
            copy(place + 64 * row, start + row * stride, width)
    return True


@njit(error_model="numpy")
def emulate(context):  # type: ignore[no-untyped-def]
    """Carries out the instruction that the context stands at. False: it is none of ours, or is wrong."""
    rip = get_i64(context + GREGS_AT + 8 * RIP)
    if byte(rip) != 0xC4 or byte(rip + 1) & 31 != 2:
        return False
    high = ~byte(rip + 1) & 255  # R, X, B: the upper bits of the three register numbers
    payload, code, modrm = byte(rip + 2), byte(rip + 3), byte(rip + 4)
    register, rm, mode = modrm >> 3 & 7, modrm & 7, modrm >> 6
    what = operation(payload & 3, code, modrm)
    slot = SLOTS + (_gettid() % NUM_SLOTS) * SLOT_BYTES
    slot = (slot + 63) // 64 * 64
    length, start, stride = 5, 0, 0
    if mode != 3:
        base, no_base = rm + 8 * (high >> 5 & 1), False
        if rm == 4:
            sib = byte(rip + 5)
            length += 1
            index = (sib >> 3 & 7) + 8 * (high >> 6 & 1)
            if index != 4:
                stride = get_i64(greg(context, index)) << (sib >> 6)
            no_base = sib & 7 == 5 and mode == 0
            base = (sib & 7) + 8 * (high >> 5 & 1)
        elif rm == 5 and mode == 0:  # behind the instruction
            start, no_base = get_i32(rip + 5) + rip + 9, True
            length += 4
        if mode == 1:
            start += (byte(rip + length) ^ 128) - 128
            length += 1
        elif mode == 2 or (no_base and rm == 4):
            start += get_i32(rip + length)
            length += 4
        if not no_base:
            start += get_i64(greg(context, base))
    is_done = byte(slot) == 1 or what in (CONFIGURE, RELEASE)
    if not is_done:
        return False
    if what == CONFIGURE:
        copy(start, slot, CONFIG_BYTES)
        clear(slot + CONFIG_BYTES, NUM_TILES * TILE_BYTES)
        is_done = byte(slot) == 1
        for tile in range(NUM_TILES):
            is_done &= rows_of(slot, tile) <= 16 and width_of(slot, tile) <= 64 and width_of(slot, tile) % 4 == 0
    elif what == RELEASE:
        clear(slot, SLOT_BYTES)
    elif what == ZERO:
        is_done = rows_of(slot, register) > 0
        clear(tile_at(slot, register), TILE_BYTES)
    elif what in (LOAD, STORE):
        is_done = move(slot, register, start, stride, what == LOAD)
    elif what == MULTIPLY:
        is_done = multiply(slot, register, rm, ~(payload >> 3) & 15)
    else:
        is_done = False
    set_i64(context + GREGS_AT + 8 * RIP, rip + length)
    return is_done


def _handle(number: int, info: int, context: int) -> None:
    at = get_i64(context + GREGS_AT + 8 * RIP)
    if not emulate(context):
        set_i64(context + GREGS_AT + 8 * RIP, at)
        _signal(SIGILL, 0)  # the instruction again, and that is the end


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@cache
def _install() -> object:
    handler = cfunc(types.void(types.int32, types.int64, types.int64), error_model="numpy")(_handle)
    action = _Action(handler=handler.address, flags=SA_SIGINFO | SA_NODEFER)
    if _libc.sigaction(SIGILL, ctypes.byref(action), None):
        raise OSError(ctypes.get_errno(), "sigaction")
    return handler


@cache
def amx_tier() -> tuple[Tier, Target]:
    """The amx tier of this CPU; where it has none, its best tier with tiles that are emulated from now on."""
    best = available_tiers()[0]
    if is_real():
        return best, host()
    _install()
    features = ",".join((host().features, *(f"+{name}" for name in TILES)))
    return replace(best, name="amx", has_tiles=True), Target(host().cpu, features)


def is_real() -> bool:
    """Whether this CPU has the instructions."""
    return available_tiers()[0].has_tiles


def num_emulated() -> int:
    """How many tile multiplications were emulated; some may be missing when threads met."""
    return int(_counts[0])
