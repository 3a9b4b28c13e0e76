from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import evaluation_cases
import processes
from counterfoil.core.types import Pairs
from counterfoil.evaluation import cascade
from counterfoil.evaluation.bootstrap import compare
from counterfoil.evaluation.cascade import Cascade, Shortlister, evaluate_cascade
from counterfoil.evaluation.metrics import Protocol
from counterfoil.evaluation.protocols import WHOLE, evaluate_protocol
from counterfoil.scoring import pairs
from evaluation_cases import member, unnamed
from negatives_cases import HOSTS, host

FOLDS = Protocol("folds", folds=3)
IMAGES = 23


def case(seed=3, levels=2):
    text_to_image = evaluation_cases.ragged(IMAGES, seed, orphans=3)
    coarse = evaluation_cases.scores(IMAGES, text_to_image, seed, levels)
    return coarse, evaluation_cases.scores(IMAGES, text_to_image, seed + 50, levels), text_to_image


def ranked(
    coarse, fine, text_to_image, depth, protocol=WHOLE, tie="row", extra_positives=None, **options
) -> Cascade:
    by = Shortlister((member(coarse),), "quick", depth, **options)
    data = unnamed(text_to_image, IMAGES, extra_positives=extra_positives)
    return evaluate_cascade([member(fine)], by, data, protocol, head=4, tie=tie)


def slow_order(coarse, fine, true, depth, tie) -> list[int]:
    """One query's counterparts: the shortlist by the finer score, then the rest by the coarser."""
    level = {
        "row": lambda item: item,
        "optimistic": lambda item: item not in true,
        "pessimistic": lambda item: item in true,
    }[tie]
    rows = sorted(range(len(coarse)), key=lambda item: (-coarse[item], item))
    head = sorted(rows[:depth], key=lambda item: (-fine[item], level(item), item))
    return head + sorted(rows[depth:], key=lambda item: (-coarse[item], level(item), item))


@pytest.mark.parametrize("depth", [1, 2, 5, 11, 24])
@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
@pytest.mark.parametrize("more", [0, 15])
def test_every_place_is_that_of_a_sort(depth, tie, more):
    coarse, fine, text_to_image = case()
    texts = (text_to_image >= 0).nonzero().flatten()[:more]
    besides = Pairs(text_to_image[texts.flip(0)], texts) if more else None
    found = ranked(coarse, fine, text_to_image, depth, tie=tie, extra_positives=besides)
    truth = text_to_image == torch.arange(IMAGES).unsqueeze(1)
    if besides is not None:
        truth[besides.image, besides.text] = True
    sides = ((coarse, fine, truth), (coarse.T, fine.T, truth.T))
    for side, (quick, slow, true) in enumerate(sides):
        hits = []
        for query, rank in enumerate(found.report.ranked[side].ranks.tolist()):
            own = set(true[query].nonzero().flatten().tolist())
            order = slow_order(quick[query].tolist(), slow[query].tolist(), own, depth, tie)
            assert rank == (min(map(order.index, own)) if own else -1)
            if own:
                plain = slow_order(quick[query].tolist(), slow[query].tolist(), own, depth, "row")
                hits.append(100.0 * bool(own & set(plain[:depth])))
        assert found.shortlists.ceiling[side] == pytest.approx(sum(hits) / len(hits))


@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
def test_lists_of_everything_give_the_full_ranking(protocol, tie):
    coarse, fine, text_to_image = case()
    found = ranked(coarse, fine, text_to_image, max(fine.shape), protocol, tie)
    full = evaluate_protocol([member(fine)], unnamed(text_to_image, IMAGES), protocol, tie=tie)
    assert found.shortlists.full is not None
    assert found.report.numbers == found.shortlists.full.numbers == full.numbers
    assert found.shortlists.full.setting == full.setting
    assert found.shortlists.ceiling == (100.0, 100.0)
    for ours, theirs in zip(found.report.ranked, full.ranked, strict=True):
        assert torch.equal(ours.ranks, theirs.ranks)


@pytest.mark.parametrize("name", HOSTS)
def test_lists_of_all_images_alone_rank_them_as_all_pairs_do(name):
    text_to_image = evaluation_cases.ragged(9, 1, most=5)
    fine, quick = host(name, 9, len(text_to_image)), host("vse", 9, len(text_to_image))
    by = Shortlister((quick,), "quick", len(text_to_image) - 1)
    found = evaluate_cascade([fine], by, unnamed(text_to_image, 9), head=4)
    assert len(text_to_image) > 10
    full = evaluate_protocol([fine], unnamed(text_to_image, 9))
    assert torch.equal(found.report.ranked[1].ranks, full.ranked[1].ranks)


def test_the_first_and_the_full_ranking_are_those_of_an_evaluation():
    coarse, fine, text_to_image = case()
    found = ranked(coarse, fine, text_to_image, 4, FOLDS, "pessimistic").shortlists
    for ours, scores in ((found.first, coarse), (found.full, fine)):
        data = unnamed(text_to_image, IMAGES)
        theirs = evaluate_protocol([member(scores)], data, FOLDS, tie="pessimistic")
        assert ours is not None
        assert ours.numbers == theirs.numbers
        assert ours.setting == theirs.setting


def test_the_full_ranking_is_made_where_it_is_asked_for_or_cheap(monkeypatch):
    coarse, fine, text_to_image = case()
    assert ranked(coarse, fine, text_to_image, 4).shortlists.full is not None
    monkeypatch.setattr(cascade, "AFFORDABLE", fine.numel() - 1)
    found = ranked(coarse, fine, text_to_image, 4)
    assert found.shortlists.full is None
    assert "the full ranking was not made" in found.shortlists.describe(found.report)
    asked = ranked(coarse, fine, text_to_image, 4, full=True)
    full = evaluate_protocol([member(fine)], unnamed(text_to_image, IMAGES))
    lost = full.rsum - asked.report.rsum
    assert f"lost against the full ranking: {lost:.1f}" in asked.shortlists.describe(asked.report)


def test_nothing_is_recalled_above_the_ceiling():
    coarse, fine, text_to_image = case()
    found = ranked(coarse, fine, text_to_image, 5)
    i2t, t2i = found.shortlists.ceiling
    assert found.shortlists.first.i2t.r5 == i2t
    assert found.report.i2t.r5 == i2t
    assert found.report.t2i.r5 == t2i
    assert found.report.t2i.r1 <= t2i


@pytest.mark.parametrize("depth", [2, 7, 99])
@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_the_first_items_fit_the_ranks(depth, protocol):
    coarse, fine, text_to_image = case(levels=None)
    found = ranked(coarse, fine, text_to_image, depth, protocol)
    i2t, t2i = found.report.ranked
    of_image = text_to_image[found.texts[:, 0]] == torch.arange(IMAGES)
    assert torch.equal(of_image, i2t.ranks == 0)
    assert torch.equal((found.images[:, 0] == text_to_image) & (text_to_image >= 0), t2i.ranks == 0)
    kept = found.texts >= 0
    assert kept.sum(1).tolist() == [min(4, depth)] * IMAGES
    expected = fine.gather(1, found.texts.clamp(min=0)).masked_fill(~kept, -torch.inf)
    torch.testing.assert_close(found.text_scores, expected)


def test_it_says_what_was_re_ranked():
    coarse, fine, text_to_image = case()
    found = ranked(coarse, fine, text_to_image, 6)
    assert "; top-6 of quick re-ranked, all behind them in its order; " in (
        found.report.setting.line()
    )
    assert "re-ranked" not in found.shortlists.first.setting.line()
    assert compare(found.report, found.shortlists.first)[-1].difference == pytest.approx(
        found.shortlists.first.rsum - found.report.rsum
    )


@pytest.mark.parametrize("tie", ["row", "pessimistic"])
@pytest.mark.parametrize("protocol", [WHOLE, FOLDS])
def test_the_curve_is_that_of_shorter_cascades(protocol, tie):
    coarse, fine, text_to_image = case()
    found = ranked(coarse, fine, text_to_image, 7, protocol, tie).shortlists.curve
    assert [point.depth for point in found] == [1, 2, 5, 7]
    for point in found:
        alone = ranked(coarse, fine, text_to_image, point.depth, protocol, tie)
        assert point.report.numbers == alone.report.numbers
        assert point.report.setting == alone.report.setting
        for ours, theirs in zip(point.report.ranked, alone.report.ranked, strict=True):
            assert torch.equal(ours.ranks, theirs.ranks)


def test_pairs_of_a_curve_are_counted_once():
    coarse, fine, text_to_image = case(levels=None)
    for point in ranked(coarse, fine, text_to_image, 6).shortlists.curve:
        pairs = set()
        for image, scores in enumerate(coarse):
            pairs |= {(image, int(text)) for text in scores.topk(point.depth).indices}
        for text, scores in enumerate(coarse.T):
            pairs |= {(int(image), text) for image in scores.topk(point.depth).indices}
        assert point.pairs == len(pairs)
    assert ranked(coarse, fine, text_to_image, max(fine.shape)).shortlists.curve == ()


def _here(names: tuple[str, ...]) -> list[object]:
    torch.set_num_threads(1)
    text_to_image = evaluation_cases.ragged(15, 2, orphans=2)
    members = [host(name, 15, len(text_to_image)) for name in names]
    by = Shortlister((host("vse", 15, len(text_to_image)),), "quick", 6)
    found = evaluate_cascade(members, by, unnamed(text_to_image, 15), FOLDS, head=3)
    ranks = [ranked.ranks.tolist() for ranked in found.report.ranked]
    return [*ranks, found.texts.tolist(), found.image_scores.tolist(), found.shortlists.ceiling]


@pytest.mark.parametrize("names", [("scan-t2i",), ("bfan", "vse")], ids=str)
def test_several_processes_as_one(names, monkeypatch):
    monkeypatch.setitem(pairs._NUMBERS, "cpu", 512)  # many parts
    alone = _here(names)
    assert processes.run(_here, 3, names) == [alone] * 3


def test_bad_shortlists():
    coarse, fine, text_to_image = case()
    with pytest.raises(ValueError, match="depth=0: at least 1 counterpart"):
        ranked(coarse, fine, text_to_image, 0)
    with pytest.raises(ValueError, match="no model makes the shortlists"):
        Shortlister((), "nobody")
    with pytest.raises(ValueError, match="a model encoded 22 images"):
        ranked(coarse, fine[1:], text_to_image, 5)
    with pytest.raises(ValueError, match="'odd' is not a tie rule"):
        ranked(coarse, fine, text_to_image, 5, tie="odd")
    with pytest.raises(ValueError, match="is defined on 1,000 images"):
        ranked(coarse, fine, text_to_image, 5, replace(WHOLE, name="x", images=1000))
