"""Judges of generated captions."""

from __future__ import annotations

import pytest
import torch

import sentence_cases
import tailored_cases as cases
from counterfoil.core.types import Role
from counterfoil.data.processor import ProcessedDataset, Processor
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.papers.tags.inputs import CandidateFilter
from counterfoil.papers.tags.judges import (
    CaptionNearness,
    JudgeModel,
    ParaphraseJudge,
)


def test_as_high_as_the_original_is_true() -> None:
    seen = cases.processor()
    model = cases.host(seen).eval()
    rows = torch.tensor([4, 0, 4, 9])
    images = seen.dataset.relation.text_to_image[rows]
    told = ["Red dogs", "blue cats near black hats", "white balls", seen.dataset.texts[9]]

    def score(image: int, text: str) -> float:
        with torch.no_grad():
            one = model.encode_images(seen.images(torch.tensor([image])))
            return float(
                model.score_pairs(one, model.encode_texts(seen.processor.process_texts([text])))
            )

    gaps = [
        score(int(i), text) - score(int(i), seen.dataset.texts[r])
        for i, r, text in zip(images, rows, told, strict=True)
    ]
    for slack in (-1.0, 0.0, 1e-4, 0.05, 1.0):
        asked = JudgeModel(model=model, processor=seen, slack=slack + 1e-6)
        assert asked.is_true(images, rows, told).tolist() == [gap >= -slack - 1e-6 for gap in gaps]
    assert len({gap >= 0 for gap in gaps}) == 2


def test_it_leaves_captions_out() -> None:
    seen = cases.processor()
    batch, model = cases.batch_of(seen), cases.host(seen)
    counts = []
    for slack in (-1.0, 0.0, 1.0):
        judge = JudgeModel(model=cases.host(seen), processor=seen, slack=slack)
        source = cases.writer(seen, candidate_filter=CandidateFilter(opinion=[judge]))
        proposal, _, _ = cases.proposed(source, model, batch)
        counts.append(int((proposal.pairs[Role.WRITTEN].text >= 0).sum()))
    assert counts[0] > counts[1] > counts[2] == 0


def test_vectors_are_not_read() -> None:
    seen = cases.processor()
    bare = ProcessedDataset(Processor(seen.processor.image_processor, None), seen.dataset)
    with pytest.raises(ValueError, match="ready-made vectors"):
        JudgeModel(model=cases.host(seen), processor=bare)


SAID = (*cases.COLOURS, *cases.THINGS, *cases.RELATIONS)


@pytest.fixture(scope="module")
def meanings(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    pytest.importorskip("sentence_transformers")
    return SentenceEncoder(sentence_cases.encoder(tmp_path_factory.mktemp("encoder"), SAID))


def test_as_near_to_the_others_as_the_original_is_true(meanings: SentenceEncoder) -> None:
    seen = cases.processor().dataset
    rows = torch.tensor([4, 0, 4, 9, 11])
    images = seen.text_to_image[rows]
    told = ["Red dogs", "blue cats near black hats", "white balls", seen.texts[9], "green cups"]

    def near(text: str, image: int, besides: int) -> float:
        others = [
            t for t, o in enumerate(seen.text_to_image.tolist()) if o == image and t != besides
        ]
        own = meanings.vectors([text, *(seen.texts[t] for t in others)])
        return float((own[1:] @ own[0]).max())

    gaps = [
        near(text, int(i), int(r)) - near(seen.texts[r], int(i), int(r))
        for i, r, text in zip(images, rows, told, strict=True)
    ]
    assert len({gap >= 0 for gap in gaps[:3] + gaps[4:]}) == 2
    for slack in (-1.0, 0.0, 0.05, 3.0):
        asked = ParaphraseJudge(meanings=meanings, dataset=seen, slack=slack + 1e-5)
        assert asked.is_true(images, rows, told).tolist() == [gap >= -slack - 1e-5 for gap in gaps]


def test_without_other_captions_nothing_is_taken_for_true(meanings: SentenceEncoder) -> None:
    alone = cases.dataset(captions=1)
    asked = ParaphraseJudge(meanings=meanings, dataset=alone, slack=9.0)
    rows = torch.arange(2)
    assert asked.is_true(rows, rows, ["Red dogs", alone.texts[1]]).tolist() == [False, False]


def test_nearest_of_what_is_said() -> None:
    seen = cases.dataset(images=3, captions=2)
    texts = torch.eye(6)
    of = CaptionNearness(seen.relation, torch.tensor([2, 3, 4, 5]), texts[2:])
    asked = torch.tensor([[0.0, 0, 3, 4, 0, 0], [0, 0, 3, 4, 0, 0], [0, 0, 3, 4, 1, 2]]) / 5
    found = of.nearest(asked, torch.tensor([1, 1, 2]), torch.tensor([-1, 3, 2]))
    torch.testing.assert_close(found, torch.tensor([0.8, 0.6, 0.4]))


def test_paraphrases_are_left_out(meanings: SentenceEncoder) -> None:
    seen = cases.processor()
    batch, model = cases.batch_of(seen), cases.host(seen)
    counts = []
    for slack in (-3.0, 0.0, 3.0):
        judge = ParaphraseJudge(meanings=meanings, dataset=seen.dataset, slack=slack)
        source = cases.writer(seen, candidate_filter=CandidateFilter(opinion=[judge]))
        proposal, _, _ = cases.proposed(source, model, batch)
        counts.append(int((proposal.pairs[Role.WRITTEN].text >= 0).sum()))
    assert counts[0] > counts[1] > counts[2] == 0
