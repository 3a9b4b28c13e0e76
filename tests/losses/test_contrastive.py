from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from counterfoil.losses.base import Loss
from counterfoil.losses.contrastive import InfoNCELoss, SigmoidLoss
from counterfoil.losses.triplet import HardestTripletLoss
from objectives_cases import drawn, judged


def test_infonce_equals_clip_on_one_caption_per_image() -> None:
    s = drawn(0, list(range(6)), 6)[0]
    logits, truth = s / 0.07, torch.arange(6)
    clip = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
    ours = InfoNCELoss(temperature=0.07, reduction="mean").double()(judged(s, list(range(6))))
    torch.testing.assert_close(ours, clip, atol=1e-6, rtol=1e-6)


def test_infonce_counts_wrong_scores_as_higher_by_the_margin() -> None:
    s, text_to_image = drawn(0, list(range(6)), 6)[0], list(range(6))
    shifted = s + 0.3 * (1 - torch.eye(6))
    ours = InfoNCELoss(temperature=0.2, margin=0.3)(judged(s, text_to_image))
    torch.testing.assert_close(ours, InfoNCELoss(temperature=0.2)(judged(shifted, text_to_image)))
    assert ours > InfoNCELoss(temperature=0.2)(judged(s, text_to_image))


def test_infonce_pushes_no_caption_of_an_image_away_from_it() -> None:
    """With everything else far below, raising one true pair costs the other nothing."""
    s = torch.tensor([[0.9, 0.1, -9.0], [-9.0, -9.0, 0.5]], dtype=torch.float64)
    assert InfoNCELoss(temperature=0.1)(judged(s, [0, 0, 1])).item() == pytest.approx(0, abs=1e-12)


def test_a_learnt_temperature_moves_but_not_below_its_floor() -> None:
    loss = InfoNCELoss(temperature=0.02, learnable=True, smallest=0.01)
    optimiser = torch.optim.SGD(loss.parameters(), lr=10.0)
    s = torch.tensor([[0.9, 0.85], [0.85, 0.9]])
    seen = []
    for _ in range(20):
        optimiser.zero_grad()
        loss(judged(s, [0, 1])).backward()
        seen.append(math.exp(-loss.log_scale.item()))
        optimiser.step()
    assert seen[0] == pytest.approx(0.02)
    assert min(seen) == pytest.approx(0.01, rel=1e-5)
    loss.eval()
    before = loss.log_scale.item()
    loss(judged(s, [0, 1]))
    assert loss.log_scale.item() == before


def test_a_fixed_temperature_gets_no_gradient() -> None:
    s = drawn(1, [0, 1], 2)[0]
    loss = InfoNCELoss(temperature=0.1)
    loss(judged(s, [0, 1])).backward()
    assert loss.log_scale.grad is None


def test_sigmoid_equals_a_loop_over_all_pairs() -> None:
    text_to_image = [0, 0, 1, 2]
    s = drawn(2, text_to_image, 4)[0]
    expected = 0.0
    for i, row in enumerate(s.tolist()):
        for t, score in enumerate(row):
            z = 1 if text_to_image[t] == i else -1
            expected -= math.log(1 / (1 + math.exp(-z * (7.0 * score - 3.0))))
    ours = SigmoidLoss(scale=7.0, bias=-3.0)(judged(s, text_to_image))
    assert ours.item() == pytest.approx(expected, rel=1e-6)


def test_sigmoid_learns_scale_and_bias_unless_told_not_to() -> None:
    s = drawn(3, [0, 1], 2)[0]
    learnt, fixed = SigmoidLoss(), SigmoidLoss(learnable=False)
    for loss in (learnt, fixed):
        loss(judged(s, [0, 1])).backward()
    assert all(p.grad is not None and p.grad.abs() > 0 for p in learnt.parameters())
    assert all(p.grad is None for p in fixed.parameters())


@pytest.mark.parametrize(
    "loss", [InfoNCELoss(temperature=0.5, learnable=True), SigmoidLoss(scale=2.0)]
)
def test_gradients_by_learnt_numbers_agree_with_finite_differences(loss: Loss) -> None:
    s = drawn(4, [0, 1, 1, 2], 3)[0].detach()
    names, values = zip(*loss.double().named_parameters())

    def value(*numbers: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(
            loss, dict(zip(names, numbers)), (judged(s, [0, 1, 1, 2]),)
        )
        return out

    assert torch.autograd.gradcheck(value, tuple(v.detach().requires_grad_() for v in values))


def slow_info_nce(
    s: torch.Tensor,
    owner: list[int],
    extra: dict[tuple[int, int], float],
    hardness: float,
) -> torch.Tensor:
    """InfoNCE at temperature 0.2 and margin 0.1, one pair after the other."""
    true = {(image, text): 1.0 for text, image in enumerate(owner)} | extra

    def logit(pair: tuple[int, int]) -> torch.Tensor:
        if pair in true:
            return (s[pair] - 0.1) / 0.2
        return s[pair] / 0.2 + hardness * s[pair].detach()

    total = s.new_zeros(())
    for (image, text), weight in true.items():
        row = [(image, t) for t in range(s.shape[1])]
        column = [(i, text) for i in range(s.shape[0])]
        for others in (row, column):
            rivals = [p for p in others if p not in true or p == (image, text)]
            rest = torch.stack([(logit(p) - logit((image, text))).exp() for p in rivals])
            total = total + weight * rest.sum().log() / 2
    return total


@pytest.mark.parametrize("hardness", [0.0, 5.0])
def test_hardness_and_extra_positives_equal_a_loop(hardness: float) -> None:
    owner, extra = [0, 0, 1, 2, 3], {(0, 3): 0.25, (2, 0): 1.0, (3, 2): 0.5}
    s = drawn(3, owner, 4)[0]
    weights = torch.zeros(4, 5, dtype=torch.float64)
    for pair, weight in extra.items():
        weights[pair] = weight
    positives = torch.arange(4).unsqueeze(1) == torch.tensor(owner)
    loss = InfoNCELoss(temperature=0.2, margin=0.1, hardness=hardness).double()
    loss.log_scale.data = torch.tensor(5.0, dtype=torch.float64).log()
    value = loss(s, positives, extra_positives=weights)
    expected = slow_info_nce(s, owner, extra, hardness)
    torch.testing.assert_close(value, expected, atol=1e-12, rtol=1e-12)
    ours, theirs = (torch.autograd.grad(v, s)[0] for v in (value, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_hardness_is_a_lower_temperature_of_weights_alone() -> None:
    """Shares of the pull are those at 1 / (1/t + a), its size is that at t."""
    s = drawn(1, [0], 5)[0]  # one text, four wrong images
    loss = InfoNCELoss(temperature=0.2, hardness=5.0).double()
    (pull,) = torch.autograd.grad(loss(judged(s, [0])), s)
    shares = (s[1:].detach() * 10).softmax(0)
    torch.testing.assert_close(pull[1:] / pull[1:].sum(), shares, atol=1e-6, rtol=1e-6)


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def slow_with_extra(
    s: list[list[float]], text_to_image: list[int], extra: dict[tuple[int, int], float]
) -> tuple[float, float]:
    """InfoNCE at temperature 0.2 and the sigmoid loss at scale 5, bias -1, pair after pair."""
    images, texts, info, sigmoid = range(len(s)), range(len(text_to_image)), 0.0, 0.0
    true = {(image, text): 1.0 for text, image in enumerate(text_to_image)} | extra
    for (image, text), weight in true.items():
        for others in ([(image, t) for t in texts], [(i, text) for i in images]):
            wrong = sum(math.exp(s[i][t] / 0.2) for i, t in others if (i, t) not in true)
            cost = math.log1p(wrong / math.exp(s[image][text] / 0.2))
            info += weight * cost / 2
        sigmoid += weight * softplus(1 - 5 * s[image][text])
    sigmoid += sum(softplus(5 * s[i][t] - 1) for i in images for t in texts if (i, t) not in true)
    return info, sigmoid


def test_extra_positives_with_weights_equal_a_loop() -> None:
    text_to_image = [0, 0, 1, 2, 3]
    extra = {(0, 3): 0.25, (2, 0): 1.0, (3, 2): 0.5, (3, 3): 0.75}
    s = drawn(3, text_to_image, 4)[0]
    weights = torch.zeros(4, 5, dtype=torch.float64)
    for (image, text), weight in extra.items():
        weights[image, text] = weight
    positives = torch.arange(4).unsqueeze(1) == torch.tensor(text_to_image)
    for loss, expected in zip(
        (InfoNCELoss(temperature=0.2), SigmoidLoss(scale=5.0, bias=-1.0)),
        slow_with_extra(s.tolist(), text_to_image, extra),
    ):
        value = loss.double()(s, positives, extra_positives=weights)
        assert value.item() == pytest.approx(expected, rel=1e-6)
        (gradient,) = torch.autograd.grad(value, s)
        # a step against the gradient raises what is judged true, at once
        assert all(gradient[pair] < 0 for pair in extra)


def test_a_loss_that_cannot_learn_from_them_takes_extra_positives_for_no_negatives() -> None:
    s = drawn(4, list(range(4)), 4)[0]
    weights = torch.zeros_like(s)
    weights[0, 2] = 0.5
    gradient = torch.autograd.grad(HardestTripletLoss(margin=5.0)(s, extra_positives=weights), s)[0]
    assert gradient[0, 2] == 0
    assert gradient[0].any()


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        (torch.zeros(2, 3), r"extra_positives of shape \(2, 3\)"),
        (torch.zeros(2, 2).bool(), "use a float tensor"),
        (torch.full((2, 2), 1.5), "weights below 0 or above 1"),
        (torch.full((2, 2), -0.5), "weights below 0 or above 1"),
    ],
)
def test_weights_of_extra_positives_that_are_none_are_refused(weights, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        InfoNCELoss()(torch.rand(2, 2), extra_positives=weights)


@pytest.mark.parametrize("loss", [InfoNCELoss(learnable=True), SigmoidLoss()])
def test_a_pair_that_is_left_out_has_no_share_in_a_learnt_scale(
    loss: InfoNCELoss | SigmoidLoss,
) -> None:
    scores = torch.tensor([[0.9, -torch.inf], [0.2, 0.6]])
    loss.zero_grad()
    loss(scores).backward()
    gradients = [p.grad for p in loss.parameters() if p.grad is not None]
    assert all(gradient.isfinite() and gradient != 0 for gradient in gradients)
