"""Online miners: the top-scoring candidates, and chains of miners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import train_cases as cases
from counterfoil.core.types import (
    Batch,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
    WordTask,
)
from counterfoil.data.batching import collate
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.online import (
    TopScoringMiner,
    candidate_places,
    distinct_candidates,
    hardest_candidates,
)
from counterfoil.negatives.sampling import RandomNegativeSampler
from counterfoil.negatives.sources import MinedExtras, NegativeSource
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.scoring.encode import concatenate_batches, pad_tokens
from counterfoil.training.step import TrainingStep

ANCHORS = [0, 1, 5, 7, 9, 13, 30]  # captions 0 and 1 share an image
TEXT, IMAGE = Role.HARD_TEXT, Role.HARD_IMAGE


def offered(processor: ProcessedDataset, texts: int = 9, images: int = 7, step: int = 3) -> Batch:
    draws = RandomNegativeSampler(relation=processor.dataset.relation, texts=texts, images=images)
    rows = torch.tensor(ANCHORS)
    found = draws.draw(rows, torch.Generator().manual_seed(step))
    return collate(processor, rows, candidates=found, step=step)


def doubled(items: ModalityBatch) -> ModalityBatch:
    return replace(items, values=items.values.double())


def exact(batch: Batch) -> Batch:
    """In double precision, so that no two orders differ by rounding."""
    assert batch.offered
    images, texts = batch.offered
    return replace(batch, images=doubled(batch.images), offered=(doubled(images), texts))


def proposed(model: RetrievalModel, batch: Batch, **arguments: Any) -> MinedExtras:
    with torch.no_grad():
        images, texts = model.encode_images(batch.images), model.encode_texts(batch.texts)
    views, rng = EncodedViews({"inference": EncodedBatch(images, texts)}), torch.Generator()
    return TopScoringMiner(**arguments).propose(model, batch, views, torch.zeros(batch.block), rng)


def rows_of(batch: Batch, found: MinedExtras) -> dict[Role, Pairs]:
    """Corpus rows of what is proposed, as it would be found by whoever scores it."""

    def known(pool: Tensor, new: Any) -> Tensor:
        both = torch.cat([pool, new.ids]) if new is not None else pool
        return torch.cat([both, torch.tensor([-1])])  # where a place of -1 points

    images = known(batch.image_rows, found.images)
    texts = known(batch.text_rows, found.texts)
    return {role: Pairs(images[p.image], texts[p.text]) for role, p in found.pairs.items()}


def slowly(
    processor: ProcessedDataset, model: RetrievalModel, candidates: Mapping[Role, Pairs], keep: int
) -> dict[Role, list[list[tuple[int, int]]]]:
    """Every candidate scored alone, sorted, the first ones kept."""
    model.eval()
    best: dict[Role, list[list[tuple[int, int]]]] = {}
    for role, pairs in candidates.items():
        best[role] = []
        for some in zip(pairs.image.tolist(), pairs.text.tolist(), strict=True):
            scored = {}
            for image, text in zip(*some, strict=True):
                if min(image, text) < 0:
                    continue
                seen = model.encode_images(doubled(processor.images(torch.tensor([image]))))
                read = model.encode_texts(processor.texts(torch.tensor([text])))
                scored[image, text] = model.score_pairs(seen, read).item()
            best[role].append(sorted(scored, key=lambda pair: -scored[pair])[:keep])
    model.train()
    return best


def listed(pairs: Pairs) -> list[list[tuple[int, int]]]:
    both = zip(pairs.image.tolist(), pairs.text.tolist(), strict=True)
    return [[p for p in zip(*row, strict=True) if p != (-1, -1)] for row in both]


@pytest.mark.parametrize(("kind", "at_once"), [("global", 1), ("bag", 512), ("scan", 5)])
def test_the_hardest_are_kept(kind: str, at_once: int) -> None:
    processor = cases.processor()
    model, batch = cases.host(kind, processor, dropout=0.3).double(), exact(offered(processor))
    found = rows_of(batch, proposed(model, batch, keep=3, at_once=at_once))
    wanted = slowly(processor, model, batch.candidates, 3)
    assert found.keys() == {TEXT, IMAGE} == TopScoringMiner().gives.roles
    for role, pairs in found.items():
        assert pairs.shape == (len(ANCHORS), 3)
        assert listed(pairs) == wanted[role]


def test_new_items_are_those_that_the_pools_lack_each_once() -> None:
    processor = cases.processor()
    batch = offered(processor)
    found = proposed(cases.host("bag", processor), batch, keep=2)
    assert found.images
    assert found.texts
    for pool, new, read in (
        (batch.image_rows, found.images, processor.images),
        (batch.text_rows, found.texts, processor.texts),
    ):
        rows = new.ids.tolist()
        assert rows == sorted(set(rows))
        assert not set(rows) & set(pool.tolist())
        wanted = read(new.ids)
        assert torch.equal(new.mask[:, : wanted.mask.shape[1]], wanted.mask)
        assert not new.mask[:, wanted.mask.shape[1] :].any()
        assert torch.equal(new.values[:, : wanted.mask.shape[1]], wanted.values)
    for role, pairs in rows_of(batch, found).items():
        anchor = torch.tensor(ANCHORS).unsqueeze(1).expand(pairs.shape)
        own = processor.dataset.text_to_image[anchor]
        assert torch.equal(*((pairs.image, own) if role is TEXT else (pairs.text, anchor)))
        assert (processor.dataset.text_to_image[pairs.text] != pairs.image).all()


def test_the_model_is_left_as_it_was() -> None:
    processor = cases.processor()
    model, batch = cases.host("bag", processor, dropout=0.5), offered(processor)
    model.drop.eval()
    modes = {name: part.training for name, part in model.named_modules()}
    state = torch.get_rng_state()
    asked: list[bool] = []
    real = model.score_pairs

    def spy(images: Any, texts: Any) -> Tensor:
        asked.append(model.training or torch.is_grad_enabled())
        found: Tensor = real(images, texts)
        asked.append(found.requires_grad)
        return found

    model.score_pairs = spy
    proposed(model, batch, keep=2)
    assert not any(asked)
    assert {name: part.training for name, part in model.named_modules()} == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_what_is_offered_is_encoded_and_only_so_much_at_once() -> None:
    processor = cases.processor(images=40)
    model, batch = cases.host("global", processor), offered(processor, texts=20, images=20)
    assert batch.offered
    sizes: dict[str, list[int]] = {"encode_images": [], "encode_texts": [], "score_pairs": []}
    for name, found in sizes.items():
        real = getattr(model, name)

        def spy(*given: Any, real: Any = real, found: list[int] = found) -> Any:
            found.append(len(given[0]))
            return real(*given)

        setattr(model, name, spy)
    views = EncodedViews({})
    rng = torch.Generator()
    TopScoringMiner(keep=3, at_once=8).propose(model, batch, views, torch.zeros(1), rng)
    assert all(max(found) <= 8 for found in sizes.values())
    assert sum(sizes["encode_images"]) == len(batch.offered[0]) < 40
    assert sum(sizes["encode_texts"]) == len(batch.offered[1]) < 120
    assert sum(sizes["score_pairs"]) <= 2 * 20 * len(ANCHORS)


def test_where_fewer_are_offered_the_rest_are_none() -> None:
    processor = cases.processor(images=4, captions=2)
    rows = torch.tensor([0, 3])
    text = torch.tensor([[2, 2, -1, 4, 2], [-1] * 5])
    image = processor.dataset.text_to_image[rows].unsqueeze(1).expand(2, 5)
    batch = collate(processor, rows, candidates={TEXT: Pairs(image, text)})
    found = rows_of(batch, proposed(cases.host("bag", processor), batch, keep=4))[TEXT]
    assert [set(row) for row in listed(found)] == [{(0, 2), (0, 4)}, set()]
    assert found.shape == (2, 4)
    assert ((found.image < 0) == (found.text < 0)).all()


def test_nothing_new_is_nothing() -> None:
    processor = cases.processor(images=4, captions=2)
    rows = torch.tensor([0, 3])
    pairs = Pairs(torch.tensor([[0], [1]]), torch.tensor([[3], [0]]))
    found = proposed(
        cases.host("bag", processor),
        batch := collate(processor, rows, candidates={TEXT: pairs}),
        keep=4,
    )
    assert found.texts is None
    assert found.images is None
    assert listed(rows_of(batch, found)[TEXT]) == [[(0, 3)], [(1, 0)]]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999))
def test_the_same_candidate_counts_once(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    pairs = Pairs(*(torch.randint(-1, 3, (4, 8), generator=rng) for _ in range(2)))
    found = distinct_candidates(pairs)
    for before, after in zip(listed(pairs), listed(found), strict=True):
        real = [pair for pair in before if min(pair) >= 0]
        assert after == list(dict.fromkeys(real))


def test_of_equal_scores_the_first_is_harder() -> None:
    rows = torch.arange(12).view(2, 6)
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.9, 0.5, 0.5], [-torch.inf] * 5 + [0.1]])
    image, text = hardest_candidates(Pairs(rows, rows + 100), scores, 4)
    assert image.tolist() == [[1, 3, 0, 2], [11, -1, -1, -1]]
    assert text.tolist() == [[101, 103, 100, 102], [111, -1, -1, -1]]


def test_places_are_the_first_ones() -> None:
    known = torch.tensor([7, 3, 7, 5])
    assert candidate_places(torch.tensor([[7, -1], [5, 3]]), known).tolist() == [[0, -1], [3, 1]]


@pytest.mark.parametrize("name", ["keep", "at_once"])
def test_what_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is not possible; it must be at least 1"):
        TopScoringMiner(**{name: 0})
    processor = cases.processor()
    with pytest.raises(ValueError, match="no candidates to screen"):
        proposed(cases.host("bag", processor), cases.batch_of(processor, ANCHORS))


FEW_ANCHORS = [0, 5, 9, 13]


class Writes(NegativeSource):
    """Two new texts for every anchor, one of them longer than any other, and a word task."""

    gives = Needs(roles=frozenset({Role.WRITTEN}), words=frozenset({"masked"}))

    def __init__(self, image: bool = False) -> None:
        self.image = image

    def propose(self, model: Any, batch: Batch, *rest: Any) -> MinedExtras:
        count = len(batch.anchors.image)
        texts = ModalityBatch(
            torch.full((2 * count,), -1),
            torch.arange(2 * count * 11).view(-1, 11) % 5,
            torch.ones(2 * count, 11, dtype=torch.bool),
        )
        place = len(batch.text_rows) + torch.arange(2 * count).view(count, 2)
        pairs = Pairs(batch.anchors.image.unsqueeze(1).expand(-1, 2), place)
        words = WordTask(torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        images = batch.images.rows(slice(0, 1)) if self.image else None
        if self.image:
            pairs = Pairs(torch.full_like(place, len(batch.image_rows)), place)
        return MinedExtras(texts, {Role.WRITTEN: pairs}, {"masked": words}, images)


class Scored(NegativeSource):
    """Scores of pairs that nobody else sees."""

    gives = Needs(roles=frozenset({Role.EDITED}))

    def propose(self, model: Any, batch: Batch, *rest: Any) -> MinedExtras:
        return MinedExtras(scores={Role.EDITED: torch.full((len(batch.anchors.image), 1), 0.5)})


def batch_of(step: int = 0) -> Batch:
    processor = cases.processor()
    rows = torch.tensor(FEW_ANCHORS)
    draws = RandomNegativeSampler(relation=processor.dataset.relation, texts=6, images=6)
    found = draws.draw(rows, torch.Generator().manual_seed(step))
    return collate(processor, rows, candidates=found, step=step)


def seen(sources: Any, batch: Batch, needs: Mapping[str, Any]) -> dict[Role, Tensor]:
    """(B, N) scores by role, as a step makes them."""
    found: dict[Role, Tensor] = {}
    step = TrainingStep(
        cases.host("bag", cases.processor()), WeightedSum(terms=dict(needs)), sources=sources
    )
    real = step.objective.forward

    def spy(scores: Any) -> Any:
        found.update(scores.pairs)
        return real(scores)

    step.objective.forward = spy  # type: ignore[method-assign]
    step(batch)
    return found


WRITTEN = {"w": (1.0, MarginRankingLoss(role="written"))}
TEXTS = {"t": (1.0, MarginRankingLoss(role="hard text"))}
MASKED = {"m": (1.0, WordLoss(task="masked"))}
EDITED = {"e": (1.0, MarginRankingLoss(role="edited"))}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("image", [True, False])
def test_each_is_scored_as_it_would_be_alone(first: bool, image: bool) -> None:
    batch = batch_of()
    both = (TopScoringMiner(keep=3), Writes(image), Scored())
    found = seen(both if first else both[::-1], batch, {**WRITTEN, **TEXTS, **MASKED, **EDITED})
    alone = seen([TopScoringMiner(keep=3)], batch, TEXTS) | seen(
        [Writes(image)], batch, {**WRITTEN, **MASKED}
    )
    assert found.keys() == {Role.HARD_TEXT, Role.HARD_IMAGE, Role.WRITTEN, Role.EDITED}
    assert (found[Role.EDITED] == 0.5).all()
    for role, scores in alone.items():
        torch.testing.assert_close(found[role], scores)


def test_joined_items_are_padded_to_the_longest() -> None:
    processor = cases.processor()
    short, long = (
        processor.texts(torch.tensor([0, 1])),
        pad_tokens(processor.texts(torch.tensor([2])), 20),
    )
    both = concatenate_batches([short, long])
    width = short.mask.shape[1]
    assert both.values.shape == both.mask.shape == (3, 20)
    assert torch.equal(both.values[:2, :width], short.values)
    assert not both.mask[:2, width:].any()
    seen = processor.images(torch.tensor([3]))
    boxes = torch.rand(*seen.mask.shape, 4)
    words = torch.zeros_like(seen.mask).long()
    told = replace(seen, boxes=boxes, words=words)
    assert concatenate_batches([seen, told]).boxes is None
    whole = concatenate_batches([told, pad_tokens(told, 9)])
    assert whole.boxes is not None
    assert whole.words is not None
    assert torch.equal(whole.boxes[1, : boxes.shape[1]], boxes[0])
    assert (whole.words[:, boxes.shape[1] :] == -1).all()


def test_joined_texts_keep_their_dependencies() -> None:
    plain = cases.processor().texts(torch.tensor([0, 1]))
    two = replace(plain, dependencies=torch.tensor([[[0, 2], [2, 1]]] * 2))
    one = replace(plain, dependencies=torch.tensor([[[0, 1]]] * 2))
    assert concatenate_batches([plain, plain]).dependencies is None
    joined = concatenate_batches([one, plain, two]).dependencies
    assert joined is not None
    none = [-1, -1]
    expected = [[[0, 1], none]] * 2 + [[none, none]] * 2 + [[[0, 2], [2, 1]]] * 2
    assert joined.tolist() == expected
