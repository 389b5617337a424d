"""A model whose KV shows every wrong reuse, and a tokenizer whose ids are bytes.

The marker of position p is a digest of the tokens up to p, computed from the marker of p - 1 that lies in the pool.
Logits are a function of all markers of the context: one stale, foreign or missing row changes the output, without float
noise.
"""

from __future__ import annotations

import time

import numpy as np

from inference.config import EngineConfig, ModelConfig
from inference.engine.llm_engine import LLMEngine
from inference.sampler.sampler import Sampler
from inference.types import (
    F32,
    Event,
    FinishedEvent,
    ForwardBatch,
    Request,
    SamplingParams,
    TokenEvent,
)

EOS = 256
WIDE_TOKENS = {257: b"ab", 258: b"b\nU", 259: b"\xe2\x82", 260: b"\xac"}  # the last two are halves of a euro sign
VOCAB_SIZE = 261
HELLO = "hello world, how are you today"  # 30 tokens


def next_marker(previous: int, token_id: int) -> int:
    return ((previous * 0x9E3779B97F4A7C15 + token_id * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) % (1 << 63)) | 1


def markers_of(token_ids) -> list[int]:
    """What the pool must hold for the positions of token_ids; never 0."""
    markers, marker = [], 0
    for token_id in token_ids:
        marker = next_marker(marker, int(token_id))
        markers.append(marker)
    return markers


class MarkerStorage:
    """A pool of one number per token."""

    format_id = "markers"
    bytes_per_token = 8

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.rows = np.zeros((num_blocks, block_size), np.uint64)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        self.rows[dst_block, :num_rows] = self.rows[src_block, :num_rows]

    def zero_block(self, block_id: int) -> None:
        self.rows[block_id] = 0

    def read_block(self, block_id: int, num_rows: int) -> memoryview:
        return self.rows[block_id, :num_rows].copy().view(np.uint8).data

    def write_block(self, block_id: int, num_rows: int, data: memoryview) -> None:
        self.rows[block_id, :num_rows] = np.frombuffer(data, np.uint64)[:num_rows]

    def read(self, block_ids, num_tokens: int) -> list[int]:
        return [int(row) for row in self.rows[np.asarray(block_ids, np.int64)].reshape(-1)[:num_tokens]]


class MarkerModel:
    """Pretends to be a decoder. The markers decide what comes next, unless `script` knows better for the last token."""

    kernel_tier = "fake"
    fingerprint = "feed"
    num_parameters = 0
    weight_bytes = 0

    def __init__(self, max_position_embeddings: int = 512) -> None:
        self.config = ModelConfig(
            "fake", VOCAB_SIZE, 2, 1, 1, 1, 1, 2, max_position_embeddings, 1e-5, 1e4, True, eos_token_ids=(EOS,)
        )
        self.error: Exception | None = None  # raised by the next pass
        self.nan_token: int | None = None  # a context that ends in this token has no usable logits
        self.script: dict[int, int] = {}  # last token -> next token
        self.num_passes = 0
        self.num_computed_tokens = 0

    def new_kv(self, num_blocks: int, block_size: int) -> MarkerStorage:
        return MarkerStorage(num_blocks, block_size)

    def forward(self, batch: ForwardBatch, kv: MarkerStorage) -> F32:
        self.num_passes += 1
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.num_computed_tokens += len(batch.token_ids)
        P = kv.block_size
        flat = kv.rows.reshape(-1)
        logits: list[F32] = []
        wanted = {int(row) for row in batch.logits_rows}
        for b, block_table in enumerate(batch.block_tables):
            start, end = int(batch.query_start[b]), int(batch.query_start[b + 1])
            assert int(batch.context_lens[b]) == int(batch.positions[end - 1]) + 1
            context = np.arange(int(batch.positions[end - 1]) + 1)
            slots = block_table[context // P].astype(np.int64) * P + context % P
            for t in range(start, end):
                position = int(batch.positions[t])
                assert slots[position] == batch.slot_mapping[t]
                previous = int(flat[slots[position - 1]]) if position else 0
                assert position == 0 or previous, f"position {position - 1} was never computed"
                flat[slots[position]] = next_marker(previous, int(batch.token_ids[t]))
                if t in wanted:
                    logits.append(self.logits(flat[slots[: position + 1]], int(batch.token_ids[t])))
        return np.array(logits, np.float32).reshape(-1, VOCAB_SIZE)

    def logits(self, markers, token_id: int) -> F32:
        if token_id == self.nan_token:
            return np.full(VOCAB_SIZE, np.nan, np.float32)
        if token_id in self.script:
            return (np.arange(VOCAB_SIZE) == self.script[token_id]).astype(np.float32) * 50
        with np.errstate(over="ignore"):
            odd = 2 * np.arange(len(markers), dtype=np.uint64) + np.uint64(1)
            fold = np.bitwise_xor.reduce(markers * odd)
            mixed = (fold ^ (np.arange(VOCAB_SIZE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(
                0xFF51AFD7ED558CCD
            )
        logits = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21)  # 0 to 8
        logits[EOS:] = -np.inf  # unless scripted, a reply is made of bytes and goes on
        return logits


def scripted(*ids: int) -> MarkerModel:
    """A model that answers a prompt ending in "?" with these ids."""
    model = MarkerModel()
    model.script = dict(zip([ord("?"), *ids], ids, strict=False))
    return model


class ByteTokenizer:
    """Token i is byte i; a few wide ones make what real vocabularies make of stop strings and half characters."""

    vocab_size = VOCAB_SIZE
    special_tokens = {"<|eos|>": EOS}
    bos_token_id = None
    eos_token_ids = (EOS,)
    strips_leading_space = False
    fingerprint = "beef"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return b"<|eos|>" if token_id == EOS else WIDE_TOKENS.get(token_id) or bytes([token_id])

    def decode(self, ids) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


class FakeTemplate:
    fingerprint = "f00d"
    stop_token_ids = (EOS,)


made_engines: list[LLMEngine] = []  # by this test; conftest looks at them when it ends


def make_engine(model: MarkerModel | None = None, *, clock=time.monotonic, **config) -> LLMEngine:
    """An engine on the marker model. Unless told otherwise: 32 blocks of 4 tokens, 16 tokens a step, 4 sequences."""
    settings = {
        "block_size": 4,
        "pool_tokens": 128,
        "max_batch_tokens": 16,
        "max_running": 4,
        "max_waiting": 8,
    } | config
    config = EngineConfig(**(settings | config))
    engine = LLMEngine(model or MarkerModel(), ByteTokenizer(), FakeTemplate(), config, clock=clock)
    made_engines.append(engine)
    return engine


def break_books(engine: LLMEngine) -> None:
    """Make the references of an engine wrong: no way to go on, and nothing to look at when the test ends."""
    engine.cache.pool.ref_count[7] = 3
    made_engines.remove(engine)


def make_request(request_id: str, prompt, *, max_tokens: int = 4, temperature: float = 0.0, **fields) -> Request:
    """A greedy request for text or ids. Fields of SamplingParams and of Request may be given."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    names = SamplingParams.__dataclass_fields__
    sampling = {name: fields.pop(name) for name in list(fields) if name in names}
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, **sampling)
    return Request(request_id, np.asarray(ids, np.int32), params, stop_token_ids=(EOS,), **fields)


def expected_ids(request: Request, max_model_len: int = 512, model: MarkerModel | None = None) -> list[int]:
    """What the request must answer, computed without an engine: no blocks, no batch, no chunks."""
    model = model or MarkerModel()
    sampler = Sampler(request.sampling, request.prompt_ids, VOCAB_SIZE)
    ids: list[int] = []
    while len(ids) < request.sampling.max_tokens and len(request.prompt_ids) + len(ids) < max_model_len:
        context = [*request.prompt_ids.tolist(), *ids]
        token_id = sampler.sample(model.logits(np.array(markers_of(context), np.uint64), context[-1]))
        if token_id in request.stop_token_ids:
            break
        ids.append(token_id)
    return ids


def run(engine: LLMEngine, *requests: Request, max_steps: int = 2000) -> dict[str, list[Event]]:
    """Add the requests, step until nothing is left to do, check the engine, and return the events of each request."""
    for request in requests:
        engine.add_request(request)
    events: dict[str, list[Event]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            engine.check_integrity()
            assert engine.stats().num_blocks_used == 0
            return events
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
        engine.check_integrity()
    raise AssertionError(f"not done after {max_steps} steps")


def steps(engine, num: int) -> list:
    return [event for _ in range(num) for event in engine.step()]


def finished(events: list[Event]) -> FinishedEvent:
    """The one FinishedEvent, which is the last event."""
    ends = [event for event in events if isinstance(event, FinishedEvent)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return ends[0]


def ids_of(events: list[Event], tokenizer=None) -> list[int] | None:
    """The ids of the reply so far; asserts that after every event they decode to exactly its text."""
    decode = (tokenizer or ByteTokenizer()).decode
    ids: list[int] = []
    text = ""
    for event in events:
        if isinstance(event, TokenEvent):
            ids += event.token_ids
            text += event.text
            assert decode(ids) == text
        elif isinstance(event, FinishedEvent):
            if event.token_ids is None:
                return None
            assert list(event.token_ids[: len(ids)]) == ids
            assert decode(event.token_ids) == text + event.text
            return list(event.token_ids)
    return ids


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenEvent | FinishedEvent))
