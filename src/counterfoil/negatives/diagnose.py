"""Diagnose mined negatives: how hard, how crowded by hubs, and how many may be true after all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.scenes import scene
from counterfoil.data.scenes.grammar import parse
from counterfoil.data.scenes.truth import holds
from counterfoil.negatives.filters import caption_cosines, caption_vectors, check_least
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import score_index_pairs


@final
@dataclass(frozen=True, slots=True, eq=False)
class NegativeHardness:
    """Scores of S anchor images with three kinds of text.

    Attributes:
        positive: (S,) a true caption.
        online: (S,) the hardest wrong caption of a random batch.
        offline: (S,) a mined caption, drawn uniformly from the list.
        batch: size of the random batches.
    """

    positive: Tensor
    online: Tensor
    offline: Tensor
    batch: int


@torch.inference_mode()
def hardness(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    mined: Tensor,
    *,
    batch: int,
    samples: int,
    rng: torch.Generator,
) -> NegativeHardness:
    """Measure how hard online and mined negatives are, on random batches of training captions.

    Args:
        members: models with their encodings; the mean score of several counts.
        relation: image of each text.
        mined: (I, h) mined texts of each image, -1 where there are fewer.
        batch: captions in a batch.
        samples: approximate number of anchors; one batch at least.
        rng: of batches and draws.
    """

    def mean_score(kind: Literal["score_matrix", "score_pairs"], *rows: Tensor) -> Tensor:
        each = [
            getattr(m.model, kind)(m.images.rows(rows[0]), m.texts.rows(rows[1])) for m in members
        ]
        return torch.stack(each).float().mean(0)

    text_to_image = relation.text_to_image
    owned = relation.owned
    batch = min(batch, len(owned))
    scores: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(max(1, samples // batch)):
        rows = owned[torch.randperm(len(owned), generator=rng)[:batch]]
        anchors = text_to_image[rows]
        block = mean_score("score_matrix", anchors, rows)
        true = anchors.unsqueeze(1) == anchors
        if relation.spares_pairs:
            pairs = anchors.unsqueeze(1).expand_as(true), rows.expand_as(true)
            true = true | (relation.exempt_weight(*pairs) >= 0)
        wrong = block.masked_fill(true, -torch.inf).amax(1)
        lists = mined[anchors].long()
        place = (torch.rand(len(rows), generator=rng) * (lists >= 0).sum(1)).long()
        negative = lists.gather(1, place.unsqueeze(1)).squeeze(1)
        valid = (negative >= 0) & wrong.isfinite()
        offline = mean_score("score_pairs", anchors[valid], negative[valid])
        scores.append((block.diagonal()[valid], wrong[valid], offline))
    positive, online, offline = (torch.cat(parts) for parts in zip(*scores))
    return NegativeHardness(positive, online, offline, batch)


# Hubs: items that are on far more lists of negatives than others.


@final
@dataclass(frozen=True, slots=True)
class HubStatistics:
    """Statistics of how often each of C candidates is among the first k of a list (hubness).

    Attributes:
        first: k.
        skewness: third standardised moment of these counts (Radovanović et al., "Hubs in space",
            JMLR 2010); 0 where all are listed as often, and about 1 / sqrt(mean) by chance.
        never: percent of the candidates that are on no list.
        crowd: percent of all places that the most listed hundredth of the candidates takes.
        largest: rows of the most listed candidates and how often they are, most first.
    """

    first: int
    skewness: float
    never: float
    crowd: float
    largest: tuple[tuple[int, int], ...]


def measure_hubs(
    lists: Tensor, candidates: int, *, first: int = 10, largest: int = 5
) -> HubStatistics:
    """Count how often each of C candidates is among the `first` of the (Q, h) lists, -1 for none.

    The `largest` hubs are named.

    >>> measure_hubs(torch.tensor([[0, 1], [0, 2], [0, -1]]), 4, largest=1)
    HubStatistics(first=2, skewness=0.652..., never=25.0, crowd=60.0, largest=((0, 3),))
    """
    first = min(first, lists.shape[1])
    rows = lists[:, :first].flatten()
    counts = torch.bincount(rows[rows >= 0].long(), minlength=candidates)
    number = counts.double()
    spread = float(number.std(correction=0))
    skewness = float(((number - number.mean()) ** 3).mean()) / spread**3 if spread else 0.0
    order = counts.argsort(descending=True, stable=True)
    most = order[: max(1, candidates // 100)]
    return HubStatistics(
        first=first,
        skewness=skewness,
        never=100 * float((counts == 0).double().mean()),
        crowd=100 * int(counts[most].sum()) / max(1, int(counts.sum())),
        largest=tuple((int(row), int(counts[row])) for row in order[:largest]),
    )


def list_overlap(lists: Tensor, groups: Iterable[Tensor], *, first: int = 10) -> float | None:
    """Return how similar the lists of related queries are: mean Jaccard index of the first k rows.

    Args:
        lists: (Q, h) rows, -1 where short.
        groups: rows of related queries, as the captions of one image.
        first: k.

    Returns:
        The mean over all pairs within a group, in percent; None where there is no pair.

    >>> rows = torch.tensor([[1, 2], [2, 3], [4, 5]])
    >>> list_overlap(rows, [torch.tensor([0, 1]), torch.tensor([2])])
    33.3...
    """
    shares = []
    for group in groups:
        sets = [{row for row in line if row >= 0} for line in lists[group, :first].tolist()]
        shares += [len(a & b) / max(1, len(a | b)) for a, b in combinations(sets, 2)]
    return 100 * sum(shares) / len(shares) if shares else None


# Estimates of which mined pairs may be true after all.


_SAME = 1 - 1e-9  # cosine of equal sets of words, rounded


@final
@dataclass(frozen=True, slots=True, eq=False)
class InspectedPairs:
    """The lists of S anchor pairs, those of their images or those of their texts.

    Attributes:
        anchors: (S,) the anchor pairs.
        pairs: (S, h) the listed pairs, hardest first.
        listed: (S, h) bool, False where a list is shorter; such pairs mean nothing.
    """

    anchors: Pairs
    pairs: Pairs
    listed: Tensor

    def scores(self, members: Sequence[EmbeddedDataset]) -> Tensor:
        """Return the (S, h) mean scores of the pairs, -inf where a list is shorter."""
        images, texts = self.pairs.image[self.listed], self.pairs.text[self.listed]
        scores = torch.full(self.listed.shape, -torch.inf)
        scores[self.listed] = score_index_pairs(members, images, texts)
        return scores


@final
@dataclass(frozen=True, slots=True, eq=False)
class SuspectedPositives:
    """One estimate of which listed pairs are true.

    Attributes:
        name: short name.
        description: what the estimate suspects.
        suspected: (S, h) bool, pairs that may be true.
        decided: (S, h) bool, pairs that the estimate can decide.
    """

    name: str
    description: str
    suspected: Tensor
    decided: Tensor


def inspect_pairs(
    lists: HardNegativeLists, relation: Relation, texts: Tensor
) -> tuple[InspectedPairs, InspectedPairs]:
    """Return the mined pairs of anchor texts: wrong texts of their images, and wrong images."""
    anchors = Pairs(relation.text_to_image[texts], texts)
    wrong_texts = lists.texts[anchors.image].long()
    wrong_images = lists.images[texts].long()
    return (
        InspectedPairs(
            anchors, Pairs(_beside(anchors.image, wrong_texts), wrong_texts), wrong_texts >= 0
        ),
        InspectedPairs(
            anchors, Pairs(wrong_images, _beside(texts, wrong_images)), wrong_images >= 0
        ),
    )


def suspects_by_score(
    inspected: InspectedPairs, scores: Tensor, positive: Tensor
) -> SuspectedPositives:
    """Suspect pairs whose (S, h) scores are at least those of their (S,) anchor pairs."""
    words = "scores at least what its anchor pair scores; mistakes of the model count too"
    suspected = inspected.listed & (scores >= positive.unsqueeze(1))
    return SuspectedPositives("above positive", words, suspected, inspected.listed)


def suspects_by_wording(
    dataset: ImageTextDataset, inspected: Sequence[InspectedPairs], *, least: float
) -> list[list[SuspectedPositives]]:
    """Suspect pairs whose text is worded like one of the image's own captions.

    Returns two estimates each: of equal words, and of a TF-IDF cosine of at least `least`, see
    `counterfoil.negatives.filters`; none for a data set without words.

    Raises:
        ValueError: `least` is not above 0 and at most 1.
    """
    check_least("alike", least)
    vectors = caption_vectors(dataset.texts)
    if not vectors.shape[1]:
        return [[] for _ in inspected]

    def cosines(left: Tensor, right: Tensor) -> Tensor:
        return torch.from_numpy(caption_cosines(vectors, left.numpy(), right.numpy()))

    same = "has the very words of a caption of the image, in any order"
    alike = f"has a TF-IDF cosine of at least {least:g} with a caption of the image"
    estimates = []
    for part in inspected:
        listed = part.listed
        cosine = nearest_caption(cosines, dataset.relation, part.pairs, listed)
        estimates.append(
            [
                SuspectedPositives("same words", same, listed & (cosine >= _SAME), listed),
                SuspectedPositives(
                    "similar words", alike, listed & (cosine >= least - 1e-9), listed
                ),
            ]
        )
    return estimates


def suspects_by_truth(
    dataset: ImageTextDataset, inspected: Sequence[InspectedPairs]
) -> list[list[SuspectedPositives]]:
    """Return one estimate each, the exact one of `scenes`, where the truth is known; else none."""
    try:
        scene(dataset.image_ids[0])
    except ValueError:
        return [[] for _ in inspected]
    words = "is true of the picture, as decided from what is in it"
    forms = cache(lambda row: (p := parse(dataset.texts[row])) and p.form)
    graphs = cache(lambda row: scene(dataset.image_ids[row]))
    estimates = []
    for part in inspected:
        suspected, decided = torch.zeros_like(part.listed), torch.zeros_like(part.listed)
        for line, place in part.listed.nonzero().tolist():
            form = forms(int(part.pairs.text[line, place]))
            if form is not None:
                decided[line, place] = True
                suspected[line, place] = holds(form, graphs(int(part.pairs.image[line, place])))
        estimates.append([SuspectedPositives("true", words, suspected, decided)])
    return estimates


def _beside(anchor: Tensor, listed: Tensor) -> Tensor:
    return anchor.unsqueeze(1).expand_as(listed)


def nearest_caption(
    cosine: Callable[[Tensor, Tensor], Tensor], relation: Relation, pairs: Pairs, listed: Tensor
) -> Tensor:
    """Return the highest cosine of each pair's text with a caption of its image, 0 without one.

    Args:
        cosine: (P,) text rows and (P,) others to (P,) double cosines.
        relation: image of each text.
        pairs: (S, h) rows.
        listed: (S, h) bool, the pairs that count.
    """
    cosines = torch.zeros(listed.shape, dtype=torch.double)
    for line, there in enumerate(listed):
        images, texts = pairs.image[line, there], pairs.text[line, there]
        captions, counts = relation.captions(images)
        pair = torch.arange(len(images)).repeat_interleave(counts)
        each = cosine(texts[pair], captions)
        cosines[line, there] = cosines.new_zeros(len(images)).scatter_reduce(0, pair, each, "amax")
    return cosines


BOUNDS = (1, 5, 20, 100)  # last ranks of the parts of a list


@final
@dataclass(frozen=True, slots=True)
class RankStatistics:
    """Statistics of the pairs at a range of ranks.

    Attributes:
        first: the first rank, from 1.
        last: the last rank.
        pairs: number of pairs at these ranks.
        gap: median of their scores less their anchor pairs' scores; None without scores.
        suspected: percent of the pairs that each estimate suspects; None if it decides none.
    """

    first: int
    last: int
    pairs: int
    gap: float | None
    suspected: tuple[float | None, ...]


def statistics_by_rank(
    inspected: InspectedPairs, estimates: Sequence[SuspectedPositives], gaps: Tensor | None
) -> tuple[RankStatistics, ...]:
    """Return statistics of ranges of ranks, hardest first, and then of the whole lists.

    `gaps` are (S, h) scores of the pairs less those of their anchor pairs, if known.
    """
    depth = inspected.listed.shape[1]
    lasts = [*(bound for bound in BOUNDS if bound < depth), depth]
    parts = list(zip([1, *(last + 1 for last in lasts)], lasts))
    if len(parts) > 1:
        parts.append((1, depth))
    statistics = []
    for first, last in parts:
        ranks = slice(first - 1, last)
        listed = inspected.listed[:, ranks]
        shares: list[float | None] = []
        for estimate in estimates:
            decided = int(estimate.decided[:, ranks].sum())
            suspects = int(estimate.suspected[:, ranks].sum())
            shares.append(100 * suspects / decided if decided else None)
        scored = torch.zeros(0) if gaps is None else gaps[:, ranks][listed]
        gap = float(scored.median()) if len(scored) else None
        statistics.append(RankStatistics(first, last, int(listed.sum()), gap, tuple(shares)))
    return tuple(statistics)
