"""Foils of rendered scenes: captions wrong by one detail, or with their words shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.foil_forms import FoilEntry
from counterfoil.corpus.foil_orders import Tagged, shuffles
from counterfoil.corpus.foil_sets import FoilSet, assembled
from counterfoil.corpus.reading import open_corpus
from counterfoil.corpus.scenes import foils, graphs, parse


def scenes_foils(source: str, split: str, seed: int, *, shuffled: bool = False) -> FoilSet:
    """A set made of a split of scenes.

    Each caption meets the first foil of each kind that `counterfoil.corpus.scenes.foils` finds; or
    its four shuffles at once.

    Args:
        source: as "scenes" or "scenes:images=300".
        split: of the scenes.
        seed: of the draw of foils.
        shuffled: shuffle words instead of exchanging one.

    Raises:
        ValueError: no such scenes or split.
    """
    corpus = open_corpus(source).split(split)
    rng = torch.Generator().manual_seed(seed)
    entries = _orders(corpus, rng) if shuffled else _details(corpus, rng)
    what = "shuffled captions" if shuffled else "foils"
    made = assembled(
        "order" if shuffled else "scenes",
        entries,
        {},
        source,
        name=f"{what} of {corpus.name} {corpus.part}",
        seed=seed,
    )
    return _drawn(made, corpus)


def _drawn(made: FoilSet, corpus: Corpus) -> FoilSet:
    """The set with pictures and features of the scenes."""
    place = {name: row for row, name in enumerate(corpus.image_ids)}
    rows = torch.tensor([place[name] for name in made.corpus.image_ids])
    seen = corpus.subset(rows)
    filled = replace(made.corpus, pictures=seen.pictures, features=seen.features)
    return replace(made, corpus=filled)


def _details(corpus: Corpus, rng: torch.Generator) -> Iterator[FoilEntry]:
    scenes = graphs(corpus)
    for row, caption in enumerate(corpus.texts):
        image = int(corpus.owner[row])
        seen: set[str] = set()
        for foil in foils(caption, scenes[image], rng):
            if foil.kind in seen:
                break  # the first of each kind come first
            seen.add(foil.kind)
            name = f"{corpus.text_ids[row]} {foil.kind}"
            shown = (corpus.image_ids[image],)
            yield FoilEntry(name, foil.kind, shown, (caption, foil.caption))


def _orders(corpus: Corpus, rng: torch.Generator) -> Iterator[FoilEntry]:
    for row, caption in enumerate(corpus.texts):
        image = corpus.image_ids[int(corpus.owner[row])]
        yield FoilEntry(corpus.text_ids[row], "", (image,), shuffles(caption, tagged(caption), rng))


def tagged(caption: str) -> Tagged:
    """Words of a caption of scenes, with the places of its nouns and adjectives by its grammar."""
    parsed = parse(caption)
    assert parsed is not None
    nouns = [span.start for span in parsed.of("object")]
    told = [s for s in parsed.of("size", "pattern", "colour") if s.stop - s.start == 1]
    return Tagged(tuple(parsed.words), tuple(nouns), tuple(span.start for span in told))
