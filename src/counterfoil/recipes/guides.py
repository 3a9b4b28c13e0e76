"""Stages that say how similar images and texts ought to be, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final, get_args

from counterfoil.core.literals import parse_literal
from counterfoil.negatives.latent import SpacePlan
from counterfoil.negatives.semantics import Measure
from counterfoil.spec import unknown

GUIDE = "guide"  # what a training asks for where it names any of the following kinds
GUIDES = ("teach", "semantics")
LATER = {"later": True}  # of a field that says nothing at its default, so older runs keep digests

Form = Literal["stored", "models"]
StorePrecision = Literal["fp32", "fp16"]
Inputs = Literal["clean", "same"]


@final
@dataclass(frozen=True, kw_only=True)
class Teach:
    """Let trained models say how similar all pairs of the training split are. Writes a store.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models teach; the mean of all teachers counts.
        models: saved models that teach too, as `counterfoil.recipes.model.open_model` opens them.
        form: "stored" encodes the split once and reads what a batch needs from the disk; "models"
            encodes every batch anew and stores nothing.
        precision: of what is stored.
        inputs: what models see of a batch: "clean" items of their own, or the "same" ones as the
            student, augmented as those are.
        standardise: bring the scores of teachers of different kinds to one mean and deviation.

    Raises:
        ValueError: no such form, precision or inputs, or stored or saved teachers that see the same
            items.
    """

    kind: ClassVar[str] = "teach"
    name: str
    using: tuple[str, ...] = ()
    models: tuple[str, ...] = field(default=(), metadata=LATER)
    form: Form = "stored"
    precision: StorePrecision = "fp32"
    inputs: Inputs = "clean"
    standardise: bool = False

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.form, Form, "a form of teachers"),
            (self.precision, StorePrecision, "a precision of stored encodings"),
            (self.inputs, Inputs, "what teachers see"),
        ):
            if value not in get_args(known):
                raise ValueError(unknown(value, list(get_args(known)), what))
        if self.inputs == "same" and self.form == "stored":
            raise ValueError(
                f"{self.name!r} stores what teachers make of clean items, so they cannot see the "
                "same ones as the student; use form=models, or inputs=clean"
            )
        if self.inputs == "same" and self.models:
            raise ValueError(
                f"{self.models[0]} has a vocabulary and features of its own, so {self.name!r} "
                "cannot show it the same items as the student; set inputs=clean"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return self.using

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.using)


@final
@dataclass(frozen=True, kw_only=True)
class Semantics:
    """Work out how near the captions of the training split are in meaning (LSEH). Writes a store.

    Attributes:
        name: of the stage and of its folder.
        space: how captions become points.
        measure: how near two points are: by their "inner" product, or their "cosine".

    Raises:
        ValueError: no such measure.
    """

    kind: ClassVar[str] = "semantics"
    name: str
    space: SpacePlan = SpacePlan()
    measure: Measure = "inner"

    def __post_init__(self) -> None:
        parse_literal(Measure, self.measure, "a measure")

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs: none."""
        return ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be: none."""
        return ()
