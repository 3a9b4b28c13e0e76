"""A filter with a guarantee: at most a given share of the kept pairs is true, by judged pairs.

People judge a random sample of the listed pairs (`sampled_places`). A threshold on a measure of how
likely a pair is true is then chosen by fixed-sequence testing (Angelopoulos, Bates, Candès, Jordan
and Lei, "Learn then test", arXiv:2110.01052): from strict to loose, as long as the upper bound of
Clopper and Pearson on the share of true pairs among the kept ones is at most the one asked for. The
sample is drawn from fixed lists, so pairs of one query may be alike: nothing is assumed about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.config import parse_literal
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.negatives.diagnose import nearest_caption
from counterfoil.negatives.filters import caption_cosines, caption_vectors
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.negatives.store import HardNegativeLists, ListCounts, NegativeStore
from counterfoil.scoring.encode import EmbeddedDataset, Side
from counterfoil.scoring.pairs import score_index_pairs

Measure = Literal["margin", "score", "rank", "captions", "meanings"]
Verdicts = Mapping[tuple[int, int], bool]  # by image and text row
NOUNS: Mapping[Side, str] = {"image": "texts of images", "text": "images of texts"}
MEASURES: Mapping[Measure, str] = {
    "margin": "score less the anchor's lowest positive",
    "score": "score",
    "rank": "place from the end of the list",
    "captions": "TF-IDF cosine with a caption of the image",
    "meanings": "cosine of meaning with a caption of the image",
}
_STEPS = 100  # thresholds that are tried, quantiles of the listed pairs


@final
@dataclass(frozen=True, kw_only=True)
class GuaranteeConfig:
    """What is promised, and by which judged pairs.

    Attributes:
        at_most_true: share of the kept pairs that may be true.
        confidence: how sure that is, for the texts of images and for the images of texts, each by
            itself.
        by: what tells how likely a pair is true: "margin", its score less the lowest positive of
            its anchor; "score"; "rank", its place in the list; "captions", the highest TF-IDF
            cosine of its text with a caption of its image; "meanings", the same by an encoder.
        encoder: sentence encoder of "meanings".
        sample: number of pairs of each side that were drawn by `sampled_places`, of which all
            count, one without a verdict as true; None for all judged pairs of the lists, which then
            have to be a random sample of them.

    Raises:
        ValueError: a share or a confidence that is not between 0 and 1, an unknown measure, or no
            sample.
    """

    at_most_true: float = 0.05
    confidence: float = 0.95
    by: Measure = "margin"
    encoder: str | None = None
    sample: int | None = None

    def __post_init__(self) -> None:
        for name in ("at_most_true", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)}: a share between 0 and 1 is needed, as in "
                    f"{GuaranteeConfig.__dataclass_fields__[name].default}"
                )
        parse_literal(Measure, self.by, "a measure")
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample={self.sample}: at least 1 pair is drawn")

    @property
    def promise(self) -> str:
        """What is promised, in a phrase."""
        return f"at most {100 * self.at_most_true:g} % are true with {100 * self.confidence:g} %"

    def needed(self) -> int:
        """Judged pairs that are needed if none of them is true."""
        return math.ceil(math.log(1 - self.confidence) / math.log(1 - self.at_most_true))


@final
@dataclass(frozen=True, slots=True)
class CalibratedSide:
    """A threshold of one side of the lists, and what it rests on.

    Attributes:
        side: "image" for the texts of images.
        threshold: pairs whose measure is above it are left out.
        judged: judged pairs that count.
        true: those of them that are true.
        kept_judged: judged pairs up to the threshold.
        kept_true: those of them that are true.
        bound: upper bound on the share of true ones among the kept pairs.
        pairs: listed pairs.
        kept: listed pairs that are kept.
        unjudged: pairs of the sample without a verdict, which count as true.
    """

    side: Side
    threshold: float
    judged: int
    true: int
    kept_judged: int
    kept_true: int
    bound: float
    pairs: int
    kept: int
    unjudged: int = 0

    def __str__(self) -> str:
        missing = f", {self.unjudged:,} without a verdict among them" if self.unjudged else ""
        return (
            f"{NOUNS[self.side]}: threshold {self.threshold:.4g}; {self.judged:,} pairs judged"
            f"{missing}, {self.true:,} true; {self.kept_true:,} of {self.kept_judged:,} below the "
            f"threshold, so at most {100 * self.bound:.1f} %; {self.kept:,} of {self.pairs:,} "
            f"pairs kept ({100 * self.kept / self.pairs:.1f} %)"
        )


def sampled_places(rows: Tensor, count: int) -> Tensor:
    """Draw entries of (Q, h) lists, -1 for none: (n,) places in `rows.flatten()`, always the same.

    Each entry has the same chance; n is `count`, or all entries where there are fewer.
    """
    listed = (rows.flatten() >= 0).nonzero().squeeze(1)
    order = torch.randperm(len(listed), generator=torch.Generator().manual_seed(0))
    return listed[order[:count]]


def pairs_at(side: Side, rows: Tensor, places: Tensor) -> Pairs:
    """The pairs at places of flattened (Q, h) lists."""
    query, answer = places // rows.shape[1], rows.flatten()[places].long()
    return Pairs(query, answer) if side == "image" else Pairs(answer, query)


def upper_bound(true: int, judged: int, confidence: float) -> float:
    """Upper bound of Clopper and Pearson on a share.

    >>> round(upper_bound(0, 59, 0.95), 3), round(upper_bound(4, 181, 0.95), 3)
    (0.05, 0.05)
    """
    from scipy.stats import beta

    return 1.0 if true >= judged else float(beta.ppf(confidence, true + 1, judged - true))


def calibrate(
    measure: Any, true: Any, grid: Any, *, at_most_true: float, confidence: float
) -> tuple[float, float] | None:
    """Choose the loosest threshold of a fixed sequence that keeps few true pairs.

    The sequence begins where half of the judged pairs are kept. Of many judged pairs a second one
    begins where just enough are, and each is tested at half the error (Bonferroni). Which
    thresholds are tried depends on the measures alone, never on verdicts.

    Args:
        measure: (n,) of the judged pairs; those up to a threshold are kept.
        true: (n,) bool, their verdicts.
        grid: thresholds, ascending; of all listed pairs, not of the judged ones.
        at_most_true: share of true pairs.
        confidence: of the bound.

    Returns:
        The threshold and the bound on the share of true pairs; None where no threshold holds.
    """
    from scipy.stats import binom

    judged = np.searchsorted(np.sort(measure), grid, side="right")
    found = np.searchsorted(np.sort(measure[true]), grid, side="right")
    plan = GuaranteeConfig(at_most_true=at_most_true, confidence=confidence)
    half = len(measure) // 2
    starts, enough = [max(plan.needed(), half)], replace(plan, confidence=(1 + confidence) / 2)
    if half > 2 * enough.needed():
        starts.append(enough.needed())
    error, best = (1 - confidence) / len(starts), -1
    for start in starts:
        places = (judged >= start).nonzero()[0]
        holds = binom.cdf(found[places], judged[places], at_most_true) <= error
        passed = places[: len(holds) if holds.all() else int(holds.argmin())]
        best = max(best, *passed.tolist(), -1)
    if best < 0:
        return None
    return float(grid[best]), upper_bound(int(found[best]), int(judged[best]), 1 - error)


def filter_with_guarantee(
    store: NegativeStore,
    dataset: ImageTextDataset,
    verdicts: Verdicts,
    config: GuaranteeConfig,
    *,
    members: Sequence[EmbeddedDataset] = (),
) -> tuple[NegativeStore, tuple[CalibratedSide, CalibratedSide]]:
    """Leave out of mined lists the pairs above a threshold, and those that were judged true.

    Nothing is mined in their place: the promise is about pairs that the judged ones are drawn from.

    Args:
        store: the lists, opened with the relation of the data set.
        dataset: the split that was mined, as it was then.
        verdicts: whether pairs are true.
        config: what is promised.
        members: models that score the pairs, instead of those that mined.

    Returns:
        The filtered lists, and what the thresholds rest on.

    Raises:
        ValueError: too few judged pairs, no threshold that holds, lists without the scores or a
            config without the encoder that the measure needs, or nothing left.
    """
    lists = store.lists
    if config.by == "meanings" and not config.encoder:
        raise ValueError(
            "by=meanings needs a sentence encoder, and none is named; give its "
            "folder or name as encoder (--set encoder=FOLDER), or take another measure"
        )
    if config.by != "meanings" and config.encoder:
        raise ValueError(
            f"the encoder {config.encoder!r} is read with by=meanings alone, and by={config.by} "
            "was asked; leave one of the two out"
        )
    measures = _measures(lists, dataset, config, members)
    sides: list[CalibratedSide] = []
    kept: list[Tensor] = []
    for side, rows, measure in zip(NOUNS, (lists.texts, lists.images), measures, strict=True):
        sides.append(_calibrated(side, rows, measure, verdicts, config))
        kept.append((rows >= 0) & (measure <= sides[-1].threshold))
    true = torch.tensor([pair for pair, is_true in verdicts.items() if is_true]).view(-1, 2)
    keys = (true[:, 0] * len(lists.images) + true[:, 1]).long()
    parts = []
    for place, (side, rows, scores) in enumerate(
        zip(NOUNS, (lists.texts, lists.images), (lists.text_scores, lists.image_scores))
    ):
        every = pairs_at(side, rows, torch.arange(rows.numel()))
        known = torch.isin(every.image * len(lists.images) + every.text, keys).view(rows.shape)
        parts.append(_without(rows, scores, kept[place] & ~known))
    (texts, text_scores), (images, image_scores) = parts
    filtered = HardNegativeLists(texts, images, text_scores, image_scores, lists.true_scores)
    levels = " or ".join(f"{each.threshold:.4g} ({NOUNS[each.side]})" for each in sides)
    phrase = (
        f"a {MEASURES[config.by]} above {levels}: {config.promise} confidence, by "
        f"{sides[0].judged:,} and {sides[1].judged:,} judged pairs; and pairs judged true"
    )
    removed: dict[Side, int] = {
        "image": sides[0].pairs - int((texts >= 0).sum()),
        "text": sides[1].pairs - int((images >= 0).sum()),
    }
    manifest = store.manifest.model_copy(
        update={
            "filters": (*store.manifest.filters, phrase),
            "removed": {**store.manifest.removed, phrase: removed},
            "texts_of_images": ListCounts.of(texts),
            "images_of_texts": ListCounts.of(images),
        }
    )
    result = NegativeStore(manifest, filtered)
    result.check_filled()
    return result, (sides[0], sides[1])


def _calibrated(
    side: Side, rows: Tensor, measure: Tensor, verdicts: Verdicts, config: GuaranteeConfig
) -> CalibratedSide:
    """The threshold of one side."""
    places, true, unjudged = _judged(side, rows, verdicts, config)
    noun, count = NOUNS[side], len(places)
    if count < config.needed():
        raise ValueError(
            f"{count:,} of the {noun} in these lists were judged, and to say that "
            f"{config.promise} confidence at least {config.needed():,} are needed, with none true; "
            "judge more of them (counterfoil audit … --negatives … --set order=random), or promise "
            "less"
        )
    listed = measure[rows >= 0].double().numpy()
    grid = np.unique(np.quantile(listed, np.arange(1, _STEPS + 1) / _STEPS, method="lower"))
    values = measure.flatten()[places].double().numpy()
    found = calibrate(
        *(values, true.numpy(), grid),
        at_most_true=config.at_most_true,
        confidence=config.confidence,
    )
    if found is None:
        lower = torch.from_numpy(values <= np.sort(values)[max(config.needed(), count // 2) - 1])
        raise ValueError(
            f"no threshold keeps {noun} of which {config.promise} confidence: of {count:,} judged "
            f"pairs {int(true.sum()):,} are true, and {int(true[lower].sum()):,} of the "
            f"{int(lower.sum()):,} lowest by {config.by}; judge more of them, filter by another "
            f"measure ({', '.join(MEASURES)}), or promise less"
        )
    threshold, bound = found
    below = torch.from_numpy(values <= threshold)
    return CalibratedSide(
        side,
        threshold,
        judged=count,
        true=int(true.sum()),
        kept_judged=int(below.sum()),
        kept_true=int(true[below].sum()),
        bound=bound,
        pairs=len(listed),
        kept=int((listed <= threshold).sum()),
        unjudged=unjudged,
    )


def _judged(
    side: Side, rows: Tensor, verdicts: Verdicts, config: GuaranteeConfig
) -> tuple[Tensor, Tensor, int]:
    """Places of the pairs that count, (n,) bool whether they are true, and number of unjudged."""
    if config.sample is None:
        places = (rows.flatten() >= 0).nonzero().squeeze(1)
    else:
        places = sampled_places(rows, config.sample)
    pairs = pairs_at(side, rows, places)
    known = [verdicts.get(pair) for pair in zip(pairs.image.tolist(), pairs.text.tolist())]
    there = torch.tensor([verdict is not None for verdict in known], dtype=torch.bool)
    true = torch.tensor([verdict is not False for verdict in known], dtype=torch.bool)
    unjudged = int((~there).sum()) if config.sample is not None else 0
    if config.sample is None:
        places, true = places[there], true[there]
    return places, true, unjudged


def _measures(
    lists: HardNegativeLists,
    dataset: ImageTextDataset,
    config: GuaranteeConfig,
    members: Sequence[EmbeddedDataset],
) -> tuple[Tensor, Tensor]:
    """(I, h) and (T, h') measures of the listed pairs; what is not listed means nothing."""
    if config.by == "rank":
        by_place = (-torch.arange(lists.texts.shape[1]), -torch.arange(lists.images.shape[1]))
        return by_place[0].expand_as(lists.texts), by_place[1].expand_as(lists.images)
    if config.by in ("captions", "meanings"):
        return _nearness(lists, dataset, config)
    relation = dataset.relation
    text_scores, image_scores, own = lists.text_scores, lists.image_scores, lists.true_scores
    if members:
        text_scores, image_scores = (
            score_index_pairs(members, every.image, every.text).view(rows.shape)
            for side, rows in zip(NOUNS, (lists.texts, lists.images))
            for every in (pairs_at(side, rows.clamp(min=0), torch.arange(rows.numel())),)
        )
        own = torch.full((len(lists.images),), -torch.inf)
        own[relation.owned] = score_index_pairs(
            members, relation.text_to_image[relation.owned], relation.owned
        )
    if text_scores is None or image_scores is None or (config.by == "margin" and own is None):
        raise ValueError(
            f"by={config.by} needs scores, and these lists hold none of "
            f"{'listed' if text_scores is None else 'true'} pairs; name a model that scores them, "
            "mine again, or take by=rank, captions or meanings"
        )
    if config.by == "score":
        return text_scores.float(), image_scores.float()
    assert own is not None
    owned, lowest = relation.owned, torch.full((len(lists.texts),), torch.inf)
    lowest.scatter_reduce_(0, relation.text_to_image[owned], own[owned].float(), "amin")
    # without a positive nothing is known of a pair: the last to be kept
    limits = lowest.where(lowest.isfinite(), -torch.inf), own.float()
    return text_scores.float() - limits[0].unsqueeze(1), image_scores.float() - limits[1].unsqueeze(
        1
    )


def _nearness(
    lists: HardNegativeLists, dataset: ImageTextDataset, config: GuaranteeConfig
) -> tuple[Tensor, Tensor]:
    """The highest cosine of each listed text with a caption of its image."""
    if not any(dataset.texts):
        raise ValueError(
            f"by={config.by} compares words, but {dataset.name} has none; take another measure"
        )
    if config.by == "captions":
        sparse = caption_vectors(dataset.texts)

        def cosine(left: Tensor, right: Tensor) -> Tensor:
            return torch.from_numpy(caption_cosines(sparse, left.numpy(), right.numpy()))
    else:
        assert config.encoder is not None
        dense = SentenceEncoder(config.encoder).vectors(dataset.texts)

        def cosine(left: Tensor, right: Tensor) -> Tensor:
            return (dense[left] * dense[right]).sum(1).double()

    return nearest_of_lists(cosine, lists, dataset.relation)


def nearest_of_lists(
    cosine: Callable[[Tensor, Tensor], Tensor], lists: HardNegativeLists, relation: Relation
) -> tuple[Tensor, Tensor]:
    """`nearest_caption` of each entry: (I, h) of the lists of images, and (T, h) of texts."""
    found = []
    for side, rows in zip(NOUNS, (lists.texts, lists.images)):
        every = pairs_at(side, rows, torch.arange(rows.numel()))
        pairs = Pairs(every.image.view(rows.shape), every.text.view(rows.shape))
        found.append(nearest_caption(cosine, relation, pairs, rows >= 0))
    return found[0], found[1]


def _without(rows: Tensor, scores: Tensor | None, kept: Tensor) -> tuple[Tensor, Tensor | None]:
    """(Q, h) lists and their scores with the kept entries alone, first and in order."""
    order = (~kept).byte().argsort(dim=1, stable=True)
    gone = ~kept.gather(1, order)
    if scores is not None:
        scores = scores.gather(1, order).masked_fill(gone, -torch.inf)
    return rows.gather(1, order).masked_fill(gone, -1), scores
