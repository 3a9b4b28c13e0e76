"""Analyses of the papers: functions of models, data and runs that return tables and figures.

The signature of an analysis is its command line, see `counterfoil.papers.cli.analyse`; a parameter
that is a `DataSource` becomes the options of a data set. Models are given by name, joined by ``+``
for an ensemble. Settings that fit no model, data or folder raise a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, final

import typer

if TYPE_CHECKING:
    from counterfoil.papers.tags.generation import MaskRefill
    from counterfoil.report.analysis import Analysis

Function = TypeVar("Function", bound="Callable[..., Analysis]")

Anchors = Annotated[int, typer.Option(min=1, help="Number of images; one caption of each.")]
Batch = Annotated[int, typer.Option(min=2, help="Captions in a batch.")]
Examples = Annotated[int, typer.Option(min=0, help="Examples on the page.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of finished runs.")]
Stores = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="Folders of generated captions.")
]
Trainings = Annotated[
    list[Path], typer.Argument(help="Training stages, or runs with all their training stages.")
]

GENERATION = ("masks", "refills", "temperature", "keep")  # rules use only the last


@final
@dataclass(frozen=True)
class GenerationOptions:
    """How a model generates captions, as options of a verb."""

    masks: Annotated[int, typer.Option(min=1, help="Maskings of a caption.")] = 20
    refills: Annotated[int, typer.Option(min=1, help="Refills of each masking.")] = 20
    keep: Annotated[int, typer.Option(min=1, help="Hardest captions to keep of each.")] = 10
    temperature: Annotated[float, typer.Option(help="Sampling temperature of words.")] = 1.5

    @property
    def refill(self) -> MaskRefill:
        """The settings of mask and refill."""
        from counterfoil.papers.tags.generation import MaskRefill

        return MaskRefill(masks=self.masks, refills=self.refills, temperature=self.temperature)

    def describe(self) -> str:
        """The options in words."""
        return (
            f"{self.masks} maskings of a caption, {self.refills} refills of each at temperature "
            f"{self.temperature:g}, the {self.keep} hardest kept that may be false"
        )


@final
@dataclass(frozen=True)
class Verb:
    """An analysis as a verb of the command line."""

    function: Callable[..., Analysis]
    examples: tuple[str, ...]
    check: Callable[[typer.Context], None] | None  # refuses options that have no effect


VERBS: dict[str, Verb] = {}


def analysis(
    name: str, *examples: str, check: Callable[[typer.Context], None] | None = None
) -> Callable[[Function], Function]:
    """Make a function a verb of ``counterfoil papers analyse``.

    Args:
        name: of the verb.
        examples: command lines to try.
        check: raises a ValueError for options that have no effect with the others.
    """

    def add(function: Function) -> Function:
        VERBS[name] = Verb(function, examples, check)
        return function

    return add
