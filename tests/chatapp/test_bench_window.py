"""`manage.py bench_window`: the last line is JSON, and moving the window rarely is worth it."""

from __future__ import annotations

import io
import json
import math

import pytest
from django.core.management import call_command

from chatapp import llm


@pytest.mark.model
def test_each_policy_prefills_less_than_the_naive_one() -> None:
    out = io.StringIO()
    try:
        call_command("bench_window", windows=[1000], turns=40, stdout=out)
    finally:
        llm.host.handle.worker = None  # as in a process that has never had one
    figures = json.loads(out.getvalue().splitlines()[-1])["window"]["1000"]
    assert set(figures) == {"naive", "truncate", "recent", "summarise"}
    for policy in ("truncate", "recent", "summarise"):
        assert 2 * figures[policy]["prefilled"] < figures["naive"]["prefilled"]
        assert 0 < figures[policy]["breaks"] < figures["naive"]["breaks"]
    assert figures["truncate"]["breaks"] <= math.ceil(40 * 110 / (0.3 * 744))
