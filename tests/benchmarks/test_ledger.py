from __future__ import annotations

import pytest
import torch

from benchmarks.experiments.ledger import add, bands, read
from counterfoil.evaluation.metrics import METRICS
from counterfoil.evaluation.protocols import evaluate_scores
from experiment_cases import entry, report


def test_shares_of_the_images_add_up_to_rsum() -> None:
    for seed in range(5):
        found = entry(report(seed))
        assert float(found.shares().sum()) == pytest.approx(found.numbers["RSum"], abs=1e-3)


def test_shares_where_images_have_any_number_of_captions() -> None:
    text_to_image = torch.tensor([0, 2, 2, 1, 0, -1, 2])
    scores = torch.rand(3, 7, generator=torch.Generator().manual_seed(3))
    measured = evaluate_scores(scores, text_to_image)
    i2t, t2i = measured.ranked
    assert [len(group) for group in bands(t2i)] == [2, 1, 3]
    found = entry(measured)
    assert float(found.shares().sum()) == pytest.approx(measured.rsum, abs=1e-3)
    assert len(bands(i2t)) == 3


def test_a_newer_entry_of_the_same_row_replaces_the_older(tmp_path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    add(path, [entry(report(0), seed=0), entry(report(1), seed=1)])
    add(path, [entry(report(2), seed=0)])
    found = {e.seed: e.numbers["RSum"] for e in read(path)}
    want = {0: report(2).rsum, 1: report(1).rsum}
    assert found == pytest.approx(want, abs=1e-3)
    assert set(read(path)[0].numbers) == set(METRICS)


def test_what_is_no_ledger_is_told_and_left_alone(tmp_path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "none.jsonl")
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(ValueError, match="line 1"):
        add(path, [entry(report(0))])
    assert path.read_text() == "dear diary\n"
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read as text"):
        read(tmp_path / "binary")
