"""Anchors with their online and offline negatives side by side (AOQ, Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows
from counterfoil.evaluate.gallery import Exhibits, shown_caption, shown_image
from counterfoil.negatives.examples import Example, Kinds, Listed
from counterfoil.negatives.examples import examples as drawn
from counterfoil.negatives.mined import as_many_images
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import exhibits, open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

Found = list[tuple[Example, Example]]


def examples(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "train",
    lists: Path | None = None,
    anchors: int = 6,
    batch: int = 128,
    top: int = 300,
    shown: int = 3,
    seed: int = 0,
) -> Found:
    """Show what a batch offers an anchor, and what the whole split does.

    Offline negatives are drawn from the `top` hardest captions of an image, and from as many fewer
    images of a caption as there are fewer images: 60 of 300 at five captions an image.

    Args:
        name: of the model that scores; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        lists: folder of mined lists to draw offline negatives from; without it the model's own.
        anchors: how many images, each with one of its captions.
        batch: captions in a batch; all there are, where there are fewer.
        top: draw offline from so many captions of an image; from all, where there are fewer.
        shown: how many batches, and how many offline negatives.
        seed: of anchors, batches and draws.

    Raises:
        ValueError: the page exists, or model, lists and data do not fit.
    """
    check_out(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers([name])
    store = NegativeStore.open(lists, fingerprint=corpus.fingerprint) if lists else None
    kinds = _kinds(corpus, store, batch=batch, top=top, shown=shown)
    found = drawn(
        scorers[0].on(corpus),
        corpus.relation,
        kinds=kinds,
        anchors=anchors,
        rng=torch.Generator().manual_seed(seed),
        lists=store.lists if store else None,
    )
    whose = f"lists of {lists}" if lists else "the model's own lists"
    drawing = f"offline: drawn from {kinds.texts} texts and {kinds.images} images, {whose}"
    numbers = {"models": [name], "seed": seed, **asdict(kinds), "anchors": _plain(found, corpus)}
    protocol = f"{said(corpus, scorers, seed=seed)}; batches of {kinds.batch}; {drawing}"
    publish(_page(found, corpus, kinds, protocol), numbers, out)
    return found


def _kinds(
    corpus: Corpus, store: NegativeStore | None, *, batch: int, top: int, shown: int
) -> Kinds:
    """What was asked for, as far as the corpus and the lists go."""
    many = max(1, len(corpus.texts))
    texts = min(top, many)
    images = as_many_images(texts, corpus.relation)
    if store is not None:
        texts = min(texts, store.lists.texts.shape[1])
        images = min(images, store.lists.images.shape[1])
    return Kinds(batch=min(batch, many), texts=texts, images=images, shown=shown)


def _page(found: Found, corpus: Corpus, kinds: Kinds, protocol: str) -> AnalysisPage:
    sides = [pair[0] for pair in found], [pair[1] for pair in found]
    rows = tuple(
        (f"{what}, {kind}", *_middle([getattr(example, kind) for example in side]))
        for what, side in zip(("captions of an image", "images of a caption"), sides)
        for kind in ("true", "online", "offline")
    )
    head = "", "median rank", "median score"
    note = "Rank among all wrong counterparts of the split, from 1."
    shown = exhibits(corpus)
    whole = f"{len(corpus.texts):,} captions and {len(corpus):,} images"
    return AnalysisPage(
        title="Online and offline negatives",
        headline=f"What a batch of {kinds.batch} offers an anchor, and what {whole} do.",
        protocol=protocol,
        provenance=made_now(),
        tables=(Rows("In these examples", head, rows, note),),
        sections=(
            Cards(
                "Images and wrong captions",
                "Before each caption its rank among the wrong ones, after it its score.",
                tuple(_card(shown, one, kinds, asks_image=True) for one in sides[0]),
            ),
            Cards(
                "Captions and wrong images",
                "Under each image its rank among the wrong ones and its score.",
                tuple(_card(shown, one, kinds, asks_image=False) for one in sides[1]),
            ),
        ),
    )


def _card(shown: Exhibits, example: Example, kinds: Kinds, *, asks_image: bool) -> Card:
    item = shown_caption if asks_image else shown_image

    def column(title: str, note: str, listed: Listed) -> Column:
        rows = zip(listed.rows, listed.places, listed.scores)
        return Column(title, note, tuple(item(shown, r, example.row, p - 1, s) for r, p, s in rows))

    listed_from = kinds.texts if asks_image else kinds.images
    return Card(
        (shown_image if asks_image else shown_caption)(shown, example.row),
        "",
        (
            column("Positive", "", example.true),
            column("Online", f"hardest of each of {kinds.shown} batches", example.online),
            column("Offline", f"drawn from the {listed_from} hardest", example.offline),
        ),
    )


def _middle(listed: Sequence[Listed]) -> tuple[str, str]:
    """Median place and median score of everything listed."""
    ranks = torch.tensor([place for one in listed for place in one.places]).double()
    values = torch.tensor([score for one in listed for score in one.scores]).double()
    if not len(ranks):
        return "–", "–"
    return f"{ranks.median():,.0f}", f"{values.median():.3f}".replace("-", "−")


def _plain(found: Found, corpus: Corpus) -> list[dict[str, object]]:
    return [
        {
            "image": corpus.image_ids[image.row],
            "caption": corpus.texts[text.row],
            "texts": asdict(image),
            "images": asdict(text),
        }
        for image, text in found
    ]
