"""Encode a whole data set once, and cut its score matrix into tiles.

Results are the same on any number of processes: batches and tiles lie on fixed grids, whole ones
are dealt out, and the last one of a grid is padded, so that every product has the same shape.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.types import (
    Embeddings,
    ModalityBatch,
    Pairs,
    joined_dependencies,
)
from counterfoil.models.base import RetrievalModel


@contextmanager
def evaluation_mode(models: Iterable[nn.Module], *, gradients: bool = False) -> Iterator[None]:
    """Run a block in evaluation mode, and restore the mode of every module afterwards.

    Not `torch.inference_mode`: tensors made inside are ordinary ones.
    """
    modes = {part: part.training for model in models for part in model.modules()}
    for part, mode in modes.items():
        if mode:  # setting an attribute of a module takes ten times as long as reading it
            part.training = False
    try:
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        for part, mode in modes.items():  # parts may have been frozen in evaluation mode before
            if part.training != mode:
                part.training = mode


def shard_index(count: int, device: torch.device) -> Tensor | slice:
    """Return this process's share of `count` rows; the last row is repeated to fill the share."""
    share = distributed.shard(count)
    if share.stop <= count:
        return share
    return torch.arange(share.start, share.stop, device=device).clamp(max=count - 1)


def gather_shards(
    count: int, score: Callable[[Tensor | slice], Tensor], device: torch.device
) -> Tensor:
    """Compute `score` for all rows, each process a share of them."""
    return distributed.gather_rows(score(shard_index(count, device)))[:count]


def gather_parts(share: Embeddings, count: int) -> Embeddings:
    """Gather the items of all processes, without the repeated ones."""
    share = share.padded(distributed.all_reduce_max(share.tokens.shape[1]))
    return share.map(lambda tensor: distributed.gather_rows(tensor)[:count])


# The tiles of a score matrix.


Side: TypeAlias = Literal["image", "text"]

_TRIAL = 16  # images and texts whose scores are compared with the inner product
_STEP = 16  # sides of tiles are multiples of this
# On a GPU a tile has to outlast what the CPU does for it, some milliseconds. It has many texts and
# few images, as processes share the blocks of images.
_VECTORS = {"cpu": (512, 2048), "cuda": (2048, 65536)}  # one vector per item: a plain product
_BAGS = {"cpu": (128, 512), "cuda": (512, 1024)}
_BAGS_BY_KERNELS = 512, 8192
_AT_ONCE = {"cpu": 32}  # images of a batch: 128 of 224 px took a tenth longer by ViT-B/32 there
_LARGE = 64 * 2**20  # bytes from which padding takes no memory


@final
@dataclass(frozen=True, slots=True, repr=False)
class EmbeddedDataset:
    """A model and its encodings of all images and texts of a data set."""

    model: RetrievalModel
    images: Embeddings
    texts: Embeddings

    def __repr__(self) -> str:
        return (
            f"EmbeddedDataset({type(self.model.own_module).__name__}: images {self.images}, "
            f"texts {self.texts})"
        )

    def check_sizes(self, images: int, texts: int, noun: str) -> None:
        """Check that this is a split of so many images and texts; `noun` names the model.

        Raises:
            ValueError: it is another one.
        """
        sizes = len(self.images), len(self.texts)
        if sizes != (images, texts):
            raise ValueError(
                f"{noun} encoded {sizes[0]} images and {sizes[1]} texts, but {images} images and "
                f"{texts} texts are needed; encode the same split with it"
            )


@final
@dataclass(frozen=True, slots=True)
class ScoreTile:
    """A block of the score matrix with its rows and columns.

    Attributes:
        scores: (i, t) float32, contiguous, without NaN.
        images: (i,) long, image rows, ascending.
        texts: (t,) long, text rows, in any order.
    """

    scores: Tensor
    images: Tensor
    texts: Tensor

    def true_pairs(
        self, text_to_image: Tensor, extra: Pairs | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the places of true pairs in the tile: (p,) of its rows and (p,) of its columns.

        `text_to_image` is the (T,) image row that each text describes, -1 for none; `extra` are
        rows of further true pairs.
        """
        image = text_to_image[self.texts]
        place = torch.searchsorted(self.images, image).clamp_(max=len(self.images) - 1)
        column = (self.images[place] == image).nonzero().squeeze(1)
        if extra is None:
            return place[column], column
        rows, columns = self.places(extra)
        return torch.cat([place[column], rows]), torch.cat([column, columns])

    def places(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the places of those pairs of rows that lie in the tile, as `true_pairs` does."""
        here = torch.isin(pairs.image, self.images) & torch.isin(pairs.text, self.texts)
        texts, order = self.texts.sort()
        column = order[torch.searchsorted(texts, pairs.text[here])]
        return torch.searchsorted(self.images, pairs.image[here]), column


def is_inner_product(model: RetrievalModel, images: Embeddings, texts: Embeddings) -> bool:
    """Return whether the model's scores of some items are inner products of one vector each."""
    if any(x.tokens.shape[1] != 1 or x.gram is not None for x in (images, texts)):
        return False
    left, right = images.rows(slice(_TRIAL)), texts.rows(slice(_TRIAL))
    with evaluation_mode([model]):
        scores = model.score_matrix(left, right).float()
    product = left.tokens[:, 0].float() @ right.tokens[:, 0].float().T
    return torch.allclose(scores, product.to(scores.device), rtol=1e-3, atol=1e-3)


def device_of(member: EmbeddedDataset) -> torch.device:
    """Return the device of the model's parameters, or of the encodings if it has none."""
    parameter = next(member.model.parameters(), None)
    return member.images.tokens.device if parameter is None else parameter.device


def nan_error(image: int, text: int) -> ValueError:
    """Return the error for a score that is NaN."""
    return ValueError(
        f"the score of image row {image} and text row {text} is not a number; look for NaN in the "
        "features, or train again with a lower learning rate"
    )


def tile_shape(members: Sequence[EmbeddedDataset], device: torch.device) -> tuple[int, int]:
    """Return the images and texts of a tile; depends on the members and the kind of device only.

    The sides are chosen to divide the matrix nearly evenly, which leaves little padding in the
    last tiles.
    """
    single = all(m.images.mask.shape[1] == m.texts.mask.shape[1] == 1 for m in members)
    sizes = _VECTORS if single else _BAGS
    high, wide = sizes.get(device.type, sizes["cuda"])
    if not single and device.type != "cpu" and all(m.model.has_kernels for m in members):
        high, wide = _BAGS_BY_KERNELS
    return _even(len(members[0].images), high), _even(len(members[0].texts), wide)


def _even(count: int, most: int) -> int:
    tiles = max(1, -(-count // most))
    size = -(-count // tiles)
    return max(_STEP, -(-size // _STEP) * _STEP)


def cut_tiles(rows: Tensor, size: int) -> list[Tensor]:
    """Cut rows into consecutive parts of `size`, the last one shorter."""
    return list(torch.split(rows, size)) if len(rows) else []


def spread_order(count: int) -> list[int]:
    """Return 0 to count - 1 in bit-reversed order: each number is far from those before it.

    The floors of top-k lists then rise quickly even where scores rise with the row, as in sorted
    data: visited in order, every tile would beat the lists of the tiles before.

    >>> spread_order(6)
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(1, (count - 1).bit_length())
    reverse = (int(f"{place:0{bits}b}"[::-1], 2) for place in range(2**bits))
    return [place for place in reverse if place < count]


def take_rows(encoded: Embeddings, rows: Tensor, size: int, device: torch.device) -> Embeddings:
    """Copy rows to the device, the last one repeated until there are `size`.

    A full block of consecutive rows is a view, not a copy. Padding keeps the shape of every
    product the same, so that equal items have equal scores at any row.
    """
    last = int(rows[-1])
    if len(rows) < size:
        rows = torch.cat([rows, rows.new_full((size - len(rows),), last)])
    elif last - int(rows[0]) == size - 1 and bool((rows.diff() == 1).all()):
        return encoded.rows(slice(int(rows[0]), last + 1)).to(device)
    return encoded.rows(rows).to(device)


# Joining batches of items that are not encoded yet.


def pad_tokens(items: ModalityBatch, length: int) -> ModalityBatch:
    """Pad items to `length` tokens; their targets are dropped."""
    missing = length - items.mask.shape[1]

    def wider(tensor: Tensor, fill: int = 0) -> Tensor:
        room = (0, 0) * (tensor.dim() - 2) + (0, missing)
        return pad(tensor, room, value=fill) if missing > 0 else tensor

    return replace(
        items,
        values=wider(items.values),
        mask=wider(items.mask),
        boxes=None if items.boxes is None else wider(items.boxes),
        targets=None,
        words=None if items.words is None else wider(items.words, -1),
    )


def concatenate_batches(parts: Sequence[ModalityBatch]) -> ModalityBatch:
    """Concatenate items, padded to the longest; boxes and words where all parts have them.

    Texts of a part without dependencies have none.
    """
    longest = max(part.mask.shape[1] for part in parts)
    parts = [pad_tokens(part, longest) for part in parts]
    boxes = [part.boxes for part in parts if part.boxes is not None]
    words = [part.words for part in parts if part.words is not None]
    return ModalityBatch(
        ids=torch.cat([part.ids for part in parts]),
        values=torch.cat([part.values for part in parts]),
        mask=torch.cat([part.mask for part in parts]),
        boxes=torch.cat(boxes) if len(boxes) == len(parts) else None,
        words=torch.cat(words) if len(words) == len(parts) else None,
        dependencies=joined_dependencies([(len(part), part.dependencies) for part in parts]),
    )


def gather_batches(share: ModalityBatch, count: int) -> ModalityBatch:
    """Gather the items of all processes, padded to the longest.

    Every process has as many; of the last share, those beyond `count` are left out.
    """
    share = pad_tokens(share, distributed.all_reduce_max(share.mask.shape[1]))
    return share.map(lambda tensor: distributed.gather(tensor).flatten(0, 1)[:count])


LoadRows: TypeAlias = Callable[[Tensor], ModalityBatch]


def encode_images(
    model: RetrievalModel, load: LoadRows, count: int, *, batch: int = 128
) -> Embeddings:
    """Encode `count` images in evaluation mode on the device of this process.

    Batches lie on a fixed grid and are dealt out whole, so several processes compute what one
    would; every process gets all of the result, on the CPU.

    Args:
        model: the model; it moves to the device and keeps its training mode.
        load: maps (n,) long rows to a batch of those images.
        count: number of images, rows 0 to `count` - 1.
        batch: images encoded together.

    Raises:
        ValueError: nothing to encode, or a batch below 1.
    """
    return _pooled(images_in_batches(model, load, count, batch=batch), count)


def encode_texts(
    model: RetrievalModel, load: LoadRows, count: int, *, batch: int = 256
) -> Embeddings:
    """Encode `count` texts in evaluation mode, those of similar length together.

    The result is in row order, padded to the longest text. Every text is processed twice: for its
    length, and to be encoded. Arguments and errors are those of `encode_images`.
    """
    return _pooled(texts_in_batches(model, load, count, batch=batch), count)


def images_in_batches(
    model: RetrievalModel, load: LoadRows, count: int, *, batch: int = 128, done: int = 0
) -> Iterator[tuple[Tensor, Embeddings]]:
    """Yield the rows and encodings of `encode_images`, batch after batch, on every process.

    The first `done` batches are skipped.
    """
    batches = list(torch.split(_rows(count, batch, "images"), batch))
    return _in_batches(model, load, batches, done, texts=False)


def texts_in_batches(
    model: RetrievalModel, load: LoadRows, count: int, *, batch: int = 256, done: int = 0
) -> Iterator[tuple[Tensor, Embeddings]]:
    """Yield rows and encodings of `encode_texts`; arguments as `images_in_batches`."""
    parts = torch.split(_rows(count, batch, "texts"), batch)
    lengths = torch.cat([_lengths(load(rows)) for rows in parts])
    order = lengths.argsort(descending=True, stable=True)  # the longest first, so none grows later

    def load_trimmed(rows: Tensor) -> ModalityBatch:
        items, longest = load(rows), int(lengths[rows].max())
        return replace(
            items,
            values=items.values[:, :longest],
            mask=items.mask[:, :longest],
            words=None if items.words is None else items.words[:, :longest],
        )

    return _in_batches(model, load_trimmed, list(torch.split(order, batch)), done, texts=True)


def _rows(count: int, batch: int, noun: str) -> Tensor:
    if count < 1:
        raise ValueError(f"there are {count} {noun} to encode; at least 1 is needed")
    if batch < 1:
        raise ValueError(f"a batch of {batch} {noun} cannot be encoded; at least 1 is needed")
    return torch.arange(count)


def _pooled(batches: Iterator[tuple[Tensor, Embeddings]], count: int) -> Embeddings:
    """One tensor on the CPU for all items, which grows when a longer item comes.

    Padding is never written. One caption of 62 words makes Flickr30K's 145,000 captions 37 GB, of
    which 8 are words.
    """
    pool: Embeddings | None = None
    for rows, part in batches:
        part, length = part.to("cpu"), part.tokens.shape[1]
        if pool is None:
            pool = part.map(lambda tensor: _unwritten_zeros(tensor, count))
        pool = pool.padded(length)
        pool.tokens[rows, :length], pool.mask[rows, :length] = part.tokens, part.mask
        if pool.gram is not None and part.gram is not None:
            pool.gram[rows, :length, :length] = part.gram
    assert pool is not None
    return pool


def _unwritten_zeros(like: Tensor, count: int) -> Tensor:
    """Zeros for `count` such items; on Linux they take memory where they are written alone."""
    shape = count, *like.shape[1:]
    size = math.prod(shape) * like.element_size()
    if sys.platform != "linux" or size < _LARGE:
        return like.new_zeros(shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # a page of 2 MB would hold many items with their padding
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def _in_batches(
    model: RetrievalModel, load: LoadRows, batches: list[Tensor], done: int, *, texts: bool
) -> Iterator[tuple[Tensor, Embeddings]]:
    count, processes, device = sum(map(len, batches)), distributed.size(), distributed.device()
    model.to(device)
    encoder = model.encode_texts if texts else model.encode_images
    at_once = _AT_ONCE.get(device.type, len(batches[0]))
    label = "texts encoded" if texts else "images encoded"
    with progress(label, count, sum(map(len, batches[:done]))) as advance:
        for start in range(done, len(batches), processes):
            rows_here = batches[min(start + distributed.rank(), len(batches) - 1)]
            some = torch.split(rows_here, len(rows_here) if texts else at_once)
            with evaluation_mode([model]):
                encoded = Embeddings.cat([encoder(load(rows).to(device)) for rows in some])
            for rows, part in zip(
                batches[start : start + processes], _gather_encoded(encoded, len(batches[0]))
            ):
                yield rows, part.rows(slice(len(rows)))
                advance(len(rows))


def _gather_encoded(encoded: Embeddings, batch: int) -> list[Embeddings]:
    """Gather each process's batch, padded to the same shape."""
    if distributed.size() == 1:
        return [encoded]
    sizes = distributed.gather(torch.tensor(encoded.tokens.shape[:2], device=encoded.tokens.device))
    encoded = encoded.padded(int(sizes[:, 1].max()))
    missing = batch - len(encoded)
    gathered = encoded.map(
        lambda t: distributed.gather(pad(t, (0, 0) * (t.dim() - 1) + (0, missing)))
    )
    return [
        gathered.map(lambda tensor, rank=rank: tensor[rank])  # type: ignore[misc]
        for rank in range(distributed.size())
    ]


def _lengths(items: ModalityBatch) -> Tensor:
    """Return the (N,) length of each item up to its last real token, at least 1."""
    places = torch.arange(1, items.mask.shape[1] + 1, device=items.mask.device)
    return (items.mask * places).amax(1).clamp(min=1).cpu()
