from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import train_cases as cases
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
)
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.baselines import SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.counterfactual import (
    CounterfactualSampler,
    region_saliency,
    word_saliency,
)
from counterfoil.negatives.online import MinedExtras, OnlineMiner
from counterfoil.training.step import TrainingStep

ANCHORS = [0, 1, 5, 7, 9, 13, 20, 30]  # captions 0 and 1 share an image
UNKNOWN = 3
ROLES = (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


def always(**options: Any) -> CounterfactualSampler:
    return CounterfactualSampler(
        **{"adjust": 1.0, "explore": 1.0, "mask": UNKNOWN, "margin": 0.05, **options}
    )


def host() -> RetrievalModel:
    return cases.host("scan", cases.processor()).double().eval()


def batch_of(anchors: list[int] = ANCHORS) -> Batch:
    """In double precision, so that ranks do not depend on rounding; ends are no words."""
    batch = cases.batch_of(cases.processor(), anchors)
    images = replace(batch.images, values=batch.images.values.double())
    place = torch.arange(batch.texts.mask.shape[1])
    ends = (place == 0) | (place >= batch.texts.mask.sum(1, keepdim=True) - 1)
    texts = replace(batch.texts, words=place.masked_fill(ends, -1))
    return replace(batch, images=images, texts=texts)


def views_of(model: RetrievalModel, batch: Batch) -> EncodedViews:
    with torch.no_grad():
        return model(batch)


def proposed(
    source: CounterfactualSampler, batch: Batch, seed: int = 0
) -> tuple[RetrievalModel, EncodedViews, MinedExtras]:
    model = host()
    views = views_of(model, batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    rng = torch.Generator().manual_seed(seed)
    return model, views, source.propose(model, batch, views, grid, rng)


def most(ranks: Tensor, may: Tensor) -> list[int]:
    return sorted((n for n in range(len(may)) if may[n]), key=lambda n: -float(ranks[n]))


def loop(
    model: RetrievalModel, batch: Batch, views: EncodedViews, margin: float
) -> dict[tuple[str, int], dict[Role, Tensor]]:
    """By side and anchor: what every role's edited item looks like, one anchor after the other."""
    seen, read = views.inference.images, views.inference.texts
    grid, found = model.score_matrix(seen, read), {}
    one = torch.ones(1, dtype=torch.float64)
    for b, (i, t) in enumerate(zip(batch.anchors.image.tolist(), batch.anchors.text.tolist())):
        texts = [u for u in range(batch.block[1]) if not batch.positive[i, u]]
        images = [j for j in range(batch.block[0]) if not batch.positive[j, t]]
        hard = max(texts, key=lambda u: float(grid[i, u]))
        other = max(images, key=lambda j: float(grid[j, t]))
        if margin + grid[i, hard] - grid[i, t] > 0:
            anchor = seen.rows(torch.tensor([i]))
            ranks = [
                word_saliency(model, batch.texts.rows(torch.tensor([u])), anchor, one)[0].norm(
                    dim=1
                )
                for u in (t, hard)
            ]
            found["text", b] = edited_text(batch.texts, t, hard, ranks)
        if margin + grid[other, t] - grid[i, t] > 0:
            anchor = read.rows(torch.tensor([t]))
            ranks = [
                region_saliency(model, batch.images.rows(torch.tensor([j])), anchor, one)[0].norm(
                    dim=1
                )
                for j in (i, other)
            ]
            found["image", b] = edited_image(batch.images, i, other, ranks)
    return found


def edited_text(
    items: ModalityBatch, true: int, wrong: int, ranks: list[Tensor]
) -> dict[Role, Tensor]:
    assert items.words is not None
    may = [items.mask[n] & (items.words[n] >= 0) for n in (true, wrong)]
    order = [most(rank, m) for rank, m in zip(ranks, may)]
    made = [items.values[n].clone() for n in (true, true, wrong)]
    for a, b in list(zip(*order))[: max(int(0.8 * len(order[0])), 1)]:
        made[0][a] = items.values[wrong, b]
    for n in range(2):
        made[1 + n][order[n][: max(int(0.1 * len(order[n])), 1)]] = UNKNOWN
    return dict(zip(ROLES, made))


def edited_image(
    items: ModalityBatch, true: int, wrong: int, ranks: list[Tensor]
) -> dict[Role, Tensor]:
    order = [most(rank, items.mask[n]) for rank, n in zip(ranks, (true, wrong))]
    made = [items.values[n].clone() for n in (true, true, wrong)]
    for a, b in list(zip(*order))[: max(int(0.8 * len(order[0])), 1)]:
        made[0][a] = items.values[wrong, b]
    for n in range(2):
        count = max(int(0.1 * len(order[n])), 1)
        made[1 + n][order[n][:count]] = made[1 + n][order[n][count:]].mean(0)
    return dict(zip(ROLES, made))


@pytest.mark.parametrize("margin", [-0.1, 0.4])
def test_edits_are_those_of_a_loop(margin: float) -> None:
    batch = batch_of()
    model, views, proposal = proposed(always(margin=margin), batch)
    wanted = loop(model, batch, views, margin)
    sides = {side for side, _ in wanted}
    assert sides == {"text", "image"}
    assert margin > 0.1 or len(wanted) < 2 * len(ANCHORS), "some anchors have nothing to edit"
    pools = len(batch.text_rows), len(batch.image_rows)
    for role in ROLES:
        pairs = proposal.pairs[role]
        assert torch.equal(pairs.image[:, 0], batch.anchors.image)
        assert torch.equal(pairs.text[:, 1], batch.anchors.text)
        for b in range(len(ANCHORS)):
            places = (("text", pairs.text[b, 0], 0), ("image", pairs.image[b, 1], 1))
            for side, place, nth in places:
                if (side, b) not in wanted:
                    assert place == -1
                    continue
                items = proposal.texts if side == "text" else proposal.images
                assert items is not None
                got = items.rows((place - pools[nth]).view(1))
                want = wanted[side, b][role]
                mask = got.mask[0]
                torch.testing.assert_close(got.values[0][mask], want[: len(mask)][mask])


def test_special_tokens_stay() -> None:
    _, _, proposal = proposed(always(swapped=1.0, hidden=1.0), batch_of())
    assert proposal.texts is not None
    specials = proposal.texts.mask & (proposal.texts.words < 0)
    assert (proposal.texts.values[specials] < UNKNOWN).all()
    _, _, every = proposed(always(swapped=1.0, hidden=1.0, specials=True), batch_of())
    assert every.texts is not None
    assert (every.texts.values[specials] == UNKNOWN).any()


def test_tokens_and_occurrences_differ() -> None:
    batch, found = batch_of(), []
    for gradients in ("occurrence", "token"):
        _, _, proposal = proposed(always(gradients=gradients), batch)
        assert proposal.texts is not None
        found.append(proposal.texts.values)
    assert found[0].shape == found[1].shape
    assert not torch.equal(*found)


def test_steps_without_edits() -> None:
    batch, source, counts = (
        batch_of(),
        CounterfactualSampler(mask=UNKNOWN, margin=0.4),
        [0, 0, 0, 0],
    )
    for seed in range(60):
        _, _, proposal = proposed(source, batch, seed)
        there = [bool((proposal.pairs[role].text >= 0).all()) for role in ROLES]
        assert there[1] == there[2]
        counts[2 * there[0] + there[1]] += 1
        each = there[0] + 2 * there[1]
        assert (0 if proposal.images is None else len(proposal.images)) == each * len(ANCHORS)
    assert all(counts), "the two are drawn independently"
    assert counts[0] > counts[3]


def terms() -> WeightedSum:
    return WeightedSum(
        terms={
            "triplet": (1.0, HardestTripletLoss(margin=0.4)),
            "adjusted": (1.0, SelfAdjustedCFMLoss()),
            "explored": (1.0, SelfExploredCFMLoss()),
        }
    )


@pytest.mark.parametrize("kind", ["scan", "vsrn", "vse"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_host_of_regions_and_words(kind: str, precision: Any) -> None:
    processor = cases.processor()
    words = processor.processor.tokenizer.size
    if kind == "vse":
        image, text = Regions(features=6, width=8), GRU(words=words, width=8, word_drop=0.2)
        model: RetrievalModel = VSEPP(image=image, text=text)
    else:
        model = cases.host(kind, processor)
    source = always(margin=0.4, mask=None if kind == "vse" else UNKNOWN)
    step = TrainingStep(model, terms(), proposer=source, precision=precision)
    losses = step(cases.batch_of(processor, ANCHORS, step=1))
    assert losses["adjusted"] > 0
    assert losses["explored"] > 0
    grown = torch.autograd.grad(
        losses["adjusted"] + losses["explored"], list(model.parameters()), allow_unused=True
    )
    names = [name for name, _ in model.named_parameters()]
    still = {name for name, gradient in zip(names, grown) if gradient is None}
    assert all(name.startswith("captioner") for name in still)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_anchor_far_ahead_is_not_edited() -> None:
    _, _, proposal = proposed(always(margin=-9.0), batch_of())
    assert proposal.images is None
    assert proposal.texts is None
    assert all((proposal.pairs[role].text[:, 0] == -1).all() for role in ROLES)


def test_a_batch_of_one_image_has_nothing_wrong() -> None:
    _, _, proposal = proposed(always(), batch_of([0, 1]))
    assert proposal.images is None
    assert proposal.texts is None


def test_what_cannot_be() -> None:
    processor = cases.processor()
    with pytest.raises(ValueError, match=r"swapped=1\.5 is not possible"):
        CounterfactualSampler(swapped=1.5)
    with pytest.raises(ValueError, match="'word' is not a kind of gradients"):
        CounterfactualSampler(gradients="word")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no token that hides a word; give its id as mask"):
        TrainingStep(cases.host("scan", processor), terms(), proposer=CounterfactualSampler())
    with pytest.raises(ValueError, match="Global has 0 text encoders"):
        TrainingStep(cases.host("global", processor), terms(), proposer=always())


def one_vector(batch: Batch, values: Tensor) -> Batch:
    mask = torch.ones(len(values), 1, dtype=torch.bool)
    return replace(batch, images=ModalityBatch(batch.images.ids, values, mask))


def test_images_without_regions() -> None:
    batch = batch_of()
    images = len(batch.images)
    nothing = Embeddings(torch.zeros(images, 1, 8), torch.ones(images, 1, dtype=torch.bool))
    views = EncodedViews({"inference": EncodedBatch(nothing, nothing)})
    grid = torch.zeros(batch.block)
    for values, words in (
        (torch.zeros(images, 1, 6), "images of one vector each have no regions to edit"),
        (torch.zeros(images, 3, 8, 8), r"images of shape \(7, 3, 8, 8\) .* cannot be edited"),
    ):
        with pytest.raises(ValueError, match=words):
            always().propose(
                host(), one_vector(batch, values), views, grid, torch.Generator().manual_seed(0)
            )


def test_pairs_of_no_place_are_not_scored() -> None:
    batch, model = batch_of(), host()

    class Half(OnlineMiner):
        provides = frozenset({Role.EDITED})

        def propose(self, *given: Any) -> MinedExtras:
            place = torch.tensor([[0, -1], [-1, 2]])
            return MinedExtras(pairs={Role.EDITED: Pairs(place, torch.tensor([[1, 1], [1, 2]]))})

    step = TrainingStep(model, terms_of(SelfAdjustedCFMLoss()), proposer=Half())
    views = views_of(model, batch)
    proposal = step._proposal(batch, views, torch.zeros(batch.block))
    found = step._pairs(batch, views, proposal)[Role.EDITED]
    assert found.isneginf().tolist() == [[False, True], [True, False]]
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    torch.testing.assert_close(found[0, 0], grid[0, 1])
    torch.testing.assert_close(found[1, 1], grid[2, 2])


def terms_of(term: Any) -> WeightedSum:
    return WeightedSum(terms={"t": (1.0, term)})
