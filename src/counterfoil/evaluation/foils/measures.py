"""Accuracies on a foil set, with intervals and chance levels; ties count as wrong.

The 95 % intervals are bootstrapped over images, each with all its items, as in
`counterfoil.evaluation.bootstrap`. A blind control, which reads the captions and sees no image,
shows whether the captions alone give the answers away.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.evaluation.bootstrap import (
    RESAMPLES,
    Counted,
    Interval,
    image_draws,
    percentile_interval,
    shares,
)
from counterfoil.evaluation.foils.readers import SUGARCREPE, FoilFormat
from counterfoil.evaluation.foils.sets import FoilSet
from counterfoil.evaluation.language_models import NGrams
from counterfoil.report.tables import format_interval
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import score_index_pairs

JUDGED_FORMATS = ("valse", "vsr")  # sets that ask whether a caption is true
MARGIN = 10.0  # percent above chance from which a blind model makes a set suspicious


@final
@dataclass(frozen=True, slots=True, repr=False)
class FoilScore:
    """One number of a foil set.

    Attributes:
        measure: name of the measure.
        of: title of the items that it is an average of.
        items: number of items.
        value: percent.
        interval: 95 %.
        chance: percent by guessing.
        own: whether the set's authors report this aggregate.
        macro: whether categories count alike, whatever their numbers of items.
        weights: of an average over several categories, the weight of each; they sum to 1.
    """

    measure: str
    of: str
    items: int
    value: float
    interval: Interval
    chance: float
    own: bool
    macro: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        span = format_interval(self.value, self.interval.low, self.interval.high, ".1f")
        return f"{self.measure}, {self.of}: {span} of {self.items:,} items; chance {self.chance:g}"

    @property
    def suspicious(self) -> bool:
        """True if even the lower end is far above chance, as no blind model's should be."""
        return self.interval.low > self.chance + MARGIN

    def to_dict(self) -> dict[str, Any]:
        """The score as plain values for JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoilReport:
    """The numbers of a model on a foil set."""

    foils: FoilSet
    scores: Tensor  # (P,) scores of `foil_pairs` of the set
    lines: tuple[FoilScore, ...]
    blind: tuple[FoilScore, ...]  # the same numbers of the blind control, or none
    protocol: str  # in one sentence
    cosines: Tensor | None = None  # of `caption_cosines`, if the set is measured by them

    def headline(self) -> str:
        """The aggregates that the set's authors report, in one sentence."""
        parts = []
        for measure in dict.fromkeys(line.measure for line in self.lines):
            lines = [line for line in self.lines if line.own and line.measure == measure]
            numbers = ", ".join(f"{line.of} {line.value:.1f} %" for line in lines)
            parts += [f"{measure}: {numbers}"] if numbers else []
        return f"{'; '.join(parts)}."

    def item_scores(self) -> list[list[float]]:
        """The scores of each item, image after image."""
        lengths = [len(item.images) * len(item.texts) for item in self.foils.items]
        return [part.tolist() for part in torch.split(self.scores, lengths)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with the scores of every item."""
        dataset, scores = self.foils.dataset, self.item_scores()
        margins = item_margins(self.foils, self.scores).tolist()
        return {
            "set": self.foils.name,
            "form": self.foils.form,
            "protocol": self.protocol,
            "left_out": dict(self.foils.left_out),
            "lines": [line.to_dict() for line in self.lines],
            "blind": [line.to_dict() | {"suspicious": line.suspicious} for line in self.blind],
            "items": [
                {
                    "id": item.id,
                    "category": item.category,
                    "pictures": [dataset.image_ids[row] for row in item.images],
                    "captions": [dataset.texts[row] for row in item.texts],
                    "true": item.true,
                    "positives": item.positives,
                    "scores": own,
                    "margin": margin,
                    **({} if self.cosines is None else {"cosines": self.cosines[row].tolist()}),
                }
                for row, (item, own, margin) in enumerate(zip(self.foils.items, scores, margins))
            ],
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class BlindControl:
    """A model of captions that are not in the set, which sees no image."""

    scores: Tensor  # (P,) scores of `foil_pairs` of the set
    description: str  # the model and its captions, in words


def evaluate_foils(
    foils: FoilSet,
    scores: Tensor,
    *,
    model: str,
    cosines: Tensor | None = None,
    blind: BlindControl | None = None,
    seed: int = 0,
) -> FoilReport:
    """All numbers of a model on a set, those of the blind control, and the protocol.

    Args:
        foils: the set.
        scores: (P,) scores of `foil_pairs` of the set.
        model: description of the model, for the protocol.
        cosines: (N, 3) of `caption_cosines`, for SugarCrepe++; the blind control has none.
        blind: the control; not reported for crossed pairs, whose captions are both true once.
        seed: seed of the draws.
    """
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in foils.left_out.items())
    parts = [
        f"{foils.name}: {len(foils):,} items, {len(foils.dataset):,} pictures",
        f"left out: {left_out}" if left_out else "",
        "ties wrong",
        _never_right(foils),
        "TOT not measured, which needs a model with one vector of a caption"
        if foils.form == "sugarcrepe++" and cosines is None
        else "",
        "thresholds chosen on one half of the pictures for the other"
        if foils.form in JUDGED_FORMATS
        else "",
        model,
        f"seed {seed}",
        blind.description if blind else "",
        "95 % intervals: pictures drawn anew with all their items, 1,000 times",
    ]
    lines = measure_foils(foils, scores, cosines=cosines, seed=seed)
    controls: tuple[FoilScore, ...] = ()
    if blind is not None and blind.scores is not scores and foils.task != "crossed":
        controls = measure_foils(foils, blind.scores, seed=seed)
    return FoilReport(foils, scores, lines, controls, "; ".join(filter(None, parts)), cosines)


def _never_right(foils: FoilSet) -> str:
    """How many items no model can get right, in words; the authors count them too."""
    pairs = ((item.texts[: item.positives], item.texts[item.positives :]) for item in foils.items)
    count = sum(not {*true}.isdisjoint(false) for true, false in pairs)
    if foils.task != "choice" or not count:
        return ""
    return f"{count:,} items that no model gets right, since their foil is their caption"


@final
@dataclass(frozen=True, slots=True)
class FoilChange:
    """Accuracy of two models on the same items."""

    of: str  # title of the items
    items: int  # number of items
    before: float  # percent, of the first model
    after: float  # percent, of the second
    interval: Interval  # 95 %, of the difference


def compare_foils(foils: FoilSet, before: Tensor, after: Tensor) -> tuple[FoilChange, ...]:
    """Shares of true captions that score above all their foils, by category and of all items.

    Args:
        foils: a set in which the first caption of an item is true.
        before: (P,) scores of `foil_pairs` of the set, of the first model.
        after: (P,) of the second.
    """
    assert foils.task == "choice"
    names = [item.category for item in foils.items]
    groups = [group for group in category_groups(foils.form, Counter(names)) if not group.macro]
    positives = _positives(foils)
    right = [
        choice_accuracy(choice_table(foils, scores), positives).gained for scores in (before, after)
    ]
    gained = (*right, right[1] - right[0])
    counted = []
    for group in groups:
        columns = _group_columns(group, names)
        counted += [Counted(part.unsqueeze(1) * columns, columns) for part in gained]
    images = torch.tensor([item.images[0] for item in foils.items])
    percents = shares(counted, images, scale=100)
    parts = zip(groups, percents[::3], percents[1::3], percents[2::3], strict=True)
    return tuple(
        FoilChange(group.title, first.count, first.value, second.value, change.interval)
        for group, first, second, change in parts
    )


def score_foils(members: Sequence[EmbeddedDataset], foils: FoilSet) -> Tensor:
    """(P,) mean scores of `foil_pairs` of a set by models that encoded it; each pair once."""
    images, texts = foil_pairs(foils)
    count = len(foils.dataset.texts)
    unique, place = (images * count + texts).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return score_index_pairs(members, unique // count, unique % count)[place]


def caption_cosines(members: Sequence[EmbeddedDataset], foils: FoilSet) -> Tensor | None:
    """(N, 3) cosines between the captions of each item of SugarCrepe++, the mean over models.

    Of the two true captions, of the first and the foil, and of the second and the foil. None if a
    model has several vectors of a caption.
    """
    if any(member.texts.mask.shape[1] > 1 for member in members):
        return None
    first, second, foil = torch.tensor([item.texts for item in foils.items]).unbind(1)
    means = torch.zeros(len(foils), 3, dtype=torch.double)
    for member in members:
        vectors = normalize(member.texts.tokens[:, 0].double(), dim=1).cpu()
        for column, (one, other) in enumerate(((first, second), (first, foil), (second, foil))):
            means[:, column] += (vectors[one] * vectors[other]).sum(1) / len(members)
    return means


def train_blind_control(captions: Sequence[str], source: str, foils: FoilSet) -> BlindControl:
    """Train an n-gram model on captions that are not in the set, and score the set with it.

    Args:
        captions: the captions; those of the set are left out.
        source: where they come from, for messages.
        foils: the set.

    Raises:
        ValueError: no caption is left.
    """
    in_set = set(foils.dataset.texts)
    others = [caption for caption in captions if caption not in in_set]
    if not others:
        raise ValueError(
            f"{source} holds no caption that is not in {foils.name}; the blind model needs others"
        )
    model = NGrams.of(others)
    description = (
        f"blind: {model.order}-gram model of {len(others):,} captions of {source}, mean log "
        "probability of a word"
    )
    left_out = len(captions) - len(others)
    if left_out:
        description += f", {left_out:,} of the set left out"
    return BlindControl(model.scores(foils.dataset.texts)[foil_pairs(foils)[1]], description)


def foil_pairs(foils: FoilSet) -> tuple[Tensor, Tensor]:
    """(P,) rows of images and of captions, item after item, image after image."""
    pairs = [(image, text) for item in foils.items for image in item.images for text in item.texts]
    rows = torch.tensor(pairs, dtype=torch.long).view(-1, 2)
    return rows[:, 0], rows[:, 1]


# --- points of each item ------------------------------------------------------


@final
@dataclass(frozen=True, slots=True, eq=False)
class ItemMeasure:
    """Points of each of N items by one measure."""

    name: str
    gained: Tensor  # (N,) double, points
    possible: Tensor  # (N,) double, the most points
    chance: Tensor  # (N,) double, points on average by guessing
    own: bool = True  # whether the set's authors report it


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScoredCaptions:
    """M captions that are true or false of their image."""

    item: Tensor  # (M,) long, the item of each
    scores: Tensor  # (M,) double
    true: Tensor  # (M,) bool


def choice_accuracy(
    scores: Tensor, positives: Tensor | None = None, *, name: str = "accuracy"
) -> ItemMeasure:
    """Share of items whose true captions all score above all foils.

    Args:
        scores: (N, K) of the captions of each item, the true ones first, -inf where it has fewer.
        positives: (N,) long, number of true captions; one each by default.
        name: of the measure.
    """
    true, foils = _true_and_foils(scores, positives)
    # of all orders of t true captions and f foils, t! f! have the true ones first
    chance = [1 / math.comb(t + f, t) for t, f in zip(true.sum(1).tolist(), foils.sum(1).tolist())]
    ones = torch.ones(len(scores), dtype=torch.double)
    lowest, best = _lowest_and_best(scores, true)
    return ItemMeasure(name, (lowest > best).double(), ones, torch.tensor(chance).double())


def pairwise_accuracy(scores: Tensor, positives: Tensor | None = None) -> ItemMeasure:
    """Number of pairs of a true caption above a foil; arguments as in `choice_accuracy`."""
    true, foils = _true_and_foils(scores, positives)
    gained = torch.zeros(len(scores), dtype=torch.double)
    for column in range(int(true.sum(1).max())):
        above = (scores[:, column, None] > scores) & foils & true[:, column, None]
        gained += above.sum(1)
    possible = (true.sum(1) * foils.sum(1)).double()
    return ItemMeasure("pairwise", gained, possible, possible / 2)


def _lowest_and_best(scores: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) lowest score of a true caption and best one of a foil."""
    best = scores.masked_fill(true, -torch.inf).amax(1)
    return scores.masked_fill(~true, torch.inf).amin(1), best


def _true_and_foils(scores: Tensor, positives: Tensor | None) -> tuple[Tensor, Tensor]:
    """(N, K) bool: which captions are true, and which are foils."""
    count = torch.ones(len(scores), dtype=torch.long) if positives is None else positives
    true = torch.arange(scores.shape[1]) < count.unsqueeze(1)
    return true, (scores > -torch.inf) & ~true


def alike_accuracy(cosines: Tensor) -> ItemMeasure:
    """TOT of SugarCrepe++: share of items whose true captions are closer than either to the foil.

    `cosines` (N, 3) are those of `caption_cosines`.
    """
    right = cosines[:, 0] > cosines[:, 1:].amax(1)
    ones = torch.ones(len(cosines), dtype=torch.double)
    return ItemMeasure("TOT", right.double(), ones, ones / 3)


def winoground_scores(scores: Tensor) -> tuple[ItemMeasure, ItemMeasure, ItemMeasure]:
    """Winoground's text, image and group scores (Thrush et al., CVPR 2022, section 3.2).

    Text: each image prefers its caption. Image: each caption prefers its image. Group: both.

    Args:
        scores: (N, 2, 2) scores of each image with each caption; the diagonal is true.
    """
    diagonal = scores.diagonal(dim1=1, dim2=2)
    text = (diagonal > scores.flip(2).diagonal(dim1=1, dim2=2)).all(1)
    image = (diagonal > scores.flip(1).diagonal(dim1=1, dim2=2)).all(1)
    ones = torch.ones(len(scores), dtype=torch.double)
    return (
        ItemMeasure("text", text.double(), ones, ones / 4),
        ItemMeasure("image", image.double(), ones, ones / 4),
        ItemMeasure("group", (text & image).double(), ones, ones / 6),
    )


def both_ways_scores(scores: Tensor) -> tuple[ItemMeasure, ...]:
    """BiVLC's scores: those of Winoground by other names, and of each picture and caption alone.

    `scores` are as in `winoground_scores`; the second picture and caption are those of the foil.
    """
    text, image, group = winoground_scores(scores)
    ones = torch.ones(len(scores), dtype=torch.double)
    diagonal = scores.diagonal(dim1=1, dim2=2)
    by_picture = (diagonal > scores.flip(2).diagonal(dim1=1, dim2=2)).double()
    by_caption = (diagonal > scores.flip(1).diagonal(dim1=1, dim2=2)).double()
    single = {
        "I2T, true picture": by_picture[:, 0],
        "I2T, foil's picture": by_picture[:, 1],
        "T2I, true caption": by_caption[:, 0],
        "T2I, foil": by_caption[:, 1],
    }
    named = (replace(text, name="I2T"), replace(image, name="T2I"), group)
    return *named, *(ItemMeasure(name, own, ones, ones / 2, False) for name, own in single.items())


def threshold_accuracy(judged: ScoredCaptions, half: Tensor, items: int) -> ItemMeasure | None:
    """Accuracy of judging captions by a threshold of the score; None where a half is empty.

    The threshold of one half of the N items, given by `half` (N,) bool, is the best one of the
    other half; of several the lowest.
    """
    side = half[judged.item]
    if bool(side.all()) or not bool(side.any()):
        return None
    right = torch.zeros(len(side), dtype=torch.double)
    for mine in (side, ~side):
        level = best_threshold(judged.scores[~mine], judged.true[~mine])
        right[mine] = ((judged.scores[mine] > level) == judged.true[mine]).double()
    empty = torch.zeros(items, dtype=torch.double)
    possible = empty.index_add(0, judged.item, torch.ones_like(right))
    gained = empty.index_add(0, judged.item, right)
    return ItemMeasure("by threshold", gained, possible, possible / 2)


def best_threshold(scores: Tensor, true: Tensor) -> float:
    """The level of (M,) scores above which "true" is right most often; of several the lowest."""
    values, place = scores.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    zeros = torch.zeros(len(values), dtype=torch.long)
    false_upto = zeros.index_add(0, place, (~true).long()).cumsum(0)
    true_upto = zeros.index_add(0, place, true.long()).cumsum(0)
    # right[k]: the k lowest values are called false, all above are called true
    right = torch.cat([true.sum().view(1), false_upto + (true.sum() - true_upto)])
    best = int(right.argmax())
    if best == 0:
        return -torch.inf
    after = values[best] if best < len(values) else values[best - 1] + 1
    return float((values[best - 1] + after) / 2)


def roc_area(scores: Tensor, true: Tensor, weights: Tensor) -> Tensor:
    """(R,) area under the ROC curve: share of true and false captions in order; a tie is wrong.

    Args:
        scores: (M,) double.
        true: (M,) bool.
        weights: (R, M) double, weight of each caption in each resample.
    """
    order = scores.argsort(stable=True)
    ranked, true, weights = scores[order], true[order], weights[:, order]
    false = (weights * ~true).cumsum(1)
    below = torch.searchsorted(ranked, ranked, right=False)  # number of captions that score less
    lower = torch.cat([torch.zeros(len(weights), 1, dtype=torch.double), false], 1)[:, below]
    positive = weights * true
    return (positive * lower).sum(1) / (positive.sum(1) * false[:, -1])


def scored_captions(foils: FoilSet, scores: Tensor) -> ScoredCaptions:
    """Every caption of a set, as true or false of its image."""
    item, true = [], []
    for place, entry in enumerate(foils.items):
        item += [place] * len(entry.texts)
        count = entry.positives if entry.true else 0
        true += [at < count for at in range(len(entry.texts))]
    return ScoredCaptions(torch.tensor(item), scores.double(), torch.tensor(true))


def choice_table(foils: FoilSet, scores: Tensor) -> Tensor:
    """(N, K) scores of the captions of each item, -inf where it has fewer."""
    lengths = torch.tensor([len(item.texts) for item in foils.items])
    out = torch.full((len(lengths), int(lengths.max())), -torch.inf, dtype=torch.double)
    out[torch.arange(out.shape[1]) < lengths.unsqueeze(1)] = scores.double()
    return out


def _positives(foils: FoilSet) -> Tensor:
    """(N,) number of true captions of each item."""
    return torch.tensor([item.positives for item in foils.items])


def item_margins(foils: FoilSet, scores: Tensor) -> Tensor:
    """(N,) margin of each item, below 0 where it is wrong.

    The lowest score of a true caption less that of the best foil; the smallest of the four
    differences of two pairs; the distance on the right side of the median score where single
    captions are judged.
    """
    scores = scores.double()
    if foils.task == "crossed":
        block = scores.view(-1, 2, 2)
        diagonal = block.diagonal(dim1=1, dim2=2)
        wrong = torch.stack([block[:, 0, 1], block[:, 1, 0]], 1)
        return diagonal.amin(1) - wrong.amax(1)
    if foils.task == "judged":
        sign = torch.tensor([1.0 if item.true else -1.0 for item in foils.items])
        return (scores - scores.median()) * sign
    table = choice_table(foils, scores)
    true, _ = _true_and_foils(table, _positives(foils))
    lowest, best = _lowest_and_best(table, true)
    return lowest - best


# --- groups of categories --------------------------------------------------------------------

MIN_PAIR_CASES = 25  # of a pair of attributes; ARO's average leaves out rarer pairs
NO_ORDER = frozenset(
    relation.strip()
    for relation in """
    adjusting, around, attached to, beside, between, bigger than, biting, boarding, brushing, by,
    chewing, cleaning, climbing, close to, coming from, coming out of, contain, crossing, dragging,
    draped over, drinking, drinking from, driving, driving down, driving on, eating from, eating in,
    enclosing, exiting, facing, filled with, floating in, floating on, flying, flying above, flying
    in, flying over, flying through, full of, going down, going into, going through, grazing in,
    growing in, growing on, guiding, hanging from, hanging in, hanging off, hanging over, higher
    than, holding onto, hugging, in between, jumping off, jumping on, jumping over, kept in, larger
    than, leading, leaning over, leaving, licking, longer than, looking in, looking into, looking
    out, looking over, looking through, lying next to, lying on top of, making, mixed with, mounted
    on, moving, near, next to, of, on the back of, on the edge of, on the front of, on the other
    side of, on the side of, opening, painted on, parked at, parked beside, parked by, parked in,
    parked in front of, parked near, parked next to, perched on, petting, piled on, playing, playing
    in, playing on, playing with, pouring, reaching for, reading, reflected on, riding on, running
    in, running on, running through, seen through, sitting behind, sitting beside, sitting by,
    sitting in front of, sitting near, sitting next to, sitting under, skiing down, skiing on,
    sleeping in, sleeping on, smiling at, sniffing, splashing, sprinkled on, stacked on, standing
    against, standing around, standing behind, standing beside, standing in front of, standing near,
    standing next to, staring at, stuck in, surrounding, swimming in, swinging, talking to, topped
    with, touching, traveling down, traveling on, tying, typing on, underneath, wading in, waiting
    for, walking across, walking by, walking down, walking next to, walking through, with, working
    in, working on, worn on, wrapped around, wrapped in
    """.replace("\n    ", " ").split(",")
)


@final
@dataclass(frozen=True, slots=True)
class CategoryGroup:
    """Categories that are averaged to one number."""

    title: str  # in tables
    categories: tuple[str, ...]
    macro: bool = False  # average over categories, not over items
    own: bool = False  # whether the set's authors report it


def category_groups(form: FoilFormat, counts: Mapping[str, int]) -> tuple[CategoryGroup, ...]:
    """Every category, all items, the mean over categories, and what the set's authors report.

    SugarCrepe and BiVLC: averages over the items of "replace", "swap" and "add", of BiVLC also of
    all. SugarCrepe++, CREPE and VL-CheckList: every category, NegBench also all items. ARO: the
    mean over relations without those of `NO_ORDER`, which say nearly the same when exchanged or are
    rare, and over pairs of attributes with at least 25 cases. VALSE: the mean over its pieces.
    Elsewhere: all items.

    Args:
        form: format of the set.
        counts: number of items of each category.
    """
    every = tuple(counts)
    least = MIN_PAIR_CASES if form == "aro-attribution" else 1
    dropped = NO_ORDER if form == "aro-relation" else frozenset[str]()
    # items without a category are no kind of their own
    kinds_of = {c: n for c, n in counts.items() if c or len(counts) == 1}
    macro = tuple(sorted(c for c, n in kinds_of.items() if n >= least and c not in dropped))
    named = [name for name in SUGARCREPE if name in counts]
    coarse_form = form in ("sugarcrepe", "bivlc")
    shown = named if coarse_form or form == "sugarcrepe++" else []
    shown += sorted(name for name in counts if name and name not in shown)
    if form == "aro-attribution":
        shown = list(macro)
    several = len(every) > 1
    own = form in _EACH_OWN
    single = tuple(CategoryGroup(name, (name,), own=own) for name in shown) if several else ()
    reported = form in _MACRO_NOUNS
    noun = _MACRO_NOUNS.get(form, "kinds")
    mean = CategoryGroup(f"mean of {len(macro)} {noun}", macro, macro=True, own=reported)
    all_own = not reported and form != "sugarcrepe" and not (several and form in _EACH_ALONE)
    groups = [*single, CategoryGroup("all items", every, own=all_own)]
    if macro and (len(macro) > 1 or reported):
        groups.append(mean)
    if coarse_form:
        kinds = dict.fromkeys(name.partition("_")[0] for name in shown)
        groups += (
            CategoryGroup(kind, tuple(n for n in shown if n.partition("_")[0] == kind), own=True)
            for kind in kinds
            if kind not in shown
        )
    return tuple(groups)


# the sets whose authors report each category, and those of them that do so alone
_EACH_ALONE: frozenset[FoilFormat] = frozenset({"sugarcrepe++", "crepe", "vl-checklist"})
_EACH_OWN = _EACH_ALONE | {"negbench"}
# of the sets whose authors report the mean over categories, what these are
_MACRO_NOUNS: Mapping[FoilFormat, str] = {
    "aro-relation": "relations",
    "aro-attribution": "pairs of attributes",
    "valse": "pieces",
}


# --- all numbers, with intervals -------------------------------------------------------------


def measure_foils(
    foils: FoilSet,
    scores: Tensor,
    *,
    cosines: Tensor | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[FoilScore, ...]:
    """All numbers of a set.

    Args:
        foils: the set.
        scores: (P,) scores of `foil_pairs` of the set.
        cosines: (N, 3) of `caption_cosines`, for TOT of SugarCrepe++; None leaves it out.
        seed: seed of the draws, and of the halves between which thresholds are exchanged.
        resamples: number of bootstrap resamples.
    """
    images = torch.tensor([item.images[0] for item in foils.items])
    judged = scored_captions(foils, scores) if foils.form in JUDGED_FORMATS else None
    # items of one image are in one half
    rng = torch.Generator().manual_seed(seed)
    half = torch.randperm(int(images.max()) + 1, generator=rng)[images] % 2 == 0
    names = [item.category for item in foils.items]
    groups = category_groups(foils.form, Counter(names))
    columns = [_group_columns(group, names) for group in groups]
    parts = [
        (measure, group, own)
        for measure in _item_measures(foils, scores.double(), judged, half, cosines)
        for group, own in zip(groups, columns, strict=True)
    ]
    counted = [
        Counted(measure.gained.unsqueeze(1) * own, measure.possible.unsqueeze(1) * own)
        for measure, _, own in parts
    ]
    percents = shares(counted, images, scale=100, seed=seed, resamples=resamples)
    lines = [
        FoilScore(
            measure.name,
            group.title,
            int(own.sum()),
            percent.value,
            percent.interval,
            _chance(measure, own),
            group.own and measure.own,
            group.macro,
            _weights(measure, group, names),
        )
        for (measure, group, own), percent in zip(parts, percents, strict=True)
    ]
    if judged is not None:
        areas = (
            _area_line(judged, g, names, images, resamples, seed) for g in groups if not g.macro
        )
        lines += [line for line in areas if line]
    return tuple(lines)


def _item_measures(
    foils: FoilSet,
    scores: Tensor,
    judged: ScoredCaptions | None,
    half: Tensor,
    cosines: Tensor | None,
) -> list[ItemMeasure]:
    if foils.task == "crossed":
        crossed = both_ways_scores if foils.form == "bivlc" else winoground_scores
        every = crossed(scores.view(-1, 2, 2))
        if foils.form == "cola":  # whose authors ask for each caption's picture only
            return [replace(measure, own=measure.name == "image") for measure in every]
        return list(every)
    measures: list[ItemMeasure] = []
    if foils.task == "choice":
        table, positives = choice_table(foils, scores), _positives(foils)
        twice = foils.form == "sugarcrepe++"
        name = "pairwise" if judged is not None else "ITT" if twice else "accuracy"
        measures.append(choice_accuracy(table, positives, name=name))
        if cosines is not None:
            measures.append(alike_accuracy(cosines))
        if table.shape[1] > 2:
            pairwise = pairwise_accuracy(table, positives)  # which no set's authors report
            measures.append(replace(pairwise, own=foils.form == "pairs"))
    if judged is not None and (level := threshold_accuracy(judged, half, len(foils))):
        measures.append(level)
    return measures


def _group_columns(group: CategoryGroup, names: Sequence[str]) -> Tensor:
    """(N, C) 1 where an item counts: one column, or one of each category that is averaged."""
    place = {name: column for column, name in enumerate(group.categories)}
    column = torch.tensor([place.get(name, -1) for name in names])
    if not group.macro:
        return (column >= 0).double().unsqueeze(1)
    return (column.unsqueeze(1) == torch.arange(len(place))).double()


def _chance(measure: ItemMeasure, columns: Tensor) -> float:
    """Percent of the possible points by guessing, the mean over columns."""
    guessed, possible = (part @ columns for part in (measure.chance, measure.possible))
    return 100 * (guessed / possible).nanmean().item()


def _weights(measure: ItemMeasure, group: CategoryGroup, names: Sequence[str]) -> dict[str, float]:
    """Weight of each category in an average over several; empty for one category."""
    if len(group.categories) < 2:
        return {}
    place = {name: column for column, name in enumerate(group.categories)}
    column = torch.tensor([place.get(name, len(place)) for name in names])
    sums = torch.zeros(len(place) + 1, dtype=torch.double)
    points = sums.index_add(0, column, measure.possible)[:-1]
    shares_of = (points > 0).double() if group.macro else points
    return dict(zip(group.categories, (shares_of / shares_of.sum()).tolist(), strict=True))


def _area_line(
    judged: ScoredCaptions,
    group: CategoryGroup,
    names: Sequence[str],
    images: Tensor,
    resamples: int,
    seed: int,
) -> FoilScore | None:
    """Area under the ROC curve of a group; None where all captions are true, or all false."""
    in_group = torch.tensor([name in group.categories for name in names])
    selected = in_group[judged.item]
    scores, true = judged.scores[selected], judged.true[selected]
    if bool(true.all()) or not bool(true.any()):
        return None
    unique, place = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    rows = place[judged.item[selected]]
    value = 100 * roc_area(scores, true, torch.ones(1, len(true), dtype=torch.double)).item()
    draws = image_draws(
        [torch.arange(len(unique))],
        len(unique),
        resamples=resamples,
        seed=seed,
        width=max(len(unique), len(true)),
    )
    spread = 100 * torch.cat([roc_area(scores, true, counts[:, rows]) for counts in draws])
    # Copies of an image within a resample tie with each other, which biases all areas down.
    spread += value - spread.nanmean()
    interval = percentile_interval(spread.clamp_(0, 100))
    return FoilScore("AUC", group.title, int(in_group.sum()), value, interval, 50.0, group.own)
