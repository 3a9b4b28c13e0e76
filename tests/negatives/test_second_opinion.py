from __future__ import annotations

import pytest
import torch

import tailored_cases as cases
from counterfoil.corpus.lens import CorpusLens, Lens
from counterfoil.negatives.candidates import Sieve
from counterfoil.negatives.second_opinion import SecondOpinion
from counterfoil.records import Role


def test_as_high_as_the_original_is_true() -> None:
    seen = cases.lens()
    model = cases.host(seen).eval()
    rows = torch.tensor([4, 0, 4, 9])
    images = seen.corpus.relation.owner[rows]
    told = ["Red dogs", "blue cats near black hats", "white balls", seen.corpus.texts[9]]

    def score(image: int, text: str) -> float:
        with torch.no_grad():
            one = model.encode_images(seen.images(torch.tensor([image])))
            return float(model.pairs(one, model.encode_texts(seen.lens.read([text]))))

    gaps = [
        score(int(i), text) - score(int(i), seen.corpus.texts[r])
        for i, r, text in zip(images, rows, told, strict=True)
    ]
    for slack in (-1.0, 0.0, 1e-4, 0.05, 1.0):
        asked = SecondOpinion(matcher=model, lens=seen, slack=slack + 1e-6)
        assert asked.true(images, rows, told).tolist() == [gap >= -slack - 1e-6 for gap in gaps]
    assert len({gap >= 0 for gap in gaps}) == 2


def test_it_leaves_captions_out() -> None:
    seen = cases.lens()
    batch, model = cases.batch_of(seen), cases.host(seen)
    counts = []
    for slack in (-1.0, 0.0, 1.0):
        opinion = SecondOpinion(matcher=cases.host(seen), lens=seen, slack=slack)
        source = cases.writer(seen, sieve=Sieve(opinion=opinion))
        proposal, _, _ = cases.proposed(source, model, batch)
        counts.append(int((proposal.pairs[Role.WRITTEN].text >= 0).sum()))
    assert counts[0] > counts[1] > counts[2] == 0


def test_vectors_are_not_read() -> None:
    seen = cases.lens()
    bare = CorpusLens(Lens(seen.lens.eye, None), seen.corpus)
    with pytest.raises(ValueError, match="reads ready-made vectors"):
        SecondOpinion(matcher=cases.host(seen), lens=bare)
