"""Base of all losses: functions of scores, called with plain tensors or a `Scores` record.

>>> from counterfoil.losses import HardestTripletLoss
>>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])  # (I, T); the diagonal holds the true pairs
>>> round(HardestTripletLoss(margin=0.2)(scores).item(), 3)
0.4
>>> loss = WeightedSum(terms={"triplet": (0.5, HardestTripletLoss(margin=0.2))})
>>> {name: round(value.item(), 3) for name, value in loss(scores).items()}
{'triplet': 0.2}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from inspect import isfunction, signature
from operator import or_
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    final,
    runtime_checkable,
)

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config, config, unknown_name
from counterfoil.core.types import (
    INFERENCE,
    ExtraPositives,
    Needs,
    Role,
    ScoreMatrix,
    Scores,
    VectorScores,
    WordTask,
)

__all__ = ["Loss", "WeightedSum", "weighted_sum"]

Reduction = Literal["sum", "mean"]
Output = TypeVar("Output")
# a function or module of (scores, positives[, mask]), see `counterfoil.losses.own`
LossFunction: TypeAlias = Callable[..., Tensor]

# keywords of a call with plain tensors: "hard text" is hard_text=, "written" is generated=
KEYWORDS = {role: role.value.replace(" ", "_").replace("written", "generated") for role in Role}


class PairScores(TypedDict, total=False):
    """Keyword arguments of a loss: scores of further pairs, in rows aligned with the anchor pairs.

    (B,) for one pair each or (B, N) for N; -inf for a pair that is not to count.

    Attributes:
        hard_text: the anchor images with mined texts.
        hard_image: mined images with the anchor texts.
        cross: the mined images with the mined texts.
        companion: the mined texts' own images with captions of the mined images.
        generated: the anchor images with generated captions; the role "written".
        generated_image: pictures of generated captions with the anchor texts.
        generated_pair: (B, B) the picture of the anchor's generated caption with generated
            captions, its own on the diagonal.
        edited: (B, 2) the anchor image with an edited text, and an edited image with the anchor
            text.
        masked_positive: (B, 2) likewise, of positives without their most important words or
            regions.
        masked_negative: (B, 2) likewise, of the hardest negatives.
        queue_text: the anchor images with texts of earlier batches.
        queue_image: images of earlier batches with the anchor texts.
        key_text: (B, 1) the anchor images with their own texts as a momentum encoder sees them.
        key_image: (B, 1) the same of the anchor texts.
        hard_text_guide: as `guide`, for the pairs of `hard_text`.
        hard_image_guide: as `guide`, for the pairs of `hard_image`.
    """

    hard_text: Tensor | None
    hard_image: Tensor | None
    cross: Tensor | None
    companion: Tensor | None
    generated: Tensor | None
    generated_image: Tensor | None
    generated_pair: Tensor | None
    edited: Tensor | None
    masked_positive: Tensor | None
    masked_negative: Tensor | None
    queue_text: Tensor | None
    queue_image: Tensor | None
    key_text: Tensor | None
    key_image: Tensor | None
    hard_text_guide: Tensor | None
    hard_image_guide: Tensor | None


class ScoresModule(nn.Module, ABC, Generic[Output]):
    """A module whose `forward` takes a `Scores` record, and whose call takes plain tensors too."""

    def __call__(
        self,
        scores: Tensor | Scores,
        positives: Tensor | None = None,
        *,
        extra_positives: Tensor | None = None,
        guide: Tensor | None = None,
        words: Mapping[str, WordTask | tuple[Tensor, ...]] | None = None,
        scale: float = 1.0,
        repeats: int = 1,
        step: int = 0,
        seed: int = 0,
        **pairs: Unpack[PairScores],
    ) -> Output:
        """Compute the loss of a batch.

        The B anchor pairs of a batch are its true pairs, text after text: with square scores and
        the default `positives`, pair b is image b with text b. Half-precision scores are
        converted to float32.

        Args:
            scores: (I, T) float scores of images and texts, higher is better, -inf for a wrong
                pair that is not to count as a negative; or a `Scores` record, which holds
                everything and comes alone.
            positives: (I, T) bool, True where the text describes the image. Default: the diagonal
                of square scores.
            extra_positives: (I, T) float weights of further true pairs, at most 1, 0 for none:
                `InfoNCELoss` and `SigmoidLoss` learn from them, and no loss takes them for
                negatives.
            guide: (I, T) how similar the pairs ought to be, in units of `scores`; -inf for a pair
                that is neither true nor a negative.
            words: word tasks by name: a `WordTask`, or a tuple of its tensors (logits, labels) or
                (logits, labels, anchor).
            scale: the score of two equal items: 1 where scores are cosines.
            repeats: copies of each item in `scores`, side by side, as `SelfExpandingLoss` needs
                them.
            step: batches before this one, for losses with a schedule.
            seed: of random choices; give another one at each step.
            **pairs: scores of mined, generated and other pairs, see `PairScores`.

        Raises:
            ValueError: a tensor that the loss needs is missing, or one has the wrong shape or type.
            TypeError: other arguments beside a record, an unknown one, or scores that are no
                tensor.
        """
        if unknown := pairs.keys() - PairScores.__annotations__:
            known = [*PairScores.__annotations__]
            raise TypeError(unknown_name(min(unknown), known, "an argument of a loss"))
        tensors = {name: cast("Tensor", pair) for name, pair in pairs.items() if pair is not None}
        if isinstance(scores, Scores):
            if tensors or any(x is not None for x in (positives, extra_positives, guide, words)):
                raise TypeError("a Scores record holds everything; call the loss with it alone")
            record = scores
        else:
            matrix = _score_matrix(scores, positives, guide, scale, self._matrix_name(), repeats)
            if extra_positives is not None:
                matrix = _with_extra(matrix, extra_positives)
            record = _in_full_precision(
                Scores(
                    matrices={matrix.name: matrix},
                    pairs=_aligned(tensors, matrix),
                    words={
                        name: task if isinstance(task, WordTask) else WordTask(*task)
                        for name, task in (words or {}).items()
                    },
                    step=step,
                    guides=_aligned(tensors, matrix, "_guide"),
                    seed=seed,
                )
            )
        self._check(record)
        output: Output = super().__call__(record)  # nn.Module's: hooks, then `forward`
        return output

    @abstractmethod
    def _matrix_name(self) -> str:
        """Name in the record of scores given as a tensor."""

    def _check(self, scores: Scores) -> None:
        """Raise ValueError where the record lacks something."""


class Loss(ScoresModule[Tensor], ABC):
    """Base of losses: a scalar of the scores of a batch, to be minimised.

    A function or module of the score matrix is a loss as it is, see `as_loss`. One that needs more
    is a subclass with a `forward`; class attributes say what, see `examples/loss_of_mined.py`.
    Every loss is called alike, see `ScoresModule.__call__`.

    Args:
        reduction: "sum" over the anchor pairs of the batch, as VSE++ and its successors do, or
            their "mean".

    Attributes:
        needs: pairs, word tasks and targets that it reads beside the score matrix.
        view: name of the score matrix that it reads, one of the model's views of the batch.
        begins: first step at which it counts; until then its score matrix is not computed.
        uses_extra: whether it learns from extra positives; the trainer puts them into batches
            together, where other losses get them apart.

    Raises:
        ValueError: another reduction.
    """

    needs: Needs = Needs()
    view: str = INFERENCE
    begins: int = 0
    uses_extra: bool = False
    pure: bool = True  # a call leaves it as it is

    @property
    def title(self) -> str:
        """Its name in messages and records."""
        return type(self).__name__

    @property
    def unresumable(self) -> str:
        """Why a training with it cannot be resumed; "" where it can."""
        return ""

    def extra_repr(self) -> str:
        """Settings, as torch prints them."""
        return ", ".join(f"{key}={value!r}" for key, value in plain_settings(self).items())

    def describe(self) -> dict[str, object]:
        """What its value depends on besides scores, parameters and its class, JSON-ready."""
        return plain_settings(self)

    def __init__(self, *, reduction: Reduction = "sum") -> None:
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction {reduction!r} is not known; use 'sum' or 'mean'")
        self.reduction = reduction

    @abstractmethod
    def forward(self, scores: Scores) -> Tensor:
        """Return the scalar loss of a record."""

    def matrix(self, scores: Scores) -> ScoreMatrix:
        """Return the score matrix that this loss reads."""
        return scores.matrices[self.view]

    def reduce(self, total: Tensor, matrix: ScoreMatrix) -> Tensor:
        """Divide a sum over the batch by its number of anchor pairs where the mean is wanted."""
        return total / len(matrix.anchor) if self.reduction == "mean" else total

    def _matrix_name(self) -> str:
        return self.view

    def _check(self, scores: Scores) -> None:
        name = self.title
        if self.needs.vectors and scores.vectors is None:
            raise ValueError(
                f"{name} reads embeddings, and scores alone were given; use it in a Trainer, with "
                "a model of one vector an item"
            )
        if self.view not in scores.matrices:
            raise ValueError(
                f"{name} reads the score matrix {self.view!r}, and the record has "
                f"{', '.join(map(repr, scores.matrices)) or 'none'}"
            )
        missing = [
            f"{word}=" for r, word in KEYWORDS.items() if r in self.needs.roles - {*scores.pairs}
        ]
        guided = self.needs.pair_targets - {*scores.guides}
        missing += [f"{word}_guide=" for role, word in KEYWORDS.items() if role in guided]
        if missing:
            raise ValueError(
                f"{name} needs {', '.join(missing)} each a (B,) or (B, N) tensor, in rows aligned "
                "with the B anchor pairs"
            )
        if self.needs.targets and self.matrix(scores).guide is None:
            raise ValueError(
                f"{name} needs guide= an (I, T) tensor: how similar images and texts ought to be"
            )
        if tasks := sorted(self.needs.words - {*scores.words}):
            raise ValueError(
                f"{name} needs the word tasks {', '.join(tasks)}: give "
                f"words={{{tasks[0]!r}: (logits, labels)}}"
            )


@runtime_checkable
class TiledLoss(Protocol):
    """A loss that can be computed from vectors, without their score matrix."""

    def tiled(self, vectors: VectorScores) -> Tensor:
        """Return the loss that `Loss.forward` gives for the inner products."""
        ...


@final
class WeightedSum(ScoresModule[dict[str, Tensor]]):
    """A named, weighted sum of losses; called as each of them is. It needs what any of them needs.

    Args:
        terms: weight and loss, by name; a loss is one of ours, or any function or module as in
            `as_loss`.

    Raises:
        TypeError: a term has no weight, or no loss.
        ValueError: no losses, a name that is no identifier, or a weight that is not finite.
    """

    def __init__(self, *, terms: Mapping[str, tuple[float, Loss | LossFunction]]) -> None:
        super().__init__()
        if not terms:
            raise ValueError("an objective needs at least one term")
        for name, term in terms.items():
            if not (isinstance(term, tuple) and len(term) == 2):
                raise TypeError(
                    f"the term {name!r} is {term!r:.60}; give its weight and the loss, as in "
                    f"{{{name!r}: (1.0, HardestTripletLoss())}}"
                )
            weight, _ = term
            if not name.isidentifier():
                raise ValueError(f"{name!r} cannot name a term; use letters, digits and _")
            if not math.isfinite(weight):
                raise ValueError(f"the weight of term {name!r} is {weight}; use a finite number")
        losses = [as_loss(loss) for _, loss in terms.values()]
        self.terms = nn.ModuleDict(dict(zip(terms, losses, strict=True)))
        self.weights = {name: float(weight) for name, (weight, _) in terms.items()}
        self.views = frozenset(loss.view for loss in losses)
        needs = reduce(or_, (loss.needs for loss in losses))
        # of the score matrix for inference
        block = any(loss.needs.block and loss.view == INFERENCE for loss in losses)
        self.needs = replace(needs, block=block)
        self.uses_extra = any(loss.uses_extra for loss in losses)

    def views_at(self, step: int) -> frozenset[str]:
        """Return the names of the score matrices that are read at a step."""
        terms = (cast("Loss", term) for term in self.terms.values())
        return frozenset(term.view for term in terms if step >= term.begins)

    def forward(self, scores: Scores) -> dict[str, Tensor]:
        """Return weighted losses by name; their sum is what is minimised.

        Scores in half precision are converted to float32: a sum over a batch needs it.
        """
        scores = _in_full_precision(scores)
        return {name: weight * self._loss(name, scores) for name, weight in self.weights.items()}

    def tiled(self, vectors: VectorScores) -> dict[str, Tensor]:
        """Return weighted losses by name, of terms that are all `TiledLoss`."""
        return {
            name: weight * cast("TiledLoss", self.terms[name]).tiled(vectors)
            for name, weight in self.weights.items()
        }

    def _loss(self, name: str, scores: Scores) -> Tensor:
        term = cast("Loss", self.terms[name])
        return zero_loss(scores) if scores.step < term.begins else term(scores)

    def _matrix_name(self) -> str:
        if len(names := sorted(self.views)) > 1:
            raise ValueError(
                f"the losses of this sum read several score matrices, {', '.join(names)}; call "
                "it with a Scores record that holds each under its name"
            )
        return names[0]


def weighted_sum(
    **terms: Loss | LossFunction | tuple[float, Loss | LossFunction],
) -> Config[WeightedSum]:
    """Configure a weighted sum: `weighted_sum(a=lazy(HardestTripletLoss), b=(0.1, lazy(...)))`.

    The weight of a loss without one is 1. A function of scores is given as it is, or with settings
    as ``lazy(my_loss, temperature=0.1)``.

    Raises:
        TypeError: a function cannot be called as a loss, or a class or module has no ``lazy``.
        ValueError: a function has no name or no source.
    """
    weighted = {k: v if isinstance(v, tuple) else (1.0, v) for k, v in terms.items()}
    recorded = {k: (weight, _recorded(loss)) for k, (weight, loss) in weighted.items()}
    return config(WeightedSum, terms=recorded)


def _recorded(loss: Any) -> Any:
    """The recorded call of a term."""
    make, settings = (loss.make, loss.arguments) if isinstance(loss, Config) else (loss, {})
    if isfunction(make):
        own = make is loss or _takes_scores(make, settings)
    else:  # else the call makes one of ours, or a user's subclass
        own = isinstance(loss, Config) and isinstance(make, type) and not issubclass(make, Loss)
    if own:
        from counterfoil.losses.own import recorded_loss

        return recorded_loss(make, settings)
    if isinstance(loss, Config | Loss):
        return loss
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, type | nn.Module):
        raise TypeError(f"a recipe records the call of {name}; write lazy({name}, …)")
    raise TypeError(
        f"{loss!r:.80} is no loss of a recipe; write lazy(HardestTripletLoss), or a function "
        "def my_loss(scores, positives): …"
    )


def _takes_scores(function: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    """Return True for a function that lacks two arguments; else it makes a loss."""
    given = list(signature(function).parameters.values())[:2]
    return len(given) == 2 and all(
        p.default is p.empty and p.name not in settings and p.kind is not p.KEYWORD_ONLY
        for p in given
    )


def as_loss(loss: object) -> Loss:
    """The loss itself; that of a function or a module of scores, see `losses.own.OwnLoss`.

    Raises:
        TypeError: it is a class, a recorded call, a sum, or nothing that can be called.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, Config):
        raise TypeError(
            f"{loss!r:.80} is a recorded call, which recipes take; give the loss itself, as in "
            'cf.WeightedSum(terms={"triplet": (1.0, cf.losses.HardestTripletLoss())})'
        )
    if isinstance(loss, type):
        raise TypeError(f"{loss.__name__} is a class; write {loss.__name__}() for the loss")
    if isinstance(loss, WeightedSum):
        raise TypeError("a term of a weighted sum is a weighted sum; give its terms themselves")
    if callable(loss):
        from counterfoil.losses.own import OwnLoss

        return OwnLoss(loss)
    raise TypeError(
        f"{loss!r:.80} is no loss; give one of cf.losses, a function or module (scores, positives) "
        'that returns a scalar, or cf.WeightedSum(terms={"a": (1.0, loss), …})'
    )


def plain_settings(module: object) -> dict[str, object]:
    """Attributes that are numbers or text, by name; the settings of a loss are among them."""
    own = vars(module) if hasattr(module, "__dict__") else {}
    return {
        key: value
        for key, value in sorted(own.items())
        if not key.startswith("_") and key != "training" and isinstance(value, int | float | str)
    }


def zero_loss(scores: Scores) -> Tensor:
    """Return a scalar zero on the device and in the dtype of the scores."""
    return next(iter(scores.matrices.values())).scores.new_zeros(())


def step_generator(scores: Scores, purpose: str) -> torch.Generator:
    """Return a generator for the random choices of a loss at this step.

    It depends on the record's seed and on `purpose` alone, so every process makes the same choices.
    """
    name = f"{scores.seed}/{purpose}".encode()
    return torch.Generator().manual_seed(int.from_bytes(sha256(name).digest()[:7], "big"))


# Plain tensors as a record.


def _score_matrix(
    scores: Tensor,
    positives: Tensor | None,
    guide: Tensor | None,
    scale: float,
    name: str,
    repeats: int,
) -> ScoreMatrix:
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores are a tensor or a Scores record, not {type(scores).__name__}")
    shape = tuple(scores.shape)
    if len(shape) != 2 or not scores.is_floating_point():
        raise ValueError(
            f"scores of shape {shape} and type {scores.dtype} were given; use an (I, T) float "
            "tensor, one row for each image and one column for each text"
        )
    if repeats < 1 or any(size % repeats for size in shape):
        raise ValueError(f"scores of shape {shape} cannot hold {repeats} copies of every item")
    items = [size // repeats for size in shape]
    if positives is None:
        if items[0] != items[1]:
            raise ValueError(
                f"scores of shape {shape} are not square: give positives= a bool tensor of that "
                "shape, True where the text describes the image"
            )
        eye = torch.eye(items[0], dtype=torch.bool, device=scores.device)
        positives = eye.repeat_interleave(repeats, 0).repeat_interleave(repeats, 1)
    if positives.shape != scores.shape or positives.dtype != torch.bool:
        raise ValueError(
            f"positives of shape {tuple(positives.shape)} and type {positives.dtype} were given "
            f"for scores of shape {shape}; use a bool tensor of that shape"
        )
    if not positives.any():
        raise ValueError("positives holds no true pair; a batch needs one at least")
    if guide is not None and tuple(guide.shape) not in (shape, tuple(items)):
        raise ValueError(
            f"guide of shape {tuple(guide.shape)} was given for scores of shape {shape}; use the "
            "same shape"
        )
    # (I, r, T, r): the score of an anchor pair is the lowest of those of its r x r copies
    copies = scores.reshape(items[0], repeats, items[1], repeats)
    text, image = positives[::repeats, ::repeats].T.nonzero(as_tuple=True)
    anchor = copies[image, :, text].flatten(1).amin(1)
    return ScoreMatrix(scores, positives, anchor, guide, scale, name, repeats)


def _with_extra(matrix: ScoreMatrix, weights: Tensor) -> ScoreMatrix:
    """The matrix with extra positives, which are at -inf in it."""
    if weights.shape != matrix.scores.shape or not weights.is_floating_point():
        raise ValueError(
            f"extra_positives of shape {tuple(weights.shape)} and type {weights.dtype} were given "
            f"for scores of shape {tuple(matrix.scores.shape)}; use a float tensor of that shape"
        )
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise ValueError("extra_positives holds weights below 0 or above 1; use 0 for no positive")
    if matrix.repeats > 1:
        raise ValueError(f"extra_positives with repeats={matrix.repeats} is not supported")
    extra = (weights > 0) & ~matrix.positive
    text, image = extra.T.nonzero(as_tuple=True)
    positives = ExtraPositives(image, text, matrix.scores[image, text], weights[image, text])
    return replace(matrix, scores=matrix.scores.masked_fill(extra, -torch.inf), extra=positives)


def _aligned(
    tensors: Mapping[str, Tensor], matrix: ScoreMatrix, suffix: str = ""
) -> dict[Role, Tensor]:
    """Return the tensors whose name ends in `suffix`, by role and as (B, N)."""
    count, aligned = len(matrix.anchor), {}
    for role, keyword in KEYWORDS.items():
        name = f"{keyword}{suffix}"
        if name not in tensors:
            continue
        tensor = tensors[name]
        if tensor.ndim not in (1, 2) or len(tensor) != count:
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} was given for {count} "
                f"anchor pairs; use ({count},) or ({count}, N), one row for each true pair, text "
                "after text"
            )
        aligned[role] = tensor if tensor.ndim == 2 else tensor.unsqueeze(1)
    return aligned


def _in_full_precision(scores: Scores) -> Scores:
    def widened(g: ScoreMatrix) -> ScoreMatrix:
        guide = None if g.guide is None else full_precision(g.guide)
        extra = g.extra and replace(g.extra, score=full_precision(g.extra.score))
        scores, anchor = full_precision(g.scores), full_precision(g.anchor)
        return replace(g, scores=scores, anchor=anchor, guide=guide, extra=extra)

    return replace(
        scores,
        matrices={name: widened(g) for name, g in scores.matrices.items()},
        pairs={role: full_precision(pair) for role, pair in scores.pairs.items()},
        guides={role: full_precision(guide) for role, guide in scores.guides.items()},
        words={n: replace(w, logits=full_precision(w.logits)) for n, w in scores.words.items()},
    )


def full_precision(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor


# True and wrong pairs of a score matrix. The mask says which is which, never the place: an image
# may have any number of texts, and another caption of the same image is no negative.


@final
class PositiveScores(NamedTuple):
    """The P true pairs of a score matrix, text after text: (P,) rows, columns and scores.

    Where every text has one image, as in a batch of captions, these are the anchor pairs in order.
    """

    image: Tensor
    text: Tensor
    score: Tensor


@final
class HardestNegatives(NamedTuple):
    """(P,) highest score of a wrong text and of a wrong image; -inf where there is none."""

    text: Tensor
    image: Tensor


def hinge(negative: Tensor, positive: Tensor, margin: float | Tensor) -> Tensor:
    """Return max(0, margin + negative - positive); 0 for a negative of -inf."""
    return (margin + negative - positive).clamp(min=0)


def positive_scores(matrix: ScoreMatrix) -> PositiveScores:
    """Return the true pairs of a score matrix."""
    # nonzero runs row by row, and rows of the transposed mask are texts
    text, image = matrix.positive.T.nonzero(as_tuple=True)
    return PositiveScores(image, text, matrix.scores[image, text])


def weighted_positive_scores(matrix: ScoreMatrix) -> tuple[PositiveScores, Tensor]:
    """Return the true pairs of a score matrix, then its extra positives, and (P,) their weights."""
    true, extra = positive_scores(matrix), matrix.extra
    weight = torch.ones_like(true.score)
    if extra is None:
        return true, weight
    return PositiveScores(
        torch.cat([true.image, extra.image]),
        torch.cat([true.text, extra.text]),
        torch.cat([true.score, extra.score]),
    ), torch.cat([weight, extra.weight.to(weight)])


def negative_scores(matrix: ScoreMatrix) -> Tensor:
    """Return (I, T) scores, -inf where the pair is true."""
    return matrix.scores.masked_fill(matrix.positive, -torch.inf)


def hardest_negatives(matrix: ScoreMatrix, true: PositiveScores) -> HardestNegatives:
    """Return the hardest negatives in the batch of each true pair.

    `amax`, unlike `max`, shares the gradient among equal scores.
    """
    wrong = negative_scores(matrix)
    return HardestNegatives(wrong.amax(1)[true.image], wrong.amax(0)[true.text])
