"""Settings of a training: epochs, batches, learning rate schedule, optimiser, averaging."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from counterfoil.core.config import parse_choice, parse_literal, unknown_name
from counterfoil.core.types import Precision

# Learning rate schedules: factors that are pure functions of the step, so nothing is saved.


@dataclass(frozen=True, kw_only=True)
class LRSchedule(ABC):
    """A factor of the learning rate that depends on the step alone.

    Attributes:
        warmup: steps in which the rate rises linearly to its full value; below 1 it is a share
            of all steps.
        kind: name of the schedule in JSON.

    Raises:
        ValueError: a negative warm-up.
    """

    warmup: float = 0
    kind: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(
                f"warmup={self.warmup} is negative; give a number of steps, or a share of all "
                "steps below 1"
            )

    def factor(self, step: int, *, per_epoch: int, total: int) -> float:
        """The factor after so many steps, of `per_epoch` in an epoch and `total` in all."""
        rise = self.rise(total)
        if step < rise:
            return min(1.0, (step + 1) / rise)
        done = (step - rise) / max(1.0, total - rise)
        return self.after_warmup(min(done, 1.0), epoch=step // max(per_epoch, 1))

    def rise(self, total: int) -> float:
        """Steps of the warm-up, of `total` in all."""
        return self.warmup * total if self.warmup < 1 else self.warmup

    @abstractmethod
    def after_warmup(self, done: float, *, epoch: int) -> float:
        """The factor once the rate has risen.

        `done` is the share of the steps after warm-up that have been made, from 0 to 1; `epoch`
        counts whole epochs made before, warm-up included.
        """


@final
@dataclass(frozen=True, kw_only=True)
class ConstantLR(LRSchedule):
    """The full rate throughout."""

    kind: str = field(default="constant", init=False)

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class StepDecayLR(LRSchedule):
    """The rate is multiplied after every so many epochs, or at given epochs.

    Attributes:
        every: epochs between two drops; 0 for none.
        at: epochs, counted from 0, that begin with a drop.
        by: the multiplier of a drop.

    Raises:
        ValueError: neither or both of `every` and `at` are given.
    """

    kind: str = field(default="steps", init=False)
    every: int = 0
    at: tuple[int, ...] = ()
    by: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every > 0) == bool(self.at):
            raise ValueError(
                f"every={self.every}, at={self.at}: name either the epochs between two drops of "
                "the learning rate or the epochs at which it drops"
            )

    def after_warmup(self, done: float, *, epoch: int) -> float:
        drops = epoch // self.every if self.every > 0 else sum(epoch >= mark for mark in self.at)
        return float(self.by**drops)


@final
@dataclass(frozen=True, kw_only=True)
class CosineLR(LRSchedule):
    """Half a cosine from the full rate down to its share `end`."""

    kind: str = field(default="cosine", init=False)
    end: float = 0.0

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class LinearLR(LRSchedule):
    """A straight line from the full rate down to its share `end`.

    Attributes:
        end: share of the rate at the end.
        ahead: steps by which the line is ahead once the rate has risen. At 0 the step after the
            last one would have the share `end`; at 1 the last one has it, as in UNITER's code.

    Raises:
        ValueError: a number below 0.
    """

    kind: str = field(default="linear", init=False)
    end: float = 0.0
    ahead: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead < 0:
            raise ValueError(
                f"ahead={self.ahead} is negative; give the steps by which the line is ahead, 0 or 1"
            )

    def factor(self, step: int, *, per_epoch: int, total: int) -> float:
        ahead = self.ahead if step >= self.rise(total) else 0
        return super().factor(step + ahead, per_epoch=per_epoch, total=total)

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return 1 - (1 - self.end) * done


# The optimiser: parameter groups, rates, clipping, averaging.


@final
class TransformersAdamW(torch.optim.AdamW):
    """AdamW of the early transformers library, which UNITER and TAGS were trained with.

    With running means m and v after t steps, and their corrections a = 1 - beta_1^t and
    b = 1 - beta_2^t, a weight w becomes

        w' = w - rate * sqrt(b) / a * m / (sqrt(v) + epsilon)
        w' - rate * decay * w'

    PyTorch's AdamW adds epsilon to sqrt(v / b), and decays w before the update. The first steps
    differ: with beta_2 = 0.98, epsilon counts seven times as much in step 1 as it does in the end.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            rate, (first, second) = group["lr"], group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                mean = state["exp_avg"].lerp_(parameter.grad, 1 - first)
                square = state["exp_avg_sq"].mul_(second)
                square.addcmul_(parameter.grad, parameter.grad, value=1 - second)
                steps = state["step"].item()
                size = rate * math.sqrt(1 - second**steps) / (1 - first**steps)
                parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-size)
                parameter.mul_(1 - rate * group["weight_decay"])


Rule = Literal["adam", "adamw", "transformers-adamw"]
_RULES: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "transformers-adamw": TransformersAdamW,
}


@final
@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters with settings of their own.

    Attributes:
        match: pattern of parameter names, as in ``text.bert.*``; those of the objective begin
            with ``objective.``.
        rate: multiplier of the learning rate.
        decay: weight decay of this group, or None for that of all.
        decay_vectors: whether its vectors decay too, or None for the choice of all.
        begins: number of first epochs in which it is frozen, without gradients.
    """

    match: str
    rate: float = 1.0
    decay: float | None = None
    decay_vectors: bool | None = None
    begins: int = 0

    def __post_init__(self) -> None:
        if self.begins < 0:
            raise ValueError(
                f"begins={self.begins}: give the number of first epochs in which {self.match!r} is "
                "frozen"
            )


_REST = ParameterGroup(match="*")


@final
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam or AdamW over named groups of parameters.

    Where several groups match a parameter, the first one counts.

    Attributes:
        rule: "adam" adds the decay to the gradient, "adamw" takes it off the weight;
            "transformers-adamw" also adds epsilon before the bias correction, see
            `TransformersAdamW`.
        rate: learning rate.
        decay: weight decay.
        decay_vectors: vectors and scalars (biases, norms, temperatures) decay too, as they do
            where PyTorch's AdamW gets all parameters in one list.
        betas: of the two running means.
        epsilon: added to the root of the second.
        clip: gradients are scaled down to this global norm; 0 leaves them.
        groups: parameters with settings of their own.
        freeze: patterns of parameters that are not trained, as of heads that no loss uses.

    Raises:
        ValueError: a number out of range.
    """

    rule: Rule = "adam"
    rate: float = 2e-4
    decay: float = 0.0
    decay_vectors: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 2.0
    groups: tuple[ParameterGroup, ...] = ()
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_choice(tuple(_RULES), self.rule, "a rule of the optimiser")
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate}: a learning rate is above 0, as in 0.0002")
        if self.clip < 0 or self.decay < 0:
            raise ValueError(f"clip={self.clip}, decay={self.decay}: neither may be below 0")

    def freeze_in(self, module: nn.Module) -> None:
        """Freeze the parameters of a step that match `freeze`; an error where none are left."""
        named = dict(_named_parameters(module))
        for pattern in self.freeze:
            for name in _match_names(pattern, list(named), "freeze"):
                named[name].requires_grad_(False)
        if not any(parameter.requires_grad for parameter in named.values()):
            raise ValueError(f"freeze={self.freeze} leaves no parameter to train")

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a step's trainable parameters; `set_rate` sets its learning rates."""
        named = dict(_named_parameters(module))
        for group in self.groups:
            _match_names(group.match, list(named), "groups")
        groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
        for name, parameter in named.items():
            if parameter.requires_grad:
                groups.setdefault(self._treatment(name, parameter), []).append(parameter)
        settings = [
            {
                "params": parameters,
                "lr": self.rate * rate,
                "share": rate,
                "weight_decay": decay,
                "begins": begins,
            }
            for (rate, decay, begins), parameters in groups.items()
        ]
        rule: Any = _RULES[self.rule]
        made: torch.optim.Optimizer = rule(
            settings, lr=self.rate, betas=self.betas, eps=self.epsilon
        )
        return made

    def unfreeze(self, optimiser: torch.optim.Optimizer, epoch: int) -> None:
        """Train the groups that begin by this epoch, and freeze those that begin later."""
        for group in optimiser.param_groups:
            if group["begins"]:
                for parameter in group["params"]:
                    parameter.requires_grad_(epoch >= group["begins"])

    def _treatment(self, name: str, parameter: Tensor) -> tuple[float, float, int]:
        """Multiplier of the rate, weight decay, and number of frozen epochs."""
        group = next((g for g in self.groups if fnmatchcase(name, g.match)), _REST)
        decay = self.decay if group.decay is None else group.decay
        vectors = self.decay_vectors if group.decay_vectors is None else group.decay_vectors
        return group.rate, decay if vectors or parameter.ndim > 1 else 0.0, group.begins

    def set_rate(self, optimiser: torch.optim.Optimizer, factor: float) -> float:
        """Set every group's learning rate for the next step; returns that of the main group."""
        for group in optimiser.param_groups:
            group["lr"] = self.rate * group["share"] * factor
        return self.rate * factor


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Return the global norm of the gradients, and scale them down to `limit` (0: unchanged)."""
    norm: Tensor = nn.utils.clip_grad_norm_(parameters, limit if limit else torch.inf)
    return norm


@final
class WeightAverage:
    """Moving average of a model's parameters and buffers; `decay` is the share that stays."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: t.detach().clone() for name, t in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the average towards the model."""
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                self.shadow[name].lerp_(value, 1 - self.decay)
            else:
                self.shadow[name].copy_(value)

    @contextmanager
    def in_place_of(self, module: nn.Module) -> Iterator[None]:
        """Put the average into the model while the block runs."""
        now = {name: value.clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.shadow)
        try:
            yield
        finally:
            module.load_state_dict(now)


def _named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of a training step; those of the model without the prefix "model."."""
    for name, parameter in module.named_parameters():
        yield name.removeprefix("model."), parameter


def _match_names(pattern: str, names: list[str], key: str) -> list[str]:
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        heads = sorted({".".join(name.split(".")[:2]) + "*" for name in names})
        raise ValueError(
            unknown_name(pattern, heads, f"a pattern in {key} that fits any parameter")
        )
    return matches


# least steps on few captions: of models that learn from nothing, which is measured, and of
# pretrained towers, which then get past the warm-up
FRESH_STEPS, TUNED_STEPS = 300, 100
# photos of dev from which it chooses the epoch, of the same: 100 chose by chance an early one of a
# model that learnt from nothing and was still rising, which cost it 23 of 127 RSum
FRESH_DEV, TUNED_DEV = 200, 50
WIDE = 512  # captions in a batch for adapters, where there are as many
Tracker = Literal["tensorboard", "wandb"]
_NOT_NEGATIVE = (
    "batch",
    "grad_cache",
    "steps",
    "minutes",
    "save_minutes",
    "dev_images",
    "least_steps",
    "evaluate_every",
    "patience",
    "least_dev",
)
# no number depends on these
_NO_INFLUENCE = ("minutes", "save_minutes", "ahead", "track", "gradient_checkpointing")


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training.

    Attributes:
        epochs: passes over the training captions.
        batch: anchor captions in a batch, over all processes; 0 makes the whole training split one
            batch, and an epoch one step, for losses that have a tiled form and models of one vector
            per item (see `counterfoil.losses.tiled`).
        seed: of the order, the draws and the dropout.
        optimiser: rule, rates, clipping.
        schedule: of the learning rate.
        accumulate: batches whose gradients are averaged before one optimiser step.
        grad_cache: items encoded at a time with gradient caching (GradCache,
            https://arxiv.org/abs/2101.06983), for large batches in little memory: the gradient is
            that of the whole batch, and each item is encoded twice. 0 encodes whole batches.
        gradient_checkpointing: compute the activations of transformer layers again in the backward
            pass instead of keeping them: less memory for every item, a fifth to a third more time,
            the same gradient. For models of transformers, sentence-transformers and open_clip; of
            BLIP for images, not for the pairs that its text encoder reads.
        precision: "bf16" computes under autocast.
        average: decay of the moving average of the weights that is evaluated and kept; 0 for none.
        one_caption: draw each image once an epoch with one of its captions.
        drop_last: leave out a short last batch of an epoch.
        all_captions: draw each image once an epoch with all of its captions; `batch` counts images.
        steps: stop after so many optimiser steps; 0 for no limit.
        least_steps: make at least so many optimiser steps: where `epochs` passes over few captions
            are fewer, further ones follow. 0 for `epochs` passes whatever they come to.
        evaluate_every: measure on dev, and save, at the ends of epochs that are at least so many
            optimiser steps apart, as epochs of few captions are short; 0 for each epoch.
        patience: stop where so many evaluations in a row were not better than the best one; 0
            trains to the end.
        minutes: stop after so many minutes with a checkpoint to resume from; 0 for no limit.
        save_minutes: between two checkpoints; one is written after each epoch in any case.
        dev_images: measure on so many images of dev, drawn once for all trainings; 0 for all.
        dev_first: take the first `dev_images` of dev instead of drawing them, as with 1,000 the
            papers do: the first fold of COCO's dev, and all but 14 of Flickr30K's.
        keep_last: keep the last epoch instead of the best on dev, as comparisons of methods need.
        select: the dev figure, higher is better, by which the best epoch is kept. An epoch inside a
            warm-up of the loss is kept only until one behind it has ended.
        log_every: optimiser steps between two lines of metrics.
        ahead: batches that are read ahead.
        track: where metrics go beside `metrics.jsonl`.
        homogeneous_batches: fill each batch from one data set, where several are one, see
            `counterfoil.data.concatenate.concatenate_datasets`.

        least_dev: images of dev below which it chooses no epoch and ends no training, as it would
            by chance: the last epoch is kept; 0 for none.

    Raises:
        ValueError: a number out of range.
    """

    epochs: int = 30
    batch: int = 128
    seed: int = 0
    optimiser: OptimizerConfig = OptimizerConfig()
    schedule: LRSchedule = ConstantLR()
    accumulate: int = 1
    grad_cache: int = 0
    gradient_checkpointing: bool = False
    precision: Precision = "fp32"
    average: float = 0.0
    one_caption: bool = False
    drop_last: bool = False
    steps: int = 0
    minutes: float = 0.0
    save_minutes: float = 10.0
    select: str = "rsum"
    log_every: int = 10
    ahead: int = 2
    track: tuple[Tracker, ...] = ()
    all_captions: bool = False
    dev_images: int = 0
    dev_first: bool = False
    keep_last: bool = False
    least_steps: int = 0
    evaluate_every: int = 0
    patience: int = 0
    least_dev: int = 0
    homogeneous_batches: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "log_every", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it may not be below 0")
        if not self.batch and self.accumulate > 1:
            raise ValueError(
                f"accumulate={self.accumulate} and batch=0, the whole training split: there are no "
                "other batches to add up; set accumulate to 1, or batch to a number of captions"
            )
        if self.dev_first and not self.dev_images:
            raise ValueError(
                "dev_first takes the first dev_images of dev, and dev_images is 0 for all of them; "
                "set dev_images=1000 before it, or leave dev_first out"
            )
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average}: a decay is at least 0 and below 1")
        parse_literal(Precision, self.precision, "a precision")
        for tracker in self.track:
            parse_literal(Tracker, tracker, "a tracker")

    def steps_per_epoch(self, batches: int) -> int:
        """Optimiser steps in an epoch of so many batches; a last group may be smaller."""
        return -(-batches // self.accumulate)

    def total(self, batches: int) -> int:
        """Optimiser steps in the whole training."""
        steps = self.all_epochs(batches) * self.steps_per_epoch(batches)
        return min(steps, self.steps) if self.steps else steps

    def all_epochs(self, batches: int) -> int:
        """Epochs, of so many batches, that are planned: those of `least_steps` are counted."""
        return max(self.epochs, -(-self.least_steps // self.steps_per_epoch(batches)))

    def epochs_per_evaluation(self, batches: int) -> int:
        """Epochs, of so many batches, from one evaluation on dev to the next."""
        return max(1, -(-self.evaluate_every // self.steps_per_epoch(batches)))

    def everyday(self, least_steps: int = 0) -> TrainConfig:
        """The settings for data of any size: see the page on what it does by default.

        Args:
            least_steps: see above; 0 where many passes over few captions only overfit.
        """
        some = least_steps > 0
        return replace(
            self,
            least_steps=least_steps,
            evaluate_every=25 if some else 0,
            patience=6 if some else 0,
            least_dev=FRESH_DEV if least_steps > TUNED_STEPS else TUNED_DEV,
        )

    def on_dev(self, images: int) -> TrainConfig:
        """The settings for a dev split of so many images."""
        if not 0 < images < self.least_dev:
            return self
        return replace(self, keep_last=True, patience=0)

    def of_epochs(self, epochs: int) -> TrainConfig:
        """The settings with a length that was asked for: so many epochs, each measured on dev."""
        return replace(self, epochs=epochs, least_steps=0, evaluate_every=0, patience=0)

    def numbers(self) -> dict[str, Any]:
        """The settings that change the result, JSON-ready: time limits and logging are left out."""
        return {n: v for n, v in asdict(self).items() if n not in _NO_INFLUENCE}


def adapter_config(captions: int) -> TrainConfig:
    """The settings for adapters behind frozen towers, on a training split of so many captions.

    InfoNCE has more wrong captions in a larger batch, and adapters overfit in many steps. Fewer
    captions than the batch would all be one batch, which is worse than smaller ones.
    """
    # four times the batch makes a quarter of the steps, at a rate that grows with its root
    batch, rate, warmup = (WIDE, 4e-4, 0.1) if captions >= WIDE else (128, 2e-4, 50)
    plan = TrainConfig(
        epochs=10,
        batch=batch,
        optimiser=OptimizerConfig(rule="adamw", rate=rate, decay=0.01),
        schedule=CosineLR(warmup=warmup),
    )
    return plan.everyday()
