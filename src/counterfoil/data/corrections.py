"""Label corrections: a JSON-lines file that every reader of a data set applies, and crowd votes.

One correction per line, in ``corrections.jsonl`` beside the data:

    {"do": "drop", "image": "a.jpg", "was": "A cat."}
    {"do": "drop", "caption": "a.jpg#1", "was": "A dog."}
    {"do": "fix", "caption": "a.jpg#1", "was": "A dog.", "text": "A cat."}
    {"do": "true", "caption": "a.jpg#1", "was": "A cat.", "image": "b.jpg"}
    {"do": "true", "caption": "a.jpg#1", "was": "A cat.", "image": "b.jpg", "weight": 0.6}
    {"do": "drop", "caption": "a.jpg#1", "was": "A cat.", "image": "b.jpg"}
    {"do": "keep", "caption": "a.jpg#1", "was": "A cat."}          reviewed, no change

Dropping an image drops its captions. ``was`` is the text of the caption, or of any caption of the
image; it guards against applying corrections to other data. "true" marks an additional positive
pair: mining leaves it out and evaluation counts it as correct; in training it has the weight, above
0 and at most 1, which is the default. "drop" with an image and a caption of another one leaves the
pair out of the negatives, and makes it no positive either. The last fix of a caption wins, and the
last verdict on a pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.core.io import is_given, parse_json, read_text_lines, write_text
from counterfoil.core.types import Pairs
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset

CORRECTIONS_FILE = "corrections.jsonl"
# files of verdicts on pairs, by their names in a folder
VERDICTS = ("ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt", CORRECTIONS_FILE)
CorrectionAction = Literal["keep", "drop", "fix", "true"]
_KEYS = ("do", "image", "caption", "was", "text", "weight")
_EITHER = [(True, False), (False, True)]  # an image without a caption, a caption without an image
_TARGETS = {
    "fix": ([(False, True)], "a caption"),
    "true": ([(True, True)], "an image and a caption"),
    "drop": ([*_EITHER, (True, True)], "an image, a caption, or both for the pair"),
    "keep": ([*_EITHER, (True, True)], "an image or a caption"),
}
_VOTE_COLUMNS = "picture, caption, share of yes, yes, no"
_RATING_COLUMNS = "picture, caption, three ratings from 1 to 4"


@final
@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of one image, caption or pair."""

    do: CorrectionAction
    image: str  # image id; "" where the correction is about a caption
    caption: str  # caption id; "" where the correction is about an image
    was: str  # text of the caption, or of a caption of the image; "" for an image without captions
    text: str = ""  # new text of a fixed caption
    where: str = ""  # file and line, for error messages
    weight: float = 1.0  # of a "true" pair in training, above 0 and at most 1

    def to_dict(self) -> dict[str, str | float]:
        """JSON-ready form; empty fields and a weight of 1 are left out, but not ``was``."""
        weight = {} if self.weight == 1 else {"weight": self.weight}
        texts = {"do": self.do, "image": self.image, "caption": self.caption, "text": self.text}
        return {key: value for key, value in texts.items() if value} | {"was": self.was} | weight


def corrections_beside(source: str) -> Path | None:
    """The corrections file in the folder of a data set; None without one."""
    path = Path(source).expanduser()
    if not path.exists():  # "scenes" or a data set of the hub
        return None
    folder = path if path.is_dir() else path.parent
    file = folder / CORRECTIONS_FILE
    return file if is_given(file) else None


def read_corrections(path: Path) -> tuple[Correction, ...]:
    """Read a corrections file."""
    lines = enumerate(read_text_lines(path, "corrections"), 1)
    return tuple(_parse(line, f"{path}, line {n}") for n, line in lines if line.strip())


def write_corrections(path: Path, corrections: Iterable[Correction]) -> None:
    """Write a file of corrections."""
    lines = (json.dumps(each.to_dict(), ensure_ascii=False) + "\n" for each in corrections)
    write_text(path, "".join(lines))


def apply_corrections(
    dataset: ImageTextDataset, corrections: Sequence[Correction]
) -> ImageTextDataset:
    """Apply corrections to a whole data set, as it was read.

    Returns:
        The corrected data set; `ImageTextDataset.corrections` describes the changes.
    """
    state = _CorrectedDataset(dataset)
    for correction in corrections:
        state.apply(correction)
    return state.dataset()


def judged_pairs(dataset: ImageTextDataset) -> tuple[Correction, ...]:
    """The extra positives and the ambiguous pairs of a data set as corrections of it."""
    true, weights, neither = dataset.extra_positives, dataset.extra_weights, dataset.ambiguous
    found: list[tuple[CorrectionAction, tuple[int, int], float]] = []
    if true is not None:
        every = [1.0] * len(true.image) if weights is None else weights.tolist()
        found += [("true", pair, weight) for pair, weight in zip(_rows(true), every, strict=True)]
    if neither is not None:
        found += [("drop", pair, 1.0) for pair in _rows(neither)]
    return tuple(
        Correction(do, dataset.image_ids[i], dataset.text_ids[t], dataset.texts[t], weight=weight)
        for do, (i, t), weight in found
    )


def _rows(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.image.tolist(), pairs.text.tolist(), strict=True))


@final
class _CorrectedDataset:
    """Texts, remaining rows and verdicts on pairs while corrections are applied in order."""

    def __init__(self, original: ImageTextDataset) -> None:
        self.original, self.texts = original, list(original.texts)
        self.image_rows = {name: row for row, name in enumerate(original.image_ids)}
        self.text_rows = {name: row for row, name in enumerate(original.text_ids)}
        self.keep_images = torch.ones(len(original), dtype=torch.bool)
        self.keep_texts = torch.ones(len(original.texts), dtype=torch.bool)
        self.pairs: dict[tuple[int, int], float] = {}  # weight; 0 is no positive, and no negative

    def apply(self, correction: Correction) -> None:
        image = self._row(self.image_rows, correction.image, "image", correction.where)
        text = self._row(self.text_rows, correction.caption, "caption", correction.where)
        self._check_unchanged(correction, image, text)
        if correction.do == "fix":
            if self.original.text_features is not None:
                raise ValueError(
                    f"{correction.where}: the captions of {self.original.name} are ready-made "
                    "vectors and cannot be fixed; drop the caption"
                )
            self.texts[text] = correction.text
        elif correction.do == "true":
            self.pairs[image, text] = correction.weight
        elif correction.do == "drop" and text >= 0 and image >= 0:
            if int(self.original.text_to_image[text]) == image:
                raise ValueError(
                    f"{correction.where}: {correction.caption} is a caption of {correction.image} "
                    "itself; drop the caption alone"
                )
            self.pairs[image, text] = 0.0
        elif correction.do == "drop" and text >= 0:
            self.keep_texts[text] = False
        elif correction.do == "drop":
            self.keep_images[image] = False

    def _row(self, rows: dict[str, int], name: str, noun: str, where: str) -> int:
        if name and name not in rows:
            raise ValueError(
                f"{where}: {self.original.name} has no {noun} {name!r}; the corrections are of "
                "other data, audit these"
            )
        return rows[name] if name else -1

    def _check_unchanged(self, correction: Correction, image: int, text: int) -> None:
        """Refuse a correction whose ``was`` is neither the original text nor an earlier fix."""
        captions, _ = self.original.relation.captions(torch.tensor([image]))
        rows = [text] if text >= 0 else captions.tolist()
        known = [texts[row] for row in rows for texts in (self.original.texts, self.texts)] or [""]
        if correction.was not in known:
            about = correction.caption or f"a caption of {correction.image}"
            raise ValueError(
                f"{correction.where}: {about} was {correction.was!r} when it was corrected and is "
                f"{known[0]!r} in {self.original.name}; the corrections are of other data, audit "
                "these"
            )

    def dataset(self) -> ImageTextDataset:
        """The corrected data set."""
        original, text_to_image = self.original, self.original.text_to_image
        of_no_image = text_to_image < 0
        keep_texts = self.keep_texts & (of_no_image | self.keep_images[text_to_image])
        if not self.keep_images.any() or (len(keep_texts) and not keep_texts.any()):
            raise ValueError(f"{original.name}: nothing is left after all corrections; drop less")
        images, texts = self.keep_images.nonzero().squeeze(1), keep_texts.nonzero().squeeze(1)
        new_rows = self.keep_images.long().cumsum(0) - 1
        new_images = new_rows[text_to_image].masked_fill(of_no_image, -1)[texts]
        true = sorted(pair for pair, weight in self.pairs.items() if weight)
        neither = sorted(pair for pair, weight in self.pairs.items() if not weight)
        weights = torch.tensor([self.pairs[pair] for pair in true])
        complete = replace(original, texts=self.texts, dependencies=self._dependencies())
        if true:
            weighted = weights if bool((weights < 1).any()) else None
            complete = replace(complete, extra_positives=_pairs(true), extra_weights=weighted)
        if neither:
            complete = replace(complete, ambiguous=_pairs(neither))
        rewritten = sum(self.texts[row] != original.texts[row] for row in texts.tolist())
        counts = (
            (len(original) - len(images), "image", "left out"),
            (len(self.texts) - len(texts), "caption", "left out"),
            (rewritten, "caption", "rewritten"),
            (len(true), "pair", "true besides the captions' own"),
            (len(neither), "pair", "left out of the negatives"),
        )
        changes = [f"{counted(number, noun)} {change}" for number, noun, change in counts if number]
        return replace(
            complete.cut(images, texts, new_images),
            left_out=original.left_out,
            unlisted=original.unlisted,
            corrections=", ".join(changes) or "nothing left out",
        )

    def _dependencies(self) -> Tensor | None:
        """The dependency pairs of the texts that nobody rewrote."""
        if self.original.dependencies is None:
            return None
        both = zip(self.texts, self.original.texts, strict=True)
        rewritten = torch.tensor([new != old for new, old in both], dtype=torch.bool)
        return self.original.dependencies.masked_fill(rewritten.view(-1, 1, 1), -1)


def _pairs(pairs: Sequence[tuple[int, int]]) -> Pairs:
    return Pairs(*torch.tensor(pairs).unbind(1))


def _parse(line: str, where: str) -> Correction:
    values = parse_json(line, where)
    if not isinstance(values, dict) or not all(
        isinstance(value, str) or key == "weight" for key, value in values.items()
    ):
        raise ValueError(
            f'{where} is no correction; {{"do": "drop", "caption": ..., "was": ...}} is one'
        )
    for key in values:
        if key not in _KEYS:
            raise ValueError(f"{where}: {unknown_name(key, list(_KEYS), 'a key of a correction')}")
    do, target = values.get("do", ""), (bool(values.get("image")), bool(values.get("caption")))
    if do not in get_args(CorrectionAction):
        actions = list(get_args(CorrectionAction))
        raise ValueError(f"{where}: {unknown_name(do, actions, 'a correction')}")
    allowed, noun = _TARGETS[do]
    if target not in allowed:
        raise ValueError(f"{where}: {do!r} needs {noun}")
    if do == "fix" and not values.get("text", "").strip():
        raise ValueError(f"{where}: 'fix' needs the new text; drop the caption instead")
    weight = values.get("weight", 1)
    if type(weight) not in (int, float) or not 0 < weight <= 1:
        raise ValueError(
            f"{where}: a weight of {weight!r} was given; use a number above 0 and at most 1, or "
            "'drop' for a pair that is no positive"
        )
    if do != "true" and weight != 1:
        raise ValueError(f"{where}: a weight belongs to 'true'; leave it out of {do!r}")
    fields: Any = {"image": "", "caption": "", "was": "", "text": "", **values}
    return Correction(where=where, **fields)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrowdVotes:
    """Votes of a crowd on whether captions describe images."""

    images: Tensor  # (N,) long, image rows
    texts: Tensor  # (N,) long, caption rows
    yes: Tensor  # (N,) long
    no: Tensor  # (N,) long

    def __len__(self) -> int:
        return len(self.images)

    @property
    def true(self) -> Tensor:
        """(N,) bool, whether at least half of the votes are yes."""
        return self.yes >= self.no

    def rows(self, index: Tensor) -> CrowdVotes:
        """A subset by (N,) bool mask or by rows."""
        return CrowdVotes(self.images[index], self.texts[index], self.yes[index], self.no[index])


def read_crowd_votes(path: Path, dataset: ImageTextDataset) -> CrowdVotes:
    """Read crowd votes about pairs of a data set, see `read_votes`.

    Raises:
        ValueError: a damaged file, or one that judges other data.
    """
    votes = read_votes(path)
    images = {name: row for row, name in enumerate(dataset.image_ids)}
    captions = caption_rows(dataset)
    for image, text, _, _ in votes:
        for name, known, noun in ((image, images, "picture"), (text, captions, "caption")):
            if name not in known:
                raise ValueError(
                    f"{path} judges the {noun} {name!r}, which {dataset.name} does not have; name "
                    "the data that were judged"
                )
    rows = [(images[image], captions[text], yes, no) for image, text, yes, no in votes]
    return CrowdVotes(*torch.tensor(rows).unbind(1))


def read_votes(path: Path) -> list[tuple[str, str, int, int]]:
    """Read image, caption, votes for yes and votes for no of each pair that a crowd judged.

    A line has five tab-separated fields: image, caption, share of yes, number of yes, number of
    no, as in Flickr8k's ``CrowdFlowerAnnotations.txt`` (Hodosh, Young and Hockenmaier, JAIR 47,
    2013). A caption is named by its id, or as ``1.jpg#2``, the third caption of that image.

    Raises:
        ValueError: no line, or one of another form.
    """
    votes = []
    for number, fields in _lines(path, _VOTE_COLUMNS):
        if not all(field.strip().isdecimal() for field in fields[3:]):
            raise _no_judgement(path, number, fields, _VOTE_COLUMNS)
        yes, no = int(fields[3]), int(fields[4])
        if not yes + no:
            line = "\t".join(fields)[:60]
            raise ValueError(f"{path}, line {number} has no votes: {line!r}; leave the line out")
        votes.append((fields[0], fields[1], yes, no))
    return votes


def read_verdicts(
    path: Path, dataset: ImageTextDataset
) -> tuple[dict[tuple[int, int], bool], tuple[str, ...]]:
    """Read which pairs of a data set people found true, and which false.

    What one of several files says is true is true.

    Args:
        path: Flickr8k's ``ExpertAnnotations.txt`` (true from a mean rating of 3), its
            ``CrowdFlowerAnnotations.txt`` or votes of that form (true if more than half say yes),
            ``corrections.jsonl`` of an audit ("true", and "keep" of a pair: false after all), or a
            folder of these.
        dataset: whose pairs count; those of other images and captions are left out.

    Returns:
        Verdicts by image and caption row, and the names of the files.

    Raises:
        ValueError: the path does not exist, a file is damaged or another, or judges no pair of
            these data.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; give the file or folder of the judgements")
    files = [path] if path.is_file() else [path / n for n in VERDICTS if (path / n).exists()]
    if not files:
        raise ValueError(f"{path} holds none of {', '.join(VERDICTS)}")
    verdicts = verdicts_by_row((each for file in files for each in _verdicts_of(file)), dataset)
    if not verdicts:
        raise ValueError(
            f"{path} judges no pair of {dataset.name} {dataset.split_name}; give the judgements of "
            "these pictures, or measure the split that was judged"
        )
    return verdicts, tuple(file.name for file in files)


def verdicts_by_row(
    verdicts: Iterable[tuple[str, str, bool]], dataset: ImageTextDataset
) -> dict[tuple[int, int], bool]:
    """Verdicts on image and caption names by rows; true where one of several says so."""
    images = {name: row for row, name in enumerate(dataset.image_ids)}
    captions, found = caption_rows(dataset), dict[tuple[int, int], bool]()
    for image, text, is_true in verdicts:
        pair = images.get(image, -1), captions.get(text, -1)
        if min(pair) >= 0:
            found[pair] = is_true or found.get(pair, False)
    return found


def pair_verdicts(corrections: Iterable[Correction]) -> Iterator[tuple[str, str, bool]]:
    """Image, caption and verdict of each pair that was found true, or false after all."""
    for each in corrections:
        if each.image and each.caption and each.do in ("true", "keep"):
            yield each.image, each.caption, each.do == "true"


def _verdicts_of(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Image, caption and whether it is true of each pair that a file judges."""
    if path.suffix == ".jsonl":
        yield from pair_verdicts(read_corrections(path))
    elif "expert" in path.name.lower():
        for image, text, rating in read_expert_ratings(path):
            yield image, text, rating >= 3
    else:
        for image, text, yes, no in read_votes(path):
            yield image, text, yes > no


def read_expert_ratings(path: Path) -> list[tuple[str, str, float]]:
    """Read image, caption and mean rating of each pair that three experts judged.

    A line has five tab-separated fields: image, caption and three ratings from 1, the caption does
    not describe the image at all, to 4, it does, as in Flickr8k's ``ExpertAnnotations.txt``.

    Raises:
        ValueError: no line, or one of another form.
    """
    ratings = []
    for number, fields in _lines(path, _RATING_COLUMNS):
        if not all(field.strip() in ("1", "2", "3", "4") for field in fields[2:]):
            raise _no_judgement(path, number, fields, _RATING_COLUMNS)
        ratings.append((fields[0], fields[1], sum(map(int, fields[2:])) / len(fields[2:])))
    return ratings


def caption_rows(dataset: ImageTextDataset) -> dict[str, int]:
    """Caption rows by id, and by image id and place, as in ``1.jpg#2``."""
    texts, counts = dataset.relation.captions(torch.arange(len(dataset)))
    rows = iter(texts.tolist())
    known: dict[str, int] = {}
    for name, count in zip(dataset.image_ids, counts.tolist(), strict=True):
        known |= {f"{name}#{place}": next(rows) for place in range(count)}
    return known | {name: row for row, name in enumerate(dataset.text_ids)}


def _lines(path: Path, columns: str) -> list[tuple[int, list[str]]]:
    """Numbers and fields of the lines of a file of judgements, five fields each."""
    lines = enumerate(read_text_lines(path, "judgements"), 1)
    found = [(number, line.split("\t")) for number, line in lines if line.strip()]
    if not found:
        raise ValueError(f"{path} holds no judgements; a line has {columns}, tabs between")
    for number, fields in found:
        if len(fields) != 5:
            raise _no_judgement(path, number, fields, columns)
    return found


def _no_judgement(path: Path, number: int, fields: Sequence[str], columns: str) -> ValueError:
    line = "\t".join(fields)[:60]
    return ValueError(
        f"{path}, line {number} is no judgement: {line!r}; {columns} are needed, tabs between them"
    )
