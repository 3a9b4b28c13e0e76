"""A finished evaluation: numbers, ranks, and the first items of every list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate.protocols import evaluate
from counterfoil.evaluate.recall import Ranked, Recall, Tie
from counterfoil.evaluate.report import results
from counterfoil.evaluate.result import Protocol, Report, Setting
from counterfoil.evaluate.table import table
from counterfoil.files import read_json, write_json
from counterfoil.recipes.show import console
from counterfoil.train.tensors import read_tensors, write_tensors

DEPTH = 10
NUMBERS, TENSORS = "evaluation.json", "evaluation.safetensors"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One evaluation.

    Attributes:
        report: numbers and ranks.
        texts: (I, K) first texts of every image, -1 for none.
        text_scores: (I, K).
        images: (T, K) first images of every text.
        image_scores: (T, K).
        corpus: fingerprint of the split.
    """

    report: Report
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor
    corpus: str

    @staticmethod
    def of(
        members: Sequence[Member],
        corpus: Corpus,
        protocol: Protocol,
        *,
        tie: Tie = "row",
        seed: int | None = None,
    ) -> Measured:
        """Rank a split by the mean score of the models that encoded it.

        Raises:
            ValueError: the protocol does not fit the split.
        """
        texts = TopK("image", len(corpus), min(DEPTH, len(corpus.texts)))
        images = TopK("text", len(corpus.texts), min(DEPTH, len(corpus)))
        whole = protocol.folds == 1
        report = evaluate(
            members,
            corpus.owner,
            len(corpus),
            protocol,
            tie=tie,
            dataset=corpus.name,
            split=corpus.part,
            seed=seed,
            also=(texts, images) if whole else (),
        )
        if not whole:  # ranks are within folds, the lists are not
            sweep(members, [texts, images])
        return Measured(
            report, texts.rows, texts.scores, images.rows, images.scores, corpus.fingerprint
        )

    def show(self, name: str) -> None:
        """Print the table."""
        console.print(table(results({name: self.report}), self.report.setting.line()))

    def save(self, folder: Path) -> None:
        """Write ``evaluation.json`` and ``evaluation.safetensors``."""
        i2t, t2i = self.report.ranked
        tensors = {
            "texts": self.texts.int(),
            "text_scores": self.text_scores.float(),
            "images": self.images.int(),
            "image_scores": self.image_scores.float(),
        }
        for ranked in (i2t, t2i):
            for part in ("ranks", "images", "folds"):
                tensors[f"{ranked.direction}_{part}"] = getattr(ranked, part).int()
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSORS, tensors, {"corpus": self.corpus})
        write_json(folder / NUMBERS, {"corpus": self.corpus, **self.report.plain()})

    @staticmethod
    def open(folder: Path) -> Measured:
        """What `save` wrote.

        Raises:
            ValueError: there is no evaluation, or it is damaged.
        """
        plain = read_json(folder / NUMBERS, "an evaluation")
        tensors, about = read_tensors(folder / TENSORS, "the ranks of an evaluation")
        try:
            report = _report(plain, tensors)
            return Measured(
                report,
                tensors["texts"].long(),
                tensors["text_scores"],
                tensors["images"].long(),
                tensors["image_scores"],
                about["corpus"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds a damaged evaluation: {error!r}") from error


def _report(plain: dict[str, Any], tensors: dict[str, Tensor]) -> Report:
    setting = dict(plain["setting"])
    protocol = Protocol(**setting.pop("protocol"))
    ranked = tuple(
        Ranked(side, *(tensors[f"{side}_{part}"].long() for part in ("ranks", "images", "folds")))
        for side in ("i2t", "t2i")
    )
    return Report(
        Setting(protocol, **setting),
        Recall(**plain["i2t"]),
        Recall(**plain["t2i"]),
        tuple((Recall(**fold["i2t"]), Recall(**fold["t2i"])) for fold in plain["folds"]),
        (ranked[0], ranked[1]),
    )
