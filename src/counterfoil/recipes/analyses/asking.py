"""Captions of pictures of a split, some of which stand in no split, shown to models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.engine.scored import score_pairs
from counterfoil.evaluate.margins import unit_of
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import Hand
from counterfoil.negatives.model_writer import ModelWriter
from counterfoil.reading import ReadsWords, Want
from counterfoil.recipes.analyses.scorers import Scorer
from counterfoil.recipes.model import Model

INTERVALS = "95 % intervals: images drawn anew with all that belongs to them, 1,000 times"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Pen:
    """How models write while an analysis waits.

    Attributes:
        masks: maskings of a caption.
        refills: of each masking.
        keep: of what came of it, the hardest.
        temperature: of the draw of words.
    """

    masks: int = 20
    refills: int = 20
    keep: int = 10
    temperature: float = 1.5

    @property
    def hand(self) -> Hand:
        """The same for the library."""
        return Hand(masks=self.masks, refills=self.refills, temperature=self.temperature)

    def said(self) -> str:
        """In words."""
        return (
            f"{self.masks} maskings of a caption, {self.refills} refills of each at temperature "
            f"{self.temperature:g}, the {self.keep} hardest kept that may be false"
        )


def desk_of(model: Model, corpus: Corpus) -> Desk:
    """Where a model writes.

    Raises:
        ValueError: it reads ready-made vectors, or cannot see the corpus.
    """
    return Desk(lens=model.on(corpus), parser=RulePhraseParser())


def writer_of(model: Model, corpus: Corpus, pen: Pen, seed: int) -> ModelWriter:
    """A model as a writer.

    Raises:
        ValueError: it fills no hidden words, or cannot see the corpus.
    """
    return ModelWriter(
        desk=desk_of(model, corpus),
        matcher=model.matcher,
        hand=pen.hand,
        keep=pen.keep,
        seed=seed,
    )


def single(scorer: Scorer) -> Model:
    """The model of one that is no ensemble.

    Raises:
        ValueError: it is one.
    """
    if len(scorer.models) > 1:
        raise ValueError(
            f"{scorer.given} is an ensemble, which says nothing of words and writes none; name "
            "one model"
        )
    return scorer.models[0]


def writes(scorer: Scorer) -> bool:
    """Whether it is one model that fills hidden words."""
    one = scorer.models[0].matcher
    return len(scorer.models) == 1 and isinstance(one, ReadsWords) and Want.FILL in one.wants


def check_reads(scorers: Sequence[Scorer]) -> None:
    """Refuse models that cannot read a caption, before anything is encoded.

    Raises:
        ValueError: one compares ready-made vectors.
    """
    for scorer in scorers:
        for model in scorer.models:
            if model.lens is None or model.lens.tokenizer is None:
                raise ValueError(
                    f"{model.name} compares ready-made vectors and cannot read written captions; "
                    "give a model folder or the name of a model"
                )


def drawn_captions(corpus: Corpus, many: int, rng: torch.Generator) -> Tensor:
    """(S,) rows of captions of different images, in the order of the images.

    Raises:
        ValueError: no text describes an image.
    """
    told = (corpus.relation.counts > 0).nonzero().squeeze(1)
    if not len(told):
        raise ValueError(f"{corpus.name} {corpus.part} has no caption that describes an image")
    images = told[torch.randperm(len(told), generator=rng)[:many].sort().values]
    return corpus.relation.random_caption(images, rng)


def asked(scorer: Scorer, corpus: Corpus, images: Tensor, texts: Sequence[str]) -> Tensor:
    """(P,) scores of pictures with captions, in units of a score; each pair is scored once.

    Args:
        scorer: who is asked.
        corpus: has the pictures.
        images: (P,) rows of it.
        texts: P captions.

    Raises:
        ValueError: the model and the corpus do not fit.
    """
    seen, image = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    shown = replace(
        corpus.subset(seen),
        texts=list(number),
        text_ids=[str(row) for row in range(len(number))],
        owner=torch.full((len(number),), -1),
        text_features=None,
    )
    pairs = image * len(number) + torch.tensor([number[text] for text in texts])
    once, place = pairs.unique(return_inverse=True)
    members = scorer.on(shown)
    found = score_pairs(members, once // len(number), once % len(number))
    return found[place].double() / unit_of(members)
