"""How images become items: stored features, or pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.framed import form_of
from counterfoil.corpus.pixels import Array, Form, kept
from counterfoil.corpus.shaped import Shaped
from counterfoil.records import Items

LATER = {"later": True}  # of a field that says nothing at its default, so older runs keep digests


class Eye(ABC):
    """How images become items.

    Attributes:
        width: numbers per token; channels where items are pixels.
    """

    width: int

    @abstractmethod
    def look(self, corpus: Corpus, rows: Tensor) -> Items:
        """Items of these images of a corpus."""

    @abstractmethod
    def see(self, pictures: Sequence[Image.Image]) -> Items:
        """Items of pictures that are in no corpus.

        Raises:
            ValueError: the model reads features, which a bare picture does not have.
        """


@final
@dataclass(frozen=True)
class FeatureEye(Eye):
    """Stored features, standardised where mean and deviation are given.

    Attributes:
        width: F.
        mean: F numbers, or () for none.
        deviation: F numbers, or () for none.
    """

    width: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def look(self, corpus: Corpus, rows: Tensor) -> Items:
        if corpus.features is None:
            raise ValueError(
                f"{corpus.name} has no image features; this model reads features of width "
                f"{self.width}: make them with `counterfoil features`"
            )
        if corpus.features.width != self.width:
            raise ValueError(
                f"{corpus.features.where} are {corpus.features.width} wide; this model reads "
                f"features of width {self.width}"
            )
        items = corpus.features.take(rows)
        if not self.mean:
            return items
        values = (items.values - torch.tensor(self.mean)) / torch.tensor(self.deviation)
        return Items(items.ids, values, items.mask, items.boxes)

    def see(self, pictures: Sequence[Image.Image]) -> Items:
        raise ValueError(
            "this model reads stored features and cannot look at a bare picture; extract its "
            "features with `counterfoil features` first"
        )


@final
@dataclass(frozen=True)
class PixelEye(Eye):
    """Pictures of one size, as normalised pixels.

    Attributes:
        size: side in pixels; the shortest one where pictures keep their shape.
        mean: of each channel, in 0..1.
        deviation: of each channel, in 0..1.
        crop: cut the middle square out instead of squeezing the picture.
        divisor: where above 0 pictures keep their shape and their sides are multiples of it, see
            `Shaped`; the mask then tells which squares of so many pixels are of the picture.
        frame: fit and filter of `Framed`, as in "shortest bilinear", where the model was trained on
            pictures that were prepared so; "" for the above.
    """

    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: bool = False
    divisor: int = 0
    width: int = 3
    frame: str = field(default="", metadata=LATER)

    def look(self, corpus: Corpus, rows: Tensor) -> Items:
        if corpus.pictures is None:
            raise ValueError(
                f"{corpus.name} has no pictures; this model reads pixels: give the image folder"
            )
        form = self._form
        stored = kept(corpus.pictures, form)
        if isinstance(form, Shaped):
            return self._shaped(rows, [form.opened(stored[row]) for row in rows.tolist()])
        return self._items(rows, torch.from_numpy(stored[rows.numpy()]))

    def see(self, pictures: Sequence[Image.Image]) -> Items:
        rows, form = torch.full((len(pictures),), -1), self._form
        if isinstance(form, Shaped):
            return self._shaped(rows, [form.seen(picture) for picture in pictures])
        return self._items(rows, torch.from_numpy(np.stack([form.drawn(p) for p in pictures])))

    @property
    def _form(self) -> Form:
        return form_of(self.size, crop=self.crop, divisor=self.divisor, frame=self.frame)

    def _shaped(self, rows: Tensor, pictures: Sequence[Array]) -> Items:
        values, mask = Shaped(self.size, self.divisor).gathered(pictures)
        return replace(self._items(rows, values), mask=mask)

    def _items(self, rows: Tensor, stored: Tensor) -> Items:
        mean, deviation = (torch.tensor(t).view(1, 3, 1, 1) for t in (self.mean, self.deviation))
        values = (stored.float() / 255 - mean) / deviation
        return Items(rows, values, torch.ones(len(rows), 1, dtype=torch.bool))
