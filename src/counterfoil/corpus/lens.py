"""What one matcher sees of pictures and captions.

The student, every teacher and each member of an ensemble owns its lens: they may see the same
corpus as regions, pixels, words or wordpieces. A lens is fitted on the training split (vocabulary,
mean and deviation of features), saved with the model, and laid on any corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from PIL import Image
from torch import Tensor

from counterfoil.corpus.clip_words import KIND, PREFIX, clip_words, open_clip_words
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.eyes import LATER, Eye, FeatureEye, PixelEye
from counterfoil.corpus.moments import moments
from counterfoil.corpus.tokens import pack, tokenise
from counterfoil.corpus.words import Pieces, Tokenizer, Words, open_tokenizer
from counterfoil.files import read_json, write_json
from counterfoil.records import Items

__all__ = ["CorpusLens", "Eye", "FeatureEye", "Lens", "LensPlan", "PixelEye"]


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
            tokenizer = _opened(folder) if plain["texts"] else None
            if plain["images"] == "features":
                return Lens(FeatureEye(**eye), tokenizer)
            return Lens(PixelEye(**eye), tokenizer)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / 'lens.json'} is not a lens: {error!r}") from error


def _opened(folder: Path) -> Tokenizer:
    plain = read_json(folder / "tokenizer.json", "a tokenizer")
    kind = plain.get("kind") if isinstance(plain, dict) else None
    return open_clip_words(folder) if kind == KIND else open_tokenizer(folder)


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
        frame: how else pictures are prepared, see `PixelEye`.
        texts: "words", or the name or folder of a Hugging Face tokenizer, or "vectors", or
            "open_clip:" and the name of a model whose captions are read as open_clip does.
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
    frame: str = field(default="", metadata=LATER)

    def fit(self, train: Corpus) -> Lens:
        """The lens for a training corpus; the vocabulary comes from its captions alone.

        Raises:
            ValueError: the corpus is empty, or has no features where features are wanted.
        """
        if not len(train):
            raise ValueError(f"{train.name} has no image to fit a lens on")
        return Lens(self._eye(train), self._tokenizer(train))

    def made(self) -> Lens:
        """The lens where nothing depends on a corpus: pixels, and the tokenizer of a model."""
        assert self.images == "pixels"
        assert self.texts not in ("words", "vectors")
        return Lens(self._pixels, self._pieces)

    def _tokenizer(self, train: Corpus) -> Tokenizer | None:
        if self.texts == "vectors":
            return None
        if self.texts == "words":
            return Words.of(train.texts, min_count=self.min_count, longest=self.longest)
        return self._pieces

    @property
    def _pieces(self) -> Tokenizer:
        if self.texts.startswith(PREFIX):
            return clip_words(self.texts)
        return Pieces(self.texts, longest=self.longest)

    @property
    def _pixels(self) -> Eye:
        square = PixelEye(self.size, self.mean, self.deviation, self.crop, self.divisor)
        return replace(square, frame=self.frame)

    def _eye(self, train: Corpus) -> Eye:
        if self.images == "pixels":
            return self._pixels
        if train.features is None:
            raise ValueError(
                f"{train.name} has no image features and this recipe reads features; make them "
                "with `counterfoil features`, or choose a recipe that reads pixels"
            )
        if not self.standardise:
            return FeatureEye(train.features.width)
        mean, deviation = moments(train.features)
        return FeatureEye(train.features.width, tuple(mean.tolist()), tuple(deviation.tolist()))
