"""The index over messages: FTS5 on SQLite, GIN on PostgreSQL; and entries for all messages that are there already."""

import django.db.models.deletion
from django.db import migrations, models

TABLE = "chatapp_searchentry"
FTS = f"{TABLE}_fts"
BATCH = 500
# The index holds no text of its own: what was entered must be named when it is taken out.
SQLITE = (
    f"CREATE VIRTUAL TABLE {FTS} USING fts5(keys, content='{TABLE}', content_rowid='id', tokenize='ascii')",
    f"""CREATE TRIGGER {TABLE}_added AFTER INSERT ON {TABLE} BEGIN
        INSERT INTO {FTS}(rowid, keys) VALUES (new.id, new.keys);
    END""",
    f"""CREATE TRIGGER {TABLE}_deleted AFTER DELETE ON {TABLE} BEGIN
        INSERT INTO {FTS}({FTS}, rowid, keys) VALUES ('delete', old.id, old.keys);
    END""",
    f"""CREATE TRIGGER {TABLE}_changed AFTER UPDATE ON {TABLE} BEGIN
        INSERT INTO {FTS}({FTS}, rowid, keys) VALUES ('delete', old.id, old.keys);
        INSERT INTO {FTS}(rowid, keys) VALUES (new.id, new.keys);
    END""",
)
POSTGRESQL = (f"CREATE INDEX {TABLE}_keys ON {TABLE} USING gin (array_to_tsvector(string_to_array(keys, ' ')))",)


def make_index(apps, schema_editor):
    for statement in SQLITE if schema_editor.connection.vendor == "sqlite" else POSTGRESQL:
        schema_editor.execute(statement)


def drop_index(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":  # the triggers go with their table, this one does not
        schema_editor.execute(f"DROP TABLE {FTS}")


def enter_messages(apps, schema_editor):
    from chatapp.search import keys_of

    SearchEntry = apps.get_model("chatapp", "SearchEntry")
    messages = apps.get_model("chatapp", "Message").objects.order_by().values_list(
        "id", "text", "thinking_chars", "conversation_id", "conversation__owner_id"
    )
    entries = []
    for message_id, text, thinking_chars, conversation_id, owner_id in messages.iterator(BATCH):
        keys = keys_of(text[thinking_chars:], owner_id=owner_id, conversation_id=conversation_id)
        entries.append(SearchEntry(message_id=message_id, keys=keys))
        if len(entries) == BATCH:
            SearchEntry.objects.bulk_create(entries)
            entries.clear()
    SearchEntry.objects.bulk_create(entries)


class Migration(migrations.Migration):
    dependencies = [
        ("chatapp", "0005_window"),
    ]

    operations = [
        migrations.CreateModel(
            name="SearchEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("keys", models.TextField(verbose_name="keys")),
                (
                    "message",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="search_entry",
                        to="chatapp.message",
                        verbose_name="message",
                    ),
                ),
            ],
            options={
                "verbose_name": "search entry",
                "verbose_name_plural": "search entries",
            },
        ),
        migrations.RunPython(make_index, drop_index),
        migrations.RunPython(enter_messages, migrations.RunPython.noop),
    ]
