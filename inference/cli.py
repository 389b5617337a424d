"""`python -m inference.cli "prompt"`: one reply in the terminal, no web framework, no database.

The reply goes to stdout as it comes, one line of numbers to stderr at the end. Exit codes: 0 answered, 2 a model,
prompt or option that cannot be used, 1 a reply that failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.errors import InferenceError
from inference.types import ChatMessage, FinishedEvent, FinishReason, Request, SamplingParams, TokenEvent

DEFAULT_MODEL = Path("var/models/SmolLM2-135M-Instruct.Q4_1.gguf")
KERNEL_CACHE = "var/kernels"


def build_sampling(options: argparse.Namespace) -> SamplingParams:
    """How tokens are chosen; draws a seed when none was given. Raises ValueError for a value out of its range."""
    return SamplingParams(
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        seed=random.SystemRandom().getrandbits(31) if options.seed is None else options.seed,
    )


def build_request(engine: LLMEngine, options: argparse.Namespace, sampling: SamplingParams) -> Request:
    """The request that the options describe. Raises InferenceError for a prompt that cannot be built."""
    if options.raw:
        ids = np.array(engine.tokenizer.encode(options.prompt), np.int32)
        return Request("cli", ids, sampling, stop_token_ids=engine.tokenizer.eos_token_ids)
    system = [ChatMessage("system", options.system)] if options.system else []
    today = datetime.datetime.now().astimezone().date()
    prompt = engine.chat_template.build([*system, ChatMessage("user", options.prompt)], today=today)
    return Request("cli", prompt.ids, sampling, stop_token_ids=engine.chat_template.stop_token_ids)


def stream_reply(engine: LLMEngine, request: Request) -> FinishedEvent:
    """Runs the request and writes its text to stdout as it comes. Returns the last event."""
    engine.add_request(request)
    finished: FinishedEvent | None = None
    while finished is None:
        for event in engine.step():
            if isinstance(event, TokenEvent | FinishedEvent):
                print(event.text, end="", flush=True)
            if isinstance(event, FinishedEvent):
                finished = event
    print(flush=True)
    return finished


def summary(finished: FinishedEvent, seed: int | None) -> str:
    """One line of numbers."""
    stats = finished.stats
    return (
        f"{stats.num_prompt_tokens} prompt tokens, first token after {stats.ttft_s:.2f} s; "
        f"{stats.num_generated} generated at {stats.decode_tok_s:.1f} tok/s; {finished.finish_reason}; seed {seed}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers the prompt and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a GGUF file or a Hugging Face directory")
    parser.add_argument("--system", default="", help="system prompt; without it the template's own")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, help="drawn when not given")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--raw", action="store_true", help="complete the text as it is, without the chat template")
    options = parser.parse_args(arguments)
    try:
        sampling = build_sampling(options)
        config = EngineConfig(num_threads=options.threads, kernel_cache=KERNEL_CACHE, max_running=1)
        engine = load_engine(options.model, config)
        request = build_request(engine, options, sampling)
        finished = stream_reply(engine, request)
    except (InferenceError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    if finished.finish_reason == FinishReason.ERROR:
        print(f"error: {finished.error}", file=sys.stderr)
        return 1
    print(summary(finished, sampling.seed), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
