from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import evaluation_cases
import processes
from counterfoil.core.types import Pairs
from counterfoil.evaluation.metrics import METRICS, Protocol, rank_positions
from counterfoil.evaluation.protocols import (
    COCO_1K,
    FLICKR_1K,
    WHOLE,
    evaluate_protocol,
    evaluate_scores,
    folds_of,
    protocol_by_name,
)
from evaluation_cases import member, unnamed

FOLDS = Protocol("folds", folds=3)


def _case(images=37, seed=3, levels=None, orphans=3):
    text_to_image = evaluation_cases.ragged(images, seed, orphans=orphans)
    return evaluation_cases.scores(images, text_to_image, seed, levels), text_to_image


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
def test_streamed_equals_dense(protocol, tie):
    scores, text_to_image = _case(levels=2)
    streamed = evaluate_protocol([member(scores)], unnamed(text_to_image, 37), protocol, tie=tie)
    dense = evaluate_scores(scores, text_to_image, protocol, tie=tie, split="all")
    assert streamed.numbers == dense.numbers
    assert replace(streamed.setting, score="") == dense.setting
    for ours, theirs in zip(streamed.ranked, dense.ranked):
        assert torch.equal(ours.ranks, theirs.ranks)
        assert torch.equal(ours.folds, theirs.folds)


def _besides(text_to_image, images, seed=5, many=150):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(images, (many,), generator=rng)
    return Pairs(rows, torch.randint(len(text_to_image), (many,), generator=rng))


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
def test_what_is_true_besides_is_an_answer_and_no_query(folds, tie):
    """By a loop over queries and folds."""
    scores, text_to_image = _case(levels=2)
    besides = _besides(text_to_image, 37)
    protocol = Protocol("p", folds=folds)
    data = unnamed(text_to_image, 37, extra_positives=besides, corrections="2 pairs")
    found = evaluate_protocol([member(scores)], data, protocol, tie=tie)
    dense = evaluate_scores(scores, text_to_image, protocol, tie=tie, extra_positives=besides)
    assert "; the data as decided: 2 pairs; " in found.setting.line()
    own = text_to_image == torch.arange(37).unsqueeze(1)
    true = own.clone()
    for image, text in zip(besides.image.tolist(), besides.text.tolist()):
        true[image, text] |= bool(own[image].any()) and bool(own[:, text].any())
    assert true.sum() > own.sum()
    for fold, images in enumerate(torch.arange(37).tensor_split(folds)):
        texts = (
            torch.arange(len(text_to_image))
            if folds == 1
            else torch.isin(text_to_image, images).nonzero()[:, 0]
        )
        for side in (found, dense):
            block, truth = scores[images][:, texts], true[images][:, texts]
            assert torch.equal(side.ranked[0].ranks[images], rank_positions(block, truth, tie))
            assert torch.equal(side.ranked[1].ranks[texts], rank_positions(block.T, truth.T, tie))
            assert (side.ranked[0].folds[images] == fold).all()
    plain = evaluate_protocol([member(scores)], unnamed(text_to_image, 37), protocol, tie=tie)
    for one, other in zip(plain.ranked, found.ranked):
        assert torch.equal(one.counted, other.counted)
        assert (other.ranks <= one.ranks).all() or tie == "row"
    assert found.rsum > plain.rsum


def test_an_ensemble_is_the_mean_of_scores():
    scores, text_to_image = _case(levels=4)
    other = evaluation_cases.scores(37, text_to_image, 9, levels=4)
    both = [member(scores), member(other)]
    report = evaluate_protocol(both, unnamed(text_to_image, 37))
    assert report.numbers == evaluate_scores((scores + other) / 2, text_to_image).numbers
    assert report.setting.members == 2
    assert "ensemble of 2 by mean score" in report.setting.line()


def test_folds_are_disjoint_runs_with_all_their_texts():
    scores, text_to_image = _case()
    report = evaluate_scores(scores, text_to_image, FOLDS)
    numbers = []
    for images in torch.arange(37).tensor_split(3):
        texts = torch.isin(text_to_image, images).nonzero().flatten()
        part = evaluate_scores(scores[images][:, texts], text_to_image[texts] - images[0])
        numbers.append(part.numbers)
    wanted = torch.tensor(numbers, dtype=torch.float64).mean(0).tolist()
    assert report.numbers == pytest.approx(wanted)
    assert report.i2t.queries + report.i2t.left_out == 37
    assert report.t2i.left_out == 3


def test_texts_of_no_image_compete_but_do_not_ask():
    text_to_image = torch.tensor([0, 1, -1])
    scores = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    report = evaluate_scores(scores, text_to_image)
    assert report.ranked[0].ranks.tolist() == [1, 0]
    assert report.ranked[1].ranks.tolist() == [0, 0, -1]
    assert (report.t2i.queries, report.t2i.left_out) == (2, 1)


def test_images_without_texts_compete_but_do_not_ask():
    scores = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    report = evaluate_scores(scores, torch.tensor([0, 0]))
    assert report.ranked[0].ranks.tolist() == [0, -1, -1]
    assert report.ranked[1].ranks.tolist() == [1, 0]
    assert report.i2t.left_out == 2


def test_numbers_follow_the_names_of_the_metrics():
    report = evaluate_scores(*_case())
    numbers = dict(zip(METRICS, report.numbers, strict=True))
    assert numbers["t2i R@5"] == report.t2i.r5
    assert numbers["i2t mean rank"] == report.i2t.mean_rank
    assert numbers["RSum"] == report.i2t.total + report.t2i.total


def test_a_fold_is_five_thousand_over_five_in_order():
    cuts = folds_of(COCO_1K, 5000)
    assert [(int(c[0]), len(c)) for c in cuts] == [(1000 * f, 1000) for f in range(5)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((FLICKR_1K, 37), "'Flickr 1K' is defined on 1,000 images, but this split has 37"),
        ((FOLDS, 38), "a model encoded 37 images and .* texts, but 38 images and"),
        ((Protocol("f", folds=38), 37), "37 images cannot be cut into 38 folds"),
    ],
)
def test_protocols_that_do_not_fit(arguments, message):
    scores, text_to_image = _case()
    protocol, images = arguments
    with pytest.raises(ValueError, match=message):
        evaluate_protocol([member(scores)], unnamed(text_to_image, images), protocol)


def test_names():
    assert protocol_by_name("coco-1k") is COCO_1K
    with pytest.raises(ValueError, match="'coco1k' is not a protocol; did you mean 'coco-1k'"):
        protocol_by_name("coco1k")


def _on_two(levels):
    scores, text_to_image = _case(levels=levels)
    report = evaluate_protocol([member(scores)], unnamed(text_to_image, 37), FOLDS)
    return [ranked.ranks.numpy() for ranked in report.ranked]


def test_two_processes_find_the_same_ranks():
    alone = _on_two(2)
    for found in processes.run(_on_two, 2, 2):
        for ours, theirs in zip(found, alone):
            assert (ours == theirs).all()
