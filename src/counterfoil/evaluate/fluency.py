"""Perplexity of captions by a causal language model or by n-grams.

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

from counterfoil.core.console import progress
from counterfoil.corpus.words import split
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluation.bootstrap import Counted, Interval, Share, shares
from counterfoil.models.blocks.pretrained import library

AT_ONCE = 2**10  # tokens read together


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """Log probabilities of N captions by a language model.

    Attributes:
        logs: (N,) double, log probability of each whole caption.
        tokens: (N,) long, how many tokens it consists of; at least one.
    """

    logs: Tensor
    tokens: Tensor

    def rows(self, rows: Tensor) -> Spoken:
        """Select rows."""
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
    """Log probabilities of captions by n-grams; the end of each is a token."""
    tokens = torch.tensor([len(split(caption)) + 1 for caption in captions])
    return Spoken(model.scores(captions) * tokens, tokens)


@final
class CausalLM:
    """Causal language model of Hugging Face, such as GPT-2.

    Each caption follows the token that begins a text, if the model has one, so that its first word
    counts; the end of a text does not.

    Attributes:
        name: the folder or name.
        begins: the token that begins a text; None where there is none.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        """Open a model.

        Args:
            name: a folder or name.
            device: where it is to run.

        Raises:
            ValueError: transformers is not installed, or there is no such language model.
        """
        transformers = library()
        quiet = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
            model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{name} cannot be read as a causal language model with its tokenizer; name a "
                "folder or a model such as gpt2, or leave --lm out for one of n-grams"
            ) from error
        finally:
            transformers.utils.logging.set_verbosity(quiet)
        self.name, self._device = name, torch.device(device)
        self._model: Any = model.to(self._device).eval()
        known = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        self._begin: int | None = next((token for token in known if token is not None), None)
        self.begins: str | None = None
        if self._begin is not None:
            self.begins = str(self._tokenizer.convert_ids_to_tokens(self._begin))

    def spoken(self, captions: Sequence[str]) -> Spoken:
        """Log probabilities of captions; equal ones are read once.

        Raises:
            ValueError: one has no token that can be guessed, or more than the model reads.
        """
        unique = list(dict.fromkeys(captions))
        ids = self._ids(unique)
        logs = torch.zeros(len(unique), dtype=torch.double)
        order = sorted(range(len(unique)), key=lambda row: len(ids[row]))
        with progress("captions read", len(unique)) as advance, torch.inference_mode():
            while order:
                many = max(1, AT_ONCE // len(ids[order[-1]]))
                rows, order = order[-many:], order[:-many]
                logs[rows] = self._logs([ids[row] for row in rows]).cpu()
                advance(len(rows))
        place = {caption: row for row, caption in enumerate(unique)}
        wanted = torch.tensor([place[caption] for caption in captions], dtype=torch.long)
        tokens = torch.tensor([len(one) - 1 for one in ids], dtype=torch.long)
        return Spoken(logs[wanted], tokens[wanted])

    def _ids(self, captions: Sequence[str]) -> list[list[int]]:
        first = [] if self._begin is None else [self._begin]
        read = self._tokenizer(list(captions), add_special_tokens=False)["input_ids"]
        ids = [first + list(one) for one in read]
        most = getattr(self._model.config, "max_position_embeddings", None)
        for caption, one in zip(captions, ids, strict=True):
            if len(one) < 2 or (most and len(one) > most):
                raise ValueError(
                    f"{self.name} reads 2 to {most or 'any number of'} tokens and the caption "
                    f"{caption[:60]!r} has {len(one)}; leave it out, or take another model"
                )
        return ids

    def _logs(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """(N,) double, of captions that are read together."""
        longest = max(map(len, ids))
        values = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros(len(ids), longest, dtype=torch.bool)
        for row, one in enumerate(ids):
            values[row, : len(one)] = torch.tensor(one)
            mask[row, : len(one)] = True
        values, mask = values.to(self._device), mask.to(self._device)
        guessed = self._model(input_ids=values, attention_mask=mask.long()).logits[:, :-1].float()
        each = guessed.log_softmax(2).gather(2, values[:, 1:, None]).squeeze(2).double()
        logs: Tensor = each.where(mask[:, 1:], 0).sum(1)
        return logs
