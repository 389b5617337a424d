"""Settings of the tests: the product's own, in a data folder of their own, whatever the developer's environment says.

TEST_DATABASE_URL moves the tests to that PostgreSQL server; otherwise they run on a SQLite file (not in memory: threads
of the concurrency tests must lock one another out as in the product).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.shared_kernels import share_kernels

_KEPT = ("RECOLLECT_TEST_", "RECOLLECT_REQUIRE_")  # what the tests themselves read
for _name in list(os.environ):
    if _name == "DATABASE_URL" or (_name.startswith("RECOLLECT_") and not _name.startswith(_KEPT)):
        del os.environ[_name]

_FOLDER = Path(tempfile.mkdtemp(prefix="recollect-tests-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
os.environ["RECOLLECT_DATA"] = str(_FOLDER)
os.environ["RECOLLECT_TITLES"] = "off"  # else each first reply would be followed by a request that nobody asked for
share_kernels(_FOLDER)
os.environ["RECOLLECT_MODEL"] = os.environ.get("RECOLLECT_TEST_MODEL") or str(
    Path(__file__).resolve().parent.parent / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
)

from chatapp.settings import *  # noqa: E402, F403
from chatapp.settings import DATABASES, STORAGES, databases  # noqa: E402

if _url := os.environ.get("TEST_DATABASE_URL"):
    DATABASES["default"] = databases.postgres(_url)
    del DATABASES["default"]["OPTIONS"]["pool"]  # its threads would outlive the test database
else:
    DATABASES["default"]["TEST"] = {"NAME": _FOLDER / "test.sqlite3"}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a fast one
STATIC_ROOT = _FOLDER / "static"
STATIC_ROOT.mkdir()
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}  # nothing is collected
