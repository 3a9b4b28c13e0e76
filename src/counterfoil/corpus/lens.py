"""What one matcher sees of pictures and captions.

The student, every teacher and each member of an ensemble owns its lens: they may see the same
corpus as regions, pixels, words or wordpieces. A lens is fitted on the training split (vocabulary,
mean and deviation of features), saved with the model, and laid on any corpus.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from PIL import Image
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.moments import moments
from counterfoil.corpus.pixels import Array, kept, packed, pixels
from counterfoil.corpus.shaped import Shaped
from counterfoil.corpus.tokens import pack, tokenise
from counterfoil.corpus.words import Pieces, Tokenizer, Words, open_tokenizer
from counterfoil.files import read_json, write_json
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
    """

    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: bool = False
    divisor: int = 0
    width: int = 3

    def look(self, corpus: Corpus, rows: Tensor) -> Items:
        if corpus.pictures is None:
            raise ValueError(
                f"{corpus.name} has no pictures; this model reads pixels: give the image folder"
            )
        if self.divisor:
            form = Shaped(self.size, self.divisor)
            stored = kept(corpus.pictures, form)
            return self._shaped(rows, [form.opened(stored[row]) for row in rows.tolist()])
        stored = packed(corpus.pictures, self.size, crop=self.crop)
        return self._items(rows, torch.from_numpy(stored[rows.numpy()]))

    def see(self, pictures: Sequence[Image.Image]) -> Items:
        rows = torch.full((len(pictures),), -1)
        if self.divisor:
            form = Shaped(self.size, self.divisor)
            return self._shaped(rows, [form.seen(picture) for picture in pictures])
        square = [torch.from_numpy(pixels(p, self.size, crop=self.crop)) for p in pictures]
        return self._items(rows, torch.stack(square))

    def _shaped(self, rows: Tensor, pictures: Sequence[Array]) -> Items:
        values, mask = Shaped(self.size, self.divisor).gathered(pictures)
        return replace(self._items(rows, values), mask=mask)

    def _items(self, rows: Tensor, stored: Tensor) -> Items:
        mean, deviation = (torch.tensor(t).view(1, 3, 1, 1) for t in (self.mean, self.deviation))
        values = (stored.float() / 255 - mean) / deviation
        return Items(rows, values, torch.ones(len(rows), 1, dtype=torch.bool))


@final
@dataclass(frozen=True)
class Lens:
    """An eye and a tokenizer.

    Attributes:
        eye: how images become items.
        tokenizer: how texts become items; None where texts exist as vectors.
    """

    eye: Eye
    tokenizer: Tokenizer | None

    def on(self, corpus: Corpus) -> CorpusLens:
        """This lens laid on a corpus."""
        return CorpusLens(self, corpus)

    def see(self, pictures: Sequence[Image.Image]) -> Items:
        """Items of bare pictures."""
        return self.eye.see(pictures)

    def read(self, texts: Sequence[str]) -> Items:
        """Items of bare captions.

        Raises:
            ValueError: the model reads vectors, or a caption is empty.
        """
        if self.tokenizer is None:
            raise ValueError("this model compares ready-made vectors and cannot read a caption")
        if empty := [place for place, text in enumerate(texts) if not text.strip()]:
            raise ValueError(f"caption {empty[0]} of {len(texts)} is empty; give it words")
        tokens = pack(self.tokenizer.read(texts), self.tokenizer.pad)
        return tokens.items(torch.full((len(texts),), -1), torch.arange(len(texts)))

    def save(self, folder: Path) -> None:
        """Write what `Lens.open` reads: ``lens.json`` and the tokenizer's files."""
        kind = "features" if isinstance(self.eye, FeatureEye) else "pixels"
        assert isinstance(self.eye, FeatureEye | PixelEye)
        plain = {"images": kind, "eye": asdict(self.eye), "texts": self.tokenizer is not None}
        write_json(folder / "lens.json", plain)
        if self.tokenizer:
            self.tokenizer.save(folder)

    @staticmethod
    def open(folder: Path) -> Lens:
        """The lens saved in a folder.

        Raises:
            ValueError: there is none, or it was written by another version.
        """
        plain = read_json(folder / "lens.json", "a lens")
        try:
            eye: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in plain["eye"].items()
            }
            tokenizer = open_tokenizer(folder) if plain["texts"] else None
            if plain["images"] == "features":
                return Lens(FeatureEye(**eye), tokenizer)
            return Lens(PixelEye(**eye), tokenizer)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / 'lens.json'} is not a lens: {error!r}") from error


@final
class CorpusLens:
    """A lens laid on a corpus: items by row.

    Attributes:
        lens: the lens.
        corpus: the corpus.
    """

    def __init__(self, lens: Lens, corpus: Corpus) -> None:
        self.lens, self.corpus = lens, corpus
        self._tokens = tokenise(corpus.texts, lens.tokenizer) if lens.tokenizer else None

    def images(self, rows: Tensor) -> Items:
        """Items of these images."""
        return self.lens.eye.look(self.corpus, rows)

    def texts(self, rows: Tensor) -> Items:
        """Items of these texts."""
        if self._tokens is not None:
            return self._tokens.items(rows, rows)
        if self.corpus.text_features is None:
            raise ValueError(f"{self.corpus.name} has no text vectors and the model no tokenizer")
        return self.corpus.text_features.take(rows)

    def text_lengths(self) -> Tensor:
        """(T,) tokens of every text, for batching by length."""
        if self._tokens is None:
            return torch.ones(len(self.corpus.texts), dtype=torch.long)
        return self._tokens.lengths(torch.arange(len(self._tokens)))


@final
@dataclass(frozen=True, kw_only=True)
class LensPlan:
    """What a lens is to be, before the data are known.

    Attributes:
        images: stored features, or pixels.
        standardise: subtract the mean and divide by the deviation of the training features.
        size: side of a picture in pixels.
        mean: of each channel, for pixels.
        deviation: of each channel, for pixels.
        crop: cut the middle square out instead of squeezing the picture.
        divisor: where above 0 pictures keep their shape, see `PixelEye`.
        texts: "words", or the name or folder of a Hugging Face tokenizer, or "vectors".
        min_count: words seen less often in the training captions become ``<unk>``.
        longest: captions are cut to this many words or pieces.
    """

    images: Literal["features", "pixels"] = "features"
    standardise: bool = False
    size: int = 64
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: bool = False
    texts: str = "words"
    min_count: int = 1
    longest: int = 60
    divisor: int = field(default=0, metadata=LATER)

    def fit(self, train: Corpus) -> Lens:
        """The lens for a training corpus; the vocabulary comes from its captions alone.

        Raises:
            ValueError: the corpus is empty, or has no features where features are wanted.
        """
        if not len(train):
            raise ValueError(f"{train.name} has no image to fit a lens on")
        return Lens(self._eye(train), self._tokenizer(train))

    def _tokenizer(self, train: Corpus) -> Tokenizer | None:
        if self.texts == "vectors":
            return None
        if self.texts == "words":
            return Words.of(train.texts, min_count=self.min_count, longest=self.longest)
        return Pieces(self.texts, longest=self.longest)

    def _eye(self, train: Corpus) -> Eye:
        if self.images == "pixels":
            return PixelEye(self.size, self.mean, self.deviation, self.crop, self.divisor)
        if train.features is None:
            raise ValueError(
                f"{train.name} has no image features and this recipe reads features; make them "
                "with `counterfoil features`, or choose a recipe that reads pixels"
            )
        if not self.standardise:
            return FeatureEye(train.features.width)
        mean, deviation = moments(train.features)
        return FeatureEye(train.features.width, tuple(mean.tolist()), tuple(deviation.tolist()))
