"""Style sheets, scripts and templates, read as text: what no run would notice in time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles.finders import find
from django.template.loader import get_template

from chatapp.static_storage import StaticStorage

ROOT = Path(settings.BASE_DIR)
SCRIPTS = sorted((ROOT / "static" / "js").glob("*.js"))
STYLES = sorted((ROOT / "static" / "css").glob("[!a]*.css"))  # admin-*.css live in another house
TEMPLATES = sorted(path for path in (ROOT / "templates").rglob("*.html") if "admin" not in path.parts)
TOKENS = (ROOT / "static" / "css" / "tokens.css").read_text()

# (text, what it lies on)
PAIRS = [
    *[(ink, ground) for ink in ("ink", "ink-2", "ink-3") for ground in ("bg", "bg-sunken", "surface")],
    ("ink-3", "code-bg"),
    ("ink", "bubble"),
    ("ink", "surface-hover"),
    ("ink-2", "surface-hover"),
    ("ink", "accent-soft"),
    ("accent", "bg"),
    ("accent", "accent-soft"),
    ("on-accent", "accent"),
    ("on-accent", "accent-hover"),
    ("danger", "bg"),
    ("danger", "danger-soft"),
    ("on-danger", "danger"),
    ("warn", "warn-soft"),
    *[(f"hl-{kind}", "code-bg") for kind in ("comment", "keyword", "string", "number", "name", "type", "operator")],
]


def _color(name: str, theme: int) -> tuple[float, float, float]:
    found = re.search(rf"--{name}: light-dark\((#\w{{6}}), (#\w{{6}})\)", TOKENS)
    assert found is not None, name
    text = found.group(1 + theme)
    red, green, blue = (int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _luminance(color: tuple[float, float, float]) -> float:
    """Relative luminance as in WCAG 2.2."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_text_can_be_read(ink: str, ground: str, theme: int) -> None:
    """Contrast AA: at least 4.5 to 1."""
    dark, light = sorted((_luminance(_color(ink, theme)), _luminance(_color(ground, theme))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("line", ["border-strong", "focus"])
def test_the_edge_of_a_field_can_be_seen(line: str, theme: int) -> None:
    dark, light = sorted((_luminance(_color(line, theme)), _luminance(_color("surface", theme))))
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_colors_live_in_one_file() -> None:
    for path in STYLES:
        if path.name != "tokens.css":
            assert not re.search(r"#[0-9a-f]{3,8}\b(?!\s*\{)|rgb\(", path.read_text()), path.name


def test_every_custom_property_that_is_used_is_set() -> None:
    known = set(re.findall(r"^\s*(--[\w-]+):", TOKENS, re.MULTILINE))
    for path in STYLES:
        text = path.read_text()
        own = set(re.findall(r"{ (--[\w-]+):", text))
        assert set(re.findall(r"var\((--[\w-]+)", text)) <= known | own, path.name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_imports_are_of_the_kind_that_static_storage_rewrites(path: Path) -> None:
    for line in re.findall(r"^import\b.*", path.read_text(), re.MULTILINE):
        found = re.fullmatch(r'import (?:\{ [\w, ]+ \}|\* as \w+) from "\./(\w+\.js)";', line)
        assert found is not None, line
        assert find(f"js/{found.group(1)}"), line


def test_scripts_import_each_other_under_their_final_names(tmp_path: Path) -> None:
    """After collectstatic: every import leads to a file with a digest in its name, so that browsers may keep it."""
    shutil.copytree(ROOT / "static", tmp_path, dirs_exist_ok=True)
    storage = StaticStorage(location=tmp_path, base_url="/static/")
    found = {
        str(path.relative_to(tmp_path)): (storage, str(path.relative_to(tmp_path))) for path in tmp_path.rglob("*.*")
    }
    for name, _hashed, outcome in storage.post_process(found):
        assert not isinstance(outcome, Exception), (name, outcome)
    for path in SCRIPTS:
        final = tmp_path / storage.stored_name(f"js/{path.name}")
        targets = re.findall(r'from "\./([^"]+)"', final.read_text())
        assert len(targets) == len(re.findall("^import ", path.read_text(), re.MULTILINE))
        for target in targets:
            assert re.fullmatch(r"\w+\.[0-9a-f]{12}\.js", target), (path.name, target)
            assert (tmp_path / "js" / target).is_file()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_script_style_or_foreign_address(path: Path) -> None:
    text = path.read_text()
    get_template(str(path.relative_to(ROOT / "templates")))  # compiles
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|https?://(?!www\.w3\.org/)", text)
    assert "|safe" not in text
    for name in re.findall(r'{% icon "(\w+)" %}', text):
        assert f'id="i-{name}"' in (ROOT / "templates" / "partials" / "icons.html").read_text()


def test_words_of_the_interface_can_be_translated() -> None:
    """No letters between tags outside of translation tags, apart from the product's name, keys and numbers."""
    for path in TEMPLATES:
        text = re.sub(
            r"{% block \w+_class %}\w*-?\w*|{% blocktranslate.*?{% endblocktranslate %}|{%.*?%}|{{.*?}}|{#.*?#}",
            "",
            path.read_text(),
            flags=re.S,
        )
        text = re.sub(r"<kbd>.*?</kbd>|<title>.*?</title>|<[^>]*>", " ", text, flags=re.S)
        words = set(re.findall(r"[A-Za-z]{2,}", text)) - {"Recollect", "doctype", "html"}
        assert not words, (path.name, words)
