"""Mistral: Llama; the first versions see a window of the newest positions only, as the config says."""

from __future__ import annotations

from inference.model.llama import LlamaArchitecture


class MistralArchitecture(LlamaArchitecture):
    pass
