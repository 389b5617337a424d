"""Where the async rooms send their blocking work: a few threads for the database, a few for rendering.

asgiref's own thread-sensitive executor is one thread for the whole process: one slow query there holds up every socket.
Rendering has threads of its own: a page of Markdown never waits behind a database that is down, nor the reverse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections
from django.utils import translation

P = ParamSpec("P")
R = TypeVar("R")

_database = ThreadPoolExecutor(max_workers=4, thread_name_prefix="database")
_render = ThreadPoolExecutor(max_workers=2, thread_name_prefix="render")


async def database(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run one database hop in a thread. Old connections are closed around it: a restarted server is found again."""
    return await _run(_database, partial(_with_fresh_connections, function, *args, **kwargs))


async def render(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run rendering, or other work without a database, in a thread."""
    return await _run(_render, partial(function, *args, **kwargs))


async def _run(executor: ThreadPoolExecutor, call: Callable[[], R]) -> R:
    # The person's language goes along. A copied context does not carry it: asgiref hides what another thread has set.
    in_language = partial(_with_language, translation.get_language(), call)
    return await asyncio.get_running_loop().run_in_executor(executor, in_language)


def _with_language(language: str, call: Callable[[], R]) -> R:
    with translation.override(language):
        return call()


def _with_fresh_connections(function: Callable[..., R], *args: object, **kwargs: object) -> R:
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()
