"""Data set audit: leaks, duplicates, captions that do not match, false negatives, and a page.

On the page a person keeps, drops, fixes or confirms each finding and saves the choices as a
corrections file (`counterfoil.data.corrections`), which every reader of the data applies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeVar, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.config import parse_literal
from counterfoil.core.console import warn
from counterfoil.data.checks import check_pictures, equal_captions
from counterfoil.data.corrections import Correction, CorrectionAction, verdicts_by_row
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bounds import FIRST, UNJUDGED, next_pairs
from counterfoil.evaluation.explain import (
    DOUBT_THRESHOLD,
    ExplainConfig,
    Explanation,
    describe_missing_heads,
    explain_dataset,
    has_doubt_head,
)
from counterfoil.evaluation.explanation_page import ExplainedCard
from counterfoil.evaluation.metrics import R_CAP
from counterfoil.evaluation.truth import Truth, judged_truth
from counterfoil.model import Model
from counterfoil.negatives.crops import MOST_BY_LOOKS, find_crops
from counterfoil.negatives.diagnose import (
    InspectedPairs,
    inspect_pairs,
    suspects_by_score,
    suspects_by_wording,
)
from counterfoil.negatives.filters import (
    NearPairs,
    check_least,
    connected_groups,
    near_or_mirrored,
)
from counterfoil.negatives.guarantee import pairs_at, sampled_places
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.report.page import PageItem, Provenance, TextPart, template, thumbnail
from counterfoil.scoring.encode import EmbeddedDataset, Side
from counterfoil.scoring.pairs import score_index_pairs
from counterfoil.scoring.reducers import PairRanks, Ranks
from counterfoil.scoring.stream import stream_scores

CAPTION_ACTIONS: tuple[CorrectionAction, ...] = ("keep", "drop", "fix")
IMAGE_ACTIONS: tuple[CorrectionAction, ...] = ("keep", "drop")
PAIR_ACTIONS: tuple[CorrectionAction, ...] = ("keep", "true")
ACTION_LABELS = {"keep": "Keep", "drop": "Drop", "fix": "Fix", "true": "True"}
WEAK_SHARE = 0.2  # of suspicious captions, from which the model is at fault, not they
MISMATCH_SHARE = 0.05  # share of the others that fit better, both ways, of a suspicious caption
HARD_TEXTS, HARD_IMAGES = 20, 5  # the hardest mined negatives, which are reviewed
OWN_CAPTIONS = 5  # shown beside an image
GROUP_IMAGES = 12  # shown of a group of duplicates

Order = Literal["suspicion", "random", "bounds"]
_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Settings of an audit.

    Attributes:
        split: whose captions models judge; "all" for every split.
        near: cosine from which two pictures are near-duplicates, at most 1.
        alike: TF-IDF cosine from which a mined text is a likely false negative.
        top: findings of each kind on the page.
        order: of the pairs to judge: "suspicion", mined negatives that may be true; "random", a
            sample of `top` entries of each side of the mined lists, for
            `counterfoil.negatives.guarantee`; "bounds", the unjudged pairs of the first hundred of
            each query of the models that narrow the bounds of mAP@R most, see
            `counterfoil.evaluation.bounds`.
    """

    split: str = "all"
    near: float = 0.97
    alike: float = 0.6
    top: int = 100
    order: Order = "suspicion"

    def __post_init__(self) -> None:
        check_least("near", self.near)
        check_least("alike", self.alike)
        if self.top < 1:
            raise ValueError(f"top={self.top}: at least 1 finding of each kind is shown")
        parse_literal(Order, self.order, "an order")


@final
@dataclass(frozen=True, slots=True)
class ReviewItem:
    """An image, caption or pair to review."""

    image: str  # image id; "" for a caption
    caption: str  # caption id; "" for an image
    was: str  # text of the caption, or of a caption of the image
    acts: tuple[CorrectionAction, ...]  # allowed actions
    shown: PageItem  # the caption, or the picture with its name
    note: str = ""  # the reason, in few words
    measure: float | None = None  # how odd it is, for programs; None without a number
    # the caption, coloured by doubt; empty without an explanation
    parts: tuple[TextPart, ...] = ()
    proposed: str = ""  # corrected caption; "" without one

    @property
    def key(self) -> str:
        """Unique key on the page."""
        return json.dumps([self.image, self.caption])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without the picture."""
        ids = {"image": self.image, "caption": self.caption, "proposed": self.proposed}
        doubted = [{"word": p.text, "number": p.number} for p in self.parts if p.marked]
        return {
            **{key: value for key, value in ids.items() if value},
            "was": self.was,
            "note": self.note,
            "measure": self.measure,
            **({"doubted": doubted} if doubted else {}),
        }


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Items to review together."""

    items: tuple[ReviewItem, ...]  # at least one
    # the image that they are about, with its picture where there is one; or None
    image: PageItem | None = None
    own: tuple[str, ...] = ()  # captions of that image, for comparison


@final
@dataclass(frozen=True, slots=True)
class ReviewedBounds:
    """Bounds of mAP@R, mean of both directions, and what the page needs to narrow them.

    Attributes:
        low: lowest, in percent.
        high: highest, in percent.
        queries: of each query with a pair on the page: verdicts on its first counterparts ("1",
            "0" or "?" each), number of known true ones, and its share of the mean, in percent.
        items: number of a query and place of a pair there, by key of the item.
    """

    low: float
    high: float
    queries: tuple[tuple[str, int, float], ...]
    items: dict[str, list[tuple[int, int]]]


@final
@dataclass(frozen=True, slots=True)
class AuditSection:
    """Findings of one kind."""

    kind: str  # short name, for programs
    title: str  # of the section
    note: str  # what the findings are and how they are computed
    found: int  # number of findings
    shown: int  # number of them on the page
    finds: tuple[Finding, ...]  # those on the page, the oddest first
    bounds: ReviewedBounds | None = None  # that verdicts on these narrow

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without pictures."""
        finds = []
        for find in self.finds:
            about = {"image": find.image.text, "own": list(find.own)} if find.image else {}
            finds.append({**about, "items": [item.to_dict() for item in find.items]})
        counts = {"found": self.found, "shown": self.shown}
        ends = {"low": self.bounds.low, "high": self.bounds.high} if self.bounds else {}
        return {"title": self.title, "note": self.note, **counts, **ends, "finds": finds}


@final
@dataclass(frozen=True, slots=True)
class AuditPage:
    """Contents of the review page."""

    title: str  # of the page
    protocol: str  # data and models, in a sentence
    known: tuple[str, ...]  # of models that were trained on the captions: a sentence each
    again: tuple[str, ...]  # commands that audit with models that have not seen the captions
    sections: tuple[AuditSection, ...]  # in order
    # corrections that are applied already; the page saves them with the new ones
    earlier: tuple[Correction, ...]
    key: str  # of the data, for the browser's storage
    provenance: Provenance  # for the foot of the page

    @property
    def headline(self) -> str:
        """Number of findings of each kind."""
        sections = [section for section in self.sections if section.found]
        counts = [f"{section.title.lower()}: {section.found:,}" for section in sections]
        return f"{'; '.join(counts).capitalize()}." if counts else "Nothing odd was found."

    @property
    def item_count(self) -> int:
        """Number of distinct items."""
        finds = (find for section in self.sections for find in section.finds)
        return len({item.key for find in finds for item in find.items})


def render_audit(page: AuditPage) -> str:
    """The page as HTML; everything from data or users is escaped."""
    bounded = [asdict(each.bounds) for each in page.sections if each.bounds]
    values = {
        "key": page.key,
        "earlier": [correction.to_dict() for correction in page.earlier],
        "bounds": bounded[0] | {"cap": R_CAP} if bounded else None,
    }
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")  # cannot end the script
    return template("audit.html.j2").render(page=page, data=data, words=ACTION_LABELS)


def audit_dataset(
    dataset: ImageTextDataset,
    config: AuditConfig,
    *,
    models: Sequence[Model] = (),
    explainer: Model | None = None,
    negatives: NegativeStore | None = None,
    verdicts: Iterable[tuple[str, str, bool]] = (),
) -> tuple[AuditSection, ...]:
    """Find odd images, captions and mined negatives of a data set.

    Args:
        dataset: all splits, earlier corrections applied.
        config: settings.
        models: their mean score ranks captions and judges negatives.
        explainer: marks wrong words; ranks captions itself where there are no models.
        negatives: mined lists of a split to review.
        verdicts: image, caption and whether it is true of pairs that were judged before, for the
            order "bounds".

    Raises:
        ValueError: the split is unknown, the explainer cannot rank captions and there are no
            models, the order lacks models or lists, or lists, models and data do not match.
    """
    # fail before pictures are opened
    _select_split(dataset, config.split)
    if config.order == "random" and negatives is None:
        raise ValueError(
            "order=random draws from mined negatives; name a folder of them with --negatives"
        )
    if config.order == "bounds" and not models:
        raise ValueError("order=bounds ranks pairs by models; name one with --model")
    if explainer is not None and not models and not has_doubt_head(explainer.model):
        raise ValueError(
            f"{describe_missing_heads(explainer)}, so it ranks no captions alone; name a model "
            "that ranks them with --model"
        )
    readable, unreadable = _unreadable_images(dataset)
    judged = _without_empty(_select_split(readable, config.split))
    members = [model.embed(judged) for model in models]
    # of all splits, a picture may be part of one of another split
    vectors = _single_vectors(members) if config.split == "all" else None
    sections = [unreadable, *_data_sections(_Display(readable, config.top), config, vectors)]
    if models or explainer is not None:
        display = _Display(judged, config.top)
        if models:
            sections.append(_mismatches(display, models, members, explainer))
        elif explainer is not None:
            sections.append(_doubted(display, explainer))
        if config.order == "bounds":
            known = verdicts_by_row(verdicts, judged)
            sections.append(_next_pairs(display, models, members, judged_truth(judged, known)))
    if negatives is not None:
        mined = _Display(_select_split(dataset, negatives.manifest.split), config.top)
        if config.order == "random":
            sections.append(_random_sample(mined, negatives))
        elif config.order == "suspicion":
            sections.append(_false_negatives(mined, negatives, models, config.alike))
    return tuple(section for section in sections if section is not None)


def _select_split(dataset: ImageTextDataset, split: str) -> ImageTextDataset:
    return dataset if split == "all" else dataset.split(split)


def _without_empty(dataset: ImageTextDataset) -> ImageTextDataset:
    """The data set without empty captions, which no model reads."""
    rows = [row for row, text in enumerate(dataset.texts) if text.strip()]
    if dataset.text_features is not None or len(rows) == len(dataset.texts):
        return dataset
    texts = torch.tensor(rows, dtype=torch.long)
    return dataset.cut(torch.arange(len(dataset)), texts, dataset.text_to_image[texts])


def _single_vectors(members: Sequence[EmbeddedDataset]) -> Tensor | None:
    """(I, D) unit embeddings of the images by the first model of one vector an image, if any."""
    for member in members:
        if member.images.tokens.shape[1] == 1:
            return normalize(member.images.tokens[:, 0].float(), dim=1)
    return None


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Display:
    """Turns images and captions of a data set into items of the page."""

    dataset: ImageTextDataset
    top: int  # number of findings of a kind on the page

    def image(self, row: int) -> PageItem:
        """An image by its id, with its picture where it can be read."""
        pictures, picture = self.dataset.pictures, None
        if pictures is not None:
            with suppress(ValueError):  # listed as unreadable in its own section
                picture = thumbnail(pictures.open(row))
        return PageItem(self.dataset.image_ids[row], picture)

    def captions(self, row: int, *, without: int = -1) -> tuple[str, ...]:
        """The first captions of an image, except one."""
        captions, _ = self.dataset.relation.captions(torch.tensor([row]))
        texts = [self.dataset.texts[text] for text in captions.tolist() if text != without]
        return tuple(texts[:OWN_CAPTIONS])

    def caption_item(self, row: int, note: str = "", measure: float | None = None) -> ReviewItem:
        """A caption; embeddings cannot be fixed."""
        text = self.dataset.texts[row]
        acts = CAPTION_ACTIONS if self.dataset.text_features is None else IMAGE_ACTIONS
        return ReviewItem("", self.dataset.text_ids[row], text, acts, PageItem(text), note, measure)

    def image_item(self, row: int, note: str, measure: float | None = None) -> ReviewItem:
        """An image, with the first of its captions."""
        name, caption = self.dataset.image_ids[row], next(iter(self.captions(row)), "")
        shown = replace(self.image(row), text=caption or name)
        return ReviewItem(name, "", caption, IMAGE_ACTIONS, shown, self._place(row, note), measure)

    def caption_with_picture(self, row: int, note: str) -> ReviewItem:
        """A caption under the picture of its image."""
        item, image = self.caption_item(row), int(self.dataset.text_to_image[row])
        shown = replace(self.image(image), text=item.shown.text)
        return replace(item, shown=shown, note=self._place(image, note))

    def caption_beside_image(
        self,
        row: int,
        note: str = "",
        measure: float | None = None,
        explanation: Explanation | None = None,
    ) -> Finding:
        """A caption beside its image and the image's other captions.

        Where it is explained, it is coloured and has a proposed correction.
        """
        item, image = self.caption_item(row, note, measure), int(self.dataset.text_to_image[row])
        if explanation is not None:
            parts = ExplainedCard(PageItem(""), explanation, DOUBT_THRESHOLD).parts
            proposed = explanation.corrected.text if explanation.corrected else ""
            item = replace(item, parts=parts, proposed=proposed)
        return Finding((item,), self.image(image), self.captions(image, without=row))

    def section(
        self,
        kind: str,
        title: str,
        note: str,
        found: Sequence[_T],
        finding: Callable[[_T], Finding],
    ) -> AuditSection:
        """A section of all that was found, of which the first are displayed."""
        displayed = tuple(map(finding, found[: self.top]))
        return AuditSection(kind, title, note, len(found), len(displayed), displayed)

    def _place(self, row: int, note: str) -> str:
        parts = (self.dataset.image_ids[row], self.dataset.splits[row], note)
        return " · ".join(filter(None, parts))


def _unreadable_images(dataset: ImageTextDataset) -> tuple[ImageTextDataset, AuditSection | None]:
    """The images that can be read with their captions, and a section of the others."""
    if dataset.pictures is None:
        return dataset, None
    errors, _ = check_pictures(dataset.pictures)
    if not errors:
        return dataset, None
    display = _Display(dataset, len(errors))

    def finding(row: int) -> Finding:
        captions, name = display.captions(row), dataset.image_ids[row]
        caption = next(iter(captions), "")
        item = ReviewItem(name, "", caption, IMAGE_ACTIONS, PageItem(name), errors[row])
        return Finding((item,), own=captions)

    note = "Pictures that are missing or damaged. Training on pictures needs all of them."
    section = display.section("unreadable", "Unreadable", note, list(errors), finding)
    readable = [row for row in range(len(dataset)) if row not in errors]
    return dataset.subset(torch.tensor(readable, dtype=torch.long)), section


def _data_sections(
    display: _Display, config: AuditConfig, vectors: Tensor | None
) -> Iterator[AuditSection]:
    """Sections that need no model; embeddings of the images find more crops."""
    dataset = display.dataset
    if dataset.pictures is not None or dataset.features is not None:
        yield from _near_duplicates(display, config.near, vectors)
    if dataset.text_features is None:
        yield from _empty_captions(display)
        yield from _repeated_captions(display)


@final
@dataclass(frozen=True, slots=True)
class _Likeness:
    """Two images that show the same."""

    rows: tuple[int, int]
    score: float
    notes: tuple[str, str]  # of either: how it is like the other


def _likenesses(dataset: ImageTextDataset, least: float, vectors: Tensor | None) -> list[_Likeness]:
    """Pairs of near images, one of which may be mirrored, and of a picture and a part of it."""
    near, mirrored = near_or_mirrored(dataset, least=least)
    columns = near.left.tolist(), near.right.tolist(), near.score.tolist(), mirrored.tolist()
    found = []
    for left, right, score, flipped in zip(*columns):
        note = f"cosine {score:.3f}{', mirrored' if flipped else ''}"
        found.append(_Likeness((left, right), score, (note, note)))
    if dataset.features is not None or dataset.pictures is None:
        return found
    known = {each.rows for each in found}
    crops = find_crops(dataset.pictures, vectors)
    for place in crops.score.argsort(descending=True, stable=True).tolist():
        crop, whole = int(crops.crop[place]), int(crops.whole[place])
        pair = min(crop, whole), max(crop, whole)
        if pair not in known:
            known.add(pair)
            names = dataset.image_ids[crop], dataset.image_ids[whole]
            notes = f"a part of {names[1]}", f"{names[0]} is a part of it"
            found.append(_Likeness((crop, whole), float(crops.score[place]), notes))
    return found


def _near_duplicates(
    display: _Display, least: float, vectors: Tensor | None
) -> Iterator[AuditSection]:
    """Near-duplicate images across splits, and within splits."""
    dataset = display.dataset
    found = _likenesses(dataset, least, vectors)
    best: dict[
        int, tuple[float, str]
    ] = {}  # highest score of each row with any other, and its note
    for each in found:
        for row, note in zip(each.rows, each.notes):
            best[row] = max(best.get(row, (0.0, "")), (each.score, note))
    left, right = (
        torch.tensor([each.rows for each in found], dtype=torch.long).view(-1, 2).unbind(1)
    )
    pairs = NearPairs.of(left, right, torch.tensor([each.score for each in found]))
    groups = connected_groups(pairs, len(dataset))
    groups.sort(key=lambda rows: (-max(best[row][0] for row in rows), rows[0]))
    rule = f"Cosine of their features of at least {least:g}."
    if dataset.features is None:
        rule = (
            f"Cosine of their grey thumbnails, as they are or mirrored, of at least {least:g}; or "
            "one is a part of the other, at least half of each side"
        )
        if len(dataset) > MOST_BY_LOOKS and vectors is None:
            rule += f" (not looked for in more than {MOST_BY_LOOKS:,} pictures without a model)"
        rule += "."
    leaked = "Nearly the same picture in several splits: what is trained on is measured on too."
    repeated = "Nearly the same picture more than once in a split."

    def finding(rows: list[int]) -> Finding:
        shown = rows[:GROUP_IMAGES]
        return Finding(tuple(display.image_item(row, best[row][1], best[row][0]) for row in shown))

    for across, kind, title, note in (
        (True, "leaked", "Leaked images", leaked),
        (False, "repeated-images", "Near-duplicate images", repeated),
    ):
        matching = [
            rows for rows in groups if (len({dataset.splits[r] for r in rows}) > 1) == across
        ]
        yield display.section(kind, title, f"{note} {rule}", matching, finding)


def _empty_captions(display: _Display) -> Iterator[AuditSection]:
    text_to_image = display.dataset.text_to_image.tolist()
    texts = display.dataset.texts
    rows = [row for row, text in enumerate(texts) if not text.strip() and text_to_image[row] >= 0]
    note = "Captions without a word: write one or drop them."
    if rows:
        yield display.section("empty", "Empty captions", note, rows, display.caption_beside_image)


def _repeated_captions(display: _Display) -> Iterator[AuditSection]:
    """Equal captions: repeated for one image first, then by frequency."""
    text_to_image = display.dataset.text_to_image.tolist()

    def order(rows: list[int]) -> tuple[bool, int, int]:
        same_image = len({text_to_image[row] for row in rows}) < len(rows)
        return not same_image, -len(rows), rows[0]

    def finding(rows: list[int]) -> Finding:
        images = [text_to_image[row] for row in rows]
        notes = ("twice of this image" if images.count(image) > 1 else "" for image in images)
        pairs = zip(rows[:GROUP_IMAGES], notes, strict=False)
        return Finding(tuple(display.caption_with_picture(row, note) for row, note in pairs))

    repeated = sorted(equal_captions(display.dataset), key=order)
    note = (
        "Captions that say the same but for capitals, blanks and a last full stop. Of several "
        f"images they may all be right. Of one caption at most {GROUP_IMAGES} are shown."
    )
    if repeated:
        yield display.section("repeated-captions", "Repeated captions", note, repeated, finding)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionMismatch:
    """Ranks of T captions and their images among all others."""

    images: Tensor  # (T,) long, wrong images that fit the caption better; -1 for a text of no image
    texts: Tensor  # (T,) long, wrong texts that fit its image better; -1 for a text of no image
    # (T,) double, the lower of both as a share of all others, in 0..1; -1 for a text of no image.
    # An unspecific caption fits many images as well as its own, but its image fits no other
    # captions better: the lower share tells the two apart
    shares: Tensor

    def worst(self) -> list[int]:
        """Rows of the captions with a share of at least `MISMATCH_SHARE`, the highest first."""
        order = self.shares.argsort(descending=True, stable=True).tolist()
        return list(order[: int((self.shares >= MISMATCH_SHARE).sum())])


def rank_mismatches(members: Sequence[EmbeddedDataset], text_to_image: Tensor) -> CaptionMismatch:
    """Rank every true pair among the wrong pairs of its caption and of its image.

    `members` are models with their embeddings, whose mean score counts; `text_to_image` is the (T,)
    image of each text, -1 for none.
    """
    images, texts = Ranks("text", len(text_to_image), text_to_image), PairRanks(text_to_image)
    stream_scores(members, [images, texts])
    image_ranks, text_ranks = images.ranks().cpu(), texts.ranks().cpu()
    count = len(members[0].images)
    own_texts = torch.bincount(text_to_image[text_to_image >= 0], minlength=count)
    other_texts = len(text_to_image) - own_texts[text_to_image.clamp(min=0)]
    shares = torch.minimum(
        image_ranks.double() / max(count - 1, 1),
        text_ranks.double() / other_texts.clamp(min=1).double(),
    )
    return CaptionMismatch(image_ranks, text_ranks, shares.masked_fill(text_to_image < 0, -1.0))


def _mismatches(
    display: _Display,
    models: Sequence[Model],
    members: Sequence[EmbeddedDataset],
    explainer: Model | None,
) -> AuditSection:
    """Captions that fit their own image worse than many other captions and images do."""
    dataset = display.dataset
    ranks = rank_mismatches(members, dataset.text_to_image)
    worst = ranks.worst()
    explanations = {}
    if explainer is not None and worst:
        explanations = _explain_rows(explainer, dataset, worst[: display.top])

    def finding(row: int) -> Finding:
        others = (
            f"{int(ranks.images[row]):,} other images fit it better, "
            f"{int(ranks.texts[row]):,} other captions fit its image better"
        )
        odd = float(ranks.shares[row])
        return display.caption_beside_image(row, others, odd, explanations.get(row))

    names, share = " + ".join(model.name for model in models), len(worst) / len(ranks.shares)
    weak = ""
    if share > WEAK_SHARE:
        weak = (
            f"{100 * share:.0f} % of all captions are odd to {names}, more than can be wrong: it "
            "is too weak to find wrong ones here; take a stronger model"
        )
        warn(weak)
    note = (
        f"By {names}: captions that at least "
        f"{100 * MISMATCH_SHARE:g} % of the other images fit better, while at least as many of the "
        "other captions fit their image better; the lower of both shares ranks them. Odd is not "
        f"wrong.{_explainer_note(explainer)}{weak and f' {weak}.'}"
    )
    return display.section("suspicious", "Suspicious captions", note, worst, finding)


def _doubted(display: _Display, explainer: Model) -> AuditSection:
    """Captions with a doubted word, the greatest doubt first."""
    explained = explain_dataset(explainer, display.dataset, ExplainConfig())
    doubted = [
        (each.doubt, row, each) for row, each in explained if (each.doubt or 0) >= DOUBT_THRESHOLD
    ]
    doubted.sort(key=lambda line: -(line[0] or 0))  # of equal doubts the first row comes first

    def finding(line: tuple[float | None, int, Explanation]) -> Finding:
        doubt, row, explanation = line
        return display.caption_beside_image(row, f"greatest doubt {doubt:.2f}", doubt, explanation)

    note = f"Captions with a doubted word, the most doubted first.{_explainer_note(explainer)}"
    return display.section("suspicious", "Suspicious captions", note, doubted, finding)


def _explainer_note(explainer: Model | None) -> str:
    if explainer is None:
        return ""
    if not has_doubt_head(explainer.model):
        return " Words are the deeper in colour the more the score gains without them."
    return f" Words that {explainer.name} doubts are coloured, with what it would write instead."


def _explain_rows(
    explainer: Model, dataset: ImageTextDataset, rows: Sequence[int]
) -> dict[int, Explanation]:
    """Explanations of some captions by row."""
    texts = torch.tensor(sorted(rows), dtype=torch.long)
    images, text_to_image = dataset.text_to_image[texts].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    subset = dataset.cut(images, texts, text_to_image)
    explained = explain_dataset(explainer, subset, ExplainConfig())
    return {int(texts[row]): explanation for row, explanation in explained}


@final
@dataclass(frozen=True, slots=True)
class LikelyPositive:
    """A mined negative that may be a true pair."""

    image: int  # its row
    text: int  # its row
    reasons: tuple[str, ...]  # names of the estimates that suspect it
    # its score less that of the anchor's positive; the greater where both sides list the pair; None
    # without a model
    gap: float | None


def likely_positives(
    lists: HardNegativeLists,
    dataset: ImageTextDataset,
    members: Sequence[EmbeddedDataset],
    *,
    alike: float,
) -> list[LikelyPositive]:
    """Mined pairs that are suspected to be true; most reasons first, then by gap.

    The mean score of `members` is compared, where there are some. The positive score of an image is
    the lowest score of its own captions, as in `FilterConfig`. A text is suspected from a TF-IDF
    cosine of `alike`.
    """
    lists = lists.checked(dataset.relation)
    sides = _hardest(lists, dataset)
    limits = _positive_scores(dataset, members, sides)
    suspected: dict[tuple[int, int], LikelyPositive] = {}
    for side, limit, by_wording in zip(
        sides, limits, suspects_by_wording(dataset, sides, least=alike)
    ):
        estimates, pairs = list(by_wording), side.pairs
        gaps: Tensor | None = None
        if members:
            scores = side.scores(members)
            estimates.append(suspects_by_score(side, scores, limit))
            gaps = scores - limit.unsqueeze(1)
        for estimate in estimates:
            for line, place in estimate.suspected.nonzero().tolist():
                image, text = int(pairs.image[line, place]), int(pairs.text[line, place])
                gap = None if gaps is None else float(gaps[line, place])
                before = suspected.get((image, text), LikelyPositive(image, text, (), gap))
                reasons = tuple(dict.fromkeys((*before.reasons, estimate.name)))
                # the greater gap where both sides list the pair
                if gap is not None and before.gap is not None:
                    gap = max(gap, before.gap)
                suspected[image, text] = LikelyPositive(image, text, reasons, gap)
    return sorted(
        suspected.values(),
        key=lambda pair: (-len(pair.reasons), -(pair.gap or 0.0), pair.image, pair.text),
    )


def _hardest(
    lists: HardNegativeLists, dataset: ImageTextDataset
) -> tuple[InspectedPairs, InspectedPairs]:
    """The hardest texts of every image with a caption, and the hardest images of every text."""
    relation = dataset.relation
    hardest = replace(
        lists, texts=lists.texts[:, :HARD_TEXTS], images=lists.images[:, :HARD_IMAGES]
    )
    texts = relation.owned
    captions, counts = relation.captions(relation.described)
    first_captions = captions[counts.cumsum(0) - counts]  # an image's texts are listed once
    return (
        inspect_pairs(hardest, relation, first_captions)[0],
        inspect_pairs(hardest, relation, texts)[1],
    )


def _positive_scores(
    dataset: ImageTextDataset,
    members: Sequence[EmbeddedDataset],
    sides: tuple[InspectedPairs, InspectedPairs],
) -> tuple[Tensor, Tensor]:
    """Scores of the anchors' positives: the lowest of an image's captions, a text's own."""
    images, own = sides[0].anchors.image, sides[1].anchors
    if not members:
        return torch.zeros(len(images)), torch.zeros(len(own.image))
    scores = score_index_pairs(members, own.image, own.text)
    lowest = torch.full((len(dataset),), torch.inf).scatter_reduce(0, own.image, scores, "amin")
    return lowest[images], scores


def _false_negatives(
    display: _Display, store: NegativeStore, models: Sequence[Model], alike: float
) -> AuditSection:
    """Mined negatives that may be true, grouped by image."""
    dataset = display.dataset
    members = [model.embed(dataset) for model in models]
    suspected = likely_positives(store.lists, dataset, members, alike=alike)
    findings = _by_image(display, [_pair_item(dataset, pair) for pair in suspected[: display.top]])
    names = " + ".join(model.name for model in models)
    by_score = f"score at least their positive by {names}, or " if models else ""
    note = (
        f"Of the {HARD_TEXTS} hardest texts of each image and the {HARD_IMAGES} hardest images of "
        f"each caption those that {by_score}are worded like a caption of the image (TF-IDF cosine "
        f"of at least {alike:g}). Does the caption describe this picture too? Captions that are "
        "true are never mined for it again, and are right answers when models are measured."
    )
    shown = min(len(suspected), display.top)
    title = "Negatives that may be true"
    return AuditSection("false-negatives", title, note, len(suspected), shown, findings)


def _random_sample(display: _Display, store: NegativeStore) -> AuditSection:
    """A random sample of the mined negatives, grouped by image."""
    lists, pairs = store.lists, dict[tuple[int, int], LikelyPositive]()
    sides: tuple[tuple[Side, Tensor], ...] = (("image", lists.texts), ("text", lists.images))
    for side, rows in sides:
        drawn = pairs_at(side, rows, sampled_places(rows, display.top))
        for image, text in zip(drawn.image.tolist(), drawn.text.tolist(), strict=True):
            pairs[image, text] = LikelyPositive(image, text, (), None)
    items = [_pair_item(display.dataset, pair) for pair in pairs.values()]
    findings = _by_image(display, items)
    note = (
        f"{display.top:,} entries of the lists of images and as many of those of texts, drawn at "
        "random. Does the caption describe this picture too? Judge all of them: then counterfoil "
        f"negatives filter … --set sample={display.top} --judgements corrections.jsonl leaves out "
        "negatives so that at most a given share is true. Save these corrections elsewhere than "
        "beside the data, as the lists are of the data without them."
    )
    title = "A random sample of the negatives"
    return AuditSection("sample", title, note, len(pairs), len(pairs), findings)


def _next_pairs(
    display: _Display, models: Sequence[Model], members: Sequence[EmbeddedDataset], truth: Truth
) -> AuditSection:
    """Unjudged pairs, those first whose verdict narrows the bounds of mAP@R most."""
    dataset, found = display.dataset, next_pairs(members, truth, display.dataset.text_to_image)
    low, high = (100 * end for end in found.ends())
    rows = zip(found.pairs.image.tolist(), found.pairs.text.tolist(), found.gain.tolist())
    items, places = list[ReviewItem](), dict[str, list[tuple[int, int]]]()
    queries: dict[tuple[int, int], int] = {}  # number by side and row
    for image, text, gain in islice(rows, display.top):
        said = (f"a verdict narrows mAP@R by {100 * gain:.2g} points",)
        item = replace(_pair_item(dataset, LikelyPositive(image, text, said, None)), measure=gain)
        items.append(item)
        for side, (query, answer) in enumerate(((image, text), (text, image))):
            at = (found.places[side].answers[query] == answer).nonzero().flatten().tolist()
            if at and int(found.places[side].verdicts[query, at[0]]) == UNJUDGED:
                number = queries.setdefault((side, query), len(queries))
                places.setdefault(item.key, []).append((number, at[0]))
    asked = [max(1, int((each.true > 0).sum())) for each in found.places]
    written = tuple(
        (
            "".join("?" if one == UNJUDGED else str(one) for one in verdicts),
            int(found.places[side].true[query]),
            50 / asked[side],
        )
        for side, query in queries
        for verdicts in (found.places[side].verdicts[query].tolist(),)
    )
    note = (
        f"By {' + '.join(model.name for model in models)}: mAP@R, mean of both directions, is "
        f"between {low:.1f} and {high:.1f} %, whatever the unjudged pairs among the first {FIRST} "
        "of each image and caption are. Verdicts on the first of these narrow that most. "
        "Does the caption describe this picture too? Audit again after some, as each moves others."
    )
    return AuditSection(
        "next",
        "Pairs to judge next",
        note,
        len(found.gain),
        len(items),
        _by_image(display, items),
        ReviewedBounds(low, high, written, places),
    )


def _by_image(display: _Display, items: Sequence[ReviewItem]) -> tuple[Finding, ...]:
    """Findings of pairs, one for each image, in the order of their first pairs."""
    by_image: dict[str, list[ReviewItem]] = {}
    for item in items:
        by_image.setdefault(item.image, []).append(item)
    rows = {name: row for row, name in enumerate(display.dataset.image_ids)}
    return tuple(
        Finding(tuple(items), display.image(rows[name]), display.captions(rows[name]))
        for name, items in by_image.items()
    )


def _pair_item(dataset: ImageTextDataset, pair: LikelyPositive) -> ReviewItem:
    text, note = dataset.texts[pair.text], ", ".join(pair.reasons)
    if pair.gap is not None:
        note += f", {abs(pair.gap):.3f} {'above' if pair.gap >= 0 else 'below'} its positive"
    own_image = int(dataset.text_to_image[pair.text])
    if own_image >= 0:
        note += f"{note and ' · '}of {dataset.image_ids[own_image]}"
    ids = dataset.image_ids[pair.image], dataset.text_ids[pair.text]
    return ReviewItem(*ids, text, PAIR_ACTIONS, PageItem(text), note, pair.gap)
