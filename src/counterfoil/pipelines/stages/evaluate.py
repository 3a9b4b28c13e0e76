"""A finished evaluation: numbers, ranks, and the first items of every list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from counterfoil.core.console import output
from counterfoil.core.io import read_json, write_json
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.cascade import Shortlisting, Shortlists, evaluate_cascade
from counterfoil.evaluation.metrics import (
    EvaluationReport,
    EvaluationSetting,
    Protocol,
    RankedQueries,
    RecallMetrics,
    Tie,
)
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.results import result_table, results
from counterfoil.model import load_model
from counterfoil.pipelines.plan import console
from counterfoil.report.tables import terminal_table
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

DEPTH = 10
NUMBERS, TENSORS = "evaluation.json", "evaluation.safetensors"
PARTS = ("ranks", "images", "folds")  # of what is kept of every query


@final
@dataclass(frozen=True, slots=True, eq=False)
class RetrievalEvaluation:
    """One evaluation.

    Attributes:
        report: numbers and ranks.
        texts: (I, K) first texts of every image, -1 for none.
        text_scores: (I, K).
        images: (T, K) first images of every text.
        image_scores: (T, K).
        dataset: fingerprint of the split.
        shortlists: what they let through, where other models shortlisted.
    """

    report: EvaluationReport
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor
    dataset: str
    shortlists: Shortlists | None = None

    @staticmethod
    def of(
        members: Sequence[EmbeddedDataset],
        dataset: ImageTextDataset,
        protocol: Protocol,
        *,
        tie: Tie = "row",
        seed: int | None = None,
        by: Shortlisting | None = None,
    ) -> RetrievalEvaluation:
        """Rank a split by the mean score of the models that encoded it, or what others shortlist.

        Raises:
            ValueError: the protocol does not fit the split.
        """
        if by:
            return _cascaded(members, by, dataset, protocol, tie, seed)
        texts = TopK("image", len(dataset), min(DEPTH, len(dataset.texts)))
        images = TopK("text", len(dataset.texts), min(DEPTH, len(dataset)))
        whole = protocol.folds == 1
        report = evaluate_protocol(
            members,
            dataset.text_to_image,
            len(dataset),
            protocol,
            tie=tie,
            dataset=dataset.name,
            split=dataset.split_name,
            seed=seed,
            also=(texts, images) if whole else (),
            besides=dataset.extra_positives,
            decided=dataset.corrections,
        )
        if not whole:  # ranks are within folds, the lists are not
            stream_scores(members, [texts, images])
        return RetrievalEvaluation(
            report, texts.rows, texts.scores, images.rows, images.scores, dataset.fingerprint
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
            output(self.shortlists.describe(self.report))

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
        write_tensors(folder / TENSORS, tensors, {"corpus": self.dataset})
        write_json(folder / NUMBERS, {"corpus": self.dataset, **self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without the single queries."""
        plain = self.report.to_dict()
        if self.shortlists is None:
            return plain
        others = {name: report.to_dict() for name, report in self._others().items()}
        return {**plain, "shortlists": {"ceiling": list(self.shortlists.ceiling), **others}}

    def _others(self) -> dict[str, EvaluationReport]:
        if self.shortlists is None:
            return {}
        named = {"first": self.shortlists.first, "full": self.shortlists.full}
        return {name: report for name, report in named.items() if report}

    @staticmethod
    def open(folder: Path) -> RetrievalEvaluation:
        """What `save` wrote.

        Raises:
            ValueError: there is no evaluation, or it is damaged.
        """
        plain = read_json(folder / NUMBERS, "an evaluation")
        tensors, about = read_tensors(folder / TENSORS, "the ranks of an evaluation")
        try:
            report = _report(plain, tensors)
            return RetrievalEvaluation(
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


def build_shortlist(
    names: Sequence[str],
    dataset: ImageTextDataset,
    depth: int,
    *,
    full: bool,
    find: Callable[[str], str] = str,
) -> Shortlisting | None:
    """Who shortlists a split; nobody where nobody is named.

    Args:
        names: of the models.
        dataset: the split.
        depth: how many counterparts of a query they shortlist.
        full: rank everything too.
        find: from a name to what `load_model` opens.

    Raises:
        ValueError: there is no such model, or model and data do not fit.
    """
    if not names:
        return None
    members = tuple(load_model(find(name)).embed(dataset) for name in names)
    return Shortlisting(members, " + ".join(names), depth, full)


def _cascaded(
    members: Sequence[EmbeddedDataset],
    by: Shortlisting,
    dataset: ImageTextDataset,
    protocol: Protocol,
    tie: Tie,
    seed: int | None,
) -> RetrievalEvaluation:
    found = evaluate_cascade(
        members,
        by,
        dataset.text_to_image,
        len(dataset),
        protocol,
        head=DEPTH,
        tie=tie,
        dataset=dataset.name,
        split=dataset.split_name,
        seed=seed,
        besides=dataset.extra_positives,
        decided=dataset.corrections,
    )
    lists = found.texts, found.text_scores, found.images, found.image_scores
    return RetrievalEvaluation(found.report, *lists, dataset.fingerprint, found.shortlists)


def _ranks(report: EvaluationReport, prefix: str = "") -> dict[str, Tensor]:
    return {
        f"{prefix}{ranked.direction}_{part}": getattr(ranked, part).int()
        for ranked in report.ranked
        for part in PARTS
    }


def _shortlists(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Shortlists:
    i2t, t2i = plain["ceiling"]
    full = _report(plain["full"], tensors, "full_") if "full" in plain else None
    return Shortlists((i2t, t2i), _report(plain["first"], tensors, "first_"), full)


def _report(
    plain: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = ""
) -> EvaluationReport:
    setting = dict(plain["setting"])
    protocol = Protocol(**setting.pop("protocol"))
    ranked = tuple(
        RankedQueries(side, *(tensors[f"{prefix}{side}_{part}"].long() for part in PARTS))
        for side in ("i2t", "t2i")
    )
    return EvaluationReport(
        EvaluationSetting(protocol, **setting),
        RecallMetrics(**plain["i2t"]),
        RecallMetrics(**plain["t2i"]),
        tuple(
            (RecallMetrics(**fold["i2t"]), RecallMetrics(**fold["t2i"])) for fold in plain["folds"]
        ),
        (ranked[0], ranked[1]),
    )
