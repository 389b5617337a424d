"""The catalogues: every sentence of the source is in them, translated, and compiled.

The sentences are taken from the source here, without GNU gettext, which neither users nor this test need.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from django.conf import settings
from django.utils.translation.template import templatize

ROOT = Path(settings.BASE_DIR)
LOCALES = ROOT / "locale"
_ONE_TEXT = ("_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy")
CALLS = frozenset({*_ONE_TEXT, "pgettext", "pgettext_lazy"})
HAN = "\u4e00-\u9fff"
TEXT = r"""u?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
CALL_IN_TEMPLATE = re.compile(rf"\b(?:n?p?gettext|_)\((?:{TEXT},?\s*)+")
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[sd]|%%|`[^`]+`")

Key = tuple[str, str]  # context and sentence

catalogues = pytest.mark.parametrize("path", sorted(LOCALES.rglob("*.po")), ids=lambda path: path.stem)


def keys_of_python(source: str) -> Iterator[Key]:
    """First argument of each call that translates; with a context, that and the second one."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if name not in CALLS or not texts or not isinstance(texts[0], str):
            continue
        yield (texts[0], str(texts[1])) if name.startswith("pgettext") else ("", texts[0])


def keys_of_template(source: str) -> Iterator[Key]:
    calls = CALL_IN_TEMPLATE.findall(templatize(source))
    for call in calls:
        yield from keys_of_python(call.rstrip(", ") + ")")


def keys_of_script(source: str) -> Iterator[Key]:
    for text in re.findall(r'\bn?gettext\(\s*"((?:[^"\\]|\\.)*)"', source):
        yield "", ast.literal_eval(f'"{text}"')


def source_keys(domain: str) -> set[Key]:
    if domain == "djangojs":
        scripts = (ROOT / "static" / "js").glob("*.js")
        return {key for path in scripts for key in keys_of_script(path.read_text())}
    modules = (path for path in (ROOT / "chatapp").rglob("*.py") if "management" not in path.parts)
    templates = (ROOT / "templates").rglob("*.html")
    return {key for path in modules for key in keys_of_python(path.read_text())} | {
        key for path in templates for key in keys_of_template(path.read_text())
    }


def translations(entry: polib.POEntry) -> list[str]:
    return list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]


def test_every_language_has_its_catalogues() -> None:
    found = {path.relative_to(LOCALES).as_posix() for path in LOCALES.rglob("*.po")}
    assert found == {f"zh_Hans/LC_MESSAGES/{domain}.po" for domain in ("django", "djangojs")}


@catalogues
def test_a_catalogue_holds_the_sentences_of_the_source_and_no_others(path: Path) -> None:
    """Otherwise `make messages`, and translate what is new."""
    assert {(entry.msgctxt or "", entry.msgid) for entry in polib.pofile(str(path))} == source_keys(path.stem)


@catalogues
def test_every_sentence_is_translated(path: Path) -> None:
    catalogue = polib.pofile(str(path))
    assert not catalogue.metadata_is_fuzzy
    assert [entry.msgid for entry in catalogue if entry.fuzzy or not all(translations(entry))] == []


@catalogues
def test_a_translation_has_the_placeholders_of_its_sentence(path: Path) -> None:
    for entry in polib.pofile(str(path)):
        sentence = entry.msgid_plural or entry.msgid  # the one about one thing may go without the number
        for text in translations(entry):
            assert sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(sentence)), entry.msgid


@catalogues
def test_chinese_is_set_with_chinese_punctuation(path: Path) -> None:
    for entry in polib.pofile(str(path)):
        for text in translations(entry):
            assert not re.search(rf"[{HAN}][,;:?!.(\"']|[,;:?!)\"'][{HAN}]", text), text
            assert not re.search(rf"[{HAN}][A-Za-z0-9]|[A-Za-z0-9][{HAN}]", text), f"no space between scripts: {text}"


@catalogues
def test_the_compiled_catalogue_is_that_of_the_text(path: Path) -> None:
    """Both are kept: a fresh clone has no msgfmt. Otherwise `make messages`."""
    compiled = polib.mofile(str(path.with_suffix(".mo")))
    assert {(entry.msgctxt, entry.msgid): translations(entry) for entry in compiled} == {
        (entry.msgctxt, entry.msgid): translations(entry) for entry in polib.pofile(str(path))
    }
