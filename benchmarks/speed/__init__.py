"""Speed: what the fast parts cost, as ratios to the plain matrix product of the same run.

A benchmark is a module of this package with one function, ``results(threads: int)``, that yields
a `Result` for each figure as soon as it is measured; `benchmarks.speed.__main__` lists the modules
and sets the number of threads before it calls. `benchmarks.speed.gemm` has the stopwatch and the
plain product, `benchmarks.speed.memory` the peak.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    Attributes:
        name: what was measured, with its size.
        ratio: cost over the cost of the plain matrix product in the same run, or another figure.
        target: what it must not exceed, if anything.
        authors: the ratio of the authors' code at the same size, where it was measured.
        note: seconds, memory, anything worth knowing.
        unit: of the figure; "" for a ratio.
    """

    name: str
    ratio: float
    target: float | None = None
    authors: float | None = None
    note: str = ""
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where none is set."""
        return None if self.target is None else self.ratio <= self.target
