"""The admin: every page opens, in few queries, and shows text as text."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from chatapp import llm
from chatapp.models import Conversation, Generation, Message, PrefixBreak, Preset, Summary, TurnContext, User
from chatapp.services.conversations import conversation_rename
from chatapp.services.turns import GenerationNumbers
from tests.chatapp.rows import NUMBERS, long_conversation, many_conversations, turn

pytestmark = pytest.mark.django_db

MODELS = (User, Preset, Conversation, Message, Generation, Summary, TurnContext)
XSS = '<img src=x onerror=alert("XSS_POC")>'


def _list(model: Any) -> str:
    return reverse(f"admin:chatapp_{model._meta.model_name}_changelist")


def _change(row: Any) -> str:
    return reverse(f"admin:chatapp_{row._meta.model_name}_change", args=[row.pk])


# --- the door ---------------------------------------------------------------------------------------------------------


def _all_pages() -> list[str]:
    return [reverse("admin:index"), reverse("admin:engine"), *map(_list, MODELS)]


def test_visitor_is_sent_to_the_one_log_in(owner: User, client: Client) -> None:
    for page in _all_pages():
        answer = client.get(page, follow=True)
        assert answer.redirect_chain[-1][0].startswith(f"{reverse('login')}?next=")


def test_log_in_of_the_admin_takes_no_password(owner: User, client: Client) -> None:
    answer = client.post(reverse("admin:login"), {"username": "ada", "password": "correct horse battery"})
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith(reverse("login"))
    assert "_auth_user_id" not in client.session


def test_person_who_is_no_staff_is_refused(owner: User, alice: User, client: Client) -> None:
    client.force_login(alice)
    for page in _all_pages():
        assert client.get(page, follow=True).status_code == 403


def test_every_model_of_ours_is_registered() -> None:
    assert {model for model in admin.site._registry if model._meta.app_label == "chatapp"} == set(MODELS)


# --- every page -------------------------------------------------------------------------------------------------------


def test_statuses_are_shown_in_words(staff: Client, owner: User) -> None:
    conversation = turn(owner, "Hello").conversation
    for page in (_list(Message), _change(conversation)):
        shown = staff.get(page).content.decode()
        assert "Done" in shown
        assert "&#x27;done&#x27;" not in shown


def test_every_page_opens_under_the_admins_policy(staff: Client, owner: User) -> None:
    rows = turn(owner, "Hello")
    preset = Preset.objects.create(name="Plain")
    generation = Generation.objects.get()
    pages = [
        *_all_pages(),
        *(_change(row) for row in (owner, preset, rows.conversation, rows.user_message, generation)),
        *(f"{_list(model)}?q=hello" for model in MODELS),
        *(reverse(f"admin:chatapp_{name}_add") for name in ("preset", "user")),
        reverse("admin:chatapp_conversation_delete", args=[rows.conversation.pk]),
        reverse("admin:auth_group_changelist"),
        reverse("admin:password_change"),
        f"{reverse('admin:autocomplete')}?app_label=chatapp&model_name=preset&field_name=owner&term=a",
        f"{reverse('admin:search')}?s=conv",
    ]
    for page in pages:
        answer = staff.get(page)
        assert answer.status_code == 200, page
        policy = answer.headers["Content-Security-Policy"]
        assert "script-src 'self' 'unsafe-eval';" in policy + ";"
        assert "style-src 'self' 'unsafe-inline';" in policy + ";"
        assert "default-src 'none'" in policy
        assert not re.search(rb"<script(?![^>]*\ssrc=)(?![^>]*application/json)|\son[a-z]+=\"", answer.content), page


def test_filters_and_pages_beyond_the_end_open(staff: Client, owner: User) -> None:
    turn(owner)
    for query in (
        *("?is_pinned__exact=1", "?title_source__exact=person", "?p=7"),
        "?updated_at__gte=2020-01-01+00%3A00%3A00%2B00%3A00",
    ):
        assert staff.get(_list(Conversation) + query).status_code == 200
    for query in ("?role__exact=user", "?status__exact=failed", "?p=3"):
        assert staff.get(_list(Message) + query).status_code == 200
    for query, shown in (("?finish_reason=stop", True), ("?finish_reason=length", False)):
        answer = staff.get(_list(Generation) + query)
        assert (b"30" in answer.content and str(owner.conversations.get()) in answer.content.decode()) is shown


def broken_turn(owner: User, **changes: Any) -> Any:
    """A turn whose numbers say from which message on its prompt was read again."""
    rows = turn(owner)
    numbers = replace(NUMBERS, prefix_break=PrefixBreak.EDITED, break_message_id=rows.user_message.id, break_position=4)
    later = turn(owner, conversation=rows.conversation, parent_id=rows.assistant_message.id)
    later.assistant_message.generations.update(**asdict(replace(numbers, **changes)))
    return later


def test_generations_are_listed_by_cause_with_a_link_to_the_message(staff: Client, owner: User) -> None:
    rows = broken_turn(owner)
    link = _change(rows.user_message.parent.parent)
    page = staff.get(_list(Generation) + "?prefix_break=edited").content.decode()
    assert f'<a href="{link}" class="text-link">question 3</a>' in page
    assert page.count("question 3") == 1
    assert staff.get(_list(Generation) + "?prefix_break=evicted").content.decode().count("question 3") == 0
    page = staff.get(_change(rows.assistant_message.generations.get())).content.decode()
    assert f'<a href="{link}" class="text-link">question 3</a>' in page


def test_an_attempt_that_never_ran_shows_no_numbers(staff: Client, owner: User) -> None:
    rows = turn(owner)
    nothing = GenerationNumbers(model_name="tiny", finish_reason="cancelled")
    rows.assistant_message.generations.update(**asdict(nothing))
    listed = staff.get(_list(Generation)).content.decode()
    cells = re.findall(r"field-(num_\w+|ttft\w*|speed)\b.*?>\s*([\d.–]+)\s*<", listed, re.S)
    assert len(cells) == 7
    assert {value for _, value in cells} == {"–"}
    for page in (_change(Generation.objects.get()), _change(rows.assistant_message)):
        assert staff.get(page).content.decode().count("–") >= 6, page


def test_unknown_causes_are_counted(staff: Client, owner: User) -> None:
    assert "Unknown (0)" in staff.get(_list(Generation)).content.decode()
    broken_turn(owner, prefix_break=PrefixBreak.UNKNOWN, break_message_id=None, break_position=None)
    assert "Unknown (1)" in staff.get(_list(Generation)).content.decode()
    assert "the beginning" in staff.get(_list(Generation) + "?prefix_break=unknown").content.decode()


def test_a_conversation_shows_what_each_reply_has_reused(staff: Client, owner: User) -> None:
    rows = broken_turn(owner)
    page = staff.get(_change(rows.conversation)).content.decode()
    assert len(re.findall(r"66.7\s*%", page)) == 2
    assert page.count("Edited") == 1


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_list_takes_as_many_queries_for_many_rows_as_for_few_and_counts_nothing(
    model: Any, staff: Client, owner: User, django_assert_num_queries: Any
) -> None:
    turn(owner)
    Preset.objects.create(name="First", owner=owner)
    with django_assert_num_queries(10, exact=False) as few:
        staff.get(_list(model))
    long_conversation(owner, 120)
    many_conversations(owner, 60)
    for i in range(30):
        Preset.objects.create(name=f"Preset {i}", owner=User.objects.create(username=f"user{i}"))
    with django_assert_num_queries(len(few)) as many:
        answer = staff.get(_list(model))
        assert answer.status_code == 200
    if model in (Conversation, Message, Generation):
        found = [query["sql"] for query in many if f'FROM "chatapp_{model._meta.model_name}"' in query["sql"]]
        # The unknown causes are counted, to a thousand at most.
        statements = [sql for sql in found if not ("COUNT(" in sql and "LIMIT 1000" in sql)]
        assert len(found) - len(statements) == (model is Generation)
        assert len(statements) == 1
        assert "COUNT(" not in statements[0]
        assert '"token_ids"' not in statements[0]
        assert '"system_prompt"' not in statements[0]


def test_conversation_page_takes_as_many_queries_at_any_length(
    staff: Client, owner: User, django_assert_num_queries: Any
) -> None:
    short, long = long_conversation(owner, 4), long_conversation(owner, 400)
    with django_assert_num_queries(14, exact=False) as few:
        assert staff.get(_change(short)).status_code == 200
    with django_assert_num_queries(len(few)):
        answer = staff.get(_change(long))
    assert answer.content.count(b"message ") < 25 * 40  # one page of excerpts, not 400 texts


# --- text is text -----------------------------------------------------------------------------------------------------


def test_hostile_text_is_shown_as_text(staff: Client, owner: User) -> None:
    preset = Preset.objects.create(name=XSS, system_prompt=XSS, sampling={"stop": [XSS]}, owner=owner)
    rows = turn(owner, XSS, XSS, preset_id=preset.id)
    conversation_rename(user=owner, conversation_id=rows.conversation.id, title=XSS)
    Message.objects.filter(id=rows.assistant_message.id).update(status="failed", error=XSS)
    Generation.objects.update(model_name=XSS, sampling={"stop": [XSS]})
    for page in (
        *_all_pages(),
        *map(_change, (preset, rows.conversation, rows.user_message, rows.assistant_message, Generation.objects.get())),
        reverse("admin:chatapp_conversation_delete", args=[rows.conversation.pk]),
        reverse("admin:chatapp_preset_delete", args=[preset.pk]),
        reverse("admin:chatapp_preset_history", args=[preset.pk]),
        f"{_list(Conversation)}?q=%3Cimg+src%3Dx",
    ):
        answer = staff.get(page)
        assert answer.status_code == 200, page
        assert "<img src=x" not in answer.content.decode(), page


# --- the engine -------------------------------------------------------------------------------------------------------


def _model() -> llm.ModelInfo:
    return llm.ModelInfo(
        name="Tiny<1>",
        path="/models/tiny.gguf",
        architecture="llama",
        num_parameters=1000,
        num_layers=2,
        vocab_size=300,
        max_position_embeddings=2048,
        kernel_tier="numpy",
        fingerprint="f" * 32,
        tokenizer_fingerprint="t" * 32,
        kv_bytes_per_token=1024,
    )


def test_engine_page_without_an_engine_says_so(staff: Client) -> None:
    page = staff.get(reverse("admin:engine")).content.decode()
    assert "off" in page
    assert str(llm.status().message) in page


def test_engine_page_shows_pool_ratios_and_queue(staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = llm.EngineStats(
        num_running=3,
        num_waiting=5,
        max_waiting=32,
        num_blocks=200,
        num_blocks_used=50,
        num_blocks_cached=100,
        num_blocks_free=50,
        num_requests=4,
        num_prompt_tokens=1000,
        num_reused_ram=600,
        num_reused_disk=50,
        num_computed=350,
        cache=llm.CacheStats(since_start=llm.HitCounts(4, 3, 1000, 650, 60, 40)),
    )
    status = llm.EngineStatus(llm.EngineState.READY, 1.0, "", _model(), stats)
    monkeypatch.setattr(llm, "status", lambda *_name: status)
    page = staff.get(reverse("admin:engine")).content.decode()
    for shown in ("65.0\xa0%", "75.0\xa0%", "5 / 32", "Tiny&lt;1&gt;", "width: 25.00%", "width: 50.00%", "numpy"):
        assert shown in page
    assert "Tiny<1>" not in page


def test_engine_page_before_the_first_request_divides_by_nothing(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = llm.EngineStatus(llm.EngineState.LOADING, 0.4, "The model is being loaded.", None, llm.EngineStats())
    monkeypatch.setattr(llm, "status", lambda *_name: status)
    page = staff.get(reverse("admin:engine")).content.decode()
    assert 'value="40"' in page


def test_sidebar_links_to_the_engine(staff: Client) -> None:
    assert f'href="{reverse("admin:engine")}"' in staff.get(reverse("admin:index")).content.decode()
