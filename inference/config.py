"""What a model is (ModelConfig, named as in Hugging Face's config.json) and how the engine runs it (EngineConfig)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HIDDEN_ACTS = ("silu", "gelu_pytorch_tanh")
LAYER_TYPES = ("full_attention", "sliding_attention")
MAX_LAYERS = 512
MAX_EXPERTS = 1 << 17  # of all layers
KERNELS = ("auto", "amx", "avx512", "avx2", "neon", "generic", "numpy")  # auto: the fastest that this CPU has
ROPE_TYPES = ("linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for more positions than the model was first trained on.

    attention_factor multiplies cos and sin; 0: what the type prescribes. The factors of longrope divide the
    frequencies one by one: the short ones serve up to original_max_position_embeddings, the long ones beyond.
    Raises ValueError naming the field that makes no sense.
    """

    rope_type: str
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    attention_factor: float = 0.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()  # longrope
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(f"rope_type is {self.rope_type!r}, legal are {', '.join(ROPE_TYPES)}")
        needs_original = self.rope_type in ("llama3", "yarn", "longrope")
        limits = (
            ("factor", 1e-3, 1e4),
            ("original_max_position_embeddings", 2 * needs_original, 1 << 26),
            ("attention_factor", 0, 1e3),
            ("low_freq_factor", 1e-3, 1e4),
            ("high_freq_factor", 1e-3, 1e4),
            ("beta_fast", 1e-3, 1e6),
            ("beta_slow", 1e-3, 1e6),
            ("mscale", 0, 1e3),
            ("mscale_all_dim", 0, 1e3),
        )
        _check_limits(self, limits)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor is {self.high_freq_factor}, not above {self.low_freq_factor}")
        for name in ("short_factor", "long_factor"):
            if not all(0 < factor < 1e9 for factor in getattr(self, name)):
                raise ValueError(f"{name} holds a number that is not above 0")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters of a decoder-only transformer. Raises ValueError naming the field that makes no sense.

    What Llama does not have comes last, with defaults that leave it out. Tuples by layer are empty when all layers are
    alike. partial_rotary_factor is the share of a head's components that are rotated.
    """

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
    hidden_act: str = "silu"
    attention_bias: bool = False  # of q, k, v and o
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    no_rope_layers: tuple[int, ...] = ()  # by layer, as in config.json: 0 where positions are not rotated
    sliding_window: int = 0  # positions that a sliding_attention layer sees, the token's own included
    layer_types: tuple[str, ...] = ()  # by layer: full_attention or sliding_attention
    rope_local_base_freq: float = 0.0  # rope_theta of the sliding_attention layers, which are not scaled; 0: like all
    query_pre_attn_scalar: float = 0.0  # scores are divided by its root; 0: head_dim
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def window(self, layer: int) -> int:
        """How many of the newest positions a token of this layer sees; 0: all."""
        is_sliding = bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if is_sliding else 0

    def is_rotated(self, layer: int) -> bool:
        return not self.no_rope_layers or self.no_rope_layers[layer] != 0

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer's feed-forward part is a choice of experts."""
        is_turn = (layer + 1) % self.decoder_sparse_step == 0
        return self.num_experts > 0 and is_turn and layer not in self.mlp_only_layers

    @property
    def rotary_dim(self) -> int:
        """Components of a head that are rotated, the first ones."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def attention_scale(self) -> float:
        return float((self.query_pre_attn_scalar or self.head_dim) ** -0.5)

    def __post_init__(self) -> None:
        _check_limits(self, self._limits())
        self._check_attention()
        self._check_layers()

    def _limits(self) -> tuple[tuple[str, float, float], ...]:
        return (
            ("vocab_size", 1, 4_000_000),
            ("hidden_size", 1, 1 << 17),
            ("intermediate_size", 1, 1 << 19),
            ("num_hidden_layers", 1, MAX_LAYERS),
            ("num_attention_heads", 1, 4096),
            ("num_key_value_heads", 1, 4096),
            ("head_dim", 2, 4096),
            ("max_position_embeddings", 1, 1 << 26),
            ("partial_rotary_factor", 1e-3, 1),
            ("sliding_window", 0, 1 << 26),
            ("rope_local_base_freq", 0, 1e15),
            ("query_pre_attn_scalar", 0, 1e6),
            ("num_experts", 0, 4096),
            ("num_experts_per_tok", min(1, self.num_experts), self.num_experts),
            ("moe_intermediate_size", min(1, self.num_experts), 1 << 19),
            ("decoder_sparse_step", 1, 512),
        )

    def _check_attention(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, "
                f"not a multiple of num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, rotary embedding needs an even one")
        if self.rotary_dim % 2 or self.rotary_dim == 0:
            raise ValueError(
                f"partial_rotary_factor is {self.partial_rotary_factor}: {self.rotary_dim} rotated components of a "
                f"head of {self.head_dim}, an even number is needed"
            )
        if not 0 < self.rms_norm_eps < 1:
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps}, legal is above 0 and below 1")
        if not 0 < self.rope_theta < 1e15:
            raise ValueError(f"rope_theta is {self.rope_theta}, legal is above 0")
        if self.rope_scaling and self.rope_scaling.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_theta is {self.rope_theta}, yarn needs more than 1")
        scaling = self.rope_scaling
        if scaling and scaling.rope_type == "longrope":
            for name in ("short_factor", "long_factor"):
                if (count := len(getattr(scaling, name))) != self.rotary_dim // 2:
                    raise ValueError(f"{name} has {count} numbers, the heads need {self.rotary_dim // 2}")

    def _check_layers(self) -> None:
        if self.hidden_act not in HIDDEN_ACTS:
            raise ValueError(f"hidden_act is {self.hidden_act!r}, legal are {', '.join(HIDDEN_ACTS)}")
        for name in ("no_rope_layers", "layer_types"):
            count = len(getattr(self, name))
            if count not in (0, self.num_hidden_layers):
                raise ValueError(f"{name} has {count} entries for {self.num_hidden_layers} layers")
        for kind in self.layer_types:
            if kind not in LAYER_TYPES:
                raise ValueError(f"layer_types holds {kind!r}, legal are {', '.join(LAYER_TYPES)}")
        if self.num_experts * self.num_hidden_layers > MAX_EXPERTS:
            raise ValueError(f"num_experts is {self.num_experts} in {self.num_hidden_layers} layers: too many")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            raise ValueError("sliding_window is 0, but there are sliding_attention layers")


def _check_limits(value: object, limits: Iterable[tuple[str, float, float]]) -> None:
    for name, low, high in limits:
        found = getattr(value, name)
        if not low <= found <= high:
            raise ValueError(f"{name} is {found}, legal are {low} to {high}")


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
    kernels: str = "auto"  # one of KERNELS
    kernel_cache: str = ""  # a folder that keeps compiled kernels; "": beside their source
    is_prefix_cache_enabled: bool = True
    kv_dir: Path | None = None  # a folder that keeps cached KV over restarts, shared by all models; None: nowhere
    kv_disk_bytes: int = 0  # what the files there may take in all; 0: none are written
    max_draft_tokens: int = 7  # guessed in one step, of all sequences together (prompt_lookup.py); 0: none

    @property
    def num_blocks(self) -> int:
        return -(-self.pool_tokens // self.block_size)

    def __post_init__(self) -> None:
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels is {self.kernels!r}, legal are {', '.join(KERNELS)}")
        limits = (
            ("block_size", 1, 1024),
            ("pool_tokens", 1, 1 << 31),
            ("max_batch_tokens", 1, 1 << 20),
            ("max_running", 1, 1024),
            ("max_waiting", 0, 1 << 20),
            ("max_model_len", 0, 1 << 26),
            ("num_threads", 0, 1024),
            ("max_draft_tokens", 0, 64),
            ("kv_disk_bytes", 0, 1 << 50),
        )
        _check_limits(self, limits)
