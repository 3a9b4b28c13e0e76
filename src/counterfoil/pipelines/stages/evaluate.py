"""Evaluation of retrieval: the stage, and the numbers, ranks and top items that it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, final

import torch
from torch import Tensor

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import Artifact, ArtifactFormat, ArtifactManifest, validated
from counterfoil.core.console import output
from counterfoil.core.io import files_digest, parsing, read_json, write_json
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.contents import data_contents
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.cascade import (
    DEPTH,
    CascadePoint,
    Shortlister,
    ShortlistReport,
    check_depth,
    evaluate_cascade,
)
from counterfoil.evaluation.galleries import RankedLists
from counterfoil.evaluation.metrics import (
    BOUNDS,
    DIRECTION_METRICS,
    OF_ALL_POSITIVES,
    Direction,
    EvaluationReport,
    EvaluationSetting,
    Protocol,
    RankedQueries,
    RecallMetrics,
    TruthName,
    further_numbers,
    warn_of_ties,
)
from counterfoil.evaluation.protocols import evaluate_protocol, folds_of, protocol_by_name
from counterfoil.evaluation.results import headline, result_table, results
from counterfoil.model import load_model
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.stages.base import Stage, models_content
from counterfoil.pipelines.state import RunContext
from counterfoil.report.tables import TerminalTable
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import Tie, TopK
from counterfoil.scoring.stream import stream_scores

if TYPE_CHECKING:
    from counterfoil.evaluation.truth import Truth
    from counterfoil.pipelines.run import DataSource

TOP = 10  # items of every list that are saved
_T = TypeVar("_T")
NUMBERS, TENSORS = "evaluation.json", "evaluation.safetensors"
PARTS = ("ranks", "images", "folds")  # tensors of the ranked queries


@final
class EvaluationManifest(ArtifactManifest):
    """The manifest of an evaluation's folder.

    Attributes:
        corpus: fingerprint of the data.
    """

    corpus: str


EVALUATION = ArtifactFormat(
    name="an evaluation", manifest=EvaluationManifest, remedy="evaluate again"
)

ProtocolName = Literal["whole", "flickr-1k", "coco-1k", "coco-5k"]


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Measure retrieval. Writes metrics and ranks.

    Attributes:
        using: stages whose models score; several are one ensemble.
        split: the split that is measured.
        protocol: "whole" ranks the split as it is; see `counterfoil.evaluation.protocols`.
        first: stages whose models shortlist, or saved models or names of pretrained ones, see
            `counterfoil.evaluation.cascade`; none for ranking everything.
        depth: length of a query's shortlist.
        full: rank everything too, to show what the shortlists lose.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.model.load_model` opens them.
        data: another data set to measure on, as `counterfoil.data.readers.load_dataset` opens it;
            None for that of the run.
        truth: what counts as true, see `counterfoil.evaluation.truth`.
        judgements: file or folder of what people judged, for a truth that reads it.
    """

    kind: ClassVar[str] = "evaluate"
    takes: ClassVar[Mapping[str, str]] = {"using": "train", "first": "train"}
    elsewhere: ClassVar[frozenset[str]] = frozenset({"first"})
    using: tuple[str, ...]
    split: str = "test"
    protocol: ProtocolName = "whole"
    first: tuple[str, ...] = ()
    depth: int = DEPTH
    full: bool = False
    models: tuple[str, ...] = ()
    data: str | None = None
    truth: TruthName = "own"
    judgements: str | None = None

    def __post_init__(self) -> None:
        check_depth(self.depth)
        if self.first and (self.truth != "own" or self.judgements):
            raise ValueError(
                f"truth {self.truth!r} needs all scores, which a shortlist avoids; leave out "
                "`first`, or the truth"
            )

    @property
    def lacks_inputs(self) -> bool:
        return not (self.using or self.models)

    @property
    def title(self) -> str:
        """The models in words; in a cascade without their folders, as there are several."""
        models = (*self.using, *self.models)
        if self.first:
            models = tuple(map(_last_part, models))
        return evaluation_title(models, tuple(map(_last_part, self.first)), self.depth)

    def digest_content(self) -> dict[str, Any]:
        content = models_content(self.models)
        if self.data is not None:
            content["data"] = data_contents(self._other(self.data).open())
        if self.judgements is not None:
            content["judgements"] = files_digest(Path(self.judgements))
        return content

    def dataset(self, context: RunContext) -> ImageTextDataset:
        """The split that is measured, of the run's data or of another data set."""
        if self.data is None:
            return context.split(self.split)
        return self._other(self.data).split(self.split)

    @staticmethod
    def _other(data: str) -> DataSource:
        from counterfoil.pipelines.run import DataSource  # which runs stages

        return DataSource.of(data)

    def check(self, context: RunContext) -> None:
        """Refuse a split that does not exist or does not fit the protocol, or such judgements."""
        dataset = self.dataset(context)
        folds_of(protocol_by_name(self.protocol), len(dataset))
        self.known(dataset)

    def known(self, dataset: ImageTextDataset) -> Truth | None:
        """What is true of a split; None for its own captions."""
        if self.truth == "own" and self.judgements is None:
            return None
        from counterfoil.evaluation.evaluate import truth_of

        return truth_of(dataset, self.truth, self.judgements, protocol_by_name(self.protocol))

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Measure and save numbers, ranks and the first items of every list; print them."""
        dataset, protocol = self.dataset(context), protocol_by_name(self.protocol)
        names = (*(str(context.place(name)) for name in self.using), *self.models)
        models = [load_model(name) for name in names]
        members = [model.embed(dataset) for model in models]
        seed = context.recipe.stage(self.using[0]).training_seed if self.using else None
        shortlist = build_shortlist(
            self.first,
            dataset,
            self.depth,
            full=self.full,
            find=context.model_path,
        )
        evaluation = RetrievalEvaluation.of(
            members, dataset, protocol, seed=seed, by=shortlist, truth=self.known(dataset)
        )
        if distributed.rank() == 0:
            evaluation.save(context.place(self.name))
            reported = any(self.name in stage.reads for stage in context.recipe.stages)
            if evaluation.shortlists or not reported:  # no report tells a shortlist's protocol
                evaluation.show(", ".join((*self.using, *self.models)))


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def evaluation_title(models: Sequence[str], first: Sequence[str], depth: int) -> str:
    """The models of an evaluation in words: an ensemble, or one on the shortlists of another.

    >>> evaluation_title(("a", "b"), (), 20)
    'a + b'
    >>> evaluation_title(("a",), ("b",), 20)
    'a on top-20 of b'
    """
    title = " + ".join(models)
    return f"{title} on top-{depth} of {' + '.join(first)}" if first else title


@final
@dataclass(frozen=True, slots=True, eq=False)
class RetrievalEvaluation:
    """Result of an evaluation.

    Attributes:
        report: numbers and ranks.
        texts: (I, K) first texts of every image, -1 for none.
        text_scores: (I, K).
        images: (T, K) first images of every text.
        image_scores: (T, K).
        dataset: fingerprint of the split.
        shortlists: ceiling and numbers of the shortlists, where other models shortlisted.
    """

    report: EvaluationReport
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor
    dataset: str
    shortlists: ShortlistReport | None = None

    @staticmethod
    def of(
        members: Sequence[EmbeddedDataset],
        dataset: ImageTextDataset,
        protocol: Protocol,
        *,
        tie: Tie = "row",
        seed: int | None = None,
        by: Shortlister | None = None,
        truth: Truth | None = None,
        bounded: bool = False,
    ) -> RetrievalEvaluation:
        """Rank a split, or the shortlists of other models, by the mean score of the members."""
        if by:
            cascade = evaluate_cascade(members, by, dataset, protocol, head=TOP, tie=tie, seed=seed)
            warn_of_ties(cascade.report)
            lists = cascade.texts, cascade.text_scores, cascade.images, cascade.image_scores
            return RetrievalEvaluation(
                cascade.report, *lists, dataset.fingerprint, cascade.shortlists
            )
        texts = TopK("image", len(dataset), min(TOP, len(dataset.texts)))
        images = TopK("text", len(dataset.texts), min(TOP, len(dataset)))
        single_fold = protocol.folds == 1
        report = evaluate_protocol(
            members,
            dataset,
            protocol,
            tie=tie,
            seed=seed,
            also=(texts, images) if single_fold else (),
            truth=truth,
            bounded=bounded,
        )
        warn_of_ties(report)
        if not single_fold:  # ranks are within folds, the lists are not
            stream_scores(members, [texts, images])
        return RetrievalEvaluation(
            report, texts.rows, texts.scores, images.rows, images.scores, dataset.fingerprint
        )

    @property
    def ranked_lists(self) -> tuple[RankedLists, RankedLists]:
        """The first texts of images, and the first images of texts, with the ranks of the true."""
        i2t, t2i = self.report.ranked
        return (
            RankedLists(i2t, self.texts, self.text_scores),
            RankedLists(t2i, self.images, self.image_scores),
        )

    def show(self, name: str) -> None:
        """Print verdict and table; a cascade beside its parts."""
        reports, setting = {name: self.report}, self.report.setting
        if self.shortlists:
            if self.shortlists.full:
                reports["full ranking"] = self.shortlists.full
            reports[f"{setting.first} alone"] = self.shortlists.first
        runs = results(reports)
        output(f"{name} on {setting.place}: {headline(runs[:1])}")
        if self.shortlists:
            output(self.shortlists.describe(self.report))
        console.print(TerminalTable(result_table(runs), setting.line()))

    def save(self, folder: Path, models: Sequence[str] = ()) -> None:
        """Write ``evaluation.json`` and ``evaluation.safetensors``, and a manifest of both."""
        tensors = {
            "texts": self.texts.int(),
            "text_scores": self.text_scores.float(),
            "images": self.images.int(),
            "image_scores": self.image_scores.float(),
            **_ranks(self.report),
        }
        for name, report in self._others().items():
            tensors |= _ranks(report, f"{name}_")
        plain = {"corpus": self.dataset, **self.to_dict()}
        if models:
            plain["models"] = list(models)
        if self.shortlists and self.shortlists.curve:
            for point in self.shortlists.curve:
                tensors |= _ranks(point.report, f"top-{point.depth}_")
            plain["shortlists"]["curve"] = [
                {"depth": point.depth, "pairs": point.pairs, **point.report.to_dict()}
                for point in self.shortlists.curve
            ]
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSORS, tensors, {"corpus": self.dataset})
        write_json(folder / NUMBERS, plain)
        manifest = EvaluationManifest(corpus=self.dataset, version=__version__)
        EVALUATION.write_manifest(folder, manifest, [NUMBERS, TENSORS])

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
        """Read what `save` wrote.

        Raises:
            ValueError: there is none, it is of another version, or it is damaged, as by a kill
                while it was replaced.
        """
        opened = EVALUATION.open(folder)
        opened.check(NUMBERS, TENSORS)
        path = folder / NUMBERS
        plain = read_json(path, "an evaluation")
        tensors, about = read_tensors(folder / TENSORS, "the ranks of an evaluation")
        with parsing(path, "an evaluation"):
            return RetrievalEvaluation(
                _report(plain, tensors, opened),
                tensors["texts"].long(),
                tensors["text_scores"],
                tensors["images"].long(),
                tensors["image_scores"],
                about["corpus"],
                _shortlists(plain["shortlists"], tensors, opened)
                if "shortlists" in plain
                else None,
            )


def build_shortlist(
    names: Sequence[str],
    dataset: ImageTextDataset,
    depth: int,
    *,
    full: bool,
    find: Callable[[str], str] = str,
) -> Shortlister | None:
    """Encode a split with the models that shortlist; None where none is named."""
    if not names:
        return None
    members = tuple(load_model(find(name)).embed(dataset) for name in names)
    return Shortlister(members, " + ".join(names), depth, full)


def _ranks(report: EvaluationReport, prefix: str = "") -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for ranked in report.ranked:
        name = f"{prefix}{ranked.direction}"
        tensors |= {f"{name}_{part}": getattr(ranked, part).int() for part in PARTS}
        if (places := ranked.places) is not None:
            parts = (each.name for each in fields(places))
            tensors |= {f"{name}_places_{part}": getattr(places, part) for part in parts}
            tensors[f"{name}_own"] = ranked.own
        if ranked.bounds:
            tensors[f"{name}_bounds"] = torch.stack([ranked.bounds[each.name] for each in BOUNDS])
    return tensors


def _read_ranks(side: Direction, tensors: Mapping[str, Tensor], prefix: str = "") -> RankedQueries:
    name = f"{prefix}{side}"
    ranks, images, folds = (tensors[f"{name}_{part}"].long() for part in PARTS)
    ranked = RankedQueries(side, ranks, images, folds)
    if f"{name}_own" not in tensors:
        return ranked
    from counterfoil.scoring.true_places import TruePlaces  # for those who asked

    places = TruePlaces(*(tensors[f"{name}_places_{each.name}"] for each in fields(TruePlaces)))
    ends = zip(BOUNDS, tensors.get(f"{name}_bounds", ()), strict=False)
    known = {metric.name: end for metric, end in ends}
    return replace(ranked, places=places, own=tensors[f"{name}_own"], bounds=known)


def _shortlists(
    plain: Mapping[str, Any], tensors: Mapping[str, Tensor], opened: Artifact[EvaluationManifest]
) -> ShortlistReport:
    i2t, t2i = map(float, plain["ceiling"])
    full = _report(plain["full"], tensors, opened, "full_") if "full" in plain else None
    curve = tuple(
        CascadePoint(
            int(point["depth"]),
            int(point["pairs"]),
            _report(point, tensors, opened, f"top-{point['depth']}_"),
        )
        for point in plain.get("curve", ())
    )
    first = _report(plain["first"], tensors, opened, "first_")
    return ShortlistReport((i2t, t2i), first, full, curve)


def _report(
    plain: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    opened: Artifact[EvaluationManifest],
    prefix: str = "",
) -> EvaluationReport:
    path, version = opened.folder / NUMBERS, opened.manifest.version

    def checked(kind: type[_T], content: object) -> _T:
        return validated(kind, content, path, EVALUATION.remedy, strict=True, version=version)

    ranked = _read_ranks("i2t", tensors, prefix), _read_ranks("t2i", tensors, prefix)
    setting = checked(EvaluationSetting, plain["setting"])
    folds = [
        tuple(checked(RecallMetrics, _with_every_metric(fold[r.direction], r, n)) for r in ranked)
        for n, fold in enumerate(plain["folds"])
    ]
    i2t, t2i = (checked(RecallMetrics, _with_every_metric(plain[r.direction], r)) for r in ranked)
    return EvaluationReport(
        setting,
        i2t,
        t2i,
        tuple((fold[0], fold[1]) for fold in folds),
        ranked,
        (*(OF_ALL_POSITIVES if ranked[0].places else ()), *(BOUNDS if ranked[0].bounds else ())),
    )


def _with_every_metric(
    plain: Mapping[str, Any], ranked: RankedQueries, fold: int | None = None
) -> Mapping[str, Any]:
    """The numbers of a direction with those of metrics that came later, from the stored ranks."""
    from_places = {metric.key for metric in (*OF_ALL_POSITIVES, *BOUNDS)}
    plain = {key: number for key, number in plain.items() if key not in from_places}
    missing = {key: metric for key, metric in DIRECTION_METRICS.items() if key not in plain}
    if not missing:
        return plain
    if fold is not None:
        ranked = replace(ranked, folds=(ranked.folds == fold).long() - 1)
    return {
        **plain,
        **dict(zip(missing, further_numbers(ranked, [*missing.values()]), strict=True)),
    }
