"""`manage.py bench_planning`: the last line is JSON, for each policy, and its database is gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.shared_kernels import share_kernels


@pytest.mark.model
@pytest.mark.slow
def test_a_turn_and_a_keystroke_are_measured_for_each_policy(model_path: Path, tmp_path: Path) -> None:
    share_kernels(tmp_path)
    environment = {**os.environ, "RECOLLECT_DATA": str(tmp_path), "RECOLLECT_MODEL": str(model_path)}
    environment |= {"DJANGO_SETTINGS_MODULE": "chatapp.settings"}
    command = [sys.executable, "manage.py", "bench_planning", "--messages", "200", "--turns", "2", "--window", "4000"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["database"], line["messages"], line["window"]) == ("sqlite", 200, 4000)
    assert set(line["planning"]) == {"truncate", "recent", "summarise"}
    for figures in line["planning"].values():
        assert set(figures) == {"turn", "keystroke"}
        for times in figures.values():
            assert times["cpu"] > 0
            assert 0 < times["median"] <= times["max"]
    assert not list(tmp_path.rglob("*.sqlite3*"))
