"""LLMEngine on the default model: reference ids, and that neither cache, batch nor interruption changes an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.types import ChatMessage, FinishReason, Request, SamplingParams
from tests.inference.fakes import finished, ids_of, run, text_of

pytestmark = pytest.mark.model

CASES = json.loads((Path(__file__).parent.parent / "data" / "smollm2-greedy.json").read_text())["cases"]
MIN_MARGIN = 0.05  # below it, another order of summation may rightly choose the other token
NUM_TEMPLATE_TOKENS = 11  # <|im_end|> \n <|im_start|> user \n ... <|im_end|> \n <|im_start|> ass istant \n
CONFIG = EngineConfig(pool_tokens=6000, max_batch_tokens=256, max_running=5)


@pytest.fixture(scope="module")
def loaded(model_path) -> LLMEngine:
    progress: list[float] = []
    engine = load_engine(model_path, CONFIG, on_progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    return engine


@pytest.fixture
def engine(loaded):
    """The engine, cold; afterwards it must be idle and sound."""
    loaded.clear_cache()
    yield loaded
    assert not loaded.has_work
    loaded.check_integrity()
    assert loaded.stats().num_blocks_used == 0


def sibling(engine: LLMEngine, **config) -> LLMEngine:
    """Another engine around the same weights."""
    return LLMEngine(engine.model, engine.tokenizer, engine.chat_template, replace(CONFIG, **config))


def ask(engine: LLMEngine, name: str, messages, *, max_tokens: int = 24, **sampling) -> Request:
    prompt = engine.chat_template.build(messages)
    params = SamplingParams(**({"temperature": 0.0, "max_tokens": max_tokens} | sampling))
    return Request(
        name,
        prompt.ids,
        params,
        num_public_tokens=prompt.num_public_tokens,
        stop_token_ids=engine.chat_template.stop_token_ids,
    )


def say(*texts: str) -> list[ChatMessage]:
    return [ChatMessage("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def answer(engine: LLMEngine, request: Request) -> tuple[int, ...] | None:
    return finished(run(engine, request)[request.request_id]).token_ids


def test_greedy_ids_are_those_of_the_reference_batched_and_alone(engine):
    requests = []
    for case in CASES:
        messages = [ChatMessage(message["role"], message["content"]) for message in case["messages"]]
        request = ask(engine, case["name"], messages, max_tokens=min(20, len(case["greedy_ids"])))
        assert request.prompt_ids.tolist() == case["prompt_ids"]
        requests.append(replace(request, stop_token_ids=()))
    batched = run(engine, *requests)
    for case, request in zip(CASES, requests, strict=True):
        ids = ids_of(batched[case["name"]], engine.tokenizer)
        sure = next((i for i, margin in enumerate(case["greedy_margins"]) if margin < MIN_MARGIN), len(ids))
        assert ids[:sure] == case["greedy_ids"][: len(ids)][:sure]
        alone = replace(request, sampling=replace(request.sampling, max_tokens=4))
        assert answer(engine, alone) == tuple(ids[:4])  # and warm
    assert engine.stats().cache.since_start.num_requests_hit >= len(CASES)


def test_answers_are_the_same_cold_warm_chunked_and_without_cache(engine):
    request = ask(engine, "a", say("Tell me a story about a lighthouse keeper and a storm. " * 4), max_tokens=5)
    cold = answer(engine, request)
    assert answer(engine, request) == cold
    for config in ({"is_prefix_cache_enabled": False}, {"max_batch_tokens": 7}, {"block_size": 48}):
        assert answer(sibling(engine, **config), request) == cold


@pytest.mark.parametrize("num_tokens", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_second_turn_after_a_long_history_computes_the_new_message_only(engine, num_tokens):
    num_messages = num_tokens // 90 | 1  # the last one is a question
    texts = [f"Message {i}: " + "the quick brown fox jumps over the lazy dog. " * 8 for i in range(num_messages)]
    first = ask(engine, "first", say(*texts), max_tokens=5)
    assert len(first.prompt_ids) >= num_tokens
    reply = finished(run(engine, first)["first"])
    history = [*say(*texts), ChatMessage("assistant", "", reply.token_ids)]
    second = ask(engine, "second", [*history, ChatMessage("user", "And what then?")], max_tokens=1)
    assert second.prompt_ids[: len(first.prompt_ids)].tolist() == first.prompt_ids.tolist()
    num_known = len(first.prompt_ids) + len(reply.token_ids)
    num_computed = finished(run(engine, second)["second"]).stats.num_computed
    assert num_computed <= len(second.prompt_ids) - num_known + 1  # the reply's last token has had no pass
    assert num_computed <= len(engine.tokenizer.encode("And what then?")) + 1 + NUM_TEMPLATE_TOKENS


def test_cancelled_and_asked_again_gives_the_whole_answer_from_warm_blocks(engine):
    request = ask(engine, "a", say("List ten rivers of Europe and say one thing about each. " * 6), max_tokens=6)
    cold = answer(engine, request)
    engine.clear_cache()
    small = sibling(engine, max_batch_tokens=32)
    small.add_request(request)
    small.step()
    small.step()
    small.cancel("a")
    assert finished(small.step()).finish_reason == FinishReason.CANCELLED
    end = finished(run(small, request)["a"])
    assert end.stats.num_reused_ram == 2 * -(-len(request.prompt_ids) // 4)  # two of four equal parts
    assert end.token_ids == cold


def test_preempted_requests_give_the_answers_of_undisturbed_ones(engine):
    requests = [ask(engine, name, say(f"Write a few words about {name}."), max_tokens=16) for name in ("bees", "sand")]
    requests = [replace(request, stop_token_ids=()) for request in requests]
    expected = [answer(engine, request) for request in requests]
    tight = sibling(engine, block_size=16, pool_tokens=len(requests[0].prompt_ids) + 16 + 28)  # they share 16 and more
    events = run(tight, *requests)
    assert tight.stats().num_preemptions > 0
    assert [finished(events[request.request_id]).token_ids for request in requests] == expected


def test_same_seed_gives_the_same_answer_beside_others_and_another_seed_another(engine):
    def request(name: str, seed: int) -> Request:
        return ask(engine, name, say("Invent a name for a boat."), temperature=1.0, seed=seed, max_tokens=6)

    alone = answer(engine, request("a", 11))
    events = run(engine, request("a", 11), request("b", 12), request("c", 11))
    replies = {name: finished(events[name]).token_ids for name in "abc"}
    assert replies["a"] == replies["c"] == alone != replies["b"]


def test_stop_string_ends_the_reply_and_its_ids_decode_to_its_text(engine):
    request = ask(engine, "a", say("Count from one to nine in digits, separated by commas."), max_tokens=10)
    text = text_of(run(engine, request)["a"])
    stop = text[len(text) // 2 :][:3]
    stopped = replace(request, sampling=replace(request.sampling, stop=(stop,)))
    events = run(engine, stopped)["a"]
    end = finished(events)
    assert end.finish_reason == FinishReason.STOP
    assert text_of(events) == text[: text.index(stop)]
    assert end.token_ids is None or engine.tokenizer.decode(end.token_ids) == text_of(events)


def test_purged_conversation_is_zeros_in_the_pool(engine):
    request = replace(ask(engine, "a", say("My secret is a blue door."), max_tokens=4), tags=("talk",))
    run(engine, request)
    engine.purge("talk")
    stats = engine.stats()
    assert stats.num_blocks_cached == request.num_public_tokens // CONFIG.block_size
    kv = engine.cache._storage
    for pool in (kv.k, kv.v):
        num_groups = np.count_nonzero(pool.any(axis=(0, 1, 3)))  # of 16 rows
        assert num_groups * 16 == stats.num_blocks_cached * CONFIG.block_size
