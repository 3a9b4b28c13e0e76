"""What is said of single tokens: words, features and classes of regions."""

from __future__ import annotations

from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.joint import EPSILON
from counterfoil.models.blocks.pool import chosen

OUTPUTS = ("rank", "match", "fill", "doubt", "correct", "regress", "classify")
Head = TypeVar("Head", bound=nn.Module)


def transform(width: int) -> nn.Sequential:
    """norm(gelu(linear)), as BERT's."""
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=EPSILON))


@final
class TiedHead(nn.Module):
    """Ends in a matrix that belongs to another part: word embeddings, or a layer turned round."""

    def __init__(self, *, width: int, answers: int) -> None:
        """Keyword arguments.

        Args:
            width: of the states.
            answers: how many numbers it gives.
        """
        super().__init__()
        self.enter = transform(width)
        self.bias = nn.Parameter(torch.zeros(answers))

    def forward(self, states: Tensor, matrix: Tensor) -> Tensor:
        """(M, A) of (M, D) states, through a matrix (A, D)."""
        return linear(self.enter(states), matrix, self.bias)


@final
class ClassHead(nn.Module):
    """Logits of classes."""

    def __init__(self, *, width: int, classes: int) -> None:
        """Keyword arguments.

        Args:
            width: of the states.
            classes: how many there are.
        """
        super().__init__()
        self.enter, self.out = transform(width), nn.Linear(width, classes)

    def forward(self, states: Tensor) -> Tensor:
        """(M, C) of (M, D) states."""
        logits: Tensor = self.out(self.enter(states))
        return logits


@final
class UniterHeads(nn.Module):
    """What UNITER says of what it has read; a head that was not asked for is None."""

    def __init__(
        self, *, outputs: tuple[str, ...], width: int, words: int, features: int, classes: int
    ) -> None:
        """Keyword arguments.

        Args:
            outputs: names of the heads to have, of `OUTPUTS`.
            width: of the states.
            words: how many there are.
            features: width of a region's features.
            classes: of regions.

        Raises:
            ValueError: an unknown output, or none that gives a score.
        """
        super().__init__()
        for output in outputs:
            chosen("outputs", output, OUTPUTS)
        if not {"rank", "match"} & set(outputs):
            raise ValueError(
                f"outputs={outputs!r} give no score; name 'rank' or 'match' among them"
            )
        self.rank = nn.Linear(width, 1) if "rank" in outputs else None
        self.match = nn.Linear(width, 2) if "match" in outputs else None
        self.fill = TiedHead(width=width, answers=words) if "fill" in outputs else None
        self.doubt = nn.Linear(width, 2) if "doubt" in outputs else None
        self.correct = TiedHead(width=width, answers=words) if "correct" in outputs else None
        self.regress = TiedHead(width=width, answers=features) if "regress" in outputs else None
        self.classify = ClassHead(width=width, classes=classes) if "classify" in outputs else None

    def logit(self, pooled: Tensor) -> Tensor:
        """(P,) in at least single precision: the rank, or where there is none, yes minus no."""
        with torch.autocast(pooled.device.type, enabled=False):
            if self.rank is not None:
                ranked: Tensor = self.rank(full(pooled)).squeeze(1)
                return ranked
            no, yes = self.matched(full(pooled)).unbind(1)
            return yes - no

    def matched(self, pooled: Tensor) -> Tensor:
        """(P, 2) logits that text and image do not belong together, and that they do."""
        logits: Tensor = present(self.match, "match")(pooled)
        return logits


def present(head: Head | None, name: str) -> Head:
    """A head that is there.

    Raises:
        ValueError: it is not.
    """
    if head is None:
        raise ValueError(f"this model has no head {name!r}; build it with that among its outputs")
    return head
