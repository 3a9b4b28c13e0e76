"""How well captions are told from foils, with intervals; ties are wrong.

Pictures are what is drawn anew for the 95 % intervals, each with all its items, as in
`counterfoil.evaluation.bootstrap`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.corpus.foil_sets import FoilSet
from counterfoil.engine.scored import score_pairs
from counterfoil.engine.tiles import Member
from counterfoil.evaluate.foils_groups import Aggregate, aggregates
from counterfoil.evaluate.foils_measures import (
    Judged,
    Measure,
    Ties,
    area,
    by_threshold,
    chosen,
    crossed,
    pairwise,
)
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluation.bootstrap import (
    CELLS,
    Interval,
    image_draws,
    percentile_interval,
    share_of,
)

THRESHOLDS = ("valse", "vsr", "foil-it")  # sets that ask whether a caption is true
MARGIN = 10.0  # percent above chance from which a blind model makes a set suspicious


@final
@dataclass(frozen=True, slots=True)
class FoilScore:
    """One number.

    Attributes:
        measure: what counts as right.
        of: whose items.
        items: how many there are.
        value: percent.
        interval: 95 %.
        chance: percent by guessing.
        own: whether the set's authors report this aggregate.
    """

    measure: str
    of: str
    items: int
    value: float
    interval: Interval
    chance: float
    own: bool

    @property
    def suspicious(self) -> bool:
        """Whether even the lower end is far above chance, as no blind model's should be."""
        return self.interval.low > self.chance + MARGIN

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def score_items(members: Sequence[Member], foils: FoilSet) -> Tensor:
    """(P,) mean scores of `pairs_of` a set, every pair scored once.

    Args:
        members: models with what they encoded of the set's corpus.
        foils: the set.
    """
    images, texts = pairs_of(foils)
    many = len(foils.corpus.texts)
    once, place = (images * many + texts).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return score_pairs(members, once // many, once % many)[place]


def blind_scores(model: NGrams, foils: FoilSet) -> Tensor:
    """(P,) scores of `pairs_of` a set by a model that reads the captions and sees nothing."""
    return model.scores(foils.corpus.texts)[pairs_of(foils)[1]]


def pairs_of(foils: FoilSet) -> tuple[Tensor, Tensor]:
    """(P,) rows of pictures and captions, item after item, picture after picture."""
    both = [(image, text) for item in foils.items for image in item.images for text in item.texts]
    rows = torch.tensor(both, dtype=torch.long).view(-1, 2)
    return rows[:, 0], rows[:, 1]


def measured(
    foils: FoilSet,
    scores: Tensor,
    *,
    ties: Ties = "wrong",
    seed: int = 0,
    resamples: int = 1000,
) -> tuple[FoilScore, ...]:
    """All numbers of a set.

    Args:
        foils: the set.
        scores: (P,) of `pairs_of` the set.
        ties: "aro" counts as ARO's code does: the option that stands first wins a tie, which is
            the true one of its order sets and the foil of its other two.
        seed: of the draws and of the halves between which thresholds are exchanged.
        resamples: how many times to draw.

    Raises:
        ValueError: another set than ARO's is to be counted by ARO's rule.
    """
    if ties == "aro" and foils.form not in ("order", "aro-relation", "aro-attribution"):
        raise ValueError(
            f"{foils.name} has its own rule for ties, by which they are wrong; ties=aro is for the "
            "sets of ARO"
        )
    images = torch.tensor([item.images[0] for item in foils.items])
    judged = judged_captions(foils, scores) if foils.form in THRESHOLDS else None
    half = _halves(images, seed)
    found = _measures(foils, scores.double(), judged, half, ties)
    names = [item.category for item in foils.items]
    groups = aggregates(foils.form, Counter(names))
    count = int(images.max()) + 1
    there = images.unique()  # type: ignore[no-untyped-call]
    drawn = list(image_draws([there], count, resamples=resamples, seed=seed, width=count))
    lines = [_line(one, group, names, images, drawn) for one in found for group in groups]
    if judged is not None:
        lines += [
            line
            for group in groups
            if not group.macro and (line := _area(judged, group, names, images, drawn))
        ]
    return tuple(lines)


def judged_captions(foils: FoilSet, scores: Tensor) -> Judged:
    """Every caption of a set as true or false of its picture."""
    item, true = [], []
    for place, one in enumerate(foils.items):
        item += [place] * len(one.texts)
        true += [one.true, *[False] * (len(one.texts) - 1)]
    return Judged(torch.tensor(item), scores.double(), torch.tensor(true))


def arranged(foils: FoilSet, scores: Tensor) -> Tensor:
    """(N, K) scores of the captions of each item, -inf where it has fewer."""
    lengths = torch.tensor([len(item.texts) for item in foils.items])
    out = torch.full((len(lengths), int(lengths.max())), -torch.inf, dtype=torch.double)
    out[torch.arange(out.shape[1]) < lengths.unsqueeze(1)] = scores.double()
    return out


def margins(foils: FoilSet, scores: Tensor) -> Tensor:
    """(N,) by how much each item is right, below 0 where it is wrong.

    A caption's score less that of its best foil; the smallest of the four differences of two
    pairs; distance on the right side of the median score where single captions are judged.
    """
    scores = scores.double()
    if foils.task == "crossed":
        grid = scores.view(-1, 2, 2)
        own = grid.diagonal(dim1=1, dim2=2)
        wrong = torch.stack([grid[:, 0, 1], grid[:, 1, 0]], 1)
        return own.amin(1) - wrong.amax(1)
    if foils.task == "judged":
        sign = torch.tensor([1.0 if item.true else -1.0 for item in foils.items])
        return (scores - scores.median()) * sign
    table = arranged(foils, scores)
    return table[:, 0] - table[:, 1:].amax(1)


def _measures(
    foils: FoilSet, scores: Tensor, judged: Judged | None, half: Tensor, ties: Ties
) -> list[Measure]:
    if foils.task == "crossed":
        return list(crossed(scores.view(-1, 2, 2)))
    found: list[Measure] = []
    if foils.task == "choice":
        table = arranged(foils, scores)
        right = ties == "aro" and foils.form == "order"
        name = "pairwise" if judged is not None else "accuracy"
        found.append(chosen(table, ties_right=right, name=name))
        if table.shape[1] > 2:
            found.append(pairwise(table, ties_right=right))
    if judged is not None:
        level = by_threshold(judged, half, len(foils))
        found += [] if level is None else [level]
    return found


def _halves(images: Tensor, seed: int) -> Tensor:
    """(N,) bool; items of one picture are in one half."""
    order = torch.randperm(int(images.max()) + 1, generator=torch.Generator().manual_seed(seed))
    return order[images] % 2 == 0


def _line(
    measure: Measure, group: Aggregate, names: list[str], images: Tensor, drawn: list[Tensor]
) -> FoilScore:
    place = {name: column for column, name in enumerate(group.categories)}
    column = torch.tensor([place.get(name, -1) for name in names])
    mine = column >= 0
    counted = [t[mine] for t in (measure.gained, measure.possible, measure.chance)]
    columns = column[mine] if group.macro else torch.zeros(int(mine.sum()), dtype=torch.long)
    shape = drawn[0].shape[1], len(place) if group.macro else 1
    at = (images[mine], columns)
    sums = [torch.zeros(shape, dtype=torch.double).index_put(at, t, True) for t in counted]
    once = torch.ones(1, shape[0], dtype=torch.double)
    value = 100 * share_of(once, sums[0], sums[1])
    spread = torch.cat([100 * share_of(counts, sums[0], sums[1]) for counts in drawn])
    chance = 100 * share_of(once, sums[2], sums[1])
    return FoilScore(
        measure.name,
        group.title,
        int(mine.sum()),
        value.item(),
        percentile_interval(spread),
        chance.item(),
        group.own,
    )


def _area(
    judged: Judged, group: Aggregate, names: list[str], images: Tensor, drawn: list[Tensor]
) -> FoilScore | None:
    wanted = torch.tensor([name in group.categories for name in names])
    mine = wanted[judged.item]
    scores, true = judged.scores[mine], judged.true[mine]
    if bool(true.all()) or not bool(true.any()):
        return None
    rows = images[judged.item[mine]]
    value = 100 * area(scores, true, torch.ones(1, len(true), dtype=torch.double)).item()
    at_once = max(1, CELLS // len(true))
    parts = (part[:, rows] for counts in drawn for part in torch.split(counts, at_once))
    spread = 100 * torch.cat([area(scores, true, part) for part in parts])
    spread += value - spread.nanmean()  # copies of a picture in a draw tie with each other
    spread.clamp_(0, 100)
    many = int(wanted.sum())
    return FoilScore("AUC", group.title, many, value, percentile_interval(spread), 50.0, group.own)
