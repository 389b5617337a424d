"""Messages to prompt ids, through the model's own chat template.

The template decides what stands around the messages; it never decides what a message becomes. Text is encoded as plain
text, ids are taken over as they are, and control tokens come from the template alone (see sealing and sandbox).
For text in which no control token is spelled out, the ids are those of the reference implementation: render the whole
conversation, then encode it with control tokens recognised. One thing differs for replies that come as ids: in front of
them stands what stood there when they were generated. Some templates would write something else there afterwards (a
line break more, an empty thought less), and nothing behind it could be reused.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from inference.errors import TemplateError
from inference.notes import Note
from inference.tokenizer.dates import strftime_of
from inference.tokenizer.draft import Draft, Place
from inference.tokenizer.layout import Layout, locate, marks, split_marks
from inference.tokenizer.open_prompt import Beginning, OpenPrompt
from inference.tokenizer.sandbox import Sandbox
from inference.tokenizer.sealing import Piece, Sealer, Seals
from inference.tokenizer.span_cache import SpanCache
from inference.tokenizer.template_lint import TurnCost, history_notes, removes_thinking
from inference.tokenizer.template_trial import try_template
from inference.tokenizer.thinking import ThinkingMarks, find_marks
from inference.tokenizer.tokenizer import EncodedSpan, Tokenizer
from inference.types import I32, ChatMessage, Prompt

# For a file without a template whose vocabulary has ChatML's tokens.
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

ROLE = re.compile(r"[a-z_]{1,32}")
PROBE_IDS = (0,)  # stands for any reply; only where it lands matters
PROBE_DAY = datetime.date(2024, 7, 26)
MAX_CACHED_HEAD_CHARS = 1 << 20
BUILDER_VERSION = 3  # part of the fingerprint: raise it when the same messages would give other ids


class Variables(NamedTuple):
    """What a prompt tells the template besides the messages."""

    add_generation_prompt: bool = True
    today: datetime.date | None = None
    is_thinking_off: bool = False


HeadKey = tuple[Variables, str, tuple[str, ...]]  # variables, role, leading system prompts


class Headers(NamedTuple):
    """What the template writes in front of a reply that is there, and in front of one that is to be generated."""

    earlier: str = ""
    generation_prompt: str = ""


class ChatTemplate:
    """Builds prompts. Thread-safe.

    stop_token_ids    end a reply: the file's end tokens, whatever the template itself writes after a reply, and every
                      other control token but those that belong inside replies (<think>): what is stored of a reply
                      is replayed in the next prompt, where <|im_start|> would begin a turn
    is_prefix_stable  the prompt of a turn plus its reply begins the prompt of the next turn, so that it can be reused;
                      false for templates that write differently about a message once others have followed
    strips_thinking   the template leaves the thinking out of earlier replies
    can_switch_thinking  the template knows enable_thinking
    takes_system_prompt  the template has a place for one, and does not refuse or drop it
    history_notes     what the template does to earlier messages, and what that costs; often none
    fingerprint       hex; changes when the same messages would give other ids

    Raises TemplateError when the template does not compile or fails on a plain conversation, and when there is none and
    the vocabulary has no ChatML tokens to build one from.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None) -> None:
        if source is None:
            if not all(token in tokenizer.special_tokens for token in CHATML_TOKENS):
                raise TemplateError("the model has no chat template, and no ChatML tokens to build one from")
            source = CHATML
        self.source = source
        self._tokenizer = tokenizer
        try_template(source, tuple(sorted(tokenizer.named_tokens.items())))
        self._sandbox = Sandbox(source)
        self._sealer = Sealer(tokenizer.controls)
        self._headers = (Headers(), Headers())  # with thinking, and with thinking switched off
        self._control_ids = {
            token: EncodedSpan(np.array([token], np.int32), ()) for token in tokenizer.special_tokens.values()
        }
        self._heads: SpanCache[HeadKey, I32] = SpanCache(MAX_CACHED_HEAD_CHARS, lambda key: len("".join(key[2])))
        facts = f"{BUILDER_VERSION}\0{tokenizer.fingerprint}\0{source}"
        self.fingerprint: str = hashlib.sha256(facts.encode()).hexdigest()
        self._headers = self._find_headers(is_thinking_off=False), self._find_headers(is_thinking_off=True)
        self.stop_token_ids: tuple[int, ...] = self._find_stop_token_ids()
        costs = self._turn_costs()
        self.is_prefix_stable: bool = not any(cost.num_reread for cost in costs)
        self.history_notes: tuple[Note, ...] = history_notes(self._probe, costs)
        self.can_switch_thinking: bool = self._find_switch()
        self.takes_system_prompt: bool = self._find_system_prompt()
        marks = self.thinking_marks()
        self.strips_thinking: bool = marks is not None and removes_thinking(self._probe, marks.open, marks.close)

    def build(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        today: datetime.date | None = None,
        is_thinking_off: bool = False,
    ) -> Prompt:
        """Prompt ids, where each message lies in them, and how long the public head is.

        spans[i] holds every token that has a character of message i in it; one at its edge may also hold a character of
        the template. num_public_tokens ends with the last control token before the first message that is not a leading
        system one, in front of its role: it is the same for everybody with the same system prompt.
        today: what a template is told when it asks for the date. It must be the same for every prompt of a
        conversation, such as the day on which that began: the date stands in front of the history. Without it there is
        no date, and templates that can not do without one refuse.
        is_thinking_off: the model is told to answer at once, where the template knows enable_thinking.
        Cost: with everything encoded before, a few milliseconds per thousand messages.
        Raises TemplateError, with the line, when the template refuses the conversation.
        """
        variables = Variables(add_generation_prompt, today, is_thinking_off)
        ids, spans = self._assemble(messages, variables)
        return Prompt(ids=ids, spans=spans, num_public_tokens=self._num_public_tokens(messages, ids, variables))

    def build_history(
        self, messages: Sequence[ChatMessage], *, today: datetime.date | None = None, is_thinking_off: bool = False
    ) -> Prompt:
        """What every prompt begins with in which these messages are followed by one of a user. Raises TemplateError."""
        prompt = self.build(
            [*messages, ChatMessage("user", "", PROBE_IDS)],
            add_generation_prompt=False,
            today=today,
            is_thinking_off=is_thinking_off,
        )
        *spans, (start, _) = prompt.spans
        return Prompt(ids=prompt.ids[:start], spans=tuple(spans), num_public_tokens=prompt.num_public_tokens)

    def open(
        self, messages: Sequence[ChatMessage], *, today: datetime.date | None = None, is_thinking_off: bool = False
    ) -> OpenPrompt:
        """Prompts of these messages with other texts in the last one, which is none that a model has written.

        What stands before it is rendered and encoded once, here. Raises TemplateError.
        """
        *earlier, last = messages
        assert last.token_ids is None, "a reply is not being written by anybody"
        variables = Variables(True, today, is_thinking_off)
        seals = self._sealer.open_seals((), self.source)  # contents stay out of what is rendered

        def build(text: str) -> Prompt:
            changed = [*earlier, replace(last, content=text)]
            return self.build(changed, today=today, is_thinking_off=is_thinking_off)

        layout = self._layout(messages, seals.mark, variables) if self._sandbox.is_transparent else Layout([], "")
        return OpenPrompt(
            self._beginning(messages, layout, seals, is_thinking_off=is_thinking_off),
            lambda draft: self._add(draft, seals.cut(layout.tail)),
            lambda ids: self._num_public_tokens(messages, ids, variables),
            build,
            self._tokenizer,
        )

    def _beginning(
        self, messages: Sequence[ChatMessage], layout: Layout, seals: Seals, *, is_thinking_off: bool
    ) -> Beginning | None:
        """What stands in front of the last message; None where it is not the last thing that a prompt says."""
        if [part.number for part in layout.parts].count(len(messages) - 1) != 1:
            return None
        *parts, last = layout.parts
        if last.number != len(messages) - 1:
            return None
        draft, places = self._draft(messages[:-1], Layout(parts, last.gap), seals, self._headers[is_thinking_off])
        return Beginning.of(draft, places, self._tokenizer)

    def thinking_marks(self, *, is_thinking_off: bool = False) -> ThinkingMarks | None:
        """How replies mark their thinking; None for a model that is not known to think."""
        generation_prompt = self._headers[is_thinking_off].generation_prompt
        return find_marks(self.source, generation_prompt, self._tokenizer.special_tokens)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        today: datetime.date | None = None,
        is_thinking_off: bool = False,
    ) -> str:
        """The text that the template makes of the messages; token_ids are ignored."""
        variables = Variables(add_generation_prompt, today, is_thinking_off)
        return self._render(messages, [message.content for message in messages], variables)

    def _render(
        self,
        messages: Sequence[ChatMessage],
        contents: Sequence[str],
        variables: Variables,
    ) -> str:
        dicts: list[dict[str, Any]] = []
        for message, content in zip(messages, contents, strict=True):
            if not ROLE.fullmatch(message.role):
                raise TemplateError(f"role {message.role[:40]!r}, lower-case letters are expected")
            dicts.append({"role": message.role, "content": content})
        names: dict[str, Any] = {
            **self._tokenizer.named_tokens,
            "add_generation_prompt": variables.add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        if variables.today is not None:
            names["strftime_now"] = strftime_of(variables.today)
        if variables.is_thinking_off:
            names["enable_thinking"] = False
        return self._sandbox.render(dicts, names)

    def _assemble(
        self, messages: Sequence[ChatMessage], variables: Variables
    ) -> tuple[I32, tuple[tuple[int, int], ...]]:
        """Ids, and the token range of each message."""
        texts = [message.content for message in messages if message.token_ids is None]
        seals = self._sealer.open_seals(texts, self.source)
        layout = self._layout(messages, seals.mark, variables)
        if not self._sandbox.is_transparent:
            contents = [
                seals.seal_text(message.content) if message.token_ids is None else seals.seal(message.token_ids)
                for message in messages
            ]
            layout = locate(self._render(messages, contents, variables), contents, layout)
        draft, places = self._draft(messages, layout, seals, self._headers[variables.is_thinking_off])
        encoded = draft.encode(self._tokenizer)
        return encoded.ids, tuple(encoded.token_range(start, stop) for start, stop in places)

    def _layout(self, messages: Sequence[ChatMessage], mark: str, variables: Variables) -> Layout:
        """What stands around the messages.

        A mark is something where nothing was said, and templates do ask whether there is a system prompt. Then nothing
        stands there in the marked rendering either.
        """
        names = marks(mark, len(messages))
        rendered = self._render(messages, names, variables)
        blank = [i for i, message in enumerate(messages) if message.token_ids is None and not message.content.strip()]
        if blank and not self._sandbox.is_transparent:
            expected, contents = rendered, list(names)
            for i in blank:
                expected, contents[i] = expected.replace(names[i], messages[i].content), messages[i].content
            found = self._render(messages, contents, variables)
            rendered = rendered if found == expected else found
        return split_marks(rendered, mark)

    def _draft(
        self, messages: Sequence[ChatMessage], layout: Layout, seals: Seals, headers: Headers
    ) -> tuple[Draft, list[tuple[Place, Place]]]:
        """Put template and messages together; note where in the draft the messages come to lie.

        Control tokens are looked for between the messages only. There are few kinds of such gaps, so each is cut once.
        """
        draft = Draft()
        places: dict[int, tuple[Place, Place]] = {}
        gaps: dict[str, list[Piece]] = {}
        for gap, number, content in layout.parts:
            message = messages[number]
            is_replayed = message.token_ids is not None and not message.is_stripped and message.role == "assistant"
            if is_replayed and gap.endswith(headers.earlier):
                gap = gap.removesuffix(headers.earlier) + headers.generation_prompt
            if gap not in gaps:
                gaps[gap] = seals.cut(gap)
            self._add(draft, gaps[gap])
            begin = draft.end(before_text=message.token_ids is None)
            if not self._sandbox.is_transparent:
                self._add(draft, seals.open(content))
            elif message.token_ids is None:
                draft.add_text(message.content)
            else:
                draft.add_ids(_known(message.token_ids))
            places.setdefault(number, (begin, draft.end(before_text=True)))
        self._add(draft, seals.cut(layout.tail))
        found: list[tuple[Place, Place]] = []
        end = Place(0, 0)
        for number in range(len(messages)):
            found.append(places.get(number, (end, end)))  # left out: nowhere, behind the message before
            end = found[-1][1]
        return draft, found

    def _add(self, draft: Draft, pieces: list[Piece]) -> None:
        for control, original, text in pieces:
            if control is not None:
                draft.add_control(control, self._control_ids[control.token_id])
            elif isinstance(original, tuple):
                draft.add_ids(_known(original))
            else:
                draft.add_text(text if original is None else original)

    def _num_public_tokens(self, messages: Sequence[ChatMessage], ids: I32, variables: Variables) -> int:
        """How many ids at the head say nothing about any message but the leading system ones."""
        num_leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
        leading = messages[:num_leading]
        if any(message.is_private or message.token_ids is not None for message in leading):
            return 0  # nor is a system prompt that a model has written anybody's common property
        role = messages[num_leading].role if num_leading < len(messages) else "user"
        key = (variables._replace(add_generation_prompt=False), role, tuple(message.content for message in leading))
        (head,) = self._heads.get_all([key], lambda keys: [self._public_head(*key) for key in keys])
        return len(head) if np.array_equal(ids[: len(head)], head) else 0

    def _public_head(self, variables: Variables, role: str, system_prompts: tuple[str, ...]) -> I32:
        """Ids up to the last control token before the first message that is not the system's."""
        messages = [ChatMessage("system", text) for text in system_prompts]
        ids, spans = self._assemble([*messages, ChatMessage(role, "", PROBE_IDS)], variables)
        num_public = spans[-1][0]
        while num_public and int(ids[num_public - 1]) not in self._control_ids:
            num_public -= 1
        return ids[:num_public]

    def _find_headers(self, *, is_thinking_off: bool) -> Headers:
        """The reply that is there is an earlier one: something has been said after it."""
        mark = self._sealer.open_seals((), self.source).mark
        asked, answer = ChatMessage("user", mark), ChatMessage("assistant", mark)

        def after_question(messages: list[ChatMessage], add_generation_prompt: bool) -> str:
            rendered = self._probe(messages, add_generation_prompt, is_thinking_off=is_thinking_off)
            return rendered.split(mark, 2)[1] if rendered.count(mark) else ""

        ended = after_question([asked], False)
        opened = after_question([asked], True)
        answered = after_question([asked, answer, asked], False)
        if not opened.startswith(ended) or not answered.startswith(ended):
            return Headers()  # the template ends a last message in a way of its own: is_prefix_stable will say so
        return Headers(answered.removeprefix(ended), opened.removeprefix(ended))

    def _find_switch(self) -> bool:
        """Whether a prompt says something else with enable_thinking set to false."""
        if "enable_thinking" not in self.source:
            return False
        conversation = [ChatMessage("user", "1")]
        return self._probe(conversation) != self._probe(conversation, is_thinking_off=True)

    def _find_system_prompt(self) -> bool:
        """Whether a system prompt is to be found in a prompt."""
        mark = self._sealer.open_seals((), self.source).mark
        with suppress(TemplateError):
            return mark in self._probe([ChatMessage("system", mark), ChatMessage("user", "1")])
        return False

    def _find_stop_token_ids(self) -> tuple[int, ...]:
        conversation = [ChatMessage("user", "1"), ChatMessage("assistant", "", PROBE_IDS)]
        ids, spans = self._assemble(conversation, Variables(False, PROBE_DAY))
        after = ids[spans[-1][1] :].tolist()
        written = next((index for index, token in enumerate(after) if token in self._control_ids), None)
        stops = self._tokenizer.eos_token_ids
        if written is not None and not self._tokenizer.decode(after[:written]).strip():
            stops = (*stops, after[written])
        markup = self._find_reply_markup()
        others = (c.token_id for c in self._tokenizer.controls if c.is_special and c.text not in markup)
        return tuple(dict.fromkeys((*stops, *others)))

    def _find_reply_markup(self) -> set[str]:
        """Control tokens that belong inside replies.

        Those that the template writes at the head of a reply only when it is to be generated, or only when it is there;
        and pairs like <think> and </think> that it knows of without writing them around plain messages.
        """
        texts = self._tokenizer.special_tokens
        turns = [ChatMessage("user", "1"), ChatMessage("assistant", "2"), ChatMessage("user", "3")]
        written = self._probe(turns)
        headers = self._headers[False]
        markup = {text for text in texts if (text in headers.earlier) != (text in headers.generation_prompt)}
        for text in texts:
            other = text[:1] + text[2:] if text[1:2] == "/" else f"{text[:1]}/{text[1:]}"
            if other in texts and text not in written and (text in self.source or other in self.source):
                markup.add(text)
        return markup

    def _turn_costs(self) -> list[TurnCost]:
        """What the next turn reads again, without a system prompt and with one if the template takes it."""
        costs = [self._turn_cost([])]
        with suppress(TemplateError):  # that there be no system prompt is a template's right
            costs.append(self._turn_cost([ChatMessage("system", "1")]))
        return costs

    def _turn_cost(self, leading: list[ChatMessage]) -> TurnCost:
        first = [*leading, ChatMessage("user", "1")]
        later = [*first, ChatMessage("assistant", "", PROBE_IDS), ChatMessage("user", "2")]
        now, _ = self._assemble(first, Variables(today=PROBE_DAY))
        then, _ = self._assemble(later, Variables(today=PROBE_DAY))
        kept = np.concatenate([now, np.array(PROBE_IDS, np.int32)])
        size = min(len(kept), len(then))
        differing = np.flatnonzero(kept[:size] != then[:size])
        num_shared = int(differing[0]) if len(differing) else size
        return TurnCost(len(kept), len(kept) - num_shared, has_system_prompt=bool(leading))

    def _probe(
        self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True, *, is_thinking_off: bool = False
    ) -> str:
        return self.render(
            messages, add_generation_prompt=add_generation_prompt, today=PROBE_DAY, is_thinking_off=is_thinking_off
        )


def _known(ids: Sequence[int]) -> EncodedSpan:
    return EncodedSpan(np.array(ids, np.int32), ())
