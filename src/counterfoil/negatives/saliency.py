"""Which regions and words a score hangs on: the length of its gradient at each of them.

The model is asked in evaluation mode, and no gradient reaches a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from counterfoil.engine.modes import evaluating
from counterfoil.matcher import EmbedsWords, Matcher
from counterfoil.records import Encoded, Items


def at_regions(matcher: Matcher, images: Items, texts: Encoded, weight: Tensor) -> Tensor:
    """(P, L, F) gradient of the weighted sum of P scores at each region of P images.

    Args:
        matcher: scores.
        images: P images with region features.
        texts: what they are scored with.
        weight: (P,) of each score.
    """
    values = images.values
    leaf = (values.float() if values.dtype in (torch.half, torch.bfloat16) else values).clone()
    with _asked(matcher):
        encoded = matcher.encode_images(replace(images, values=leaf.requires_grad_()))
        total = (weight * matcher.pairs(encoded, texts)).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    return gradient


def at_words(matcher: Matcher, texts: Items, images: Encoded, weight: Tensor) -> Tensor:
    """(P, L, D) gradient of the weighted sum of P scores at the word embeddings of P texts.

    Every occurrence of a word has its own.

    Args:
        matcher: scores; one of its parts looks words up, see `words_of`.
        texts: P texts as token ids.
        images: what they are scored with.
        weight: (P,) of each score.
    """
    with _asked(matcher), _looked_up(words_of(matcher).word_table()) as found:
        encoded = matcher.encode_texts(texts)
        total = (weight * matcher.pairs(images, encoded)).sum()
        (gradient,) = torch.autograd.grad(total, found)
    return gradient


def by_token(gradient: Tensor, texts: Items) -> Tensor:
    """(N, L, D) sum of the gradients of all occurrences of a token, in whichever text they stand.

    Args:
        gradient: (N, L, D) of each occurrence.
        texts: the N texts.
    """
    known, number = torch.unique(texts.values.masked_fill(~texts.mask, -1), return_inverse=True)
    real = gradient.masked_fill(~texts.mask.unsqueeze(2), 0).flatten(0, 1)
    total = real.new_zeros(len(known), real.shape[1]).index_add_(0, number.flatten(), real)
    return total[number]


def words_of(matcher: Matcher) -> EmbedsWords:
    """The part of a model that looks words up.

    Raises:
        ValueError: there is none, or several, or no gradient comes back to its words.
    """
    found = [part for part in matcher.modules() if isinstance(part, EmbedsWords)]
    what = type(matcher).__name__
    if len(found) != 1:
        raise ValueError(
            f"{what} has {len(found)} text encoders that tell where they look words up; edited "
            "negatives need one, such as a GRU or Bert"
        )
    return found[0]


def check_words(matcher: Matcher) -> EmbedsWords:
    """The part of a model that looks words up, once it has been tried on two words.

    Raises:
        ValueError: there is no such part, or no gradient comes back to its words.
    """
    found = words_of(matcher)
    device = next(matcher.parameters()).device
    none, two = torch.full((1,), -1, device=device), torch.zeros(1, 2, device=device).long()
    with _asked(matcher), _looked_up(found.word_table()) as leaves:
        encoded = matcher.encode_texts(Items(none, two, two == 0))
        total = encoded.tokens.sum()
        gradient = torch.autograd.grad(total, leaves, allow_unused=True)[0] if leaves else None
    if gradient is None:
        raise ValueError(
            f"the text encoder {type(found).__name__} is not trained, so no gradient says which "
            "words count; train it, or train without edited negatives"
        )
    return found


@contextmanager
def _asked(matcher: Matcher) -> Iterator[None]:
    """Evaluation mode with gradients; cuDNN gives a recurrent network none there."""
    with (
        evaluating([matcher], gradients=True),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield


@contextmanager
def _looked_up(table: nn.Module) -> Iterator[list[Tensor]]:
    """What comes out of a table of words while the block runs, as leaves of a graph."""
    found: list[Tensor] = []

    def leaf(module: nn.Module, ids: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        found.append(vectors.detach().requires_grad_())
        return found[-1]

    handle = table.register_forward_hook(leaf)
    try:
        yield found
    finally:
        handle.remove()
