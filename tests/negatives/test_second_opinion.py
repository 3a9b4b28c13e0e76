from __future__ import annotations

import pytest
import torch

import tailored_cases as cases
from counterfoil.core.types import Role
from counterfoil.data.processor import ProcessedDataset, Processor
from counterfoil.negatives.generation.inputs import CandidateFilter
from counterfoil.negatives.generation.judges import JudgeModel


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
        opinion = JudgeModel(model=cases.host(seen), processor=seen, slack=slack)
        source = cases.writer(seen, sieve=CandidateFilter(opinion=opinion))
        proposal, _, _ = cases.proposed(source, model, batch)
        counts.append(int((proposal.pairs[Role.WRITTEN].text >= 0).sum()))
    assert counts[0] > counts[1] > counts[2] == 0


def test_vectors_are_not_read() -> None:
    seen = cases.processor()
    bare = ProcessedDataset(Processor(seen.processor.image_processor, None), seen.dataset)
    with pytest.raises(ValueError, match="ready-made vectors"):
        JudgeModel(model=cases.host(seen), processor=bare)
