"""Diagnosis of mined negatives: hardness, hubs, and suspected false negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.model import Model
from counterfoil.negatives.diagnose import (
    HubStatistics,
    InspectedPairs,
    RankStatistics,
    SuspectedPositives,
    inspect_pairs,
    list_overlap,
    measure_hubs,
    pair_scores,
    statistics_by_rank,
    suspects_by_score,
    suspects_by_truth,
    suspects_by_wording,
)
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.publishing import Scorer
from counterfoil.pipelines.state import current_provenance
from counterfoil.report.figures import NamedSample, gap_histograms
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Figure,
    FigureSection,
    Page,
    PageItem,
    TableBlock,
    thumbnail,
    write_page,
)
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.scoring.encode import EmbeddedDataset

FIRST = 10  # ranks compared between the captions of an image
SHOWN = 6  # negatives shown of each anchor


@final
@dataclass(frozen=True, kw_only=True)
class DiagnosisConfig:
    """Settings of a diagnosis.

    Attributes:
        samples: number of random anchor captions.
        seed: seed of the anchors.
        alike: TF-IDF cosine from which a text is suspected to be true.
    """

    samples: int = 500
    seed: int = 0
    alike: float = 0.6


@final
@dataclass(frozen=True, slots=True, eq=False)
class DirectionDiagnosis:
    """Diagnosis of the lists of one direction.

    Attributes:
        name: the content of the lists, as "wrong texts of images".
        looked: the inspected lists.
        scores: (S, h) scores of the listed pairs; None if unknown.
        gaps: (S, h) scores minus the scores of the anchors' positives; None if unknown.
        estimates: which listed pairs may be true, by several estimates.
        ranks: statistics by rank; those of all ranks last.
        hubs: how often the same items are listed.
    """

    name: str
    looked: InspectedPairs
    scores: Tensor | None
    gaps: Tensor | None
    estimates: tuple[SuspectedPositives, ...]
    ranks: tuple[RankStatistics, ...]
    hubs: HubStatistics


@final
@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """Diagnosis of a store of mined negatives.

    Attributes:
        dataset: the split that was mined.
        line: description of the store and of the anchors, in one sentence.
        own: (T,) scores of true pairs, NaN where unknown.
        texts: lists of wrong texts of images.
        images: lists of wrong images of texts.
        first: number of ranks that `overlap` compares.
        overlap: percent that the lists of two captions of an image share; None if no image has two.
    """

    dataset: ImageTextDataset
    line: str
    own: Tensor
    texts: DirectionDiagnosis
    images: DirectionDiagnosis
    first: int
    overlap: float | None

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "corpus": self.dataset.fingerprint,
            "looked_at": self.line,
            "overlap_of_captions": {"first": self.first, "percent": self.overlap},
            **{side.name: _side_to_dict(side) for side in (self.texts, self.images)},
        }


def diagnose_lists(
    store: NegativeStore, dataset: ImageTextDataset, models: Sequence[Model], plan: DiagnosisConfig
) -> Diagnosis:
    """Measure hardness, hubs and suspected false negatives of mined negatives.

    Args:
        store: mined from `dataset`.
        dataset: the split that was mined.
        models: ensemble names mean score is compared; without one, scores of true pairs are
            unknown.
        plan: the settings.

    Raises:
        ValueError: the lists are not of this data set, it has no captions, or `alike` out of range.
    """
    lists, relation = store.lists, dataset.relation
    lists.check(relation)
    anchors = _draw_anchors(dataset, plan)
    looked = inspect_pairs(lists, relation, anchors)
    by_wording = suspects_by_wording(dataset, looked, least=plan.alike)
    by_truth = suspects_by_truth(dataset, looked)
    scores = _score_pairs(store, dataset, models, looked)
    directions = (
        ("wrong texts of images", lists.texts, len(dataset.texts)),
        ("wrong images of texts", lists.images, len(dataset)),
    )
    texts, images = (
        _diagnose_direction(
            name, looked[n], [*by_wording[n], *by_truth[n]], scores, n, measure_hubs(rows, count)
        )
        for n, (name, rows, count) in enumerate(directions)
    )
    groups = [
        relation.captions(image)[0]
        for image in torch.split(_distinct(relation.text_to_image[anchors]), 1)
    ]
    first = min(FIRST, lists.images.shape[1])
    return Diagnosis(
        dataset=dataset,
        line=f"{_describe_store(store, dataset)}; {len(anchors):,} captions looked at, "
        f"drawn with seed {plan.seed}; {scores.description}",
        own=scores.positives,
        texts=texts,
        images=images,
        first=first,
        overlap=list_overlap(lists.images, groups, first=first),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _PairScores:
    """Scores of the true and of the listed pairs."""

    positives: Tensor  # (T,), NaN where unknown
    listed: tuple[Tensor | None, Tensor | None]  # of both directions, (S, h); None if unknown
    description: str


def _draw_anchors(dataset: ImageTextDataset, plan: DiagnosisConfig) -> Tensor:
    """Rows of random captions of images, in order."""
    captions = (dataset.text_to_image >= 0).nonzero().squeeze(1)
    if not len(captions):
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no caption of an image to look at"
        )
    rng = torch.Generator().manual_seed(plan.seed)
    return captions[torch.randperm(len(captions), generator=rng)[: plan.samples]].sort().values


def _score_pairs(
    store: NegativeStore,
    dataset: ImageTextDataset,
    models: Sequence[Model],
    looked: tuple[InspectedPairs, InspectedPairs],
) -> _PairScores:
    """Scores in the store if the same models made them, else scores computed now."""
    positives = torch.full((len(dataset.texts),), torch.nan)
    lists = store.lists
    stored: tuple[Tensor | None, Tensor | None] = None, None
    if lists.text_scores is not None and lists.image_scores is not None:
        anchors = looked[0].anchors
        stored = lists.text_scores[anchors.image].float(), lists.image_scores[anchors.text].float()
    if not models:
        return _PairScores(positives, stored, "no model, so no score of a true pair")
    images = _distinct(looked[0].anchors.image)
    texts, counts = dataset.relation.captions(images)
    names = " + ".join(model.name for model in models)
    kind = Scorer(names, names, tuple(models)).describe()
    # the store holds half precision: positives are rounded alike before they are compared
    if stored[0] is not None and _made_by(store, models):
        members = [model.embed(dataset.subset(images)) for model in models]
        image_rows = torch.arange(len(images)).repeat_interleave(counts)
        positives[texts] = (
            pair_scores(members, Pairs(image_rows, torch.arange(len(texts)))).half().float()
        )
        return _PairScores(positives, stored, f"scores of {names} ({kind}), in lists as kept")
    members = [model.embed(dataset) for model in models]
    positives[texts] = pair_scores(members, Pairs(dataset.text_to_image[texts], texts))
    scores = _listed_scores(members, looked[0]), _listed_scores(members, looked[1])
    return _PairScores(positives, scores, f"scores of {names} ({kind})")


def _distinct(rows: Tensor) -> Tensor:
    """The distinct rows, in order."""
    return torch.bincount(rows).nonzero().squeeze(1)


def _made_by(store: NegativeStore, models: Sequence[Model]) -> bool:
    """Whether the scores of a store are those of an ensemble, in any order."""
    ours, theirs = (
        sorted(sources, key=lambda source: source.checkpoint)
        for sources in (store.manifest.sources, [model.source() for model in models])
    )
    return len(ours) == len(theirs) and all(map(ModelSource.same, ours, theirs))


def _listed_scores(members: Sequence[EmbeddedDataset], looked: InspectedPairs) -> Tensor:
    pairs, listed = looked.pairs, looked.listed
    scores = torch.full(listed.shape, -torch.inf)
    scores[listed] = pair_scores(members, Pairs(pairs.image[listed], pairs.text[listed]))
    return scores


def _diagnose_direction(
    name: str,
    looked: InspectedPairs,
    estimates: list[SuspectedPositives],
    known: _PairScores,
    place: int,
    hubs: HubStatistics,
) -> DirectionDiagnosis:
    scores, positive = known.listed[place], known.positives[looked.anchors.text]
    gaps = None
    if scores is not None and not bool(positive.isnan().any()):
        gaps = scores - positive.unsqueeze(1)
        estimates = [*estimates, suspects_by_score(looked, scores, positive)]
    return DirectionDiagnosis(
        name,
        looked,
        scores,
        gaps,
        tuple(estimates),
        statistics_by_rank(looked, estimates, gaps),
        hubs,
    )


def _describe_store(store: NegativeStore, dataset: ImageTextDataset) -> str:
    m = store.manifest
    makers = " + ".join(source.matcher.split("(")[0] for source in m.sources) or "elsewhere"
    left = f"; left out: {', '.join(m.filters)}" if m.filters else ""
    return (
        f"{dataset.name} {m.split}: {m.image_count:,} images, {m.text_count:,} texts; lists of "
        f"{m.texts_per_image} texts and {m.images_per_text} images, mined "
        f"{'by ' if m.sources else ''}{makers}{left}"
    )


def _side_to_dict(side: DirectionDiagnosis) -> dict[str, Any]:
    names = [estimate.name for estimate in side.estimates]
    ranks = [{**asdict(rank), "suspected": dict(zip(names, rank.suspected))} for rank in side.ranks]
    meaning = {estimate.name: estimate.description for estimate in side.estimates}
    return {"ranks": ranks, "estimates": meaning, "hubs": asdict(side.hubs)}


def diagnosis_tables(diagnosis: Diagnosis) -> tuple[TableBlock, ...]:
    """Tables of hardness and suspects by rank of both directions, and of hubs."""
    ranks = (
        _rank_table(diagnosis.texts, ()),
        _rank_table(diagnosis.images, _meanings(diagnosis.images)),
    )
    return (*ranks, _hub_table(diagnosis))


def write_diagnosis(diagnosis: Diagnosis, page: Path, *, title: str, examples: int) -> None:
    """Write the page: tables, a histogram of the score gaps, and examples."""
    groups = tuple(
        _example_section(diagnosis, side, examples, of_images=side is diagnosis.texts)
        for side in (diagnosis.texts, diagnosis.images)
    )
    gaps = _gaps(diagnosis)
    write_page(
        Page(
            title=f"Mined negatives in {title}",
            headline="",
            protocol=diagnosis.line,
            provenance=current_provenance(),
            tables=diagnosis_tables(diagnosis),
            sections=(*([FigureSection("Hardness of negatives", gaps)] if gaps else []), *groups),
        ),
        page,
    )


def _rank_table(side: DirectionDiagnosis, notes: tuple[str, ...]) -> TableBlock:
    scored = side.gaps is not None
    rows = []
    for place, rank in enumerate(side.ranks):
        whole = place > 0 and place == len(side.ranks) - 1
        span = f"{rank.first}" if rank.first == rank.last else f"{rank.first}–{rank.last}"
        gap = "–" if rank.gap is None else f"{rank.gap:+.3f}".replace("-", "−")
        cells = ["all" if whole else span, f"{rank.pairs:,}", *([gap] if scored else [])]
        rows.append((*cells, *(_percent(share) for share in rank.suspected)))
    columns = ("rank", "pairs", *(["median gap"] if scored else []))
    heads = tuple(f"{estimate.name}, %" for estimate in side.estimates)
    title = f"{side.name[0].upper()}{side.name[1:]}: hardness and suspects"
    return TableBlock(title, (*columns, *heads), tuple(rows), "\n".join(notes))


def _meanings(side: DirectionDiagnosis) -> tuple[str, ...]:
    scored = side.gaps is not None
    gap = ("Median gap: score less that of the anchor pair.",) if scored else ()
    return (
        *gap,
        *(
            f"{e.name.capitalize()}: percent of pairs whose text {e.description}."
            for e in side.estimates
        ),
    )


def _hub_table(diagnosis: Diagnosis) -> TableBlock:
    rows = tuple(
        (
            side.name,
            f"{side.hubs.skewness:.2f}",
            _percent(side.hubs.never),
            _percent(side.hubs.crowd),
        )
        for side in (diagnosis.texts, diagnosis.images)
    )
    names = (_name_texts(diagnosis.dataset), _name_images(diagnosis.dataset))
    largest = [
        f"Most listed of the {side.name}: "
        + "; ".join(
            f"{name(row)} ({count:,} of {len_:,} lists)" for row, count in side.hubs.largest
        )
        for side, name, len_ in zip(
            (diagnosis.texts, diagnosis.images),
            names,
            (len(diagnosis.dataset), len(diagnosis.dataset.texts)),
        )
    ]
    shared = "–" if diagnosis.overlap is None else _percent(diagnosis.overlap)
    notes = (
        f"Of how often each is among the first {diagnosis.texts.hubs.first} texts or "
        f"{diagnosis.images.hubs.first} images of a list: skewness, percent never listed, percent "
        "of all places taken by the most listed hundredth.",
        *largest,
        f"Two captions of an image share {shared} % of their first {diagnosis.first} images "
        "(Jaccard).",
    )
    return TableBlock(
        "Hubs", ("lists", "skewness", "never, %", "hundredth, %"), rows, "\n".join(notes)
    )


def _gaps(diagnosis: Diagnosis) -> tuple[Figure, ...]:
    sources = [
        NamedSample(side.name, side.gaps[side.looked.listed].numpy())
        for side in (diagnosis.texts, diagnosis.images)
        if side.gaps is not None and bool(side.looked.listed.any())
    ]
    return (gap_histograms(sources),) if sources else ()


def _example_section(
    diagnosis: Diagnosis, side: DirectionDiagnosis, count: int, *, of_images: bool
) -> CardSection:
    """Cards of some anchors, one of each image."""
    anchors = side.looked.anchors
    lines: dict[int, int] = {}
    for line, image in enumerate(anchors.image.tolist()):
        lines.setdefault(image, line)
    step = max(1, len(lines) // max(count, 1))  # spread over the split
    chosen = list(lines.values())[::step][:count]
    rows = tuple(_example(diagnosis, side, line, of_images=of_images) for line in chosen)
    note = "Anchors spread over the split; marked is what may be true after all."
    if of_images and side.gaps is not None:
        note += " Above positive: above the one of the image's own captions that was drawn."
    return CardSection(f"{side.name[0].upper()}{side.name[1:]}", note, rows)


def _example(
    diagnosis: Diagnosis, side: DirectionDiagnosis, line: int, *, of_images: bool
) -> ExampleCard:
    dataset, looked = diagnosis.dataset, side.looked
    image, text = int(looked.anchors.image[line]), int(looked.anchors.text[line])
    depth = min(SHOWN, int(looked.listed[line].sum()))
    listed = tuple(_listed_item(dataset, side, line, n, of_images=of_images) for n in range(depth))
    if of_images:
        captions, _ = dataset.relation.captions(looked.anchors.image[line : line + 1])
        own = tuple(
            PageItem(dataset.texts[row], true=True, score=_none_if_nan(float(diagnosis.own[row])))
            for row in captions.tolist()
        )
        return ExampleCard(_image(dataset, image), "", (CardColumn("", "", (*own, *listed)),))
    shown = replace(_image(dataset, image, score=float(diagnosis.own[text])), true=True)
    return ExampleCard(PageItem(dataset.texts[text]), "", (CardColumn("", "", (shown, *listed)),))


def _listed_item(
    dataset: ImageTextDataset, side: DirectionDiagnosis, line: int, place: int, *, of_images: bool
) -> PageItem:
    marks = tuple(e.name for e in side.estimates if bool(e.suspected[line, place]))
    score = None if side.scores is None else float(side.scores[line, place])
    pairs = side.looked.pairs
    if of_images:
        item = PageItem(dataset.texts[int(pairs.text[line, place])], place=place + 1, score=score)
    else:
        row = int(pairs.image[line, place])
        item = _image(dataset, row, place=place + 1, score=score)
    return replace(item, marks=marks)


def _image(
    dataset: ImageTextDataset, row: int, *, place: int = 0, score: float | None = None
) -> PageItem:
    picture = thumbnail(dataset.pictures.open(row)) if dataset.pictures else None
    return PageItem(_image_places(dataset)(row), picture, place=place, score=_none_if_nan(score))


def _none_if_nan(score: float | None) -> float | None:
    return None if score is None or score != score else score


def _name_texts(dataset: ImageTextDataset) -> Callable[[int], str]:
    return lambda row: f"“{dataset.texts[row]}”"


def _name_images(dataset: ImageTextDataset) -> Callable[[int], str]:
    """Name images by id and first caption."""

    def name(row: int) -> str:
        captions, _ = dataset.relation.captions(torch.tensor([row]))
        first = next((f" “{dataset.texts[text]}”" for text in captions.tolist()), "")
        return f"{dataset.image_ids[row]}{first}"

    return name


def _image_places(dataset: ImageTextDataset) -> Callable[[int], str]:
    pictures = dataset.pictures
    return pictures.place if pictures else lambda row: dataset.image_ids[row]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1f}"
