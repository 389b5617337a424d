"""SmolLM3: Llama, with layers in which positions are not rotated, as the config says."""

from __future__ import annotations

from inference.model.llama import LlamaArchitecture


class SmolLM3Architecture(LlamaArchitecture):
    pass
