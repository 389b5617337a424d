"""A line of progress: rewritten on a terminal, rare in a log."""

from __future__ import annotations

import io

from chatapp.terminal import INTERVAL_S, ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_on_a_terminal_one_line_is_rewritten_with_speed_and_what_is_left() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine(stream, clock)
    for second in range(11):
        clock.now = float(second)
        line.show("Fetching", second * 1_000_000, 100_000_000)
    assert stream.getvalue().count("\n") == 0
    assert stream.getvalue().rsplit("\r", 1)[1] == "Fetching  10 %, 10 MB of 100 MB, 1 MB/s, 1:30 left"
    line.show("Fetching", 100_000_000, 100_000_000)
    last = stream.getvalue().rsplit("\r", 1)[1]
    assert last.rstrip() == "Fetching 100 %, 100 MB of 100 MB"
    assert len(last) > len("Fetching  10 %, 10 MB of 100 MB, 1 MB/s, 1:30 left")  # nothing of it is left standing


def test_a_terminal_is_not_written_to_more_often_than_one_can_see() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine(stream, clock)
    for done in range(1000):
        clock.now += 0.001
        line.show("Checking", done, 1000)
    assert stream.getvalue().count("\r") <= 11


def test_what_was_before_is_not_counted_as_speed() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine(stream, clock)
    line.show("Fetching", 90_000_000, 100_000_000)
    clock.now = 2.0
    line.show("Fetching", 92_000_000, 100_000_000)
    assert stream.getvalue().endswith("92 MB of 100 MB, 1 MB/s, 0:08 left")


def test_a_line_that_is_left_open_is_closed_once() -> None:
    stream = Terminal()
    line = ProgressLine(stream, Clock())
    line.show("Fetching", 1, 100)
    line.close()
    line.close()
    assert stream.getvalue().count("\n") == 1


def test_a_log_gets_a_line_now_and_then_and_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine(stream, clock)
    for second in range(100):
        clock.now = float(second)
        line.show("Fetching", second, 100)
    line.show("Fetching", 100, 100)
    line.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 99 // INTERVAL_S + 1
    assert lines[-1] == "Fetching 100 %, 100 B of 100 B"
    assert "\r" not in stream.getvalue()
