"""One step of pre-training: read pairs with something hidden, say what it was, judge."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from counterfoil import world
from counterfoil.matcher import EmbedsWords, Matcher
from counterfoil.objectives.region_tasks import classification, divergence, regression
from counterfoil.objectives.transport import alignment, transport
from counterfoil.records import Encoded, Items
from counterfoil.train.guidance import Watch
from counterfoil.train.learner import Learner
from counterfoil.train.plan import Precision
from counterfoil.train.pretrain_batches import SIGHTED, TaskBatch, Tasks


class JointStates(Protocol):
    """P texts and images that have read each other."""

    @property
    def texts(self) -> Encoded:
        """(P, L, D) last hidden states."""
        ...

    @property
    def images(self) -> Encoded:
        """(P, R, D) last hidden states."""
        ...

    @property
    def pooled(self) -> Tensor:
        """(P, D) what each pair is as a whole."""
        ...


@runtime_checkable
class PreTrains(Protocol):
    """A matcher that says which words were hidden from it, as UNITER and ViLT do."""

    def encode_images(self, images: Items) -> Encoded:
        """N images."""
        ...

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts."""
        ...

    def joint(self, images: Encoded | None, texts: Encoded | None) -> JointStates:
        """The last hidden states of P images with P texts."""
        ...

    def matched(self, pooled: Tensor) -> Tensor:
        """(P, 2) logits that text and image do not belong together, and that they do."""
        ...

    def filled(self, states: Tensor) -> Tensor:
        """(M, V) logits of the hidden word of each state."""
        ...


@runtime_checkable
class SeesRegions(PreTrains, Protocol):
    """One that also says what hidden regions were, as UNITER does."""

    def embed_images(self, images: Items, veiled: Tensor | None = None) -> Encoded:
        """N images, the features of some regions (N, R) hidden."""
        ...

    def regressed(self, states: Tensor) -> Tensor:
        """(M, F) features of the hidden region of each state."""
        ...

    def classified(self, states: Tensor) -> Tensor:
        """(M, C) logits of the class of the hidden region of each state."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Said:
    """What a model says of its share of a batch, and what is true.

    Attributes:
        answers: (M, ...) rows of logits or features.
        truth: (M,) long, or (M, ...) features or probabilities.
        distance: (M,) cost of moving words onto regions, for "itm".
    """

    answers: Tensor
    truth: Tensor
    distance: Tensor | None = None


def asked(model: PreTrains, batch: TaskBatch, *, moved: bool = False) -> Said:
    """What a model says of its share of a batch.

    Args:
        model: the model.
        batch: pairs with something hidden.
        moved: whether the cost of moving words onto regions is wanted with "itm".
    """
    if batch.task in SIGHTED:
        assert isinstance(model, SeesRegions)
        return _of_regions(model, batch)
    joint = model.joint(model.encode_images(batch.images), model.encode_texts(batch.texts))
    if batch.task == "mlm":
        states = joint.texts.tokens[batch.slots.pair, batch.slots.place]
        return Said(model.filled(states), batch.labels)
    real, said = batch.real, model.matched(joint.pooled)
    distance = _distance(joint)[real] if moved else None
    return Said(said[real], batch.matching[real].long(), distance)


def _of_regions(model: SeesRegions, batch: TaskBatch) -> Said:
    images = model.embed_images(batch.images, batch.veiled)
    joint = model.joint(images, model.encode_texts(batch.texts))
    states = joint.images.tokens[batch.veiled]
    if batch.task == "mrfr":
        return Said(model.regressed(states), batch.images.values[batch.veiled])
    assert batch.classes is not None
    return Said(model.classified(states), batch.classes[batch.veiled])


@final
class Pretraining(Learner[TaskBatch]):
    """From pairs with something hidden to named losses.

    Each process reads its share of the pairs; a loss is the mean over what is hidden in all of
    them, so that gradients are those of one process with the whole batch.

    Args:
        matcher: the model in training.
        tasks: what it is asked.
        precision: "bf16" reads under autocast; losses are float32 in any case.

    Raises:
        ValueError: the model cannot be pre-trained.
    """

    def __init__(self, matcher: Matcher, tasks: Tasks, *, precision: Precision = "fp32") -> None:
        super().__init__()
        can_pretrain(matcher, tasks)
        self.matcher, self.tasks, self.precision = matcher, tasks, precision
        self.watch = Watch()

    def forward(self, batch: TaskBatch) -> dict[str, Tensor]:
        """The loss of the task, and for "itm" that of moving words onto regions ("wra")."""
        assert isinstance(self.matcher, PreTrains)
        with self._cast(batch):
            said = asked(self.matcher, batch, moved=self.tasks.transport > 0)
        answers = said.answers.float()
        if batch.task in ("mlm", "itm"):
            loss = cross_entropy(answers, said.truth, reduction="none")
        else:
            judged = {"mrfr": regression, "mrc": classification, "mrckl": divergence}[batch.task]
            loss = judged(answers, said.truth)
        losses: dict[str, Tensor] = {batch.task: _mean(loss)}
        if said.distance is not None:
            pull = _mean(alignment(said.distance, said.truth == 1))
            losses["wra"] = self.tasks.transport * pull
        return losses

    def level(self, batch: TaskBatch) -> Tensor | None:
        """None: there is no margin that scores could collapse to."""
        return None

    def _cast(self, batch: TaskBatch) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(batch.real.device.type, torch.bfloat16)


def can_pretrain(matcher: Matcher, tasks: Tasks) -> None:
    """Refuse a model without the parts that the tasks ask.

    Raises:
        ValueError: so it is.
    """
    whole: object = matcher
    if not isinstance(matcher, PreTrains):
        raise ValueError(
            f"{type(matcher).__name__} cannot be pre-trained: it does not read words and images "
            "together; use UNITER or ViLT"
        )
    if tasks.sighted and not isinstance(whole, SeesRegions):
        raise ValueError(
            f"{type(matcher).__name__} sees no regions that could be hidden; set mrfr, mrc and "
            "mrckl to 0"
        )


def mask_word(matcher: Matcher) -> int:
    """Id of the token that hides a word from a model.

    Raises:
        ValueError: it has none.
    """
    found = [part.mask_word for part in matcher.modules() if isinstance(part, EmbedsWords)]
    if not found or found[0] is None:
        raise ValueError(
            f"{type(matcher).__name__} has no token that hides a word; read texts with a tokenizer "
            "that has one, such as bert-base-cased"
        )
    return found[0]


def _distance(joint: JointStates) -> Tensor:
    texts, images = joint.texts, joint.images
    return transport(texts.tokens, images.tokens, texts.mask, images.mask)


def _mean(values: Tensor) -> Tensor:
    """Mean of all processes' rows, whose gradient reaches each process's own."""
    count = world.gather(torch.tensor(values.numel(), device=values.device)).sum()
    return world.gather_rows(values.sum().reshape(1)).sum() / count
