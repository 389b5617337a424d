"""What the README says of models is true: each cell of its two tables is held by the code and by a test that exists."""

from __future__ import annotations

import importlib
import json
import re

import pytest

from inference.formats.architectures import ARCHITECTURES, GGUF_ARCHITECTURES, KNOWN_ARCHITECTURES
from inference.formats.gguf_header import VERSIONS
from inference.tokenizer.gguf_vocabulary import GGUF_KINDS
from inference.tokenizer.vocabulary import JSON_KINDS
from tests.conftest import ROOT
from tests.inference import gguf_families
from tests.inference.row_invariance import FIXTURES

README = (ROOT / "README.md").read_text()

# Of the table "what | which": the tests behind each row.
BACKED = {
    "GGUF": (
        "test_formats_gguf:test_the_config_is_read_from_the_metadata",
        "test_formats_gguf_parts:test_parts_are_one_model_opened_by_any_of_them",
        "test_formats_gguf_parts:test_a_big_endian_file_is_refused_as_one",
        "test_formats_gguf_families:test_both_formats_of_one_model_compute_the_same",
        "test_cli_families:test_a_gguf_file_of_every_fixture_is_run",
    ),
    "its tensors": (
        "test_formats_gguf:test_every_type_that_the_package_dequantises_is_read",
        "test_formats_gguf_kinds:test_every_value_of_a_block_is_what_its_layout_says",
        "test_formats_gguf:test_a_type_without_a_dequantiser_is_refused_with_the_known_ones",
    ),
    "its tokenizers": (
        "test_sentencepiece:test_ids_are_those_of_the_reference",
        "test_tokenizer_corpus:test_ids_are_those_that_an_independent_implementation_gives",
        "test_tokenizer_encode:test_an_unknown_kind_of_vocabulary_is_refused_by_name",
    ),
    "safetensors": (
        "test_formats_safetensors:test_float32_weights_come_back_bit_by_bit",
        "test_formats_safetensors:test_float16_weights_come_back_as_the_same_numbers",
        "test_formats_safetensors:test_bfloat16_weights_come_back_as_the_upper_half_of_float32",
        "test_formats_safetensors:test_shards_are_one_model",
        "test_formats_numbers:test_weights_of_eight_bits_are_read",
        "test_formats_numbers:test_every_block_is_multiplied_by_its_scale",
    ),
    "tokenizer.json": (
        "test_tokenizer_families:test_ids_are_those_of_the_library",
        "test_tokenizer_corpus:test_ids_are_those_that_an_independent_implementation_gives",
    ),
    "chat template": (
        "test_chat_template_reference:test_templates_render_as_in_the_reference",
        "test_chat_template_build:test_without_a_template_chatml_is_used_if_the_vocabulary_has_it",
    ),
}


def table(header: str) -> list[list[str]]:
    """Rows of the table that begins with this line, as cells."""
    lines = README[README.index(header) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


FAMILIES = table("| family | `model_type` | in GGUF |")


def test_the_families_listed_are_those_that_run() -> None:
    assert set().union(*(names(row[1]) for row in FAMILIES)) == set(KNOWN_ARCHITECTURES)
    assert set().union(*(names(row[2]) for row in FAMILIES)) == set(GGUF_ARCHITECTURES)


@pytest.mark.parametrize("row", FAMILIES, ids=lambda row: row[0])
def test_each_family_has_its_fixture_in_each_format_that_is_listed(row: list[str]) -> None:
    model_types = names(row[1])
    fixtures = {json.loads((path / "config.json").read_text())["model_type"] for path in FIXTURES}
    assert model_types <= fixtures
    for name in names(row[2]) - {"llama"} if row[0] == "Mistral" else names(row[2]):
        assert GGUF_ARCHITECTURES[name] in model_types
        assert GGUF_ARCHITECTURES[name] in gguf_families.ARCHITECTURES
    is_partial = any(ARCHITECTURES[model_type].skipped_prefixes for model_type in model_types)
    assert is_partial == ("text only" in row[0])


@pytest.mark.parametrize("row", table("| what | which |"), ids=lambda row: row[0])
def test_each_row_about_files_has_its_tests(row: list[str]) -> None:
    for place in BACKED[row[0]]:
        module, name = place.split(":")
        assert callable(getattr(importlib.import_module(f"tests.inference.{module}"), name))


def test_what_the_rows_about_files_name_is_what_the_code_knows() -> None:
    cells = dict(table("| what | which |"))
    assert names(cells["its tokenizers"]) == set(GGUF_KINDS)
    assert all(f"{version}" in cells["GGUF"] for version in VERSIONS)
    assert all(kind in cells["tokenizer.json"] for kind in JSON_KINDS)
