"""What is exported: queries, each with what is true of it and what is hard to tell from that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.negatives.store import NegativeStore
from counterfoil.negatives.written_store import WrittenFoil, WrittenStore

Direction = Literal["image-to-text", "text-to-image"]
TO_TEXT: Direction = "image-to-text"
TO_IMAGE: Direction = "text-to-image"


@final
@dataclass(frozen=True, slots=True)
class Item:
    """An image or a caption.

    Attributes:
        id: the data set's name of it.
        value: the caption, or the path of the picture; the name where there is neither.
    """

    id: str
    value: str


@final
@dataclass(frozen=True, slots=True)
class Group:
    """A query and its counterparts.

    Attributes:
        query: what is asked.
        positives: what is true of it; at least one.
        negatives: what is not, hardest first.
        scores: of the negatives; () where none are known.
    """

    query: Item
    positives: tuple[Item, ...]
    negatives: tuple[Item, ...]
    scores: tuple[float, ...] = ()


class Negatives(ABC):
    """Queries of one or both directions.

    Attributes:
        directions: those there are.
        about: where they come from, in one sentence.
    """

    directions: tuple[Direction, ...]
    about: str

    @abstractmethod
    def groups(self, direction: Direction) -> Iterator[Group]:
        """Every query that something is true of, in corpus order."""

    @abstractmethod
    def documents(self, direction: Direction) -> Iterator[Item]:
        """Everything that may answer a query."""

    @abstractmethod
    def count(self, direction: Direction) -> int:
        """How many queries there are at most."""

    @abstractmethod
    def longest(self, direction: Direction) -> int:
        """How many negatives a query has at most."""


@final
class Mined(Negatives):
    """Mined lists, both ways.

    Args:
        corpus: what they were mined from.
        store: the lists.
        place: where the picture of an image's row is.
        most: negatives of a query, at most.
    """

    directions = (TO_TEXT, TO_IMAGE)

    def __init__(
        self, corpus: Corpus, store: NegativeStore, place: Callable[[int], str], most: int
    ) -> None:
        self._corpus, self._lists, self._place, self._most = corpus, store.lists, place, most
        models = " and ".join(source.matcher for source in store.manifest.sources)
        self.about = (
            f"Hard negatives of {corpus.name} ({store.manifest.split}), mined by counterfoil "
            f"{store.manifest.version} with {models or 'an unknown model'}."
        )

    def groups(self, direction: Direction) -> Iterator[Group]:
        to_text = direction == TO_TEXT
        true = self._true()
        lists, scores = (
            (self._lists.texts, self._lists.text_scores)
            if to_text
            else (self._lists.images, self._lists.image_scores)
        )
        for row, counterparts in enumerate(true if to_text else self._turned(true)):
            if not counterparts:
                continue
            known = () if scores is None else scores[row].tolist()
            yield self._group(row, counterparts, lists[row], known, to_text=to_text)

    def documents(self, direction: Direction) -> Iterator[Item]:
        to_text = direction == TO_TEXT
        rows = len(self._corpus.texts) if to_text else len(self._corpus)
        return map(self._text if to_text else self._image, range(rows))

    def count(self, direction: Direction) -> int:
        return len(self._corpus) if direction == TO_TEXT else len(self._corpus.texts)

    def longest(self, direction: Direction) -> int:
        lists = self._lists.texts if direction == TO_TEXT else self._lists.images
        return min(self._most, int((lists >= 0).sum(1).max())) if len(lists) else 0

    def _group(
        self,
        row: int,
        true: list[int],
        listed: Tensor,
        scores: tuple[float, ...] | list[float],
        *,
        to_text: bool,
    ) -> Group:
        asks, answers = (self._image, self._text) if to_text else (self._text, self._image)
        hard = [found for found in listed.tolist() if found >= 0][: self._most]
        return Group(
            asks(row),
            tuple(map(answers, true)),
            tuple(map(answers, hard)),
            tuple(scores[: len(hard)]),
        )

    def _true(self) -> list[list[int]]:
        """Texts of every image: its captions, then what somebody found true besides."""
        true: list[list[int]] = [[] for _ in range(len(self._corpus))]
        for text, image in enumerate(self._corpus.owner.tolist()):
            if image >= 0:
                true[image].append(text)
        if self._corpus.also is not None:
            also = self._corpus.also
            for image, text in zip(also.image.tolist(), also.text.tolist(), strict=True):
                if text not in true[image]:
                    true[image].append(text)
        return true

    def _turned(self, true: list[list[int]]) -> list[list[int]]:
        """Images of every text, its own first."""
        turned: list[list[int]] = [[] for _ in range(len(self._corpus.texts))]
        owner = self._corpus.owner.tolist()
        for image, texts in enumerate(true):
            for text in texts:
                place = 0 if owner[text] == image else len(turned[text])
                turned[text].insert(place, image)
        return turned

    def _image(self, row: int) -> Item:
        return Item(self._corpus.image_ids[row], self._place(row))

    def _text(self, row: int) -> Item:
        name = self._corpus.text_ids[row]
        return Item(name, self._corpus.texts[row] or name)


@final
class Written(Negatives):
    """Written captions: what is asked is an image with one of its captions, by that caption's name.

    Args:
        corpus: what they were written for.
        store: the captions.
        place: where the picture of an image's row is.
        most: negatives of a query, at most.

    Raises:
        ValueError: the store is damaged.
    """

    directions = (TO_TEXT,)

    def __init__(
        self, corpus: Corpus, store: WrittenStore, place: Callable[[int], str], most: int
    ) -> None:
        self._rows = {name: row for row, name in enumerate(corpus.image_ids)}
        self._place, self._most = place, most
        self._foils: dict[str, list[WrittenFoil]] = {}
        for foil in store.foils():
            if foil.image not in self._rows:
                raise ValueError(
                    f"{store.folder} has captions of {foil.image!r}, which is no image of "
                    f"{corpus.name}; write again"
                )
            self._foils.setdefault(foil.text, []).append(foil)
        self.about = (
            f"False captions of {corpus.name} ({store.manifest.split}), written by counterfoil "
            f"{store.manifest.version}: {store.manifest.writer}."
        )

    def groups(self, direction: Direction) -> Iterator[Group]:
        for text, foils in self._foils.items():
            first = foils[0]
            yield Group(
                Item(text, self._place(self._rows[first.image])),
                (Item(text, first.caption),),
                tuple(self._hard(text, foils)),
            )

    def documents(self, direction: Direction) -> Iterator[Item]:
        for text, foils in self._foils.items():
            yield Item(text, foils[0].caption)
            yield from self._hard(text, foils)

    def count(self, direction: Direction) -> int:
        return len(self._foils)

    def longest(self, direction: Direction) -> int:
        return min(self._most, max(map(len, self._foils.values()), default=0))

    def _hard(self, text: str, foils: list[WrittenFoil]) -> Iterator[Item]:
        for number, foil in enumerate(foils[: self._most], 1):
            yield Item(f"{text}#{number}", foil.foil)
