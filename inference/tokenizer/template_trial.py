"""Try a chat template where it can be killed, before this process compiles it.

The sandbox bounds what a rendering may do as far as we have thought of it, and nothing bounds Jinja's and Python's
compilers. So a template that nobody here has seen is compiled and rendered in a child process first, whose time and
memory the system limits. Run as a program, this file is the child. Knows nothing about tokens.
"""

from __future__ import annotations

import datetime
import json
import resource
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from inference.errors import TemplateError
from inference.tokenizer.dates import strftime_of
from inference.tokenizer.sandbox import Sandbox

MAX_CPU_S = 4
MAX_WALL_S = 60  # the machine may be busy
MAX_MEMORY_BYTES = 1 << 30
MAX_ANSWER_BYTES = 1 << 16
DAY = datetime.date(2024, 7, 26)
CONVERSATION = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
]

# -I keeps the environment and the working folder out of the child; what it needs is where we are.
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from inference.tokenizer.template_trial import limit, main; limit(int(sys.argv[2])); main()"
)
_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=64)
def try_template(source: str, named_tokens: tuple[tuple[str, str], ...]) -> None:
    """Returns when the template is worth compiling here. named_tokens: what it may write, name and text.

    Raises TemplateError with the line when it fails on a plain conversation, and when it comes to no end within
    MAX_CPU_S and MAX_MEMORY_BYTES. Cost: 0.2 s, once for each template.
    """
    request = json.dumps({"source": source, "variables": dict(named_tokens)})
    try:
        child = subprocess.run(  # noqa: S603  our own interpreter and module
            [sys.executable, "-I", "-c", _BOOT, str(_ROOT), str(MAX_CPU_S)],
            input=request.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=MAX_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TemplateError(f"it did not come to an end within {MAX_WALL_S} s") from error
    if child.returncode or len(child.stdout) > MAX_ANSWER_BYTES:
        problem = f"it was stopped: more than {MAX_CPU_S} s or {MAX_MEMORY_BYTES >> 20} MB for a plain conversation"
        raise TemplateError(problem)
    answer = json.loads(child.stdout)
    if answer["problem"]:
        raise TemplateError(answer["problem"], line=answer["line"])


def limit(max_cpu_s: int) -> None:
    """In the child, first of all."""
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_s, max_cpu_s))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere an empty process maps more than that
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def main() -> None:
    """In the child: the template from standard input, what is wrong with it to standard output."""
    request = json.load(sys.stdin)
    answer = {"problem": "", "line": 0}
    try:
        _render(request["source"], request["variables"])
    except TemplateError as error:
        answer = {"problem": error.problem[:2000], "line": error.line}
    json.dump(answer, sys.stdout)


def _render(source: str, named_tokens: dict[str, str]) -> None:
    variables = {
        **named_tokens,
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
        "strftime_now": strftime_of(DAY),
    }
    sandbox = Sandbox(source)
    for size in (1, len(CONVERSATION)):
        sandbox.render([dict(message) for message in CONVERSATION[:size]], variables)
