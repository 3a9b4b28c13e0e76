from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.types import ScoreMatrix, Scores
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.papers.compared.losses import ExpandedReference, SelfExpandingLoss
from objectives_cases import judged

owners = st.lists(st.integers(0, 3), min_size=1, max_size=5)


def expanded(scores: Tensor, text_to_image: list[int], copies: int, step: int = 0) -> Scores:
    """A block of copies, side by side, in which text t describes image `owner[t]`."""
    place = torch.tensor(text_to_image)
    positive = torch.arange(len(scores) // copies).unsqueeze(1) == place
    positive = positive.repeat_interleave(copies, 0).repeat_interleave(copies, 1)
    blocks = scores.view(-1, copies, len(text_to_image), copies)
    anchor = blocks[place, :, torch.arange(len(text_to_image))].flatten(1).amin(1)
    grid = ScoreMatrix(scores, positive, anchor, name="expanded", repeats=copies)
    return Scores({"expanded": grid}, step=step)


def block(seed: int, text_to_image: list[int], copies: int, images: int = 4) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    shape = (images * copies, len(text_to_image) * copies)
    return torch.rand(shape, generator=rng, dtype=torch.float64).requires_grad_()


def slowly(
    scores: Tensor, text_to_image: list[int], copies: int, against: ExpandedReference, margin: float
) -> float:
    """Copy after copy."""
    s, total = scores.tolist(), 0.0
    gather = {"hardest": max, "all": sum, "mean": lambda costs: sum(costs) / len(costs)}[against]
    for text, image in enumerate(text_to_image):
        texts = range(text * copies, (text + 1) * copies)
        images = range(image * copies, (image + 1) * copies)
        for row in images:
            true = min(s[row][column] for column in texts)
            wrong = [v for c, v in enumerate(s[row]) if text_to_image[c // copies] != image]
            total += gather([max(0.0, margin + n - true) for n in wrong] or [0.0])
        for column in texts:
            true = min(s[row][column] for row in images)
            wrong = [s[r][column] for r in range(len(s)) if r // copies != image]
            total += gather([max(0.0, margin + n - true) for n in wrong] or [0.0])
    return total


@pytest.mark.parametrize("against", ["hardest", "all", "mean"])
@settings(max_examples=30, deadline=None)
@given(text_to_image=owners, copies=st.integers(1, 3), seed=st.integers(0, 999))
def test_equals_a_loop_over_copies(against, text_to_image, copies, seed):
    scores = block(seed, text_to_image, copies)
    loss = SelfExpandingLoss(against=against, margin=0.3)(expanded(scores, text_to_image, copies))
    assert loss.item() == pytest.approx(
        slowly(scores, text_to_image, copies, against, 0.3), abs=1e-9
    )


@pytest.mark.parametrize(
    "against,plain", [("hardest", HardestTripletLoss), ("all", SumTripletLoss)]
)
def test_one_copy_is_the_plain_triplet(against, plain):
    text_to_image = [0, 1, 1, 2]
    scores = block(1, text_to_image, 1)
    ours = SelfExpandingLoss(against=against)(expanded(scores, text_to_image, 1))
    theirs = plain()(judged(scores, text_to_image))
    torch.testing.assert_close(ours, theirs)
    (left,), (right,) = torch.autograd.grad(ours, scores), torch.autograd.grad(theirs, scores)
    torch.testing.assert_close(left, right)


def test_a_copy_that_already_fits_is_not_the_positive():
    """Raising the better of two copies of a caption changes nothing for the image."""
    s = block(5, [0, 1], 2, images=2).detach()
    before = SelfExpandingLoss(margin=2.0)(expanded(s, [0, 1], 2))
    best = s[:2, :2].argmax().item()
    s[best // 2, best % 2] += 1
    torch.testing.assert_close(SelfExpandingLoss(margin=2.0)(expanded(s, [0, 1], 2)), before)


def test_it_warms_up_against_all():
    warm = SwitchAfter(first=SelfExpandingLoss(against="all"), second=SelfExpandingLoss(), steps=3)
    assert warm.view == "expanded"
    scores = block(6, [0, 1, 2], 2)
    for step, against in ((2, "all"), (3, "hardest")):
        expected = SelfExpandingLoss(against=against)(expanded(scores, [0, 1, 2], 2))
        torch.testing.assert_close(warm(expanded(scores, [0, 1, 2], 2, step)), expected)
