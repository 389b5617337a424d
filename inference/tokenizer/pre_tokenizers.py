"""How each known pre-tokenizer cuts text into words before the merges: tokenizer.ggml.pre -> steps of a tokenizer.json.

A GGUF file only names its pre-tokenizer; the expressions are those that the models publish in their tokenizer.json.
Where llama.cpp had to rewrite one for its own engine, ours is the published one. Names: llama.cpp, src/llama-vocab.cpp.
Knows nothing about vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# What nearly all expressions since GPT-4 are made of. Alternatives are tried in order.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
# Cased words of GPT-4o: upper before lower, or upper only; with marks, and Han letters left out for Kimi.
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(contraction: str = "", but: str = "") -> str:
    before = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    return f"{before}{upper}*{lower}+{contraction}|{before}{upper}+{lower}*{contraction}"


def _joined(*alternatives: str) -> str:
    return "|".join(alternatives)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
GPT4 = _joined(_CONTRACTION, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _LINES, _SPACES)  # cl100k, Llama 3
QWEN2 = _joined(_CONTRACTION, _WORD, r"\p{N}", _PUNCTUATION, _LINES, _SPACES)
QWEN35 = _joined(
    _CONTRACTION, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES, _SPACES
)
_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
GPT4O = _joined(_cased(_CONTRACTION + "?"), r"\p{N}{1,3}", _SLASHES, _LINES, _SPACES)
TEKKEN = _joined(_cased(), r"\p{N}", _SLASHES, _LINES, _SPACES)
YOUTU = _joined(_cased(_CONTRACTION + "?"), r"\p{N}", _SLASHES, _LINES, _SPACES)
KIMI = _joined(r"[\p{Han}]+", _cased(_CONTRACTION + "?", r"&&[^\p{Han}]"), r"\p{N}{1,3}", _PUNCTUATION, _LINES, _SPACES)
BAILING = _joined(
    r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]++[\r\n]*", r"\s*[\r\n]",
    _SPACES,
)  # fmt: skip
SEED_CODER = _joined(_CONTRACTION, _WORD, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES)
MINICPM5 = _joined(_CONTRACTION, _WORD, r"\p{N}+", _PUNCTUATION, _LINES, _SPACES)
EXAONE_MOE = _joined(
    _CONTRACTION, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
    r"\s*[\r\n]", _SPACES,
)  # fmt: skip
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_DEEPSEEK_WORDS = _joined(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES,
)  # fmt: skip
DEEPSEEK_V3 = (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_WORDS)
_EAST_ASIAN = r"[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")
# Cased letters as an older Unicode knew them: the published list of ranges, of which no class is the equal. Letters
# that a normalising editor would turn into others are escaped.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ"
    "ῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_LLM = (
    r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _EAST_ASIAN, r"\p{N}+"
)  # fmt: skip
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")  # llama.cpp's own, for files without a name
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """splits: expressions applied one after the other, each to what the ones before have left whole. A match is a word,
    and so is what stands between two matches."""

    splits: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token is taken as it is
    is_normalised: bool = False  # NFC first

    def steps(self, *, has_space_prefix: bool) -> list[dict[str, Any]]:
        """In the form of tokenizer.json; the last step writes bytes as characters."""
        return [*map(_split, self.splits), _bytes_step(has_space_prefix)]


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes_step(has_space_prefix: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": has_space_prefix, "trim_offsets": True, "use_regex": False}


_PLAIN = PreTokenizer((GPT2,))
_DIGITS = PreTokenizer((r"\p{N}", GPT2))
_LLAMA3 = PreTokenizer((GPT4,), ignores_merges=True)
_QWEN2 = PreTokenizer((QWEN2,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(DEFAULT),
    # As the reference implementation reads such a file. llama.cpp cuts digits out first, like starcoder; since no token
    # of this vocabulary holds two digits, that differs only in how several white spaces before a digit are cut.
    "smollm": _PLAIN,
    "qwen2": replace(_QWEN2, is_normalised=True),
    "megrez": replace(_QWEN2, is_normalised=True),
    "stablelm2": replace(_QWEN2, is_normalised=True),
    "qwen35": PreTokenizer((QWEN35,), is_normalised=True),
    "olmo": replace(_PLAIN, is_normalised=True),
    "mpt": replace(_PLAIN, is_normalised=True),
    "command-r": replace(_DIGITS, is_normalised=True),
    "deepseek-llm": PreTokenizer(DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(DEEPSEEK_CODER),
    "falcon": PreTokenizer(FALCON),
    "viking": PreTokenizer((BLOOM, r"\p{N}")),
    "tekken": PreTokenizer((TEKKEN,), ignores_merges=True),
    "tiny_aya": PreTokenizer(TINY_AYA),
    "kimi-k2": PreTokenizer((KIMI,)),
    "seed-coder": PreTokenizer((SEED_CODER,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", MINICPM5), ignores_merges=True),
    "youtu": PreTokenizer(
        (r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", YOUTU), ignores_merges=True
    ),
    "exaone-moe": PreTokenizer((EXAONE_MOE,)),
}
for _pre_tokenizer, _names in (
    (_PLAIN, "gpt-2 phi-2 jais trillion granite-docling gigachat exaone4 mellum a.x-4.0"),
    (_DIGITS, "starcoder refact codeshell exaone minerva-7b mellum2"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (PreTokenizer((GPT4,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (_QWEN2, "deepseek-r1-qwen kormo hunyuan solar-open grok-2"),
    (PreTokenizer(DEEPSEEK_V3), "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer((BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2"),
    (PreTokenizer((BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
):
    PRE_TOKENIZERS |= dict.fromkeys(_names.split(), _pre_tokenizer)
