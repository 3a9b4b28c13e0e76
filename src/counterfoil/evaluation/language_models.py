"""Language models of captions: n-grams, and perplexities by n-grams or a causal language model.

Interpolated Kneser-Ney smoothing: Kneser and Ney, "Improved backing-off for m-gram language
modeling", ICASSP 1995, in the form of Chen and Goodman, "An empirical study of smoothing techniques
for language modeling", 1999, section 2.7, one discount an order.

>>> model = NGrams.of(["a dog runs", "a dog sleeps", "a cat sleeps"])
>>> model.scores(["a dog sleeps", "sleeps dog a"]).round(decimals=2).tolist()
[-0.55, -2.52]
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from counterfoil.core.console import progress
from counterfoil.core.optional import hub_options, quiet_transformers
from counterfoil.data.tokenizers import END, START, split_words
from counterfoil.evaluation.bootstrap import Counted, Interval, Share, shares
from counterfoil.models.layers.pretrained import import_transformers

Gram: TypeAlias = tuple[str, ...]
ORDER = 3
DISCOUNT = 0.5  # where too few n-grams occur once and twice to estimate one


@final
@dataclass(frozen=True, slots=True)
class _Level:
    """Counts of the n-grams of one length."""

    counts: Counter[Gram]  # occurrences; below the longest length, distinct preceding words
    totals: Counter[Gram]  # by context: sum of the counts
    kinds: Counter[Gram]  # by context: number of distinct last words
    discount: float  # subtracted from every count


@final
class NGrams:
    """Probability of each word of a caption given the words before it; see the module."""

    def __init__(self, levels: Sequence[_Level]) -> None:
        self._levels = tuple(levels)
        self.order = len(levels)  # words of the longest n-gram
        self.words = len(levels[0].counts)  # distinct, the end of a caption among them

    @staticmethod
    def of(captions: Iterable[str], *, order: int = ORDER) -> NGrams:
        """Train a model on captions.

        Raises:
            ValueError: there is no caption, or the order is below 1.
        """
        if order < 1:
            raise ValueError(f"n-grams of {order} words cannot be counted; at least 1 is needed")
        raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
        for caption in captions:
            words = _ended(caption)
            for length in range(1, order + 1):
                grams = zip(*(words[start:] for start in range(length)))
                raw[length - 1].update(grams)
        if not raw[0]:
            raise ValueError("a language model needs at least one caption to learn from")
        del raw[0][(START,)]  # never predicted
        return NGrams(_levels(raw))

    def scores(self, captions: Sequence[str]) -> Tensor:
        """(N,) double, mean log probability of the words of each caption and of its end."""
        means = [sum(logs) / len(logs) for logs in map(self._logs, captions)]
        return torch.tensor(means, dtype=torch.double)

    def probability(self, word: str, before: Sequence[str]) -> float:
        """Probability of a word after others, the first of which may be `START`."""
        probability = 1 / (self.words + 1)  # one share for all unknown words
        for length, level in enumerate(self._levels):
            if length > len(before):
                break
            context = tuple(before[len(before) - length :])
            total = level.totals[context]
            if not total:
                break
            discounted = max(level.counts[(*context, word)] - level.discount, 0.0)
            backoff = level.discount * level.kinds[context] * probability
            probability = (discounted + backoff) / total
        return probability

    def _logs(self, caption: str) -> list[float]:
        words = _ended(caption)
        return [
            math.log(self.probability(words[at], words[max(0, at - self.order + 1) : at]))
            for at in range(1, len(words))
        ]


def _ended(caption: str) -> Gram:
    return START, *split_words(caption), END


def _levels(raw: Sequence[Counter[Gram]]) -> list[_Level]:
    levels = []
    for place, counts in enumerate(raw):
        if place + 1 < len(raw):
            counts = _preceded(counts, raw[place + 1])
        totals: Counter[Gram] = Counter()
        kinds: Counter[Gram] = Counter()
        for gram, count in counts.items():
            totals[gram[:-1]] += count
            kinds[gram[:-1]] += 1
        frequencies = Counter(counts.values())
        once, twice = frequencies[1], frequencies[2]
        discount = once / (once + 2 * twice) if once and twice else DISCOUNT
        levels.append(_Level(counts, totals, kinds, discount))
    return levels


def _preceded(counts: Counter[Gram], longer: Counter[Gram]) -> Counter[Gram]:
    """Distinct words before each n-gram; its occurrences, where it begins a caption."""
    words: defaultdict[Gram, int] = defaultdict(int)
    for gram in longer:
        words[gram[1:]] += 1
    return Counter({g: count if g[0] == START else words[g] for g, count in counts.items()})


# --- perplexity of captions ------------------------------------------------------------------
# TAGS-DC (https://arxiv.org/abs/2111.03349, Table 3) reports a perplexity and does not say which of
# three it is, so all are computed.

BATCH_TOKENS = 2**10


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionLogProbs:
    """Log probabilities of N captions by a language model."""

    logs: Tensor  # (N,) double, log probability of each whole caption
    tokens: Tensor  # (N,) long, number of its tokens; at least one

    def rows(self, rows: Tensor) -> CaptionLogProbs:
        """The log probabilities of some captions, by (N,) long rows."""
        return CaptionLogProbs(self.logs[rows], self.tokens[rows])

    @property
    def means(self) -> Tensor:
        """(N,) double, mean negative log probability of a token of each caption."""
        return -self.logs / self.tokens


@final
@dataclass(frozen=True, slots=True)
class Fluency:
    """Perplexities of some captions; lower is more fluent."""

    captions: int  # number of captions
    # exp of the mean, over captions, of the mean negative log probability of a token
    typical: Share
    mean: Share  # mean of the perplexities of the captions
    whole: Share  # perplexity of all tokens together, so that long captions count more
    times: Share | None = None  # `typical`, divided by that of the original captions

    def to_dict(self) -> dict[str, Any]:
        """The shares as plain values for JSON; None where one was not measured."""
        shares = {name: getattr(self, name) for name in ("typical", "mean", "whole", "times")}
        numbers = {name: share and share.to_dict() for name, share in shares.items()}
        return {"captions": self.captions, **numbers}


def fluency(
    captions: CaptionLogProbs,
    images: Tensor,
    *,
    made_of: CaptionLogProbs | None = None,
    seed: int = 0,
) -> Fluency:
    """Perplexities with 95 % intervals, bootstrapped over images with all their captions.

    Args:
        captions: N captions, at least one.
        images: (N,) long, the image of each.
        made_of: the N original captions.
        seed: of the resampling.
    """
    quantities = [
        Counted.mean(captions.means),
        Counted.mean(captions.means.exp()),
        Counted(-captions.logs, captions.tokens.double()),
    ]
    if made_of is not None:
        quantities.append(Counted.mean(captions.means - made_of.means))
    typical, mean, whole, *times = shares(quantities, images, seed=seed)
    change = _exponential(times[0]) if times else None
    return Fluency(len(captions.logs), _exponential(typical), mean, _exponential(whole), change)


def _exponential(share: Share) -> Share:
    """The exponential of a number and of the ends of its interval."""
    span = Interval(math.exp(share.interval.low), math.exp(share.interval.high))
    return Share(math.exp(share.value), span, share.count)


def ngram_log_probs(model: NGrams, captions: Sequence[str]) -> CaptionLogProbs:
    """Log probabilities of captions by n-grams; the end of each is a token."""
    tokens = torch.tensor([len(split_words(caption)) + 1 for caption in captions])
    return CaptionLogProbs(model.scores(captions) * tokens, tokens)


@final
class CausalLM:
    """Causal language model of Hugging Face, such as GPT-2.

    Each caption follows the token that begins a text, if the model has one, so that its first word
    counts; the end of a text does not.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        """Open a model, by its folder or name.

        Raises:
            ValueError: transformers is not installed, or there is no such language model.
        """
        transformers = import_transformers()
        options = hub_options(name)
        try:
            with quiet_transformers():
                self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name, **options)
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    name, dtype=torch.float32, **options
                )
        except Exception as error:  # libraries raise anything at damaged files
            raise ValueError(
                f"{name} cannot be read as a causal language model with its tokenizer; name a "
                "folder or a model such as gpt2, or leave --lm out for one of n-grams"
            ) from error
        self.name, self._device = name, torch.device(device)
        self._model: Any = model.to(self._device).eval()
        known = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        self._begin: int | None = next((token for token in known if token is not None), None)
        self.begins: str | None = None  # the token that begins a text, if there is one
        if self._begin is not None:
            self.begins = str(self._tokenizer.convert_ids_to_tokens(self._begin))

    def log_probs(self, captions: Sequence[str]) -> CaptionLogProbs:
        """Log probabilities of captions; equal ones are read once.

        Raises:
            ValueError: a caption has no token to predict, or more than the model reads.
        """
        unique = list(dict.fromkeys(captions))
        ids = self._ids(unique)
        logs = torch.zeros(len(unique), dtype=torch.double)
        order = sorted(range(len(unique)), key=lambda row: len(ids[row]))
        with progress("captions read", len(unique)) as advance, torch.inference_mode():
            while order:
                size = max(1, BATCH_TOKENS // len(ids[order[-1]]))
                rows, order = order[-size:], order[:-size]
                logs[rows] = self._logs([ids[row] for row in rows]).cpu()
                advance(len(rows))
        place = {caption: row for row, caption in enumerate(unique)}
        all_rows = torch.tensor([place[caption] for caption in captions], dtype=torch.long)
        tokens = torch.tensor([len(caption) - 1 for caption in ids], dtype=torch.long)
        return CaptionLogProbs(logs[all_rows], tokens[all_rows])

    def _ids(self, captions: Sequence[str]) -> list[list[int]]:
        first = [] if self._begin is None else [self._begin]
        read = self._tokenizer(list(captions), add_special_tokens=False)["input_ids"]
        ids = [[*first, *tokens] for tokens in read]
        most = getattr(self._model.config, "max_position_embeddings", None)
        for caption, tokens in zip(captions, ids, strict=True):
            if len(tokens) < 2 or (most and len(tokens) > most):
                raise ValueError(
                    f"{self.name} reads 2 to {most or 'any number of'} tokens and the caption "
                    f"{caption[:60]!r} has {len(tokens)}; leave it out, or take another model"
                )
        return ids

    def _logs(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """(N,) double, log probabilities of one batch of captions."""
        rows = [torch.tensor(tokens) for tokens in ids]
        values = pad_sequence(rows, batch_first=True).to(self._device)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        mask = mask.to(self._device)
        logits = self._model(input_ids=values, attention_mask=mask).logits[:, :-1].float()
        log_probabilities = logits.log_softmax(2).gather(2, values[:, 1:, None]).squeeze(2).double()
        logs: Tensor = log_probabilities.where(mask[:, 1:].bool(), 0).sum(1)
        return logs
