"""How likely a language model takes captions to be, whatever they are true of.

TAGS-DC (https://arxiv.org/abs/2111.03349, Table 3) prints one perplexity and does not say which of
three it is, so all are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.corpus.words import split
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluation.bootstrap import Counted, Interval, Share, shares


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """What a language model thinks of N captions.

    Attributes:
        logs: (N,) double, log probability of each whole caption.
        tokens: (N,) long, how many tokens it consists of; at least one.
    """

    logs: Tensor
    tokens: Tensor

    def rows(self, rows: Tensor) -> Spoken:
        """Some of them."""
        return Spoken(self.logs[rows], self.tokens[rows])

    @property
    def means(self) -> Tensor:
        """(N,) double, of the negative log probability of the tokens of each caption."""
        return -self.logs / self.tokens


@final
@dataclass(frozen=True, slots=True)
class Fluency:
    """Perplexities of some captions; lower is more fluent.

    Attributes:
        captions: how many.
        typical: exp of the mean, over captions, of the mean negative log probability of a token.
        mean: of the perplexities of the captions.
        whole: of all tokens together, so that long captions count more.
        times: `typical`, divided by that of the captions that these were made of.
    """

    captions: int
    typical: Share
    mean: Share
    whole: Share
    times: Share | None = None

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "captions": self.captions,
            "typical": self.typical.plain(),
            "mean": self.mean.plain(),
            "whole": self.whole.plain(),
            "times": self.times.plain() if self.times else None,
        }


def fluency(
    spoken: Spoken, images: Tensor, *, made_of: Spoken | None = None, seed: int = 0
) -> Fluency:
    """Perplexities with 95 % intervals that draw pictures anew, each with all its captions.

    Args:
        spoken: N captions, at least one.
        images: (N,) long, of which picture each is.
        made_of: the N captions that they were made of.
        seed: of the draws.
    """
    wanted = [
        Counted.mean(spoken.means),
        Counted.mean(spoken.means.exp()),
        Counted(-spoken.logs, spoken.tokens.double()),
    ]
    if made_of is not None:
        wanted.append(Counted.mean(spoken.means - made_of.means))
    typical, mean, whole, *times = shares(wanted, images, seed=seed)
    changed = raised(times[0]) if times else None
    return Fluency(len(spoken.logs), raised(typical), mean, raised(whole), changed)


def raised(share: Share) -> Share:
    """The exponential of a number and of the ends of its interval."""
    span = Interval(math.exp(share.interval.low), math.exp(share.interval.high))
    return Share(math.exp(share.value), span, share.count)


def spoken_by_ngrams(model: NGrams, captions: Sequence[str]) -> Spoken:
    """What a model of n-grams thinks of captions; the end of each is a token."""
    tokens = torch.tensor([len(split(caption)) + 1 for caption in captions])
    return Spoken(model.scores(captions) * tokens, tokens)
