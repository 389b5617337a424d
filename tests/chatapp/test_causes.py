"""Why no more of a prompt was reused: each cause produced with the real engine, and read from the row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asgiref.sync import sync_to_async

from chatapp import llm
from chatapp.models import (
    ContextPolicy,
    Conversation,
    Generation,
    Message,
    PrefixBreak,
    Preset,
    Role,
    ThinkingInHistory,
    User,
)
from chatapp.services.summaries import summary_create
from chatapp.turn.live import LiveTurn
from tests.chatapp.cause_engine import OTHER, PLAIN, Studio, numbers_of, studio
from tests.inference.thinking_templates import THINKING

pytestmark = pytest.mark.django_db(transaction=True)

SYSTEM_PROMPT = "You know all lighthouses of the northern cape, and you answer in one sentence."
QUESTIONS = ("When was it built?", "Who kept it, and what was written down there?", "Is it far from here?")


class Told(NamedTuple):
    """What a row says: the cause, and the message from which on the prompt was read again ("head": all of it)."""

    cause: str
    where: str = ""


class Setup(NamedTuple):
    settings: Any
    folder: Path


Story = Callable[[Studio, Setup], Awaitable[LiveTurn]]
STORIES: dict[str, tuple[Story, dict[str, Any], Told]] = {}


def story(cause: str, where: str = "", **options: Any) -> Callable[[Story], Story]:
    """A story whose last turn must have this cause. options: of the studio."""

    def add(tell: Story) -> Story:
        STORIES[tell.__name__] = (tell, options, Told(cause, where))
        return tell

    return add


async def talk(s: Studio, num_turns: int = 2) -> LiveTurn:
    """The last of so many turns."""
    turn = await s.ask(QUESTIONS[0])
    for question in QUESTIONS[1:num_turns]:
        turn = await s.ask(question, after=turn)
    return turn


# --- the prompt is another --------------------------------------------------------------------------------------------


@story(PrefixBreak.FIRST_USE, "head")
async def a_new_conversation_after_another(s: Studio, _: Setup) -> LiveTurn:
    await talk(s)
    return await s.ask("Something else entirely.")


@story(PrefixBreak.FIRST_USE, "question 2")
async def what_a_killed_process_has_not_recorded(s: Studio, _: Setup) -> LiveTurn:
    first = await s.ask(QUESTIONS[0])
    second = await s.ask(QUESTIONS[1], after=first)
    await Generation.objects.filter(message_id=second.message_id).adelete()  # it never came to the end of its turn
    await s.restart()
    await s.edit(second, "Who painted it?")  # reads the first turn anew, in this process
    return await s.ask(QUESTIONS[2], after=second)


@story(PrefixBreak.EDITED, "question 2")
async def an_edited_question(s: Studio, _: Setup) -> LiveTurn:
    return await s.edit(await talk(s), "Who painted it?")


@story(PrefixBreak.EDITED, "question 1")
async def the_first_question_edited(s: Studio, _: Setup) -> LiveTurn:
    return await s.edit(await talk(s, 1), "What is it?")


@story(PrefixBreak.PRESET_CHANGED, "head")
async def another_system_prompt(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await Conversation.objects.filter(id=turn.conversation_id).aupdate(system_prompt="Be brief, and rhyme.")
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.MODEL_CHANGED, "head")
async def another_model(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await choose(turn, OTHER)
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.MODEL_CHANGED, "question 2")
async def back_to_the_model_before(s: Studio, _: Setup) -> LiveTurn:
    """It remembers what it had read itself."""
    turn = await talk(s, 1)
    await choose(turn, OTHER)
    turn = await s.ask(QUESTIONS[1], after=turn)
    await choose(turn, "first")
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.MODEL_CHANGED, "head")
async def a_first_reply_made_again_by_another_model(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s, 1)
    await choose(turn, OTHER)
    return await s.again(turn)


@story(PrefixBreak.THINKING_STRIPPED, "reply 2", template=THINKING["switched"])
async def thinking_taken_out(s: Studio, _: Setup) -> LiveTurn:
    turn = await s.ask(QUESTIONS[0], "It was built in 1783.")
    turn = await s.ask(QUESTIONS[1], "<think>\nLet me see who it was.\n</think>\n\nA woman.", after=turn)
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.THINKING_STRIPPED, "reply 1", template=THINKING["switched"])
async def thinking_no_longer_kept(s: Studio, _: Setup) -> LiveTurn:
    await Preset.objects.filter(is_default=True).aupdate(thinking_in_history=ThinkingInHistory.KEEP)
    turn = await s.ask(QUESTIONS[0], "<think>\nLet me see.\n</think>\n\nIn 1783.")
    turn = await s.ask(QUESTIONS[1], "A woman.", after=turn)
    await Conversation.objects.aupdate(thinking_in_history=ThinkingInHistory.STRIP)
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.REPLY_ENCODED, "reply 2")
async def a_stop_string_inside_a_token(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s, 1)
    await Conversation.objects.aupdate(sampling={"temperature": 0.0, "stop": ["hthouse"]})
    turn = await s.ask(QUESTIONS[1], "The lighthouse.", after=turn)
    assert (await Message.objects.aget(id=turn.message_id)).token_ids is None
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.REPLY_ENCODED, "reply 1")
async def a_reply_continued_without_its_ids(s: Studio, _: Setup) -> LiveTurn:
    turn = await cut(s)
    await Message.objects.filter(id=turn.message_id).aupdate(token_ids=None)
    # One token of the text as it is encoded again was never one that the model wrote.
    await Message.objects.filter(id=turn.message_id).aupdate(text="It was bui")
    return await s.go_on(turn)


@story(
    PrefixBreak.TEMPLATE_REWROTE,
    "question 2",
    template=PLAIN.replace(
        "m.content", "('Now: ' if m.role == 'user' and loop.index > messages|length - 1 else '') + m.content"
    ),
)
async def a_template_that_writes_otherwise_about_the_last_question(s: Studio, _: Setup) -> LiveTurn:
    return await talk(s, 3)


@story(PrefixBreak.WINDOW_MOVED, "question 5", max_model_len=480)
async def turns_that_have_left_the_window(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s, 1)
    await Conversation.objects.aupdate(context_policy=ContextPolicy.TRUNCATE)
    while not (await numbers_of(turn)).num_outside:
        turn = await s.ask(QUESTIONS[1], after=turn)
    return turn


@story("", max_model_len=480)
async def a_conversation_that_goes_on_in_its_window(s: Studio, setup: Setup) -> LiveTurn:
    return await s.ask("Why?", after=await turns_that_have_left_the_window(s, setup))


@story(PrefixBreak.SUMMARY_REPLACED, "head", max_model_len=480)
async def a_summary_in_their_place(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    summary = await sync_to_async(summary_create)(until_id=turn.message_id, text="Built in 1783.", model_name="")
    assert summary is not None
    for _number in range(3):
        turn = await s.ask(QUESTIONS[1], after=turn)
    await Conversation.objects.aupdate(context_policy=ContextPolicy.SUMMARISE, has_recall=False)
    return await s.ask(QUESTIONS[1], after=turn)


# --- the engine no longer has it --------------------------------------------------------------------------------------


@story(PrefixBreak.EVICTED, "question 1", pool_tokens=320)
async def a_small_pool(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    for number in range(6):
        await s.ask(f"Number {number} of many. " * 4)
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.EVICTED, "reply 2")
async def the_last_rows_of_a_block(s: Studio, _: Setup) -> LiveTurn:
    """A partly filled block is the first to go."""
    turn = await talk(s)
    cache = s.engines[0].cache
    await asyncio.to_thread(s.worker._call, lambda: drop_tail(cache))
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.EVICTED, "head")
async def a_regenerated_reply_whose_prompt_is_gone(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await s.forget()
    return await s.again(turn)


@story(PrefixBreak.PURGED, "question 1")
async def a_purge(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    llm.purge(turn.conversation_id)
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.RESTARTED, "head")
async def a_restart_without_a_disk(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await s.restart()
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.RESTARTED, "head")
async def a_restart_with_an_emptied_disk(s: Studio, setup: Setup) -> LiveTurn:
    await s.restart(kv_dir=setup.folder, kv_disk_bytes=1 << 24)
    turn = await talk(s)
    await s.stop()
    for path in files_in(setup.folder):
        path.unlink()
    await s.start()
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.RESTORE_FAILED, "head")
async def a_damaged_file(s: Studio, setup: Setup) -> LiveTurn:
    await s.restart(kv_dir=setup.folder, kv_disk_bytes=1 << 24)
    turn = await talk(s)
    await s.stop()
    for path in files_in(setup.folder):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    await s.start()
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.UNLOADED, "head")
async def a_model_that_had_left(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await s.reload()
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.OTHER_SALT, "question 1")
async def another_secret_key(s: Studio, setup: Setup) -> LiveTurn:
    turn = await talk(s)
    setup.settings.SECRET_KEY = "another"
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.DISABLED, "head", is_prefix_cache_enabled=False)
async def the_cache_switched_off(s: Studio, _: Setup) -> LiveTurn:
    return await talk(s)


@story(PrefixBreak.DISABLED, "question 2")
async def the_cache_off_for_a_while(s: Studio, setup: Setup) -> LiveTurn:
    await s.restart(kv_dir=setup.folder, kv_disk_bytes=1 << 24)
    turn = await talk(s, 1)
    await s.restart(is_prefix_cache_enabled=False)
    turn = await s.ask(QUESTIONS[1], "So.", after=turn)
    await s.restart(is_prefix_cache_enabled=True)
    told = await s.ask(QUESTIONS[2], after=turn)
    numbers = await numbers_of(told)
    assert 0 < numbers.num_known <= numbers.num_reused_disk
    return told


@story(PrefixBreak.DISABLED, "head", is_prefix_cache_enabled=False)
async def the_cache_off_in_the_beginning(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s, 1)
    await s.restart(is_prefix_cache_enabled=True)
    return await s.ask(QUESTIONS[1], after=turn)


@story(PrefixBreak.UNKNOWN, "head")
async def turns_from_before_such_things_were_kept(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await Generation.objects.aupdate(sent=None)
    await s.restart()
    return await s.ask(QUESTIONS[2], after=turn)


@story(PrefixBreak.MODEL_CHANGED, "question 2")
async def of_two_causes_the_one_that_costs_more_is_told_the_first(s: Studio, _: Setup) -> LiveTurn:
    """Little was evicted of what this model had read, much was never read by it."""
    turn = await s.ask("Why?", "So.")
    await choose(turn, OTHER)
    turn = await s.ask(QUESTIONS[1], "The lighthouse on the northern cape was built in 1783. " * 3, after=turn)
    await s.forget()
    await choose(turn, "first")
    told = await s.ask(QUESTIONS[2], after=turn)
    numbers = await numbers_of(told)
    assert numbers.num_known > numbers.num_reused
    return told


@story(PrefixBreak.EVICTED, "head")
async def of_two_causes_the_one_that_costs_more_is_told_the_second(s: Studio, _: Setup) -> LiveTurn:
    turn = await talk(s)
    await s.forget()
    return await s.edit(turn, "Why?")


# --- nothing to explain -----------------------------------------------------------------------------------------------


@story("")
async def a_conversation_that_goes_on(s: Studio, _: Setup) -> LiveTurn:
    return await talk(s, 3)


@story("")
async def a_regenerated_reply(s: Studio, _: Setup) -> LiveTurn:
    turn = await s.again(await talk(s))
    assert (await numbers_of(turn)).num_computed == 0
    return turn


@story("")
async def a_question_after_a_regenerated_reply(s: Studio, _: Setup) -> LiveTurn:
    return await s.ask(QUESTIONS[2], after=await s.again(await talk(s)))


@story("")
async def a_continued_reply(s: Studio, _: Setup) -> LiveTurn:
    return await s.go_on(await cut(s))


@story("")
async def a_question_after_a_continued_reply(s: Studio, _: Setup) -> LiveTurn:
    turn = await s.go_on(await cut(s))
    return await s.ask(QUESTIONS[2], after=turn)


@story("")
async def an_edit_that_changes_nothing(s: Studio, _: Setup) -> LiveTurn:
    return await s.edit(await talk(s), QUESTIONS[1])


@story("")
async def back_on_an_old_branch(s: Studio, _: Setup) -> LiveTurn:
    first = await talk(s, 1)
    old = await s.ask(QUESTIONS[1], after=first)
    await s.edit(old, "Who painted it?")
    return await s.ask(QUESTIONS[2], after=old)


@story("")
async def a_restart_with_a_disk(s: Studio, setup: Setup) -> LiveTurn:
    await s.restart(kv_dir=setup.folder, kv_disk_bytes=1 << 24)
    turn = await talk(s)
    await s.restart()
    turn = await s.ask(QUESTIONS[2], after=turn)
    assert (await numbers_of(turn)).num_reused_disk
    return turn


@story("")
async def a_conversation_that_was_said_before_word_for_word(s: Studio, _: Setup) -> LiveTurn:
    await talk(s, 1)
    return await talk(s, 1)


# --- the table --------------------------------------------------------------------------------------------------------


async def choose(turn: LiveTurn, model: str) -> None:
    await Conversation.objects.filter(id=turn.conversation_id).aupdate(model_name=model)


async def cut(s: Studio) -> LiveTurn:
    """A first turn whose reply was cut by length."""
    await Preset.objects.filter(is_default=True).aupdate(sampling={"temperature": 0.0, "max_tokens": 6})
    return await talk(s, 1)


def drop_tail(cache: Any) -> None:
    for block_id in [i for i, num in enumerate(cache.blocks.num_rows) if 0 < num < cache.block_size]:
        cache._forget(block_id, llm.MissCause.EVICTED)


def files_in(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*.kv*") if path.is_file()]
    assert found
    return found


async def where(generation: Generation) -> str:
    message = generation.break_message
    if message is None:
        return "head"
    assert message.position == generation.break_position
    return f"{'question' if message.role == Role.USER else 'reply'} {message.position // 2 + 1}"


@pytest.mark.parametrize("name", STORIES)
async def test_the_row_tells_the_cause(name: str, alice: User, settings: Any, tmp_path: Path) -> None:
    tell, options, expected = STORIES[name]
    await Preset.objects.acreate(
        name="Tests",
        is_default=True,
        system_prompt=SYSTEM_PROMPT,
        sampling={"temperature": 0.0},
    )
    async with studio(alice, **options) as s:
        numbers = await numbers_of(await tell(s, Setup(settings, tmp_path)))
    assert Told(numbers.prefix_break, await where(numbers) if numbers.prefix_break else "") == expected
    assert numbers.num_prompt_tokens == numbers.num_reused + numbers.num_computed


def test_every_cause_has_a_story() -> None:
    assert {told.cause for _, _, told in STORIES.values()} == {*PrefixBreak.values, ""}
