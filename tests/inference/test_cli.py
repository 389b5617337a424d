"""One reply in the terminal: text to stdout, numbers to stderr, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference import cli

QUESTION = "Why is the sky blue? Answer in two sentences."
REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "smollm2-greedy.json").read_text())["cases"][0]


@pytest.mark.model
def test_the_reply_is_streamed_to_stdout_and_the_numbers_to_stderr(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(model_path), "--temperature", "0", "--max-tokens", "20"]
    assert REFERENCE["messages"] == [{"role": "user", "content": QUESTION}]
    assert cli.main([QUESTION, *options]) == 0
    captured = capsys.readouterr()
    assert REFERENCE["greedy_text"].startswith(captured.out.strip())
    assert len(captured.out.split()) > 10
    assert f"{len(REFERENCE['prompt_ids'])} prompt tokens" in captured.err
    assert "20 generated" in captured.err
    assert "length" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.model
def test_raw_completes_the_text_itself(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(model_path), "--temperature", "0", "--max-tokens", "4", "--raw"]
    assert cli.main(["The capital of France is", *options]) == 0
    captured = capsys.readouterr()
    assert "Paris" in captured.out
    assert "5 prompt tokens" in captured.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--temperature", "9"], "temperature is 9.0, legal are 0.0 to 5.0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
    ],
    ids=["temperature", "max-tokens"],
)
def test_an_option_out_of_range_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert cli.main(["hello", *arguments, "--model", "no such model"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert problem in captured.err


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["", "--raw"], "prompt"), (["word " * 9000], "the window holds 8192")],
    ids=["empty", "too long"],
)
def test_a_prompt_that_cannot_be_answered_is_refused_in_one_line(
    model_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert cli.main([*arguments, "--model", str(model_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert problem in captured.err


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"not a model at all"], ids=str)
def test_a_missing_or_broken_file_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["hello", "--model", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: model.gguf: ")
