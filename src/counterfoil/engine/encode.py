"""Encodes a whole corpus once, the same on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.records import Encoded, Items

Look: TypeAlias = Callable[[Tensor], Items]


def encode_images(
    matcher: Matcher,
    look: Look,
    count: int,
    *,
    batch: int = 128,
    device: torch.device | str | None = None,
    keep: torch.device | str = "cpu",
) -> Encoded:
    """Encode `count` images in evaluation mode.

    Batches lie on a fixed grid and are dealt out whole, so several processes compute what one
    would; every process gets all of the result.

    Args:
        matcher: the model; it moves to `device` and keeps its training mode.
        look: (n,) long rows -> those images, as `matcher` wants them.
        count: how many images there are, rows 0 to `count` - 1.
        batch: images encoded together.
        device: where to compute; by default `world.device()`.
        keep: where the result stays.

    Raises:
        ValueError: nothing to encode, or a batch below 1.
    """
    return _pooled(images_in_batches(matcher, look, count, batch=batch, device=device), count, keep)


def encode_texts(
    matcher: Matcher,
    look: Look,
    count: int,
    *,
    batch: int = 256,
    device: torch.device | str | None = None,
    keep: torch.device | str = "cpu",
) -> Encoded:
    """Encode `count` texts in evaluation mode, those of like length together.

    The result is in row order, padded to the longest text. Every text is looked at twice: for its
    length, and to be encoded. Arguments and errors are those of `encode_images`.
    """
    return _pooled(texts_in_batches(matcher, look, count, batch=batch, device=device), count, keep)


def images_in_batches(
    matcher: Matcher,
    look: Look,
    count: int,
    *,
    batch: int = 128,
    device: torch.device | str | None = None,
    done: int = 0,
) -> Iterator[tuple[Tensor, Encoded]]:
    """Rows and encodings of `encode_images`, batch after batch, on every process.

    Args:
        matcher: the model.
        look: rows -> images.
        count: how many there are.
        batch: images encoded together.
        device: where to compute; by default `world.device()`.
        done: how many batches to leave out, as they are known already.
    """
    batches = list(torch.split(_rows(count, batch, "images"), batch))
    return _in_batches(matcher, look, batches, _place(device), done, texts=False)


def texts_in_batches(
    matcher: Matcher,
    look: Look,
    count: int,
    *,
    batch: int = 256,
    device: torch.device | str | None = None,
    done: int = 0,
) -> Iterator[tuple[Tensor, Encoded]]:
    """Rows and encodings of `encode_texts`, batch after batch; arguments as `images_in_batches`."""
    parts = torch.split(_rows(count, batch, "texts"), batch)
    lengths = torch.cat([_lengths(look(rows)) for rows in parts])
    order = lengths.argsort(descending=True, stable=True)  # the longest first: it sets the room

    def trimmed(rows: Tensor) -> Items:
        items, longest = look(rows), int(lengths[rows].max())
        words = None if items.words is None else items.words[:, :longest]
        return Items(items.ids, items.values[:, :longest], items.mask[:, :longest], words=words)

    batches = list(torch.split(order, batch))
    return _in_batches(matcher, trimmed, batches, _place(device), done, texts=True)


def _rows(count: int, batch: int, what: str) -> Tensor:
    if count < 1:
        raise ValueError(f"there are {count} {what} to encode; at least 1 is needed")
    if batch < 1:
        raise ValueError(f"a batch of {batch} {what} cannot be encoded; at least 1 is needed")
    return torch.arange(count)


def _place(device: torch.device | str | None) -> torch.device:
    return world.device() if device is None else torch.device(device)


def _pooled(
    batches: Iterator[tuple[Tensor, Encoded]], count: int, keep: torch.device | str
) -> Encoded:
    pool = _Pool(count, torch.device(keep))
    for rows, part in batches:
        pool.put(rows, part)
    return pool.encoded()


def _in_batches(
    matcher: Matcher,
    look: Look,
    batches: list[Tensor],
    device: torch.device,
    done: int,
    *,
    texts: bool,
) -> Iterator[tuple[Tensor, Encoded]]:
    count, world_size = sum(map(len, batches)), world.size()
    matcher.to(device)
    encoder = matcher.encode_texts if texts else matcher.encode_images
    what = "texts encoded" if texts else "images encoded"
    with progress(what, count, sum(map(len, batches[:done]))) as advance:
        for start in range(done, len(batches), world_size):
            mine = batches[min(start + world.rank(), len(batches) - 1)]
            with evaluating([matcher]):
                encoded = encoder(look(mine).to(device))
            for rows, part in zip(
                batches[start : start + world_size], _everyone(encoded, len(batches[0]))
            ):
                yield rows, part.rows(slice(len(rows)))
                advance(len(rows))


def _everyone(encoded: Encoded, batch: int) -> list[Encoded]:
    """Each process's batch, padded to the same shape."""
    if world.size() == 1:
        return [encoded]
    sizes = world.gather(torch.tensor(encoded.tokens.shape[:2], device=encoded.tokens.device))
    encoded = encoded.padded(int(sizes[:, 1].max()))
    more = batch - len(encoded)
    tensors = (encoded.tokens, encoded.mask, encoded.gram)
    tokens, mask, gram = (
        None if t is None else world.gather(pad(t, (0, 0) * (t.dim() - 1) + (0, more)))
        for t in tensors
    )
    assert tokens is not None
    assert mask is not None
    grams = [None] * len(tokens) if gram is None else list(gram)
    return [Encoded(*parts) for parts in zip(tokens, mask, grams)]


def _lengths(items: Items) -> Tensor:
    """(N,) long place after the last real token of each item, at least 1."""
    places = torch.arange(1, items.mask.shape[1] + 1, device=items.mask.device)
    return (items.mask * places).amax(1).clamp(min=1).cpu()


@final
class _Pool:
    """Room for everything, growing when a longer item comes."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.device = count, device
        self.parts: tuple[Tensor | None, ...] = ()

    def put(self, rows: Tensor, part: Encoded) -> None:
        """Put the first ``len(rows)`` items of a batch, as long as the pool or not, in place."""
        if not self.parts or part.tokens.shape[1] > self.encoded().tokens.shape[1]:
            self._grow(part)
        part = part.padded(self.encoded().tokens.shape[1])
        for pool, values in zip(self.parts, (part.tokens, part.mask, part.gram)):
            if pool is not None and values is not None:
                pool[rows.to(self.device)] = values[: len(rows)].to(self.device)

    def encoded(self) -> Encoded:
        """What has been put."""
        tokens, mask, gram = self.parts
        assert tokens is not None
        assert mask is not None
        return Encoded(tokens, mask, gram)

    def _grow(self, part: Encoded) -> None:
        if self.parts:
            longer = self.encoded().padded(part.tokens.shape[1])
            self.parts = longer.tokens, longer.mask, longer.gram
            return
        self.parts = tuple(
            None if t is None else t.new_zeros(self.count, *t.shape[1:], device=self.device)
            for t in (part.tokens, part.mask, part.gram)
        )
