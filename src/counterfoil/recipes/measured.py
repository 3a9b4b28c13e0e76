"""A finished evaluation: numbers, ranks, and the first items of every list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from counterfoil.core.console import output
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate.cascade import Shortlisting, Shortlists, cascade
from counterfoil.evaluate.protocols import evaluate
from counterfoil.evaluate.recall import Ranked, Recall, Tie
from counterfoil.evaluate.report import result_table, results
from counterfoil.evaluate.result import Protocol, Report, Setting
from counterfoil.files import read_json, write_json
from counterfoil.recipes.model import open_model
from counterfoil.recipes.show import console
from counterfoil.report.tables import terminal_table
from counterfoil.train.tensors import read_tensors, write_tensors

DEPTH = 10
NUMBERS, TENSORS = "evaluation.json", "evaluation.safetensors"
PARTS = ("ranks", "images", "folds")  # of what is kept of every query


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
        shortlists: what they let through, where other models shortlisted.
    """

    report: Report
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor
    corpus: str
    shortlists: Shortlists | None = None

    @staticmethod
    def of(
        members: Sequence[Member],
        corpus: Corpus,
        protocol: Protocol,
        *,
        tie: Tie = "row",
        seed: int | None = None,
        by: Shortlisting | None = None,
    ) -> Measured:
        """Rank a split by the mean score of the models that encoded it, or what others shortlist.

        Raises:
            ValueError: the protocol does not fit the split.
        """
        if by:
            return _cascaded(members, by, corpus, protocol, tie, seed)
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
            besides=corpus.also,
            decided=corpus.decided,
        )
        if not whole:  # ranks are within folds, the lists are not
            sweep(members, [texts, images])
        return Measured(
            report, texts.rows, texts.scores, images.rows, images.scores, corpus.fingerprint
        )

    def show(self, name: str) -> None:
        """Print the table; beside a cascade stands what it is made of, compared with it."""
        reports, setting = {name: self.report}, self.report.setting
        if self.shortlists:
            if self.shortlists.full:
                reports["full ranking"] = self.shortlists.full
            reports[f"{setting.first} alone"] = self.shortlists.first
        console.print(terminal_table(result_table(results(reports)), setting.line()))
        if self.shortlists:
            output(self.shortlists.in_words(self.report))

    def save(self, folder: Path) -> None:
        """Write ``evaluation.json`` and ``evaluation.safetensors``."""
        tensors = {
            "texts": self.texts.int(),
            "text_scores": self.text_scores.float(),
            "images": self.images.int(),
            "image_scores": self.image_scores.float(),
            **_ranks(self.report),
        }
        for name, report in self._others().items():
            tensors |= _ranks(report, f"{name}_")
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSORS, tensors, {"corpus": self.corpus})
        write_json(folder / NUMBERS, {"corpus": self.corpus, **self.plain()})

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, without the single queries."""
        plain = self.report.plain()
        if self.shortlists is None:
            return plain
        others = {name: report.plain() for name, report in self._others().items()}
        return {**plain, "shortlists": {"ceiling": list(self.shortlists.ceiling), **others}}

    def _others(self) -> dict[str, Report]:
        if self.shortlists is None:
            return {}
        named = {"first": self.shortlists.first, "full": self.shortlists.full}
        return {name: report for name, report in named.items() if report}

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
                _shortlists(plain["shortlists"], tensors) if "shortlists" in plain else None,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds a damaged evaluation: {error!r}") from error


def shortlisting(
    names: Sequence[str],
    corpus: Corpus,
    depth: int,
    *,
    full: bool,
    find: Callable[[str], str] = str,
) -> Shortlisting | None:
    """Who shortlists a split; nobody where nobody is named.

    Args:
        names: of the models.
        corpus: the split.
        depth: how many counterparts of a query they shortlist.
        full: rank everything too.
        find: from a name to what `open_model` opens.

    Raises:
        ValueError: there is no such model, or model and data do not fit.
    """
    if not names:
        return None
    members = tuple(open_model(find(name)).member(corpus) for name in names)
    return Shortlisting(members, " + ".join(names), depth, full)


def _cascaded(
    members: Sequence[Member],
    by: Shortlisting,
    corpus: Corpus,
    protocol: Protocol,
    tie: Tie,
    seed: int | None,
) -> Measured:
    found = cascade(
        members,
        by,
        corpus.owner,
        len(corpus),
        protocol,
        head=DEPTH,
        tie=tie,
        dataset=corpus.name,
        split=corpus.part,
        seed=seed,
        besides=corpus.also,
        decided=corpus.decided,
    )
    lists = found.texts, found.text_scores, found.images, found.image_scores
    return Measured(found.report, *lists, corpus.fingerprint, found.shortlists)


def _ranks(report: Report, prefix: str = "") -> dict[str, Tensor]:
    return {
        f"{prefix}{ranked.direction}_{part}": getattr(ranked, part).int()
        for ranked in report.ranked
        for part in PARTS
    }


def _shortlists(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Shortlists:
    i2t, t2i = plain["ceiling"]
    full = _report(plain["full"], tensors, "full_") if "full" in plain else None
    return Shortlists((i2t, t2i), _report(plain["first"], tensors, "first_"), full)


def _report(plain: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> Report:
    setting = dict(plain["setting"])
    protocol = Protocol(**setting.pop("protocol"))
    ranked = tuple(
        Ranked(side, *(tensors[f"{prefix}{side}_{part}"].long() for part in PARTS))
        for side in ("i2t", "t2i")
    )
    return Report(
        Setting(protocol, **setting),
        Recall(**plain["i2t"]),
        Recall(**plain["t2i"]),
        tuple((Recall(**fold["i2t"]), Recall(**fold["t2i"])) for fold in plain["folds"]),
        (ranked[0], ranked[1]),
    )
