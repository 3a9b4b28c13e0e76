"""Foils of drawn captions from many sources: stored, written now, by rule, or other captions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.data.caption_edits import RULE_KINDS
from counterfoil.evaluate.discrimination import Duels
from counterfoil.negatives.rule_writer import RuleWriter, frequent_nouns
from counterfoil.negatives.written_store import WrittenFoil
from counterfoil.recipes.analyses.asking import Pen, single, writer_of
from counterfoil.recipes.analyses.scorers import Scorer
from counterfoil.recipes.analyses.stores import open_stores
from counterfoil.recipes.run import Source

SCORE = "foil"  # under which a writer stores what it thinks of its own


@final
@dataclass(frozen=True, slots=True, eq=False)
class Foils:
    """Foils of one source.

    Attributes:
        source: in tables.
        rows: (P,) rows of the captions, those of one caption side by side.
        texts: P foils.
        ranked: whether the first of each caption is the one that its writer thinks the hardest.
    """

    source: str
    rows: Tensor
    texts: tuple[str, ...]
    ranked: bool = False

    def duels(self, owner: Tensor) -> Duels:
        """The pairs that they are part of."""
        before = torch.cat([self.rows.new_full((1,), -1), self.rows[:-1]])
        hardest = self.rows != before if self.ranked else None
        return Duels(owner[self.rows], self.rows, hardest)


def stored(
    folders: Sequence[Path], source: Source, corpus: Corpus, rows: Tensor
) -> Iterator[Foils]:
    """Written captions of folders; what rules wrote by its kind.

    Raises:
        ValueError: a folder is none, was written for another split, or has no foil of the captions.
    """
    for folder, store in zip(folders, open_stores(folders, source) if folders else ()):
        if store.corpus.part != corpus.part:
            raise ValueError(
                f"{folder} was written for split {store.corpus.part!r}, and what is asked is "
                f"{corpus.part!r}; name it with --split"
            )
        found = list(_of(store.name, store.foils, corpus, rows))
        if not found:
            raise ValueError(
                f"{folder} has no foil of the {len(rows):,} captions that were drawn; draw more "
                "with --anchors"
            )
        yield from found


def written(scorer: Scorer, corpus: Corpus, rows: Tensor, pen: Pen, seed: int) -> Iterator[Foils]:
    """What a model writes now.

    Raises:
        ValueError: it cannot write.
    """
    writer = writer_of(single(scorer), corpus, pen, seed)
    yield from _of(f"by {scorer.name}", writer.foils(rows.tolist()), corpus, rows)


def by_rule(source: Source, corpus: Corpus, rows: Tensor, most: int, seed: int) -> Iterator[Foils]:
    """What VSE-C's rules write, by kind; their nouns come from the training split."""
    nouns = frequent_nouns(source.split("train").texts)
    writer = RuleWriter(nouns=nouns, kinds=RULE_KINDS, most=most, seed=seed)
    some = corpus.subset(corpus.owner[rows])
    yield from _of("rules", writer.foils(some), corpus, rows)


def others(corpus: Corpus, rows: Tensor, many: int, seed: int) -> Iterator[Foils]:
    """Random captions of other pictures, which everybody ought to tell apart.

    What is word for word a caption of the picture itself is none of them.
    """
    rng = torch.Generator().manual_seed(seed)
    owner, made_of, texts = corpus.owner, [], []
    for row in rows.tolist():
        own = {corpus.texts[one] for one in (owner == owner[row]).nonzero().squeeze(1).tolist()}
        wrong = ((owner >= 0) & (owner != owner[row])).nonzero().squeeze(1)
        order = wrong[torch.randperm(len(wrong), generator=rng)].tolist()
        drawn = [other for other in order if corpus.texts[other] not in own][:many]
        made_of += [row] * len(drawn)
        texts += [corpus.texts[other] for other in drawn]
    if texts:
        yield Foils("random captions", torch.tensor(made_of), tuple(texts))


def _of(name: str, foils: Iterable[WrittenFoil], corpus: Corpus, rows: Tensor) -> Iterator[Foils]:
    """Foils of drawn captions; where their writer does not say which are hard, by their kind."""
    number = {text: row for row, text in enumerate(corpus.text_ids)}
    wanted = set(rows.tolist())
    mine = [(number[foil.text], foil) for foil in foils if number[foil.text] in wanted]
    mine.sort(key=lambda pair: pair[0])  # stable: the hardest of each stays first
    ranked = all(SCORE in foil.scores for _, foil in mine)
    kinds = [""] if ranked else list(dict.fromkeys(foil.kind for _, foil in mine))
    for kind in kinds:
        some = [(row, foil.foil) for row, foil in mine if kind in ("", foil.kind)]
        if some:
            told = f"{name}, {kind}" if kind else name
            made_of = torch.tensor([row for row, _ in some])
            yield Foils(told, made_of, tuple(text for _, text in some), ranked)
