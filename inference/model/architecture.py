"""What an architecture says of itself: which tensors a layer is made of, and how the stream through them begins."""

from __future__ import annotations

from abc import ABC, abstractmethod

from inference.config import ModelConfig
from inference.model.weights import AttentionWeights, FeedForwardWeights, M, TensorReader


class Architecture(ABC):
    """One family, one file. Stateless beyond the config; the same for every arithmetic."""

    norm_offset = 0.0  # added to the norm weights of the file

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by before the first layer."""
        return 1.0

    @abstractmethod
    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]: ...

    @abstractmethod
    def feed_forward(self, tensors: TensorReader[M], layer: int) -> FeedForwardWeights[M]: ...
