"""Captions with their words in another order.

Yuksekgonul et al., "When and why vision-language models behave like bags-of-words, and what to do
about it?", ICLR 2023, section 2.3: four shuffles of a caption stand against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch

from counterfoil.corpus.foil_rows import Rows
from counterfoil.corpus.words import split

LONGEST = 30  # words, as BLIP's captions are cut
TAGGER = "en_core_web_sm"
NOUNS, ADJECTIVES = ("NN", "NNS", "NNP", "NNPS"), ("JJ", "JJR", "JJS")


@final
@dataclass(frozen=True, slots=True)
class Tagged:
    """Words of a caption and what they are.

    Attributes:
        words: in order.
        nouns: places of the nouns.
        adjectives: places of the adjectives.
    """

    words: tuple[str, ...]
    nouns: tuple[int, ...]
    adjectives: tuple[int, ...]


def shuffles(caption: str, tagged: Tagged, rng: torch.Generator) -> tuple[str, ...]:
    """The caption and its four shuffles, all as `trimmed` writes them.

    Nouns among themselves and adjectives among themselves; all other words; words within groups
    of three; groups of three.

    Departs from the authors' code in: words are split by `counterfoil.corpus.words.split` for all
    four, and one seeded generator shuffles.
    """
    words = list(tagged.words)
    named = {*tagged.nouns, *tagged.adjectives}
    rest = [place for place in range(len(words)) if place not in named]
    first = _shuffled(_shuffled(words, tagged.nouns, rng), tagged.adjectives, rng)
    plain = split(caption)
    threes = [plain[start : start + 3] for start in range(0, len(plain), 3)]
    within = [word for three in threes for word in _shuffled(three, range(len(three)), rng)]
    moved = [threes[place] for place in torch.randperm(len(threes), generator=rng).tolist()]
    across = [word for three in moved for word in three]
    told = (first, _shuffled(words, rest, rng), within, across)
    return trimmed(caption), *(trimmed(" ".join(one)) for one in told)


def is_plain(rows: Rows) -> bool:
    """Whether entries are captions of pictures, yet to be shuffled."""
    return all(
        isinstance(one, dict) and "caption" in one and "caption_options" not in one
        for _, one in rows
    )


def reordered(path: Path, rows: Rows, seed: int) -> Rows:
    """Entries with every caption and its shuffles, nouns and adjectives told by spaCy.

    Args:
        path: the file, for messages.
        rows: entries with a caption or a list of them.
        seed: of the shuffles.

    Raises:
        ValueError: spaCy or its model is not installed, or a caption is not text.
    """
    rng = torch.Generator().manual_seed(seed)
    asked: list[tuple[str, dict[str, Any], str]] = []
    for name, plain in rows:
        held = plain["caption"]
        captions = held if isinstance(held, list) else [held]
        for place, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise ValueError(f"{path}: {name}.caption: a text or a list of texts is needed")
            asked.append((f"{name}.caption[{place}]", plain, caption))
    tagged = _by_spacy([caption for _, _, caption in asked])
    return [
        (name, plain | {"caption_options": list(shuffles(caption, words, rng))})
        for (name, plain, caption), words in zip(asked, tagged)
    ]


def _by_spacy(captions: Sequence[str]) -> Iterator[Tagged]:
    try:
        reader = import_module("spacy").load(TAGGER)
    except (ImportError, OSError):
        raise ValueError(
            f"shuffling nouns and adjectives needs spaCy with {TAGGER}, which is not installed: "
            f"pip install spacy, python -m spacy download {TAGGER}; or give a file whose entries "
            'have "caption_options"'
        ) from None
    for document in reader.pipe(captions):
        tags = [word.tag_ for word in document]
        yield Tagged(
            tuple(word.text for word in document),
            tuple(place for place, tag in enumerate(tags) if tag in NOUNS),
            tuple(place for place, tag in enumerate(tags) if tag in ADJECTIVES),
        )


def trimmed(caption: str) -> str:
    """A caption in lower case without punctuation, cut to 30 words.

    >>> trimmed('A man, "Bob", sits.  (Alone)')
    'a man, bob , sits alone'
    """
    words = re.sub(r"[.!\"()*#:;~]", " ", caption.lower()).split()
    return " ".join(words[:LONGEST])


def _shuffled(words: Sequence[str], places: Sequence[int], rng: torch.Generator) -> list[str]:
    """The words with those of some places exchanged at random."""
    found = list(words)
    for place, other in zip(places, torch.randperm(len(places), generator=rng).tolist()):
        found[place] = words[places[other]]
    return found
