"""Negatives that were written before, by whomever, for a model of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.lens import CorpusLens
from counterfoil.matcher import Matcher
from counterfoil.negatives.proposal import Proposal
from counterfoil.negatives.written_store import WrittenStore
from counterfoil.records import Batch, Pairs, Role, Views


@final
class Written:
    """Draws stored foils of each anchor caption, which the model in training reads as text.

    VSE-C (https://arxiv.org/abs/1806.10348) trains on rules' foils, TAGS's "static" negatives are a
    frozen model's; each visit of an anchor draws anew, without replacement. Roles: "written".

    Departs from VSE-C's code in: an anchor's candidates are foils of its own caption, not the
    hardest of those of the whole batch.
    """

    provides = frozenset({Role.WRITTEN})
    provides_words = frozenset[str]()
    anchors_only = True

    def __init__(
        self,
        *,
        folder: str,
        lens: CorpusLens,
        count: int = 5,
        kinds: tuple[str, ...] = (),
        shared: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            folder: of written captions, as ``counterfoil write`` makes it.
            lens: what the model in training sees of the corpus.
            count: N, foils of each anchor; fewer where fewer are stored.
            kinds: only these, as in ("noun", "numeral"); () for all.
            shared: every anchor's image is asked about the foils of all anchors, as NegCLIP
                (https://arxiv.org/abs/2210.01936) appends them to the texts of a batch.

        Raises:
            ValueError: the folder is none, is damaged or was written for another corpus, the model
                reads no words, or nothing is left to draw.
        """
        if count < 1:
            raise ValueError(f"count={count} is not possible; it must be at least 1")
        if lens.lens.tokenizer is None:
            raise ValueError("this model compares ready-made vectors and cannot read written foils")
        store = WrittenStore.open(Path(folder), fingerprint=lens.corpus.fingerprint)
        self.lens, self.count, self.shared = lens, count, shared
        self._foils: dict[int, list[str]] = {}
        rows = {name: row for row, name in enumerate(lens.corpus.text_ids)}
        for foil in store.foils():
            if foil.text not in rows:
                raise ValueError(
                    f"{folder} has a foil of caption {foil.text!r}, which these data do not have; "
                    "write again"
                )
            if not kinds or foil.kind in kinds:
                self._foils.setdefault(rows[foil.text], []).append(foil.foil)
        if not self._foils:
            there = ", ".join(store.manifest.counts) or "none"
            raise ValueError(
                f"{folder} has no foils of {', '.join(kinds) or 'any kind'}; it has: {there}"
            )

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """Stored foils of every anchor, the same on every process."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.count), -1)
        strings: list[str] = []
        for at, row in enumerate(batch.text_rows[batch.anchors.text.cpu()].tolist()):
            foils = self._foils.get(row, [])
            drawn = torch.randperm(len(foils), generator=rng)[: self.count].tolist()
            first = len(batch.text_rows) + len(strings)
            text[at, : len(drawn)] = torch.arange(first, first + len(drawn))
            strings += [foils[place] for place in drawn]
        if self.shared and strings:
            text = text[text >= 0].expand(len(anchors), -1)
        pairs = Pairs(anchors.expand(text.shape), text.to(anchors.device))
        texts = self.lens.lens.read(strings).to(anchors.device) if strings else None
        return Proposal(texts=texts, pairs={Role.WRITTEN: pairs})
