"""Analyses of NDGL (Zhou et al., AAAI 2025): Figures 1b, 1c, 3a, 3b and 4, and Table 3.

Each of `margin_distributions`, `quantiles`, `maps`, `student` and `against` makes one figure or
table: it takes what ``papers analyse`` takes under the same names, and returns an `Analysis`
to publish. Models are given by name, joined by ``+`` for an ensemble. Settings that fit no model,
data or folder raise a ValueError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.analysis.runs import FinishedEvaluation, common_setting, finished_evaluations
from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import compare, sums
from counterfoil.evaluation.galleries import shown_caption, shown_image
from counterfoil.evaluation.metrics import (
    MEAN_OF_BAGS,
    Direction,
    check_text_to_image,
    holds_bags,
    single_unit_vectors,
)
from counterfoil.evaluation.results import chance, signed
from counterfoil.pipelines.publishing import (
    Analysis,
    cells,
    describe_protocol,
    open_scorers,
    score_unit,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.report.figures import (
    MapPoints,
    NamedSample,
    ResultPoint,
    cumulative,
    embedding_map,
    grouped_bars,
    histogram_bins,
    histograms,
    result_curves,
)
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, Figure, TableBlock
from counterfoil.report.tables import format_interval, format_number
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK, TrueScores
from counterfoil.scoring.stream import stream_scores

# -- Figure 3b: margins ---------------------------------------------------------------------------

_QUERIES: dict[Direction, str] = {"i2t": "captions for an image", "t2i": "images for a caption"}


def margins(members: Sequence[EmbeddedDataset], text_to_image: Tensor) -> dict[Direction, Tensor]:
    """Measure margins in both directions in one pass over the scores.

    Args:
        members: models with their encodings; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none.

    Returns:
        For each direction (Q,) double, best positive score minus hardest negative score, over the
        score's unit; NaN for queries that do not have both.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or no query has both a positive and
            a negative.
    """
    images = len(members[0].images)
    check_text_to_image(text_to_image, images, len(members[0].texts))
    true = TrueScores(text_to_image)
    texts, pictures = _hardest_negatives(text_to_image, images, 1)
    stream_scores(members, [true, texts, pictures])
    level, text_to_image = true.scores.double().cpu(), text_to_image.cpu()
    best = torch.full((images,), -torch.inf, dtype=torch.double)
    best.scatter_reduce_(0, text_to_image[text_to_image >= 0], level[text_to_image >= 0], "amax")
    values: dict[Direction, Tensor] = {}
    sides: tuple[tuple[Direction, Tensor, TopK], ...]
    sides = ("i2t", best, texts), ("t2i", level, pictures)
    for direction, positive, hardest in sides:
        margin = (positive - hardest.scores[:, 0].double().cpu()) / score_unit(members)
        margin[~(positive.isfinite() & margin.isfinite())] = torch.nan
        if bool(margin.isnan().all()):
            raise ValueError(
                f"none of the {len(margin)} {direction} queries has both a true and a wrong "
                "counterpart; a margin needs one of each"
            )
        values[direction] = margin
    return values


def _hardest_negatives(text_to_image: Tensor, images: int, count: int) -> tuple[TopK, TopK]:
    """Lists of wrong texts of images, and of wrong images of texts."""
    texts = TopK("image", images, count, text_to_image)
    return texts, TopK("text", len(text_to_image), count, text_to_image)


def margin_distributions(
    models: Sequence[str], source: DataSource, *, split: str = "test"
) -> Analysis:
    """Draw how far positives score above the hardest negatives, under each model (Figure 3b)."""
    dataset, scorers = source.split(split), open_scorers(models)
    by_model = {s.name: margins(s.on(dataset), dataset.text_to_image) for s in scorers}
    samples = {
        side: [
            NamedSample(name, both[side][~both[side].isnan()].numpy())
            for name, both in by_model.items()
        ]
        for side in _QUERIES
    }
    bins = histogram_bins([sample for some in samples.values() for sample in some])
    numbers = {
        name: {side: _margin_numbers(margins, bins) for side, margins in both.items()}
        for name, both in by_model.items()
    }
    words = [
        f"{name}: median margin {format_number(both['i2t']['median'])} for images and "
        f"{format_number(both['t2i']['median'])} for captions, below 0 for "
        f"{both['i2t']['percent_below_0']:.1f} % and {both['t2i']['percent_below_0']:.1f} %"
        for name, both in numbers.items()
    ]
    head = "model", "queries", "median", "middle half", "below 0"
    note = (
        "Margin: score of the best true counterpart minus that of the hardest wrong one of the "
        "split, over the unit of the model's score. Below 0: the wrong one wins."
    )
    figures, tables = [], []
    for side, query in _QUERIES.items():
        figures.append(histograms(samples[side], bins, "margin", side, f"Asked for {query}."))
        rows = tuple(_margin_row(name, both[side]) for name, both in numbers.items())
        tables.append(TableBlock(f"Margins: {query}", head, rows, note))
    return Analysis(
        title="Margins",
        headline=f"{'; '.join(words)}.",
        protocol=describe_protocol(dataset, scorers),
        figures=tuple(figures),
        tables=tuple(tables),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "bins": bins,
            "margins": numbers,
        },
    )


def _margin_numbers(margin: Tensor, bins: Sequence[float]) -> dict[str, Any]:
    values = margin[~margin.isnan()].sort().values
    last = len(values) - 1
    edges = torch.tensor(bins, dtype=torch.double)
    return {
        "queries": len(values),
        "left_out": len(margin) - len(values),
        "median": values.median().item(),  # of two in the middle, the lower one
        "quartiles": [values[round(part * last)].item() for part in (0.25, 0.75)],
        "percent_below_0": share_below(values, 0),
        "counts": torch.histogram(values, edges).hist.long().tolist(),
    }


def _margin_row(name: str, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = map(format_number, numbers["quartiles"])
    below = f"{numbers['percent_below_0']:.1f}\u00a0%"
    return cells(name, numbers["queries"], (numbers["median"], "+.3f"), f"{low} to {high}", below)


def share_below(values: Tensor, level: float) -> float:
    """Percent of values below a level."""
    return 100 * (values < level).double().mean().item()


# -- Figure 1c: similarities of the hardest negatives ---------------------------------------------

TOP = 30
LEVEL = 0.5
_CHUNK = 512  # queries whose vectors are held together


def negative_similarities(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    top: int = TOP,
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Similarities of the `top` hardest negatives of every query in one pass over the scores.

    Args:
        members: models with their encodings; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none.
        top: negatives of a query; at most all.

    Returns:
        For "texts" and "images", the negatives, of the Q queries that have any: (Q,) scores of the
        hardest negative, over the score's unit; (P,) scores of all of them, the hardest among them;
        (P - Q,) cosines of each query's hardest negative with its others.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or there is no wrong pair.
    """
    images = len(members[0].images)
    check_text_to_image(text_to_image, images, len(members[0].texts))
    hardest = _hardest_negatives(text_to_image, images, top)
    stream_scores(members, hardest)
    similarities = {}
    for modality, direction, lists, embeddings in (
        ("texts", "i2t", hardest[0], [m.texts for m in members]),
        ("images", "t2i", hardest[1], [m.images for m in members]),
    ):
        rows, scores = lists.rows.long().cpu(), lists.scores.double().cpu() / score_unit(members)
        exists = rows >= 0
        if not bool(exists.any()):
            raise ValueError(
                f"none of the {len(rows)} {direction} queries has a wrong counterpart; more than "
                "one image is needed"
            )
        vectors, between = single_unit_vectors(embeddings), []
        for part, real in zip(torch.split(rows, _CHUNK), torch.split(exists, _CHUNK)):
            negatives = vectors[part.clamp(min=0)]  # (q, K, D)
            cosines = (negatives[:, 1:] @ negatives[:, 0].unsqueeze(2)).squeeze(2)
            between.append(cosines[real[:, 1:]].double())
        similarities[modality] = scores[exists[:, 0], 0], scores[exists], torch.cat(between)
    return similarities


def quantiles(
    model: str, source: DataSource, *, split: str = "test", top: int = TOP, level: float = LEVEL
) -> Analysis:
    """Draw how similar the hardest negatives are to the query and to each other (Figure 1c).

    The paper shows two curves and does not say which of the two its similarities are; both are
    drawn. Shares are counted below `level`.
    """
    dataset, scorers = source.split(split), open_scorers([model])
    members = scorers[0].on(dataset)
    similarities = negative_similarities(members, dataset.text_to_image, top=top)
    bags = holds_bags(members)
    samples: dict[str, list[NamedSample]] = {"query": [], "hardest negative": []}
    for modality, (hardest, every, between) in similarities.items():
        samples["query"] += [
            NamedSample(f"{modality}, hardest", hardest.numpy()),
            NamedSample(f"{modality}, top {top}", every.numpy()),
        ]
        if len(between):
            samples["hardest negative"].append(NamedSample(modality, between.numpy()))
    captions = (
        f"The hardest and the {top} hardest negatives: similarity to the query.",
        f"The {top} hardest negatives: similarity to the hardest of them.",
    )
    numbers = [
        _similarity_numbers(sample, to, level) for to, some in samples.items() for sample in some
    ]
    rows = tuple(
        cells(
            figures["of"],
            figures["to"],
            figures["count"],
            (figures["median"], ".3f"),
            f"{figures['percent_below']:.1f}\u00a0%",
        )
        for figures in numbers
    )
    note = (
        "To the query: scores over the unit of the model's score. To the hardest negative: cosines "
        "of a query's hardest negative with its others, within one modality."
    )
    head = "negatives", "similarity to the", "how many", "median", f"below {level:g}"
    _, of_texts, among_texts = similarities["texts"]
    _, of_images, among_images = similarities["images"]
    words = (
        f"Of the {top} hardest negatives {share_below(of_images, level):.0f} % of the images and "
        f"{share_below(of_texts, level):.0f} % of the texts score below {level:g}"
    )
    if len(among_images) and len(among_texts):
        words += (
            f"; {share_below(among_images, level):.0f} % and "
            f"{share_below(among_texts, level):.0f} % are less similar than that to the hardest"
        )
    return Analysis(
        title="Similarities of negatives",
        headline=f"{words}.",
        protocol=(
            f"{describe_protocol(dataset, scorers)}; the {top} hardest negatives of each query"
        ),
        figures=tuple(
            cumulative(some, level, f"similarity to the {to}", to.split()[0], caption)
            for (to, some), caption in zip(samples.items(), captions)
            if some
        ),
        tables=(TableBlock("Similarities", head, rows, f"{note}{_bag_note(bags=bags)}"),),
        numbers={
            "models": [model],
            "top": top,
            "level": level,
            "bags": bags,
            "similarities": numbers,
        },
    )


def _bag_note(*, bags: bool) -> str:
    return f" {MEAN_OF_BAGS[0].upper()}{MEAN_OF_BAGS[1:]}." if bags else ""


def _similarity_numbers(sample: NamedSample, to: str, level: float) -> dict[str, Any]:
    values = torch.from_numpy(sample.values).sort().values
    return {
        "of": sample.name,
        "to": to,
        "count": len(values),
        "median": values.median().item(),
        "percent_below": share_below(values, level),
        # the 0th to the 100th percentile by tens, each one of the values
        "quantiles": [values[round(n / 10 * (len(values) - 1))].item() for n in range(11)],
    }


# -- Figure 1b: maps of queries and their nearest negatives ---------------------------------------

LABELLED = 5  # nearest negatives
PERPLEXITY = 30.0
EXACT = 500  # points at most; more would take minutes, so their gradients are approximated
_SPREAD = 1e-4  # of the first axis where t-SNE begins; more would hold points where they are
_MAP_SIDES = {"i2t": ("image", "texts"), "t2i": ("text", "images")}


def principal_components(vectors: Tensor) -> Tensor:
    """(N, 2) first two principal components, each with its largest weight positive.

    Args:
        vectors: (N, D).
    """
    centred = vectors.double() - vectors.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    # The sign of a singular vector is arbitrary; fixing it makes equal vectors give equal maps.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    points = centred @ (axes * largest.sign()).T
    return torch.nn.functional.pad(points, (0, 2 - points.shape[1]))


def tsne(vectors: Tensor, *, perplexity: float = PERPLEXITY) -> Tensor:
    """(N, 2) t-SNE of Euclidean distances; principal components of fewer than 4 points.

    Van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9 (2008). It starts from
    principal components and is deterministic up to `EXACT` points; with more it may depend on the
    number of threads.

    Args:
        vectors: (N, D).
        perplexity: effective number of neighbours; at most a third of the other points.
    """
    from sklearn.manifold import TSNE

    count = len(vectors)
    start = principal_components(vectors)
    if count < 4:
        return start
    start = _SPREAD * start / start[:, 0].std(correction=0).clamp(min=1e-12)
    fitted = TSNE(
        perplexity=min(perplexity, (count - 1) / 3),
        init=start.cpu().numpy(),
        method="exact" if count <= EXACT else "barnes_hut",
        random_state=0,
    )
    return torch.from_numpy(fitted.fit_transform(vectors.double().cpu().numpy()))


METHODS = {"tsne": ("t-SNE", tsne), "pca": ("principal components", principal_components)}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """A query, its P positives and its N nearest negatives.

    Attributes:
        direction: "i2t", an image among texts, or "t2i".
        row: of the query.
        true: (P,) rows of its positives.
        wrong: (N,) rows of its nearest negatives, nearest first.
        points: (1 + P + N, 2) the query, positives, negatives.
        cosines: mean cosine of the query with its positives, "to_true", and with its negatives,
            "to_wrong", and of two of its negatives, "among_wrong"; None without a pair.
    """

    direction: Direction
    row: int
    true: Tensor
    wrong: Tensor
    points: Tensor
    cosines: Mapping[str, float | None]


def neighbourhood(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    direction: Direction,
    row: int,
    *,
    negatives: int = 100,
    method: str = "tsne",
) -> Neighbourhood:
    """Find the positives and the nearest negatives of a query, and place them in the plane.

    Args:
        members: models with their encodings; vectors of an ensemble are concatenated.
        text_to_image: (T,) image of each text, -1 for none.
        direction: "i2t", the query is an image, or "t2i".
        row: of the query.
        negatives: number of negatives; at most all.
        method: one of `METHODS`.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, the query has no negative, or images
            and texts are vectors of different widths.
    """
    check_text_to_image(text_to_image, len(members[0].images), len(members[0].texts))
    one = torch.tensor([row])
    if direction == "i2t":
        true = (text_to_image == row).nonzero().flatten()
        alone = [EmbeddedDataset(m.model, m.images.rows(one), m.texts) for m in members]
        sides = [(m.images, m.texts) for m in alone]
        nearest = TopK("image", 1, negatives, torch.where(text_to_image == row, 0, -1))
    else:
        true = text_to_image[one][text_to_image[one] >= 0]
        alone = [EmbeddedDataset(m.model, m.images, m.texts.rows(one)) for m in members]
        sides = [(m.texts, m.images) for m in alone]
        nearest = TopK("text", 1, negatives, text_to_image[one])
    stream_scores(alone, [nearest])
    wrong = nearest.rows[0].long().cpu()
    wrong = wrong[wrong >= 0]
    if not len(wrong):
        raise ValueError(
            f"nothing is wrong for {_MAP_SIDES[direction][0]} row {row}; more than one image is "
            "needed"
        )
    query_vectors = single_unit_vectors([query for query, _ in sides])
    around = single_unit_vectors([others.rows(torch.cat([true, wrong])) for _, others in sides])
    if query_vectors.shape[1] != around.shape[1]:
        raise ValueError(
            f"images and texts of this model are vectors of {query_vectors.shape[1]} and "
            f"{around.shape[1]} numbers, which share no map; name a model that has one width"
        )
    vectors = torch.cat([query_vectors, around])
    _, project = METHODS[method]
    cosines, edge = vectors @ vectors.T, 1 + len(true)
    among = cosines[edge:, edge:][~torch.eye(len(wrong), dtype=torch.bool)]
    means = {
        name: some.mean().item() if len(some) else None
        for name, some in (
            ("to_true", cosines[0, 1:edge]),
            ("to_wrong", cosines[0, edge:]),
            ("among_wrong", among),
        )
    }
    return Neighbourhood(direction, row, true, wrong, project(vectors), means)


def maps(
    model: str,
    source: DataSource,
    *,
    split: str = "test",
    query: Sequence[str] = (),
    count: int = 1,
    negatives: int = 100,
    method: str = "tsne",
    seed: int = 0,
) -> Analysis:
    """Draw embeddings of queries, their positives and their nearest negatives (Figure 1b).

    Queries are captions of the split and ids of its images; without any, `count` images and as many
    captions are drawn. The maps themselves are deterministic.
    """
    if method not in METHODS:
        raise ValueError(unknown_name(method, list(METHODS), "a way to draw a map"))
    dataset = source.split(split)
    rows = [find_query(text, dataset) for text in query] or _random_queries(dataset, count, seed)
    scorers = open_scorers([model])
    members = scorers[0].on(dataset)
    around = [
        neighbourhood(members, dataset.text_to_image, side, row, negatives=negatives, method=method)
        for side, row in rows
    ]
    sampling, bags = None if query else seed, holds_bags(members)
    cosines = [(_MAP_SIDES[item.direction][0], item.cosines["among_wrong"]) for item in around]
    words = [
        f"{side} {place}: {cosine:.2f}"
        for place, (side, cosine) in enumerate(cosines, 1)
        if cosine is not None
    ]
    shown = [_show_map(item, dataset, f"map-{place}") for place, item in enumerate(around)]
    legend = "Letters and numbers are those beside the points; distances on a map are no scores."
    table = tuple(
        cells(
            numbers["query"],
            len(item.true),
            len(item.wrong),
            *((cosine, ".3f") for cosine in item.cosines.values()),
        )
        for item, (_, _, numbers) in zip(around, shown)
    )
    head = "query", "true", "wrong", "query to true", "query to wrong", "among wrong"
    note = f"Between the vectors, not on the map.{_bag_note(bags=bags)}"
    return Analysis(
        title="Maps of embeddings",
        headline=f"Mean cosine of two of a query's nearest wrong counterparts: {', '.join(words)}.",
        protocol=f"{describe_protocol(dataset, scorers, seed=sampling)}; {METHODS[method][0]}",
        figures=tuple(figure for figure, _, _ in shown),
        tables=(TableBlock("Mean cosines", head, table, note),),
        sections=(CardSection("On the maps", legend, tuple(card for _, card, _ in shown)),),
        numbers={
            "models": [model],
            "method": method,
            "seed": sampling,
            "bags": bags,
            "maps": [numbers for _, _, numbers in shown],
        },
    )


def find_query(query: str, dataset: ImageTextDataset) -> tuple[Direction, int]:
    """Direction and row of a caption or an image id.

    Raises:
        ValueError: the query is neither; the nearest one is named.
    """
    if query in dataset.image_ids:
        return "i2t", list(dataset.image_ids).index(query)
    if query in dataset.texts:
        return "t2i", list(dataset.texts).index(query)
    near = difflib.get_close_matches(query, [*dataset.image_ids, *dataset.texts], 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}" if near else "leave --query out to have some chosen"
    raise ValueError(
        f"{query!r} is neither a caption nor an image id of {dataset.name} {dataset.split_name}; "
        f"{hint}"
    )


def _random_queries(
    dataset: ImageTextDataset, count: int, seed: int
) -> list[tuple[Direction, int]]:
    """Images and captions at random, of those that have a positive."""
    rng = torch.Generator().manual_seed(seed)
    described = (dataset.relation.counts > 0).nonzero().flatten()
    owned = (dataset.text_to_image >= 0).nonzero().flatten()
    if not len(described):
        raise ValueError(
            f"no text of {dataset.name} {dataset.split_name} describes an image; name queries"
        )
    images = described[torch.randperm(len(described), generator=rng)[:count]]
    texts = owned[torch.randperm(len(owned), generator=rng)[:count]]
    return [*(("i2t", row) for row in images.tolist()), *(("t2i", row) for row in texts.tolist())]


def _show_map(
    neighbours: Neighbourhood, dataset: ImageTextDataset, key: str
) -> tuple[Figure, ExampleCard, dict[str, Any]]:
    """The map of a query, its labelled points as a card, and its numbers."""
    row, true, wrong = neighbours.row, neighbours.true.tolist(), neighbours.wrong.tolist()
    kind, others = _MAP_SIDES[neighbours.direction]
    if neighbours.direction == "i2t":
        query, item, name = shown_image, shown_caption, dataset.image_ids[row]
        names = dataset.text_ids
    else:
        query, item, name = shown_caption, shown_image, dataset.texts[row]
        names = dataset.image_ids
    matches = [item(dataset, match, row) for match in true]
    nearest = [item(dataset, r, row, place) for place, r in enumerate(wrong[:LABELLED])]
    points, edge = neighbours.points.numpy(), 1 + len(true)
    letters = tuple(ascii_lowercase[: len(matches)])
    figure = embedding_map(
        (
            MapPoints(f"query {kind}", points[:1]),
            MapPoints(
                f"true {others}",
                points[1:edge],
                letters,
                tuple(match.text for match in matches[: len(letters)]),
            ),
            MapPoints(
                f"wrong {others}",
                points[edge:],
                tuple(str(1 + place) for place in range(len(nearest))),
                tuple(negative.text for negative in nearest),
            ),
        ),
        key,
        f"The {kind} “{name}” and its nearest {others}.",
    )
    columns = (
        CardColumn("True", "a, b, … in this order", tuple(matches)),
        CardColumn("Wrong", "the nearest", tuple(nearest)),
    )
    numbers = {
        "direction": neighbours.direction,
        "query": name,
        "true": [names[match] for match in true],
        "wrong": [names[negative] for negative in wrong],
        "points": [[round(x, 3) for x in point] for point in neighbours.points.tolist()],
        "cosines": neighbours.cosines,
    }
    return figure, ExampleCard(query(dataset, row), "", columns), numbers


# -- Figure 3a: students, teachers and their ensembles --------------------------------------------


def student(folders: Sequence[Path]) -> Analysis:
    """Compare single models, their ensemble and the student they taught, by run (Figure 3a).

    Each run must have evaluated a student and at least one of its teachers.
    """
    evaluations = finished_evaluations(folders)
    students = list(_students(evaluations))
    for run in dict.fromkeys(evaluation.run for evaluation in evaluations):
        if not any(student_evaluation.run == run for *_, student_evaluation in students):
            raise ValueError(
                f"{run} has measured no student beside a teacher of its own; name runs of the "
                "recipe ndgl"
            )
    points, rows, words, numbers, every = [], [], [], [], []
    for name, teachers, ensemble, own in students:
        labels = [f"teacher {place}" for place in range(1, len(teachers) + 1)]
        labels += ["ensemble of the teachers"] if ensemble else []
        others = [*teachers, *([ensemble] if ensemble else [])]
        every += [*others, own]
        points += [
            _sum_point(label, evaluation, group=name)
            for label, evaluation in zip([*labels, "student"], [*others, own])
        ]
        # the last comparison is that of RSum
        changes = [compare(other.report, own.report)[-1] for other in others]
        spans = [f"{signed(c.interval.low)} to {signed(c.interval.high)}" for c in changes]
        rows += [
            (*_sum_cells(name, other), f"{signed(c.difference)} ({span})", chance(c.p))
            for other, c, span in zip(others, changes, spans)
        ]
        rows.append((*_sum_cells(name, own), "", ""))
        parts = [f"{name}: the student reaches RSum {own.report.rsum:.1f}"]
        if teachers:
            mean = sum(teacher.report.rsum for teacher in teachers) / len(teachers)
            parts.append(f"its teachers {mean:.1f} on average")
        if ensemble:
            parts.append(
                f"their ensemble {ensemble.report.rsum:.1f} (student − ensemble "
                f"{signed(changes[-1].difference)}, 95 % interval {spans[-1]})"
            )
        words.append(f"{', '.join(parts)}.")
        numbers.append(
            {
                "name": name,
                "teachers": [_evaluation_numbers(teacher) for teacher in teachers],
                "ensemble": _evaluation_numbers(ensemble) if ensemble else None,
                "student": _evaluation_numbers(own),
                "differences": {" + ".join(o.models): c for o, c in zip(others, changes)},
            }
        )
    note = (
        "i2t and t2i are the two halves of RSum; their intervals are in the JSON. Student − this: "
        "with a 95 % interval, both drawn alike; p: the chance of so large a difference when the "
        "two exchange their answers image by image (sign flips)."
    )
    head = "run", "model", "scored by", "RSum", "i2t", "t2i", "student − this", "p"
    return Analysis(
        title="Students, teachers and their ensembles",
        headline=" ".join(words),
        protocol=common_setting(every),
        figures=(grouped_bars(points, "RSum", "student", "Models alone, together, and taught."),),
        tables=(TableBlock("Single models, ensembles and students", head, tuple(rows), note),),
        numbers={"students": numbers},
    )


def _students(
    evaluations: Sequence[FinishedEvaluation],
) -> Iterator[tuple[str, list[FinishedEvaluation], FinishedEvaluation | None, FinishedEvaluation]]:
    """Every student of which a teacher or the ensemble was evaluated too.

    Yields its name, the teachers alone, their ensemble, and the student itself.
    """
    for evaluation in evaluations:
        if not evaluation.teachers:
            continue
        same = [other for other in evaluations if other.run == evaluation.run]
        alone = [e for e in same if e.models in {(name,) for name in evaluation.teachers}]
        several = len(evaluation.teachers) > 1
        together = [e for e in same if several and sorted(e.models) == sorted(evaluation.teachers)]
        if alone or together:
            students = sum(bool(e.teachers) for e in same)
            name = f"{evaluation.run} {evaluation.models[0]}" if students > 1 else evaluation.run
            yield name, alone, together[0] if together else None, evaluation


def _sum_point(
    series: str, evaluation: FinishedEvaluation, place: int = 0, group: str = "", at: float = 0
) -> ResultPoint:
    """RSum with its interval; at place 1 and 2 its halves, i2t and t2i."""
    report, span = evaluation.report, sums(evaluation.report)[place]
    value = (report.rsum, report.i2t.total, report.t2i.total)[place]
    return ResultPoint(series, value, span.low, span.high, group, at)


def _sum_cells(group: str, evaluation: FinishedEvaluation) -> tuple[str, ...]:
    """Group, model, scorers, and RSum with its halves."""
    span, report = sums(evaluation.report)[0], evaluation.report
    total = format_interval(report.rsum, span.low, span.high)
    scored_by = " + ".join(evaluation.models), evaluation.describe()
    return cells(group, *scored_by, total, report.i2t.total, report.t2i.total)


def _evaluation_numbers(evaluation: FinishedEvaluation) -> dict[str, Any]:
    """JSON-ready form, with intervals of RSum and of its halves."""
    total, i2t, t2i = sums(evaluation.report)
    return {
        "run": evaluation.run,
        "models": list(evaluation.models),
        "teachers": list(evaluation.teachers),
        "seeds": list(evaluation.seeds),
        "batch": evaluation.batch,
        "intervals": {"rsum": total, "i2t": i2t, "t2i": t2i},
        "result": evaluation.report,
    }


# -- Table 3 and Figure 4: results against the number of teachers or the batch size ---------------

_QUANTITIES = {  # title, label of the axis, name in an error, comparison that varies it
    "teachers": ("The number of teachers", "models", "number of teachers", "teachers"),
    "batch": ("The size of a batch", "batch size", "batch size", "batches"),
}
_NUMBERED = re.compile(r"(-of)?-\d+$")


def against(quantity: str, folders: Sequence[Path]) -> Analysis:
    """Draw results against a number in which trainings differ (Table 3, Figure 4).

    The quantity is "teachers", the number of models that taught a student or are averaged in an
    ensemble, or "batch". Models are a series if the names of their stages differ only in a number
    at the end, as ``student-of-1`` and ``student-of-2``.
    """
    if quantity not in _QUANTITIES:
        raise ValueError(unknown_name(quantity, list(_QUANTITIES), "a number to draw against"))
    title, label, name, compared = _QUANTITIES[quantity]
    evaluations = finished_evaluations(folders)
    place = _by_teachers if quantity == "teachers" else _by_batch
    points = [
        (f"{evaluation.run} {series}" if len(folders) > 1 else series, at, evaluation)
        for series, at, evaluation in place(evaluations)
    ]
    points.sort(key=lambda point: point[:2])
    if len({at for _, at, _ in points}) < 2:
        values = f"only the {name} {points[0][1]}" if points else f"no {name}"
        raise ValueError(
            f"what {', '.join(map(str, folders))} measured has {values}, and a curve needs at "
            f"least two; name runs of `ndgl --compare {compared}`"
        )
    words = []
    for series in dict.fromkeys(series for series, *_ in points):
        ends = [
            f"{evaluation.report.rsum:.1f} at {at:,}"
            for own, at, evaluation in points
            if own == series
        ]
        words.append(f"{series} {' and '.join(dict.fromkeys((ends[0], ends[-1])))}")
    rows = tuple((f"{at:,}", *_sum_cells(series, evaluation)) for series, at, evaluation in points)
    head = label, "series", "model", "scored by", "RSum", "i2t", "t2i"
    note = "i2t and t2i are the two halves of RSum; their intervals are in the JSON."
    return Analysis(
        title=title,
        headline=f"RSum by {label}: {'; '.join(words)}.",
        protocol=common_setting([evaluation for *_, evaluation in points]),
        figures=tuple(_series_figures(points, label, log=quantity == "batch")),
        tables=(TableBlock("Results", head, rows, note),),
        numbers={
            "against": quantity,
            "lines": [
                {"series": series, "at": at, **_evaluation_numbers(evaluation)}
                for series, at, evaluation in points
            ],
        },
    )


def _by_teachers(
    evaluations: Sequence[FinishedEvaluation],
) -> Iterator[tuple[str, int, FinishedEvaluation]]:
    """Students by their teachers, and ensembles of those teachers; one model is one of 1."""
    for evaluation in evaluations:
        if evaluation.teachers:
            yield _series(evaluation.models[0]), len(evaluation.teachers), evaluation
            continue
        teacher_sets = [set(other.teachers) for other in evaluations if other.run == evaluation.run]
        if any(set(evaluation.models) <= teachers for teachers in teacher_sets):
            yield "ensemble", len(evaluation.models), evaluation


def _by_batch(
    evaluations: Sequence[FinishedEvaluation],
) -> Iterator[tuple[str, int, FinishedEvaluation]]:
    for evaluation in evaluations:
        if len(evaluation.models) == 1 and evaluation.batch is not None:
            yield _series(evaluation.models[0]), evaluation.batch, evaluation


def _series(model: str) -> str:
    return _NUMBERED.sub("", model) or model


def _series_figures(
    placed: Sequence[tuple[str, int, FinishedEvaluation]], label: str, *, log: bool
) -> Iterator[Figure]:
    sides = ("RSum", "Both ways."), ("i2t", "Image to text."), ("t2i", "Text to image.")
    for place, (name, caption) in enumerate(sides):
        points = [_sum_point(series, each, place, at=at) for series, at, each in placed]
        whole = name if name == "RSum" else f"sum of recalls, {name}"
        yield result_curves(points, whole, label, name.lower(), caption, log=log)
