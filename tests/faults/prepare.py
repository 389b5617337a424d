"""Make a data folder with a migrated database, two people and a session for each: `python -m tests.faults.prepare`.

Prints {"ada": cookie, "bob": cookie} as JSON. RECOLLECT_DATA says where.
"""

from __future__ import annotations

import json

import django


def main() -> None:
    """Migrate, create, log in, print."""
    django.setup()

    from django.core.management import call_command
    from django.test import Client

    from chatapp.models import User

    call_command("migrate", verbosity=0)
    cookies = {}
    for name in ("ada", "bob"):
        user = User.objects.create_user(name)
        client = Client()
        client.force_login(user)
        cookies[name] = client.cookies["sessionid"].value
    print(json.dumps(cookies))


if __name__ == "__main__":
    main()
