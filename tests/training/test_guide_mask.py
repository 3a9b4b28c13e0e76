"""Negatives that a guide takes for true pairs are left out of every loss."""

from __future__ import annotations

import pytest
import torch

from counterfoil.core.types import Pairs, Role
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.ndgl import MarginDistillationLoss
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.negatives.sources import with_asked
from counterfoil.negatives.teachers import GuideMask, Mask
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn, Guided
from teachers_cases import TEXTS, frozen, trained
from train_cases import Offline, batch_of, gradients, host, processor

LENS = processor()
ROLES = Offline.provides


def slowly(guide, positive, anchors, margin: float, kind: str) -> torch.Tensor:
    """Pair after pair."""
    pairs = list(zip(anchors.image.tolist(), anchors.text.tolist(), strict=True))

    def limit(owns: list[tuple[int, int]]) -> float:
        scores = [guide[own].item() for own in owns]
        return min(s - margin * (abs(s) if kind == "relative" else 1) for s in scores)

    out = torch.zeros_like(positive)
    for i, t in torch.cartesian_prod(*map(torch.arange, guide.shape)).tolist():
        limits = [limit([p for p in pairs if p[side] == at]) for side, at in ((0, i), (1, t))]
        out[i, t] = all(guide[i, t].item() > one for one in limits) and not positive[i, t]
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("margin", "kind"),
    [(0.0, "absolute"), (0.2, "absolute"), (-0.3, "absolute"), (0.4, "relative")],
)
def test_the_mask_equals_the_slow_loop(seed, margin, kind):
    guide = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    owner = torch.tensor([0, 1, 1, 3, 2, 0])
    positive = torch.arange(4).unsqueeze(1) == owner
    anchors = Pairs(owner, torch.arange(6))
    mask = GuideMask(margin=margin, kind=kind)
    assert torch.equal(
        mask.block(guide, positive, anchors), slowly(guide, positive, anchors, margin, kind)
    )


def test_equal_scores_and_infinite_margins_leave_nothing_out():
    anchors = Pairs(torch.arange(3), torch.arange(3))
    assert not GuideMask(margin=0.0).block(torch.ones(3, 3), torch.eye(3).bool(), anchors).any()
    with pytest.raises(ValueError, match="finite number"):
        GuideMask(margin=torch.inf)
    with pytest.raises(ValueError, match="'ratio'"):
        GuideMask(margin=0.1, kind="ratio")


def objective() -> WeightedSum:
    return WeightedSum(
        terms={
            "quintuplet": (1.0, AdaptiveQuintuplet()),
            "nce": (1.0, InfoNCELoss()),
            "margins": (1.0, MarginDistillationLoss(offline=True)),
        }
    )


def step(guide, margin: float | None, terms: WeightedSum, roles=ROLES) -> TrainingStep:
    sources = [Drawn(roles)] if roles else []
    sources += [guide] if terms.needs.targets else []
    sources += [] if margin is None else [Mask(guide, margin=margin)]
    return TrainingStep(host("bag", LENS), terms, sources=sources)


def test_the_losses_see_what_is_left(tmp_path):
    guide = frozen(tmp_path / "t", trained(("bag", "scan"), LENS))
    batch = batch_of(LENS, TEXTS, offline=True)
    seen = {}
    for name, margin in (("all", None), ("left", 0.0)):
        terms = objective()
        terms.register_forward_hook(lambda _, given, __, name=name: seen.update({name: given[0]}))
        one = step(guide, margin, terms)
        losses = one(batch)
        torch.stack(list(losses.values())).sum().backward()
        assert all(gradient.isfinite().all() for gradient in gradients(one).values())
    every, left = seen["all"], seen["left"]
    positive, target = batch.positive, guide.targets(batch)
    out = slowly(target, positive, batch.anchors, 0.0, "absolute")
    assert 0 < out.sum() < (~positive).sum()
    ours, whole = (record.matrices["inference"].scores for record in (left, every))
    assert torch.equal(ours, whole.masked_fill(out, -torch.inf))
    own = target[batch.anchors.image, batch.anchors.text].unsqueeze(1)
    for role in ROLES:
        above = guide.pair_targets(batch, batch.pairs[role]) > own + 1e-6
        gone = left.pairs[role].isneginf()
        assert torch.equal(gone, above)
        assert torch.equal(left.pairs[role][~gone], every.pairs[role][~gone])
    assert any(left.pairs[role].isneginf().any() for role in (Role.HARD_TEXT, Role.CROSS))
    by_hand = objective()(left)
    for name, loss in by_hand.items():
        assert torch.equal(loss, losses[name])


def test_the_level_of_the_loss_is_that_of_the_negatives_left(tmp_path):
    guide = frozen(tmp_path / "t", trained(("global",), LENS))
    batch = batch_of(LENS, TEXTS)
    margin, terms = 0.2, WeightedSum(terms={"sum": (1.0, SumTripletLoss(margin=0.2))})
    out = GuideMask(margin=0.0).block(guide.targets(batch), batch.positive, batch.anchors)
    level = step(guide, 0.0, terms, roles=()).level(batch)
    left = ~(out | batch.positive)
    count = left[batch.anchors.image].sum() + left[:, batch.anchors.text].sum()
    assert out.any()
    assert level is not None
    assert level.item() == pytest.approx(margin * count.item())


def test_a_mask_needs_a_guide_that_scores_the_pairs():
    terms = WeightedSum(terms={"nce": (1.0, InfoNCELoss())})
    with pytest.raises(ValueError, match=r"a guide that gives target scores.*given was int"):
        step(3, 0.0, terms, roles=())
    quintuplet = WeightedSum(terms={"quintuplet": (1.0, AdaptiveQuintuplet())})
    by_block = Guided(lambda batch: torch.zeros(batch.block))
    with pytest.raises(ValueError, match="Guided does not score drawn pairs"):
        step(by_block, 0.0, quintuplet)
    step(by_block, 0.0, terms, roles=())


def test_a_guide_of_a_loss_and_of_a_mask_begins_once():
    guide = Guided(lambda batch: torch.zeros(batch.block))
    mask, other = Mask(guide), Drawn(ROLES)
    assert with_asked([other, mask, guide]) == (other, guide, mask)
