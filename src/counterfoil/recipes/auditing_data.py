"""What is odd about a data set that no model has to be asked for: pictures and captions alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

import torch

from counterfoil.corpus.check import look, same_texts
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.decisions import Do
from counterfoil.evaluate.audit_page import Find, Item, Section
from counterfoil.negatives.duplicates import Near, groups, near_pictures
from counterfoil.report.page import PageItem, thumbnail

CAPTION: tuple[Do, ...] = ("keep", "drop", "fix")
IMAGE: tuple[Do, ...] = ("keep", "drop")
OWN = 5  # captions shown beside an image
MANY = 12  # images shown of those that belong together


@final
@dataclass(frozen=True, slots=True, eq=False)
class Exhibit:
    """A data set, and how its images and captions are shown.

    Attributes:
        corpus: all of it that can be read.
        top: how many finds of a kind are shown.
    """

    corpus: Corpus
    top: int

    def image(self, row: int) -> PageItem:
        """An image by its id, with its picture where there is one that can be read."""
        pictures, picture = self.corpus.pictures, None
        if pictures is not None:
            with suppress(ValueError):  # which stands among the unreadable ones
                picture = thumbnail(pictures.open(row))
        return PageItem(self.corpus.image_ids[row], picture)

    def own(self, row: int, *, but: int = -1) -> tuple[str, ...]:
        """The first captions of an image, one of them apart."""
        captions, _ = self.corpus.relation.captions(torch.tensor([row]))
        kept = [self.corpus.texts[text] for text in captions.tolist() if text != but]
        return tuple(kept[:OWN])

    def caption(self, row: int, note: str = "", measure: float | None = None) -> Item:
        """A caption to keep, to drop or, where it is no ready-made vector, to fix."""
        corpus, text = self.corpus, self.corpus.texts[row]
        acts = CAPTION if corpus.text_features is None else IMAGE
        return Item("", corpus.text_ids[row], text, acts, PageItem(text), note, measure)

    def picture(self, row: int, note: str = "", measure: float | None = None) -> Item:
        """An image to keep or to drop, known by the first of its captions."""
        own, corpus = self.own(row), self.corpus
        shown = PageItem(own[0] if own else corpus.image_ids[row], self.image(row).picture)
        words = _joined(corpus.image_ids[row], corpus.splits[row], note)
        return Item(corpus.image_ids[row], "", own[0] if own else "", IMAGE, shown, words, measure)


def sound(corpus: Corpus) -> tuple[Corpus, Section | None]:
    """The images that can be read with their captions, and those that cannot."""
    if corpus.pictures is None:
        return corpus, None
    bad, _ = look(corpus.pictures)
    if not bad:
        return corpus, None
    whole = Exhibit(corpus, len(bad))
    finds = []
    for row, sentence in bad.items():
        own, name = whole.own(row), corpus.image_ids[row]
        item = Item(name, "", own[0] if own else "", IMAGE, PageItem(name), sentence)
        finds.append(Find((item,), own=own))
    left = torch.tensor([row for row in range(len(corpus)) if row not in bad], dtype=torch.long)
    note = "Pictures that are missing or damaged. Training on pictures needs all of them."
    return corpus.subset(left), Section(
        "unreadable", "Unreadable", note, len(bad), len(bad), tuple(finds)
    )


def alike(exhibit: Exhibit, least: float) -> list[Section]:
    """Images that look the same: those in several splits, and those in one.

    Raises:
        ValueError: `least` out of range, or so low that it tells little.
    """
    corpus = exhibit.corpus
    if corpus.pictures is None and corpus.features is None:
        return []
    near = near_pictures(corpus, least=least)
    found = groups(near, len(corpus))
    best = _best(near)
    found.sort(key=lambda rows: (-max(best[row] for row in rows), rows[0]))
    across = [rows for rows in found if len({corpus.splits[row] for row in rows}) > 1]
    within = [rows for rows in found if len({corpus.splits[row] for row in rows}) == 1]
    by = "features" if corpus.features is not None else "grey thumbnails"
    how = f"Cosine of their {by} of at least {least:g}."
    leaked = "Nearly the same picture in several splits: what is trained on is measured on too."
    twice = "Nearly the same picture more than once in a split."
    return [
        _same("leaked", "Leaked images", f"{leaked} {how}", across, best, exhibit),
        _same("repeated-images", "Near-duplicate images", f"{twice} {how}", within, best, exhibit),
    ]


def wordless(exhibit: Exhibit) -> Section | None:
    """Captions without a word; none of data whose captions are ready-made vectors."""
    corpus = exhibit.corpus
    if corpus.text_features is not None:
        return None
    owner = corpus.owner.tolist()
    rows = [n for n, text in enumerate(corpus.texts) if not text.strip() and owner[n] >= 0]
    finds = tuple(_beside(exhibit, row) for row in rows[: exhibit.top])
    note = "Captions without a word: write one or drop them."
    return Section("empty", "Empty captions", note, len(rows), len(finds), finds) if rows else None


def repeated(exhibit: Exhibit) -> Section | None:
    """Captions that say the same: twice of one image first, then the most frequent."""
    corpus = exhibit.corpus
    if corpus.text_features is not None:
        return None
    owner = corpus.owner.tolist()

    def twice(rows: list[int]) -> bool:
        return len({owner[row] for row in rows}) < len(rows)

    found = sorted(same_texts(corpus), key=lambda rows: (not twice(rows), -len(rows), rows[0]))
    finds = []
    for rows in found[: exhibit.top]:
        images = [owner[row] for row in rows]
        notes = ["twice of this image" if images.count(image) > 1 else "" for image in images]
        shown = zip(rows[:MANY], notes, strict=False)
        finds.append(Find(tuple(_pictured(exhibit, row, note) for row, note in shown)))
    note = (
        "Captions that say the same but for capitals, blanks and a last full stop. Of several "
        f"images they may all be right. Of one caption at most {MANY} are shown."
    )
    section = Section(
        "repeated-captions", "Repeated captions", note, len(found), len(finds), tuple(finds)
    )
    return section if found else None


def _best(near: Near) -> dict[int, float]:
    """The highest cosine of each row with any other."""
    best: dict[int, float] = {}
    for left, right, score in zip(near.left.tolist(), near.right.tolist(), near.score.tolist()):
        for row in (left, right):
            best[row] = max(best.get(row, 0.0), score)
    return best


def _same(
    kind: str,
    title: str,
    note: str,
    found: Sequence[list[int]],
    best: dict[int, float],
    exhibit: Exhibit,
) -> Section:
    finds = tuple(
        Find(
            tuple(exhibit.picture(row, f"cosine {best[row]:.3f}", best[row]) for row in rows[:MANY])
        )
        for rows in found[: exhibit.top]
    )
    return Section(kind, title, note, len(found), len(finds), finds)


def _beside(exhibit: Exhibit, row: int) -> Find:
    """A caption beside its image and the other captions."""
    image = int(exhibit.corpus.owner[row])
    return Find((exhibit.caption(row),), exhibit.image(image), exhibit.own(image, but=row))


def _pictured(exhibit: Exhibit, row: int, note: str) -> Item:
    """A caption under its image."""
    item, image = exhibit.caption(row, note), int(exhibit.corpus.owner[row])
    shown = PageItem(item.shown.text, exhibit.image(image).picture)
    words = _joined(exhibit.corpus.image_ids[image], exhibit.corpus.splits[image], note)
    return Item("", item.caption, item.was, item.acts, shown, words)


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
