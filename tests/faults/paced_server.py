"""`manage.py serve` with a paced engine: `python -m tests.faults.paced_server serve --port 0`, a process of its own.

Environment: RECOLLECT_TEST_WORDS and RECOLLECT_TEST_PACE, the length of a reply and the seconds per word;
RECOLLECT_TEST_MAX_FILE, a limit on the size of files, which is how a full disk looks.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

import django


def main() -> None:
    """Serve until a signal."""
    django.setup()

    from chatapp import llm  # the settings are there only now
    from chatapp.management.commands.serve import Command
    from tests.faults.paced_worker import PacedWorker

    class PacedCommand(Command):
        def start_engine(self) -> None:
            num_words = int(os.environ.get("RECOLLECT_TEST_WORDS", "20"))
            llm.start(PacedWorker(num_words=num_words, pace_s=float(os.environ.get("RECOLLECT_TEST_PACE", "0.01"))))

    if limit := int(os.environ.get("RECOLLECT_TEST_MAX_FILE", "0")):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    PacedCommand().run_from_argv(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
