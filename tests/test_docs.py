"""The documents say what is: each setting, dependency, target and link that they name exists, and vice versa."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from inference.formats.gguf_file import is_dequantised
from inference.formats.numbers import FLOAT_TYPES
from inference.tokenizer.pre_tokenizers import PRE_TOKENIZERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


def variables_read() -> set[str]:
    """Environment variables that settings.py reads, all of them through env.py."""
    source = (ROOT / "chatapp" / "settings.py").read_text()
    return set(re.findall(r"""["'](RECOLLECT_[A-Z_]+|DATABASE_URL)["']""", source))


def pinned(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    direct = lines[: lines.index(MARK)] if (MARK := "# What those need.") in lines else lines
    return {re.split(r"[=\[]", line)[0].lower() for line in direct if line and not line.startswith(("#", "-r"))}


def test_every_setting_has_a_readme_row_and_every_row_a_setting() -> None:
    rows = set(re.findall(r"^\| `(RECOLLECT_[A-Z_]+|DATABASE_URL)`", README, re.MULTILINE))
    assert rows == variables_read()


def test_the_readme_lists_the_kinds_of_tensors_and_pre_tokenizers_that_are_read() -> None:
    cells = dict(re.findall(r"^\| ([^|`]+) \| (.+) \|$", README, re.MULTILINE))
    kinds = {kind.name for kind in GGMLQuantizationType if is_dequantised(kind)}
    assert set(cells["its tensors"].split(", ")) == kinds
    assert all(kind in cells["safetensors"] for kind in FLOAT_TYPES)
    assert f"any of {len(PRE_TOKENIZERS)} pre-tokenizers" in cells["its tokenizers"]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_pinned_dependency_has_its_reason(name: str) -> None:
    text = ARCHITECTURE.lower()
    assert [package for package in sorted(pinned(name)) if f"`{package}`" not in text] == []


def test_every_requirement_is_pinned_exactly() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text().splitlines():
            assert (
                not line or line.startswith(("#", "-r ")) or re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+( ;.*)?", line)
            ), line


def test_make_lists_every_target_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", README)) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_backticks_exist(document: Path) -> None:
    named = re.findall(r"`((?:inference|chatapp|tests|docs|templates|static)/[\w/.-]+)`", document.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_changelog_begins_with_what_is_not_released() -> None:
    assert re.search(r"^## Unreleased$", CHANGELOG, re.MULTILINE)


def test_no_path_of_one_machine_is_tracked() -> None:
    home = re.compile(rb"(?<![\w.-])/(?:home|root|Users)/\w")
    hits = [str(path.relative_to(ROOT)) for path in tracked_files() if home.search(path.read_bytes())]
    assert hits == []


def test_no_model_but_the_tiny_ones_of_the_tests_and_no_big_file_is_tracked() -> None:
    models = [path for path in tracked_files() if path.suffix in {".gguf", ".safetensors"}]
    assert [path.name for path in models if not path.is_relative_to(ROOT / "tests" / "data")] == []
    assert [path.name for path in tracked_files() if path.stat().st_size > 2 << 20] == []


def test_no_line_imports_a_module_without_a_semicolon_in_static_javascript() -> None:
    """Django's manifest storage rewrites only import statements that end with one."""
    bad = [
        f"{path.name}:{number}"
        for path in (ROOT / "static").rglob("*.js")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r"\s*(import|export)\b.*\bfrom\b.*[\"']\s*$", line)
    ]
    assert bad == []
