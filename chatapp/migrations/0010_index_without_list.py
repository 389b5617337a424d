"""The index over messages on PostgreSQL: what is entered goes where it is found, not on a list that is searched first.

With the list (fastupdate, GIN's default) each word of a question reads all of it, up to 4 MB, until a vacuum empties it;
and the server, which counts that in, would rather read the whole table.
"""

from django.db import migrations

INDEX = "chatapp_searchentry_keys"


def without_list(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER INDEX {INDEX} SET (fastupdate = off)")
        schema_editor.execute(f"SELECT gin_clean_pending_list('{INDEX}')")


def with_list(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER INDEX {INDEX} SET (fastupdate = on)")


class Migration(migrations.Migration):
    dependencies = [
        ("chatapp", "0009_vectors"),
    ]

    operations = [
        migrations.RunPython(without_list, with_list),
    ]
