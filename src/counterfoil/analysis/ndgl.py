"""Analyses of NDGL (Zhou et al., AAAI 2025): Figures 1b, 1c, 3a, 3b and 4, and Table 3."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from counterfoil.analysis.runs import FinishedEvaluation, common_setting, finished_evaluations
from counterfoil.core import distributed
from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Comparison, compare, sums
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
    MISSING,
    Analysis,
    check_page_path,
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
from counterfoil.report.tables import format_number
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK, TrueScores
from counterfoil.scoring.stream import MEMORY, stream_scores

if TYPE_CHECKING:
    from sklearn.manifold import TSNE


# -- Figure 3b: margins ---------------------------------------------------------------------------

_QUERIES = ("i2t", "captions for an image"), ("t2i", "images for a caption")


@final
@dataclass(frozen=True, slots=True, eq=False)
class QueryMargins:
    """Margins of the queries of one direction.

    Attributes:
        direction: of the queries.
        values: (Q,) double, best positive score minus hardest negative score, over the score's
            unit; only of queries that have both.
        left_out: number of queries that do not.
    """

    direction: Direction
    values: Tensor
    left_out: int = 0

    @property
    def median(self) -> float:
        """Of two in the middle, the lower one."""
        return self.values.median().item()

    @property
    def below(self) -> float:
        """Percent of the queries that score a negative above every positive."""
        return 100 * (self.values < 0).double().mean().item()

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile, each one of the values."""
        ordered = self.values.sort().values
        last = len(ordered) - 1
        return ordered[round(0.25 * last)].item(), ordered[round(0.75 * last)].item()


MarginPair: TypeAlias = tuple[QueryMargins, QueryMargins]


def margins(
    members: Sequence[EmbeddedDataset], text_to_image: Tensor, *, memory: int = MEMORY
) -> MarginPair:
    """Measure margins in both directions in one pass over the scores.

    Args:
        members: models with their encodings; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none.
        memory: bytes, see `stream_scores`.

    Returns:
        Image to text, and text to image.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or no query has both a positive and
            a negative.
    """
    images = len(members[0].images) if members else 0
    check_text_to_image(text_to_image, images, len(members[0].texts) if members else 0)
    true = TrueScores(text_to_image)
    texts, pictures = (
        TopK("image", images, 1, text_to_image),
        TopK("text", len(text_to_image), 1, text_to_image),
    )
    stream_scores(members, [true, texts, pictures], memory=memory)
    level, text_to_image = true.scores.double().cpu(), text_to_image.cpu()
    best = torch.full((images,), -torch.inf, dtype=torch.double)
    best.scatter_reduce_(0, text_to_image[text_to_image >= 0], level[text_to_image >= 0], "amax")
    unit = score_unit(members)
    return (
        _query_margins("i2t", best, texts.scores, unit),
        _query_margins("t2i", level, pictures.scores, unit),
    )


def _query_margins(
    direction: Direction, best: Tensor, hardest: Tensor, unit: float
) -> QueryMargins:
    values = (best - hardest[:, 0].double().cpu()) / unit
    counted = best.isfinite() & values.isfinite()
    if not bool(counted.any()):
        raise ValueError(
            f"none of the {len(values)} {direction} queries has both a true and a wrong "
            "counterpart; a margin needs one of each"
        )
    return QueryMargins(direction, values[counted], int((~counted).sum()))


def margin_distributions(
    names: Sequence[str], source: DataSource, out: Path, *, split: str = "test"
) -> dict[str, MarginPair]:
    """Draw how far positives score above the hardest negatives, under each model (Figure 3b).

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.

    Returns:
        Image to text, and text to image, by the model's short name.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    scorers = open_scorers(names)
    by_model = {s.name: margins(s.on(dataset), dataset.text_to_image) for s in scorers}
    bins = histogram_bins(
        [NamedSample(name, side.values.numpy()) for name, both in by_model.items() for side in both]
    )
    words = [
        f"{name}: median margin {format_number(i2t.median)} for images and "
        f"{format_number(t2i.median)} for captions, below 0 for {i2t.below:.1f} % and "
        f"{t2i.below:.1f} %"
        for name, (i2t, t2i) in by_model.items()
    ]
    Analysis(
        title="Margins",
        headline=f"{'; '.join(words)}.",
        protocol=describe_protocol(dataset, scorers),
        figures=tuple(
            histograms(
                [NamedSample(name, both[side].values.numpy()) for name, both in by_model.items()],
                bins,
                "margin",
                direction,
                f"Asked for {query}.",
            )
            for side, (direction, query) in enumerate(_QUERIES)
        ),
        tables=tuple(_margin_table(by_model, side) for side in range(len(_QUERIES))),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "bins": list(bins),
            "margins": {
                name: {side.direction: _margin_numbers(side, bins) for side in both}
                for name, both in by_model.items()
            },
        },
    ).publish(out)
    return by_model


def _margin_table(by_model: Mapping[str, MarginPair], place: int) -> TableBlock:
    rows = []
    for name, both in by_model.items():
        side = both[place]
        low, high = map(format_number, side.quartiles)
        rows.append(
            (
                name,
                f"{len(side.values):,}",
                format_number(side.median),
                f"{low} to {high}",
                f"{side.below:.1f}\u00a0%",
            )
        )
    note = (
        "Margin: score of the best true counterpart minus that of the hardest wrong one of the "
        "split, over the unit of the model's score. Below 0: the wrong one wins."
    )
    head = "model", "queries", "median", "middle half", "below 0"
    return TableBlock(f"Margins: {_QUERIES[place][1]}", head, tuple(rows), note)


def _margin_numbers(side: QueryMargins, bins: Sequence[float]) -> dict[str, Any]:
    edges = torch.tensor(bins, dtype=torch.double)
    return {
        "queries": len(side.values),
        "left_out": side.left_out,
        "median": side.median,
        "quartiles": list(side.quartiles),
        "percent_below_0": side.below,
        "counts": torch.histogram(side.values, edges).hist.long().tolist(),
    }


# -- Figure 1c: similarities of the hardest negatives ---------------------------------------------

TOP = 30
LEVEL = 0.5
_CHUNK = 512  # queries whose vectors are held together


@final
@dataclass(frozen=True, slots=True, eq=False)
class NegativeSimilarities:
    """Similarities of the negatives of one direction; of queries that have at least one.

    Attributes:
        direction: "i2t", where negatives are texts, or "t2i", where they are images.
        hardest: (Q,) score of the hardest negative, over the score's unit.
        top: (P,) scores of all of the hardest negatives, the hardest among them.
        between: (P - Q,) cosines of each query's hardest negative with its others.
    """

    direction: Direction
    hardest: Tensor
    top: Tensor
    between: Tensor


SimilarityPair: TypeAlias = tuple[NegativeSimilarities, NegativeSimilarities]


def negative_similarities(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    top: int = TOP,
    memory: int = MEMORY,
) -> SimilarityPair:
    """Similarities of the `top` hardest negatives of every query in one pass over the scores.

    Args:
        members: models with their encodings; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none.
        top: negatives of a query; at most all.
        memory: bytes, see `stream_scores`.

    Returns:
        Image to text, and text to image.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or there is no wrong pair.
    """
    images = len(members[0].images) if members else 0
    check_text_to_image(text_to_image, images, len(members[0].texts) if members else 0)
    texts, pictures = (
        TopK("image", images, top, text_to_image),
        TopK("text", len(text_to_image), top, text_to_image),
    )
    stream_scores(members, [texts, pictures], memory=memory)
    unit = score_unit(members)
    return (
        _similarities("i2t", texts, single_unit_vectors([m.texts for m in members]), unit),
        _similarities("t2i", pictures, single_unit_vectors([m.images for m in members]), unit),
    )


def share_below(values: Tensor, level: float) -> float:
    """Percent of values below a level."""
    return 100 * (values < level).double().mean().item()


def _similarities(
    direction: Direction, lists: TopK, vectors: Tensor, unit: float
) -> NegativeSimilarities:
    rows, scores = lists.rows.long().cpu(), lists.scores.double().cpu() / unit
    exists = rows >= 0
    if not bool(exists.any()):
        raise ValueError(
            f"none of the {len(rows)} {direction} queries has a wrong counterpart; more than one "
            "image is needed"
        )
    between = []
    for part, real in zip(rows.split(_CHUNK), exists.split(_CHUNK)):  # type: ignore[no-untyped-call]
        negatives = vectors[part.clamp(min=0)]  # (q, K, D)
        cosines = (negatives[:, 1:] @ negatives[:, 0].unsqueeze(2)).squeeze(2)
        between.append(cosines[real[:, 1:]].double())
    return NegativeSimilarities(
        direction, scores[exists[:, 0], 0], scores[exists], torch.cat(between)
    )


def quantiles(
    name: str,
    source: DataSource,
    out: Path,
    *,
    split: str = "test",
    top: int = TOP,
    level: float = LEVEL,
) -> SimilarityPair:
    """Draw how similar the hardest negatives are to the query and to each other (Figure 1c).

    The paper shows two curves and does not say which of the two its similarities are; both are
    drawn.

    Args:
        name: of the model; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        top: negatives of a query; at most all.
        level: similarity below which shares are counted.

    Returns:
        Image to text, and text to image.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    scorers = open_scorers([name])
    members = scorers[0].on(dataset)
    both = negative_similarities(members, dataset.text_to_image, top=top)
    samples: dict[str, list[NamedSample]] = {"query": [], "hardest negative": []}
    for side, what in zip(both, ("texts", "images")):
        samples["query"].append(NamedSample(f"{what}, hardest", side.hardest.numpy()))
        samples["query"].append(NamedSample(f"{what}, top {top}", side.top.numpy()))
        if len(side.between):
            samples["hardest negative"].append(NamedSample(what, side.between.numpy()))
    captions = (
        f"The hardest and the {top} hardest negatives: similarity to the query.",
        f"The {top} hardest negatives: similarity to the hardest of them.",
    )
    Analysis(
        title="Similarities of negatives",
        headline=_similarity_headline(both, top, level),
        protocol=(
            f"{describe_protocol(dataset, scorers)}; the {top} hardest negatives of each query"
        ),
        figures=tuple(
            cumulative(some, level, f"similarity to the {to}", to.split()[0], caption)
            for (to, some), caption in zip(samples.items(), captions)
            if some
        ),
        tables=(_similarity_table(samples, level, bags=holds_bags(members)),),
        numbers={
            "models": [name],
            "top": top,
            "level": level,
            "bags": holds_bags(members),
            "similarities": [
                _similarity_numbers(one, to, level) for to, some in samples.items() for one in some
            ],
        },
    ).publish(out)
    return both


def _similarity_table(
    samples: Mapping[str, Sequence[NamedSample]], level: float, *, bags: bool
) -> TableBlock:
    rows = []
    for to, some in samples.items():
        for one in some:
            values = torch.from_numpy(one.values)
            median = format_number(values.median().item(), ".3f")
            share = f"{share_below(values, level):.1f}\u00a0%"
            rows.append((one.name, to, f"{len(values):,}", median, share))
    note = (
        "To the query: scores over the unit of the model's score. To the hardest negative: cosines "
        "of a query's hardest negative with its others, within one modality."
    )
    head = "negatives", "similarity to the", "how many", "median", f"below {level:g}"
    return TableBlock("Similarities", head, tuple(rows), f"{note}{_bag_note(bags=bags)}")


def _bag_note(*, bags: bool) -> str:
    return f" {MEAN_OF_BAGS[0].upper()}{MEAN_OF_BAGS[1:]}." if bags else ""


def _similarity_numbers(one: NamedSample, to: str, level: float) -> dict[str, Any]:
    values = torch.from_numpy(one.values)
    ordered = values.sort().values
    return {
        "of": one.name,
        "to": to,
        "count": len(values),
        "median": values.median().item(),
        "percent_below": share_below(values, level),
        # the 0th to the 100th percentile by tens, each one of the values
        "quantiles": [ordered[round(n / 10 * (len(ordered) - 1))].item() for n in range(11)],
    }


def _similarity_headline(both: SimilarityPair, top: int, level: float) -> str:
    texts, images = both
    words = (
        f"Of the {top} hardest negatives {share_below(images.top, level):.0f} % of the images and "
        f"{share_below(texts.top, level):.0f} % of the texts score below {level:g}"
    )
    if len(images.between) and len(texts.between):
        words += (
            f"; {share_below(images.between, level):.0f} % and "
            f"{share_below(texts.between, level):.0f} % are less similar than that to the hardest"
        )
    return f"{words}."


# -- Figure 1b: maps of queries and their nearest negatives ---------------------------------------

Projection = Literal["tsne", "pca"]

LABELLED = 5  # nearest negatives
PERPLEXITY = 30.0
EXACT = 500  # points at most; more would take minutes, so their gradients are approximated
_SPREAD = 1e-4  # of the first axis where t-SNE begins; more would hold points where they are
_METHODS = {"tsne": "t-SNE", "pca": "principal components"}
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

    Raises:
        ValueError: scikit-learn is not installed.
    """
    count = len(vectors)
    start = principal_components(vectors)
    if count < 4:
        return start
    start = _SPREAD * start / start[:, 0].std(correction=0).clamp(min=1e-12)
    fitted = _sklearn_tsne()(
        perplexity=min(perplexity, (count - 1) / 3),
        init=start.cpu().numpy(),
        method="exact" if count <= EXACT else "barnes_hut",
        random_state=0,
    )
    return torch.from_numpy(fitted.fit_transform(vectors.double().cpu().numpy()))


def _sklearn_tsne() -> type[TSNE]:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise ValueError(
            'maps by t-SNE need scikit-learn: pip install "counterfoil[maps]", or draw principal '
            "components with --method pca"
        ) from None
    library: type[TSNE] = TSNE
    return library


@final
@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """A query, its positives and its nearest negatives.

    Attributes:
        direction: "i2t", an image among texts, or "t2i".
        row: of the query.
        true: (P,) rows of its positives.
        wrong: (N,) rows of its nearest negatives, nearest first.
        points: (1 + P + N, 2) the query, positives, negatives.
        cosines: (1 + P + N, 1 + P + N) between their vectors.
    """

    direction: Direction
    row: int
    true: Tensor
    wrong: Tensor
    points: Tensor
    cosines: Tensor

    @property
    def to_true(self) -> float | None:
        """Mean cosine of the query with its positives."""
        return _mean(self.cosines[0, 1 : 1 + len(self.true)])

    @property
    def to_wrong(self) -> float | None:
        """Mean cosine of the query with its nearest negatives."""
        return _mean(self.cosines[0, 1 + len(self.true) :])

    @property
    def among_wrong(self) -> float | None:
        """Mean cosine of two of the nearest negatives."""
        inner = self.cosines[1 + len(self.true) :, 1 + len(self.true) :]
        return _mean(inner[~torch.eye(len(inner), dtype=torch.bool)])


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None


def neighbourhood(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    direction: Direction,
    row: int,
    *,
    negatives: int = 100,
    method: Projection = "tsne",
) -> Neighbourhood:
    """Find the positives and the nearest negatives of a query, and place them in the plane.

    Args:
        members: models with their encodings; vectors of an ensemble are concatenated.
        text_to_image: (T,) image of each text, -1 for none.
        direction: "i2t", the query is an image, or "t2i".
        row: of the query.
        negatives: number of negatives; at most all.
        method: t-SNE or principal components.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, the query has no negative, images
            and texts are vectors of different widths, or scikit-learn is needed and not installed.
    """
    check_text_to_image(text_to_image, len(members[0].images), len(members[0].texts))
    if direction == "i2t":
        true = (text_to_image == row).nonzero().flatten()
        query, others = [m.images for m in members], [m.texts for m in members]
    else:
        true = text_to_image[row : row + 1]
        true = true[true >= 0]
        query, others = [m.texts for m in members], [m.images for m in members]
    wrong = _nearest_negatives(members, text_to_image, direction, row, negatives)
    own = single_unit_vectors([side.rows(torch.tensor([row])) for side in query])
    around = single_unit_vectors([side.rows(torch.cat([true, wrong])) for side in others])
    if own.shape[1] != around.shape[1]:
        raise ValueError(
            f"images and texts of this model are vectors of {own.shape[1]} and "
            f"{around.shape[1]} numbers, which share no map; name a model that has one width"
        )
    vectors = torch.cat([own, around])
    points = tsne(vectors) if method == "tsne" else principal_components(vectors)
    return Neighbourhood(direction, row, true, wrong, points, vectors @ vectors.T)


def _nearest_negatives(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    direction: Direction,
    row: int,
    negatives: int,
) -> Tensor:
    """Rows of the negatives that score highest."""
    one = torch.tensor([row])
    if direction == "i2t":
        alone = [EmbeddedDataset(m.model, m.images.rows(one), m.texts) for m in members]
        best = TopK("image", 1, negatives, torch.where(text_to_image == row, 0, -1))
    else:
        alone = [EmbeddedDataset(m.model, m.images, m.texts.rows(one)) for m in members]
        best = TopK("text", 1, negatives, text_to_image[one])
    stream_scores(alone, [best])
    rows = best.rows[0].long().cpu()
    rows = rows[rows >= 0]
    if not len(rows):
        raise ValueError(
            f"nothing is wrong for {'image' if direction == 'i2t' else 'text'} row {row}; more "
            "than one image is needed"
        )
    return rows


def maps(
    name: str,
    source: DataSource,
    out: Path,
    *,
    split: str = "test",
    queries: Sequence[str] = (),
    count: int = 1,
    negatives: int = 100,
    method: str = "tsne",
    seed: int = 0,
) -> tuple[Neighbourhood, ...]:
    """Draw embeddings of queries, their positives and their nearest negatives (Figure 1b).

    Args:
        name: of the model; joined by ``+``, an ensemble, whose vectors are concatenated.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        queries: captions of the split and ids of its images; by default some at random.
        count: number of images, and of captions, that are drawn at random.
        negatives: on each map; at most all.
        method: "tsne" or "pca".
        seed: of the random choice; the maps themselves are deterministic.

    Raises:
        ValueError: the page exists, a query is not in the split, model and data do not fit, or
            t-SNE is wanted and scikit-learn is not installed.
    """
    by: Projection | None = next((one for one in get_args(Projection) if one == method), None)
    if by is None:
        raise ValueError(unknown_name(method, list(get_args(Projection)), "a way to draw a map"))
    if by == "tsne":
        _sklearn_tsne()
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    rows = [find_query(query, dataset) for query in queries] or _random_queries(
        dataset, count, seed
    )
    scorers = open_scorers([name])
    members = scorers[0].on(dataset)
    around = tuple(
        neighbourhood(members, dataset.text_to_image, side, row, negatives=negatives, method=by)
        for side, row in rows
    )
    sampling, bags = None if queries else seed, holds_bags(members)
    words = [
        f"{_MAP_SIDES[one.direction][0]} {place}: {one.among_wrong:.2f}"
        for place, one in enumerate(around, 1)
        if one.among_wrong is not None
    ]
    legend = "Letters and numbers are those beside the points; distances on a map are no scores."
    Analysis(
        title="Maps of embeddings",
        headline=f"Mean cosine of two of a query's nearest wrong counterparts: {', '.join(words)}.",
        protocol=f"{describe_protocol(dataset, scorers, seed=sampling)}; {_METHODS[by]}",
        figures=tuple(_map_figure(one, dataset, place) for place, one in enumerate(around)),
        tables=(_map_table(around, dataset, bags=bags),),
        sections=(
            CardSection("On the maps", legend, tuple(_map_card(one, dataset) for one in around)),
        ),
        numbers={
            "models": [name],
            "method": by,
            "seed": sampling,
            "bags": bags,
            "maps": [_map_numbers(one, dataset) for one in around],
        },
    ).publish(out)
    return around


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


def _query_name(dataset: ImageTextDataset, one: Neighbourhood) -> str:
    return dataset.image_ids[one.row] if one.direction == "i2t" else dataset.texts[one.row]


def _map_figure(one: Neighbourhood, dataset: ImageTextDataset, place: int) -> Figure:
    query, others = _MAP_SIDES[one.direction]
    item = shown_caption if one.direction == "i2t" else shown_image
    edge = 1 + len(one.true)

    def words(rows: Tensor) -> tuple[str, ...]:
        return tuple(item(dataset, row).text for row in rows.tolist())

    points = one.points.numpy()
    letters = tuple(chr(ord("a") + n) for n in range(min(len(one.true), 26)))
    numbers = tuple(str(n + 1) for n in range(min(len(one.wrong), LABELLED)))
    return embedding_map(
        (
            MapPoints(f"query {query}", points[:1]),
            MapPoints(f"true {others}", points[1:edge], letters, words(one.true[:26])),
            MapPoints(f"wrong {others}", points[edge:], numbers, words(one.wrong[:LABELLED])),
        ),
        f"map-{place}",
        f"The {query} “{_query_name(dataset, one)}” and its nearest {others}.",
    )


def _map_card(one: Neighbourhood, dataset: ImageTextDataset) -> ExampleCard:
    query, item = (
        (shown_image, shown_caption) if one.direction == "i2t" else (shown_caption, shown_image)
    )
    true = tuple(item(dataset, row, one.row) for row in one.true.tolist())
    wrong = enumerate(one.wrong[:LABELLED].tolist())
    return ExampleCard(
        query(dataset, one.row),
        "",
        (
            CardColumn("True", "a, b, … in this order", true),
            CardColumn(
                "Wrong", "the nearest", tuple(item(dataset, row, one.row, n) for n, row in wrong)
            ),
        ),
    )


def _map_table(
    around: Sequence[Neighbourhood], dataset: ImageTextDataset, *, bags: bool
) -> TableBlock:
    rows = tuple(
        (
            _query_name(dataset, one),
            f"{len(one.true)}",
            f"{len(one.wrong)}",
            *(
                MISSING if value is None else format_number(value, ".3f")
                for value in (one.to_true, one.to_wrong, one.among_wrong)
            ),
        )
        for one in around
    )
    head = "query", "true", "wrong", "query to true", "query to wrong", "among wrong"
    note = f"Between the vectors, not on the map.{_bag_note(bags=bags)}"
    return TableBlock("Mean cosines", head, rows, note)


def _map_numbers(one: Neighbourhood, dataset: ImageTextDataset) -> dict[str, Any]:
    names = dataset.text_ids if one.direction == "i2t" else dataset.image_ids
    return {
        "direction": one.direction,
        "query": _query_name(dataset, one),
        "true": [names[row] for row in one.true.tolist()],
        "wrong": [names[row] for row in one.wrong.tolist()],
        "points": [[round(x, 3) for x in point] for point in one.points.tolist()],
        "cosines": {
            "to_true": one.to_true,
            "to_wrong": one.to_wrong,
            "among_wrong": one.among_wrong,
        },
    }


# -- Figure 3a: students, teachers and their ensembles --------------------------------------------


@final
@dataclass(frozen=True, slots=True, eq=False)
class StudentResult:
    """Evaluations of a student and of its teachers.

    Attributes:
        name: of the run, and of the student if the run has several.
        teachers: evaluated alone.
        ensemble: of all teachers.
        student: the student.
    """

    name: str
    teachers: tuple[FinishedEvaluation, ...]
    ensemble: FinishedEvaluation | None
    student: FinishedEvaluation

    @property
    def others(self) -> tuple[FinishedEvaluation, ...]:
        """The teachers and their ensemble."""
        return (*self.teachers, *((self.ensemble,) if self.ensemble else ()))

    def against(self, other: FinishedEvaluation) -> Comparison:
        """RSum of the student minus that of another model, on the same queries."""
        return compare(other.report, self.student.report)[-1]


def student(folders: Sequence[Path], out: Path) -> tuple[StudentResult, ...]:
    """Compare single models, their ensemble and the student they taught, by run (Figure 3a).

    Args:
        folders: of finished runs, one for each model.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, a run has evaluated no student or none of its teachers, or
            data or protocols differ.
    """
    check_page_path(out)
    evaluations = finished_evaluations(folders)
    students = tuple(_students(evaluations))
    for run in dict.fromkeys(one.run for one in evaluations):
        if not any(one.student.run == run for one in students):
            raise ValueError(
                f"{run} has measured no student beside a teacher of its own; name runs of recipes "
                "such as ndgl/gpo-scenes"
            )
    points = [point for one in students for point in _student_points(one)]
    Analysis(
        title="Students, teachers and their ensembles",
        headline=" ".join(_student_headline(one) for one in students),
        protocol=common_setting([e for one in students for e in (*one.others, one.student)]),
        figures=(grouped_bars(points, "RSum", "student", "Models alone, together, and taught."),),
        tables=(_student_table(students),),
        numbers={"students": [_student_numbers(one) for one in students]},
    ).publish(out)
    return students


def _students(evaluations: Sequence[FinishedEvaluation]) -> Iterator[StudentResult]:
    """Every student of which a teacher or the ensemble was evaluated too."""
    for one in evaluations:
        if not one.teachers:
            continue
        same = [other for other in evaluations if other.run == one.run]
        alone = tuple(e for e in same if e.models in {(name,) for name in one.teachers})
        ensemble = len(one.teachers) > 1
        together = [e for e in same if ensemble and sorted(e.models) == sorted(one.teachers)]
        if alone or together:
            several = sum(bool(e.teachers) for e in same) > 1
            name = f"{one.run} {one.models[0]}" if several else one.run
            yield StudentResult(name, alone, together[0] if together else None, one)


def _student_points(one: StudentResult) -> Iterator[ResultPoint]:
    named = [(f"teacher {place}", e) for place, e in enumerate(one.teachers, 1)]
    named += [("ensemble of the teachers", one.ensemble)] if one.ensemble else []
    for series, evaluation in (*named, ("student", one.student)):
        span = sums(evaluation.report)[0]
        yield ResultPoint(series, evaluation.report.rsum, span.low, span.high, one.name)


def _student_table(students: Sequence[StudentResult]) -> TableBlock:
    rows = []
    for one in students:
        for evaluation in one.others:
            change = one.against(evaluation)
            rows.append((*_sum_cells(one.name, evaluation), _difference(change), chance(change.p)))
        rows.append((*_sum_cells(one.name, one.student), "", ""))
    note = (
        "i2t and t2i are the two halves of RSum; their intervals are in the JSON. Student − this: "
        "with a 95 % interval, both drawn alike; p: the chance of so large a difference when the "
        "two exchange their answers image by image (sign flips)."
    )
    head = "run", "model", "scored by", "RSum", "i2t", "t2i", "student − this", "p"
    return TableBlock("Single models, ensembles and students", head, tuple(rows), note)


def _sum_cells(group: str, one: FinishedEvaluation) -> tuple[str, ...]:
    """Group, model, scorers, and RSum with its halves."""
    span, report = sums(one.report)[0], one.report
    total = f"{report.rsum:.1f} ({span.low:.1f} to {span.high:.1f})"
    halves = f"{report.i2t.total:.1f}", f"{report.t2i.total:.1f}"
    return group, " + ".join(one.models), one.describe(), total, *halves


def _difference(change: Comparison) -> str:
    span = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
    return f"{signed(change.difference)} ({span})"


def _student_headline(one: StudentResult) -> str:
    words = [f"{one.name}: the student reaches RSum {one.student.report.rsum:.1f}"]
    if one.teachers:
        mean = sum(e.report.rsum for e in one.teachers) / len(one.teachers)
        words.append(f"its teachers {mean:.1f} on average")
    if one.ensemble:
        change = one.against(one.ensemble)
        span = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
        words.append(
            f"their ensemble {one.ensemble.report.rsum:.1f} (student − ensemble "
            f"{signed(change.difference)}, 95 % interval {span})"
        )
    return f"{', '.join(words)}."


def _student_numbers(one: StudentResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "teachers": [_evaluation_numbers(e) for e in one.teachers],
        "ensemble": _evaluation_numbers(one.ensemble) if one.ensemble else None,
        "student": _evaluation_numbers(one.student),
        "differences": {" + ".join(e.models): one.against(e).to_dict() for e in one.others},
    }


def _evaluation_numbers(one: FinishedEvaluation) -> dict[str, Any]:
    """JSON-ready form, with intervals of RSum and of its halves."""
    total, i2t, t2i = sums(one.report)
    return {
        "run": one.run,
        "models": list(one.models),
        "teachers": list(one.teachers),
        "seeds": list(one.seeds),
        "batch": one.batch,
        "intervals": {"rsum": total.to_dict(), "i2t": i2t.to_dict(), "t2i": t2i.to_dict()},
        "result": one.report.to_dict(),
    }


# -- Table 3 and Figure 4: results against the number of teachers or the batch size ---------------

Quantity = Literal["teachers", "batch"]
_LABELS = {"teachers": "models", "batch": "batch size"}
_TITLES = {"teachers": "The number of teachers", "batch": "The size of a batch"}
_NEEDED = {
    "teachers": ("number of teachers", "ndgl/teachers/…"),
    "batch": ("batch size", "ndgl/batches/…"),
}
_NUMBERED = re.compile(r"(-of)?-\d+$")


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeriesPoint:
    """An evaluation at its place in a series.

    Attributes:
        series: of evaluations that differ in the quantity.
        at: the quantity.
        evaluation: the evaluation.
    """

    series: str
    at: int
    evaluation: FinishedEvaluation


def against(quantity: str, folders: Sequence[Path], out: Path) -> tuple[SeriesPoint, ...]:
    """Draw results against a number in which trainings differ (Table 3, Figure 4).

    Models are a series if the names of their stages differ only in a number at the end, as
    ``student-of-1`` and ``student-of-2``.

    Args:
        quantity: "teachers", the number of models that taught a student or are averaged in an
            ensemble, or "batch".
        folders: of finished runs.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, no such quantity, the runs do not differ in it, or data or
            protocols differ.
    """
    if quantity not in get_args(Quantity):
        raise ValueError(
            unknown_name(quantity, list(get_args(Quantity)), "a number to draw against")
        )
    check_page_path(out)
    place = _by_teachers if quantity == "teachers" else _by_batch
    points = place(finished_evaluations(folders), several=len(folders) > 1)
    placed = sorted(points, key=lambda point: (point.series, point.at))
    if len({point.at for point in placed}) < 2:
        name, recipe = _NEEDED[quantity]
        values = f"only the {name} {placed[0].at}" if placed else f"no {name}"
        raise ValueError(
            f"what {', '.join(map(str, folders))} measured has {values}, and a curve needs at "
            f"least two; name runs of recipes such as {recipe}"
        )
    label = _LABELS[quantity]
    rows = tuple((f"{p.at:,}", *_sum_cells(p.series, p.evaluation)) for p in placed)
    head = label, "series", "model", "scored by", "RSum", "i2t", "t2i"
    note = "i2t and t2i are the two halves of RSum; their intervals are in the JSON."
    Analysis(
        title=_TITLES[quantity],
        headline=_series_headline(placed, label),
        protocol=common_setting([point.evaluation for point in placed]),
        figures=tuple(_series_figures(placed, label, log=quantity == "batch")),
        tables=(TableBlock("Results", head, rows, note),),
        numbers={
            "against": quantity,
            "lines": [
                {"series": p.series, "at": p.at, **_evaluation_numbers(p.evaluation)}
                for p in placed
            ],
        },
    ).publish(out)
    return tuple(placed)


def _by_teachers(
    evaluations: Sequence[FinishedEvaluation], *, several: bool
) -> Iterator[SeriesPoint]:
    """Students by their teachers, and ensembles of those teachers; one model is one of 1."""
    for one in evaluations:
        if one.teachers:
            yield SeriesPoint(_series(one, one.models[0], several), len(one.teachers), one)
            continue
        taught = [set(other.teachers) for other in evaluations if other.run == one.run]
        if any(set(one.models) <= teachers for teachers in taught):
            yield SeriesPoint(_series(one, "ensemble", several), len(one.models), one)


def _by_batch(evaluations: Sequence[FinishedEvaluation], *, several: bool) -> Iterator[SeriesPoint]:
    for one in evaluations:
        if len(one.models) == 1 and one.batch is not None:
            yield SeriesPoint(_series(one, one.models[0], several), one.batch, one)


def _series(one: FinishedEvaluation, model: str, several: bool) -> str:
    name = _NUMBERED.sub("", model) or model
    return f"{one.run} {name}" if several else name


def _series_figures(placed: Sequence[SeriesPoint], label: str, *, log: bool) -> Iterator[Figure]:
    sides = ("RSum", "Both ways."), ("i2t", "Image to text."), ("t2i", "Text to image.")
    for number, (name, caption) in enumerate(sides):
        points = []
        for point in placed:
            report = point.evaluation.report
            value = (report.rsum, report.i2t.total, report.t2i.total)[number]
            span = sums(report)[number]
            points.append(ResultPoint(point.series, value, span.low, span.high, at=point.at))
        whole = name if name == "RSum" else f"sum of recalls, {name}"
        yield result_curves(points, whole, label, name.lower(), caption, log=log)


def _series_headline(placed: Sequence[SeriesPoint], label: str) -> str:
    words = []
    for name in dict.fromkeys(point.series for point in placed):
        own = [point for point in placed if point.series == name]
        ends = [f"{p.evaluation.report.rsum:.1f} at {p.at:,}" for p in (own[0], own[-1])]
        words.append(f"{name} {' and '.join(dict.fromkeys(ends))}")
    return f"RSum by {label}: {'; '.join(words)}."
