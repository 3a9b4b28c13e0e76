"""NDGL's terms against loops over ids."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.config import lazy
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.ndgl import (
    HardNegativeRectificationLoss,
    MarginDistillationLoss,
    guide_agreement,
)
from objectives_cases import judged

owners = st.lists(st.integers(0, 3), min_size=1, max_size=6)
FORMS = (
    {},
    {"emphasis": "hard", "tau": 0.5},
    {"emphasis": "easy", "tau": 0.5, "direction": "teacher_student"},
    {"include_positive": True},
    {"operand": "similarity", "include_positive": True, "tau": 0.3},
    {"form": "flat_softmax"},
    {"form": "bernoulli", "tau": 0.2},
    {"form": "gaussian", "over": "sum"},
    {"form": "mse"},
)


def guided(text_to_image: list[int], seed: int = 0, images: int = 4, count: int = 2) -> Scores:
    """A float64 block with its guide, and drawn pairs with theirs; the leaves want gradients."""
    rng = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=rng, dtype=torch.float64)

    found = judged(some(images, len(text_to_image)).requires_grad_(), text_to_image)
    grid = replace(found.matrices[INFERENCE], guide=some(images, len(text_to_image)))
    shape = len(text_to_image), count
    pairs = {role: some(*shape).requires_grad_() for role in (Role.HARD_TEXT, Role.HARD_IMAGE)}
    return replace(
        found, matrices={INFERENCE: grid}, pairs=pairs, guides={r: some(*shape) for r in pairs}
    )


def softmax(values: list[float]) -> list[float]:
    top = sum(math.exp(v) for v in values)
    return [math.exp(v) / top for v in values]


def divergence(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def anchors(
    scores: Scores, text_to_image: list[int], *, offline: bool
) -> list[tuple[list[float], ...]]:
    """Every anchor's negatives, student and teacher; one for each pair where pairs are drawn."""
    grid = scores.matrices[INFERENCE]
    s, g = grid.scores.tolist(), grid.guide.tolist()
    found = []
    rows = [(i, None) for i in range(len(s))]
    columns = [(t, None) for t in range(len(text_to_image))]
    if offline:
        rows, columns = (
            [(i, b) for b, i in enumerate(text_to_image)],
            [(b, b) for b in range(len(text_to_image))],
        )
    for i, b in rows:
        at = [t for t in range(len(text_to_image)) if text_to_image[t] != i]
        more = drawn(scores, Role.HARD_TEXT, b)
        found.append(([s[i][t] for t in at] + more[0], [g[i][t] for t in at] + more[1]))
    for t, b in columns:
        at = [i for i in range(len(s)) if text_to_image[t] != i]
        more = drawn(scores, Role.HARD_IMAGE, b)
        found.append(([s[i][t] for i in at] + more[0], [g[i][t] for i in at] + more[1]))
    return found


def drawn(scores: Scores, role: Role, b: int | None) -> tuple[list[float], list[float]]:
    if b is None:
        return [], []
    return scores.pairs[role][b].tolist(), scores.guides[role][b].tolist()


@pytest.mark.parametrize("offline", [False, True])
@settings(max_examples=25, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999))
def test_equals_a_loop_over_ids(offline: bool, text_to_image: list[int], seed: int) -> None:
    scores = guided(text_to_image, seed)
    expected = sum(
        divergence(softmax([-x for x in own]), softmax([-x for x in taught]))
        for own, taught in anchors(scores, text_to_image, offline=offline)
        if own
    )
    found = MarginDistillationLoss(offline=offline)(scores)
    assert found.item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), gamma=st.sampled_from([0.0, 0.01, 0.5]))
def test_rectified_equals_a_loop_over_ids(
    text_to_image: list[int], seed: int, gamma: float
) -> None:
    scores, expected = guided(text_to_image, seed), 0.0
    for own, taught in anchors(scores, text_to_image, offline=False):
        if own and (a := own.index(max(own))) != (b := taught.index(max(taught))):
            expected += max(0.0, gamma - own[b] + own[a])
    found = HardNegativeRectificationLoss(gamma=gamma)(scores)
    assert found.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_rectified_by_drawn_pairs_equals_a_loop(gamma: float) -> None:
    text_to_image = [0, 1, 1, 3]
    scores, expected = guided(text_to_image, 5, count=3), 0.0
    s = scores.matrices[INFERENCE].scores.tolist()
    for b, image in enumerate(text_to_image):
        for role, batch in (
            (Role.HARD_TEXT, [s[image][t] for t in range(4) if text_to_image[t] != image]),
            (Role.HARD_IMAGE, [s[i][b] for i in range(4) if i != image]),
        ):
            pairs, guide = drawn(scores, role, b)
            chosen = pairs[guide.index(max(guide))]
            expected += max(0.0, gamma - chosen + max(batch))
    found = HardNegativeRectificationLoss(gamma=gamma, candidates="offline")(scores)
    assert found.item() == pytest.approx(expected, abs=1e-9)


def test_gamma_matters_with_drawn_candidates_only() -> None:
    text_to_image = [0, 1, 2, 3]

    def gradient(gamma: float, candidates: str) -> Tensor:
        scores = guided(text_to_image, 1)
        HardNegativeRectificationLoss(gamma=gamma, candidates=candidates)(scores).backward()
        return scores.matrices[INFERENCE].scores.grad

    assert torch.equal(gradient(0.0, "batch"), gradient(0.5, "batch"))
    assert not torch.equal(gradient(-0.3, "offline"), gradient(0.5, "offline"))


def test_equally_hard_negatives_are_told_apart_by_place() -> None:
    s = torch.tensor([[0.9, 0.5, 0.5], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9]])
    guide = torch.tensor([[0.9, 0.7, 0.7], [0.2, 0.9, 0.2], [0.2, 0.2, 0.9]])
    grid = ScoreMatrix(s, torch.eye(3).bool(), s.diagonal(), guide)
    assert HardNegativeRectificationLoss()(Scores({INFERENCE: grid})).item() == 0.0


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_gradients(options: dict[str, object]) -> None:
    scores, term = guided([0, 1, 1, 3], 2), MarginDistillationLoss(**options)
    grid = scores.matrices[INFERENCE]
    assert torch.autograd.gradcheck(
        lambda s: term(Scores({INFERENCE: replace(grid, scores=s)})), grid.scores
    )


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_a_student_like_its_teachers_has_no_loss(options: dict[str, object]) -> None:
    scores = guided([0, 1, 1, 3], 3)
    grid = scores.matrices[INFERENCE]
    like = replace(grid, guide=grid.scores.detach())
    loss = MarginDistillationLoss(**options)(Scores({INFERENCE: like}))
    assert loss.item() == pytest.approx(0, abs=1e-12)
    moved = MarginDistillationLoss(**options)(Scores({INFERENCE: grid}))
    assert moved.item() > 1e-4


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_an_anchor_without_negatives_says_nothing(options: dict[str, object]) -> None:
    scores = guided([0, 0, 0], images=1)
    loss = MarginDistillationLoss(**options)(scores) + HardNegativeRectificationLoss()(scores)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(scores.matrices[INFERENCE].scores.grad, torch.zeros(1, 3))


def test_units_of_the_score_do_not_matter() -> None:
    scores = guided([0, 1, 1, 3], 4)
    grid = scores.matrices[INFERENCE]
    scaled = replace(grid, scores=10 * grid.scores, guide=10 * grid.guide, scale=10.0)
    for term in (MarginDistillationLoss(), HardNegativeRectificationLoss()):
        assert term(Scores({INFERENCE: scaled})).item() == pytest.approx(term(scores).item())


def test_the_positive_changes_nothing_by_default() -> None:
    scores = guided([0, 1, 2, 3], 4)
    MarginDistillationLoss()(scores).backward()
    assert scores.matrices[INFERENCE].scores.grad.diagonal().abs().max() < 1e-12


def test_copies_are_taught_alike() -> None:
    scores = guided([0, 1, 2, 3], 4)
    grid = scores.matrices[INFERENCE]
    twice = grid.scores.repeat_interleave(2, 0).repeat_interleave(2, 1)
    positive = grid.positive.repeat_interleave(2, 0).repeat_interleave(2, 1)
    copied = ScoreMatrix(twice, positive, grid.anchor, grid.guide, repeats=2)
    loss = MarginDistillationLoss(reduction="mean")
    assert loss(Scores({INFERENCE: copied})).item() == pytest.approx(loss(scores).item())


def test_the_mean_is_over_the_anchors_of_a_direction() -> None:
    text_to_image = [0, 0, 1, 1, 2, 3]
    scores = guided(text_to_image, 4)
    each = [
        divergence(softmax([-x for x in own]), softmax([-x for x in taught]))
        for own, taught in anchors(scores, text_to_image, offline=False)
    ]
    found = MarginDistillationLoss(reduction="mean")(scores)
    assert found.item() == pytest.approx(sum(each[:4]) / 4 + sum(each[4:]) / 6)


def test_agreement_equals_a_loop() -> None:
    text_to_image = [0, 1, 1, 3]
    scores = guided(text_to_image, 7)
    grid = scores.matrices[INFERENCE]
    g, apart, above, distance = grid.guide.tolist(), [], [], []
    sides = anchors(scores, text_to_image, offline=False)
    for text, image in enumerate(text_to_image):
        for own, taught in (sides[image], sides[4 + text]):
            apart.append(own.index(max(own)) != taught.index(max(taught)))
            above.append(max(taught) > g[image][text])
            distance.append(divergence(softmax(own), softmax(taught)))
    found = guide_agreement(grid)
    assert found["disagree"].item() == pytest.approx(100 * sum(apart) / 8)
    assert found["outranked"].item() == pytest.approx(100 * sum(above) / 8)
    assert found["kl"].item() == pytest.approx(sum(distance) / 8, rel=1e-5)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_pairs_that_a_guide_leaves_out_are_no_negatives(options: dict[str, object]) -> None:
    scores = guided([0, 1, 2, 3], 7)
    grid = scores.matrices[INFERENCE]
    out = torch.zeros(4, 4, dtype=torch.bool)
    out[0, 1] = out[2, 3] = True
    told = Scores({INFERENCE: replace(grid, guide=grid.guide.masked_fill(out, -torch.inf))})
    meant = Scores({INFERENCE: replace(grid, positive=grid.positive | out)})
    for term in (HardNegativeRectificationLoss(), MarginDistillationLoss(**options)):
        assert term(told).isfinite()
        if not (isinstance(term, MarginDistillationLoss) and term.reads_positive):
            assert term(told).item() == pytest.approx(term(meant).item())
        (gradient,) = torch.autograd.grad(term(told), grid.scores)
        assert gradient.isfinite().all()
        assert not gradient[out].any()
    assert guide_agreement(told.matrices[INFERENCE])["kl"].isfinite()


def test_they_say_what_they_need() -> None:
    drawn = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
    plain = weighted_sum(
        mr=(100.0, lazy(MarginDistillationLoss)), hnr=(0.5, lazy(HardNegativeRectificationLoss))
    ).build()
    assert plain.needs.targets
    assert not plain.needs.roles | plain.needs.pair_targets
    for term in (
        MarginDistillationLoss(offline=True),
        HardNegativeRectificationLoss(candidates="offline"),
    ):
        assert term.needs.roles == term.needs.pair_targets == drawn


@pytest.mark.parametrize("offline", [False, True])
def test_scores_of_another_scale_are_divided_or_taken_as_they_are(offline):
    """CHAN's scores are ten times a cosine; the paper's equations do not say what they are in."""
    record = guided([0, 1, 1, 3])
    grid = record.matrices[INFERENCE]
    tenfold = replace(
        record,
        matrices={
            INFERENCE: replace(
                grid,
                scores=10 * grid.scores,
                guide=10 * grid.guide,
                anchor=10 * grid.anchor,
                scale=10.0,
            )
        },
        pairs={role: 10 * value for role, value in record.pairs.items()},
        guides={role: 10 * value for role, value in record.guides.items()},
    )
    plain = replace(tenfold, matrices={INFERENCE: replace(tenfold.matrices[INFERENCE], scale=1.0)})
    candidates = "offline" if offline else "batch"
    for kind, options in (
        (MarginDistillationLoss, {"offline": offline}),
        (HardNegativeRectificationLoss, {"candidates": candidates}),
    ):
        cosine, raw = kind(**options), kind(units="score", **options)
        torch.testing.assert_close(cosine(tenfold), cosine(record))
        torch.testing.assert_close(raw(tenfold), cosine(plain))
        assert not torch.isclose(raw(tenfold), cosine(tenfold))
