"""NDGL, of which no code was published: formula cases in float64. Every key of the folder is run.

Where the folder has an image twice (rows and columns of one id), each row counts the pair on the
diagonal as its own, which no batch of ours has: every item stands in it once. Readings that look at
the positive are then asked one direction at a time, with the anchors written out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import INFERENCE, ScoreMatrix, Scores
from counterfoil.losses.base import Loss
from counterfoil.losses.ndgl import (
    GuidedDirections,
    GuidedScores,
    HardNegativeRectificationLoss,
    MarginDistillationLoss,
    expand_copies,
    guided_directions,
    hardest_candidates,
)
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.negatives.teachers import concatenate_teachers

SYSTEM = "ndgl"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
WAYS = {"st": "student_teacher", "ts": "teacher_student"}
TRIPLETS = {"hardest": HardestTripletLoss, "sum": SumTripletLoss}
PARTS = ("i2t", "t2i", "value", "grad_S")
CHOSEN = re.compile(r"hnr/([^/]+)/(student|teacher)_hardest_(caption|image)")


@dataclass(frozen=True)
class Case:
    """A student's and its teachers' block, what is true, and each row's and column's own pair."""

    student: Tensor
    teacher: Tensor
    positive: Tensor
    scale: float = 1.0
    copies: int = 1

    @property
    def score_matrix(self) -> ScoreMatrix:
        anchor = self.student[self.positive]
        return ScoreMatrix(
            self.student, self.positive, anchor, self.teacher, self.scale, repeats=self.copies
        )

    @property
    def sides(self) -> GuidedDirections:
        if self.student.shape[0] != self.student.shape[1]:
            return guided_directions(self.score_matrix, each_pair=False)
        plain = guided_directions(self.score_matrix, each_pair=False)
        teacher = expand_copies(self.score_matrix)
        own, taught = (s.diagonal() / self.scale for s in (self.student, teacher))
        return GuidedDirections(
            *(
                GuidedScores(side.student, side.teacher, side.negative, own, taught)
                for side in plain
            )
        )


def leaf(golden: golden_vectors.Golden, name: str) -> Tensor:
    return golden.inputs[name].double().requires_grad_()


def same(ids: Tensor) -> Tensor:
    return ids.unsqueeze(1) == ids


def case(golden: golden_vectors.Golden, name: str) -> Case:
    """The block that a key begins with, or whose option tells true pairs by the diagonal alone."""
    inputs = golden.inputs
    if name == "rect":
        hat, positive = inputs["rect_S_hat"].double(), inputs["rect_pos_mask"].bool()
        return Case(leaf(golden, "rect_S"), hat, positive)
    if name == "esa":
        student, hat = leaf(golden, "esa_S"), inputs["esa_S_hat_samples"].double()
        copies = len(student) // len(hat)
        return Case(student, hat, same(torch.arange(len(student)) // copies), copies=copies)
    if name.startswith("edge_"):
        ids = inputs[f"{name}_ids"]
        hat = inputs["S_teachers"].double().mean(0)[: len(ids), : len(ids)]
        student = inputs["S"].double()[: len(ids), : len(ids)].clone().requires_grad_()
        return Case(student, hat, same(ids))
    if name.startswith("scaled"):
        hat = inputs["S_scaled_teachers"].double().mean(0)
        scale = 1 / float(name.removeprefix("scaled")) if name != "scaled" else 1.0
        return Case(leaf(golden, "S_scaled"), hat, same(inputs["image_ids"]), scale)
    hat, ids = inputs["S_teachers"].double().mean(0), inputs["image_ids"]
    told = torch.arange(len(ids)) if name == "diagonal_only" else ids
    return Case(leaf(golden, "S"), hat, same(told))


def guided(options: dict[str, object]) -> MarginDistillationLoss:
    """The term that an option of the folder stands for."""
    form, _, over = str(options["form"]).rpartition("_")
    softmax = over == "softmax"
    return MarginDistillationLoss(
        form=str(options["form"]) if softmax else form,
        over="mean" if softmax else over,
        operand=options["operand"],
        tau=options["tau"],
        emphasis=options["emph"],
        direction=WAYS[options["direction"]],
        include_positive=options["incl"],
        reduction=options["red"],
    )


def option(golden: golden_vectors.Golden, name: str) -> MarginDistillationLoss:
    base, named = golden.meta["config"]["base_option"], golden.meta["config"]["options"]
    return guided({**base, **named.get(name, {})})


def whole(term: Loss, case: Case) -> Tensor:
    return term(Scores({INFERENCE: case.score_matrix}))


def ways(term: Loss, case: Case) -> list[Tensor]:
    """The two directions of a term."""
    sides = case.sides
    if isinstance(term, MarginDistillationLoss):
        each = [term.distances(side) for side in sides]
    else:
        assert isinstance(term, HardNegativeRectificationLoss)
        each = [term.rectified(side) for side in sides]
    return [part.mean() if term.reduction == "mean" else part.sum() for part in each]


def part(term: Loss, case: Case, what: str) -> Tensor:
    found = dict(zip(("i2t", "t2i"), ways(term, case)))
    if what in found:
        return found[what]
    value = found["i2t"] + found["t2i"]
    if isinstance(term, HardNegativeRectificationLoss) or not term.reads_positive:
        torch.testing.assert_close(whole(term, case), value)  # the term itself, on a whole block
    return value if what == "value" else torch.autograd.grad(value, case.student)[0]


def triplet(golden: golden_vectors.Golden, kind: str, case: Case) -> Tensor:
    """Our term on one anchor of one direction after the other, of which each has one positive."""
    term = TRIPLETS[kind](margin=golden.meta["config"]["margin"])
    total = case.student.new_zeros(())
    for scores, wrong in ((case.student, ~case.positive), (case.student.T, ~case.positive.T)):
        for n in range(len(scores)):
            row = torch.cat([scores[n, n : n + 1], scores[n][wrong[n]]]).unsqueeze(0)
            true = torch.arange(row.shape[1]).unsqueeze(0) == 0
            total = total + term(Scores({INFERENCE: ScoreMatrix(row, true, row[0, :1])}))
    return total


def total(golden: golden_vectors.Golden, name: str) -> tuple[Tensor, Tensor]:
    config, here = golden.meta["config"], case(golden, name)
    term = option(golden, name)
    value = triplet(golden, "hardest", here)
    if name != "no_mr":
        value = value + config["lambda1"] * term.tau**2 * sum(ways(term, here))
    if name != "no_hnr":
        rectified = HardNegativeRectificationLoss(gamma=config["gamma"])
        value = value + config["lambda2"] * sum(ways(rectified, here))
    return value, here.student


def rectified(golden: golden_vectors.Golden, name: str) -> HardNegativeRectificationLoss:
    found = re.fullmatch(r"gamma([\d.]+)", name)
    return HardNegativeRectificationLoss(
        gamma=float(found[1]) if found else golden.meta["config"]["gamma"]
    )


def ours(golden: golden_vectors.Golden, key: str) -> Tensor:
    """Our value for an output, by its name; an unknown name is an error."""
    head, *rest = key.split("/")
    if key == "S_hat":
        return case(golden, "").teacher
    if key == "S_hat_from_embeddings":
        images, texts = (golden.inputs[f"teacher_{n}_emb"].double() for n in ("img", "cap"))
        weights = torch.full((len(images),), 1 / len(images))
        return concatenate_teachers(images, weights) @ concatenate_teachers(texts).T
    if key == "esa/S_hat_expanded":
        return expand_copies(case(golden, "esa").score_matrix)
    if found := CHOSEN.fullmatch(key):
        sides = case(golden, found[1]).sides
        return hardest_candidates(sides[found[3] == "image"])[found[2] == "teacher"]
    name, what = rest
    if head == "triplet":
        kind, _, told = name.partition("_")
        here = case(golden, told)
        value = triplet(golden, kind, here)
        return value if what == "value" else torch.autograd.grad(value, here.student)[0]
    if head == "total":
        value, student = total(golden, name)
        return value if what == "value" else torch.autograd.grad(value, student)[0]
    assert what in PARTS, f"the golden folder has {key!r}, which no test understands"
    if head == "mr":
        return part(option(golden, name), case(golden, name), what)
    if head == "hnr":
        return part(rectified(golden, name), case(golden, name), what)
    return odd(golden, head, name, what)


def odd(golden: golden_vectors.Golden, head: str, name: str, what: str) -> Tensor:
    """Blocks of other scales and shapes."""
    if head == "scaled":
        kind, _, how = name.partition("_")
        here = case(golden, "scaled" + how.removeprefix("score_scale_").replace("unscaled", ""))
        return part(term_of(golden, kind), here, what)
    if head == "edge":
        block, _, kind = name.rpartition("_")
        block = "all_same_ids" if block == "all_same" else block
        return part(term_of(golden, kind), case(golden, f"edge_{block.removesuffix('_ids')}"), what)
    assert head in ("rect", "esa"), f"the golden folder has {head!r}, which no test understands"
    kind, reduction = name.split("_")
    return part(term_of(golden, kind, reduction), case(golden, head), what)


def term_of(golden: golden_vectors.Golden, kind: str, reduction: str = "sum") -> Loss:
    if kind == "mr":
        return MarginDistillationLoss(reduction=reduction)
    assert kind == "hnr"
    return HardNegativeRectificationLoss(gamma=golden.meta["config"]["gamma"], reduction=reduction)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_formulas(key):
    golden = golden_scores.load(SYSTEM)
    golden_scores.agrees(golden, key, ours(golden, key).float())
