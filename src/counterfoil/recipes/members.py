"""Who stands behind a recipe's numbers: one model, or the ensemble that a paper reports.

A name with a paper's bare word, ``scan``, ``bfan`` or ``vsrn``, is the ensemble of two that the
paper prints: SCAN t-i AVG with i-t LSE, BFAN equal with prob, VSRN from two seeds. Every other name
is a single model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

Paper = Literal["vsepp", "scan", "bfan", "vsrn"]
Host = Literal[
    "vsepp", "scan-t2i", "scan-t2i-avg", "scan-i2t", "bfan-equal", "bfan-prob", "vsrn-single"
]
Ensemble = Literal["scan", "bfan", "vsrn"]
Name = Host | Ensemble

HOSTS: tuple[Host, ...] = get_args(Host)
NAMES: tuple[Name, ...] = (*HOSTS, *get_args(Ensemble))

PAPERS: dict[Host, Paper] = {
    "vsepp": "vsepp",
    "scan-t2i": "scan",
    "scan-t2i-avg": "scan",
    "scan-i2t": "scan",
    "bfan-equal": "bfan",
    "bfan-prob": "bfan",
    "vsrn-single": "vsrn",
}


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One of the models whose scores are averaged.

    Attributes:
        host: which matcher.
        part: what its stages are told apart by; empty for a single model.
        seed: of its trainings.
    """

    host: Host
    part: str = ""
    seed: int = 0

    def stage(self, kind: str) -> str:
        """Name of its stage of a kind, as in "online" or "online-equal"."""
        return f"{kind}-{self.part}" if self.part else kind


ENSEMBLES: dict[Ensemble, tuple[Member, ...]] = {
    "scan": (Member("scan-t2i-avg", "t2i"), Member("scan-i2t", "i2t")),
    "bfan": (Member("bfan-equal", "equal"), Member("bfan-prob", "prob")),
    "vsrn": (Member("vsrn-single", "first"), Member("vsrn-single", "second", seed=1)),
}


def members(name: Name) -> tuple[Member, ...]:
    """The models behind a name; one for a single model."""
    for ensemble, found in ENSEMBLES.items():
        if name == ensemble:
            return found
    return tuple(Member(host) for host in HOSTS if host == name)


def said(name: Name) -> str:
    """How many models that is, for tables and pages."""
    many = len(members(name))
    return "single model" if many == 1 else f"ensemble of {many}"
