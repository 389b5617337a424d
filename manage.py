#!/usr/bin/env python
"""Django's command line. A wrong setting, and Ctrl-C at any moment, end it with one sentence instead of a traceback."""

from __future__ import annotations

import os
import signal
import sys

from chatapp.interrupts import EXIT_INTERRUPTED, heard


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings")
    try:
        with heard():
            run()
    except KeyboardInterrupt:
        at_once()
        sys.stderr.write("Interrupted.\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        at_once()


def run() -> None:
    # Half a second of imports is time enough for a Ctrl-C.
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"recollect: {error}")


def at_once() -> None:
    """Nothing is left to be done but to go: the next Ctrl-C is not asked to wait for it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
