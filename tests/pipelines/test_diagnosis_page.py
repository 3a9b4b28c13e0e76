"""A diagnosis as tables and examples, against the lists that it is of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from counterfoil.analysis import diagnosis as diagnose
from counterfoil.analysis.diagnosis import Diagnosis, DirectionDiagnosis
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.negatives.diagnose import (
    HubStatistics,
    RankStatistics,
    SuspectedPositives,
    inspect_pairs,
    suspects_by_score,
)
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.report.page import write_page

OWNER = (0, 0, 1, 2)  # of the captions
TEXTS = ((2, 3), (3, -1), (0, 1))  # wrong texts of the images, hardest first
IMAGES = ((1, 2), (2, 1), (0, -1), (-1, -1))  # wrong images of the texts
SCORES = torch.tensor([[0.9, 0.8, 0.1, 0.2], [0.3, 0.4, 0.5, 0.6], [0.7, 0.3, 0.2, 0.4]])


def dataset() -> ImageTextDataset:
    return ImageTextDataset(
        name="few",
        image_ids=["a", "b", "c"],
        text_ids=[str(row) for row in range(4)],
        texts=[f"caption {row}" for row in range(4)],
        text_to_image=torch.tensor(OWNER),
        splits=["train"] * 3,
    )


def diagnosis(*, scored: bool = True) -> Diagnosis:
    """Of all captions; the hubs and ranks are made up."""
    few = dataset()
    lists = HardNegativeLists(*(torch.tensor(rows, dtype=torch.int32) for rows in (TEXTS, IMAGES)))
    own = SCORES[torch.tensor(OWNER), torch.arange(4)]
    sides = []
    for n, looked in enumerate(inspect_pairs(lists, few.relation, torch.arange(4))):
        scores = SCORES[looked.pairs.image, looked.pairs.text]
        found = torch.zeros_like(looked.listed)
        found[0, 1] = True
        worded = SuspectedPositives("similar words", "is worded alike", found, looked.listed)
        estimates = (worded, suspects_by_score(looked, scores, own)) if scored else (worded,)
        sides.append(
            DirectionDiagnosis(
                name=("wrong texts of images", "wrong images of texts")[n],
                looked=looked,
                scores=scores if scored else None,
                gaps=scores - own.unsqueeze(1) if scored else None,
                estimates=estimates,
                ranks=(
                    RankStatistics(
                        1, 1, 1_234, -0.25 if scored else None, (12.5, None)[: len(estimates)]
                    ),
                    RankStatistics(2, 2, 3, 0.5 if scored else None, (0.0, 50.0)[: len(estimates)]),
                    RankStatistics(
                        1, 2, 1_237, 0.0 if scored else None, (6.0, 50.0)[: len(estimates)]
                    ),
                ),
                hubs=HubStatistics(2, 1.25, 25.0, 60.0, ((2, 1_500), (0, 2))),
            )
        )
    own = own if scored else torch.full((4,), torch.nan)
    return Diagnosis(few, "what was looked at", own, sides[0], sides[1], 2, 33.3)


def test_ranks_of_both_sides():
    texts, images, _ = diagnose.diagnosis_tables(diagnosis())
    assert texts.title == "Wrong texts of images: hardness and suspects"
    assert texts.head == ("rank", "pairs", "median gap", "similar words, %", "above positive, %")
    assert texts.rows == (
        ("1", "1,234", "−0.250", "12.5", "–"),
        ("2", "3", "+0.500", "0.0", "50.0"),
        ("all", "1,237", "+0.000", "6.0", "50.0"),
    )
    assert images.rows == texts.rows
    assert not texts.note
    assert "Similar words: percent of pairs whose text is worded alike." in images.note
    assert "Median gap: score less that of the anchor pair." in images.note


def test_without_scores_no_gap_is_told():
    for side in diagnose.diagnosis_tables(diagnosis(scored=False))[:2]:
        assert side.head == ("rank", "pairs", "similar words, %")
        assert side.rows[0] == ("1", "1,234", "12.5")
        assert "gap" not in side.note.lower()


def test_a_part_of_one_rank_only_is_no_whole():
    found = diagnosis()
    one = replace(found.texts, ranks=(RankStatistics(1, 4, 7, None, (None, None)),))
    (row,) = diagnose.diagnosis_tables(replace(found, texts=one))[0].rows
    assert row == ("1–4", "7", "–", "–", "–")


def test_hubs_are_named():
    *_, hubs = diagnose.diagnosis_tables(diagnosis())
    assert hubs.rows == (
        ("wrong texts of images", "1.25", "25.0", "60.0"),
        ("wrong images of texts", "1.25", "25.0", "60.0"),
    )
    assert "texts of images: “caption 2” (1,500 of 3 lists); “caption 0” (2 of 3" in hubs.note
    assert "images of texts: c “caption 3” (1,500 of 4 lists); a “caption 0” (2 of 4" in hubs.note
    assert "share 33.3 % of their first 2 images" in hubs.note
    alone = replace(diagnosis(), overlap=None)
    assert "share – % of" in diagnose.diagnosis_tables(alone)[2].note


@pytest.fixture
def written(monkeypatch, tmp_path):
    """What is put on the page."""
    pages = []

    def keep(page, path):
        pages.append(page)
        write_page(page, path)

    monkeypatch.setattr(diagnose, "write_page", keep)

    def written(found: Diagnosis, examples: int = 9):
        diagnose.write_diagnosis(found, tmp_path / "page.html", title="few", examples=examples)
        return pages[-1], (tmp_path / "page.html").read_text()

    return written


def listed(card) -> list[tuple[int, str, float, tuple[str, ...]]]:
    return [
        (item.place, item.text, pytest.approx(item.score), item.marks)
        for item in card.columns[0].items
        if not item.true
    ]


def own(card) -> list[tuple[str, float]]:
    items = [item for item in card.columns[0].items if item.true]
    return [(item.text, pytest.approx(item.score)) for item in items]


def test_examples_are_the_lists_of_one_caption_an_image(written):
    page, text = written(diagnosis())
    gaps, *groups = page.sections
    of_images, of_texts = (group.cards for group in groups)
    firsts = ["caption 0", "caption 2", "caption 3"]  # of the images, which have no pictures
    assert [card.query.text for card in of_images] == firsts
    assert [card.query.text for card in of_texts] == firsts
    both = ("similar words",)
    assert listed(of_images[0]) == [(1, "caption 2", 0.1, ()), (2, "caption 3", 0.2, both)]
    assert listed(of_images[1]) == [(1, "caption 3", 0.6, ("above positive",))]
    assert listed(of_texts[0]) == [(1, "caption 2", 0.3, ()), (2, "caption 3", 0.7, both)]
    assert listed(of_texts[2]) == []
    assert own(of_images[0]) == [("caption 0", 0.9), ("caption 1", 0.8)]
    assert own(of_texts[1]) == [("caption 2", 0.5)]
    assert len(gaps.figures) == 1
    assert not re.search(r"\bnan\b", text)


@pytest.mark.parametrize(("many", "shown"), [(0, ""), (1, "0"), (2, "02"), (3, "023"), (99, "023")])
def test_as_many_examples_as_are_asked_for(many, shown, written):
    page, _ = written(diagnosis(), many)
    assert "".join(card.query.text[-1] for card in page.sections[1].cards) == shown


def test_no_score_is_shown_that_is_not_known(written):
    page, text = written(diagnosis(scored=False))
    shown = [
        item
        for section in page.sections
        for card in section.cards
        for item in card.columns[0].items
    ]
    assert {item.score for item in shown} == {None}
    assert "Above positive" not in text
