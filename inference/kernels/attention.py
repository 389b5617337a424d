"""Causal attention over block tables, bit-identical whatever the chunk, the batch or the blocks.

Keys are taken in tiles of 256, aligned to absolute positions and always whole: what lies beyond the context is zero and
masked to minus infinity. So the products of a tile have one shape, whatever the length of the context, and a masked key
contributes exactly zero. The softmax subtracts the maximum over all visible keys, which is exact in any order, and adds
up inside a tile as a tree and over the tiles in order; a tile that is masked as a whole would add zero and is skipped.
A sliding window is one more mask by absolute position, so that it changes nothing of this.

A stretch of the context that lies in consecutive rows of the pool is read in place, the rest is gathered; the last,
incomplete tile always is, into a zeroed copy: rows beyond the context may hold anything, NaN included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inference.kernels.call_plan import Lanes, MatmulShape, split_columns
from inference.kernels.kv_storage import KVStorage
from inference.kernels.reference import sum_rows
from inference.kernels.scratch import Scratch
from inference.types import F32, I32, I64

TILE = 256  # keys
MAX_SCORES = 1 << 20  # elements of one batch of scores: 4 MB, so that the passes over them stay in the cache


def attention_shapes(head_dim: int) -> tuple[MatmulShape, MatmulShape]:
    """The two products of a tile, for the call plan: keys (TILE, D) @ q, and values (TILE, D) transposed @ weights."""
    return MatmulShape(TILE, head_dim), MatmulShape(head_dim, TILE, is_transposed=True)


@dataclass(frozen=True, slots=True)
class TileRun:
    """Tiles first_tile .. first_tile + num_tiles - 1 of a context, in pool rows from `row` on; -1: to be gathered."""

    first_tile: int
    num_tiles: int
    row: int

    def is_followed_by(self, row: int) -> bool:
        """Whether a next tile at that row continues the run."""
        return row == (self.row + self.num_tiles * TILE if self.row >= 0 else -1)


@dataclass(frozen=True, slots=True)
class Context:
    """Where the first S positions of a sequence lie in the pool."""

    slots: I64  # (S,)
    runs: tuple[TileRun, ...]

    @classmethod
    def of(cls, block_table: I32, context_len: int, block_size: int) -> Context:
        """That the table covers the context is the scheduler's promise."""
        assert len(block_table) * block_size >= context_len > 0
        first_slots = block_table.astype(np.int64)[:, None] * block_size
        slots = (first_slots + np.arange(block_size)).reshape(-1)[:context_len]
        runs: list[TileRun] = []
        for tile, row in enumerate(_tile_rows(slots)):
            if runs and runs[-1].is_followed_by(row):
                runs[-1] = TileRun(runs[-1].first_tile, runs[-1].num_tiles + 1, runs[-1].row)
            else:
                runs.append(TileRun(tile, 1, row))
        return cls(slots, tuple(runs))

    def read(self, kv: KVStorage, layer: int, tiles: range, scratch: Scratch) -> list[tuple[int, F32, F32]]:
        """(first tile, keys, values) of stretches of the wanted tiles, each (K, n, TILE, D): views or scratch."""
        parts = []
        for index, run in enumerate(self.runs):
            first, end = max(run.first_tile, tiles.start), min(run.first_tile + run.num_tiles, tiles.stop)
            if first >= end:
                continue
            keys, values = (
                self._tiles(pool[layer], run, range(first, end), scratch, f"{name}{index}")
                for name, pool in (("keys", kv.k), ("values", kv.v))
            )
            parts.append((first, keys, values))
        return parts

    def _tiles(self, pool: F32, run: TileRun, tiles: range, scratch: Scratch, name: str) -> F32:
        """Tiles (K, n, TILE, D) of one layer's pool (K, N * P, D)."""
        K, _, D = pool.shape
        count = len(tiles)
        if run.row >= 0:
            row = run.row + (tiles.start - run.first_tile) * TILE
            return pool[:, row : row + count * TILE].reshape(K, count, TILE, D)
        slots = self.slots[tiles.start * TILE : tiles.stop * TILE]
        gathered = scratch.take(name, K, count * TILE, D)
        for head in range(K):
            np.take(pool[head], slots, axis=0, out=gathered[head, : len(slots)], mode="clip")
        gathered[:, len(slots) :] = 0
        return gathered.reshape(K, count, TILE, D)


def _tile_rows(slots: I64) -> list[int]:
    """For each tile of a context, the pool row it starts at if it is whole and its rows are consecutive, else -1."""
    firsts = np.arange(0, len(slots), TILE)
    jumps = np.flatnonzero(np.diff(slots) != 1) + 1  # positions that do not follow their predecessor in the pool
    num_jumps = np.searchsorted(jumps, firsts + TILE) - np.searchsorted(jumps, firsts, side="right")
    is_in_place = (firsts + TILE <= len(slots)) & (num_jumps == 0)
    rows: list[int] = np.where(is_in_place, slots[firsts], -1).tolist()
    return rows


@dataclass(frozen=True, slots=True)
class Piece:
    """One call's worth of query columns: start .. start + count - 1 of a job, put into `lanes`.

    tiles: those of which any column sees something; masks: (tile, bias (TILE, W)) for those of them that are not
    visible to all columns as a whole.
    """

    start: int
    count: int
    lanes: Lanes
    tiles: range
    masks: tuple[tuple[int, F32], ...]


@dataclass(frozen=True, slots=True)
class AttentionJob:
    """The consecutive tokens of one sequence that lie in one block of columns, and how their attention is computed.

    A query column is a (token, head of the group) pair, the heads of a token side by side.
    """

    first_column: int  # of the block
    num_tokens: int
    context: Context
    pieces: tuple[Piece, ...]

    @classmethod
    def of(
        cls,
        first_column: int,
        positions: I32,
        context: Context,
        group: int,
        options: Sequence[Lanes],
        window: int = 0,
    ) -> AttentionJob:
        """positions (T,) of the tokens, ascending; `group` query heads share a kv head. Of `window` positions a token
        sees the newest, its own included; 0: all."""
        columns = np.repeat(positions, group)
        pieces = [
            _piece(start, columns[start : start + count], lanes, window)
            for start, count, lanes in split_columns(options, len(columns))
        ]
        return cls(first_column, len(positions), context, tuple(pieces))


def _piece(start: int, positions: I32, lanes: Lanes, window: int) -> Piece:
    """The piece for query columns at the given positions, with its masks."""
    oldest, newest = int(positions[0]), int(positions[-1])
    first_seen = positions - window + 1 if window else np.zeros_like(positions)
    tiles = range(max(0, int(first_seen[0])) // TILE, newest // TILE + 1)
    masks = []
    for tile in tiles:
        if (tile + 1) * TILE <= oldest + 1 and tile * TILE >= first_seen[-1]:
            continue
        keys = np.arange(tile * TILE, (tile + 1) * TILE)
        bias = np.zeros((TILE, lanes.width), np.float32)
        is_hidden = (keys[:, None] > positions) | (keys[:, None] < first_seen)
        bias[:, lanes.first : lanes.first + len(positions)][is_hidden] = -np.inf
        masks.append((tile, bias))
    return Piece(start, len(positions), lanes, tiles, tuple(masks))


def attend(job: AttentionJob, q: F32, kv: KVStorage, layer: int, scale: float, scratch: Scratch, out: F32) -> None:
    """Attention of a job's tokens over their context. q, out (K, G, D, T): heads by kv head, one token per column;
    scores are multiplied by scale."""
    K, G, D, T = q.shape
    queries = scratch.take("queries", K, D, T, G)
    np.multiply(q.transpose(0, 2, 3, 1), np.float32(scale), out=queries)
    queries = queries.reshape(K, D, T * G)
    attended = scratch.take("attended", K, D, T * G)
    tiles = job.context.read(kv, layer, range(job.pieces[0].tiles.start, job.pieces[-1].tiles.stop), scratch)
    for piece in job.pieces:
        lanes = slice(piece.lanes.first, piece.lanes.first + piece.count)
        columns = slice(piece.start, piece.start + piece.count)
        x = scratch.take("query_lanes", K, 1, D, piece.lanes.width)
        x.fill(0)
        x[:, 0, :, lanes] = queries[:, :, columns]
        step = max(1, MAX_SCORES // (len(piece.tiles) * TILE * piece.lanes.width))
        for first in range(0, K, step):
            heads = slice(first, first + step)
            result = _attend_piece(piece, x[heads], [(t, k[heads], v[heads]) for t, k, v in tiles], scratch)
            attended[heads, :, columns] = result[:, :, lanes]
    out[...] = attended.reshape(K, D, T, G).transpose(0, 3, 1, 2)


def _attend_piece(piece: Piece, x: F32, tiles: Sequence[tuple[int, F32, F32]], scratch: Scratch) -> F32:
    """Scaled queries x (K, 1, D, W) against key and value tiles (K, n, TILE, D). Returns scratch "result" (K, D, W)."""
    K, _, D, W = x.shape
    start, num_tiles = piece.tiles.start, len(piece.tiles)
    seen = []  # (which of the piece's tiles, keys, values)
    for first, keys, values in tiles:
        low, high = max(first, start), min(first + keys.shape[1], piece.tiles.stop)
        if low < high:
            part = slice(low - first, high - first)
            seen.append((slice(low - start, high - start), keys[:, part], values[:, part]))
    scores = scratch.take("scores", K, num_tiles, TILE, W)
    for where, keys, _ in seen:
        np.matmul(keys, x, out=scores[:, where])
    for tile, bias in piece.masks:
        scores[:, tile - start] += bias
    _softmax_numerators(scores, scratch)
    weighted = scratch.take("weighted", K, num_tiles, D, W)
    for where, _, values in seen:
        np.matmul(values.swapaxes(2, 3), scores[:, where], out=weighted[:, where])
    # Axis 1 is an outer one: NumPy adds whole planes, tile after tile.
    totals = np.add.reduce(sum_rows(scores), axis=1)  # (K, 1, W)
    result = scratch.take("result", K, D, W)
    np.add.reduce(weighted, axis=1, out=result)
    result /= totals
    return result


def _softmax_numerators(scores: F32, scratch: Scratch) -> None:
    """exp(scores - maximum over the keys) in place, scores (K, tiles, TILE, W).

    Works on long contiguous stretches: NumPy's inner loop over W = 4 columns costs as much as one over 64.
    """
    K, num_tiles, _, W = scores.shape
    rows = num_tiles * TILE // 2
    halves = scores.reshape(K, 2, rows, W)
    maxima = scratch.take("maxima", K, rows, W)
    np.maximum(halves[:, 0], halves[:, 1], out=maxima)
    while rows > 1:
        half = rows // 2
        np.maximum(maxima[:, :half], maxima[:, rows - half : rows], out=maxima[:, :half])
        rows -= half
    repeats = math.gcd(TILE, max(1, 1024 // W))
    peak = scratch.take("peak", K, 1, repeats, W)
    peak[...] = maxima[:, None, :1]
    stretched = scores.reshape(K, num_tiles * TILE // repeats, repeats * W)
    stretched -= peak.reshape(K, 1, repeats * W)
    np.exp(stretched, out=stretched)
