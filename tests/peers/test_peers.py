"""The comparison, without peers: which way a ratio goes, when a target holds, and what the conversion keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, dequantize

from tests.inference import tiny_models as tiny
from tests.peers.conversion import convert_to_q8_0
from tests.peers.environments import PEERS, find_python
from tests.peers.fidelity import log_softmax, mean_kl
from tests.peers.targets import RATIOS, Verdict, medians, named, ratio, verdicts

QUALITY = {"kl": 0.001, "kl_llamacpp": 0.003, "bandwidth_share": 0.61, "first_s": 30.0, "cached_s": 2.0}


def test_ratio_is_to_the_best_peer_and_above_one_is_better_for_us():
    ours = {"decode_64": 30.0, "warm_ttft_2048": 10.0}
    peers = {"a": {"decode_64": 10.0, "warm_ttft_2048": 40.0}, "b": {"decode_64": 20.0, "warm_ttft_2048": 50.0}}
    assert ratio("decode_64", ours, peers) == 1.5
    assert ratio("warm_ttft_2048", ours, peers) == 4.0


def test_figures_of_a_run_get_the_names_of_the_targets():
    row = {"prefill_tok_s": 1.0, "decode_tok_s": 2.0, "warm_ttft_ms": 3.0}
    figures = named({"contexts": {"64": row, "512": row, "2048": row}, "parallel": {"decode_tok_s": 4.0}})
    assert set(RATIOS) <= set(figures)
    assert figures["warm_ttft_2048"] == 3.0
    assert medians([{"x": 1.0}, {"x": 9.0}, {"x": 2.0}]) == {"x": 2.0}


def test_targets_hold_at_the_border_and_say_by_how_much_they_are_missed():
    assert all(verdict.holds for verdict in verdicts(RATIOS, QUALITY))
    missed = [v for v in verdicts({**RATIOS, "decode_512": 1.5}, {**QUALITY, "kl": 0.006}) if not v.holds]
    assert [str(verdict).split("missed by ")[1] for verdict in missed] == ["25%", "100%"]
    assert not Verdict("start", 5.0, 4.0, is_upper=True).holds


def test_without_llamacpp_its_fidelity_is_no_target():
    quality = {name: value for name, value in QUALITY.items() if name != "kl_llamacpp"}
    assert len(verdicts(RATIOS, quality)) == len(verdicts(RATIOS, QUALITY)) - 1


def test_divergence_is_zero_for_equals_and_that_of_the_definition_otherwise():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32)) + np.float32(7)
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32))
    assert mean_kl(log_softmax(logits), log_softmax(logits)) == 0
    assert mean_kl(log_softmax(logits), log_softmax(other)) == pytest.approx(0.25 * np.log(2) / 2, rel=1e-5)


def test_conversion_keeps_metadata_and_values(tmp_path: Path):
    source = tiny.tiny_gguf().write(tmp_path / "m.gguf")
    convert_to_q8_0(source, tmp_path / "q8.gguf")
    before, after = GGUFReader(source), GGUFReader(tmp_path / "q8.gguf")
    kept = {name: field.contents() for name, field in before.fields.items() if not name.startswith("GGUF.")}
    found = {name: field.contents() for name, field in after.fields.items()}
    assert {name: found[name] for name in kept if name != "general.file_type"} == {
        name: value for name, value in kept.items() if name != "general.file_type"
    }
    for old, new in zip(before.tensors, after.tensors, strict=True):
        is_matrix = len(old.shape) > 1
        assert new.tensor_type == (GGMLQuantizationType.Q8_0 if is_matrix else GGMLQuantizationType.F32)
        old_values, new_values = (dequantize(tensor.data, tensor.tensor_type) for tensor in (old, new))
        np.testing.assert_allclose(new_values, old_values, atol=np.abs(old_values).max() / 127)
    assert not list(tmp_path.glob("*.unfinished"))


def test_no_two_ways_to_run_a_peer_share_a_name():
    assert len({peer.key for peer in PEERS}) == len({peer.title for peer in PEERS}) == len(PEERS)
    assert not PEERS[0].is_aside


def test_foreign_environments_are_found_by_name(tmp_path: Path):
    assert find_python(PEERS[0], tmp_path) is None
    python = tmp_path / "peer-llamacpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_python(PEERS[0], tmp_path) == python
