"""DiskTier on its own: whatever happens to its files, a block comes back as it was or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.kvcache import kv_folder
from inference.kvcache.cached_blocks import Place
from inference.kvcache.disk_tier import SUFFIX, DiskTier, DiskTierUnavailable, WriteJob
from inference.kvcache.keys import block_key, salted_key
from inference.kvcache.segment import KVIdentity, SavedBlock
from inference.types import I32

P = 4
BYTES_PER_TOKEN = 8
ROOT = bytes(range(16))
FACTS = {"model": "model", "tokenizer": "tokenizer", "kv_format": "f32", "kernel_tier": "jit"}
SIZES = {"block_size": P, "bytes_per_token": BYTES_PER_TOKEN}
IDENTITY = KVIdentity.of(**FACTS, **SIZES)
BUDGET = 1 << 20


def open_tier(folder: Path, *, max_bytes: int = BUDGET, identity: KVIdentity = IDENTITY) -> closing[DiskTier]:
    return closing(DiskTier(folder, max_bytes, identity))


def chain(num_tokens: int, *, seed: int = 0, tags: frozenset[str] = frozenset({"chat-1"})) -> list[SavedBlock]:
    """Private blocks that follow each other, the last one partly filled unless the tokens end with a block."""
    rng = np.random.default_rng(seed)
    token_ids: I32 = rng.integers(1 << 24, 1 << 28, num_tokens).astype(np.int32)
    owner = salted_key(ROOT, seed.to_bytes(4, "little"))
    parent, link = ROOT, owner
    blocks = []
    for start in range(0, num_tokens, P):
        rows = token_ids[start : start + P]
        key = block_key(link, rows) if len(rows) == P else b""
        data = rng.integers(0, 256, len(rows) * BYTES_PER_TOKEN, np.uint8).data
        blocks.append(SavedBlock(Place(parent, link, owner), key, rows, tags, data))
        parent = link = key
    return blocks


def read_back(tier: DiskTier, blocks: list[SavedBlock]) -> list[bytes]:
    """The bytes of the leading ones of these blocks that the tier still has."""
    stored = []
    for block in blocks:
        siblings = [s for s in tier.siblings(block.place) if np.array_equal(s.record.token_ids, block.token_ids)]
        found = tier.find(block.key) if block.key else next(iter(siblings), None)
        if found is None:
            break
        stored.append(found)
    data: dict[int, bytes] = {}
    num_read = tier.read(stored, lambda n, view: data.__setitem__(n, bytes(view)))
    return [data[n] for n in range(num_read)]


def inside(root: Path, identity: KVIdentity = IDENTITY) -> Path:
    """The folder of one model."""
    return root / identity.name


def files_of(root: Path) -> list[Path]:
    return sorted(inside(root).glob(f"*{SUFFIX}"))


def write_one(folder: Path, blocks: list[SavedBlock]) -> Path:
    """Write one file, close the tier, return the file."""
    before = set(files_of(folder))
    with open_tier(folder) as tier:
        assert tier.write(WriteJob(blocks))
    (path,) = set(files_of(folder)) - before
    return path


def wanted(blocks: list[SavedBlock]) -> list[bytes]:
    return [bytes(block.data) for block in blocks]


def assert_is_miss(folder: Path, path: Path, blocks: list[SavedBlock], intact: bytes) -> str:
    """A new tier gives no byte that is not right, removes the file and says why. Returns the cause."""
    with open_tier(folder) as tier:
        found = read_back(tier, blocks)
        assert found == wanted(blocks)[: len(found)]
        assert len(found) < len(blocks)
        assert not path.exists()
        assert tier.num_files == tier.num_bytes == 0
        assert sum(tier.failures.values()) == 1
        tier.check_integrity()
        (cause,) = tier.failures
    path.write_bytes(intact)
    return cause


@pytest.mark.parametrize("num_tokens", [1, P, P + 1, 3 * P])
def test_what_was_written_is_read_at_once_and_after_opening_again(tmp_path: Path, num_tokens: int) -> None:
    blocks = chain(num_tokens)
    with open_tier(tmp_path) as tier:
        assert tier.write(WriteJob(blocks))
        assert read_back(tier, blocks) == wanted(blocks)
        size = tier.num_bytes
    with open_tier(tmp_path) as tier:
        assert read_back(tier, blocks) == wanted(blocks)
        assert tier.num_bytes == size == sum(path.stat().st_size for path in files_of(tmp_path))
        assert not tier.failures
        tier.check_integrity()


def test_every_flipped_byte_is_a_miss(tmp_path: Path) -> None:
    blocks = chain(P + 2)
    path = write_one(tmp_path, blocks)
    intact = path.read_bytes()
    causes = set()
    for i in range(len(intact)):
        damaged = bytearray(intact)
        damaged[i] ^= 1 << (i % 8)
        path.write_bytes(damaged)
        causes.add(assert_is_miss(tmp_path, path, blocks, intact))
    assert {"format", "version", "header", "checksum"} <= causes
    with open_tier(tmp_path) as tier:  # the file itself was good all the time
        assert read_back(tier, blocks) == wanted(blocks)


def test_a_file_that_was_cut_off_is_a_miss(tmp_path: Path) -> None:
    blocks = chain(P + 2)
    path = write_one(tmp_path, blocks)
    intact = path.read_bytes()
    for size in (0, 1, 39, 40, 200, 4095, 4096, 4097, len(intact) - BYTES_PER_TOKEN, len(intact) - 1):
        path.write_bytes(intact[:size])
        assert assert_is_miss(tmp_path, path, blocks, intact) == "truncated"
    path.write_bytes(intact + b"\0")
    assert_is_miss(tmp_path, path, blocks, intact)


def test_a_file_that_is_cut_off_or_deleted_while_open_is_a_miss(tmp_path: Path) -> None:
    blocks = chain(P)
    for cause in ("truncated", "missing"):
        with open_tier(tmp_path) as tier:
            assert tier.write(WriteJob(blocks))
            (path,) = files_of(tmp_path)
            if cause == "missing":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1])
            assert read_back(tier, blocks) == []
            assert tier.failures == {cause: 1}
            assert files_of(tmp_path) == []


def test_files_swapped_while_open_are_misses(tmp_path: Path) -> None:
    one, two = chain(P, seed=1), chain(P, seed=2)
    with open_tier(tmp_path) as tier:
        assert tier.write(WriteJob(one))
        assert tier.write(WriteJob(two))
        first, second = files_of(tmp_path)
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
        assert read_back(tier, one) == read_back(tier, two) == []
        assert tier.failures == {"checksum": 2}
        assert files_of(tmp_path) == []


def test_the_header_of_one_file_before_the_payload_of_another_is_a_miss(tmp_path: Path) -> None:
    one, two = chain(P, seed=1), chain(P, seed=2)
    path = write_one(tmp_path, one)
    intact = path.read_bytes()
    other_path = write_one(tmp_path, two)
    other = other_path.read_bytes()
    other_path.unlink()
    path.write_bytes(intact[:4096] + other[4096:])
    assert assert_is_miss(tmp_path, path, one, intact) == "checksum"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"model": "another"}, "model"),
        ({"tokenizer": "another"}, "tokenizer"),
        ({"kv_format": "another"}, "kv_format"),
        ({"kernel_tier": "another"}, "kernel_tier"),
        ({"adapter": "another"}, "adapter"),
        ({"block_size": 2 * P}, "block_size"),
        ({"bytes_per_token": 2 * BYTES_PER_TOKEN}, "kv_format"),
    ],
)
def test_a_file_of_another_engine_is_a_miss(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    path = write_one(tmp_path, chain(P))
    identity = KVIdentity.of(**{**FACTS, **SIZES, **change})
    with open_tier(tmp_path, identity=identity) as tier:  # has a folder of its own
        assert tier.num_files == 0
        assert not tier.failures
    misplaced = path.rename(inside(tmp_path, identity) / path.name)
    with open_tier(tmp_path, identity=identity) as tier:
        assert tier.failures == {cause: 1}
        assert tier.num_files == 0
    assert not misplaced.exists()


def test_the_budget_is_never_exceeded_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    size = write_one(tmp_path, chain(P)).stat().st_size
    max_bytes = 3 * size + size // 2
    with open_tier(tmp_path, max_bytes=max_bytes) as tier:
        for seed in range(1, 8):
            assert read_back(tier, chain(P)) == wanted(chain(P))  # used: stays
            assert tier.write(WriteJob(chain(P, seed=seed)))
            assert tier.num_bytes == sum(path.stat().st_size for path in files_of(tmp_path)) <= max_bytes
            tier.check_integrity()
        assert tier.num_evicted_files == 5
        assert [bool(read_back(tier, chain(P, seed=seed))) for seed in range(8)] == [True, *[False] * 5, True, True]
    with open_tier(tmp_path, max_bytes=size) as tier:  # a smaller budget than before
        assert tier.num_files == 1
        assert not tier.write(WriteJob(chain(1000)))
        assert tier.num_files == 1


def remains(root: Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_a_purge_leaves_no_token_in_the_folder(tmp_path: Path) -> None:
    mine, others = chain(P + 2), chain(P, seed=1, tags=frozenset({"chat-2"}))
    tokens = [block.token_ids.astype("<u4").tobytes() for block in mine]
    with open_tier(tmp_path) as tier:
        assert tier.write(WriteJob(mine))
        assert tier.write(WriteJob(others))
        assert any(text in data for data in remains(tmp_path) for text in tokens)
        tier.purge("chat-1", [])
        assert not any(text in data for data in remains(tmp_path) for text in tokens)
        assert read_back(tier, mine) == []
        assert read_back(tier, others) == wanted(others)


def test_a_purge_takes_a_tag_from_files_that_have_another_owner(tmp_path: Path) -> None:
    blocks = chain(P, tags=frozenset({"chat-1", "chat-2"}))
    with open_tier(tmp_path) as tier:
        assert tier.write(WriteJob(blocks))
        tier.purge("chat-1", [])
        assert not any(b"chat-1" in data for data in remains(tmp_path))
    with open_tier(tmp_path) as tier:
        assert read_back(tier, blocks) == wanted(blocks)
        tier.purge("chat-2", [])
        assert files_of(tmp_path) == []


def test_a_purge_comes_before_what_waits_to_be_written(tmp_path: Path) -> None:
    job = WriteJob(chain(P))
    with open_tier(tmp_path) as tier:
        tier.purge("chat-1", [job])
        assert not tier.write(job)
        assert {path.name for path in inside(tmp_path).iterdir()} == {"lock"}


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from inference.kvcache.disk_tier import *\n"
        "sizes = {'block_size': 4, 'bytes_per_token': 8}\n"
        "model = KVIdentity.of(model='model', tokenizer='tokenizer', kv_format='f32', kernel_tier='jit', **sizes)\n"
        "try: DiskTier(Path(sys.argv[1]), 1 << 20, model)\n"
        "except DiskTierUnavailable: sys.exit(3)"
    )
    with open_tier(tmp_path):
        with pytest.raises(DiskTierUnavailable, match="in use"):
            DiskTier(tmp_path, BUDGET, IDENTITY)
        assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 3
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_what_an_interrupted_write_has_left_is_removed(tmp_path: Path) -> None:
    inside(tmp_path).mkdir()
    (inside(tmp_path) / "0123.tmp").write_bytes(b"half")
    with open_tier(tmp_path) as tier:
        assert tier.num_files == 0
        assert {path.name for path in inside(tmp_path).iterdir()} == {"lock"}


def test_what_is_in_the_way_costs_nothing_else(tmp_path: Path) -> None:
    blocks = chain(6)
    path = write_one(tmp_path, blocks)
    for suffix in (".tmp", SUFFIX):
        (path.parent / f"a{suffix}").mkdir()
    (path.parent / f"b{SUFFIX}").symlink_to(tmp_path / "elsewhere")
    with open_tier(tmp_path) as tier:
        assert read_back(tier, blocks) == wanted(blocks)
        assert tier.failures == {"format": 1, "unreadable": 1}


def test_a_file_in_whose_place_something_else_appears_is_unreadable(tmp_path: Path) -> None:
    blocks = chain(6)
    path = write_one(tmp_path, blocks)
    with open_tier(tmp_path) as tier:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert read_back(tier, blocks) == []
        assert tier.failures == {"unreadable": 1}
        assert not path.is_symlink()
    assert (tmp_path / "elsewhere").is_file()


def test_another_models_files_go_first_unless_it_runs(tmp_path: Path) -> None:
    size = write_one(tmp_path, chain(P)).stat().st_size
    another = KVIdentity.of(**{**FACTS, "model": "another"}, **SIZES)
    with open_tier(tmp_path, identity=another, max_bytes=2 * size) as tier:
        assert tier.write(WriteJob(chain(P, seed=1)))
        with open_tier(tmp_path, max_bytes=2 * size) as running:
            assert running.num_files == 1
            assert tier.write(WriteJob(chain(P, seed=2)))  # in the place of its own
            assert (running.num_files, tier.num_files) == (1, 1)
            assert read_back(running, chain(P)) == wanted(chain(P))
        assert tier.write(WriteJob(chain(P, seed=3)))
        assert tier.num_files == 2
        assert files_of(tmp_path) == []


def test_folder_can_be_surveyed_verified_and_purged_from_outside(tmp_path: Path) -> None:
    assert kv_folder.survey(tmp_path) == []
    shared, mine = frozenset({"chat-1", "chat-2"}), frozenset({"chat-1"})
    with open_tier(tmp_path) as tier:
        assert all(tier.write(WriteJob(chain(P, seed=seed, tags=tags))) for seed, tags in enumerate([shared, mine]))
        (summary,) = kv_folder.survey(tmp_path)
        assert (summary.name, summary.num_files, summary.num_bytes) == (IDENTITY.name, 2, tier.num_bytes)
        assert summary.is_in_use
        assert kv_folder.verify(tmp_path) == {"": 2}
        assert kv_folder.purge(tmp_path, {"chat-1"}) == 1
        assert not any(b"chat-1" in data for data in remains(tmp_path))
        assert read_back(tier, chain(P, seed=1)) == []
        assert tier.failures == {"missing": 1}
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert kv_folder.verify(tmp_path) == {"checksum": 1}
    assert not kv_folder.survey(tmp_path)[0].is_in_use
    assert kv_folder.purge(tmp_path) == 1
    assert not any(remains(tmp_path))


def test_what_is_written_takes_nothing_from_what_it_follows(tmp_path: Path) -> None:
    """A conversation that is larger than the budget keeps its beginning: nothing can be read without that."""
    blocks = chain(10 * P)
    size = write_one(tmp_path, blocks[:1]).stat().st_size
    with open_tier(tmp_path, max_bytes=4 * size + size // 2) as tier:
        is_written = [tier.write(WriteJob([block])) for block in blocks[1:]]
        assert read_back(tier, blocks) == wanted(blocks)[:4]
        assert is_written == [True] * 3 + [False] * 6
        assert tier.num_files == 4
        tier.check_integrity()
