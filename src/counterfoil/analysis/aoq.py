"""Analyses of AOQ (https://arxiv.org/abs/2003.03669): section 1 and Figures 3, 4 and 5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from counterfoil.analysis.runs import METRICS, training_folders
from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.io import read_json
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.evaluation.galleries import shown_caption, shown_image
from counterfoil.evaluation.metrics import check_text_to_image
from counterfoil.negatives.sampling import images_for_texts
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.pipelines.publishing import (
    MISSING,
    Analysis,
    check_page_path,
    describe_protocol,
    open_scorers,
    short_names,
)
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.compare import learning_curve
from counterfoil.report.figures import (
    ExpectedCurve,
    LearningCurve,
    expected_by_batch,
    learning_curves,
    recall_curves,
    share_bars,
)
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, Figure, TableBlock
from counterfoil.report.tables import format_number
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores, PairRanks, Ranks
from counterfoil.scoring.stream import MEMORY, stream_scores

# -- Section 1: rank of a batch's hardest negative in the whole training set ----------------------
# With 500K pairs and batches of 128 the paper has an expected rank of about 4000, and a chance of
# about 2.2 % for one of the 100 hardest. Both follow from counting, whatever the model.
#
# A batch has an anchor caption and B - 1 of the T - 1 others, drawn uniformly. Its hardest negative
# text ranks below the k hardest if none of those k is drawn:
#
#     P(R > k) = C(T - 1 - k, B - 1) / C(T - 1, B - 1)
#
# and the sum over k is E[R] = T / B, exactly, as long as B exceeds the captions of one image. An
# image comes with c captions, so that k hard images are missed when k c captions are.
#
# The two numbers of the paper are of two sizes of MS-COCO: 500K / 128 = 3906, while 2.2 % is the
# chance in the 566,435 captions of its training split; in 500K it would be 2.5 %.

Direction = Literal["i2t", "t2i"]
_NUMBERS = 2**25  # scores held at once


def missed(count: Tensor, texts: int, batch: int) -> Tensor:
    """Probability that none of `count` captions is in the batch of another caption.

    Args:
        count: (n,) numbers of captions.
        texts: captions that batches are drawn from, T.
        batch: captions in a batch, B.
    """
    left, others = texts - 1, batch - 1
    rest = (left - count.double()).clamp(min=0)
    chance = (
        torch.lgamma(rest + 1)
        - torch.lgamma((rest - others).clamp(min=0) + 1)
        - torch.lgamma(torch.tensor(left + 1.0, dtype=torch.double))
        + torch.lgamma(torch.tensor(left - others + 1.0, dtype=torch.double))
    ).exp()
    return chance.where(rest >= others, 0.0)


def chance_of_top(k: int, texts: int, batch: int, *, captions: float = 1) -> float:
    """Probability that the hardest negative of a batch is one of the k hardest of all.

    Args:
        k: length of the list.
        texts: captions that batches are drawn from.
        batch: captions in a batch, the anchor among them.
        captions: per negative; 1 for texts, captions per image for images.
    """
    return 1 - float(missed(torch.tensor([k * captions]), texts, batch))


def expected_rank(texts: int, batch: int, *, captions: float = 1) -> float:
    """Expected rank, from 1, of the hardest negative of a batch; T / B for texts.

    Args:
        texts: captions that batches are drawn from.
        batch: captions in a batch, the anchor among them, more than one image has.
        captions: per negative, see `chance_of_top`.
    """
    if captions == 1:
        return texts / batch
    ranks = torch.arange(int((texts - 1) / captions), dtype=torch.double)
    return float(missed(ranks * captions, texts, batch).sum())


@final
@dataclass(frozen=True, slots=True, eq=False)
class OnlineRanks:
    """Online hard negatives of S anchors in each of D batches, at each of N batch sizes.

    Attributes:
        direction: of the queries.
        batches: the sizes.
        ranks: (N, S, D) long, rank among all wrong counterparts from 1; 0 where a batch has none.
        gaps: (N, S, D) score of the negative minus score of the anchor pair; NaN where none.
    """

    direction: Direction
    batches: tuple[int, ...]
    ranks: Tensor
    gaps: Tensor

    def mean(self, place: int) -> tuple[float, float]:
        """Mean rank at one batch size, and half of its 95 % interval over anchors."""
        ranks = self.ranks[place].double()
        ranks = ranks.masked_fill(ranks == 0, torch.nan).nanmean(1)
        ranks = ranks[ranks.isfinite()]
        spread = ranks.std().item() if len(ranks) > 1 else float("nan")
        return ranks.mean().item(), 1.96 * spread / len(ranks) ** 0.5

    def top(self, place: int, k: int) -> float:
        """Percent of batches whose negative is one of the k hardest of all."""
        ranks = self.ranks[place]
        return 100 * ((ranks > 0) & (ranks <= k)).double().mean().item()

    def gap(self, place: int) -> float:
        """Median score of the negative minus the positive's."""
        return self.gaps[place].nanmedian().item()


def online_ranks(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    *,
    batches: Sequence[int],
    anchors: int,
    draws: int,
    rng: torch.Generator,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Rank the hardest negatives of random batches, in both directions.

    Anchor captions and the rest of their batches are drawn from the captions that describe an
    image, as in training; smaller batches are the heads of larger ones. Each anchor is compared
    with everything, and of equal scores the lower row ranks first.

    Args:
        members: models with their encodings; several are an ensemble.
        relation: which text describes which image.
        batches: sizes, in captions.
        anchors: number of anchor captions.
        draws: batches of each size for each anchor.
        rng: of anchors and batches.

    Raises:
        ValueError: a batch of fewer than 2 captions, or of more than there are.
    """
    owned = (relation.text_to_image >= 0).nonzero().squeeze(1)
    sizes = tuple(sorted(set(batches)))
    if not sizes or sizes[0] < 2 or sizes[-1] > len(owned):
        raise ValueError(
            f"batches of {', '.join(map(str, sizes)) or 'nothing'} cannot be drawn from "
            f"{len(owned):,} captions; each needs 2 to {len(owned):,}"
        )
    chosen = owned[torch.randperm(len(owned), generator=rng)[:anchors]]
    measured: list[list[tuple[Tensor, Tensor]]] = []
    most = max(1, _NUMBERS // max(len(relation.text_to_image), relation.images))
    with progress("anchors ranked", len(chosen)) as advance:
        for part in torch.split(chosen, most):
            for anchor in zip(part, *anchor_scores(members, relation, part)):
                measured.append(_measure(anchor, relation, owned, sizes, draws, rng))
                advance(1)
    return _stacked("i2t", sizes, measured, 0), _stacked("t2i", sizes, measured, 1)


def anchor_scores(
    members: Sequence[EmbeddedDataset], relation: Relation, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """(S, T) scores of the anchor captions' images with all texts, and (S, I) of the captions.

    Args:
        members: models with their encodings.
        relation: which text describes which image.
        anchors: (S,) text rows, each of an image.
    """
    images = relation.text_to_image[anchors]
    with_images = [EmbeddedDataset(m.model, m.images.rows(images), m.texts) for m in members]
    with_anchors = [EmbeddedDataset(m.model, m.images, m.texts.rows(anchors)) for m in members]
    texts = DenseScores(len(anchors), len(relation.text_to_image))
    pictures = DenseScores(relation.images, len(anchors))
    stream_scores(with_images, [texts])
    stream_scores(with_anchors, [pictures])
    return texts.scores.cpu(), pictures.scores.T.contiguous().cpu()


def places(scores: Tensor, wrong: Tensor) -> Tensor:
    """(n,) rank of each negative among the negatives, from 1; n + 1 for positives."""
    order = scores.masked_fill(~wrong, -torch.inf).argsort(descending=True, stable=True)
    order = order[wrong[order]]
    ranks = torch.full((len(scores),), len(scores) + 1)
    ranks[order] = torch.arange(1, len(order) + 1)
    return ranks


def _measure(
    anchor: tuple[Tensor, ...],
    relation: Relation,
    owned: Tensor,
    sizes: tuple[int, ...],
    draws: int,
    rng: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    """(N, D) ranks and gaps for one anchor: of its image, then of its caption."""
    row, texts, images = int(anchor[0]), anchor[1], anchor[2]
    own = int(relation.text_to_image[row])
    text_place = places(texts, (relation.text_to_image >= 0) & (relation.text_to_image != own))
    image_place = places(images, (relation.counts > 0) & (relation.rows() != own))
    others = owned[owned != row]
    sampled = torch.stack(
        [others[torch.randperm(len(others), generator=rng)[: sizes[-1] - 1]] for _ in range(draws)]
    )
    return [
        _hardest(text_place[sampled], texts[sampled] - texts[row], sizes, len(texts)),
        _hardest(
            image_place[relation.text_to_image[sampled]],
            images[relation.text_to_image[sampled]] - images[own],
            sizes,
            len(images),
        ),
    ]


def _hardest(
    place: Tensor, gaps: Tensor, sizes: tuple[int, ...], count: int
) -> tuple[Tensor, Tensor]:
    """(N, D) best place in the head of each size, and the gap there."""
    best, at = place.cummin(1)  # column n: the best of the first n + 1 draws, for all sizes at once
    heads = torch.tensor(sizes) - 2  # a batch of B has B - 1 draws besides the anchor
    best, gap = best[:, heads].T, gaps.gather(1, at)[:, heads].T
    none = best > count
    return best.masked_fill(none, 0), gap.masked_fill(none, torch.nan)


def _stacked(
    direction: Direction,
    sizes: tuple[int, ...],
    measured: list[list[tuple[Tensor, Tensor]]],
    side: int,
) -> OnlineRanks:
    ranks, gaps = (torch.stack([one[side][part] for one in measured], 1) for part in (0, 1))
    return OnlineRanks(direction, sizes, ranks, gaps)


# -- Figure 3: anchors with their online and offline negatives -------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Listed:
    """Some items of the other modality for an anchor, highest score first.

    Attributes:
        rows: of texts or images.
        places: rank of each among all negatives, from 1; of a positive, one more than the number of
            negatives that score higher.
        scores: of the pairs.
    """

    rows: tuple[int, ...]
    places: tuple[int, ...]
    scores: tuple[float, ...]


@final
@dataclass(frozen=True, slots=True)
class Example:
    """The image or the text of an anchor pair, with its negatives.

    Attributes:
        row: of the image or text.
        true: its positives.
        online: the hardest negatives of random batches, each once.
        offline: drawn uniformly from the hardest of all.
    """

    row: int
    true: Listed
    online: Listed
    offline: Listed


@final
@dataclass(frozen=True, kw_only=True)
class Kinds:
    """Settings of the choice of negatives.

    Attributes:
        batch: captions in a batch, the anchor among them.
        texts: length of an image's list that offline texts are drawn from.
        images: length of a text's list that offline images are drawn from.
        shown: negatives of each kind, at most.
    """

    batch: int
    texts: int
    images: int
    shown: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Counterparts:
    """Scores of all items of the other modality for one anchor."""

    row: int
    scores: Tensor
    wrong: Tensor
    true: Tensor

    def listed(self, rows: Tensor) -> Listed:
        """These rows, hardest first."""
        place = places(self.scores, self.wrong)
        rows = rows[self.scores[rows].argsort(descending=True, stable=True)]
        ahead = [
            int(place[row])
            if self.wrong[row]
            else 1 + int((self.wrong & (self.scores > self.scores[row])).sum())
            for row in rows
        ]
        return Listed(tuple(rows.tolist()), tuple(ahead), tuple(self.scores[rows].tolist()))

    def example(self, batches: Tensor, mined: Tensor, shown: int, rng: torch.Generator) -> Example:
        """The hardest of each batch of counterparts, and a draw from the list."""
        place = places(self.scores, self.wrong)
        hardest = batches.gather(1, place[batches].argmin(1, keepdim=True)).squeeze(1)
        hardest = torch.tensor(sorted({*hardest[self.wrong[hardest]].tolist()}), dtype=torch.long)
        offline = mined[torch.randperm(len(mined), generator=rng)[:shown]]
        return Example(self.row, *(self.listed(rows) for rows in (self.true, hardest, offline)))


def examples(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    *,
    kinds: Kinds,
    anchors: int,
    rng: torch.Generator,
    lists: HardNegativeLists | None = None,
) -> list[tuple[Example, Example]]:
    """Images and one caption of each, with online and offline negatives (AOQ, Fig. 3).

    Args:
        members: models with their encodings; several are an ensemble.
        relation: which text describes which image.
        kinds: how negatives are chosen.
        anchors: number of images, at most.
        rng: of anchors, batches and draws.
        lists: mined negatives; by default the members' own hardest.

    Returns:
        For each anchor pair the image's side and the text's side.

    Raises:
        ValueError: no two images are described.
    """
    described = (relation.counts > 0).nonzero().squeeze(1)
    if len(described) < 2:
        raise ValueError(f"{len(described)} images have captions; negatives need at least 2")
    images = described[torch.randperm(len(described), generator=rng)[:anchors]]
    texts = relation.random_caption(images, rng)
    pairs = []
    for image, text, row, column in zip(images, texts, *anchor_scores(members, relation, texts)):
        text_to_image = relation.text_to_image
        left = _Counterparts(
            int(image),
            row,
            (text_to_image >= 0) & (text_to_image != image),
            _at(text_to_image == image),
        )
        wrong = (relation.counts > 0) & (relation.rows() != image)
        right = _Counterparts(int(text), column, wrong, image.unsqueeze(0))
        batches = _batches(relation, int(text), kinds, rng)
        mined = (
            _hardest_examples(left, kinds.texts, lists.texts[image] if lists else None),
            _hardest_examples(right, kinds.images, lists.images[text] if lists else None),
        )
        pairs.append(
            (
                left.example(batches, mined[0], kinds.shown, rng),
                right.example(text_to_image[batches], mined[1], kinds.shown, rng),
            )
        )
    return pairs


def _at(chosen: Tensor) -> Tensor:
    return chosen.nonzero().squeeze(1)


def _batches(relation: Relation, text: int, kinds: Kinds, rng: torch.Generator) -> Tensor:
    """(shown, B - 1) the other captions of as many batches."""
    others = _at(relation.text_to_image >= 0)
    others = others[others != text]
    rest = min(kinds.batch, len(others) + 1) - 1
    samples = [torch.randperm(len(others), generator=rng)[:rest] for _ in range(kinds.shown)]
    return others[torch.stack(samples)]


def _hardest_examples(side: _Counterparts, count: int, mined: Tensor | None) -> Tensor:
    """The hardest wrong rows: as mined, or by the side's own scores."""
    if mined is not None:
        return mined[mined >= 0][:count].long()
    place = places(side.scores, side.wrong)
    return _at(side.wrong & (place <= count))


# -- Section 1: rank of the hardest negative of a random batch ----------------------------------

BATCHES = (32, 64, 128, 256, 512, 1024)
_SIDES = {"i2t": "captions for an image", "t2i": "images for a caption"}


@final
@dataclass(frozen=True, slots=True)
class OnlineRankLine:
    """Hardest negatives of random batches of one size, in one direction.

    Attributes:
        direction: of the queries.
        batch: captions in a batch.
        mean_rank: of the batch's hardest negative in the whole split, from 1.
        half_interval: half width of its 95 % interval over anchors.
        expected_rank: by counting.
        hardest: number of counterparts that count as the hardest.
        top: percent of batches whose hardest negative is one of them.
        expected_top: by counting.
        median_gap: score of the negative minus score of the anchor pair.
    """

    direction: Direction
    batch: int
    mean_rank: float
    half_interval: float
    expected_rank: float
    hardest: int
    top: float
    expected_top: float
    median_gap: float


def online_rank(
    name: str,
    source: DataSource,
    out: Path,
    *,
    split: str = "train",
    batches: Sequence[int] = (),
    anchors: int = 200,
    draws: int = 20,
    top: int = 100,
    seed: int = 0,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Rank the hardest negatives of random batches in a whole split (section 1).

    Images count as among the hardest in proportion to texts: 20 images for 100 captions if an image
    has five, as the paper takes 60 images for 300 texts.

    Args:
        name: of the model; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        batches: sizes in captions; by default 32 to 1,024, up to the number of captions.
        anchors: number of captions whose batches are drawn.
        draws: batches of each size for each anchor.
        top: number of captions that count as the hardest.
        seed: of anchors and batches.

    Returns:
        Image to text, and text to image.

    Raises:
        ValueError: the page exists, model and data do not fit, or a batch cannot be drawn.
    """
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    scorers = open_scorers([name])
    owned = int((dataset.text_to_image >= 0).sum())
    sizes = tuple(batches) or tuple(b for b in BATCHES if b <= owned) or (owned,)
    ranks = online_ranks(
        scorers[0].on(dataset),
        dataset.relation,
        batches=sizes,
        anchors=anchors,
        draws=draws,
        rng=torch.Generator().manual_seed(seed),
    )
    i2t, t2i = (_online_lines(side, dataset, top) for side in ranks)
    shown = next((line for line in i2t if line.batch == 128), i2t[-1])
    Analysis(
        title="How hard online negatives are",
        headline=(
            f"The hardest wrong caption of a batch of {shown.batch:,} has rank "
            f"{_rank(shown.mean_rank)} on average in {len(dataset.texts):,} captions (by counting "
            f"{_rank(shown.expected_rank)}) and is one of the {shown.hardest:,} hardest in "
            f"{shown.top:.1f} % of batches (by counting {shown.expected_top:.1f} %)."
        ),
        protocol=(
            f"{describe_protocol(dataset, scorers, seed=seed)}; {min(anchors, owned):,} anchors, "
            f"{draws} batches of each size for each"
        ),
        numbers={
            "models": [name],
            "seed": seed,
            "lines": [asdict(line) for line in (*i2t, *t2i)],
        },
        figures=_online_figures(i2t, t2i),
        tables=(_online_table(i2t), _online_table(t2i)),
    ).publish(out)
    return ranks


def _online_lines(ranks: OnlineRanks, dataset: ImageTextDataset, top: int) -> list[OnlineRankLine]:
    texts = int((dataset.text_to_image >= 0).sum())
    described = int((dataset.relation.counts > 0).sum())
    captions = 1.0 if ranks.direction == "i2t" else texts / described
    hardest = max(1, round(top / captions))
    return [
        OnlineRankLine(
            ranks.direction,
            batch,
            *ranks.mean(place),
            expected_rank(texts, batch, captions=captions),
            hardest,
            ranks.top(place, hardest),
            100 * chance_of_top(hardest, texts, batch, captions=captions),
            ranks.gap(place),
        )
        for place, batch in enumerate(ranks.batches)
    ]


def _rank(rank: float) -> str:
    return f"{rank:,.0f}" if rank >= 100 else f"{rank:.1f}"


def _online_table(lines: Sequence[OnlineRankLine]) -> TableBlock:
    side = _SIDES[lines[0].direction]
    rows = tuple(
        (
            f"{line.batch:,}",
            f"{line.mean_rank:,.1f}\u00a0±\u00a0{line.half_interval:,.1f}",
            f"{line.expected_rank:,.1f}",
            f"{line.top:.2f}\u00a0%",
            f"{line.expected_top:.2f}\u00a0%",
            format_number(line.median_gap),
        )
        for line in lines
    )
    note = (
        f"Rank among all wrong {side.split()[0]} of the split, from 1; ± is a 95 % interval over "
        f"anchors. Hardest: the first {lines[0].hardest:,}. Gap: score of the negative minus score "
        "of the anchor pair. Expected: by counting, whatever the model."
    )
    head = "batch", "mean rank", "expected", "among the hardest", "expected share", "median gap"
    return TableBlock(f"Online negatives: {side}", head, rows, note)


def _online_figures(
    i2t: Sequence[OnlineRankLine], t2i: Sequence[OnlineRankLine]
) -> tuple[Figure, Figure]:
    ranks, tops = [], []
    for lines in (i2t, t2i):
        name, batches = _SIDES[lines[0].direction], tuple(line.batch for line in lines)
        ranks.append(
            ExpectedCurve(
                name,
                batches,
                tuple(line.expected_rank for line in lines),
                tuple(line.mean_rank for line in lines),
                tuple(line.half_interval for line in lines),
            )
        )
        expected = tuple(line.expected_top for line in lines)
        tops.append(ExpectedCurve(name, batches, expected, tuple(line.top for line in lines)))
    hardest = f"{i2t[0].hardest:,} captions or {t2i[0].hardest:,} images"
    often = f"How often it is one of the hardest {hardest}."
    return (
        expected_by_batch(ranks, "mean rank", "rank", "Its rank in the whole split.", log=True),
        expected_by_batch(tops, "share of batches, %", "top", often),
    )


# -- Figure 3: online and offline negatives of some anchors --------------------------------------

ExamplePairs = list[tuple[Example, Example]]


def negative_examples(
    name: str,
    source: DataSource,
    out: Path,
    *,
    split: str = "train",
    lists: Path | None = None,
    anchors: int = 6,
    batch: int = 128,
    top: int = 300,
    shown: int = 3,
    seed: int = 0,
) -> ExamplePairs:
    """Show negatives of random batches and of the whole split side by side (Figure 3).

    Offline negatives are drawn from the `top` hardest captions of an image, and from
    proportionally fewer images of a caption: 60 for 300 at five captions an image.

    Args:
        name: of the model that scores; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        lists: folder of mined lists to draw offline negatives from; default the model's own.
        anchors: number of images, each with one of its captions.
        batch: captions in a batch; at most all.
        top: draw offline negatives from so many captions; at most all.
        shown: number of batches, and of offline negatives.
        seed: of anchors, batches and draws.

    Raises:
        ValueError: the page exists, or model, lists and data do not fit.
    """
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    scorers = open_scorers([name])
    store = NegativeStore.open(lists, fingerprint=dataset.fingerprint) if lists else None
    kinds = _example_sizes(dataset, store, batch=batch, top=top, shown=shown)
    pairs = examples(
        scorers[0].on(dataset),
        dataset.relation,
        kinds=kinds,
        anchors=anchors,
        rng=torch.Generator().manual_seed(seed),
        lists=store.lists if store else None,
    )
    origin = f"lists of {lists}" if lists else "the model's own lists"
    totals = f"{len(dataset.texts):,} captions and {len(dataset):,} images"
    Analysis(
        title="Online and offline negatives",
        headline=f"Negatives of a batch of {kinds.batch}, and of {totals}.",
        protocol=(
            f"{describe_protocol(dataset, scorers, seed=seed)}; batches of {kinds.batch}; offline: "
            f"drawn from {kinds.texts} texts and {kinds.images} images, {origin}"
        ),
        numbers={
            "models": [name],
            "seed": seed,
            **asdict(kinds),
            "anchors": [
                {
                    "image": dataset.image_ids[image.row],
                    "caption": dataset.texts[text.row],
                    "texts": asdict(image),
                    "images": asdict(text),
                }
                for image, text in pairs
            ],
        },
        tables=(_example_table(pairs),),
        sections=tuple(_example_cards(pairs, dataset, kinds)),
    ).publish(out)
    return pairs


def _example_sizes(
    dataset: ImageTextDataset, store: NegativeStore | None, *, batch: int, top: int, shown: int
) -> Kinds:
    """The requested sizes, limited by the split and the lists."""
    most = max(1, len(dataset.texts))
    texts = min(top, most)
    images = images_for_texts(texts, dataset.relation)
    if store is not None:
        texts = min(texts, store.lists.texts.shape[1])
        images = min(images, store.lists.images.shape[1])
    return Kinds(batch=min(batch, most), texts=texts, images=images, shown=shown)


def _example_table(pairs: ExamplePairs) -> TableBlock:
    sides = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rows = tuple(
        (f"{name}, {kind}", *_medians([getattr(example, kind) for example in side]))
        for name, side in zip(("captions of an image", "images of a caption"), sides)
        for kind in ("true", "online", "offline")
    )
    note = "Rank among all wrong counterparts of the split, from 1."
    return TableBlock("In these examples", ("", "median rank", "median score"), rows, note)


def _medians(listed: Sequence[Listed]) -> tuple[str, str]:
    ranks = torch.tensor([place for one in listed for place in one.places]).double()
    scores = torch.tensor([score for one in listed for score in one.scores]).double()
    if not len(ranks):
        return MISSING, MISSING
    return f"{ranks.median():,.0f}", format_number(scores.median().item(), ".3f")


def _example_cards(
    pairs: ExamplePairs, shown: ImageTextDataset, kinds: Kinds
) -> Iterator[CardSection]:
    yield CardSection(
        "Images and wrong captions",
        "Before each caption its rank among the wrong ones, after it its score.",
        tuple(_example_card(shown, pair[0], kinds, from_image=True) for pair in pairs),
    )
    yield CardSection(
        "Captions and wrong images",
        "Under each image its rank among the wrong ones and its score.",
        tuple(_example_card(shown, pair[1], kinds, from_image=False) for pair in pairs),
    )


def _example_card(
    shown: ImageTextDataset, example: Example, kinds: Kinds, *, from_image: bool
) -> ExampleCard:
    item = shown_caption if from_image else shown_image
    query = shown_image if from_image else shown_caption

    def column(title: str, note: str, listed: Listed) -> CardColumn:
        rows = zip(listed.rows, listed.places, listed.scores)
        items = tuple(item(shown, row, example.row, place - 1, score) for row, place, score in rows)
        return CardColumn(title, note, items)

    hardest = kinds.texts if from_image else kinds.images
    return ExampleCard(
        query(shown, example.row),
        "",
        (
            column("Positive", "", example.true),
            column("Online", f"hardest of each of {kinds.shown} batches", example.online),
            column("Offline", f"drawn from the {hardest} hardest", example.offline),
        ),
    )


# -- Figure 4: learning curves --------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """Learning curve of a training and its settings, as far as they were recorded.

    Attributes:
        curve: metrics by epoch.
        folder: of the training.
        losses: names of its losses.
        seed: of the training.
        data: name of the data.
        fingerprint: of the data.
    """

    curve: LearningCurve
    folder: str
    losses: str = ""
    seed: int | None = None
    data: str = ""
    fingerprint: str = ""


def curves(folders: Sequence[Path], out: Path) -> tuple[TrainingCurve, ...]:
    """Draw development R@1 both ways (Figure 4), RSum and training loss by epoch.

    Args:
        folders: of training stages, or of runs with all their trainings.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, or a folder holds no log of a training.
    """
    check_page_path(out)
    places = training_folders(folders)
    names = short_names([str(place) for place in places])
    trainings = tuple(_read_training(name, place) for name, place in zip(names, places))
    data = ", ".join(dict.fromkeys(one.data for one in trainings if one.data))
    seeds = ", ".join(dict.fromkeys(str(one.seed) for one in trainings if one.seed is not None))
    Analysis(
        title="Learning curves",
        headline=_curves_headline(trainings),
        protocol=(
            f"{f'{data} ' if data else ''}dev, whole split: RSum after each epoch, sum of R@1, R@5 "
            "and R@10 both ways, and R@1 each way, any hit; single models"
            f"{f'; seed {seeds}' if seeds else ''}"
        ),
        numbers={"trainings": [asdict(one) for one in trainings]},
        figures=(
            *recall_curves([one.curve for one in trainings]),
            *learning_curves([one.curve for one in trainings]),
        ),
        tables=(_curves_table(trainings),),
    ).publish(out)
    return trainings


def _read_training(name: str, folder: Path) -> TrainingCurve:
    metrics = learning_curve(name, folder / METRICS)
    if not metrics.epochs:
        raise ValueError(f"{folder / METRICS} holds no epoch; was the training stopped at once?")
    note = folder.with_name(f"{folder.name}.json")
    content = read_json(note, "the note of a stage") if note.is_file() else {}
    try:
        stage, data = content.get("stage", {}), content.get("data", {})
        losses = ", ".join(dict.fromkeys(_loss_names(stage.get("objective", {}).get("terms", {}))))
        seed = stage.get("plan", {}).get("seed")
        return TrainingCurve(
            metrics, str(folder), losses, seed, data.get("name", ""), data.get("fingerprint", "")
        )
    except AttributeError as error:
        raise ValueError(f"{note} is no note of a stage: {error}") from error


def _loss_names(written: Any) -> Iterator[str]:
    """Names of the losses in a written call; losses in sequence are joined by "then"."""
    if isinstance(written, dict):
        call = str(written.get("call", ""))
        if call.rpartition(":")[2] == "Then":  # the stable name of `SwitchAfter`
            parts = ("first", "second")
            yield " then ".join(name for key in parts for name in _loss_names(written.get(key)))
            return
        if call:
            yield call.rpartition(":")[2]
        for value in written.values():
            yield from _loss_names(value)
    elif isinstance(written, list):
        for value in written:
            yield from _loss_names(value)


def _curves_table(trainings: Sequence[TrainingCurve]) -> TableBlock:
    rows = []
    for one in trainings:
        rsum = one.curve.dev_rsum
        measured: tuple[str, ...] = (MISSING,) * 5
        if rsum:
            best = max(rsum)
            place = rsum.index(best)
            ways = one.curve.dev_i2t_r1, one.curve.dev_t2i_r1
            recalls = (f"{way[place]:.1f}" if way else MISSING for way in ways)
            measured = f"{best:.1f}", f"{one.curve.epochs[place]:g}", *recalls, f"{rsum[-1]:.1f}"
        seed = MISSING if one.seed is None else str(one.seed)
        rows.append((one.curve.name, one.losses or MISSING, seed, *measured))
    there = "R@1 i2t there", "R@1 t2i there"
    head = "training", "loss", "seed", "best dev RSum", "at epoch", *there, "last RSum"
    return TableBlock("Trainings", head, tuple(rows))


def _curves_headline(trainings: Sequence[TrainingCurve]) -> str:
    measured = [one.curve for one in trainings if one.curve.dev_rsum]
    if not measured:
        return f"Training loss of {len(trainings)} trainings; none was measured on dev."
    top = max(measured, key=lambda one: max(one.dev_rsum))
    best = max(top.dev_rsum)
    if len(measured) == 1:
        return f"{top.name} reaches dev RSum {best:.1f} in {len(top.epochs)} epochs."
    if len({one.fingerprint for one in trainings if one.fingerprint}) > 1:
        return f"{len(trainings)} trainings on different data, whose figures do not compare."
    others = ", ".join(f"{max(o.dev_rsum):.1f} by {o.name}" for o in measured if o is not top)
    return f"The best dev RSum is {best:.1f} by {top.name}; {others}."


# -- Section 4.3 and Figure 5: cross-retrieval rank -----------------------------------------------

EDGES = (1, 5, 10, 20, 50, 100, 200)  # last rank of each bin but the open one
BINS = ("1", "2–5", "6–10", "11–20", "21–50", "51–100", "101–200", "above 200")


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossRanks:
    """Ranks of all P true pairs, from 1, in the order of the texts.

    Attributes:
        texts: (P,) long, rank among the wrong texts of the pair's image, r_t.
        images: (P,) long, rank among the wrong images of the pair's text, r_i.
        ratio: texts per image, by which image ranks are scaled.
    """

    texts: Tensor
    images: Tensor
    ratio: float

    @property
    def cross(self) -> Tensor:
        """(P,) double, max(ratio * (r_i - 1) + 1, r_t).

        Section 4.3 has max(5 r_i - 4, r_t), which this is at five texts per image. Whole numbers
        stay whole if the ratio is one.
        """
        return torch.maximum(self.ratio * (self.images.double() - 1) + 1, self.texts.double())

    def shares(self) -> tuple[float, ...]:
        """Percent of the pairs in each of `BINS`; a rank between two bins falls in the upper."""
        place = torch.bucketize(self.cross, torch.tensor(EDGES, dtype=torch.double))
        return tuple((100 * torch.bincount(place, minlength=len(BINS)) / len(place)).tolist())


def cross_ranks(
    members: Sequence[EmbeddedDataset], text_to_image: Tensor, *, memory: int = MEMORY
) -> CrossRanks:
    """Rank every true pair in one pass over the scores.

    Other true texts of the image count neither for nor against a pair; of equal scores the lower
    row comes first.

    Args:
        members: models with their encodings; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none.
        memory: bytes, see `stream_scores`.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or no text describes an image.
    """
    images = len(members[0].images) if members else 0
    check_text_to_image(text_to_image, images, len(members[0].texts) if members else 0)
    paired = text_to_image >= 0
    if not bool(paired.any()):
        raise ValueError(
            f"none of the {len(text_to_image)} texts describes an image; there is no pair"
        )
    texts, pictures = PairRanks(text_to_image), Ranks("text", len(text_to_image), text_to_image)
    stream_scores(members, [texts, pictures], memory=memory)
    r_t, r_i = texts.ranks().cpu()[paired.cpu()], pictures.ranks().cpu()[paired.cpu()]
    return CrossRanks(r_t + 1, r_i + 1, len(r_t) / images)


def cross_rank(
    names: Sequence[str], source: DataSource, out: Path, *, split: str = "test"
) -> dict[str, CrossRanks]:
    """Count true pairs by their cross-retrieval rank under each model (Figure 5).

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.

    Returns:
        The ranks by the model's short name.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_page_path(out)
    distributed.init()
    dataset = source.split(split)
    scorers = open_scorers(names)
    ranks = {s.name: cross_ranks(s.on(dataset), dataset.text_to_image) for s in scorers}
    shares = {name: one.shares() for name, one in ranks.items()}
    first = next(iter(ranks.values()))
    pairs, ratio = first.cross.numel(), first.ratio
    rows = (
        *((name, *(f"{shares[s][place]:.1f}" for s in shares)) for place, name in enumerate(BINS)),
        ("median rank", *(f"{one.cross.median():,.0f}" for one in ranks.values())),
    )
    note = (
        f"Percent of {pairs:,} true pairs by max({ratio:.4g} · (r_i − 1) + 1, r_t): r_i is the "
        f"pair's rank among wrong images of its text, r_t among wrong texts of its image, and "
        f"{ratio:.4g} texts fall on an image; at five this is max(5 r_i − 4, r_t)."
    )
    best = ", ".join(f"{share[0]:.1f} % under {name}" for name, share in shares.items())
    far = ", ".join(f"{share[-1]:.1f} % under {name}" for name, share in shares.items())
    Analysis(
        title="Cross-retrieval ranks",
        headline=f"Above every wrong pair: {best}. Beyond rank 200: {far}.",
        protocol=describe_protocol(dataset, scorers),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "pairs": pairs,
            "texts_per_image": ratio,
            "bins": list(BINS),
            "percent": {name: list(share) for name, share in shares.items()},
            "median": {name: float(one.cross.median()) for name, one in ranks.items()},
        },
        figures=(share_bars(list(shares.items()), BINS, "cross"),),
        tables=(TableBlock("Shares of the true pairs", ("rank", *shares), rows, note),),
    ).publish(out)
    return ranks
