"""Ties at true pairs are counted in the pass, and told where there are many."""

from __future__ import annotations

import pytest
import torch

import counterfoil as cf
import evaluation_cases
import recipes_cases
from counterfoil.evaluation.cascade import Shortlister, evaluate_cascade
from counterfoil.evaluation.metrics import Protocol
from counterfoil.evaluation.protocols import WHOLE, evaluate_protocol, evaluate_scores
from evaluation_cases import member, unnamed

FOLDS = Protocol("folds", folds=3)


def slow(scores, true) -> int:
    """Queries whose best true score some false one has, too."""
    count = 0
    for line, own in zip(scores.tolist(), true.tolist()):
        best = max((s for s, right in zip(line, own) if right), default=None)
        count += any(s == best for s, right in zip(line, own) if not right)
    return count


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_ties_are_those_of_a_loop(protocol):
    text_to_image = evaluation_cases.ragged(37, 3, orphans=3)
    scores = evaluation_cases.scores(37, text_to_image, 3, levels=2)
    data = unnamed(text_to_image, 37)
    wanted = [0, 0]
    for images in torch.arange(37).tensor_split(protocol.folds):
        texts = torch.isin(text_to_image, images) | (protocol.folds == 1)
        true = text_to_image[texts] == images.unsqueeze(1)
        block = scores[images][:, texts]
        wanted[0] += slow(block, true)
        wanted[1] += slow(block.T, true.T)
    assert min(wanted) > 5
    by = Shortlister((member(scores),), "x", 99, full=False)
    for report in (
        evaluate_protocol([member(scores)], data, protocol),
        evaluate_scores(scores, text_to_image, protocol),
        evaluate_cascade([member(scores)], by, data, protocol, head=5).report,
    ):
        assert [report.i2t.tied, report.t2i.tied] == wanted
        assert report.to_dict()["i2t"]["tied"] == wanted[0]


def test_ties_within_a_shortlist():
    """Only what is scored again can tie."""
    first, scores = torch.eye(9) + torch.arange(9) / 100, torch.ones(9, 9)
    by = Shortlister((member(first),), "x", 3, full=False)
    report = evaluate_cascade([member(scores)], by, unnamed(torch.arange(9), 9), head=3).report
    assert (report.i2t.tied, report.t2i.tied) == (9, 9)
    shortest = Shortlister((member(first),), "x", 1, full=False)
    alone = evaluate_cascade([member(scores)], shortest, unnamed(torch.arange(9), 9), head=1)
    assert (alone.report.i2t.tied, alone.report.t2i.tied) == (0, 0)


def vectors(folder, tied: int, count: int = 100):
    """Orthogonal images with a caption each; the last `tied` images are one picture."""
    import numpy as np

    images = np.eye(count, dtype=np.float32)
    images[count - tied :] = images[-1]
    folder.mkdir()
    np.save(folder / "images.npy", images)
    np.save(folder / "texts.npy", images)
    return folder


@pytest.mark.parametrize(("tied", "told"), [(0, False), (2, True), (30, True)])
def test_many_ties_are_told(tmp_path, capsys, tied, told):
    data = cf.load_dataset(vectors(tmp_path / "v", tied))
    result = cf.evaluate(cf.load_model("vectors"), data, ties="pessimistic")
    said = " ".join(capsys.readouterr().err.split())
    assert (f"{tied} of 100 images ({tied}.0 %) have a wrong text" in said) == told
    assert (f"{tied} of 100 texts ({tied}.0 %) have a wrong image" in said) == told
    assert ("used: a tied competitor counts as better" in said) == told
    assert result.to_dict()["t2i"]["tied"] == tied


def test_one_in_a_hundred_is_not_told(tmp_path, capsys):
    data = cf.load_dataset(vectors(tmp_path / "v", 2, count=200))
    cf.evaluate(cf.load_model("vectors"), data)
    assert "have a wrong" not in capsys.readouterr().err


def test_the_command_tells_them(tmp_path, capsys):
    folder = vectors(tmp_path / "v", 30)
    assert recipes_cases.run("evaluate", "vectors", "--data", folder) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "30 of 100 images (30.0 %) have a wrong text that scores exactly as high" in said
    assert "used: of equal scores the lower row comes first" in said
