"""Where in the picture: of each word of a caption a map over the regions or patches of an image.

The numbers are those that the score of a model pools. A model of late interaction (MaxSim: FILIP,
ColPali and other multi-vector models) takes of each word the best inner product, so its maps are
similarities; one with cross attention (SCAN, BFAN) the vector that a word attends to, so its maps
are weights of attention, as the similarities alone do not show what was pooled. Neither proves that
the word was found there: a map has a highest place whatever the picture shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import Box
from counterfoil.data.tokenizers import word_spans
from counterfoil.evaluation.read_image import ReadImage, read_image
from counterfoil.evaluation.word_heads import is_word
from counterfoil.models.base import TokenizesCaptions, WordRegionModel
from counterfoil.scoring.encode import evaluation_mode

if TYPE_CHECKING:
    from counterfoil.model import ImageInput, Model

HAVE_MAPS = (
    "models of late interaction (FILIP, and multi-vector models of sentence-transformers such as "
    "ColPali) and of cross attention (SCAN, BFAN, CHAN) have maps"
)
CAPTIONS_AT_ONCE = 64  # each beside a copy of the image
_NEAR = 0.01  # of a side, within which boxes lie on a lattice: they may be stored in half precision


@final
@dataclass(frozen=True, slots=True, repr=False)
class WordMap:
    """A word of a caption, with a number for each region or patch.

    Attributes:
        text: the word as it is written.
        start: its first character in the caption.
        stop: the character after its last.
        values: R numbers, the mean of those of its tokens.
    """

    text: str
    start: int
    stop: int
    values: tuple[float, ...]

    @property
    def best(self) -> int:
        """The region or patch of the highest number, from 0; the first of equal ones."""
        return max(range(len(self.values)), key=self.values.__getitem__)


@final
@dataclass(frozen=True, slots=True, repr=False)
class SimilarityMaps:
    """The words of a caption, each with a map over the R regions or patches of an image.

    Attributes:
        shows: "similarity": inner products, of which the score takes the best; "attention": weights
            that sum to 1 over the regions, or over the words where regions attend to words.
        words: from left to right, without punctuation and words that the model does not read.
        boxes: R places, x1, y1, x2, y2 as fractions of the upright picture, from its top left; None
            where they are not known. Of the padding beside a picture they are empty.
        grid: rows and columns where the regions are patches, row by row; else None.
    """

    shows: Literal["similarity", "attention"]
    words: tuple[WordMap, ...]
    boxes: tuple[Box, ...] | None = None
    grid: tuple[int, int] | None = None

    def array(self) -> NDArray[np.float32]:
        """(M, R) numbers of M words and R regions, or (M, rows, columns) of patches."""
        values = np.array([word.values for word in self.words], np.float32)
        return values if self.grid is None else values.reshape(len(self.words), *self.grid)

    def place(self, word: WordMap) -> str:
        """The best place of a word in short, as "top left, row 1, column 2" or "region 4".

        Where all are equal it is "everywhere alike".
        """
        if not word.values:
            return ""
        if len(word.values) > 1 and len(set(word.values)) == 1:
            return "everywhere alike"
        number, where = word.best, f"region {word.best + 1}"
        if self.grid is not None:
            row, column = divmod(number, self.grid[1])
            where = f"row {row + 1}, column {column + 1}"
        return where if self.boxes is None else f"{part_of_picture(self.boxes[number])}, {where}"

    @property
    def note(self) -> str:
        """What the maps show, and how far that goes, for readers."""
        shown = {
            "similarity": "similarity of words and places, of which the score takes the best",
            "attention": "attention, the weights of words and places that the score pools by",
        }[self.shows]
        note = f"The maps show {shown}. A highest place is no proof that the word is seen there."
        if self.boxes is None:
            note += " Where these lie in the picture is not known: "
            note += (
                "the data have no boxes as fractions of it."
                if self.grid is None
                else "nothing says how it is cut before the model reads it."
            )
        return note

    def __repr__(self) -> str:
        lines = [f"{self.shows} of {len(self.words)} words"]
        for word in self.words:
            value = f" {word.values[word.best]:.3f}" if word.values else ""
            lines.append(f"{word.text!r}{value}: {self.place(word)}")
        return "\n  ".join(lines)


def part_of_picture(box: Box) -> str:
    """The ninth of the picture that the middle of a box lies in.

    >>> part_of_picture((0.0, 0.0, 0.2, 0.2)), part_of_picture((0.4, 0.7, 0.6, 1.0))
    ('top left', 'bottom')
    >>> part_of_picture((0.3, 0.3, 0.7, 0.7)), part_of_picture((0.0, 0.0, 0.0, 0.5))
    ('middle', 'outside')
    """
    if box[2] <= box[0] or box[3] <= box[1]:
        return "outside"
    across, down = ((box[n] + box[n + 2]) / 2 for n in (0, 1))
    names = (
        ("top", "", "bottom")[min(2, int(3 * down))],
        ("left", "", "right")[min(2, int(3 * across))],
    )
    return " ".join(filter(None, names)) or "middle"


def similarity_maps(
    model: Model,
    image: ImageInput,
    caption: str,
    *,
    dataset: ImageTextDataset | None = None,
) -> SimilarityMaps:
    """Map each word of a caption over the regions or patches of an image.

    Args:
        model: an opened model of late interaction or of cross attention.
        image: a picture or its path; the id of an image where a data set is given.
        caption: of any picture.
        dataset: holds the image.

    Raises:
        ValueError: the model compares no words with regions, or its tokens cannot be joined into
            words; or as `explain` does.
    """
    from counterfoil.model import as_model

    model = as_model(model)
    if missing := without_maps(model):
        raise ValueError(missing)
    if not caption.strip():
        raise ValueError("the caption is empty; describe the picture")
    (maps,) = maps_of(model, read_image(model, image, dataset), [caption])
    return maps


def without_maps(model: Model) -> str:
    """Why a model has no maps, in a sentence; "" where it has."""
    if isinstance(model.model, WordRegionModel):
        return ""
    return (
        f"there are no maps of words of {model.name}, whose score is of another kind "
        f"({model.model.score_name}); {HAVE_MAPS}"
    )


def maps_of(model: Model, image: ReadImage, captions: Sequence[str]) -> list[SimilarityMaps]:
    """Map captions over one image, by a model that has maps."""
    network, processor = model.model, model.processor
    assert isinstance(network, WordRegionModel)
    assert processor is not None
    spans = _token_spans(model, captions)
    kept, boxes, grid = _places(model, image)
    shows: Literal["similarity", "attention"] = (
        "attention" if network.maps_attention else "similarity"
    )
    maps = []
    with evaluation_mode([network]):
        for start in range(0, len(captions), CAPTIONS_AT_ONCE):
            part = slice(start, start + CAPTIONS_AT_ONCE)
            texts = processor.process_variants(captions[part]).to(image.encoded.tokens.device)
            same = torch.zeros(len(texts), dtype=torch.long)
            values = network.word_region_maps(
                image.encoded.rows(same), network.encode_texts(texts)
            )[:, :, kept.to(texts.mask.device)]
            for caption, own, row in zip(
                captions[part], spans[part], values.float().cpu(), strict=True
            ):
                maps.append(SimilarityMaps(shows, _words(caption, own, row), boxes, grid))
    return maps


def _words(caption: str, spans: Sequence[tuple[int, int]], values: Tensor) -> tuple[WordMap, ...]:
    """The words of a caption, each with the mean of the (L, R) numbers of its tokens."""
    words = []
    for start, stop in word_spans(caption):
        own = [n for n, (first, last) in enumerate(spans) if first < stop and start < last]
        if own and is_word(text := caption[start:stop]):
            words.append(WordMap(text, start, stop, tuple(values[own].mean(0).tolist())))
    return tuple(words)


def _token_spans(model: Model, captions: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Characters of each word vector of each caption."""
    if isinstance(model.model, TokenizesCaptions):
        return model.model.token_spans(captions)
    assert model.processor is not None
    assert model.processor.tokenizer is not None
    try:
        return model.processor.tokenizer.spans(captions)
    except ValueError as error:
        raise ValueError(
            f"the tokenizer of {model.name} does not say which characters its tokens are, so they "
            "cannot be joined into words; word_region_maps of its network has the map of each token"
        ) from error


Places: TypeAlias = tuple[Tensor, "tuple[Box, ...] | None", "tuple[int, int] | None"]


def _places(model: Model, image: ReadImage) -> Places:
    """The vectors that are shown, their boxes, and the grid that they are."""
    items, vectors = image.items, image.encoded.mask[0].nonzero().squeeze(1).cpu()
    if items.values.dim() == 3:  # stored features
        kept = items.mask[0].nonzero().squeeze(1)
        if not torch.equal(kept, vectors):  # the model adds or drops vectors
            return vectors, None, None
        boxes = None if items.boxes is None else _fractions(items.boxes[0, kept, :4])
        if boxes is None:
            return vectors, None, None
        return vectors, _as_boxes(boxes), _lattice(boxes)
    grid = model.model.patch_grid(items, len(vectors))
    if grid is None:
        return vectors, None, None
    patches = vectors[grid.first : grid.first + grid.rows * grid.columns]
    assert model.processor is not None
    seen = None if image.size is None else model.processor.image_processor.seen(*image.size)
    if seen is None:
        return patches, None, (grid.rows, grid.columns)
    rows, columns = torch.arange(grid.rows + 1), torch.arange(grid.columns + 1)
    sides = []
    for first, last, lines in ((seen[0], seen[2], columns), (seen[1], seen[3], rows)):
        at = first + (last - first) * (lines + grid.shift) / (len(lines) - 1)
        sides.append(at.clamp(first, last).clamp(0, 1))
    x, y = sides
    top, left = torch.meshgrid(rows[:-1], columns[:-1], indexing="ij")
    top, left = top.flatten(), left.flatten()
    boxes = torch.stack([x[left], y[top], x[left + 1], y[top + 1]], 1)
    return patches, _as_boxes(boxes), (grid.rows, grid.columns)


def _fractions(boxes: Tensor) -> Tensor | None:
    """Boxes (R, 4) within the picture; None for boxes in pixels, and where all are empty."""
    outside = bool(((boxes < -_NEAR) | (boxes > 1 + _NEAR)).any())
    if outside or not bool((boxes[:, 2:] > boxes[:, :2]).any()):
        return None
    return boxes.clamp(0, 1)


def _as_boxes(boxes: Tensor) -> tuple[Box, ...]:
    return tuple((x1, y1, x2, y2) for x1, y1, x2, y2 in boxes.tolist())


def _lattice(boxes: Tensor) -> tuple[int, int] | None:
    """Rows and columns of boxes (R, 4) that are cells of a picture, row by row; else None."""
    columns = int(((boxes[:, 1] - boxes[0, 1]).abs() < _NEAR).sum())
    rows = len(boxes) // columns
    if len(boxes) < 2 or rows * columns != len(boxes):
        return None
    at = torch.arange(len(boxes))
    x, y = at % columns / columns, at // columns / rows
    cells = torch.stack([x, y, x + 1 / columns, y + 1 / rows], 1)
    return (rows, columns) if bool(((boxes - cells).abs() < _NEAR).all()) else None
