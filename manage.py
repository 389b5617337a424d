#!/usr/bin/env python
"""Django's command line. A setting that is wrong ends it with one sentence instead of a traceback."""

from __future__ import annotations

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapp.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"recollect: {error}")


if __name__ == "__main__":
    main()
