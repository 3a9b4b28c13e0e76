"""Figures of NDGL (Zhou et al., AAAI 2025): 1b, 1c, 3a, 3b and 4, and Table 3."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits
from typing import Annotated, Any, NamedTuple, final

import torch
import typer
from torch import Tensor

from counterfoil.analysis.runs import FinishedEvaluation, common_setting, finished_evaluations
from counterfoil.cli.options import Count, Models, OneModel, Query, Seed, Split, refuse_without
from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import compare, sums
from counterfoil.evaluation.galleries import shown_caption, shown_image
from counterfoil.evaluation.metrics import (
    MEAN_OF_BAGS,
    RSUM,
    Direction,
    check_text_to_image,
    holds_bags,
    single_unit_vectors,
)
from counterfoil.evaluation.results import chance, signed
from counterfoil.papers.analyses import Runs, analysis
from counterfoil.papers.aoq.figures import query_scores
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import describe_protocol, open_scorers, score_unit
from counterfoil.report.analysis import Analysis, Column, table
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
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, Figure
from counterfoil.report.tables import format_interval, format_number
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK, TrueScores
from counterfoil.scoring.stream import stream_scores

# -- Figure 3b: margins ---------------------------------------------------------------------------

_QUERIES: dict[Direction, str] = {"i2t": "captions for an image", "t2i": "images for a caption"}


def margins(members: Sequence[EmbeddedDataset], text_to_image: Tensor) -> dict[Direction, Tensor]:
    """(Q,) margins in both directions: best positive score minus hardest negative score.

    In units of the score, by the mean of the members; NaN for queries that do not have both.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or no query has both.
    """
    images = len(members[0].images)
    true, (texts, pictures) = TrueScores(text_to_image), _hardest(members, text_to_image, 1)
    stream_scores(members, [true, texts, pictures])
    level, owner = true.scores.double().cpu(), text_to_image.cpu()
    best = torch.full((images,), -torch.inf, dtype=torch.double)
    best.scatter_reduce_(0, owner[owner >= 0], level[owner >= 0], "amax")
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


def _hardest(
    members: Sequence[EmbeddedDataset], text_to_image: Tensor, count: int
) -> tuple[TopK, TopK]:
    """Lists to fill of wrong texts of images, and of wrong images of texts."""
    images, texts = len(members[0].images), len(members[0].texts)
    check_text_to_image(text_to_image, images, texts)
    return TopK("image", images, count, text_to_image), TopK("text", texts, count, text_to_image)


@analysis(
    "margins",
    "counterfoil papers analyse margins runs/ndgl/gpo-scenes/teacher-1 "
    "runs/ndgl/gpo-scenes/student --data scenes --output margins.html",
)
def margin_distributions(models: Models, source: DataSource, split: Split = "test") -> Analysis:
    """Draw the margins between positives and their hardest negatives (Figure 3b)."""
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
    note = (
        "Margin: score of the best true counterpart minus that of the hardest wrong one of the "
        "split, over the unit of the model's score. Below 0: the wrong one wins."
    )
    columns: dict[str, Column] = {
        "model": "model",
        "queries": "queries",
        "median": ("median", "+.3f"),
        "middle half": lambda one: " to ".join(map(format_number, one["quartiles"])),
        "below 0": lambda one: f"{one['percent_below_0']:.1f}\u00a0%",
    }
    return Analysis(
        title="Margins",
        headline=f"{'; '.join(words)}.",
        protocol=describe_protocol(dataset, scorers),
        figures=tuple(
            histograms(samples[side], bins, "margin", side, f"Asked for {query}.")
            for side, query in _QUERIES.items()
        ),
        tables=tuple(
            table(
                f"Margins: {query}",
                [{"model": name, **both[side]} for name, both in numbers.items()],
                columns,
                note,
            )
            for side, query in _QUERIES.items()
        ),
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


def share_below(values: Tensor, level: float) -> float:
    """Percent of values below a level."""
    return 100 * (values < level).double().mean().item()


# -- Figure 1c: similarities of the hardest negatives ---------------------------------------------
# The paper shows two curves and does not say which similarities they are of: to the query, or to
# the hardest negative. Both are drawn.

_CHUNK = 512  # queries whose vectors are held together


def negative_similarities(
    members: Sequence[EmbeddedDataset], text_to_image: Tensor, *, top: int = 30
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Similarities of the `top` hardest negatives of every query in one pass over the scores.

    For "texts" and "images", the negatives, of the Q queries that have any: (Q,) scores of the
    hardest negative, over the score's unit; (P,) scores of all of them, the hardest among them;
    (P - Q,) cosines of each query's hardest negative with its others.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or there is no wrong pair.
    """
    hardest = _hardest(members, text_to_image, top)
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


@analysis(
    "quantiles",
    "counterfoil papers analyse quantiles runs/mine/online --data my-photos/ --output q.html",
)
def quantiles(
    model: OneModel,
    source: DataSource,
    split: Split = "test",
    top: Annotated[int, typer.Option(min=1, help="Negatives of a query.")] = 30,
    level: Annotated[
        float, typer.Option(help="Similarity below which negatives are counted.")
    ] = 0.5,
) -> Analysis:
    """Draw the similarity of the hardest negatives to the query and to each other (Figure 1c)."""
    dataset, scorers = source.split(split), open_scorers([model])
    members = scorers[0].on(dataset)
    bags = holds_bags(members)
    to_query, to_hardest = [], []
    for modality, (one, every, between) in negative_similarities(
        members, dataset.text_to_image, top=top
    ).items():
        to_query += [
            NamedSample(f"{modality}, hardest", one.numpy()),
            NamedSample(f"{modality}, top {top}", every.numpy()),
        ]
        if len(between):
            to_hardest.append(NamedSample(modality, between.numpy()))
    samples = {"query": to_query, "hardest negative": to_hardest}
    numbers = [
        _similarity_numbers(each, to, level) for to, some in samples.items() for each in some
    ]
    below = {(one["to"], one["of"]): one["percent_below"] for one in numbers}
    words = (
        f"Of the {top} hardest negatives {below['query', f'images, top {top}']:.0f} % of the "
        f"images and {below['query', f'texts, top {top}']:.0f} % of the texts score below {level:g}"
    )
    if len(to_hardest) == 2:
        words += (
            f"; {below['hardest negative', 'images']:.0f} % and "
            f"{below['hardest negative', 'texts']:.0f} % are less similar than that to the hardest"
        )
    captions = {
        "query": f"The hardest and the {top} hardest negatives: similarity to the query.",
        "hardest negative": f"The {top} hardest negatives: similarity to the hardest of them.",
    }
    columns: dict[str, Column] = {
        "negatives": "of",
        "similarity to the": "to",
        "how many": "count",
        "median": ("median", ".3f"),
        f"below {level:g}": lambda one: f"{one['percent_below']:.1f}\u00a0%",
    }
    note = (
        "To the query: scores over the unit of the model's score. To the hardest negative: cosines "
        f"of a query's hardest negative with its others, within one modality.{_bag_note(bags=bags)}"
    )
    return Analysis(
        title="Similarities of negatives",
        headline=f"{words}.",
        protocol=(
            f"{describe_protocol(dataset, scorers)}; the {top} hardest negatives of each query"
        ),
        figures=tuple(
            cumulative(some, level, f"similarity to the {to}", to.split()[0], captions[to])
            for to, some in samples.items()
            if some
        ),
        tables=(table("Similarities", numbers, columns, note),),
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
_MAP_SIDES: dict[Direction, tuple[str, str]] = {
    "i2t": ("image", "texts"),
    "t2i": ("text", "images"),
}


def principal_components(vectors: Tensor) -> Tensor:
    """(N, 2) first two principal components of (N, D), each with its largest weight positive."""
    centred = vectors.double() - vectors.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    # The sign of a singular vector is arbitrary; fixing it makes equal vectors give equal maps.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    points = centred @ (axes * largest.sign()).T
    return torch.nn.functional.pad(points, (0, 2 - points.shape[1]))


def tsne(vectors: Tensor, *, perplexity: float = PERPLEXITY) -> Tensor:
    """(N, 2) t-SNE of (N, D) by Euclidean distances; principal components below 4 points.

    Van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9 (2008). It starts from
    principal components and is deterministic up to `EXACT` points; with more it may depend on the
    number of threads. The perplexity is at most a third of the other points.
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

    The vectors of an ensemble are concatenated; there are at most `negatives` negatives, and
    `method` is one of `METHODS`.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, the query has no negative, or images
            and texts are vectors of different widths.
    """
    check_text_to_image(text_to_image, len(members[0].images), len(members[0].texts))
    one = torch.tensor([row])
    if direction == "i2t":
        sides = [(m.images, m.texts) for m in members]
        true = (text_to_image == row).nonzero().flatten()
    else:
        sides = [(m.texts, m.images) for m in members]
        true = text_to_image[one][text_to_image[one] >= 0]
    scores = query_scores(members, direction, one)[0]
    scores[true] = -torch.inf
    order = scores.argsort(descending=True, stable=True)
    wrong = order[: min(negatives, len(scores) - len(true))]
    if not len(wrong):
        raise ValueError(
            f"nothing is wrong for {_MAP_SIDES[direction][0]} row {row}; more than one image is "
            "needed"
        )
    query_vectors = single_unit_vectors([query.rows(one) for query, _ in sides])
    around = single_unit_vectors([others.rows(torch.cat([true, wrong])) for _, others in sides])
    if query_vectors.shape[1] != around.shape[1]:
        raise ValueError(
            f"images and texts of this model are vectors of {query_vectors.shape[1]} and "
            f"{around.shape[1]} numbers, which share no map; name a model that has one width"
        )
    vectors = torch.cat([query_vectors, around])
    _, project = METHODS[method]
    cosines, edge = vectors @ vectors.T, 1 + len(true)
    pairs = {
        "to_true": cosines[0, 1:edge],
        "to_wrong": cosines[0, edge:],
        "among_wrong": cosines[edge:, edge:][~torch.eye(len(wrong), dtype=torch.bool)],
    }
    means = {name: some.mean().item() if len(some) else None for name, some in pairs.items()}
    return Neighbourhood(direction, row, true, wrong, project(vectors), means)


@analysis(
    "map",
    "counterfoil papers analyse map runs/mine/online --data my-photos/ --output map.html",
    check=lambda context: refuse_without(context, "query", ("count", "seed"), alone=True),
)
def maps(
    model: OneModel,
    source: DataSource,
    split: Split = "test",
    query: Query = None,
    count: Count = 1,
    negatives: Annotated[int, typer.Option(min=1, help="Negatives on each map.")] = 100,
    method: Annotated[str, typer.Option(help="`tsne` or `pca`.")] = "tsne",
    seed: Seed = 0,
) -> Analysis:
    """Draw a map of queries, their positives and their nearest negatives (Figure 1b).

    Without a query, `count` images and as many captions are drawn.
    """
    if method not in METHODS:
        raise ValueError(unknown_name(method, list(METHODS), "a way to draw a map"))
    dataset = source.split(split)
    rows = [find_query(text, dataset) for text in query or ()]
    rows = rows or _random_queries(dataset, count, seed)
    scorers = open_scorers([model])
    members = scorers[0].on(dataset)
    around = [
        neighbourhood(members, dataset.text_to_image, side, row, negatives=negatives, method=method)
        for side, row in rows
    ]
    sampling, bags = None if query else seed, holds_bags(members)
    words = [
        f"{_MAP_SIDES[each.direction][0]} {place}: {cosine:.2f}"
        for place, each in enumerate(around, 1)
        if (cosine := each.cosines["among_wrong"]) is not None
    ]
    figures, cards, numbers = zip(
        *(_show_map(each, dataset, f"map-{place}") for place, each in enumerate(around))
    )
    columns: dict[str, Column] = {
        "query": "query",
        "true": lambda one: len(one["true"]),
        "wrong": lambda one: len(one["wrong"]),
        "query to true": lambda one: (one["cosines"]["to_true"], ".3f"),
        "query to wrong": lambda one: (one["cosines"]["to_wrong"], ".3f"),
        "among wrong": lambda one: (one["cosines"]["among_wrong"], ".3f"),
    }
    legend = "Letters and numbers are those beside the points; distances on a map are no scores."
    note = f"Between the vectors, not on the map.{_bag_note(bags=bags)}"
    return Analysis(
        title="Maps of embeddings",
        headline=f"Mean cosine of two of a query's nearest wrong counterparts: {', '.join(words)}.",
        protocol=f"{describe_protocol(dataset, scorers, seed=sampling)}; {METHODS[method][0]}",
        figures=figures,
        tables=(table("Mean cosines", numbers, columns, note),),
        sections=(CardSection("On the maps", legend, cards),),
        numbers={
            "models": [model],
            "method": method,
            "seed": sampling,
            "bags": bags,
            "maps": list(numbers),
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
    rng, relation = torch.Generator().manual_seed(seed), dataset.relation
    if not len(relation.described):
        raise ValueError(
            f"no text of {dataset.name} {dataset.split_name} describes an image; name queries"
        )
    queries: list[tuple[Direction, int]] = []
    sides: tuple[tuple[Direction, Tensor], ...]
    sides = ("i2t", relation.described), ("t2i", relation.owned)
    for direction, rows in sides:
        drawn = rows[torch.randperm(len(rows), generator=rng)[:count]]
        queries += [(direction, row) for row in drawn.tolist()]
    return queries


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
    letters, numerals = ascii_lowercase[: len(matches)], digits[1 : 1 + len(nearest)]
    kinds = [MapPoints(f"query {kind}", points[:1])]
    for side, at, labels, shown in (
        ("true", points[1:edge], letters, matches),
        ("wrong", points[edge:], numerals, nearest),
    ):
        texts = tuple(each.text for each in shown[: len(labels)])
        kinds.append(MapPoints(f"{side} {others}", at, tuple(labels), texts))
    figure = embedding_map(kinds, key, f"The {kind} “{name}” and its nearest {others}.")
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


# -- Figure 3a: students and teachers; Table 3, Figure 4: numbers of teachers, sizes of batches ----


class _Line(NamedTuple):
    """An evaluation as a row of a table and a point of a figure."""

    group: str
    label: str
    evaluation: FinishedEvaluation
    at: int = 0
    difference: str = ""  # of the student from this
    p: str = ""

    def point(self, place: int = 0) -> ResultPoint:
        """RSum with its interval; at place 1 and 2 its halves, i2t and t2i."""
        report = self.evaluation.report
        span = sums(report)[place]
        value = (report.rsum, report.i2t.total, report.t2i.total)[place]
        return ResultPoint(self.label, value, span.low, span.high, self.group, self.at)

    def numbers(self) -> dict[str, Any]:
        """JSON-ready form, with intervals of RSum and of its halves."""
        one = self.evaluation
        total, i2t, t2i = sums(one.report)
        return {
            "run": one.run,
            "models": list(one.models),
            "teachers": list(one.teachers),
            "seeds": list(one.seeds),
            "batch": one.batch,
            "intervals": {"rsum": total, "i2t": i2t, "t2i": t2i},
            "result": one.report,
        }

    def total(self) -> str:
        """RSum with its interval."""
        value = self.point()
        return format_interval(value.value, value.low, value.high)


_RESULT: dict[str, Column] = {
    "model": lambda line: " + ".join(line.evaluation.models),
    "scored by": lambda line: line.evaluation.describe(),
    "RSum": _Line.total,
    "i2t": lambda line: line.evaluation.report.i2t.total,
    "t2i": lambda line: line.evaluation.report.t2i.total,
}
_HALVES = "i2t and t2i are the two halves of RSum; their intervals are in the JSON."


@analysis(
    "student",
    "counterfoil papers analyse student runs/ndgl/gpo-scenes runs/ndgl/chan-scenes "
    "--output page.html",
)
def student(folders: Runs) -> Analysis:
    """Compare students with their teachers and the ensemble of teachers (Figure 3a).

    Each run must have evaluated a student and at least one of its teachers.
    """
    evaluations = finished_evaluations(folders)
    students = list(_students(evaluations))
    for run in dict.fromkeys(evaluation.run for evaluation in evaluations):
        if not any(own.run == run for *_, own in students):
            raise ValueError(
                f"{run} has measured no student beside a teacher of its own; name runs of the "
                "recipe ndgl"
            )
    lines: list[_Line] = []
    words, numbers = [], []
    for name, teachers, ensemble, own in students:
        labels = [f"teacher {place}" for place in range(1, len(teachers) + 1)]
        others = dict(zip(labels, teachers))
        others |= {"ensemble of the teachers": ensemble} if ensemble else {}
        changes = [compare(other.report, own.report)[RSUM] for other in others.values()]
        spans = [f"{signed(c.interval.low)} to {signed(c.interval.high)}" for c in changes]
        measured = [
            _Line(name, *other, difference=f"{signed(c.difference)} ({span})", p=chance(c.p))
            for other, c, span in zip(others.items(), changes, spans)
        ]
        lines += [*measured, taught := _Line(name, "student", own)]
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
                "teachers": [line.numbers() for line in measured[: len(teachers)]],
                "ensemble": measured[-1].numbers() if ensemble else None,
                "student": taught.numbers(),
                "differences": {" + ".join(o.models): c for o, c in zip(others.values(), changes)},
            }
        )
    note = (
        f"{_HALVES} Student − this: with a 95 % interval, both drawn alike; p: the chance of so "
        "large a difference when the two exchange their answers image by image (sign flips)."
    )
    points = [line.point() for line in lines]
    columns: dict[str, Column] = {
        "run": "group",
        **_RESULT,
        "student − this": "difference",
        "p": "p",
    }
    return Analysis(
        title="Students, teachers and their ensembles",
        headline=" ".join(words),
        protocol=common_setting([line.evaluation for line in lines]),
        figures=(grouped_bars(points, "RSum", "student", "Models alone, together, and taught."),),
        tables=(table("Single models, ensembles and students", lines, columns, note),),
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


_QUANTITIES = {  # title, label of the axis, name in an error, comparison that varies it
    "teachers": ("The number of teachers", "models", "number of teachers", "teachers"),
    "batch": ("The size of a batch", "batch size", "batch size", "batches"),
}
_NUMBERED = re.compile(r"(-of)?-\d+$")


@analysis(
    "against",
    "counterfoil papers analyse against teachers runs/ndgl/teachers/chan-scenes --output page.html",
    "counterfoil papers analyse against batch runs/ndgl/batches/chan-scenes --output batches.html",
)
def against(
    quantity: Annotated[str, typer.Argument(help="`teachers` or `batch`.")], folders: Runs
) -> Analysis:
    """Draw results against the number of teachers, or against the batch size (Table 3, Figure 4).

    Teachers are the models that taught a student or are averaged in an ensemble. Models are a
    series if the names of their stages differ only in a number at the end, as ``student-of-1`` and
    ``student-of-2``.
    """
    if quantity not in _QUANTITIES:
        raise ValueError(unknown_name(quantity, list(_QUANTITIES), "a number to draw against"))
    title, label, name, compared = _QUANTITIES[quantity]
    evaluations = finished_evaluations(folders)
    placed = _by_teachers(evaluations) if quantity == "teachers" else _by_batch(evaluations)
    lines = [
        _Line("", f"{one.run} {series}" if len(folders) > 1 else series, one, at)
        for series, at, one in placed
    ]
    lines.sort(key=lambda line: (line.label, line.at))
    if len({line.at for line in lines}) < 2:
        values = f"only the {name} {lines[0].at}" if lines else f"no {name}"
        raise ValueError(
            f"what {', '.join(map(str, folders))} measured has {values}, and a curve needs at "
            f"least two; name runs of `ndgl --compare {compared}`"
        )
    words = []
    for series in dict.fromkeys(line.label for line in lines):
        ends = [
            f"{each.evaluation.report.rsum:.1f} at {each.at:,}"
            for each in lines
            if each.label == series
        ]
        words.append(f"{series} {' and '.join(dict.fromkeys((ends[0], ends[-1])))}")
    sides = {
        "RSum": ("RSum", "Both ways."),
        "i2t": ("sum of recalls, i2t", "Image to text."),
        "t2i": ("sum of recalls, t2i", "Text to image."),
    }
    return Analysis(
        title=title,
        headline=f"RSum by {label}: {'; '.join(words)}.",
        protocol=common_setting([line.evaluation for line in lines]),
        figures=tuple(
            result_curves(
                [line.point(place) for line in lines],
                *(whole, label, key.lower(), caption),
                log=quantity == "batch",
            )
            for place, (key, (whole, caption)) in enumerate(sides.items())
        ),
        tables=(table("Results", lines, {label: "at", "series": "label", **_RESULT}, _HALVES),),
        numbers={
            "against": quantity,
            "lines": [{"series": line.label, "at": line.at, **line.numbers()} for line in lines],
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
