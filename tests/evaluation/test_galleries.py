"""Retrieval examples with pictures."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import pytest
import torch
from PIL import Image

import evaluation_cases
from counterfoil.core.types import Pairs
from counterfoil.evaluation import galleries
from counterfoil.evaluation.galleries import differ
from counterfoil.evaluation.metrics import Protocol, RankedQueries
from counterfoil.evaluation.protocols import evaluate_scores
from counterfoil.report.page import thumbnail

OWNER = torch.arange(20).repeat_interleave(2)
CAPTIONS = [f"caption {n}" for n in range(40)]


def _picture(row):
    return Image.new("RGB", (300, 150), (row * 10, 0, 0))


SPLIT = evaluation_cases.split(CAPTIONS, OWNER, _picture)


def _shown(seed=0, count=2, depth=4):
    scores = evaluation_cases.scores(20, OWNER, seed)
    report = evaluate_scores(scores, OWNER)
    other = evaluate_scores(evaluation_cases.scores(20, OWNER, 1), OWNER)
    lists = evaluation_cases.found(scores, report, ("first", other))
    return scores, report, galleries.galleries(SPLIT, *lists, count=count, depth=depth)


def test_best_and_worst_both_ways():
    _, report, shown = _shown()
    assert [g.title for g in shown] == [
        "Text to image: best",
        "Text to image: worst",
        "Image to text: best",
        "Image to text: worst",
    ]
    for section in (shown[0], shown[2]):
        assert all(" at place 1; " in card.note for card in section.cards)
    last = [int(ranked.ranks.max()) + 1 for ranked in report.ranked]
    assert shown[1].cards[0].note.startswith(f"True image at place {last[1]};")
    assert shown[3].cards[0].note.startswith(f"First true caption at place {last[0]};")
    assert all(len(g.cards) == 2 for g in shown)
    assert "; first: " in shown[0].cards[0].note


def test_lists_are_the_ranking_and_the_missed_one_is_added():
    scores, _, shown = _shown()
    card = shown[1].cards[0]
    (worst,) = card.columns
    text = CAPTIONS.index(card.query.text)
    order = scores[:, text].argsort(descending=True, stable=True).tolist()
    assert [item.place for item in worst.items] == [1, 2, 3]
    wanted = [CAPTIONS[2 * row] for row in order[:3]]
    assert [item.text for item in worst.items] == wanted
    assert not any(item.true for item in worst.items)
    assert worst.missed.true
    assert worst.missed.place == order.index(text // 2) + 1
    assert worst.items[0].score == pytest.approx(float(scores[order[0], text]))


def test_best_are_the_surest():
    scores, _, shown = _shown()
    surest = max(
        range(40),
        key=lambda t: float(scores[t // 2, t] - scores[torch.arange(20) != t // 2, t].max()),
    )
    assert shown[0].cards[0].query.text == CAPTIONS[surest]
    images = {CAPTIONS.index(r.query.text) // 2 for r in shown[0].cards}
    assert len(images) == 2


def test_images_ask_for_captions():
    _, _, shown = _shown()
    card = shown[2].cards[0]
    (best,) = card.columns
    assert card.query.picture.startswith("data:image/")
    assert best.items[0].true
    assert best.items[0].picture is None
    assert best.missed is None
    assert len(best.items) == 4


def test_a_missed_caption_claims_no_place():
    _, _, shown = _shown(depth=2)
    card = shown[3].cards[0]
    (worst,) = card.columns
    assert len(worst.items) == 1
    assert worst.missed.true
    assert worst.missed.place == 0
    assert card.query.text == worst.missed.text


def test_thumbnails_are_small_pictures():
    kind, _, data = thumbnail(_picture(20), side=64).partition(";base64,")
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert kind == "data:image/png"  # flat colour: smaller than JPEG
    assert picture.size == (64, 32)
    noise = Image.effect_noise((300, 300), 80)
    assert thumbnail(noise).startswith("data:image/jpeg")


def test_without_scores_the_first_rows_are_best():
    scores = evaluation_cases.scores(20, OWNER, 0)
    report = evaluate_scores(scores, OWNER)
    rows = scores.T.argsort(1, descending=True)
    best, worst = galleries.best_and_worst(galleries.RankedLists(report.ranked[1], rows), 3)
    ranks = report.ranked[1].ranks
    hits = (ranks == 0).nonzero().flatten().tolist()
    assert best[0] == hits[0]
    assert worst[0] == int(ranks.argmax())


def test_folds_have_no_lists():
    scores = evaluation_cases.scores(20, OWNER, 0)
    report = evaluate_scores(scores, OWNER, Protocol("two", folds=2))
    assert galleries.galleries(SPLIT, *evaluation_cases.found(scores, report)) == ()


def test_what_is_true_besides_is_marked_as_true():
    besides = Pairs(torch.tensor([2]), torch.tensor([0]))
    more = replace(SPLIT, extra_positives=besides)
    for image in range(4):
        for text in range(8):
            own, met = int(OWNER[text]) == image, (image, text) == (2, 0)
            for dataset, true in ((SPLIT, own), (more, own or met)):
                assert galleries.shown_caption(dataset, text, image).true == true
                assert galleries.shown_image(dataset, image, text).true == true
    assert not galleries.shown_caption(more, 0).true
    assert not galleries.shown_image(more, 2).true


def ranked(ranks, images=None):
    images = torch.arange(len(ranks)) if images is None else torch.tensor(images)
    return RankedQueries("t2i", torch.tensor(ranks), images, torch.zeros(len(ranks)).long())


def test_most_times_better_comes_first():
    first, second = ranked([99, 9, 5, 0, 3, 0]), ranked([9, 0, 5, 2, 0, 99])
    better, worse = differ(first, second, 9)
    assert better == [0, 1, 4]  # 100 to 10 is as much as 10 to 1: the lower row first
    assert worse == [5, 3]
    assert differ(second, first, 9) == (worse, better)
    assert differ(first, second, 1) == ([0], [5])


def test_one_query_of_an_image():
    first, second = ranked([9, 5, 7], [4, 4, 1]), ranked([0, 0, 0], [4, 4, 1])
    assert differ(first, second, 5)[0] == [0, 2]


def test_queries_without_an_answer_are_left_out():
    assert differ(ranked([-1, 4]), ranked([-1, 1]), 5) == ([1], [])


def test_other_queries():
    with pytest.raises(ValueError, match="different queries, 2 and 3"):
        differ(ranked([1, 2]), ranked([1, 2, 3]), 1)
