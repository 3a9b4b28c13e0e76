"""A data set: images, texts, who describes whom, and where pixels and features are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.pictures import Pictures
from counterfoil.corpus.regions import Features
from counterfoil.corpus.relation import Relation
from counterfoil.corpus.splits import existing
from counterfoil.records import Pairs


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """Images and captions related by id, any number of captions per image.

    A *row* is a place in `image_ids` or `text_ids`. A corpus holds every split; `split` gives one
    of them, with rows of its own.

    Attributes:
        name: what the data are called in tables, as in "flickr8k".
        image_ids: (I,) the data set's own names of the images.
        text_ids: (T,) the data set's own names of the texts.
        texts: (T,) raw captions; empty strings where texts exist as vectors only.
        owner: (T,) long, image row of each text; -1 for a text that describes none.
        splits: (I,) split of each image, as in "train".
        pictures: pixels of the images, where there are any.
        features: region, grid or global features of the images, where there are any.
        text_features: vectors of the texts, where they come ready-made.
        part: the split this corpus was cut to, or "all".
        also: rows of pairs that somebody found true besides the texts' own: never to be mined, and
            right answers when models are measured.
        decided: description of applied corrections, see `counterfoil.data.corrections`.
    """

    name: str
    image_ids: Sequence[str]
    text_ids: Sequence[str]
    texts: Sequence[str]
    owner: Tensor
    splits: Sequence[str]
    pictures: Pictures | None = None
    features: Features | None = None
    text_features: Features | None = None
    part: str = "all"
    also: Pairs | None = None
    decided: str = ""

    def __post_init__(self) -> None:
        for what, given, wanted in (
            ("splits", self.splits, self.image_ids),
            ("texts", self.texts, self.text_ids),
            ("owners", self.owner, self.text_ids),
            ("pictures", self.pictures, self.image_ids),
            ("features", self.features, self.image_ids),
            ("text features", self.text_features, self.text_ids),
        ):
            if given is not None and len(given) != len(wanted):
                of = "images" if wanted is self.image_ids else "texts"
                raise ValueError(
                    f"{self.name}: {len(given)} {what} were given for {len(wanted)} {of}"
                )
        Relation(self.owner, images=len(self.image_ids))

    def __len__(self) -> int:
        return len(self.image_ids)

    @cached_property
    def relation(self) -> Relation:
        """Who describes whom."""
        return Relation(self.owner, images=len(self.image_ids), besides=self.also)

    @cached_property
    def split_names(self) -> tuple[str, ...]:
        """The splits there are, in order of first appearance."""
        return tuple(dict.fromkeys(self.splits))

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits of everything that row numbers depend on."""
        digest = hashlib.sha256()
        for strings in (self.image_ids, self.text_ids, self.texts):
            digest.update("\x00".join(strings).encode())
            digest.update(b"\x01")
        digest.update(self.owner.numpy().tobytes())
        if self.also is not None:
            digest.update(self.also.image.numpy().tobytes() + self.also.text.numpy().tobytes())
        return digest.hexdigest()[:16]

    def split(self, *names: str) -> Corpus:
        """The images of these splits and their texts, renumbered from 0.

        "val" and "validation" mean "dev", and "testall" means "test". Texts that describe no image
        are left out.

        Raises:
            ValueError: there is no such split.
        """
        meant = [existing(name, self.split_names, self.name) for name in names]
        wanted = torch.tensor([split in meant for split in self.splits], dtype=torch.bool)
        return replace(self.subset(wanted.nonzero().squeeze(1)), part="+".join(meant))

    def subset(self, images: Tensor) -> Corpus:
        """These images in this order, and their texts in corpus order of the images."""
        texts, counts = self.relation.captions(images)
        return self.cut(images, texts, torch.arange(len(images)).repeat_interleave(counts))

    def cut(self, images: Tensor, texts: Tensor, owner: Tensor) -> Corpus:
        """These images and these texts, each in this order.

        Args:
            images: rows.
            texts: rows.
            owner: of each of these texts, by the new rows of the images; -1 for none.
        """
        rows, columns = images.tolist(), texts.tolist()
        return replace(
            self,
            image_ids=[self.image_ids[row] for row in rows],
            text_ids=[self.text_ids[row] for row in columns],
            texts=[self.texts[row] for row in columns],
            owner=owner,
            splits=[self.splits[row] for row in rows],
            pictures=None if self.pictures is None else self.pictures.subset(images),
            features=None if self.features is None else self.features.subset(images),
            text_features=None if self.text_features is None else self.text_features.subset(texts),
            also=None if self.also is None else self._still_true(self.also, images, texts),
        )

    def _still_true(self, also: Pairs, images: Tensor, texts: Tensor) -> Pairs | None:
        """The pairs of which both are left, by their new rows."""
        image, text = torch.full((len(self),), -1), torch.full((len(self.texts),), -1)
        image[images], text[texts] = torch.arange(len(images)), torch.arange(len(texts))
        left = Pairs(image[also.image], text[also.text])
        both = (left.image >= 0) & (left.text >= 0)
        return Pairs(left.image[both], left.text[both]) if bool(both.any()) else None
