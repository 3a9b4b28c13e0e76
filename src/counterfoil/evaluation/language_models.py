"""A language model that has seen captions and no picture.

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

from counterfoil.core.console import progress
from counterfoil.data.tokenizers import END, START, split_words
from counterfoil.evaluation.bootstrap import Counted, Interval, Share, shares
from counterfoil.models.layers.pretrained import hf_library

Gram: TypeAlias = tuple[str, ...]
ORDER = 3
DISCOUNT = 0.5  # where too few n-grams are seen once and twice to estimate one


@final
@dataclass(frozen=True, slots=True)
class _Level:
    """Counts of the n-grams of one length, and what follows each context.

    Attributes:
        counts: of each n-gram: how often it stands there; below the longest, after how many words.
        totals: their sum over the last word.
        kinds: how many last words there are.
        discount: taken off every count.
    """

    counts: Counter[Gram]
    totals: Counter[Gram]
    kinds: Counter[Gram]
    discount: float


@final
class NGrams:
    """Probability of each word of a caption given the words before it; see the module.

    Attributes:
        order: words of the longest n-gram.
        words: how many different ones it has seen, the end of a caption among them.
        captions: how many it has seen.
    """

    def __init__(self, levels: Sequence[_Level], captions: int) -> None:
        self._levels = tuple(levels)
        self.order, self.captions = len(levels), captions
        self.words = len(levels[0].counts)

    @staticmethod
    def of(captions: Iterable[str], *, order: int = ORDER) -> NGrams:
        """The model of these captions.

        Raises:
            ValueError: there is no caption, or the order is below 1.
        """
        if order < 1:
            raise ValueError(f"n-grams of {order} words cannot be counted; at least 1 is needed")
        raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
        many = 0
        for caption in captions:
            words = _ended(caption)
            many += 1
            for length in range(1, order + 1):
                grams = zip(*(words[start:] for start in range(length)))
                raw[length - 1].update(grams)
        if not many:
            raise ValueError("a language model needs at least one caption to learn from; none came")
        del raw[0][(START,)]  # nothing begins a caption twice
        return NGrams(_levels(raw), many)

    def scores(self, captions: Sequence[str]) -> Tensor:
        """(N,) double, mean log probability of the words of each caption and of its end."""
        found = [sum(logs) / len(logs) for logs in map(self._logs, captions)]
        return torch.tensor(found, dtype=torch.double)

    def perplexity(self, captions: Sequence[str]) -> float:
        """Of all words of these captions and their ends together.

        Raises:
            ValueError: there is no caption.
        """
        logs = [log for caption in captions for log in self._logs(caption)]
        if not logs:
            raise ValueError("a perplexity needs at least one caption; none came")
        return math.exp(-sum(logs) / len(logs))

    def probability(self, word: str, before: Sequence[str]) -> float:
        """Of a word after others, the first of which may be `START`."""
        found = 1 / (self.words + 1)  # one share for all that was never seen
        for length, level in enumerate(self._levels):
            if length > len(before):
                break
            context = tuple(before[len(before) - length :])
            total = level.totals[context]
            if not total:
                break
            kept = max(level.counts[(*context, word)] - level.discount, 0.0)
            found = (kept + level.discount * level.kinds[context] * found) / total
        return found

    def _logs(self, caption: str) -> list[float]:
        words = _ended(caption)
        return [
            math.log(self.probability(words[at], words[max(0, at - self.order + 1) : at]))
            for at in range(1, len(words))
        ]


def _ended(caption: str) -> Gram:
    return START, *split_words(caption), END


def _levels(raw: Sequence[Counter[Gram]]) -> list[_Level]:
    found = []
    for place, counts in enumerate(raw):
        if place + 1 < len(raw):
            counts = _preceded(counts, raw[place + 1])
        totals: Counter[Gram] = Counter()
        kinds: Counter[Gram] = Counter()
        for gram, count in counts.items():
            totals[gram[:-1]] += count
            kinds[gram[:-1]] += 1
        seen = Counter(counts.values())
        once, twice = seen[1], seen[2]
        discount = once / (once + 2 * twice) if once and twice else DISCOUNT
        found.append(_Level(counts, totals, kinds, discount))
    return found


def _preceded(counts: Counter[Gram], longer: Counter[Gram]) -> Counter[Gram]:
    """After how many words each n-gram stands; how often, where it begins a caption."""
    words: defaultdict[Gram, int] = defaultdict(int)
    for gram in longer:
        words[gram[1:]] += 1
    return Counter({g: count if g[0] == START else words[g] for g, count in counts.items()})


# Perplexity of captions by a causal language model or by n-grams.
#
# TAGS-DC (https://arxiv.org/abs/2111.03349, Table 3) prints one perplexity and does not say which
# of
# three it is, so all are computed.


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "captions": self.captions,
            "typical": self.typical.to_dict(),
            "mean": self.mean.to_dict(),
            "whole": self.whole.to_dict(),
            "times": self.times.to_dict() if self.times else None,
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
    tokens = torch.tensor([len(split_words(caption)) + 1 for caption in captions])
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
        transformers = hf_library()
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
