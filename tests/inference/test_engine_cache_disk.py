"""An engine whose KV outlives it: what comes back after a restart, what does not, and when it is written."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inference.types import FinishReason, MissCause
from tests.inference.fakes import MarkerModel, expected_ids, finished, ids_of, make_engine, make_request, run
from tests.patience import PATIENCE_S

HELLO = "hello world, how are you today"  # 30 tokens: seven blocks and two rows
BUDGET = 1 << 20


def engine_on(folder: Path, model: MarkerModel | None = None, **options):
    return make_engine(model, kv_dir=folder, **({"kv_disk_bytes": BUDGET} | options))


def served(folder: Path, *requests, **options) -> None:
    """An engine that answers, and is closed in an orderly way."""
    engine = engine_on(folder, **options)
    for request in requests:
        run(engine, request)
    engine.close(PATIENCE_S)


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


def ask(engine, prompt, **fields):
    """(stats, ids) of a request, the ids held against those of a model without an engine."""
    request = make_request("asks", prompt, **fields)
    events = run(engine, request)["asks"]
    assert ids_of(events) == expected_ids(request)
    return finished(events).stats, ids_of(events)


def ask_anew(folder: Path, prompt, **fields):
    """ask() an engine that has just started."""
    engine = engine_on(folder)
    answer = ask(engine, prompt, **fields)
    engine.close(PATIENCE_S)
    return answer


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 29, 30])
def test_restart_reuses_to_the_token(tmp_path, length):
    prompt = HELLO[:length]
    served(tmp_path, make_request("a", prompt, max_tokens=1))
    stats, _ = ask_anew(tmp_path, prompt + "!!")
    assert (stats.num_reused_ram, stats.num_reused_disk, stats.num_computed) == (0, length, 2)
    stats, _ = ask_anew(tmp_path, prompt[:-1] + "??")
    assert (stats.num_reused_disk, stats.num_computed) == (length - 1, 2)


def test_restored_blocks_are_found_in_memory_afterwards(tmp_path):
    served(tmp_path, make_request("a", HELLO))
    engine = engine_on(tmp_path)
    assert ask(engine, HELLO)[0].num_reused_disk == 29
    stats, _ = ask(engine, HELLO)
    assert (stats.num_reused_ram, stats.num_reused_disk) == (30, 0)


def test_disk_goes_on_where_memory_ends(tmp_path):
    served(tmp_path, make_request("a", HELLO))
    engine = engine_on(tmp_path)
    ask(engine, HELLO[:10])
    stats, _ = ask(engine, HELLO + "?")
    assert (stats.num_reused_ram, stats.num_reused_disk, stats.num_computed) == (8, 22, 1)


def test_the_better_of_two_tails_is_taken(tmp_path):
    served(tmp_path, make_request("a", HELLO[:11], max_tokens=1))
    engine = engine_on(tmp_path)
    ask(engine, HELLO[:9] + "*", max_tokens=1)
    stats, _ = ask(engine, HELLO[:11] + "?", max_tokens=1)
    assert (stats.num_reused_ram, stats.num_reused_disk, stats.num_computed) == (8, 3, 1)
    stats, _ = ask(engine, HELLO[:9] + "*?", max_tokens=1)
    assert (stats.num_reused_ram, stats.num_reused_disk, stats.num_computed) == (10, 0, 1)


def test_nothing_is_written_before_the_engine_is_idle(tmp_path):
    engine = engine_on(tmp_path)
    run(engine, make_request("a", HELLO))
    assert files_of(tmp_path) == []
    assert engine.stats().cache.disk.num_unsaved_blocks == 9
    while engine.idle() == 0.0:
        pass
    engine.cache.flush(PATIENCE_S)
    assert len(files_of(tmp_path)) == 2  # the full blocks; the tail, which is soon part of another block
    assert engine.idle() is None
    assert engine.stats().cache.disk.num_bytes == sum(path.stat().st_size for path in files_of(tmp_path))


def test_next_turn_adds_what_is_new_and_replaces_the_tail(tmp_path):
    engine = engine_on(tmp_path)
    run(engine, make_request("a", HELLO, max_tokens=1))
    engine.cache.flush(PATIENCE_S)
    before = set(files_of(tmp_path))
    run(engine, make_request("b", HELLO + " and then more", max_tokens=1))
    engine.cache.flush(PATIENCE_S)
    after = set(files_of(tmp_path))
    assert len(before & after) == 1
    assert len(after) == 2
    engine.close()
    assert ask_anew(tmp_path, HELLO + " and then more!")[0].num_reused_disk == 44


def test_what_is_evicted_before_it_was_saved_is_saved_then(tmp_path):
    engine = engine_on(tmp_path, pool_tokens=64)
    run(engine, make_request("a", HELLO, max_tokens=1))
    run(engine, make_request("b", "x" * 60, max_tokens=1))
    engine.cache.flush(PATIENCE_S)
    stats, _ = ask(engine, HELLO + "!")
    assert stats.num_reused_ram + stats.num_reused_disk == 30
    assert stats.num_reused_disk > 0


def test_side_requests_are_not_saved(tmp_path):
    served(tmp_path, make_request("a", HELLO, is_low_retention=True))
    assert files_of(tmp_path) == []


def test_cache_that_is_off_keeps_nothing_on_disk(tmp_path):
    served(tmp_path, make_request("a", HELLO), is_prefix_cache_enabled=False)
    assert not any(tmp_path.iterdir())


def test_salts_separate_on_disk_as_in_memory(tmp_path):
    alice = {"salt": b"alice", "num_public_tokens": 13, "tags": ("x",)}
    served(tmp_path, make_request("a", HELLO, **alice))
    bob, _ = ask_anew(tmp_path, HELLO, salt=b"bob", num_public_tokens=13)
    assert (bob.num_reused_disk, bob.num_computed) == (12, 18)
    assert ask_anew(tmp_path, HELLO, **alice)[0].num_reused_disk == 29


def test_purged_conversation_leaves_no_token_on_disk(tmp_path):
    served(tmp_path, make_request("a", "system: " + HELLO, num_public_tokens=8, tags=("x",)))
    engine = engine_on(tmp_path)
    ask(engine, "system: " + HELLO, num_public_tokens=8, tags=("x",))
    run(engine, make_request("b", "another one", tags=("y",)))
    engine.cache.flush(PATIENCE_S)
    engine.purge("x")
    left = b"".join(path.read_bytes() for path in files_of(tmp_path))
    for i in range(len(HELLO) - 3):
        assert "".join(f"{ord(c):c}\0\0\0" for c in HELLO[i : i + 4]).encode() not in left
    assert b"s\0\0\0y\0\0\0s\0\0\0t\0\0\0" in left  # the public system prompt
    engine.close(PATIENCE_S)
    assert ask_anew(tmp_path, "system: " + HELLO, num_public_tokens=8)[0].num_reused_disk == 8


def test_purge_of_one_owner_leaves_the_other_its_part(tmp_path):
    served(
        tmp_path, make_request("a", HELLO[:20], max_tokens=1, tags=("x", "y")), make_request("b", HELLO, tags=("x",))
    )
    engine = engine_on(tmp_path)
    engine.purge("x")
    engine.close()
    assert ask_anew(tmp_path, HELLO, tags=("y",))[0].num_reused_disk == 20


def test_second_engine_on_a_folder_runs_without_and_says_so(tmp_path):
    first = engine_on(tmp_path)
    second = engine_on(tmp_path)
    assert "in use" in second.stats().cache.disk_problem
    assert second.stats().cache.disk is None
    ask(second, HELLO)
    assert first.stats().cache.disk_problem == ""


def test_folder_that_becomes_free_is_used_from_then_on(tmp_path):
    """A server that starts while a command has the folder gets it when that has ended."""
    first = engine_on(tmp_path)
    now = [0.0]
    second = engine_on(tmp_path, clock=lambda: now[0])
    ask(second, HELLO)
    assert second.idle() == pytest.approx(10)
    assert "in use" in second.stats().cache.disk_problem
    first.close(PATIENCE_S)
    assert 0 < second.idle() <= 10  # not asked for at every turn
    now[0] += 10
    assert second.idle() == 0.0
    assert second.stats().cache.disk_problem == ""
    while second.idle() == 0.0:
        pass
    assert second.idle() is None
    second.close(PATIENCE_S)
    assert ask_anew(tmp_path, HELLO + "!")[0].num_reused_disk == 30


def idle_until_saved(engine) -> None:
    while engine.idle() == 0.0:
        pass
    engine.cache.flush(PATIENCE_S)
    engine.idle()  # takes the numbers


@pytest.mark.parametrize("what", ["all", "the model's"])
def test_folder_that_is_removed_while_in_use_is_begun_anew(tmp_path, what):
    root = tmp_path / "kv"
    engine = engine_on(root)
    ask(engine, HELLO)
    idle_until_saved(engine)
    num_files = len(files_of(root))
    assert num_files
    shutil.rmtree(root if what == "all" else files_of(root)[0].parent)
    ask(engine, HELLO + "!")
    idle_until_saved(engine)
    disk = engine.stats().cache.disk
    assert (disk.num_files, disk.failed_restores) == (len(files_of(root)), {"missing": num_files})
    engine.close(PATIENCE_S)
    stats, _ = ask_anew(root, HELLO + "!?")
    assert stats.num_reused_disk == len(HELLO) + 1


def test_folder_that_another_process_takes_meanwhile_is_left_to_it(tmp_path):
    engine = engine_on(tmp_path)
    ask(engine, HELLO)
    idle_until_saved(engine)
    shutil.rmtree(files_of(tmp_path)[0].parent)
    second = engine_on(tmp_path)
    assert second.stats().cache.disk is not None
    engine.idle()
    assert "in use by another process" in engine.stats().cache.disk_problem
    assert engine.stats().cache.disk is None
    ask(engine, HELLO + "!")
    second.close()


def test_folder_that_cannot_be_made_is_a_problem_and_no_more(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    engine = engine_on(tmp_path / "file" / "kv")
    assert "cannot be used" in engine.stats().cache.disk_problem
    ask(engine, HELLO)


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_a_miss_with_the_right_answer(tmp_path, seed, caplog):
    """A bit is flipped or the end cut off while the engine runs, or before it starts."""
    served(tmp_path, make_request("a", HELLO))
    rng = random.Random(seed)
    for turn in range(12):
        is_running = bool(turn % 2)
        engine = engine_on(tmp_path) if is_running else None
        path = rng.choice(files_of(tmp_path))
        data = bytearray(path.read_bytes())
        position = rng.randrange(len(data))
        data[position] ^= 1 << rng.randrange(8)
        path.write_bytes(data if rng.random() < 0.5 else data[:position])
        engine = engine or engine_on(tmp_path)
        stats, _ = ask(engine, HELLO)
        assert stats.num_reused_disk + stats.num_computed == 30
        found = engine.stats().cache.disk
        assert is_running or sum(found.failed_restores.values()) >= 1
        engine.close(PATIENCE_S)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_failed_restore_is_named_as_the_cause(tmp_path):
    served(tmp_path, make_request("a", HELLO[:28], max_tokens=1))
    engine = engine_on(tmp_path)
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    stats, _ = ask(engine, HELLO[:28])
    assert stats.miss_cause == MissCause.RESTORE_FAILED
    assert stats.num_reused_disk == 24
    assert engine.stats().cache.disk.failed_restores == {"truncated": 1}
    assert not path.exists()


def test_what_a_damaged_file_held_is_on_disk_again_afterwards(tmp_path):
    """Also what was read from it before the damage was met: it is in memory only once the file is gone."""
    served(tmp_path, make_request("a", HELLO[:28], max_tokens=1))
    engine = engine_on(tmp_path)
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert ask(engine, HELLO[:28])[0].num_reused_disk == 24
    engine.close(PATIENCE_S)
    stats, _ = ask_anew(tmp_path, HELLO[:28])
    assert (stats.num_reused_disk, stats.num_computed) == (27, 1)


def test_failed_restore_is_the_cause_for_whoever_computes_it_anew(tmp_path):
    """Who finds the damage is often only preparing, and gives way before it has mended it."""
    served(tmp_path, make_request("a", HELLO, max_tokens=1))
    engine = engine_on(tmp_path)
    path = max(files_of(tmp_path), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    engine.add_request(make_request("ahead", HELLO, is_prefill_only=True))
    engine.schedule_step()
    engine.cancel("ahead")
    while engine.has_work:
        engine.step()
    assert engine.stats().cache.disk.failed_restores == {"truncated": 1}
    assert ask(engine, HELLO + "!")[0].miss_cause == MissCause.RESTORE_FAILED
    assert ask(engine, HELLO + "!?")[0].miss_cause == MissCause.NONE


def test_kv_of_unusable_logits_goes_from_the_disk_as_well(tmp_path):
    served(tmp_path, make_request("a", HELLO))
    model = MarkerModel()
    engine = engine_on(tmp_path, model)
    model.nan_token = ord("y")
    assert finished(run(engine, make_request("b", HELLO))["b"]).finish_reason == FinishReason.ERROR
    engine.close(PATIENCE_S)
    assert ask_anew(tmp_path, HELLO)[0].num_reused_disk <= 2


def test_budget_holds_and_the_oldest_goes_first(tmp_path):
    budget = 6 * (4096 + 64)
    engine = engine_on(tmp_path, pool_tokens=64, kv_disk_bytes=budget)
    for i in range(12):
        run(engine, make_request(f"r{i}", chr(65 + i) * 32, max_tokens=1))
        engine.cache.flush(PATIENCE_S)
        assert sum(path.stat().st_size for path in files_of(tmp_path)) <= budget
    assert engine.stats().cache.disk.num_evicted_files > 0
    engine.close(PATIENCE_S)
    engine = engine_on(tmp_path, pool_tokens=64, kv_disk_bytes=budget)
    assert ask(engine, "L" * 33)[0].num_reused_disk == 32
    assert ask(engine, "A" * 33)[0].num_reused_disk == 0


def test_a_conversation_larger_than_the_budget_keeps_its_beginning(tmp_path):
    budget = 6 * (4096 + 64)
    engine = engine_on(tmp_path, pool_tokens=256, kv_disk_bytes=budget)
    rng = random.Random(0)
    talk = "".join(rng.choice("abcdefgh") for _ in range(200))
    for length in range(20, 200, 20):  # the next turn of it
        run(engine, make_request("r", talk[:length], max_tokens=1))
        engine.cache.flush(PATIENCE_S)
        assert sum(path.stat().st_size for path in files_of(tmp_path)) <= budget
    assert engine.stats().cache.disk.failed_writes["budget"] > 0
    engine.close(PATIENCE_S)
    engine = engine_on(tmp_path, pool_tokens=256, kv_disk_bytes=budget)
    assert ask(engine, talk)[0].num_reused_disk >= 60


def test_used_in_memory_counts_as_used_on_disk(tmp_path):
    engine = engine_on(tmp_path, kv_disk_bytes=3 * (4096 + 256))
    for name in "ABABACADA":
        run(engine, make_request("r", name * 32, max_tokens=1))
        engine.cache.flush(PATIENCE_S)
    engine.close(PATIENCE_S)
    assert ask(engine_on(tmp_path, kv_disk_bytes=3 * (4096 + 256)), "A" * 33)[0].num_reused_disk == 32


# --- other processes --------------------------------------------------------------------------------------------------

WRITE_FOR_EVER = """
import random, sys
from pathlib import Path
from tests.inference.fakes import make_engine, make_request, run
engine = make_engine(kv_dir=Path(sys.argv[1]), kv_disk_bytes=200_000, pool_tokens=512)
rng = random.Random(int(sys.argv[2]))
for i in range(10**6):
    run(engine, make_request(f"r{i}", "".join(rng.choice("ab") for _ in range(8)) * rng.randint(1, 12), max_tokens=3))
    while engine.idle() == 0.0:
        pass
    print(i, flush=True)
"""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_killed_at_any_moment_it_comes_up_and_answers_right(tmp_path, seed):
    rng = random.Random(seed)
    for round_ in range(4):
        arguments = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), str(round_)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            for _ in range(rng.randrange(1, 40)):
                process.stdout.readline()
            process.kill()
        engine = engine_on(tmp_path, pool_tokens=512)
        disk = engine.stats().cache.disk
        assert (disk.failed_restores, list(tmp_path.rglob("*.tmp"))) == ({}, [])
        for text in ("abababab" * 3, "aaaabbbb" * 9, "bbabbbab" * 5):
            ask(engine, text)
        engine.close(PATIENCE_S)


FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.inference.fakes import expected_ids, ids_of, make_engine, make_request, run
engine = make_engine(kv_dir=Path(sys.argv[1]), kv_disk_bytes=1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
request = make_request("a", "hello world, how are you today")
assert ids_of(run(engine, request)["a"]) == expected_ids(request)
engine.cache.flush(20.0)
disk = engine.stats().cache.disk
assert engine.idle() == 0.05 or engine.idle() is None, engine.idle()
assert sum(engine.stats().cache.disk.failed_writes.values()) > 0, engine.stats().cache.disk
assert not [*Path(sys.argv[1]).rglob("*.kv"), *Path(sys.argv[1]).rglob("*.tmp")]
"""


def test_disk_that_takes_nothing_costs_nobody_an_answer(tmp_path):
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=60)
