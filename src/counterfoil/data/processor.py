"""Processors: an image transform and a tokenizer, which turn images and captions into model inputs.

Every model owns its processor, also a teacher and a member of an ensemble: each may read the same
data set as regions, pixels, words or word pieces. A processor is fitted on the training split
(vocabulary, mean and deviation of features), saved with the model, and applied to any data set.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.core.artifact import validated
from counterfoil.core.console import detail, info, warn
from counterfoil.core.io import read_json, write_json
from counterfoil.core.rgb import rgb
from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import feature_mean_std
from counterfoil.data.images import (
    WHOLE,
    Array,
    Box,
    ImageTransform,
    Pictures,
    ResizeCrop,
    ResizeKeepAspect,
    cached_pixels,
    pixels_once,
)
from counterfoil.data.tokenizers import (
    MANY_UNKNOWN,
    OPEN_CLIP_PREFIX,
    SUBWORDS,
    CharacterTokenizer,
    TokenArray,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    load_open_clip_tokenizer,
    open_tokenizer,
    split_words,
    tokenize,
    without_blanks,
)

PROCESSOR_FILE = "processor.json"
OWN = "own"  # images and texts by functions of the user
INTO = (
    "build the model as it was built for training and open the folder into it, "
    "cf.load_model(FOLDER, into=cf.Model(module, preprocess=…, tokenize=…))"
)
CLIP_LENGTH = 77  # tokens of a text
MANY = 0.01  # share of truncated captions that is worth a warning
_SAID: set[str] = set()  # notes on captions: one data set is read many times
_UNKNOWN_CAPTIONS = "captions of unknown words"

LARGEST_SIDE = 16_384  # pixels of an image as a model reads it


class ImageProcessor(ABC):
    """Converts images to model inputs.

    Attributes:
        width: feature width; channels if the inputs are pixels.
    """

    width: int

    @property
    def transform(self) -> ImageTransform | None:
        """All that `from_images` reads of a picture; None if that is not known."""
        return None

    @property
    def reads_pixels(self) -> bool:
        """True if inputs are made of pictures."""
        return False

    @property
    def reads_features(self) -> bool:
        """True if inputs are stored features."""
        return False

    @property
    def title(self) -> str:
        """What it reads, in words."""
        return type(self).__name__

    def seen(self, width: int, height: int) -> Box | None:
        """Place of the input in a picture of this width and height; None if it is not known."""
        return None

    @abstractmethod
    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        """Inputs of some images of a data set."""

    def from_dataset_once(
        self, dataset: ImageTextDataset, rows: Tensor, workers: int
    ) -> ModalityBatch:
        """`from_dataset` of images that are read once, by so many threads beside this one."""
        return self.from_dataset(dataset, rows)

    @abstractmethod
    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        """Inputs of images that are in no data set."""


def _check_scaling(
    mean: tuple[float, ...], deviation: tuple[float, ...], lengths: tuple[int, ...]
) -> None:
    if len(mean) != len(deviation) or len(mean) not in lengths:
        raise ValueError(
            f"a mean of {len(mean)} and a deviation of {len(deviation)} numbers were given; "
            f"{lengths[-1]} are needed"
        )
    if not all(map(math.isfinite, (*mean, *deviation))) or min(deviation, default=1) <= 0:
        raise ValueError("a mean or deviation is not finite, or a deviation is not above 0")


@final
@dataclass(frozen=True)
class FeatureProcessor(ImageProcessor):
    """Stored features, standardised if mean and deviation are given."""

    width: int  # F
    mean: tuple[float, ...] = ()  # F numbers, or () for none
    deviation: tuple[float, ...] = ()  # F numbers, or () for none

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"features of width {self.width} were named; at least 1 is needed")
        _check_scaling(self.mean, self.deviation, (0, self.width))

    @property
    def reads_features(self) -> bool:
        return True

    @property
    def title(self) -> str:
        return f"image features of width {self.width}"

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        if dataset.features is None:
            raise ValueError(
                f"{dataset.name} has no image features; this model reads features of width "
                f"{self.width}: make them with `counterfoil features`"
            )
        if dataset.features.width != self.width:
            raise ValueError(
                f"{dataset.features.where} are {dataset.features.width} wide; this model reads "
                f"features of width {self.width}"
            )
        items = dataset.features.take(rows)
        if not self.mean:
            return items
        values = (items.values - torch.tensor(self.mean)) / torch.tensor(self.deviation)
        return ModalityBatch(items.ids, values, items.mask, items.boxes)

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        raise ValueError(
            "this model reads stored features, not pictures; extract features with "
            "`counterfoil features` first"
        )


@final
@dataclass(frozen=True)
class PixelProcessor(ImageProcessor):
    """Pixels, resized and normalised.

    Attributes:
        size: side in pixels; the shortest side if `divisor` is set.
        mean: of each channel, in 0..1.
        deviation: of each channel, in 0..1.
        crop: center crop instead of squeezing to a square.
        divisor: if above 0, keep the aspect ratio with sides that are multiples of it, see
            `ResizeKeepAspect`; the mask then marks the patches of so many pixels that are real.
        frame: `ResizeCrop.name`, as "shortest bilinear"; "" for cubic, cropped before it is resized
            or squeezed.
        whole: (N, 3, size, size) bytes with the whole picture at the top left, whose corner the
            box gives, for models that prepare pictures themselves. A picture whose longest side
            exceeds `size` is made smaller; nothing is cached.
    """

    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: bool = False
    divisor: int = 0
    width: int = 3
    frame: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.size <= LARGEST_SIDE or self.width != 3:
            raise ValueError(
                f"pixels of side {self.size} and {self.width} channels were named; 1 to "
                f"{LARGEST_SIDE:,} and 3 are read"
            )
        _check_scaling(self.mean, self.deviation, (3,))

    @property
    def reads_pixels(self) -> bool:
        return True

    @property
    def title(self) -> str:
        if self.whole:
            return f"whole pictures of up to {self.size} px"
        return f"pictures at {self.size} px"

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        return self._read(dataset, rows, cached_pixels)

    def from_dataset_once(
        self, dataset: ImageTextDataset, rows: Tensor, workers: int
    ) -> ModalityBatch:
        return self._read(dataset, rows, partial(pixels_once, workers=workers))

    def _read(
        self,
        dataset: ImageTextDataset,
        rows: Tensor,
        pixels: Callable[[Pictures, ImageTransform, Sequence[int]], Array],
    ) -> ModalityBatch:
        if dataset.pictures is None:
            raise ValueError(
                f"{dataset.name} has no pictures; this model reads pixels: give the image folder"
            )
        transform = self.transform
        if transform is None:
            return self._whole(rows, [dataset.pictures.open(row) for row in rows.tolist()])
        stored: Any = pixels(dataset.pictures, transform, rows.tolist())
        if isinstance(transform, ResizeKeepAspect):
            stored = [transform.unpack(row) for row in stored]
        return self._items(rows, stored)

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        transform, rows = self.transform, torch.full((len(pictures),), -1)
        if transform is None:
            return self._whole(rows, pictures)
        return self._items(rows, [transform.resize(picture) for picture in pictures])

    @property
    def transform(self) -> ImageTransform | None:
        if self.whole:
            return None
        if self.divisor:
            return ResizeKeepAspect(self.size, self.divisor)
        if self.frame:
            return ResizeCrop.named(self.size, self.frame)
        return ResizeCrop(self.size, "center" if self.crop else "squash")

    def seen(self, width: int, height: int) -> Box:
        transform = self.transform
        return WHOLE if transform is None else transform.seen(width, height)

    def _whole(self, rows: Tensor, pictures: Sequence[Image.Image]) -> ModalityBatch:
        canvas = np.zeros((len(pictures), self.size, self.size, 3), np.uint8)
        boxes = torch.zeros(len(pictures), 1, 4)
        for place, given in enumerate(pictures):
            picture = rgb(given)
            if max(picture.size) > self.size:
                scale = self.size / max(picture.size)
                wide, high = (max(1, round(scale * side)) for side in picture.size)
                picture = picture.resize((wide, high), Image.Resampling.BICUBIC)
            canvas[place, : picture.height, : picture.width] = np.asarray(picture)
            boxes[place, 0, 2:] = torch.tensor(picture.size) / self.size
        pixels = torch.from_numpy(canvas).permute(0, 3, 1, 2)
        return ModalityBatch(rows, pixels, torch.ones(len(rows), 1, dtype=torch.bool), boxes)

    def _items(self, rows: Tensor, pictures: Sequence[Array]) -> ModalityBatch:
        transform = self.transform
        if isinstance(transform, ResizeKeepAspect):
            stacked, mask = transform.pad(pictures)
        else:
            stacked = torch.from_numpy(np.asarray(pictures))
            mask = torch.ones(len(rows), 1, dtype=torch.bool)
        mean, deviation = (torch.tensor(t).view(1, 3, 1, 1) for t in (self.mean, self.deviation))
        return ModalityBatch(rows, (stacked.float() / 255 - mean) / deviation, mask)


@final
@dataclass(frozen=True)
class Processor:
    """Converts images and texts to model inputs."""

    image_processor: ImageProcessor  # for images
    tokenizer: Tokenizer | None  # for texts; None if texts exist as vectors
    named: str | None = None  # of functions of the user: what they are called, "" for no name

    def process(self, dataset: ImageTextDataset) -> ProcessedDataset:
        """Apply the processor to a data set."""
        return ProcessedDataset(self, dataset)

    def process_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        """Inputs of images that are in no data set."""
        return self.image_processor.from_images(pictures)

    def process_texts(self, texts: Sequence[str]) -> ModalityBatch:
        """Inputs of captions that are in no data set.

        Raises:
            ValueError: the model reads vectors, or a caption is empty.
        """
        inputs = self.process_variants(texts)
        self.warn_of_captions(texts)
        return inputs

    def process_variants(self, texts: Sequence[str]) -> ModalityBatch:
        """As `process_texts`, without a warning: for captions that nobody wrote.

        Raises:
            ValueError: the model reads vectors, or a caption is empty.
        """
        if self.tokenizer is None:
            raise ValueError("this model compares ready-made vectors and cannot read a caption")
        if empty := [number for number, text in enumerate(texts) if not text.strip()]:
            raise ValueError(f"caption {empty[0]} of {len(texts)} is empty; give it words")
        tokens = tokenize(texts, self.tokenizer)
        return tokens.items(torch.full((len(texts),), -1), torch.arange(len(texts)))

    def warn_of_captions(self, texts: Sequence[str]) -> None:
        """Warn, once in a process, of captions of which no word is known: all score alike."""
        if self.tokenizer is None or self.tokenizer.unknown is None:
            return
        nothing = sum(bool(self.unknown_note(text)) for text in texts)
        if nothing and _UNKNOWN_CAPTIONS not in _SAID:
            _SAID.add(_UNKNOWN_CAPTIONS)
            warn(
                f"the model knows no word of {nothing:,} of {len(texts):,} captions "
                f"({100 * nothing / len(texts):.1f} %), so that these all score alike"
            )

    def warn_of_caption(self, text: str) -> None:
        """Warn of the words of one caption that are not in the vocabulary, each time."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.unknown is None:
            return
        _SAID.add(_UNKNOWN_CAPTIONS)  # said here
        if self.unknown_note(text):
            advice = SUBWORDS if without_blanks([text]) else "use other words"
            warn(
                "the model knows no word of the caption, so that its score is arbitrary; " + advice
            )
            return
        if note := self._unknown_words_note(text):
            warn(note)

    def _unknown_words_note(self, text: str) -> str:
        """A sentence on the words of a text that are not in the vocabulary; "" for none."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.unknown is None:
            return ""
        words = dict.fromkeys(word for word in split_words(text) if any(map(str.isalnum, word)))
        unknown = ", ".join(word for word in words if tokenizer.count_unknown([word])[0])
        return f"the model does not know {unknown}, and reads all such words as one" * bool(unknown)

    def unknown_note(self, text: str) -> str:
        """A sentence on a query of which no word is in the vocabulary; "" for any other."""
        unknown, words = self.tokenizer.count_unknown([text]) if self.tokenizer else (0, 0)
        if not 0 < words == unknown:
            return ""
        note = f"the model knows no word of {text!r}, so that its results are arbitrary"
        return f"{note}; {SUBWORDS if without_blanks([text]) else 'use other words'}"

    def query_note(self, text: str) -> str:
        """A sentence on a query with unknown words, or one that is cut; "" for any other."""
        if self.tokenizer is None:
            return ""
        if note := self.unknown_note(text) or self._unknown_words_note(text):
            return note
        read = self.tokenizer.read([text])
        if not read.truncated:
            return ""
        return (
            f"the query is longer than the {len(read.ids[0])} tokens that the model reads, so that "
            "its end counts for nothing; say it in fewer words"
        )

    def warn_of_query(self, text: str) -> None:
        """Warn of a query with unknown words, or one that is cut, each time."""
        if note := self.query_note(text):
            _SAID.add(_UNKNOWN_CAPTIONS)  # said here
            warn(note)

    def save(self, folder: Path) -> None:
        """Write ``processor.json`` and the files of the tokenizer.

        Functions of the user are not saved, see `counterfoil.data.own`.
        """
        if self.named is not None:
            write_json(folder / PROCESSOR_FILE, {"images": OWN, "name": self.named})
            return
        kind = "features" if isinstance(self.image_processor, FeatureProcessor) else "pixels"
        assert isinstance(self.image_processor, FeatureProcessor | PixelProcessor)
        plain = {
            "images": kind,
            "image_processor": asdict(self.image_processor),
            "texts": self.tokenizer is not None,
        }
        write_json(folder / PROCESSOR_FILE, plain)
        if self.tokenizer:
            self.tokenizer.save(folder)

    @staticmethod
    def saved_name(folder: Path) -> str:
        """Name of the functions that a folder was saved with; "" for none."""
        match read_json(folder / PROCESSOR_FILE, "a processor"):
            case {"images": "own", "name": str(name)}:
                return name
        return ""

    @staticmethod
    def open(folder: Path) -> Processor:
        """Load the processor that was saved in a folder.

        Raises:
            ValueError: there is none, or it was written by another version.
        """
        path = folder / PROCESSOR_FILE
        match read_json(path, "a processor"):
            case {"images": "own"}:
                raise ValueError(
                    f"{folder} was saved with functions of its author, preprocess= and tokenize=, "
                    f"which no folder holds; {INTO}"
                )
            case {
                "images": "features" | "pixels" as kind,
                "image_processor": settings,
                "texts": bool(texts),
            }:
                image_processor: ImageProcessor = validated(
                    FeatureProcessor if kind == "features" else PixelProcessor,
                    settings,
                    path,
                    "save the model again",
                    strict=True,
                )
                return Processor(image_processor, open_tokenizer(folder) if texts else None)
        raise ValueError(
            f"{path} is not a processor: it needs images (features or pixels), image_processor and "
            "texts"
        )


@final
class ProcessedDataset:
    """A data set with a processor: model inputs by row. Texts are tokenized once.

    Attributes:
        processor: the processor.
        dataset: the data set.
        original: where the inputs are vectors that a frozen model made, the inputs of that model;
            else this.
    """

    def __init__(
        self,
        processor: Processor,
        dataset: ImageTextDataset,
        original: ProcessedDataset | None = None,
    ) -> None:
        self.processor, self.dataset = processor, dataset
        self.original = original or self
        tokenizer = processor.tokenizer
        self._tokens = tokenize(dataset.texts, tokenizer) if tokenizer else None
        if self._tokens is not None and self._tokens.truncated:
            _say_truncated(dataset, self._tokens)
        if tokenizer and self._tokens is not None and self._tokens.holds(tokenizer.unknown):
            measured = dataset.split_name in ("dev", "val", "validation", "test")
            say_unknown(dataset, tokenizer, least=0.0 if measured else MANY_UNKNOWN)

    def images(self, rows: Tensor) -> ModalityBatch:
        """Inputs of some images."""
        return self.processor.image_processor.from_dataset(self.dataset, rows)

    def images_once(self, rows: Tensor, workers: int = 0) -> ModalityBatch:
        """`images` for a single pass, which fills no cache of pixels.

        `workers` is the number of threads that decode pictures, 0 for none but this one.
        """
        return self.processor.image_processor.from_dataset_once(self.dataset, rows, workers)

    def texts(self, rows: Tensor) -> ModalityBatch:
        """Inputs of some texts."""
        if self._tokens is not None:
            items, pairs = self._tokens.items(rows, rows), self.dataset.dependencies
            return items if pairs is None else replace(items, dependencies=pairs[rows].long())
        if self.dataset.text_features is None:
            raise ValueError(f"{self.dataset.name} has no text vectors and the model no tokenizer")
        return self.dataset.text_features.take(rows)


def say_unknown(dataset: ImageTextDataset, tokenizer: Tokenizer, *, least: float = 0.0) -> None:
    """Say once which share of a data set's words a tokenizer does not know, from a share on."""
    unknown, words = tokenizer.count_unknown(dataset.texts)
    share = unknown / max(1, words)
    if not words or share < least:
        return
    note = (
        f"{100 * share:.1f} % of the words of {dataset.name} ({dataset.split_name}) are not among "
        f"the {tokenizer.size:,} that the model knows"
    )
    if share >= MANY_UNKNOWN:
        note += "; it reads them all as one word, so captions that consist of them score alike"
        if without_blanks(dataset.texts) > len(dataset.texts) / 2:
            note += f". They have no blanks, so a whole caption is one word: {SUBWORDS}"
    if note not in _SAID:
        _SAID.add(note)
        (warn if share >= MANY_UNKNOWN else info if share >= 0.0005 else detail)(note)


def _say_truncated(dataset: ImageTextDataset, tokens: TokenArray) -> None:
    """Say once how many captions of a data set are longer than a model reads."""
    share = tokens.truncated / len(tokens)
    limit = int(tokens.lengths(torch.arange(len(tokens))).max())
    note = (
        f"{tokens.truncated:,} of {len(tokens):,} captions ({100 * share:.1f} %) of {dataset.name} "
        f"({dataset.split_name}) are longer than the {limit} tokens that the model reads, and are "
        "cut there"
    )
    if limit == CLIP_LENGTH:
        note += "; `counterfoil train --long-captions` gives a CLIP more positions"
    if note not in _SAID:
        _SAID.add(note)
        (warn if share >= MANY else info)(note)


ImageForm = Literal["features", "pixels"]  # input of image encoders


@final
@dataclass(frozen=True, kw_only=True)
class ProcessorConfig:
    """Settings of a processor; `fit` makes one for a training split.

    Attributes:
        images: stored features, or pixels.
        standardise: subtract the mean and divide by the deviation of the training features.
        size: side of an image in pixels.
        mean: of each channel, for pixels.
        deviation: of each channel, for pixels.
        crop: center crop instead of squeezing to a square.
        texts: "words"; the name or folder of a Hugging Face tokenizer; "open_clip:" and the name of
            an open_clip model; "characters"; or "vectors" for precomputed ones.
        min_count: words that occur less often in the training captions become ``<unk>``.
        longest: captions are truncated to this many words or pieces.
        divisor: see `PixelProcessor`.
        frame: see `PixelProcessor`.
        siglip2: see `WordPieceTokenizer`.
        whole: see `PixelProcessor`.
    """

    images: ImageForm = "features"
    standardise: bool = False
    size: int = 64
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: bool = False
    texts: str = "words"
    min_count: int = 1
    longest: int = 60
    divisor: int = 0
    frame: str = ""
    siglip2: bool = False
    whole: bool = False

    def fit(self, train: ImageTextDataset) -> Processor:
        """The processor for a training data set; the vocabulary comes from its captions alone.

        Raises:
            ValueError: the data set is empty, or lacks the features that are read.
        """
        if not len(train):
            raise ValueError(f"{train.name} has no image to fit a processor on")
        return Processor(self._image_processor(train), self._tokenizer(train.texts))

    def made(self) -> Processor:
        """The processor of settings that need no data: pixels and a pretrained tokenizer."""
        assert self.images == "pixels"
        assert self.texts not in ("words", "vectors")
        return Processor(self._pixels(), self._tokenizer([]))

    def _tokenizer(self, captions: Sequence[str]) -> Tokenizer | None:
        if self.texts == "vectors":
            return None
        if self.texts == "words":
            return WordTokenizer.of(captions, min_count=self.min_count, longest=self.longest)
        if self.texts == "characters":
            return CharacterTokenizer()
        if self.texts.startswith(OPEN_CLIP_PREFIX):
            return load_open_clip_tokenizer(self.texts, longest=self.longest)
        return WordPieceTokenizer(self.texts, longest=self.longest, siglip2=self.siglip2)

    def _pixels(self) -> ImageProcessor:
        return PixelProcessor(
            self.size,
            self.mean,
            self.deviation,
            self.crop,
            self.divisor,
            frame=self.frame,
            whole=self.whole,
        )

    def _image_processor(self, train: ImageTextDataset) -> ImageProcessor:
        if self.images == "pixels":
            return self._pixels()
        if train.features is None:
            raise ValueError(
                f"{train.name} has no image features and this recipe reads features; make them "
                "with `counterfoil features`, or choose a recipe that reads pixels"
            )
        if not self.standardise:
            return FeatureProcessor(train.features.width)
        scaling = (tuple(values.tolist()) for values in feature_mean_std(train.features))
        return FeatureProcessor(train.features.width, *scaling)


def same_processors(
    one: Processor | ProcessorConfig, other: Processor | ProcessorConfig, train: ImageTextDataset
) -> bool:
    """True if two processors, or what their settings make of a training split, are the same."""
    if isinstance(one, ProcessorConfig) and isinstance(other, ProcessorConfig):
        return one == other
    one, other = (p if isinstance(p, Processor) else p.fit(train) for p in (one, other))
    return (one.image_processor, one.tokenizer and one.tokenizer.digest) == (
        other.image_processor,
        other.tokenizer and other.tokenizer.digest,
    )
