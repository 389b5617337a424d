"""A template that nobody has seen is tried in a process that can be killed; what fails there is told with its line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.errors import TemplateError
from inference.tokenizer import template_trial
from inference.tokenizer.chat_template import CHATML, ChatTemplate
from inference.tokenizer.template_trial import try_template
from inference.tokenizer.tokenizer import Tokenizer
from tests.inference.tiny_tokenizers import byte_level_spec

TOKENS = (("bos_token", "<s>"), ("eos_token", "</s>"))


@pytest.fixture(autouse=True)
def _nothing_tried() -> Iterator[None]:
    try_template.cache_clear()
    yield
    try_template.cache_clear()


def test_a_sound_template_passes_and_is_tried_once() -> None:
    for _ in range(3):
        try_template(CHATML + "{{ bos_token + eos_token + strftime_now('%Y') }}", TOKENS)
    assert try_template.cache_info().misses == 1


@pytest.mark.parametrize(
    ("source", "problem", "line"),
    [
        ("\n{% for %}", "Expected", 2),
        ("\n\n{{ raise_exception('roles must alternate') }}", "roles must alternate", 3),
        ("{% for i in range(10**9) %}{% endfor %}", "does not come to an end", 1),
        ("{{ " + "(" * 9999, "does not compile", 0),
        ("a" * (1 << 20), "characters", 0),
    ],
    ids=["syntax", "refusal", "loop", "nesting", "size"],
)
def test_what_goes_wrong_is_told_as_if_it_had_happened_here(source: str, problem: str, line: int) -> None:
    with pytest.raises(TemplateError, match=problem) as caught:
        try_template(source, TOKENS)
    assert caught.value.line == line


@pytest.mark.parametrize("freeze", ["all(iter(lambda: 1, 0))", "bytearray(2 << 30)", "print('x' * 100_000)"])
def test_what_the_sandbox_overlooks_ends_with_the_child(monkeypatch: pytest.MonkeyPatch, freeze: str) -> None:
    """Stands for a template that found a way: it runs for ever, fills the memory, floods us."""
    monkeypatch.setattr(template_trial, "MAX_CPU_S", 1)
    monkeypatch.setattr(template_trial, "_BOOT", template_trial._BOOT.replace("main()", freeze))
    with pytest.raises(TemplateError, match="stopped"):
        try_template(CHATML, TOKENS)


def test_the_child_sees_neither_our_environment_nor_can_it_write_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("RECOLLECT_SECRET_KEY", "secret")
    target = tmp_path_factory.mktemp("out") / "written"
    snoop = f"import os; os.write(os.open({str(target)!r}, os.O_WRONLY | os.O_CREAT), b'written'); main()"
    monkeypatch.setattr(template_trial, "_BOOT", template_trial._BOOT.replace("main()", snoop))
    with pytest.raises(TemplateError, match="stopped"):
        try_template(CHATML, TOKENS)
    assert target.read_text() == ""
    looking = "import os; assert 'RECOLLECT_SECRET_KEY' not in os.environ; main()"
    monkeypatch.setattr(template_trial, "_BOOT", template_trial._BOOT.replace(snoop, looking))
    try_template(CHATML, TOKENS)


def test_no_template_is_compiled_here_before_it_has_been_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_trial, "MAX_CPU_S", 1)
    monkeypatch.setattr(template_trial, "_BOOT", template_trial._BOOT.replace("main()", "all(iter(lambda: 1, 0))"))
    monkeypatch.setattr("inference.tokenizer.chat_template.Sandbox", lambda source: pytest.fail("compiled here"))
    with pytest.raises(TemplateError, match="stopped"):
        ChatTemplate(Tokenizer(byte_level_spec()), CHATML)
