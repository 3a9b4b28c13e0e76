"""Negatives that a model writes for each image by itself (TAGS, TAGS-DC)."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.candidates import Candidates, Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import Hand, able, at_least_one, mask_of
from counterfoil.negatives.masks import SHARE, Masked, Singles
from counterfoil.negatives.proposal import Proposal
from counterfoil.negatives.readings import Shown, read, scored
from counterfoil.negatives.tailored_words import TASKS, Kept, Task, judged
from counterfoil.reading import Want
from counterfoil.records import Batch, Items, Pairs, Role, Views, WordTask
from counterfoil.spec import unknown

INSTEAD = "give Tailored a frozen filler that does, such as UNITER, and no word tasks"


@final
class Tailored:
    """Hides phrases of a caption, lets a model that sees the image fill them, keeps the hardest.

    TAGS (https://arxiv.org/abs/2111.03349; Algorithm 1): K maskings of each anchor caption, each
    refilled C times by words drawn from the model's own guesses; of what is no copy and may be
    false, the model keeps those that it scores highest. Nothing is stored: captions are written
    anew whenever an anchor is visited. The writer is the model in training ("dynamic") or a frozen
    one; a frozen one may read with a lens of its own, and then writes for models of any kind, which
    read the captions as text. Word tasks: "masked", the hidden words themselves; "doubt", whether
    each token of a kept caption is the original's; "correct", the original's words in its slots.

    Departs from the authors' code in: the positive is scored as itself (T1); captions that the
    image's captions make true are left out (T2); so are copies, and what was written twice (T3);
    special tokens are never written (T4); where less is left than `keep`, the rest is no pair.
    """

    provides = frozenset({Role.WRITTEN})
    anchors_only = True

    def __init__(
        self,
        *,
        desk: Desk,
        filler: Matcher | None = None,
        reader: CorpusLens | None = None,
        masks: int = 20,
        refills: int = 20,
        keep: int = 31,
        temperature: float = 1.5,
        share: float = SHARE,
        singles: Singles = "without phrases",
        words: tuple[Task, ...] = ("masked",),
        sieve: Sieve | None = None,
        specials: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            desk: what the writer reads.
            filler: the frozen writer; None for the model in training.
            reader: what the model in training sees of the corpus, where it is not the desk's lens.
            masks: K, maskings of each caption.
            refills: C, refills of each masking.
            keep: m, hardest captions that are kept for each anchor.
            temperature: of the draw of words.
            share: of the tokens that are hidden, roughly.
            singles: "only" hides single words (UNITER's way) instead of phrases; "always" hides
                them besides phrases.
            words: word tasks that are solved on the way: "masked", "doubt", "correct".
            sieve: which captions may be kept; None for the paper's rule.
            specials: special tokens may be written, as in the authors' code (T4).

        Raises:
            ValueError: a number that is not possible, an unknown word task, or tasks for a model
                that reads with another lens than the writer.
        """
        at_least_one({"masks": masks, "refills": refills, "keep": keep})
        self.hand = Hand(
            masks=masks,
            refills=refills,
            temperature=temperature,
            share=share,
            singles=singles,
            specials=specials,
        )
        if strange := [word for word in words if word not in TASKS]:
            raise ValueError(unknown(strange[0], list(TASKS), "a word task"))
        if reader is not None and (filler is None or words):
            raise ValueError(
                "a model that reads with a lens of its own needs a frozen filler, and learns no "
                f"word tasks from it; given were {', '.join(words) or 'none'}"
            )
        self.desk, self.filler, self.reader = desk, filler, reader
        self.keep, self.words, self.sieve = keep, words, sieve or Sieve()
        self.provides_words = frozenset[str](words)

    def check(self, matcher: Matcher) -> None:
        """Whether the writer can write, and the model in training do what it is to learn.

        Raises:
            ValueError: they cannot.
        """
        asked = {TASKS[word] for word in self.words}
        asked |= {Want.FILL} if self.filler is None else set()
        able(matcher, asked, "the model", INSTEAD)
        if self.filler is not None:
            able(self.filler, {Want.FILL}, "the filler", INSTEAD)
        mask_of(self.desk, self.filler or matcher)

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """Written captions of every anchor, the same on every process."""
        rows, device = batch.text_rows[batch.anchors.text.cpu()], batch.positive.device
        mask = mask_of(self.desk, self.filler or matcher)
        draft = self.hand.hidden(self.desk, rows, mask=mask, rng=rng, device=device)
        logits, task = self._guessed(matcher, batch, views, draft.masked)
        written = self.hand.written(self.desk, draft, logits, rng)
        kept = self._kept(matcher, batch, draft.texts, written)
        tasks = {} if task is None else {"masked": task}
        if not {"doubt", "correct"} & set(self.words):
            return Proposal(
                texts=kept.texts if len(kept.anchor) else None,
                pairs={Role.WRITTEN: self._paired(batch, kept)},
                words=tasks,
            )
        shown = Shown(views.inference.images, kept.texts, batch.anchors.image[kept.anchor])
        scores, found = judged(matcher, shown, kept, draft.texts, draft.slots, self.words)
        room = scores.new_full((len(batch.anchors.image), self.keep), -torch.inf)
        room = room.index_put((kept.anchor, kept.column), scores)
        return Proposal(words={**tasks, **found}, scores={Role.WRITTEN: room})

    def _guessed(
        self, matcher: Matcher, batch: Batch, views: Views, some: Masked
    ) -> tuple[Tensor, WordTask | None]:
        """The writer's logits at the slots, and the model's as a task."""
        anchor = torch.arange(len(batch.anchors.image), device=batch.positive.device)
        anchor = anchor.repeat_interleave(self.hand.masks)
        want, task, logits = frozenset({Want.FILL}), None, None
        if self.filler is None or "masked" in self.words:
            shown = Shown(views.inference.images, some.texts, batch.anchors.image[anchor])
            logits = read(matcher, shown, want, some.slots).fill
            assert logits is not None
            if "masked" in self.words:
                task = WordTask(logits, some.labels, anchor[some.slots.pair])
        if self.filler is not None:
            filler = self.filler.to(anchor.device)
            with evaluating([filler]):
                images = filler.encode_images(self._images(batch, self.desk.lens))
                logits = read(filler, Shown(images, some.texts, anchor), want, some.slots).fill
        assert logits is not None
        return logits, task

    def _kept(self, matcher: Matcher, batch: Batch, originals: Items, written: Tensor) -> Kept:
        """The hardest of the captions that may be kept."""
        images = batch.image_rows[batch.anchors.image.cpu()]
        rows = batch.text_rows[batch.anchors.text.cpu()]
        found = Candidates(self.desk, images, rows, originals.values, written)
        may = self.sieve.may(found)
        anchor, number = may.nonzero(as_tuple=True)
        texts = self._read(rows, originals.rows(anchor), anchor, written[anchor, number])
        with evaluating([matcher]):
            seen = matcher.encode_images(self._images(batch, self.reader or self.desk.lens))
        scores = scored(matcher, Shown(seen, texts, anchor))
        best = self.sieve.picked(found, scores, may, self.keep)
        masking = best.number // self.hand.refills
        return Kept(best.anchor, best.column, masking, texts.rows(best.place))

    def _read(self, rows: Tensor, some: Items, anchor: Tensor, values: Tensor) -> Items:
        """Written captions as the model in training reads them."""
        if self.reader is None:
            return replace(some, ids=torch.full_like(some.ids, -1), values=values)
        strings = self.desk.strings(rows[anchor.cpu()].tolist(), values)
        if not strings:
            strings = [self.desk.lens.corpus.texts[int(rows[0])]]
            return self.reader.lens.read(strings).to(values.device).rows(slice(0, 0))
        return self.reader.lens.read(strings).to(values.device)

    def _images(self, batch: Batch, lens: CorpusLens) -> Items:
        """The anchors' images through a lens."""
        rows = batch.image_rows[batch.anchors.image.cpu()]
        return lens.images(rows).to(batch.positive.device)

    def _paired(self, batch: Batch, kept: Kept) -> Pairs:
        """(B, m) pairs; -1 where there is no text."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.keep), -1, device=anchors.device)
        text[kept.anchor, kept.column] = len(batch.text_rows) + torch.arange(
            len(kept.anchor), device=anchors.device
        )
        return Pairs(anchors.expand_as(text), text)
