"""What a model is (ModelConfig, named as in Hugging Face's config.json) and how the engine runs it (EngineConfig)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters of a decoder-only transformer. Raises ValueError naming the field that makes no sense."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = (
            ("vocab_size", 1, 4_000_000),
            ("hidden_size", 1, 1 << 17),
            ("intermediate_size", 1, 1 << 19),
            ("num_hidden_layers", 1, 512),
            ("num_attention_heads", 1, 4096),
            ("num_key_value_heads", 1, 4096),
            ("head_dim", 2, 4096),
            ("max_position_embeddings", 1, 1 << 26),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, legal are {low} to {high}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, "
                f"not a multiple of num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, rotary embedding needs an even one")
        if not 0 < self.rms_norm_eps < 1:
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps}, legal is above 0 and below 1")
        if not 0 < self.rope_theta < 1e15:
            raise ValueError(f"rope_theta is {self.rope_theta}, legal is above 0")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs. pool_tokens is rounded up to whole blocks."""

    block_size: int = 16
    pool_tokens: int = 16_384
    max_batch_tokens: int = 512  # most tokens of one step; PrefillPace takes fewer where they last too long
    max_running: int = 8
    max_waiting: int = 32
    max_model_len: int = 0  # 0: what the model was trained for
    num_threads: int = 0  # 0: one per core
    is_prefix_cache_enabled: bool = True

    def __post_init__(self) -> None:
        limits = (
            ("block_size", 1, 1024),
            ("pool_tokens", 1, 1 << 31),
            ("max_batch_tokens", 1, 1 << 20),
            ("max_running", 1, 1024),
            ("max_waiting", 0, 1 << 20),
            ("max_model_len", 0, 1 << 26),
            ("num_threads", 0, 1024),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, legal are {low} to {high}")
