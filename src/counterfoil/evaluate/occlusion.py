"""What the score of a caption gains when a word is left out, for any model that reads captions.

This explains a score, not a word: where two words are wrong, leaving either out may change little,
and a word without which the sentence is odd may count for more than one that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from counterfoil.corpus.words import spans
from counterfoil.engine.modes import evaluating
from counterfoil.evaluate.explanation import Explanation, Word
from counterfoil.matcher import Matcher
from counterfoil.records import Encoded, Items

AT_ONCE = 256  # sentences scored together


def explain_without(
    matcher: Matcher,
    read: Callable[[Sequence[str]], Items],
    images: Encoded,
    captions: Sequence[str],
    *,
    image: Tensor | None = None,
) -> list[Explanation]:
    """Explain captions by their scores without each word.

    Args:
        matcher: any.
        read: captions as the matcher reads them.
        images: what the captions are said of.
        captions: none of them empty.
        image: (N,) which image goes with each caption; aligned with the images by default.

    Raises:
        ValueError: a score is not a number.
    """
    rows = torch.arange(len(captions)) if image is None else image.cpu()
    parts = [_words(text) for text in captions]
    told = [
        sentence
        for text, words in zip(captions, parts, strict=True)
        for sentence in (text, *(without(text, *word) for word in words))
    ]
    many = torch.tensor([1 + len(words) for words in parts], dtype=torch.long)
    scores = _scores(matcher, read, images, told, rows.repeat_interleave(many))
    found, at = [], 0
    for text, words in zip(captions, parts, strict=True):
        whole, *less = scores[at : at + 1 + len(words)]
        if whole != whole:
            raise ValueError(
                f"the score of {text!r} is not a number; look for NaN in the features, or train "
                "again with a lower learning rate"
            )
        said = tuple(
            Word(text[start:stop], start, stop, gain=one - whole)
            for (start, stop), one in zip(words, less, strict=True)
        )
        found.append(Explanation(text, whole, said))
        at += 1 + len(words)
    return found


def without(text: str, start: int, stop: int) -> str:
    """A caption without one of its words.

    >>> without("A red circle.", 2, 5)
    'A circle.'
    """
    before, after = text[:start], text[stop:]
    return before.rstrip() + after if before[-1:].isspace() else before + after.lstrip()


def _words(text: str) -> list[tuple[int, int]]:
    """Words that can be left out: those with letters, if there is another."""
    found = [word for word in spans(text) if any(sign.isalnum() for sign in text[slice(*word)])]
    return found if len(found) > 1 else []


def _scores(
    matcher: Matcher,
    read: Callable[[Sequence[str]], Items],
    images: Encoded,
    texts: Sequence[str],
    image: Tensor,
) -> list[float]:
    device = next(matcher.parameters()).device
    scores: list[float] = []
    with evaluating([matcher]):
        for start in range(0, len(texts), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            encoded = matcher.encode_texts(read(texts[part]).to(device))
            scores += matcher.pairs(images.rows(image[part]).to(device), encoded).tolist()
    return scores
