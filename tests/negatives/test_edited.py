from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import train_cases as cases
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.vse import VSE
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.proposal import Proposal
from counterfoil.negatives.saliency import at_regions, at_words
from counterfoil.objectives.counterfactual import SelfAdjusted, SelfExplored
from counterfoil.objectives.term import Objective
from counterfoil.objectives.triplet import HardestTriplet
from counterfoil.records import Batch, Encoded, Items, Pairs, Role, View, Views
from counterfoil.train.step import Step

ANCHORS = [0, 1, 5, 7, 9, 13, 20, 30]  # captions 0 and 1 share an image
UNKNOWN = 3
ROLES = (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


def always(**options: Any) -> Edited:
    return Edited(**{"adjust": 1.0, "explore": 1.0, "mask": UNKNOWN, "margin": 0.05, **options})


def host() -> Matcher:
    return cases.host("scan", cases.lens()).double().eval()


def batch_of(anchors: list[int] = ANCHORS) -> Batch:
    """In double precision, so that ranks do not depend on rounding; ends are no words."""
    batch = cases.batch_of(cases.lens(), anchors)
    images = replace(batch.images, values=batch.images.values.double())
    place = torch.arange(batch.texts.mask.shape[1])
    ends = (place == 0) | (place >= batch.texts.mask.sum(1, keepdim=True) - 1)
    texts = replace(batch.texts, words=place.masked_fill(ends, -1))
    return replace(batch, images=images, texts=texts)


def views_of(matcher: Matcher, batch: Batch) -> Views:
    with torch.no_grad():
        return matcher(batch)


def proposed(source: Edited, batch: Batch, seed: int = 0) -> tuple[Matcher, Views, Proposal]:
    matcher = host()
    views = views_of(matcher, batch)
    grid = matcher.grid(views.inference.images, views.inference.texts)
    rng = torch.Generator().manual_seed(seed)
    return matcher, views, source.propose(matcher, batch, views, grid, rng)


def most(ranks: Tensor, may: Tensor) -> list[int]:
    return sorted((n for n in range(len(may)) if may[n]), key=lambda n: -float(ranks[n]))


def loop(
    matcher: Matcher, batch: Batch, views: Views, margin: float
) -> dict[tuple[str, int], dict[Role, Tensor]]:
    """By side and anchor: what every role's edited item looks like, one anchor after the other."""
    seen, read = views.inference.images, views.inference.texts
    grid, found = matcher.grid(seen, read), {}
    one = torch.ones(1, dtype=torch.float64)
    for b, (i, t) in enumerate(zip(batch.anchors.image.tolist(), batch.anchors.text.tolist())):
        texts = [u for u in range(batch.block[1]) if not batch.positive[i, u]]
        images = [j for j in range(batch.block[0]) if not batch.positive[j, t]]
        hard = max(texts, key=lambda u: float(grid[i, u]))
        other = max(images, key=lambda j: float(grid[j, t]))
        if margin + grid[i, hard] - grid[i, t] > 0:
            anchor = seen.rows(torch.tensor([i]))
            ranks = [
                at_words(matcher, batch.texts.rows(torch.tensor([u])), anchor, one)[0].norm(dim=1)
                for u in (t, hard)
            ]
            found["text", b] = edited_text(batch.texts, t, hard, ranks)
        if margin + grid[other, t] - grid[i, t] > 0:
            anchor = read.rows(torch.tensor([t]))
            ranks = [
                at_regions(matcher, batch.images.rows(torch.tensor([j])), anchor, one)[0].norm(
                    dim=1
                )
                for j in (i, other)
            ]
            found["image", b] = edited_image(batch.images, i, other, ranks)
    return found


def edited_text(items: Items, true: int, wrong: int, ranks: list[Tensor]) -> dict[Role, Tensor]:
    assert items.words is not None
    may = [items.mask[n] & (items.words[n] >= 0) for n in (true, wrong)]
    order = [most(rank, m) for rank, m in zip(ranks, may)]
    made = [items.values[n].clone() for n in (true, true, wrong)]
    for a, b in list(zip(*order))[: max(int(0.8 * len(order[0])), 1)]:
        made[0][a] = items.values[wrong, b]
    for n in range(2):
        made[1 + n][order[n][: max(int(0.1 * len(order[n])), 1)]] = UNKNOWN
    return dict(zip(ROLES, made))


def edited_image(items: Items, true: int, wrong: int, ranks: list[Tensor]) -> dict[Role, Tensor]:
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
    matcher, views, proposal = proposed(always(margin=margin), batch)
    wanted = loop(matcher, batch, views, margin)
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
    batch, source, counts = batch_of(), Edited(mask=UNKNOWN, margin=0.4), [0, 0, 0, 0]
    for seed in range(60):
        _, _, proposal = proposed(source, batch, seed)
        there = [bool((proposal.pairs[role].text >= 0).all()) for role in ROLES]
        assert there[1] == there[2]
        counts[2 * there[0] + there[1]] += 1
        each = there[0] + 2 * there[1]
        assert (0 if proposal.images is None else len(proposal.images)) == each * len(ANCHORS)
    assert all(counts), "the two are drawn independently"
    assert counts[0] > counts[3]


def terms() -> Objective:
    return Objective(
        terms={
            "triplet": (1.0, HardestTriplet(margin=0.4)),
            "adjusted": (1.0, SelfAdjusted()),
            "explored": (1.0, SelfExplored()),
        }
    )


@pytest.mark.parametrize("kind", ["scan", "vsrn", "vse"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_host_of_regions_and_words(kind: str, precision: Any) -> None:
    lens = cases.lens()
    words = lens.lens.tokenizer.size
    if kind == "vse":
        image, text = Regions(features=6, width=8), GRU(words=words, width=8, word_drop=0.2)
        matcher: Matcher = VSE(image=image, text=text)
    else:
        matcher = cases.host(kind, lens)
    source = always(margin=0.4, mask=None if kind == "vse" else UNKNOWN)
    step = Step(matcher, terms(), proposer=source, precision=precision)
    losses = step(cases.batch_of(lens, ANCHORS, step=1))
    assert losses["adjusted"] > 0
    assert losses["explored"] > 0
    grown = torch.autograd.grad(
        losses["adjusted"] + losses["explored"], list(matcher.parameters()), allow_unused=True
    )
    names = [name for name, _ in matcher.named_parameters()]
    still = {name for name, gradient in zip(names, grown) if gradient is None}
    assert all(name.startswith("captioner") for name in still)
    assert all(parameter.grad is None for parameter in matcher.parameters())


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
    lens = cases.lens()
    with pytest.raises(ValueError, match=r"swapped=1\.5 is not possible"):
        Edited(swapped=1.5)
    with pytest.raises(ValueError, match="'word' is not a kind of gradients"):
        Edited(gradients="word")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no token that hides a word; give its id as mask"):
        Step(cases.host("scan", lens), terms(), proposer=Edited())
    with pytest.raises(ValueError, match="Global has 0 text encoders"):
        Step(cases.host("global", lens), terms(), proposer=always())


def one_vector(batch: Batch, values: Tensor) -> Batch:
    mask = torch.ones(len(values), 1, dtype=torch.bool)
    return replace(batch, images=Items(batch.images.ids, values, mask))


def test_images_without_regions() -> None:
    batch = batch_of()
    images = len(batch.images)
    nothing = Encoded(torch.zeros(images, 1, 8), torch.ones(images, 1, dtype=torch.bool))
    views = Views({"inference": View(nothing, nothing)})
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
    batch, matcher = batch_of(), host()

    class Half:
        provides = frozenset({Role.EDITED})
        provides_words = frozenset[str]()

        def propose(self, *given: Any) -> Proposal:
            place = torch.tensor([[0, -1], [-1, 2]])
            return Proposal(pairs={Role.EDITED: Pairs(place, torch.tensor([[1, 1], [1, 2]]))})

    step = Step(matcher, terms_of(SelfAdjusted()), proposer=Half())
    views = views_of(matcher, batch)
    proposal = step._proposal(batch, views, torch.zeros(batch.block))
    found = step._pairs(batch, views, proposal)[Role.EDITED]
    assert found.isneginf().tolist() == [[False, True], [True, False]]
    grid = matcher.grid(views.inference.images, views.inference.texts)
    torch.testing.assert_close(found[0, 0], grid[0, 1])
    torch.testing.assert_close(found[1, 1], grid[2, 2])


def terms_of(term: Any) -> Objective:
    return Objective(terms={"t": (1.0, term)})
