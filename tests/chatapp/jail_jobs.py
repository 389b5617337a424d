"""Jobs of the jail's tests, run in its child: what may go wrong there."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

from chatapp.jail_worker import serve


def echo(payload: Any) -> Iterator[Any]:
    yield payload


def count(payload: int) -> Iterator[int]:
    yield from range(payload)


def hang_after(payload: int) -> Iterator[int]:
    """Some answers, then a regular expression that never comes back and holds the interpreter."""
    yield from range(payload)
    re.match(r"(a+)+$", "a" * 64 + "b")


def fail(payload: str) -> Iterator[Any]:
    raise ValueError(payload)
    yield


def end(payload: int) -> Iterator[Any]:
    os._exit(payload)
    yield


def swell(payload: int) -> Iterator[int]:
    yield len(bytearray(payload))


def noise(payload: str) -> Iterator[str]:
    print(payload, flush=True)
    sys.stderr.write(payload)
    os.write(1, payload.encode())
    yield "quiet"


def surroundings(payload: None) -> Iterator[dict[str, Any]]:
    yield {
        "modules": sorted(sys.modules),
        "environment": dict(os.environ),
        "files": os.listdir("."),
        "descriptors": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]],
        "limits": [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)],
        "cpu_limit": resource.getrlimit(resource.RLIMIT_CPU)[0],
    }


def main() -> None:
    serve({job.__name__: job for job in (echo, count, hang_after, fail, end, swell, noise, surroundings)})
