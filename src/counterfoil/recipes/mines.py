"""Mining, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final, get_args

from counterfoil.negatives.filters import FilterPlan
from counterfoil.recipes.guides import LATER
from counterfoil.spec import unknown

MinePrecision = Literal["fp32", "bf16"]


@final
@dataclass(frozen=True, kw_only=True)
class Mine:
    """List the hardest negatives of the training split, both ways. Writes a store.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models score; several are one ensemble.
        texts: hardest texts kept for each image.
        images: hardest images kept for each text.
        split: what is mined.
        filters: what to leave out of the lists because it may be true.
        guides: stages whose models judge too, for `FilterPlan.guided`.
        proposing: stages whose models choose the pairs that `using` looks at; none for all pairs.
        proposals: how many times as many as are listed they choose.
        precision: "bf16" scores all pairs in half precision, and those that count again.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.recipes.model.open_model` opens them.

    Raises:
        ValueError: what proposes, or half precision, does not go with filters that judge scores.
    """

    kind: ClassVar[str] = "mine"
    name: str
    using: tuple[str, ...]
    texts: int = 300
    images: int = 60
    split: str = "train"
    filters: FilterPlan = field(default=FilterPlan(), metadata=LATER)
    guides: tuple[str, ...] = field(default=(), metadata=LATER)
    proposing: tuple[str, ...] = field(default=(), metadata=LATER)
    proposals: int = field(default=4, metadata=LATER)
    precision: MinePrecision = field(default="fp32", metadata=LATER)
    models: tuple[str, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        if self.proposals < 1:
            raise ValueError(f"proposals={self.proposals}: at least 1 is needed")
        if self.precision not in get_args(MinePrecision):
            known = list(get_args(MinePrecision))
            raise ValueError(unknown(self.precision, known, "a precision of mining"))
        if self.precision != "fp32" and (self.proposing or self.filters.judges_scores):
            raise ValueError(
                f"precision={self.precision} goes with all pairs, and with filters of captions and "
                "pictures alone; leave out the others and what proposes, or mine in fp32"
            )
        if self.proposing and self.filters.judges_scores:
            raise ValueError(
                f"{self.name!r} re-ranks what others propose, whose scores are not its own; leave "
                "out all filters but captions and pictures, or propose nothing"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (*self.using, *self.guides, *self.proposing)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)
