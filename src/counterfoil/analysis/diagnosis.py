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
from counterfoil.scoring.embedding_store import Source
from counterfoil.scoring.encode import EmbeddedDataset

FIRST = 10  # ranks compared between the captions of an image


@final
@dataclass(frozen=True, kw_only=True)
class DiagnosisConfig:
    """How to look at a store.

    Attributes:
        samples: how many anchor captions to look at, drawn at random.
        seed: of the draw.
        alike: TF-IDF cosine that makes a text suspect.
    """

    samples: int = 500
    seed: int = 0
    alike: float = 0.6


@final
@dataclass(frozen=True, slots=True, eq=False)
class DirectionDiagnosis:
    """What was found on one side.

    Attributes:
        name: what the lists hold.
        looked: the lists that were looked at.
        scores: (S, h) of the listed pairs; None where they are not known.
        gaps: (S, h) scores less the anchor pairs' scores; None where they are not known.
        estimates: of which listed pairs are true.
        ranks: numbers by rank; the whole last.
        hubs: who is listed most.
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
    """All that was found.

    Attributes:
        dataset: the split that was mined.
        line: what was looked at, in one sentence.
        own: (T,) scores of true pairs, NaN where they are not known.
        texts: wrong texts of images.
        images: wrong images of texts.
        first: how many ranks `list_overlap` looks at.
        overlap: percent that the lists of two captions of an image share; None without such two.
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
            **{side.name: _plain(side) for side in (self.texts, self.images)},
        }


def diagnose_lists(
    store: NegativeStore, dataset: ImageTextDataset, models: Sequence[Model], plan: DiagnosisConfig
) -> Diagnosis:
    """Look at a store.

    Args:
        store: mined from `dataset`.
        dataset: the split that was mined.
        models: whose mean score is compared; with none, scores of true pairs are not known.
        plan: how to look.

    Raises:
        ValueError: the lists are not of this data set, it has no captions, or `alike` out of range.
    """
    lists, relation = store.lists, dataset.relation
    lists.check(relation)
    drawn = _draw(dataset, plan)
    looked = inspect_pairs(lists, relation, drawn)
    worded, true = (
        suspects_by_wording(dataset, looked, least=plan.alike),
        suspects_by_truth(dataset, looked),
    )
    scored = _scored(store, dataset, models, looked)
    sizes = (
        ("wrong texts of images", lists.texts, len(dataset.texts)),
        ("wrong images of texts", lists.images, len(dataset)),
    )
    texts, images = (
        _side(name, looked[n], [*worded[n], *true[n]], scored, n, measure_hubs(rows, among))
        for n, (name, rows, among) in enumerate(sizes)
    )
    groups = [
        relation.captions(image)[0]
        for image in torch.split(_once(relation.text_to_image[drawn]), 1)
    ]
    first = min(FIRST, lists.images.shape[1])
    return Diagnosis(
        dataset=dataset,
        line=f"{_words(store, dataset)}; {len(drawn):,} captions looked at, drawn with seed "
        f"{plan.seed}; {scored.how}",
        own=scored.own,
        texts=texts,
        images=images,
        first=first,
        overlap=list_overlap(lists.images, groups, first=first),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """Scores of true pairs (T,), NaN where not known, of both sides' pairs, and whose they are."""

    own: Tensor
    listed: tuple[Tensor | None, Tensor | None]
    how: str


def _draw(dataset: ImageTextDataset, plan: DiagnosisConfig) -> Tensor:
    owned = (dataset.text_to_image >= 0).nonzero().squeeze(1)
    if not len(owned):
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no caption of an image to look at"
        )
    rng = torch.Generator().manual_seed(plan.seed)
    return owned[torch.randperm(len(owned), generator=rng)[: plan.samples]].sort().values


def _scored(
    store: NegativeStore,
    dataset: ImageTextDataset,
    models: Sequence[Model],
    looked: tuple[InspectedPairs, InspectedPairs],
) -> _Scored:
    """Scores kept in the store where the same models made them, else of pairs scored now."""
    own = torch.full((len(dataset.texts),), torch.nan)
    lists = store.lists
    kept: tuple[Tensor | None, Tensor | None] = None, None
    if lists.text_scores is not None and lists.image_scores is not None:
        anchors = looked[0].anchors
        kept = lists.text_scores[anchors.image].float(), lists.image_scores[anchors.text].float()
    if not models:
        return _Scored(own, kept, "no model, so no score of a true pair")
    images = _once(looked[0].anchors.image)
    texts, counts = dataset.relation.captions(images)
    whose = " + ".join(model.name for model in models)
    kind = Scorer(whose, whose, tuple(models)).describe()
    if kept[0] is not None and _made_by(store, models):
        part = [model.embed(dataset.subset(images)) for model in models]
        place = torch.arange(len(images)).repeat_interleave(counts)
        own[texts] = pair_scores(part, Pairs(place, torch.arange(len(texts)))).half().float()
        return _Scored(own, kept, f"scores of {whose} ({kind}), in lists as kept")
    members = [model.embed(dataset) for model in models]
    own[texts] = pair_scores(members, Pairs(dataset.text_to_image[texts], texts))
    found = tuple(_listed_scores(members, side) for side in looked)
    return _Scored(own, (found[0], found[1]), f"scores of {whose} ({kind})")


def _once(rows: Tensor) -> Tensor:
    """Each row once, in order."""
    return torch.bincount(rows).nonzero().squeeze(1)


def _made_by(store: NegativeStore, models: Sequence[Model]) -> bool:
    made, given = (
        sorted(some, key=lambda source: source.checkpoint)
        for some in (store.manifest.sources, [model.source() for model in models])
    )
    return len(made) == len(given) and all(map(Source.same, made, given))


def _listed_scores(members: Sequence[EmbeddedDataset], looked: InspectedPairs) -> Tensor:
    pairs, listed = looked.pairs, looked.listed
    found = torch.full(listed.shape, -torch.inf)
    found[listed] = pair_scores(members, Pairs(pairs.image[listed], pairs.text[listed]))
    return found


def _side(
    name: str,
    looked: InspectedPairs,
    estimates: list[SuspectedPositives],
    scored: _Scored,
    place: int,
    most: HubStatistics,
) -> DirectionDiagnosis:
    scores, positive = scored.listed[place], scored.own[looked.anchors.text]
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
        most,
    )


def _words(store: NegativeStore, dataset: ImageTextDataset) -> str:
    m = store.manifest
    makers = " + ".join(source.matcher.split("(")[0] for source in m.sources) or "elsewhere"
    left = f"; left out: {', '.join(m.filters)}" if m.filters else ""
    return (
        f"{dataset.name} {m.split}: {m.image_count:,} images, {m.text_count:,} texts; lists of "
        f"{m.texts_per_image} texts and {m.images_per_text} images, mined "
        f"{'by ' if m.sources else ''}{makers}{left}"
    )


def _plain(side: DirectionDiagnosis) -> dict[str, Any]:
    names = [estimate.name for estimate in side.estimates]
    ranks = [{**asdict(rank), "suspected": dict(zip(names, rank.suspected))} for rank in side.ranks]
    meaning = {estimate.name: estimate.words for estimate in side.estimates}
    return {"ranks": ranks, "estimates": meaning, "hubs": asdict(side.hubs)}


# A diagnosis as tables and as a page of examples.


DEPTH = 6  # negatives shown of each anchor


def diagnosis_tables(found: Diagnosis) -> tuple[TableBlock, ...]:
    """Hardness and suspects by rank of both sides, what the columns mean below them, and hubs."""
    ranks = _ranks(found.texts, ()), _ranks(found.images, _meanings(found.images))
    return (*ranks, _hubs(found))


def write_diagnosis(found: Diagnosis, page: Path, *, title: str, examples: int) -> None:
    """Write the page: the tables, how far negatives score below their positives, examples."""
    groups = tuple(
        _examples(found, side, examples, of_images=side is found.texts)
        for side in (found.texts, found.images)
    )
    gaps = _gaps(found)
    write_page(
        Page(
            title=f"Mined negatives in {title}",
            headline="",
            protocol=found.line,
            provenance=current_provenance(),
            tables=diagnosis_tables(found),
            sections=(*([FigureSection("Hardness of negatives", gaps)] if gaps else []), *groups),
        ),
        page,
    )


def _ranks(side: DirectionDiagnosis, notes: tuple[str, ...]) -> TableBlock:
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
        *(f"{e.name.capitalize()}: percent of pairs whose text {e.words}." for e in side.estimates),
    )


def _hubs(found: Diagnosis) -> TableBlock:
    rows = tuple(
        (
            side.name,
            f"{side.hubs.skewness:.2f}",
            _percent(side.hubs.never),
            _percent(side.hubs.crowd),
        )
        for side in (found.texts, found.images)
    )
    names = (_caption(found.dataset), _described(found.dataset))
    largest = [
        f"Most listed of the {side.name}: "
        + "; ".join(
            f"{name(row)} ({count:,} of {len_:,} lists)" for row, count in side.hubs.largest
        )
        for side, name, len_ in zip(
            (found.texts, found.images), names, (len(found.dataset), len(found.dataset.texts))
        )
    ]
    shared = "–" if found.overlap is None else _percent(found.overlap)
    notes = (
        f"Of how often each is among the first {found.texts.hubs.first} texts or "
        f"{found.images.hubs.first} images of a list: skewness, percent never listed, percent of "
        "all places taken by the most listed hundredth.",
        *largest,
        f"Two captions of an image share {shared} % of their first {found.first} images (Jaccard).",
    )
    return TableBlock(
        "Hubs", ("lists", "skewness", "never, %", "hundredth, %"), rows, "\n".join(notes)
    )


def _gaps(found: Diagnosis) -> tuple[Figure, ...]:
    sources = [
        NamedSample(side.name, side.gaps[side.looked.listed].numpy())
        for side in (found.texts, found.images)
        if side.gaps is not None and bool(side.looked.listed.any())
    ]
    return (gap_histograms(sources),) if sources else ()


def _examples(
    found: Diagnosis, side: DirectionDiagnosis, count: int, *, of_images: bool
) -> CardSection:
    """The first anchors that were drawn, one an image."""
    anchors = side.looked.anchors
    lines: dict[int, int] = {}
    for line, image in enumerate(anchors.image.tolist()):
        lines.setdefault(image, line)
    step = max(1, len(lines) // max(count, 1))  # spread over the split
    chosen = list(lines.values())[::step][:count]
    rows = tuple(_example(found, side, line, of_images=of_images) for line in chosen)
    note = "Anchors spread over the split; marked is what may be true after all."
    if of_images and side.gaps is not None:
        note += " Above positive: above the one of the image's own captions that was drawn."
    return CardSection(f"{side.name[0].upper()}{side.name[1:]}", note, rows)


def _example(
    found: Diagnosis, side: DirectionDiagnosis, line: int, *, of_images: bool
) -> ExampleCard:
    dataset, looked = found.dataset, side.looked
    image, text = int(looked.anchors.image[line]), int(looked.anchors.text[line])
    depth = min(DEPTH, int(looked.listed[line].sum()))
    listed = tuple(_listed(dataset, side, line, n, of_images=of_images) for n in range(depth))
    if of_images:
        captions, _ = dataset.relation.captions(looked.anchors.image[line : line + 1])
        own = tuple(
            PageItem(dataset.texts[row], true=True, score=_known(float(found.own[row])))
            for row in captions.tolist()
        )
        return ExampleCard(_image(dataset, image), "", (CardColumn("", "", (*own, *listed)),))
    shown = replace(_image(dataset, image, score=float(found.own[text])), true=True)
    return ExampleCard(PageItem(dataset.texts[text]), "", (CardColumn("", "", (shown, *listed)),))


def _listed(
    dataset: ImageTextDataset, side: DirectionDiagnosis, line: int, place: int, *, of_images: bool
) -> PageItem:
    marks = tuple(e.name for e in side.estimates if bool(e.found[line, place]))
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
    return PageItem(_place(dataset)(row), picture, place=place, score=_known(score))


def _known(score: float | None) -> float | None:
    return None if score is None or score != score else score


def _caption(dataset: ImageTextDataset) -> Callable[[int], str]:
    return lambda row: f"“{dataset.texts[row]}”"


def _described(dataset: ImageTextDataset) -> Callable[[int], str]:
    """Images by id and first caption."""

    def named(row: int) -> str:
        captions, _ = dataset.relation.captions(torch.tensor([row]))
        first = next((f" “{dataset.texts[text]}”" for text in captions.tolist()), "")
        return f"{dataset.image_ids[row]}{first}"

    return named


def _place(dataset: ImageTextDataset) -> Callable[[int], str]:
    pictures = dataset.pictures
    return pictures.place if pictures else lambda row: dataset.image_ids[row]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1f}"
