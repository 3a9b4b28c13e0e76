"""Diagnosis of mined negatives: hardness, hubs, and suspected false negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.galleries import shown_caption, shown_image
from counterfoil.model import Model
from counterfoil.negatives.diagnose import (
    HubStatistics,
    InspectedPairs,
    RankStatistics,
    SuspectedPositives,
    inspect_pairs,
    list_overlap,
    measure_hubs,
    statistics_by_rank,
    suspects_by_score,
    suspects_by_truth,
    suspects_by_wording,
)
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.scorers import Scorer
from counterfoil.report.analysis import Cell, cells
from counterfoil.report.figures import NamedSample, gap_histograms
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    FigureSection,
    Page,
    TableBlock,
    current_provenance,
    write_page,
)
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.scoring.pairs import score_index_pairs

FIRST = 10  # ranks compared between the captions of an image
SHOWN = 6  # negatives shown of each anchor


@final
@dataclass(frozen=True, slots=True, eq=False)
class DirectionDiagnosis:
    """Diagnosis of the lists of one direction."""

    name: str  # content of the lists, as "wrong texts of images"
    looked: InspectedPairs
    scores: Tensor | None  # (S, h), of the listed pairs; None if unknown
    gaps: Tensor | None  # (S, h), less the scores of the anchors' positives; None if unknown
    estimates: tuple[SuspectedPositives, ...]  # which listed pairs may be true
    ranks: tuple[RankStatistics, ...]  # of all ranks last
    hubs: HubStatistics


@final
@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """Diagnosis of a store of mined negatives."""

    dataset: ImageTextDataset  # the split that was mined
    line: str  # the store and the anchors, in one sentence
    own: Tensor  # (T,) scores of true pairs, NaN where unknown
    texts: DirectionDiagnosis
    images: DirectionDiagnosis
    first: int  # number of ranks that `overlap` compares
    overlap: float | None  # percent that lists of two captions of an image share, if any has two

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "corpus": self.dataset.fingerprint,
            "looked_at": self.line,
            "overlap_of_captions": {"first": self.first, "percent": self.overlap},
            **{side.name: _side_to_dict(side) for side in self.sides},
        }

    @property
    def sides(self) -> tuple[DirectionDiagnosis, DirectionDiagnosis]:
        """The diagnoses of the lists of texts and of those of images."""
        return self.texts, self.images


def diagnose_lists(
    store: NegativeStore,
    dataset: ImageTextDataset,
    models: Sequence[Model],
    *,
    samples: int = 500,
    seed: int = 0,
    alike: float = 0.6,
) -> Diagnosis:
    """Measure hardness, hubs and suspected false negatives of mined negatives.

    Args:
        store: mined from `dataset`.
        dataset: the split that was mined.
        models: ensemble whose mean score is compared; without one, scores of true pairs are
            unknown.
        samples: number of random anchor captions.
        seed: of the anchors.
        alike: TF-IDF cosine from which a text is suspected to be true.

    Raises:
        ValueError: the lists are not of this data set, it has no captions, or `alike` out of range.
    """
    if samples < 1:
        raise ValueError(f"samples={samples}: at least 1 caption is looked at")
    relation = dataset.relation
    lists = store.lists.checked(relation)
    anchors = _draw_anchors(dataset, samples, seed)
    looked = inspect_pairs(lists, relation, anchors)
    by_wording = suspects_by_wording(dataset, looked, least=alike)
    by_truth = suspects_by_truth(dataset, looked)
    positives, listed, description = _score_pairs(store, dataset, models, looked)
    sides = []
    for side, name, rows, count in (
        (0, "wrong texts of images", lists.texts, len(dataset.texts)),
        (1, "wrong images of texts", lists.images, len(dataset)),
    ):
        estimates = [*by_wording[side], *by_truth[side]]
        scores, positive, gaps = listed[side], positives[looked[side].anchors.text], None
        if scores is not None and not bool(positive.isnan().any()):
            gaps = scores - positive.unsqueeze(1)
            estimates.append(suspects_by_score(looked[side], scores, positive))
        ranks = statistics_by_rank(looked[side], estimates, gaps)
        hubs = measure_hubs(rows, count)
        sides.append(
            DirectionDiagnosis(name, looked[side], scores, gaps, tuple(estimates), ranks, hubs)
        )
    groups = [
        relation.captions(image)[0]
        for image in torch.split(_distinct(relation.text_to_image[anchors]), 1)
    ]
    first = min(FIRST, lists.images.shape[1])
    return Diagnosis(
        dataset=dataset,
        line=f"{_describe_store(store, dataset)}; {len(anchors):,} captions looked at, "
        f"drawn with seed {seed}; {description}",
        own=positives,
        texts=sides[0],
        images=sides[1],
        first=first,
        overlap=list_overlap(lists.images, groups, first=first),
    )


def _draw_anchors(dataset: ImageTextDataset, samples: int, seed: int) -> Tensor:
    """Rows of random captions of images, in order."""
    captions = dataset.relation.owned
    if not len(captions):
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no caption of an image to look at"
        )
    rng = torch.Generator().manual_seed(seed)
    return captions[torch.randperm(len(captions), generator=rng)[:samples]].sort().values


def _score_pairs(
    store: NegativeStore,
    dataset: ImageTextDataset,
    models: Sequence[Model],
    looked: tuple[InspectedPairs, InspectedPairs],
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None], str]:
    """Scores in the store if the same models made them, else scores computed now.

    Returns:
        (T,) scores of the true pairs, NaN where unknown; (S, h) of the listed pairs of both
        directions, None if unknown; and a description.
    """
    positives = torch.full((len(dataset.texts),), torch.nan)
    lists, anchors = store.lists, looked[0].anchors
    stored: tuple[Tensor | None, Tensor | None] = None, None
    if lists.text_scores is not None and lists.image_scores is not None:
        stored = lists.text_scores[anchors.image].float(), lists.image_scores[anchors.text].float()
    if not models:
        return positives, stored, "no model, so no score of a true pair"
    images = _distinct(anchors.image)
    texts, counts = dataset.relation.captions(images)
    names = " + ".join(model.name for model in models)
    description = f"scores of {names} ({Scorer(names, names, tuple(models)).describe()})"
    # the store holds half precision: positives are rounded alike before they are compared
    if stored[0] is not None and _made_by(store, models):
        members = [model.embed(dataset.subset(images)) for model in models]
        image_rows = torch.arange(len(images)).repeat_interleave(counts)
        scores = score_index_pairs(members, image_rows, torch.arange(len(texts)))
        positives[texts] = scores.half().float()
        return positives, stored, f"{description}, in lists as kept"
    members = [model.embed(dataset) for model in models]
    positives[texts] = score_index_pairs(members, dataset.text_to_image[texts], texts)
    return positives, (looked[0].scores(members), looked[1].scores(members)), description


def _distinct(rows: Tensor) -> Tensor:
    """The distinct rows, in order."""
    return torch.bincount(rows).nonzero().squeeze(1)


def _made_by(store: NegativeStore, models: Sequence[Model]) -> bool:
    """Return True if the scores of a store are those of an ensemble, in any order."""
    ours, theirs = (
        sorted(sources, key=lambda source: source.checkpoint)
        for sources in (store.manifest.sources, [model.source() for model in models])
    )
    return len(ours) == len(theirs) and all(map(ModelSource.same, ours, theirs))


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
    texts, images = diagnosis.sides
    return _rank_table(texts), _rank_table(images, _meanings(images)), _hub_table(diagnosis)


def write_diagnosis(diagnosis: Diagnosis, page: Path, *, title: str, examples: int = 6) -> None:
    """Write the page: tables, a histogram of the score gaps, and examples."""
    groups = (
        _example_section(diagnosis, side, examples, of_images=side is diagnosis.texts)
        for side in diagnosis.sides
    )
    gaps = [
        NamedSample(side.name, side.gaps[side.looked.listed].numpy())
        for side in diagnosis.sides
        if side.gaps is not None and bool(side.looked.listed.any())
    ]
    hardness = [FigureSection("Hardness of negatives", (gap_histograms(gaps),))] if gaps else []
    write_page(
        Page(
            title=f"Mined negatives in {title}",
            headline="",
            protocol=diagnosis.line,
            provenance=current_provenance(),
            tables=diagnosis_tables(diagnosis),
            sections=(*hardness, *groups),
        ),
        page,
    )


def _rank_table(side: DirectionDiagnosis, note: str = "") -> TableBlock:
    scored = side.gaps is not None
    rows = []
    for place, rank in enumerate(side.ranks):
        is_total = place > 0 and place == len(side.ranks) - 1
        span = f"{rank.first}" if rank.first == rank.last else f"{rank.first}–{rank.last}"
        gap: list[Cell] = [(rank.gap, "+.3f")] if scored else []
        rows.append(cells("all" if is_total else span, rank.pairs, *gap, *rank.suspected))
    columns = ("rank", "pairs", *(["median gap"] if scored else []))
    heads = tuple(f"{estimate.name}, %" for estimate in side.estimates)
    title = f"{side.name[0].upper()}{side.name[1:]}: hardness and suspects"
    return TableBlock(title, (*columns, *heads), tuple(rows), note)


def _meanings(side: DirectionDiagnosis) -> str:
    lines = [
        f"{e.name.capitalize()}: percent of pairs whose text {e.description}."
        for e in side.estimates
    ]
    if side.gaps is not None:
        lines.insert(0, "Median gap: score less that of the anchor pair.")
    return "\n".join(lines)


def _hub_table(diagnosis: Diagnosis) -> TableBlock:
    dataset, rows, largest = diagnosis.dataset, [], []

    def text_name(row: int) -> str:
        return f"“{dataset.texts[row]}”"

    def image_name(row: int) -> str:
        captions, _ = dataset.relation.captions(torch.tensor([row]))
        first = next((f" “{dataset.texts[text]}”" for text in captions.tolist()), "")
        return f"{dataset.image_ids[row]}{first}"

    for side, name, lists in (
        (diagnosis.texts, text_name, len(dataset)),
        (diagnosis.images, image_name, len(dataset.texts)),
    ):
        hubs = side.hubs
        rows.append(cells(side.name, (hubs.skewness, ".2f"), hubs.never, hubs.crowd))
        counts = "; ".join(f"{name(row)} ({n:,} of {lists:,} lists)" for row, n in hubs.largest)
        largest.append(f"Most listed of the {side.name}: {counts}")
    notes = (
        f"Of how often each is among the first {diagnosis.texts.hubs.first} texts or "
        f"{diagnosis.images.hubs.first} images of a list: skewness, percent never listed, percent "
        "of all places taken by the most listed hundredth.",
        *largest,
        f"Two captions of an image share {cells(diagnosis.overlap)[0]} % of their first "
        f"{diagnosis.first} images (Jaccard).",
    )
    head = "lists", "skewness", "never, %", "hundredth, %"
    return TableBlock("Hubs", head, tuple(rows), "\n".join(notes))


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
    """An anchor with its own counterparts and the first of its list, of which some are marked."""
    dataset, looked = diagnosis.dataset, side.looked
    image, text = int(looked.anchors.image[line]), int(looked.anchors.text[line])
    depth = min(SHOWN, int(looked.listed[line].sum()))
    scores = [None] * depth if side.scores is None else side.scores[line].tolist()
    if of_images:
        captions = dataset.relation.captions(torch.tensor([image]))[0].tolist()
        own = [(row, diagnosis.own[row]) for row in captions]
        asked, item, anchor, listed = shown_image, shown_caption, image, looked.pairs.text
    else:
        own = [(image, diagnosis.own[text])]
        asked, item, anchor, listed = shown_caption, shown_image, text, looked.pairs.image
    items = [
        item(dataset, row, anchor, score=None if score.isnan() else float(score))
        for row, score in own
    ]
    for place, (row, score) in enumerate(zip(listed[line, :depth].tolist(), scores)):
        marks = tuple(e.name for e in side.estimates if bool(e.suspected[line, place]))
        items.append(replace(item(dataset, row, place=place, score=score), marks=marks))
    return ExampleCard(asked(dataset, anchor), "", (CardColumn("", "", tuple(items)),))
