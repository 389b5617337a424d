"""How far each engine's next-token distribution is from the float32 reference, on the same file and text.

The reference is our NumPy tier: every weight as the file says it, dequantised to float32. Mean Kullback-Leibler
divergence KL(reference || engine) over all positions of one chat; all in float64 from the logarithms on.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.types import F32, ChatMessage, ForwardBatch
from tests.peers.environments import HERE, Peer

F64 = NDArray[np.float64]

CHAT = (
    ChatMessage(
        "user", "Explain in simple words how a sailing boat can travel against the wind, and name three knots."
    ),
    ChatMessage(
        "assistant",
        "A sail works like a wing. When the boat points at about forty-five degrees to the wind, the air flows faster "
        "along the outer side of the sail than along the inner one, and the difference in pressure pulls the boat "
        "sideways and a little forward. The keel, a long fin under the hull, resists the sideways part, so what is "
        "left is a push ahead. By turning from side to side every few minutes, which sailors call tacking, the boat "
        "climbs towards the wind in a zigzag: 12 miles of sailing may bring it 8 miles closer to the harbour.\n\n"
        "1. The bowline makes a loop that never slips.\n2. The clove hitch ties a rope to a post.\n3. The figure eight "
        "keeps a rope from running out through a block.",
    ),
    ChatMessage("user", "Summarise this in two sentences for a child of seven years."),
)


def mean_kl(reference: F64, other: F64) -> float:
    """KL(reference || other) of log-probabilities (T, V), averaged over the positions."""
    return float((np.exp(reference) * (reference - other)).sum(-1).mean())


def log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    normalised: F64 = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def our_logprobs(engine: LLMEngine) -> F64:
    """(T, V) for the chat, computed in one pass."""
    block_size = engine.config.block_size
    token_ids = chat_ids(engine)
    num_tokens = len(token_ids)
    positions = np.arange(num_tokens, dtype=np.int32)
    num_blocks = -(-num_tokens // block_size)
    batch = ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_start=np.array([0, num_tokens], np.int32),
        block_tables=(np.arange(num_blocks, dtype=np.int32),),
        context_lens=np.array([num_tokens], np.int32),
        logits_rows=positions,
    )
    return log_softmax(engine.model.forward(batch, engine.model.new_kv(num_blocks, block_size)))


def chat_ids(engine: LLMEngine) -> NDArray[np.int32]:
    return engine.chat_template.build(CHAT).ids


def peer_logprobs(peer: Peer, python: Path, model: Path, num_threads: int, engine: LLMEngine) -> F64:
    """(T, V) as a peer gives them out, normalised anew: its sums are float32."""
    token_ids, vocab_size = chat_ids(engine), engine.info.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        workload, logprobs = Path(folder, "workload.json"), Path(folder, "logprobs")
        workload.write_text(json.dumps({"token_ids": token_ids.tolist(), "vocab_size": vocab_size}))
        command = [python, HERE / peer.script, "--model", model, "--threads", str(num_threads), *peer.options]
        command += ["--workload", workload, "--logprobs", logprobs]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return log_softmax(np.fromfile(logprobs, np.float32).reshape(len(token_ids), vocab_size))


def measure_fidelity(
    model: Path, config: EngineConfig, peers: Mapping[Peer, tuple[Path, Path]]
) -> tuple[float, dict[Peer, float]]:
    """(our KL with this configuration, that of each peer), each to float32 on the file that it reads.

    peers: interpreter and file of each.
    """
    ours = our_logprobs(load_engine(model, config))
    exact = EngineConfig(num_threads=config.num_threads, kernels="numpy", pool_tokens=1024)
    references = {path: load_engine(path, exact) for path in {model, *(path for _, path in peers.values())}}
    logprobs = {path: our_logprobs(engine) for path, engine in references.items()}
    found = {
        peer: mean_kl(logprobs[path], peer_logprobs(peer, python, path, config.num_threads, references[path]))
        for peer, (python, path) in peers.items()
    }
    return mean_kl(logprobs[model], ours), found
