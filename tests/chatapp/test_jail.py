"""The child process: whatever happens in it, the caller gets an answer or a reason in bounded time."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chatapp.jail import CircuitBreaker, Jail, JailError
from tests.chatapp.watchdog import going_on
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LONG_S = PATIENCE_S


@pytest.fixture
def jail() -> Iterator[Jail]:
    jail = Jail("tests.chatapp.jail_jobs")
    yield jail
    jail.close()


def reason_of(jail: Jail, job: str, payload: object, deadline_s: float = LONG_S) -> str:
    with pytest.raises(JailError) as info:
        jail.call(job, payload, deadline_s)
    return info.value.reason


def child_pid(jail: Jail) -> int:
    assert jail._child is not None
    return jail._child.process.pid


def is_alive(pid: int) -> bool:
    """Running, not gone and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + LONG_S
    while is_alive(pid):
        assert time.monotonic() < until, f"process {pid} lives on"
        os.sched_yield()


def test_answer_comes_back(jail: Jail) -> None:
    payload = {"text": "\u4f60\ud800\x00", "list": [1, 2.5, None, True]}
    assert jail.call("echo", payload, LONG_S) == payload


def test_large_payload_goes_both_ways(jail: Jail) -> None:
    payload = "x" * 5_000_000
    assert jail.call("echo", payload, LONG_S) == payload


def test_one_child_serves_many_calls(jail: Jail) -> None:
    assert [jail.call("echo", i, LONG_S) for i in range(20)] == list(range(20))
    stats = jail.stats()
    assert (stats.num_calls, stats.num_spawns, stats.num_kills) == (20, 1, 0)
    assert stats.is_running


def test_job_that_never_comes_back_is_killed_and_the_next_one_served(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    pid = child_pid(jail)
    assert reason_of(jail, "hang_after", 0, deadline_s=0.25) == "timeout"
    assert not is_alive(pid)
    assert jail.call("echo", 2, LONG_S) == 2
    stats = jail.stats()
    assert (stats.num_timeouts, stats.num_kills, stats.num_spawns) == (1, 1, 2)


def test_answers_before_the_timeout_are_kept(jail: Jail) -> None:
    outcome = jail.collect("hang_after", 3, deadline_s=0.25, total_s=LONG_S)
    assert outcome.values == (0, 1, 2)
    assert outcome.error is not None
    assert outcome.error.reason == "timeout"


def test_total_time_is_bounded_however_many_answers_come(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    outcome = jail.collect("count", 10**9, deadline_s=LONG_S, total_s=0.2)
    assert outcome.error is not None
    assert outcome.error.reason == "timeout"
    assert jail.call("echo", "next", LONG_S) == "next"


def test_job_that_raises_is_an_answer_without_its_text(jail: Jail) -> None:
    with pytest.raises(JailError, match="ValueError") as info:
        jail.call("fail", "secret", LONG_S)
    assert info.value.reason == "failed"
    assert "secret" not in str(info.value)
    assert jail.call("echo", 1, LONG_S) == 1
    assert (jail.stats().num_failures, jail.stats().num_spawns) == (1, 1)


def test_unknown_job_fails(jail: Jail) -> None:
    assert reason_of(jail, "nosuchjob", None) == "failed"


def test_call_of_a_job_with_many_answers_fails(jail: Jail) -> None:
    assert reason_of(jail, "count", 2) == "failed"


def test_child_that_dies_in_a_job_is_replaced(jail: Jail) -> None:
    assert reason_of(jail, "end", 0) == "died"
    assert jail.call("echo", 1, LONG_S) == 1
    assert (jail.stats().num_deaths, jail.stats().num_spawns) == (1, 2)


def test_child_that_died_while_idle_is_not_noticed_by_the_caller(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    pid = child_pid(jail)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    assert jail.call("echo", 2, LONG_S) == 2


def test_memory_is_limited(jail: Jail) -> None:
    assert reason_of(jail, "swell", 2**30) == "failed"
    assert jail.call("swell", 2**20, LONG_S) == 2**20


def test_what_a_job_prints_disturbs_nothing(jail: Jail, capfd: pytest.CaptureFixture[str]) -> None:
    assert jail.call("noise", "\x00\x00\x00\x05hello", LONG_S) == "quiet"
    assert jail.call("echo", 1, LONG_S) == 1
    assert capfd.readouterr() == ("", "")


def test_child_has_nothing_of_the_server(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_SECRET_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(False)
        found = jail.call("surroundings", None, LONG_S)
    assert set(found["environment"]) <= {"LC_CTYPE"}
    assert found["files"] == []
    assert not [name for name in found["descriptors"] if name.startswith("socket:")]
    assert not {"django", "channels", "sqlite3", "psycopg", "inference", "numpy"} & set(found["modules"])
    assert found["limits"] == [512 * 1024 * 1024, 0]
    assert 0 < found["cpu_limit"] < 60


def test_callers_of_many_threads_each_get_their_own_answer(jail: Jail) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: jail.call("echo", i, LONG_S), range(200))) == list(range(200))


def test_no_caller_waits_for_ever(jail: Jail) -> None:
    impatient = Jail("tests.chatapp.jail_jobs", wait_s=0.05)
    taken = threading.Event()

    def take() -> None:
        with impatient._lock:
            taken.set()
            done.wait()

    done = threading.Event()
    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    assert reason_of(impatient, "echo", 1) == "busy"
    done.set()
    thread.join()
    assert impatient.call("echo", 1, LONG_S) == 1
    impatient.close()


def test_other_threads_go_on_while_a_job_hangs(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    with going_on():
        assert reason_of(jail, "hang_after", 0, deadline_s=3.0) == "timeout"


def test_child_that_cannot_start_is_a_reason_and_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    jail = Jail("tests.chatapp.no_such_module")
    with caplog.at_level(logging.ERROR, logger="chatapp.jail"):
        assert [reason_of(jail, "echo", i) for i in range(5)] == ["unavailable"] * 5
    assert len(caplog.records) == 1
    assert jail.stats().num_spawns == 1
    jail.close()


def test_interpreter_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    jail = Jail("tests.chatapp.jail_jobs")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert [reason_of(jail, "echo", i) for i in range(3)] == ["unavailable"] * 3
    assert not jail.stats().is_running


def test_close_ends_the_child_and_its_folder_also_in_a_job(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    pid = child_pid(jail)
    folder = os.readlink(f"/proc/{pid}/cwd")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(jail.collect, "hang_after", 1, deadline_s=LONG_S, total_s=LONG_S)
        while not jail._lock.locked():
            os.sched_yield()
        jail.close()
        outcome = future.result()
    assert outcome.error is not None
    assert outcome.error.reason in ("died", "unavailable")
    assert not is_alive(pid)
    assert not Path(folder).exists()
    assert jail.call("echo", 2, LONG_S) == 2


def test_close_also_ends_a_child_that_a_call_starts_meanwhile(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    jail.call("echo", 1, LONG_S)
    is_starting, is_closing = threading.Event(), threading.Event()
    start = jail._start

    def start_late() -> None:
        is_starting.set()
        assert is_closing.wait(LONG_S)
        start()

    monkeypatch.setattr(jail, "_start", start_late)
    os.kill(child_pid(jail), signal.SIGKILL)
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(jail.collect, "hang_after", 1, deadline_s=LONG_S, total_s=LONG_S)
        assert is_starting.wait(LONG_S)
        closing = pool.submit(jail.close)
        is_closing.set()
        closing.result(timeout=LONG_S / 2)
        assert call.result().error is not None


def test_jail_that_is_forgotten_leaves_no_child() -> None:
    jail = Jail("tests.chatapp.jail_jobs")
    jail.call("echo", 1, LONG_S)
    pid = child_pid(jail)
    del jail
    gc.collect()
    assert not is_alive(pid)


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)"])
def test_child_ends_with_its_parent(ending: str) -> None:
    program = (
        "import os\nfrom chatapp.jail import Jail\n"
        "jail = Jail('tests.chatapp.jail_jobs')\njail.call('echo', 1, 20.0)\n"
        f"print(jail._child.process.pid, flush=True)\n{ending}"
    )
    parent = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    wait_until_gone(int(parent.stdout))


def test_fork_gets_a_child_of_its_own(jail: Jail) -> None:
    jail.call("echo", 1, LONG_S)
    pid = child_pid(jail)
    fork = os.fork()
    if fork == 0:
        try:
            is_right = jail.call("echo", "fork", LONG_S) == "fork" and child_pid(jail) != pid
            jail.close()
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert jail.call("echo", 2, LONG_S) == 2
    assert child_pid(jail) == pid


def test_breaker_opens_after_three_trips_in_a_minute_for_ten_minutes() -> None:
    breaker = CircuitBreaker()
    for now in (0.0, 30.0, 61.0):
        breaker.trip("scala", now)
    assert breaker.open_keys(61.0) == []
    breaker.trip("scala", 62.0)
    breaker.trip("python", 62.0)
    assert breaker.open_keys(62.0) == ["scala"]
    assert breaker.open_keys(661.0) == ["scala"]
    assert breaker.open_keys(662.1) == []
    breaker.trip("scala", 663.0)
    assert breaker.open_keys(663.0) == []
