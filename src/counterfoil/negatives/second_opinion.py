"""Other models' say on whether written captions are true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.candidates import Opinion
from counterfoil.negatives.readings import Shown, scored
from counterfoil.records import Items


@final
class SecondOpinion:
    """Takes a written caption for true that a frozen model scores about as high as the original.

    Args:
        matcher: the model that is asked, on the device it is to run on.
        lens: what it sees of the corpus.
        slack: a written caption counts as true from the original's score less this on, in units of
            a score; below 0 it has to be better.

    Raises:
        ValueError: the model reads ready-made vectors.
    """

    def __init__(self, *, matcher: Matcher, lens: CorpusLens, slack: float = 0.0) -> None:
        if lens.lens.tokenizer is None:
            raise ValueError(
                "a second opinion reads written captions, and this model reads ready-made vectors"
            )
        self.matcher, self.lens, self.slack = matcher, lens, slack

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true; see `Opinion`."""
        seen, image = torch.unique(images, return_inverse=True)
        told, text = torch.unique(torch.stack([images, rows]), dim=1, return_inverse=True)
        place = torch.searchsorted(seen, told[0].contiguous())
        with evaluating([self.matcher]):
            encoded = self.matcher.encode_images(self._there(self.lens.images(seen)))
        old = self._there(self.lens.texts(told[1]))
        new = self._there(self.lens.lens.read(written))
        device = new.values.device
        true = scored(self.matcher, Shown(encoded, old, place.to(device)))
        found = scored(self.matcher, Shown(encoded, new, image.to(device)))
        return (found >= true[text.to(device)] - self.slack).cpu()

    def _there(self, items: Items) -> Items:
        """On the model's device."""
        first = next(self.matcher.parameters(), None)
        return items if first is None else items.to(first.device)


@final
class AnyOf:
    """Takes a written caption for true that one of several opinions does.

    Args:
        opinions: at least one.
    """

    def __init__(self, opinions: Sequence[Opinion]) -> None:
        self.opinions = opinions

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether one takes each written caption for true; see `Opinion`."""
        return torch.stack([one.true(images, rows, written) for one in self.opinions]).any(0)
