"""The truth: users, presets, conversations, messages (a tree), and one Generation for each attempt to answer.

Facts about one row live here; what crosses rows or owns a transaction lives in services, and reads live in selectors.
Nothing is overwritten or deleted by an edit or a regenerate: both make siblings.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _


class User(AbstractUser):
    """A person with an account. is_owner: the first one, made on the first visit; the schema lets there be only one."""

    is_owner = models.BooleanField(_("owner"), default=False, editable=False)
    language = models.CharField(_("language"), max_length=16, blank=True)  # "": what the browser asks for
    preferences = models.JSONField(_("preferences"), default=dict, blank=True)

    class Meta(AbstractUser.Meta):
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["is_owner"], condition=Q(is_owner=True), name="user_one_owner"),
        ]


class ContextPolicy(models.TextChoices):
    """What happens when the history no longer fits the window. SUMMARISE does as TRUNCATE until a summary is there."""

    FULL = "full", _("Refuse when full")
    TRUNCATE = "truncate", _("Leave out the oldest turns")
    RECENT = "recent", _("Send only the latest turns")
    SUMMARISE = "summarise", _("Summarise the oldest turns")


class ThinkingInHistory(models.TextChoices):
    """Whether what a thinking model thought before an answer stays in the prompts of later turns.

    Kept thinking is replayed token by token, and its KV is reused. Without it prompts are shorter, and the KV of each
    answer has to be computed once more, which the engine does as soon as it is idle.
    """

    TEMPLATE = "template", _("As the model's template does")
    KEEP = "keep", _("Keep it")
    STRIP = "strip", _("Take it out")


class Preset(models.Model):
    """A system prompt with sampling values. Public ones (no owner, made in the admin) are offered to everybody."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        User, models.CASCADE, null=True, blank=True, related_name="presets", verbose_name=_("owner")
    )
    name = models.CharField(_("name"), max_length=80)
    system_prompt = models.TextField(_("system prompt"), blank=True)
    sampling = models.JSONField(_("sampling"), default=dict, blank=True)
    context_policy = models.CharField(
        _("context policy"), max_length=16, choices=ContextPolicy.choices, default=ContextPolicy.TRUNCATE
    )
    # For RECENT: how many tokens; 0: RECOLLECT_RECENT_TOKENS.
    recent_tokens = models.PositiveIntegerField(_("tokens of the latest turns"), default=0)
    has_recall = models.BooleanField(_("recalls what has left the window"), default=True)
    thinking_in_history = models.CharField(
        _("thinking in later prompts"),
        max_length=16,
        choices=ThinkingInHistory.choices,
        default=ThinkingInHistory.TEMPLATE,
    )
    is_thinking_off = models.BooleanField(_("answers without thinking"), default=False)
    is_default = models.BooleanField(_("default"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("preset")
        verbose_name_plural = _("presets")
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "name"], name="preset_owner_name_unique"),
            # SQLite has no NULLS NOT DISTINCT: two constraints say it
            models.UniqueConstraint(fields=["name"], condition=Q(owner__isnull=True), name="preset_public_name_unique"),
            models.UniqueConstraint(
                fields=["is_default"],
                condition=Q(is_default=True),
                name="preset_one_default",
                violation_error_message=_("There is a default preset already."),
            ),
            models.CheckConstraint(
                condition=Q(is_default=False) | Q(owner__isnull=True),
                name="preset_default_is_public",
                violation_error_message=_("The default preset must be public: without an owner."),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TitleSource(models.TextChoices):
    """Who named a conversation. A person's title is never replaced."""

    FIRST_WORDS = "first_words", _("First words")
    MODEL = "model", _("Model")
    PERSON = "person", _("Person")


class Conversation(models.Model):
    """A tree of messages and the settings frozen at its creation. active_leaf says which branch is on screen.

    The preset's values are copied, so a later change of the preset leaves old conversations and their cached KV alone.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        User,
        models.CASCADE,
        related_name="conversations",
        verbose_name=_("owner"),
        db_index=False,  # conversation_list begins with it
    )
    title = models.CharField(_("title"), max_length=200, blank=True)
    title_source = models.CharField(
        _("title by"), max_length=16, choices=TitleSource.choices, default=TitleSource.FIRST_WORDS
    )
    preset = models.ForeignKey(Preset, models.SET_NULL, null=True, blank=True, verbose_name=_("preset"))
    system_prompt = models.TextField(_("system prompt"), blank=True)
    system_prompt_is_public = models.BooleanField(_("system prompt is public"), default=False)
    model_name = models.CharField(_("model"), max_length=200, blank=True)
    sampling = models.JSONField(_("sampling"), default=dict, blank=True)
    context_policy = models.CharField(
        _("context policy"), max_length=16, choices=ContextPolicy.choices, default=ContextPolicy.FULL
    )
    # For RECENT: how many tokens; 0: RECOLLECT_RECENT_TOKENS.
    recent_tokens = models.PositiveIntegerField(_("tokens of the latest turns"), default=0)
    has_recall = models.BooleanField(_("recalls what has left the window"), default=False)
    thinking_in_history = models.CharField(
        _("thinking in later prompts"),
        max_length=16,
        choices=ThinkingInHistory.choices,
        default=ThinkingInHistory.TEMPLATE,
    )
    is_thinking_off = models.BooleanField(_("answers without thinking"), default=False)
    active_leaf = models.ForeignKey(
        "Message", models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("active leaf")
    )
    is_pinned = models.BooleanField(_("pinned"), default=False)
    is_archived = models.BooleanField(_("archived"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"))  # last turn, not last save: what the list is ordered by

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        ordering: ClassVar = ["-updated_at"]
        indexes: ClassVar = [
            # selectors.conversation_list: one owner's conversations, newest first
            models.Index(fields=["owner", "is_archived", "-is_pinned", "-updated_at", "-id"], name="conversation_list"),
            # the admin's list: everybody's, newest first
            models.Index(fields=["-updated_at", "-id"], name="conversation_newest"),
        ]

    def __str__(self) -> str:
        return self.title or str(self.id)


class Role(models.TextChoices):
    USER = "user", _("User")
    ASSISTANT = "assistant", _("Assistant")


class MessageStatus(models.TextChoices):
    """QUEUED to WRITING are open; the other four are the only ends of a turn. A user message is always DONE."""

    QUEUED = "queued", _("Queued")
    READING = "reading", _("Reading")
    WRITING = "writing", _("Writing")
    DONE = "done", _("Done")
    STOPPED = "stopped", _("Stopped")
    INTERRUPTED = "interrupted", _("Interrupted")
    FAILED = "failed", _("Failed")


OPEN_STATUSES = (MessageStatus.QUEUED, MessageStatus.READING, MessageStatus.WRITING)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as Message.token_ids stores them: little-endian u32, end to end."""
    ids = tuple(ids)
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(raw: bytes | memoryview) -> tuple[int, ...]:
    """The ids that pack_ids packed."""
    return struct.unpack(f"<{len(raw) // 4}I", raw)


class Message(models.Model):
    """One node of the tree. Siblings are versions of one another; `position` is the depth (0 for the first).

    token_ids: little-endian u32, what the model generated for this text (without the end-of-turn token), valid only
    under token_fingerprint. client_id: made by whoever sends, so that the same send twice is stored once.
    thinking_chars, thinking_tokens: so much at the head of text and token_ids is thinking, marks and the white space
    behind them included. No tokens beside some characters: the answer begins inside a token.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(
        Conversation,
        models.CASCADE,
        related_name="messages",
        verbose_name=_("conversation"),
        db_index=False,  # message_transcript begins with it
    )
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="children", verbose_name=_("parent")
    )
    role = models.CharField(_("role"), max_length=16, choices=Role.choices)
    text = models.TextField(_("text"), blank=True)
    status = models.CharField(_("status"), max_length=16, choices=MessageStatus.choices, default=MessageStatus.DONE)
    error = models.TextField(_("error"), blank=True)  # for a person; only when FAILED
    client_id = models.UUIDField(_("client id"), null=True, blank=True)
    token_ids = models.BinaryField(_("token ids"), null=True, blank=True)
    token_fingerprint = models.CharField(_("token fingerprint"), max_length=64, blank=True)
    thinking_chars = models.PositiveIntegerField(_("characters of thinking"), default=0)
    thinking_tokens = models.PositiveIntegerField(_("tokens of thinking"), default=0)
    position = models.PositiveIntegerField(_("position"))
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering: ClassVar = ["position", "created_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["conversation", "client_id"],
                condition=Q(client_id__isnull=False),
                name="message_client_id_unique",
            ),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="message_role_known"),
            models.CheckConstraint(condition=Q(status__in=MessageStatus.values), name="message_status_known"),
            models.CheckConstraint(
                condition=Q(role=Role.ASSISTANT) | Q(status=MessageStatus.DONE), name="message_user_is_done"
            ),
            models.CheckConstraint(
                condition=(Q(parent__isnull=True) & Q(position=0)) | (Q(parent__isnull=False) & Q(position__gt=0)),
                name="message_root_has_position_0",
            ),
            models.CheckConstraint(condition=~Q(parent=F("id")), name="message_not_its_own_parent"),
            # one running reply per conversation: a second send waits for the first one's end or is refused
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(status__in=[s.value for s in OPEN_STATUSES]),
                name="message_one_open_per_conversation",
            ),
        ]
        indexes: ClassVar = [
            # the admin's inline: one conversation, top to bottom
            models.Index(fields=["conversation", "position"], name="message_transcript"),
            # the admin's list: everybody's, newest first
            models.Index(fields=["-created_at", "-id"], name="message_newest"),
            # services.recover_interrupted: what a crash left open
            models.Index(
                fields=["status"], condition=Q(status__in=[s.value for s in OPEN_STATUSES]), name="message_open"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_role_display()} {self.position}"  # not the text: a list would load them all

    @property
    def ids(self) -> tuple[int, ...] | None:
        """The stored token ids; None where none were stored. Valid only under token_fingerprint."""
        return None if self.token_ids is None else unpack_ids(self.token_ids)

    @property
    def answer(self) -> str:
        """The text without the thinking in front of it: what is copied, searched, exported and previewed."""
        return self.text[self.thinking_chars :]

    @property
    def is_open(self) -> bool:
        """Whether the turn that writes this message has not ended yet."""
        return self.status in OPEN_STATUSES


class TurnContext(models.Model):
    """What was put into a user turn besides its text: frozen when it was sent, and replayed verbatim from then on.

    text: as it stands in the prompt, in front of the message. sources: ids of the recalled messages, oldest first.
    """

    message = models.OneToOneField(
        Message, models.CASCADE, primary_key=True, related_name="context", verbose_name=_("message")
    )
    text = models.TextField(_("text"))
    sources = models.JSONField(_("sources"), default=list)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("turn context")
        verbose_name_plural = _("turn contexts")

    def __str__(self) -> str:
        return str(self.message_id)


class Summary(models.Model):
    """A text that stands in prompts for all messages from the first to `until`, on every branch that holds that one.

    Written by the model, perhaps changed by a person. An edit of a covered message makes another branch, whose prompts
    know nothing of it. earlier: the summary that was folded into this one. num_missing: so many of these messages it
    cannot know, for they had left the window without one when it was written.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(
        Conversation, models.CASCADE, related_name="summaries", verbose_name=_("conversation"), db_index=False
    )
    until = models.ForeignKey(Message, models.CASCADE, related_name="summaries", verbose_name=_("last message"))
    earlier = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("earlier summary")
    )
    text = models.TextField(_("text"))
    num_messages = models.PositiveIntegerField(_("messages"))
    num_missing = models.PositiveIntegerField(_("messages it does not know"), default=0)
    model_name = models.CharField(_("model"), max_length=200, blank=True)
    is_edited = models.BooleanField(_("changed by a person"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("summary")
        verbose_name_plural = _("summaries")
        indexes: ClassVar = [
            # selectors.summaries: those of one conversation, newest first
            models.Index(fields=["conversation", "-created_at"], name="summary_of_conversation"),
        ]

    def __str__(self) -> str:
        return gettext("%(num)s messages") % {"num": self.num_messages}


class SearchEntry(models.Model):
    """Under which words a message is found. keys: see search.py; ASCII words, between blanks.

    The index itself is made by the migration: a table of FTS5 on SQLite, kept by triggers, GIN on PostgreSQL. (SQLite
    drops triggers when a migration changes the columns of this table: make them anew there.)
    """

    message = models.OneToOneField(Message, models.CASCADE, related_name="search_entry", verbose_name=_("message"))
    keys = models.TextField(_("keys"))

    class Meta:
        verbose_name = _("search entry")
        verbose_name_plural = _("search entries")

    def __str__(self) -> str:
        return str(self.message_id)


class MessageVector(models.Model):
    """What a message means, as an encoder says (llm.sentences): made beside the turns, made again when it is lost.

    encoder: the fingerprint of who made it. vector: float16, little-endian.
    """

    message = models.ForeignKey(
        Message,
        models.CASCADE,
        related_name="vectors",
        verbose_name=_("message"),
        db_index=False,  # message_vector_unique begins with it
    )
    encoder = models.CharField(_("encoder"), max_length=32)
    vector = models.BinaryField(_("vector"))

    class Meta:
        verbose_name = _("vector of a message")
        verbose_name_plural = _("vectors of messages")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["message", "encoder"], name="message_vector_unique"),
        ]

    def __str__(self) -> str:
        return str(self.message_id)


class PrefixBreak(models.TextChoices):
    """Why no more of a prompt was reused (turn.causes): it begins otherwise than what earlier turns had sent, or the
    engine no longer had what they left."""

    FIRST_USE = "first_use", _("First use")  # nobody has read it before
    EDITED = "edited", _("Edited")
    PRESET_CHANGED = "preset_changed", _("Another preset or system prompt")
    MODEL_CHANGED = "model_changed", _("Another model answered before")
    THINKING_STRIPPED = "thinking_stripped", _("Thinking was taken out")
    REPLY_ENCODED = "reply_encoded", _("A reply was encoded again")
    TEMPLATE_REWROTE = "template_rewrote", _("The template wrote it otherwise")
    WINDOW_MOVED = "window_moved", _("The window has moved")
    SUMMARY_REPLACED = "summary_replaced", _("A summary replaced messages")
    EVICTED = "evicted", _("Evicted")
    PURGED = "purged", _("Purged")
    RESTORE_FAILED = "restore_failed", _("Its file could not be used")
    RESTARTED = "restarted", _("Restarted, and not on disk")
    UNLOADED = "unloaded", _("The model had been unloaded")
    OTHER_SALT = "other_salt", _("Another secret key")
    DISABLED = "disabled", _("The cache is off")
    UNKNOWN = "unknown", _("Unknown")


class Generation(models.Model):
    """One attempt to answer: which message it wrote, with which model and values, and what it cost.

    num_prompt_tokens = num_reused_ram + num_reused_disk + num_computed, enforced by the schema. Of them num_known had
    been read by earlier turns of the conversation. prefix_break: why no more was reused, "" when there was no more;
    from break_message on, None for the beginning. break_position is its depth: so that no page has to read the message.
    sent: what later prompts are compared with (turn.sent).
    A message has several when it was continued; regenerate makes a new message. thinking_s: how long the model has
    thought about the message in all, attempts that this one continues included.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    message = models.ForeignKey(Message, models.CASCADE, related_name="generations", verbose_name=_("message"))
    model_name = models.CharField(_("model"), max_length=200)
    model_fingerprint = models.CharField(_("model fingerprint"), max_length=64, blank=True)
    kernel_tier = models.CharField(_("kernel tier"), max_length=32, blank=True)
    sampling = models.JSONField(_("sampling"), default=dict)
    seed = models.BigIntegerField(_("seed"), null=True, blank=True)
    finish_reason = models.CharField(_("finish reason"), max_length=16, blank=True)
    num_prompt_tokens = models.PositiveIntegerField(_("prompt tokens"), default=0)
    num_reused_ram = models.PositiveIntegerField(_("reused from RAM"), default=0)
    num_reused_disk = models.PositiveIntegerField(_("reused from disk"), default=0)
    num_computed = models.PositiveIntegerField(_("computed"), default=0)
    num_generated = models.PositiveIntegerField(_("generated"), default=0)
    # Earlier replies whose ids were another tokenizer's, or missing.
    num_reencoded = models.PositiveIntegerField(_("replies encoded again"), default=0)
    queue_s = models.FloatField(_("queued, s"), default=0)
    ttft_s = models.FloatField(_("time to first token, s"), default=0)
    prefill_s = models.FloatField(_("prefill, s"), default=0)
    decode_s = models.FloatField(_("decode, s"), default=0)
    thinking_s = models.FloatField(_("thinking, s"), default=0)
    num_known = models.PositiveIntegerField(_("read before"), default=0)
    prefix_break = models.CharField(_("prefix ended by"), max_length=32, choices=PrefixBreak.choices, blank=True)
    # The context window: which message it began with (none: the first), how many had left it on this branch, and how
    # many of them with this very turn, which summary stood for them, for how many none did though the policy wants one,
    # and how many tokens a prompt might have when that was decided. is_cut_by_window: the reply ended for want of room.
    window_start = models.UUIDField(_("window begins with"), null=True, blank=True)
    num_outside = models.PositiveIntegerField(_("messages outside the window"), default=0)
    num_left = models.PositiveIntegerField(_("messages that left with this turn"), default=0)
    num_unsummarised = models.PositiveIntegerField(_("messages outside without a summary"), default=0)
    summary = models.ForeignKey(
        "Summary", models.SET_NULL, null=True, blank=True, related_name="generations", verbose_name=_("summary")
    )
    window_limit = models.PositiveIntegerField(_("window in tokens"), default=0)
    is_cut_by_window = models.BooleanField(_("cut by the window"), default=False)
    break_message = models.ForeignKey(
        Message,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("read again from"),
        db_index=False,  # generation_break serves deletions, and holds few rows
    )
    break_position = models.PositiveIntegerField(_("depth there"), null=True, blank=True)
    sent = models.BinaryField(_("what was sent"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("generation")
        verbose_name_plural = _("generations")
        ordering: ClassVar = ["-created_at"]
        indexes: ClassVar = [
            # the admin's list: everybody's, newest first
            models.Index(fields=["-created_at", "-id"], name="generation_newest"),
            # the same, of one cause
            models.Index(fields=["prefix_break", "-created_at", "-id"], name="generation_cause"),
            # deletions: whose cause lay in a message
            models.Index(fields=["break_message"], condition=Q(break_message__isnull=False), name="generation_break"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(num_prompt_tokens=F("num_reused_ram") + F("num_reused_disk") + F("num_computed")),
                name="generation_prompt_adds_up",
            ),
        ]

    def __str__(self) -> str:
        return gettext("%(model)s: %(prompt)s prompt, %(generated)s generated") % {
            "model": self.model_name,
            "prompt": self.num_prompt_tokens,
            "generated": self.num_generated,
        }

    @property
    def num_reused(self) -> int:
        """Prompt tokens whose KV was taken from the cache, wherever it lay."""
        return self.num_reused_ram + self.num_reused_disk

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second after the first one; 0 when there was only one."""
        return (self.num_generated - 1) / self.decode_s if self.decode_s > 0 and self.num_generated > 1 else 0.0
