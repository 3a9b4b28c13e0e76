"""The record of an evaluation: the numbers, and all that one has to know to read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

from counterfoil.evaluate.recall import TIES, Ranked, Recall, Tie

METRICS = (
    *(f"i2t {name}" for name in ("R@1", "R@5", "R@10", "median rank", "mean rank")),
    *(f"t2i {name}" for name in ("R@1", "R@5", "R@10", "median rank", "mean rank")),
    "RSum",
)


@final
@dataclass(frozen=True, slots=True)
class Protocol:
    """What a split is cut into before it is ranked.

    Attributes:
        name: as papers call it.
        folds: into how many disjoint runs of images, in the order of the split, each with all its
            texts; metrics are means over folds.
        images: how many images the protocol is defined on; None for any number.
    """

    name: str
    folds: int = 1
    images: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """All that one has to know to read the numbers.

    Attributes:
        protocol: how the split is cut.
        images: how many images there were.
        texts: how many texts there were.
        tie: what became of equal scores.
        members: how many models' scores were averaged.
        dataset: name of the dataset.
        split: name of the split.
        seed: of the model.
        first: who chose what was ranked, by name; empty where everything was.
        depth: of how many counterparts a query.
        decided: what somebody's decisions changed about the data, in words; empty for nothing.
    """

    protocol: Protocol
    images: int
    texts: int
    tie: Tie = "row"
    members: int = 1
    dataset: str = ""
    split: str = ""
    seed: int | None = None
    first: str = ""
    depth: int = 0
    decided: str = ""

    def line(self) -> str:
        """The protocol in one sentence, to stand beside the numbers."""
        folds = self.protocol.folds
        cut = f"mean of {folds} disjoint folds" if folds > 1 else "ranked as a whole"
        parts = [
            " ".join(part for part in (self.dataset, self.split) if part),
            f"{self.protocol.name}: {self.images:,} images, {self.texts:,} texts, {cut}",
            self.decided and f"the data as decided: {self.decided}",
            self.first and f"{self.shortlists()}, all behind them in its order",
            "any hit: a query counts when any true counterpart is in the first K",
            f"ties: {TIES[self.tie]}",
            "single model" if self.members == 1 else f"ensemble of {self.members} by mean score",
            "" if self.seed is None else f"seed {self.seed}",
        ]
        return "; ".join(part for part in parts if part)

    def shortlists(self) -> str:
        """What was re-ranked, in few words; empty where everything was ranked."""
        return self.first and f"top-{self.depth} of {self.first} re-ranked"


def without_models(protocol: str) -> str:
    """A protocol line without the number of models and their seeds: where rows may differ."""
    models = ("single model", "ensemble of ", "seed ", "seeds ")
    return "; ".join(part for part in protocol.split("; ") if not part.startswith(models))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Retrieval in both directions under one protocol.

    Attributes:
        setting: what was measured, and how.
        i2t: images ask for texts; means over folds.
        t2i: texts ask for images; means over folds.
        folds: both directions in each fold.
        ranked: where each query found its counterpart, i2t then t2i.
    """

    setting: Setting
    i2t: Recall
    t2i: Recall
    folds: tuple[tuple[Recall, Recall], ...]
    ranked: tuple[Ranked, Ranked]

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return self.i2t.total + self.t2i.total

    @property
    def numbers(self) -> tuple[float, ...]:
        """One number for each of `METRICS`."""
        return (*self.i2t.numbers, *self.t2i.numbers, self.rsum)

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, without the single queries."""
        return {
            "protocol": self.setting.line(),
            "setting": asdict(self.setting),
            "i2t": self.i2t.plain(),
            "t2i": self.t2i.plain(),
            "rsum": self.rsum,
            "folds": [{"i2t": i2t.plain(), "t2i": t2i.plain()} for i2t, t2i in self.folds],
        }
