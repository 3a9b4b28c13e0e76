"""Promises of every loss: plain tensors and records, gradients, means, missing negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterfoil import losses
from counterfoil.core.types import Role, ScoreMatrix, Scores, WordTask
from counterfoil.losses import ndgl
from counterfoil.losses.base import KEYWORDS, Loss, PairScores, WeightedSum
from counterfoil.losses.schedules import LossSchedule

IMAGES, TEXTS = 4, 5
TEXT_TO_IMAGE = [0, 1, 1, 3, 2]

# by class name, and a word where a class stands here several times
LOSSES: dict[str, Callable[[], Loss]] = {
    "AdaptiveQuintuplet": losses.AdaptiveQuintuplet,
    "AdaptiveQuintuplet positive": lambda: losses.AdaptiveQuintuplet(reference="positive"),
    "HardNegativeRectificationLoss": losses.HardNegativeRectificationLoss,
    "HardNegativeRectificationLoss offline": lambda: losses.HardNegativeRectificationLoss(
        candidates="offline"
    ),
    "HardestTripletLoss": losses.HardestTripletLoss,
    "InfoNCELoss": lambda: losses.InfoNCELoss(learnable=True),
    "InfoNCEWithCandidatesLoss": lambda: losses.InfoNCEWithCandidatesLoss(images=("hard image",)),
    "LinearRamp": lambda: losses.LinearRamp(term=losses.SumTripletLoss(), steps=9),
    "MarginDistillationLoss": losses.MarginDistillationLoss,
    "MarginDistillationLoss gaussian": lambda: losses.MarginDistillationLoss(form="gaussian"),
    "MarginDistillationLoss both": lambda: losses.MarginDistillationLoss(
        direction="both", teacher_tau=0.5
    ),
    "MarginDistillationLoss offline": lambda: losses.MarginDistillationLoss(offline=True),
    "MarginRankingLoss adaptive": lambda: losses.MarginRankingLoss(
        role="written", margin=9.0, adaptive=True
    ),
    "MarginRankingLoss": lambda: losses.MarginRankingLoss(role="written"),
    "MeanTripletLoss": losses.MeanTripletLoss,
    "MeanTripletLoss semi-hard": lambda: losses.MeanTripletLoss(semi_hard=True),
    "MomentumQueueLoss": losses.MomentumQueueLoss,
    "OfflineQuintuplet": losses.OfflineQuintuplet,
    "OfflineQuintuplet squared": lambda: losses.OfflineQuintuplet(squared=True),
    "OfflineTriplet": losses.OfflineTriplet,
    "OfflineTriplet alone": lambda: losses.OfflineTriplet(online=None),
    "OnlineQuintuplet": losses.OnlineQuintuplet,
    "SemiHardTripletLoss": losses.SemiHardTripletLoss,
    "SigmoidLoss": losses.SigmoidLoss,
    "StartAt": lambda: losses.StartAt(term=losses.OfflineTriplet(), steps=3),
    "SumTripletLoss": losses.SumTripletLoss,
    "SwitchAfter": lambda: losses.SwitchAfter(
        first=losses.SumTripletLoss(), second=losses.AdaptiveQuintuplet(), steps=3
    ),
    "TripletCLIPLoss": losses.TripletCLIPLoss,
    "UTOLoss": losses.UTOLoss,
}
PAPERS = "LSEHLoss" in dir(losses)
if PAPERS:
    LOSSES |= {
        "CircleLoss": lambda: losses.CircleLoss(role="hard text"),
        "DistanceWeightedTripletLoss": losses.DistanceWeightedTripletLoss,
        "LSEHLoss": losses.LSEHLoss,
        "LSEHLoss sum": lambda: losses.LSEHLoss(alpha=0.3, lam=0.2, against="sum"),
        "SelfAdjustedCFMLoss": losses.SelfAdjustedCFMLoss,
        "SelfExpandingLoss": losses.SelfExpandingLoss,
        "SelfExpandingLoss all": lambda: losses.SelfExpandingLoss(against="all", margin=0.5),
        "SelfExploredCFMLoss": losses.SelfExploredCFMLoss,
        "WordLoss": lambda: losses.WordLoss(task="masked"),
    }
COSTS_WITHOUT_NEGATIVES = {
    "CircleLoss",
    "MarginDistillationLoss offline",
    "SigmoidLoss",
    "TripletCLIPLoss",  # a foil and its picture are a true pair
    "UTOLoss",
    "WordLoss",
}


def leaves(name: str, text_to_image: list[int] = TEXT_TO_IMAGE) -> dict[str, Tensor]:
    """Random tensors under the keywords of a call; each is a leaf of a graph."""
    rng = torch.Generator().manual_seed(7)
    repeats, texts = copies(name), len(text_to_image)
    images = max(text_to_image) + 1
    shapes = {"scores": (images * repeats, texts * repeats), "guide": (images, texts)}
    shapes |= dict.fromkeys(KEYWORDS.values(), (texts, 2))
    shapes |= dict.fromkeys(("generated", "generated_image", "generated_pair"), (texts, texts))
    shapes |= {"hard_text_guide": (texts, 2), "hard_image_guide": (texts, 2), "logits": (6, 3)}
    return {
        name: torch.rand(shape, generator=rng, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def copies(name: str) -> int:
    return 2 if name.startswith("SelfExpandingLoss") else 1


def block(repeats: int, text_to_image: list[int] = TEXT_TO_IMAGE) -> Tensor:
    positives = torch.arange(max(text_to_image) + 1).unsqueeze(1) == torch.tensor(text_to_image)
    return positives.repeat_interleave(repeats, 0).repeat_interleave(repeats, 1)


LABELS, ANCHOR = torch.tensor([0, 1, 2, -1, 1, 0]), torch.tensor([0, 0, 1, 2, 3, 4])


def record(
    loss: Loss, tensors: dict[str, Tensor], text_to_image: list[int] = TEXT_TO_IMAGE
) -> Scores:
    """The record that the training step would build."""
    scores, place = tensors["scores"], torch.tensor(text_to_image)
    images, texts = max(text_to_image) + 1, len(text_to_image)
    repeats = len(scores) // images
    blocks = scores.view(images, repeats, texts, repeats)
    anchor = blocks[place, :, torch.arange(texts)].flatten(1).amin(1)
    positive = block(repeats, text_to_image)
    matrix = ScoreMatrix(scores, positive, anchor, tensors["guide"], 2.0, loss.view, repeats)
    return Scores(
        matrices={loss.view: matrix},
        pairs={role: tensors[name] for role, name in KEYWORDS.items()},
        words={"masked": WordTask(tensors["logits"], LABELS, ANCHOR.clamp(max=texts - 1))},
        step=5,
        guides={role: tensors[f"{KEYWORDS[role]}_guide"] for role in ndgl.MINED_ROLES},
        seed=11,
    )


def arguments(tensors: dict[str, Tensor], repeats: int) -> dict[str, Any]:
    given: dict[str, Any] = {n: t for n, t in tensors.items() if n not in ("scores", "logits")}
    words = {"masked": (tensors["logits"], LABELS, ANCHOR)}
    options = {"scale": 2.0, "repeats": repeats, "step": 5, "seed": 11}
    return given | {"words": words, "positives": block(repeats)} | options


def gradients(value: Tensor, tensors: dict[str, Tensor]) -> Iterator[Tensor | None]:
    yield from torch.autograd.grad(value, list(tensors.values()), allow_unused=True)


def test_every_loss_has_a_case():
    classes = {getattr(losses, name) for name in dir(losses) if name[0].isupper()}
    classes -= {Loss, WeightedSum}
    classes = {made for made in classes if not made.needs.vectors}  # test_adapters.py
    assert {name.split()[0] for name in LOSSES} == {made.__name__ for made in classes}


@pytest.mark.parametrize("name", LOSSES)
def test_a_plain_call_equals_the_call_with_a_record(name):
    loss = LOSSES[name]().double()
    again = LOSSES[name]().double()  # a loss may learn from a call
    repeats, tensors = copies(name), leaves(name)
    plain = loss(tensors["scores"], **arguments(tensors, repeats))
    recorded = again(record(loss, tensors))
    assert plain.item() != 0
    assert torch.equal(plain, recorded)
    for left, right in zip(gradients(plain, tensors), gradients(recorded, tensors), strict=True):
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


@pytest.mark.parametrize("name", LOSSES)
def test_a_pair_of_minus_infinity_is_no_negative(name):
    loss, again = (LOSSES[name]().double() for _ in range(2))
    repeats, tensors = copies(name), leaves(name)
    given, scores = arguments(tensors, repeats), tensors["scores"]
    more = torch.rand(repeats, TEXTS * repeats, dtype=torch.float64)
    out = torch.zeros(IMAGES + 1, TEXTS, dtype=torch.bool)
    out[0, 2], out[-1] = True, True  # one wrong pair, and an image that describes nothing
    out = out.repeat_interleave(repeats, 0).repeat_interleave(repeats, 1)
    wrong = {
        "positives": torch.cat([given["positives"], torch.zeros_like(more).bool()]),
        "guide": torch.cat([tensors["guide"], torch.ones(1, TEXTS, dtype=torch.float64)]),
    }
    whole = torch.cat([scores, more]).masked_fill(out, -torch.inf)
    value = loss(whole, **given | wrong)
    alone = again(scores.masked_fill(out[:-repeats], -torch.inf), **given)
    assert value.item() == pytest.approx(alone.item(), rel=1e-12)
    ours = dict(zip(tensors, gradients(value, tensors), strict=True))
    assert all(gradient is None or gradient.isfinite().all() for gradient in ours.values())
    assert ours["scores"] is None or not ours["scores"][out[:-repeats]].any()


@pytest.mark.parametrize("name", LOSSES)
def test_a_mined_pair_of_minus_infinity_costs_nothing(name):
    roles = ("hard_text", "hard_image", "cross", "companion")
    tensors = leaves(name)
    out = torch.tensor([[True, False], [True, True], [False, True], [False, False], [False, False]])
    left = tensors | {role: tensors[role].masked_fill(out, -torch.inf) for role in roles}
    loss = LOSSES[name]().double()
    value = loss(record(loss, left))
    assert value.isfinite()
    for key, gradient in zip(tensors, gradients(value, tensors), strict=True):
        assert gradient is None or gradient.isfinite().all()
        assert gradient is None or key not in roles or not gradient[out].any()


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_finite_differences(name):
    if name == "CircleLoss":
        pytest.skip("its weights of scores have no gradient; tests/papers/losses has its formula")
    loss, tensors = LOSSES[name]().double().eval(), leaves(name)
    value = loss(record(loss, tensors))
    grads = dict(zip(tensors, gradients(value, tensors), strict=True))
    # the teachers' choice of a negative has no derivative, and is the same nearby
    used = [key for key, gradient in grads.items() if gradient is not None]
    assert used

    def at(*inputs: Tensor) -> Tensor:
        return loss(record(loss, tensors | dict(zip(used, inputs, strict=True))))

    assert torch.autograd.gradcheck(at, [tensors[key] for key in used])


@pytest.mark.parametrize("name", LOSSES)
def test_mean_is_the_sum_over_anchor_pairs_divided_by_their_number(name):
    loss, tensors = LOSSES[name]().double().eval(), leaves(name)
    if isinstance(loss, LossSchedule) or name.split()[0] in NDGL:
        pytest.skip("it hands the reduction to others, or takes the mean of each direction")
    values = []
    for reduction in ("sum", "mean"):
        loss.reduction = reduction
        values.append(loss(record(loss, tensors)))
    torch.testing.assert_close(values[1] * TEXTS, values[0])


NDGL = {"HardNegativeRectificationLoss", "MarginDistillationLoss"}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("text_to_image", [[0], [0, 0, 0], [1, 0, 0, 0, 0, 0]])
def test_rows_without_a_negative_are_free_and_harmless(name, text_to_image):
    """One image, or one with nearly all texts: no NaN, and zero where nothing is wrong."""
    far = {key for key in KEYWORDS.values() if key != "masked_positive"}
    tensors = {
        key: (tensor.detach() - (10.0 if key in far else 0.0)).requires_grad_()
        for key, tensor in leaves(name, text_to_image).items()
    }
    loss = LOSSES[name]().double()
    value = loss(record(loss, tensors, text_to_image))
    found = [g for g in gradients(value, tensors) if g is not None]
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in found)
    if max(text_to_image) == 0 and name not in COSTS_WITHOUT_NEGATIVES:
        assert value.item() == pytest.approx(0, abs=1e-12)
        assert all(gradient.abs().max() < 1e-12 for gradient in found)


# HNR is 0 where student and teachers choose the same item, though its scores are NaN
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "HardNegativeRectificationLoss"])
def test_a_nan_score_is_never_hidden(name):
    loss, tensors = LOSSES[name]().double(), leaves(name)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor[0, :2] = torch.nan  # a true pair, and a wrong one
    assert loss(record(loss, tensors)).isnan()


def test_a_weighted_sum_is_called_as_its_losses_are():
    objective = WeightedSum(
        terms={"a": (2.0, losses.SumTripletLoss()), "b": (0.5, losses.AdaptiveQuintuplet())}
    )
    tensors = leaves("SumTripletLoss")
    both = objective(tensors["scores"], **arguments(tensors, 1))
    for name, value in objective(record(losses.SumTripletLoss(), tensors)).items():
        assert torch.equal(both[name], value)


def test_defaults_are_the_diagonal_and_one_pair_for_each_anchor():
    scores, mined = torch.rand(3, 3), torch.rand(3)
    roles = {"hard_text": mined, "hard_image": mined}
    short = losses.OfflineTriplet()(scores, **roles)
    columns = {name: tensor.unsqueeze(1) for name, tensor in roles.items()}
    assert torch.equal(short, losses.OfflineTriplet()(scores, torch.eye(3).bool(), **columns))


def test_half_precision_is_judged_in_float32():
    scores = torch.rand(3, 3).bfloat16().requires_grad_()
    loss = losses.InfoNCELoss()(scores)
    loss.backward()
    assert loss.dtype == torch.float32
    assert scores.grad is not None
    assert scores.grad.dtype == torch.bfloat16


def test_a_text_of_two_images_is_two_anchor_pairs():
    positives = torch.tensor([[True, False], [True, True]])
    mined = torch.rand(3)
    roles = {"hard_text": mined, "hard_image": mined, "cross": mined, "companion": mined}
    assert losses.AdaptiveQuintuplet()(torch.rand(2, 2), positives, **roles).isfinite()
    with pytest.raises(ValueError, match="every text of the batch needs one image"):
        losses.OnlineQuintuplet()(torch.rand(2, 2), positives, hard_text=mined, hard_image=mined)


def test_hooks_see_the_record():
    loss, seen = losses.SumTripletLoss(), []
    loss.register_forward_hook(lambda _, given, value: seen.append((given, value)))
    value = loss(torch.rand(2, 2))
    ((given, output),) = seen
    assert isinstance(given[0], Scores)
    assert output is value


SQUARE, MINED = torch.rand(3, 3), torch.rand(3)


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        (losses.SumTripletLoss(), (torch.rand(2, 3),), r"\(2, 3\) are not square: give positives="),
        (
            losses.SumTripletLoss(),
            (torch.rand(3),),
            r"shape \(3,\) .* use an \(I, T\) float tensor",
        ),
        (losses.SumTripletLoss(), (torch.eye(3).long(),), r"torch.int64 .* float tensor"),
        (losses.SumTripletLoss(), (SQUARE, torch.eye(3)), "torch.float32 .* a bool tensor"),
        (losses.SumTripletLoss(), (SQUARE, torch.eye(2).bool()), r"\(2, 2\) .* for scores of"),
        (losses.SumTripletLoss(), (SQUARE, torch.zeros(3, 3).bool()), "holds no true pair"),
        (losses.OfflineTriplet(), (SQUARE,), "needs hard_text=, hard_image= each a"),
        (
            losses.OfflineTriplet(),
            (SQUARE, None, MINED[:2]),
            r"hard_text of shape \(2,\) .* 3 anch",
        ),
        (losses.MarginRankingLoss(role="written"), (SQUARE,), "needs generated= each"),
    ],
)
def test_wrong_tensors_are_refused_in_words(loss, arguments, message):
    scores, positives, hard_text = (*arguments, None, None)[:3]
    with pytest.raises(ValueError, match=message):
        loss(scores, positives, hard_text=hard_text)


def test_more_refusals():
    mined = {"hard_text": MINED, "hard_image": MINED}
    with pytest.raises(ValueError, match="hard_text_guide=, hard_image_guide= each"):
        losses.MarginDistillationLoss(offline=True)(SQUARE, guide=SQUARE, **mined)
    with pytest.raises(TypeError, match="a tensor or a Scores record, not ndarray"):
        losses.SumTripletLoss()(np.eye(3))
    matrix = ScoreMatrix(SQUARE, torch.eye(3).bool(), SQUARE.diagonal())
    with pytest.raises(TypeError, match="call the loss with it alone"):
        losses.SumTripletLoss()(Scores({"inference": matrix}), guide=SQUARE)


@pytest.mark.papers
def test_refusals_of_compared_losses():
    more = [
        (losses.LSEHLoss, {}, {}, r"LSEHLoss needs guide= an \(I, T\) tensor"),
        (losses.LSEHLoss, {}, {"guide": torch.rand(2, 3)}, r"guide of shape \(2, 3\)"),
        (losses.WordLoss, {"task": "doubt"}, {}, r"words={'doubt': \(logits, labels\)}"),
        (losses.SelfExpandingLoss, {}, {"repeats": 2}, "cannot hold 2 copies"),
    ]
    for make, options, given, message in more:
        with pytest.raises(ValueError, match=message):
            make(**options)(SQUARE, **given)
    matrix = ScoreMatrix(SQUARE, torch.eye(3).bool(), SQUARE.diagonal())
    with pytest.raises(ValueError, match=r"reads the score matrix 'expanded', .* 'inference'"):
        losses.SelfExpandingLoss()(Scores({"inference": matrix}))
    several = {"a": (1.0, losses.SumTripletLoss()), "b": (1.0, losses.SelfExpandingLoss())}
    with pytest.raises(ValueError, match="several score matrices, expanded, inference"):
        WeightedSum(terms=several)(SQUARE)


PLAIN, OTHER_GRID = losses.SumTripletLoss(), losses.SumTripletLoss(view="copies")
REFUSED_OF_PAPERS: list[Any] = []
if PAPERS:
    REFUSED_OF_PAPERS += [
        (losses.DistanceWeightedTripletLoss, {"furthest": 2.5}, "from 0.5 to 2.5 are not possible"),
        (losses.DistanceWeightedTripletLoss, {"furthest": 0.4}, "from 0.5 to 0.4 are not possible"),
        (losses.DistanceWeightedTripletLoss, {"dimensions": 2}, "2 dimensions is too small"),
        (losses.LSEHLoss, {"against": "worst"}, "'worst' is not a value of 'against'"),
        (losses.LSEHLoss, {"same_image": "kept"}, "'kept' is not a value of 'same_image'"),
        (losses.SelfExpandingLoss, {"against": "hardst"}, "did you mean 'hardest'"),
        (losses.WordLoss, {"task": "doubt", "weights": (1.0, -0.1)}, "may not be below 0"),
    ]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (losses.AdaptiveQuintuplet, {"alpha": 0.0}, r"alpha of 0\.0"),
        (losses.AdaptiveQuintuplet, {"reference": "positiv"}, "is not a reference.*'positive'"),
        (
            losses.HardNegativeRectificationLoss,
            {"candidates": "queue"},
            "'queue' is not where candidates come from",
        ),
        (losses.InfoNCELoss, {"temperature": 0.0}, r"temperature of 0\.0"),
        (losses.InfoNCELoss, {"temperature": -1.0}, r"temperature of -1\.0"),
        (losses.InfoNCELoss, {"temperature": 0.005}, r"temperature of 0\.005"),
        (losses.InfoNCELoss, {"hardness": -1.0}, r"hardness of -1\.0 was given; give 0 for none"),
        (losses.InfoNCELoss, {"hardness": float("inf")}, "hardness of inf"),
        (
            losses.MarginRankingLoss,
            {"role": "written", "margin": 0.0, "adaptive": True},
            r"adaptive with margin=0\.0",
        ),
        (losses.LinearRamp, {"term": PLAIN, "steps": 0}, "use 1 step or more"),
        (losses.LinearRamp, {"term": PLAIN, "steps": 3, "start": -1}, "use 1 step or more"),
        (
            losses.MarginDistillationLoss,
            {"form": "softmax"},
            "'softmax' is not a form; did you mean",
        ),
        (losses.MarginDistillationLoss, {"operand": "margins"}, "'margins' is not an operand"),
        (losses.MarginDistillationLoss, {"emphasis": "soft"}, "'soft' is not an emphasis"),
        (losses.MarginDistillationLoss, {"direction": "all"}, "'all' is not a direction"),
        (losses.MarginDistillationLoss, {"teacher_tau": 0.0}, r"teacher_tau=0\.0 cannot be"),
        (losses.MarginDistillationLoss, {"over": "max"}, "'max' is not a reduction over negatives"),
        (losses.MarginDistillationLoss, {"tau": 0.0}, r"tau=0\.0 cannot be a temperature"),
        (losses.MarginRankingLoss, {"role": "writen"}, "did you mean 'written'"),
        (losses.InfoNCEWithCandidatesLoss, {"temperature": 0.0}, "must be positive"),
        (losses.InfoNCEWithCandidatesLoss, {"texts": ("writen",)}, "did you mean 'written'"),
        (losses.InfoNCEWithCandidatesLoss, {"texts": (), "images": ()}, "no role joins the block"),
        (losses.SigmoidLoss, {"scale": 0.0}, r"scale of 0\.0"),
        (losses.TripletCLIPLoss, {"temperature": 0.0}, "must be positive"),
        (losses.StartAt, {"term": PLAIN, "steps": -1}, "a start at step -1"),
        (losses.SumTripletLoss, {"reduction": "average"}, "'average' is not known; use 'sum' or"),
        (losses.SwitchAfter, {"first": PLAIN, "second": PLAIN, "steps": -1}, "-1 steps"),
        (
            losses.SwitchAfter,
            {"first": PLAIN, "second": OTHER_GRID, "steps": 1},
            "'inference' and the other 'copies'",
        ),
        (losses.UTOLoss, {"sharpness": 0.0}, r"sharpness=0\.0 is not possible"),
        (losses.WeightedSum, {"terms": {}}, "at least one term"),
        (losses.WeightedSum, {"terms": {"a.b": (1.0, PLAIN)}}, "'a.b' cannot name a term"),
        (losses.WeightedSum, {"terms": {"a": (np.nan, PLAIN)}}, "weight of term 'a' is nan"),
        *REFUSED_OF_PAPERS,
    ],
)
def test_what_cannot_be_built(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_schedule_needs_nothing_for_a_loss_that_does_not_count():
    loss = losses.SwitchAfter(
        first=losses.SumTripletLoss(), second=losses.OfflineTriplet(), steps=1
    )
    assert loss(SQUARE, step=0).isfinite()
    with pytest.raises(ValueError, match="OfflineTriplet needs hard_text="):
        loss(SQUARE, step=1)


def test_every_role_has_a_keyword():
    assert set(KEYWORDS) == set(Role)
    assert set(KEYWORDS.values()) <= set(PairScores.__annotations__)
    with pytest.raises(TypeError, match="did you mean 'hard_text'"):
        losses.SumTripletLoss()(SQUARE, hard_txt=SQUARE)  # type: ignore[call-arg]
