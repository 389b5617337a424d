"""Any order of questions, edits, branches, regenerated replies and losses: the cause is what has happened, and none is
told exactly when all that was left of earlier turns was reused. An oracle keeps every token that was ever left.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapp import llm
from chatapp.models import Conversation, Generation, Message, PrefixBreak, Preset, User
from chatapp.turn.live import LiveTurn
from tests.chatapp.cause_engine import DEFAULT, OTHER, Studio, numbers_of, studio
from tests.examples import examples

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TURNS = ("ask", "ask", "branch", "edit", "again")
LOSSES = {
    "evict": PrefixBreak.EVICTED,
    "evict some": PrefixBreak.EVICTED,
    "purge": PrefixBreak.PURGED,
    "reload": PrefixBreak.UNLOADED,
    "restart": PrefixBreak.RESTARTED,
}
WORDS = ("the", "lighthouse", "on", "a", "northern", "cape", "was", "built", "in", "1783", "its", "keeper", "wrote")
actions = st.lists(
    st.tuples(st.sampled_from([*TURNS, *TURNS, *LOSSES, "switch"]), st.integers(0, 1000)), min_size=3, max_size=12
)


@dataclass
class World:
    """One conversation, and what the oracle knows of it."""

    s: Studio
    model: str = DEFAULT
    replies: list[LiveTurn] = field(default_factory=list)
    whole: dict[str, tuple[int, ...]] = field(default_factory=dict)  # message -> prompt and reply
    left: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # (model, tokens whose KV was kept)
    losses: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)

    async def do(self, action: str, number: int) -> None:
        if action in TURNS:
            await self.turn(action, random.Random(number))
        elif self.replies:
            await self.lose(action)

    async def lose(self, action: str) -> None:
        self.losses |= {LOSSES[action]} if action in LOSSES else set()
        match action:
            case "evict":
                await self.s.forget()
            case "evict some":
                await self.s.forget_some(3)
            case "purge":
                llm.purge(self.replies[0].conversation_id)
            case "reload":
                await self.s.reload(self.model)
            case "restart":
                await self.s.restart()
            case "switch":
                self.model = OTHER if self.model == DEFAULT else DEFAULT
                await Conversation.objects.aupdate(model_name=self.model)
                await asyncio.to_thread(llm.load, self.model)
                await self.s.loaded(self.model)

    async def turn(self, action: str, choice: random.Random) -> None:
        text, reply = (" ".join(choice.choices(WORDS, k=choice.randint(1, 9))) for _ in range(2))
        if not self.replies:
            turn = await self.s.ask(text, reply)
        elif action == "ask":
            turn = await self.s.ask(text, reply, after=self.replies[-1])
        elif action == "branch":
            turn = await self.s.ask(text, reply, after=choice.choice(self.replies))
        elif action == "edit":
            turn = await self.s.edit(choice.choice(self.replies), text, reply)
        else:
            turn = await self.s.again(choice.choice(self.replies), reply)
        await self.check(turn)
        self.replies.append(turn)

    async def check(self, turn: LiveTurn) -> None:
        numbers, prompt = await numbers_of(turn), self.s.worker.prompts[-1]
        usable = len(prompt) - 1
        left = [tokens for model, tokens in self.left if model == self.model]
        question = (await Message.objects.select_related("parent").aget(id=turn.message_id)).parent
        assert question is not None
        before = self.whole.get(str(question.parent_id), ())
        assert prompt[: len(before)] == before
        self.check_known(numbers, prompt, left)
        self.check_cause(numbers, max((common(prompt, each) for each in left), default=0), usable, len(before))
        if numbers.prefix_break == PrefixBreak.EDITED:
            assert await question.__class__.objects.filter(parent=question.parent_id).acount() > 1
        message = await Message.objects.aget(id=turn.message_id)
        assert message.ids is not None
        self.whole[str(message.id)] = tokens = (*prompt, *message.ids)
        self.left.append((self.model, tokens))
        self.models.add(self.model)

    def check_known(self, numbers: Generation, prompt: tuple[int, ...], left: list[tuple[int, ...]]) -> None:
        """No more than was left, and all of what a whole turn has left, or of a prompt that was sent before."""
        usable = len(prompt) - 1
        assert numbers.num_known <= max((common(prompt, each) for each in left), default=0)
        whole = [len(each) for each in left if prompt[: len(each)] == each]
        assert numbers.num_known >= min(usable, max(whole, default=0))

    def check_cause(self, numbers: Generation, most: int, usable: int, num_before: int) -> None:
        cause, num_reused = numbers.prefix_break, numbers.num_reused
        if not self.losses:
            assert num_reused >= min(most, usable), "the engine reuses all that is there, to the token"
        if cause == "":
            assert num_reused >= min(numbers.num_known, usable)
            assert num_reused >= min(num_before, usable)
            assert self.models, "the first turn is a first use"
        elif cause in LOSSES.values():
            assert num_reused < numbers.num_known
            assert cause in self.losses
        else:
            assert num_reused < usable
            assert cause in (PrefixBreak.FIRST_USE, PrefixBreak.EDITED, PrefixBreak.MODEL_CHANGED)
            assert cause != PrefixBreak.FIRST_USE or not self.models
            assert cause != PrefixBreak.MODEL_CHANGED or self.models - {self.model}
            assert cause != PrefixBreak.EDITED or num_reused >= num_before or self.losses
        assert (numbers.break_position is None) == (numbers.break_message_id is None)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(actions)
def test_a_cause_is_what_has_happened(alice: User, told: list[tuple[str, int]]) -> None:
    async def play() -> None:
        async with studio(alice) as s:
            world = World(s)
            for action, number in [("ask", 0), *told]:
                await world.do(action, number)

    Conversation.objects.all().delete()
    Preset.objects.get_or_create(
        name="Tests", is_default=True, system_prompt="You know lighthouses.", sampling={"temperature": 0.0}
    )
    asyncio.run(play())
