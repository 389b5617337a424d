"""The text side of Qwen3-VL.

It is Qwen3. Its interleaved M-RoPE turns each component by the time, the height or the width of a token's place; for
text all three are the position, so that it is plain RoPE.
"""

from __future__ import annotations

from inference.model.qwen3 import Qwen3Architecture


class Qwen3VLArchitecture(Qwen3Architecture):
    pass
