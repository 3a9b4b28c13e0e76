"""Which parameters move, how fast, and by which rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, final

import torch
from torch import Tensor, nn

from counterfoil.spec import unknown


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that are treated apart.

    Attributes:
        match: pattern of parameter names, as in ``text.bert.*``; those of the objective begin
            with ``objective.``.
        rate: multiplier of the learning rate.
        decay: weight decay of this group, or None for that of all.
        begins: epochs during which it does not move yet, nor costs a gradient.

    Raises:
        ValueError: it begins before the first epoch.
    """

    match: str
    rate: float = 1.0
    decay: float | None = None
    begins: int = 0

    def __post_init__(self) -> None:
        if self.begins < 0:
            raise ValueError(
                f"begins={self.begins}: give the epochs, from 0, during which {self.match!r} stays"
            )


@final
@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Adam or AdamW over named groups of parameters.

    Vectors and scalars (biases, norms, temperatures) never decay. Where several groups match a
    parameter, the first one counts.

    Attributes:
        rule: "adam" adds the decay to the gradient, "adamw" takes it off the weight.
        rate: learning rate.
        decay: weight decay.
        betas: of the two running means.
        epsilon: added to the root of the second.
        clip: gradients are scaled down to this global norm; 0 leaves them.
        groups: parameters that are treated apart.
        freeze: patterns of parameters that do not move, as in heads that no term uses.

    Raises:
        ValueError: a number out of range.
    """

    rule: Literal["adam", "adamw"] = "adam"
    rate: float = 2e-4
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 2.0
    groups: tuple[Group, ...] = ()
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in ("adam", "adamw"):
            raise ValueError(unknown(self.rule, ["adam", "adamw"], "a rule of the optimiser"))
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate}: a learning rate is above 0, as in 0.0002")
        if self.clip < 0 or self.decay < 0:
            raise ValueError(f"clip={self.clip}, decay={self.decay}: neither may be below 0")

    def freeze_in(self, module: nn.Module) -> None:
        """Stop the parameters of a step that are not to move.

        Raises:
            ValueError: a pattern that fits no parameter, or nothing is left to train.
        """
        named = dict(_named(module))
        for pattern in self.freeze:
            for name in _matching(pattern, list(named), "freeze"):
                named[name].requires_grad_(False)
        if not any(parameter.requires_grad for parameter in named.values()):
            raise ValueError(f"freeze={self.freeze} leaves no parameter to train")

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a step's moving parameters; `set_rate` sets its learning rates.

        Raises:
            ValueError: a group that fits no parameter.
        """
        named = {name: p for name, p in _named(module) if p.requires_grad}
        for group in self.groups:
            _matching(group.match, [name for name, _ in _named(module)], "groups")
        groups: dict[tuple[float, float, int], list[nn.Parameter]] = {}
        for name, parameter in named.items():
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
        rule = torch.optim.Adam if self.rule == "adam" else torch.optim.AdamW
        return rule(settings, lr=self.rate, betas=self.betas, eps=self.epsilon)

    def wake(self, optimiser: torch.optim.Optimizer, epoch: int) -> None:
        """Let the groups move whose time has come, and no others.

        Args:
            optimiser: what `build` gave.
            epoch: whole epochs made before.
        """
        for group in optimiser.param_groups:
            if group["begins"]:
                for parameter in group["params"]:
                    parameter.requires_grad_(epoch >= group["begins"])

    def _treatment(self, name: str, parameter: Tensor) -> tuple[float, float, int]:
        """Multiplier of the rate, weight decay, and epochs before it moves."""
        decays = parameter.ndim > 1
        for group in self.groups:
            if fnmatchcase(name, group.match):
                decay = self.decay if group.decay is None else group.decay
                return group.rate, decay if decays else 0.0, group.begins
        return 1.0, self.decay if decays else 0.0, 0

    def set_rate(self, optimiser: torch.optim.Optimizer, factor: float) -> float:
        """Set every group's learning rate for the next step; returns that of the main group."""
        for group in optimiser.param_groups:
            group["lr"] = self.rate * group["share"] * factor
        return self.rate * factor


def clipped(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Global norm of the gradients, after which they are scaled down to `limit` (0: left alone)."""
    norm: Tensor = nn.utils.clip_grad_norm_(parameters, limit if limit else torch.inf)
    return norm


@final
class Average:
    """Exponential moving average of a model's parameters and buffers.

    Args:
        module: the model.
        decay: share of the average that stays at each step.
    """

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
        """Lend the model the average while the block runs."""
        now = {name: value.clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.shadow)
        try:
            yield
        finally:
            module.load_state_dict(now)


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of a step by the name a user knows: those of the model have no prefix."""
    for name, parameter in module.named_parameters():
        yield name.removeprefix("matcher."), parameter


def _matching(pattern: str, names: list[str], key: str) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        heads = sorted({".".join(name.split(".")[:2]) + "*" for name in names})
        raise ValueError(unknown(pattern, heads, f"a pattern in {key} that fits any parameter"))
    return found
