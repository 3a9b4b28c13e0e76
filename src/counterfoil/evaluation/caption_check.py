"""Is this caption right? *Fits*, *does not fit* or *cannot tell*, by a model's score of the pair.

A score alone says nothing: each model has its own scale. So captions known to be right are scored
with their own photos and with other ones, and two thresholds are set: a caption *fits* from the
upper one on and *does not fit* below the lower one. Each is the least strict that keeps the share
of wrong answers at a tenth, where every second caption is right:

    among *fits*           w / (w + r), with r the share of right captions at or above the
                           threshold, and w that of wrong ones a model may well fall for: of those
                           drawn for a photo, the tenth that score highest
    among *does not fit*   r / (r + w), with the shares below the threshold, of all wrong captions

Few photos leave r and w uncertain: the share that hurts is raised, and the one that helps lowered,
by a standard error over photos and, for wrong captions, over the photos that they were written for;
and one more mistake is counted than was seen. Where no threshold makes an answer this reliable, a
quarter of wrong answers is tried, with three more mistakes than were seen (the rule of three: n
photos without a mistake show that fewer than 3/n make one), and the answer says *probably*. Where
that fails, too, the answer is never given: a model at chance always answers *cannot tell*.

The shares hold for photos as alike as those of the calibration: the caption of a near twin is
nearly right, so where there are more twins, more captions that are said to fit are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.console import info, warn
from counterfoil.core.types import Pairs
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset, splits_of
from counterfoil.scoring.pairs import score_index_pairs

if TYPE_CHECKING:
    from counterfoil.evaluation.explain import Explanation
    from counterfoil.model import Model

CAPTION_CHECK = "caption-check.json"  # within an index, or a folder of its own
Verdict: TypeAlias = Literal["fits", "does not fit", "cannot tell"]
MIN_PHOTOS = 50
MAX_PHOTOS = 1000
WRONG = 100  # captions of other photos that a photo is scored with
PER_PHOTO = 5  # captions of a photo
MISTAKES = (0.1, 0.25)  # share of wrong answers among those that fit, and those that do not
UNSEEN = (1, 3)  # mistakes that are counted beside those seen, for each share
LEAST = 0.02  # share of captions of a kind that an answer has to be given to
HARD = 0.1  # share of a photo's wrong captions, those of the highest scores
STEPS = 60  # thresholds tried: quantiles of the scores of right captions

Array: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]

UNCALIBRATED = (
    "the scores of this model were never compared with those of captions known to be right; "
    "calibrate it with 50 photos or more that have captions, as in `counterfoil explain MODEL "
    "--index FOLDER --calibrate my-photos/`, where FOLDER is the index, or a new folder"
)


@final
class CaptionCheckManifest(ArtifactManifest):
    """What is stored of a `CaptionCheck`, whose fields these are."""

    low: float | None = Field(allow_inf_nan=False)
    high: float | None = Field(allow_inf_nan=False)
    mistakes: tuple[float, float]
    photos: int = Field(ge=1)
    captions: int = Field(ge=1)
    data: str
    model: str
    perhaps_seen: bool = False


CHECKED = ArtifactFormat(
    name="a caption check",
    manifest=CaptionCheckManifest,
    remedy="delete it, or make it again with `counterfoil explain MODEL --index … --calibrate …`",
    file=CAPTION_CHECK,
)


@final
@dataclass(frozen=True, slots=True)
class CaptionCheck:
    """Scores from which a caption fits, and below which it does not.

    Attributes:
        low: score below which a caption does not fit; None where the model cannot tell this.
        high: score from which it fits, not below `low`; None where the model cannot tell this.
        mistakes: share of wrong answers that is expected at most among those that do not fit, and
            among those that fit, where every second caption is right.
        photos: that it was calibrated on.
        captions: of these photos.
        data: name of the data set and its splits.
        model: identity of the model.
        perhaps_seen: the model was trained on data that may hold these photos.
    """

    low: float | None
    high: float | None
    mistakes: tuple[float, float]
    photos: int
    captions: int
    data: str
    model: str
    perhaps_seen: bool = False

    def verdict(self, score: float) -> Verdict:
        """The answer for a caption of this score, see `Explanation.score`.

        >>> check = CaptionCheck(0.1, 0.3, (0.1, 0.1), 100, 500, "photos (dev)", "")
        >>> check.verdict(0.05), check.verdict(0.2), check.verdict(0.3)
        ('does not fit', 'cannot tell', 'fits')
        """
        if self.high is not None and score >= self.high:
            return "fits"
        return "does not fit" if self.low is not None and score < self.low else "cannot tell"

    def check_model(self, model: Model) -> None:
        """Refuse another model than the one that was calibrated.

        Raises:
            ValueError: it is another one.
        """
        if model.identity() != self.model:
            raise ValueError(
                f"the scores of {model.name} were not calibrated, but those of another model; "
                "calibrate this one, as in `counterfoil explain … --calibrate my-photos/`"
            )

    def applied(self, explanation: Explanation) -> Explanation:
        """The explanation with this verdict on its score."""
        verdict = self.verdict(explanation.score)
        mistakes = dict(zip(("does not fit", "fits"), self.mistakes)).get(verdict)
        return replace(explanation, verdict=verdict, mistakes=mistakes)

    @property
    def basis(self) -> str:
        """What the answer rests on, in a clause."""
        known = (
            f"judged by {counted(self.photos, 'photo')} with {counted(self.captions, 'caption')} "
            f"of {self.data}"
        )
        if self.low is None and self.high is None:
            return (
                f"{known}: this model gives right and wrong captions of them too similar scores, "
                "so that no score makes an answer reliable; try a stronger model"
            )
        less, more = (f"{100 * share:.0f} %" for share in self.mistakes)
        bounds = [
            "no score is high enough to say that a caption fits"
            if self.high is None
            else f"a score from {self.high:.3f} on fits (at most {more} expected to be wrong)",
            "no score is low enough to say that one does not fit"
            if self.low is None
            else f"one below {self.low:.3f} does not fit (at most {less} expected to be wrong)",
        ]
        alike = "; of photos that are more alike than these, more captions that fit are wrong"
        seen = "; if the model was trained on some of these photos, more answers are wrong"
        return (
            f"{known}: {', '.join(bounds)}, where every second caption is right and the wrong ones "
            "are those of other photos; to fit, a caption is held against the tenth of them that "
            f"score highest with the photo{alike}{seen if self.perhaps_seen else ''}"
        )

    def write(self, folder: Path) -> None:
        """Write it into an index, or into a folder of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        CHECKED.write_record(folder, self)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of an index or of a folder; None for none.

        Raises:
            ValueError: the file is damaged or of a later version.
        """
        return CHECKED.read_record(folder, cls)


def hedged(verdict: str, mistakes: float | None) -> str:
    """A verdict with *probably* where more than a tenth of such answers may be wrong.

    >>> hedged("does not fit", 0.1), hedged("fits", 0.25)
    ('does not fit', 'probably fits')
    """
    return f"probably {verdict}" if (mistakes or 0) > MISTAKES[0] else verdict


def sentence(verdict: Verdict, mistakes: float | None = None) -> str:
    """A verdict as a sentence, by the share of such answers that is expected to be wrong.

    >>> sentence("does not fit", 0.1), sentence("fits", 0.25)
    ('The caption does not fit the picture.', 'The caption probably fits the picture.')
    """
    if verdict == "cannot tell":
        return "Cannot tell whether the caption fits the picture."
    return f"The caption {hedged(verdict, mistakes)} the picture."


@final
@dataclass(frozen=True, slots=True)
class HeldOut:
    """Photos to calibrate a model on, see `held_out`.

    Attributes:
        photos: with their captions.
        perhaps_seen: the model was trained on data that may hold these photos.
    """

    photos: ImageTextDataset
    perhaps_seen: bool


def fit_caption_check(
    model: Model, dataset: ImageTextDataset | HeldOut, *, wrong: int = WRONG, seed: int = 0
) -> CaptionCheck:
    """Set the scores from which captions fit, and below which they do not.

    Args:
        model: any model that scores pairs.
        dataset: photos with captions that describe them, of which `held_out` takes those that the
            model was not trained on, or those that it has taken.
        wrong: captions of other photos that each photo is scored with.
        seed: of their draw.

    Raises:
        ValueError: there are fewer than 50 photos with captions, which is said before anything is
            computed; or a score is not a number.
    """
    from counterfoil.model import as_model

    model = as_model(model)
    taken = dataset if isinstance(dataset, HeldOut) else held_out(model, dataset)
    part = taken.photos
    photos = part.relation.described
    if len(photos) > MAX_PHOTOS:
        photos = photos[torch.linspace(0, len(photos) - 1, MAX_PHOTOS).round().long()]
    part = _few_captions(part.subset(photos))
    true = Pairs(part.text_to_image, torch.arange(len(part.texts)))
    false = _wrong_pairs(part, wrong, seed)
    embedded = model.embed(part)
    images, texts = torch.cat([true.image, false.image]), torch.cat([true.text, false.text])
    scores = model.model.loss_scores(score_index_pairs([embedded], images, texts).double())
    right, other = scores.numpy()[: len(true.text)], scores.numpy()[len(true.text) :]
    owners = part.text_to_image[false.text].numpy()
    found = thresholds(right, true.image.numpy(), other, false.image.numpy(), owners)
    name = f"{part.name} ({part.split_name.replace('+', ', ')})"
    seen = taken.perhaps_seen
    return CaptionCheck(*found, len(part), len(part.texts), name, model.identity(), seen)


def held_out(model: Model, dataset: ImageTextDataset) -> HeldOut:
    """The photos to calibrate on: those that a model was not trained on.

    All of them for a model that was trained elsewhere, if their splits were drawn by their names
    and not given. Else dev of several splits; with fewer than 50 photos there, dev and test; with
    fewer in both, all of them, unless this model was trained on the data. The photos of a folder
    that has grown since are not known one by one, but keep the splits that their names draw.

    Raises:
        ValueError: there are fewer than 50 photos with captions.
    """
    names, drawn = dataset.split_names, _drawn(dataset)
    known, elsewhere = trained_on(model, dataset), _elsewhere(model)
    choices = [("dev",), ("dev", "test")] if len(names) > 1 and not (drawn and elsewhere) else []
    for chosen in choices:
        there = [name for name in chosen if name in names]
        if there and len((part := dataset.split(*there)).relation.described) >= MIN_PHOTOS:
            if drawn:
                info(
                    f"calibrated on {len(part)} of {counted(len(dataset), 'photo')}, "
                    f"{' and '.join(there)}: {model.name} may have been trained on the others; "
                    "if it was not, give each a split in the data, test"
                )
            # splits of the very data that it was trained on, or that the names draw, are new to it
            apart = len(part) < len(dataset) and (known or drawn)
            return _taken(model, dataset, part, perhaps_seen=not (elsewhere or apart))
    if len(names) > 1 and known:  # dev and test, which are too few
        there = [name for name in ("dev", "test") if name in names]
        found = sum(len(dataset.split(name).relation.described) for name in there)
        whose = f"{dataset.name} without what {model.name} was trained on"
    else:
        found = len(dataset.relation.described)
        whose = f"{dataset.name} ({dataset.split_name})"
    if found < MIN_PHOTOS:
        raise ValueError(
            f"{whose} has {counted(found, 'photo')} with captions, and a calibration needs "
            f"{MIN_PHOTOS}: {MIN_PHOTOS - found} are missing"
        )
    return _taken(model, dataset, dataset, perhaps_seen=not elsewhere)


def _taken(
    model: Model, dataset: ImageTextDataset, part: ImageTextDataset, *, perhaps_seen: bool
) -> HeldOut:
    """The photos, with a warning where the model may know them."""
    if perhaps_seen:
        warn(
            f"{model.name} was trained on other data than {dataset.name} as it is now; photos that "
            "are in both make its answers too sure: calibrate on photos that it has not seen"
        )
    return HeldOut(part, perhaps_seen)


def _drawn(dataset: ImageTextDataset) -> bool:
    """Return True if the names of the images draw their splits."""
    return list(dataset.splits) == splits_of(dataset.image_ids)


def _elsewhere(model: Model) -> bool:
    """Return True for a model that was not trained here."""
    return model.card is None or "data_fingerprint" not in model.card.provenance


def trained_on(model: Model, dataset: ImageTextDataset) -> bool:
    """Return True if the card of a model says that it was trained on these data."""
    known = model.card.provenance.get("data_fingerprint") if model.card else None
    parts = [dataset, *(dataset.split(name) for name in dataset.split_names if name == "train")]
    return known is not None and known in {part.fingerprint for part in parts}


def _few_captions(part: ImageTextDataset) -> ImageTextDataset:
    """The first captions of each photo."""
    texts, counts = part.relation.captions(torch.arange(len(part)))
    images = torch.arange(len(part)).repeat_interleave(counts)
    place = torch.arange(len(texts)) - (counts.cumsum(0) - counts)[images]
    few = place < PER_PHOTO
    return part.cut(torch.arange(len(part)), texts[few], images[few])


def _wrong_pairs(part: ImageTextDataset, count: int, seed: int) -> Pairs:
    """Photos with captions of other photos, each of which gives nearly as many as any other."""
    photos, counts = len(part), part.relation.counts
    starts = counts.cumsum(0) - counts  # captions stand photo after photo
    rng = np.random.default_rng(seed)
    rows, first = torch.arange(photos), rng.integers(0, PER_PHOTO, photos).tolist()
    images, texts = list[Tensor](), list[Tensor]()
    turns = [
        (turn, int(shift))
        for turn in range(PER_PHOTO)
        for shift in rng.permutation(np.arange(1, photos))
    ]
    for turn, shift in turns[:count]:
        other = (rows + shift) % photos
        new = turn < counts[other]
        place = (first[shift] + turn) % counts[other]  # each turn another caption
        images.append(rows[new])
        texts.append((starts[other] + place)[new])
    image, text = torch.cat(images), torch.cat(texts)
    wrong = part.relation.exempt_weight(image, text) < 0
    return Pairs(image[wrong], text[wrong])


def thresholds(
    right: Array, right_photos: Rows, wrong: Array, wrong_photos: Rows, owners: Rows
) -> tuple[float | None, float | None, tuple[float, float]]:
    """The score below which a caption does not fit, that from which it fits, and mistakes of both.

    Args:
        right: (R,) scores of captions with their photos.
        right_photos: (R,) photo of each.
        wrong: (W,) scores of captions with other photos.
        wrong_photos: (W,) photo of each.
        owners: (W,) photo that the caption was written for.
    """
    hard = _highest(wrong, wrong_photos)
    tried = np.unique(np.quantile(right, np.linspace(0, 1, STEPS + 1)))
    fitting, failing = list[Array](), list[Array]()
    for score in tried:
        fitting.append(
            _mistakes(
                bad=_Share(wrong[hard] >= score, (wrong_photos[hard], owners[hard])),
                good=_Share(right >= score, (right_photos,)),
                one=1 / len(hard),
            )
        )
        failing.append(
            _mistakes(
                bad=_Share(right < score, (right_photos,)),
                good=_Share(wrong < score, (wrong_photos, owners)),
                one=1 / len(np.unique(right_photos)),  # all captions of a photo fail together
            )
        )
    high, more = _least_strict(tried, fitting)
    low, less = _least_strict(tried[::-1], failing[::-1])
    if low is not None and high is not None and high < low:
        low = high = (low + high) / 2  # both answers are reliable between them
    return low, high, (less, more)


def _least_strict(scores: Array, mistakes: Sequence[Array]) -> tuple[float | None, float]:
    """The first score whose answers are reliable, and how reliable."""
    for level, most in enumerate(MISTAKES):
        for score, shares in zip(scores.tolist(), mistakes, strict=True):
            if shares[level] <= most:
                return float(score), most
    return None, MISTAKES[-1]


def _highest(scores: Array, photos: Rows) -> Rows:
    """Rows of each photo's highest scores, a tenth of them."""
    order = np.lexsort((-scores, photos))
    counts = np.bincount(photos)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(order)) - starts[photos[order]]
    most = np.maximum(1, np.round(HARD * counts)).astype(np.int64)
    chosen: Rows = order[place < most[photos[order]]]
    return chosen


@final
@dataclass(frozen=True, slots=True)
class _Share:
    """The share of pairs that a threshold lets through; each belongs to a photo, or to two."""

    hits: npt.NDArray[np.bool_]
    groups: Sequence[Rows]

    @property
    def value(self) -> float:
        return float(self.hits.mean())

    @property
    def error(self) -> float:
        """Its standard error, were the photos drawn anew."""
        variance = 0.0
        for group in self.groups:
            sizes = np.bincount(group)
            sums = np.bincount(group, self.hits - self.value)[sizes > 0]
            variance += float((sums**2).sum()) / len(self.hits) ** 2
        return float(np.sqrt(variance))


def _mistakes(*, bad: _Share, good: _Share, one: float) -> Array:
    """The share of answers that are wrong, with the margin of each of `MISTAKES`; 1 where few are.

    `one` is the share that one more mistake than was seen would be.
    """
    most, least = bad.value + bad.error + one * np.array(UNSEEN), good.value - good.error
    shares: Array = most / (most + max(least, LEAST))
    return shares if least >= LEAST else np.ones(len(UNSEEN))
