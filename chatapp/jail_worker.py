"""What runs in the jail's child: takes a job from stdin, does it, writes the answers to stdout. Length-prefixed JSON.

Without Django, database, sockets or secrets, under limits of memory, processor time and files. A job is a generator:
each value it yields is sent at once, so the parent can give every value its own deadline. What a job raises is an
answer, too.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from chatapp.markup.job import render_texts

Job = Callable[[Any], Iterator[Any]]

JOBS: dict[str, Job] = {"markdown.render": render_texts}

MAX_MEMORY_BYTES = 512 * 1024 * 1024
MAX_CPU_S = 30  # for one job: ends a child whose parent is gone or stopped while it runs for ever
MAX_FILES = 32


def main() -> None:
    """Serve the jobs of the product."""
    serve(JOBS)


def serve(jobs: Mapping[str, Job]) -> None:
    """Answer requests until stdin ends, which is when the parent is gone."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    for fd in (0, 1, 2):  # what a library prints must land neither among the answers nor in the log
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)
    _limit()
    _write(answers, {"ready": True})
    while (request := _read(requests)) is not None:
        _allow_cpu()
        try:
            for value in jobs[request["job"]](request["payload"]):
                _write(answers, {"value": value})
        except Exception as error:  # noqa: BLE001  hostile input may raise anything; the parent decides what it means
            _write(answers, {"error": type(error).__name__})
        else:
            _write(answers, {"end": True})


def _limit() -> None:
    limits = {resource.RLIMIT_NOFILE: MAX_FILES, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":  # elsewhere an empty process maps more than that, and the call is refused
        limits[resource.RLIMIT_AS] = MAX_MEMORY_BYTES
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def _allow_cpu() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time()) + MAX_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _read(stream: BinaryIO) -> Any:
    header = stream.read(4)
    if len(header) < 4:
        return None
    return json.loads(stream.read(struct.unpack("!I", header)[0]))


def _write(stream: BinaryIO, frame: dict[str, Any]) -> None:
    data = json.dumps(frame).encode()
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()
