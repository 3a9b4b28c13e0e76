"""Captions of which it is known whether they are true of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.meanings import Meanings
from counterfoil.corpus.scenes import graphs, is_true
from counterfoil.data.corrections import read_crowd_votes
from counterfoil.engine.scored import score_pairs
from counterfoil.negatives.paraphrase import Nearness
from counterfoil.negatives.word_rules import Exchanged, exchanged, written_anew
from counterfoil.negatives.written_store import WrittenFoil
from counterfoil.recipes.analyses.scorers import Scorer
from counterfoil.recipes.analyses.stores import Stored
from counterfoil.recipes.run import Source


@final
@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Captions and the truth about them.

    Attributes:
        name: of the set.
        said: where it comes from, and who decided, in words.
        corpus: has the pictures, and their own captions.
        captions: N of them.
        true: (N,) bool.
        images: (N,) long, rows of the pictures.
        words: what was exchanged in each; all of its words, where it was made of no other.
        made_of: (N,) long, row of the caption that it was made of; -1 for none.
        scores: (N,) what models thought of them, by the name of the score.
    """

    name: str
    said: str
    corpus: Corpus
    captions: tuple[str, ...]
    true: Tensor
    images: Tensor
    words: tuple[Exchanged, ...]
    made_of: Tensor
    scores: Mapping[str, Tensor]

    def asked(self, guide: Scorer) -> tuple[Tensor, Tensor]:
        """(N,) a model's scores, and those of the captions they are measured against.

        That is the caption that each was made of; of those made of no other, the mean of the
        picture's own.

        Raises:
            ValueError: the model cannot see the pictures or read the captions.
        """
        for model in guide.models:
            if model.lens is None or model.lens.tokenizer is None:
                raise ValueError(
                    f"{model.name} compares ready-made vectors and cannot read written captions; "
                    "give a model folder or the name of a model"
                )
        more, old = len(self.captions), len(self.corpus.texts)
        both = replace(
            self.corpus,
            texts=[*self.corpus.texts, *self.captions],
            text_ids=[*self.corpus.text_ids, *(f"written {row}" for row in range(more))],
            owner=torch.cat([self.corpus.owner, torch.full((more,), -1)]),
            text_features=None,
        )
        own, counts = self.corpus.relation.captions(self.images)
        whose = torch.arange(more).repeat_interleave(counts)
        kept = (self.made_of[whose] < 0) | (self.made_of[whose] == own)
        own, whose = own[kept], whose[kept]
        images = torch.cat([self.images, self.images[whose]])
        texts = torch.cat([old + torch.arange(more), own])
        pairs = images * len(both.texts) + texts
        once, place = pairs.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        found = score_pairs(guide.on(both), once // len(both.texts), once % len(both.texts))[place]
        sums = torch.zeros(more).index_add_(0, whose, found[more:])
        return found[:more], sums / whose.bincount(minlength=more)

    def meant(self, meanings: Meanings) -> tuple[Tensor, Tensor]:
        """(N,) how near they are in meaning to the picture's captions, and how near its own are.

        The caption that each was made of does not count; where it was made of no other, its own are
        all captions of the picture, each compared with the others, and their mean counts. -inf for
        a picture that has no other caption.
        """
        relation = self.corpus.relation
        every = self.images.unique()  # type: ignore[no-untyped-call]
        told = relation.captions(every)[0].sort().values
        texts = meanings.vectors([self.corpus.texts[row] for row in told.tolist()])
        of = Nearness(relation, told, texts)
        new = of.nearest(meanings.vectors(self.captions), self.images, self.made_of)
        each = of.nearest(texts, relation.owner[told], told)
        own, counts = relation.captions(self.images)
        whose = torch.arange(len(self.captions)).repeat_interleave(counts)
        kept = (self.made_of[whose] < 0) | (self.made_of[whose] == own)
        own, whose = own[kept], whose[kept]
        sums = torch.zeros(len(counts)).index_add_(0, whose, each[torch.searchsorted(told, own)])
        return new, sums / whose.bincount(minlength=len(counts))


def decided(stored: Stored) -> Known:
    """Written captions of scenes, of which it can be decided whether they are true.

    Raises:
        ValueError: they were written for other pictures.
    """
    try:
        scenes = graphs(stored.corpus)
    except ValueError:
        raise ValueError(
            f"{stored.name} was written for {stored.corpus.name}, and only of scenes can it be "
            "decided what is true; name judgements with --crowd, or have people judge: "
            "`counterfoil judge export`"
        ) from None
    found = []
    with progress("captions decided", len(stored.foils)) as advance:
        for foil, image in zip(stored.foils, stored.images, strict=True):
            found.append(is_true(foil.foil, scenes[image]))
            advance(1)
    rows = [row for row, true in enumerate(found) if true is not None]
    foils = [stored.foils[row] for row in rows]
    outside = len(found) - len(rows)
    return Known(
        name=stored.name,
        said=f"{stored.said()}; {outside:,} outside the grammar of scenes left out",
        corpus=stored.corpus,
        captions=tuple(foil.foil for foil in foils),
        true=torch.tensor([bool(found[row]) for row in rows], dtype=torch.bool),
        images=torch.tensor(stored.images)[rows],
        words=tuple(map(exchanged, foils)),
        made_of=torch.tensor(stored.texts)[rows],
        scores=_stored_scores(foils),
    )


def _stored_scores(foils: Sequence[WrittenFoil]) -> dict[str, Tensor]:
    """The writer's scores, alone and less the caption's; none where it did not note both."""
    if not foils or any(not {"caption", "foil"} <= set(foil.scores) for foil in foils):
        return {}
    new, old = (torch.tensor([f.scores[name] for f in foils]) for name in ("foil", "caption"))
    return {"stored score": new, "stored score less the caption's": new - old}


def judged(path: Path, source: Source) -> Known:
    """Captions of other pictures that a crowd was shown; true where half or more said yes.

    Raises:
        ValueError: no judgements are there, or they are about other data.
    """
    whole = source.open()
    crowd = read_crowd_votes(path, whole)
    rows = torch.cat([crowd.images, whole.owner[crowd.texts]]).unique()  # type: ignore[no-untyped-call]
    corpus = whole.subset(rows[rows >= 0])
    others = read_crowd_votes(path, corpus)
    every = len(others)
    others = others.rows(corpus.owner[others.texts] != others.images)
    captions = tuple(corpus.texts[row] for row in others.texts.tolist())
    return Known(
        name=path.stem,
        said=(
            f"{path.name}: {len(others):,} captions shown with other pictures of {whole.name}, "
            f"true where half of the crowd or more says so; {every - len(others):,} shown with "
            "their own left out"
        ),
        corpus=corpus,
        captions=captions,
        true=others.true,
        images=others.images,
        words=tuple(map(written_anew, captions)),
        made_of=torch.full((len(others),), -1),
        scores={},
    )
