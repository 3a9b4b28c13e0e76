"""Ledger entries for the tests of tables of experiments."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.experiments.ledger import Entry
from benchmarks.experiments.table import Contrast, Table

CONTRAST = Contrast(
    claim="Mined lists help.",
    model="VSE++",
    setting="batch 8",
    method="AdapOffQuin",
    base="online",
    seeds=(2, 3, 4, 5),
)


def entry(method: str = "online", seed: int = 2, dev: float = 200.0, test: float = 210.0) -> Entry:
    """A row with these values of RSum."""
    return Entry(
        table="toy",
        budget="cpu",
        model="VSE++",
        setting="batch 8",
        method=method,
        seed=seed,
        protocol="toy test; whole split",
        digest=f"{method}-{seed}",
        data="toy",
        numbers={"dev": {"RSum": dev}, "test": {"RSum": test}},
    )


def pairs(dev: Sequence[float], test: Sequence[float], method: str = "AdapOffQuin") -> list[Entry]:
    """The base and a method that differs from it by these amounts, for seeds from 2 on."""
    entries = []
    for seed, (one, other) in enumerate(zip(dev, test, strict=True), 2):
        entries += [
            entry("online", seed, 200.0 + seed, 210.0 - seed),
            entry(method, seed, 200.0 + seed + one, 210.0 - seed + other),
        ]
    return entries


def toy_table() -> Table:
    """A table with the declared comparison, and no experiments."""
    return Table(
        name="toy",
        question="Do mined negatives help?",
        data="scenes:images=36",
        base="online",
        experiments=lambda budget: (),
        contrasts=(CONTRAST,),
    )
