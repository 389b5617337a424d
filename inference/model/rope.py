"""Rotary frequencies of a model: plain, or stretched for more positions than it was first trained on.

A table is chosen once, when the model is loaded, for the window that it will be run with. The reference implementation
chooses anew for each sequence by its length (dynamic, longrope): then a sequence that grows past the limit changes the
angles of all that was computed before, and no K of a shorter prompt could ever be reused by a longer one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from inference.config import ModelConfig, RopeScaling
from inference.kernels.reference import RopeTable

F64 = NDArray[np.float64]


def rope_tables(config: ModelConfig, max_model_len: int) -> tuple[RopeTable, ...]:
    """The table of most layers, then, if they have one of their own, that of the sliding_attention layers."""
    tables = [_scaled(config, max_model_len)]
    if config.rope_local_base_freq:
        tables.append(RopeTable(_frequencies(config.rotary_dim, config.rope_local_base_freq)))
    return tuple(tables)


def table_of(config: ModelConfig, layer: int) -> int | None:
    """Index into rope_tables; None for a layer that rotates nothing."""
    if not config.is_rotated(layer):
        return None
    return int(config.rope_local_base_freq > 0 and config.window(layer) > 0)


def _frequencies(dim: int, theta: float) -> F64:
    """(dim / 2,) Source: Su et al., arXiv:2104.09864."""
    frequencies: F64 = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return frequencies


def _scaled(config: ModelConfig, max_model_len: int) -> RopeTable:
    plain = _frequencies(config.rotary_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        return RopeTable(plain)
    if scaling.rope_type == "linear":
        return RopeTable(plain / scaling.factor)
    if scaling.rope_type == "dynamic":
        # Up to max_position_embeddings nothing is stretched, and a window never goes beyond.
        return RopeTable(plain)
    if scaling.rope_type == "llama3":
        return RopeTable(_llama3(plain, scaling))
    if scaling.rope_type == "yarn":
        return RopeTable(_yarn(plain, scaling, config), scaling.attention_factor or _yarn_factor(scaling))
    assert scaling.rope_type == "longrope", scaling.rope_type  # checked by RopeScaling
    is_long = max_model_len > scaling.original_max_position_embeddings
    factors = np.array(scaling.long_factor if is_long else scaling.short_factor)
    return RopeTable(plain / factors, scaling.attention_factor or _longrope_factor(scaling, config))


def _llama3(plain: F64, scaling: RopeScaling) -> F64:
    """Long waves stretched, short ones kept, a ramp in between. Source: Llama 3.1's reference implementation."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)  # within the original window
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(ramp, 0, 1)
    scaled: F64 = plain * (kept + (1 - kept) / scaling.factor)
    return scaled


def _yarn(plain: F64, scaling: RopeScaling, config: ModelConfig) -> F64:
    """The same with the ramp over the index of the component. Source: Peng et al., arXiv:2309.00071."""
    dim = config.rotary_dim

    def index_of(num_turns: float) -> float:
        """Which component makes so many turns within the original window."""
        return (
            dim
            * math.log(scaling.original_max_position_embeddings / (num_turns * 2 * math.pi))
            / (2 * math.log(config.rope_theta))
        )

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    kept = 1 - np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    scaled: F64 = plain * (kept + (1 - kept) / scaling.factor)
    return scaled


def _yarn_factor(scaling: RopeScaling) -> float:
    growth = 0.1 * math.log(max(scaling.factor, 1))
    if scaling.mscale and scaling.mscale_all_dim:
        return (growth * scaling.mscale + 1) / (growth * scaling.mscale_all_dim + 1)
    return growth + 1


def _longrope_factor(scaling: RopeScaling, config: ModelConfig) -> float:
    """Source: Ding et al., arXiv:2402.13753."""
    original = scaling.original_max_position_embeddings
    stretch = scaling.factor if scaling.factor != 1 else config.max_position_embeddings / original
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
