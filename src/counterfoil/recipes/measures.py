"""Stages that measure what others have trained, as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

from counterfoil.evaluate.cascade import DEPTH, check_depth
from counterfoil.recipes.guides import LATER

Protocol = Literal["whole", "flickr-1k", "coco-1k", "coco-5k"]


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure retrieval. Writes metrics and ranks.

    Attributes:
        name: of the stage and of its folder.
        using: stages whose models score; several are one ensemble.
        split: what is measured.
        protocol: "whole" ranks the split as it is; see `counterfoil.evaluate.protocols`.
        first: stages whose models shortlist, see `counterfoil.evaluate.cascade`; none for ranking
            everything.
        depth: how many counterparts of a query they shortlist.
        full: rank everything too, to tell what the shortlists lose.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.recipes.model.open_model` opens them.
        data: other data that are measured, as `counterfoil.corpus.reading.open_corpus` opens them;
            None for those of the run.

    Raises:
        ValueError: shortlists of nothing.
    """

    kind: ClassVar[str] = "evaluate"
    name: str
    using: tuple[str, ...]
    split: str = "test"
    protocol: Protocol = "whole"
    first: tuple[str, ...] = field(default=(), metadata=LATER)
    depth: int = field(default=DEPTH, metadata=LATER)
    full: bool = field(default=False, metadata=LATER)
    models: tuple[str, ...] = field(default=(), metadata=LATER)
    data: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_depth(self.depth)

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (*self.using, *self.first)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)


@final
@dataclass(frozen=True, kw_only=True)
class Compare:
    """Set evaluations side by side. Writes ``report.html``.

    Attributes:
        name: of the stage and of its folder.
        results: evaluation stages; the first is what the others are compared with.
        negatives: mining stage whose hardness is shown, if any.
        others: evaluations of the same models, in this order, on other data: what they have
            forgotten there is told, see `counterfoil.recipes.forgetting`.
    """

    kind: ClassVar[str] = "compare"
    name: str
    results: tuple[str, ...]
    negatives: str | None = None
    others: tuple[str, ...] = field(default=(), metadata=LATER)

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return tuple(name for name, _ in self.wants)

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        mined = ((self.negatives, "mine"),) if self.negatives else ()
        return (*((name, "evaluate") for name in (*self.results, *self.others)), *mined)


def called(models: Sequence[str], first: Sequence[str], depth: int) -> str:
    """What was measured, in words: an ensemble, or one on the shortlists of another.

    >>> called(("a", "b"), (), 20)
    'a + b'
    >>> called(("a",), ("b",), 20)
    'a on top-20 of b'
    """
    told = " + ".join(models)
    return f"{told} on top-{depth} of {' + '.join(first)}" if first else told
