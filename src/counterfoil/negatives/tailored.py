"""Negatives that a model writes for each image by itself (TAGS, TAGS-DC)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.modes import evaluating
from counterfoil.engine.shares import shared
from counterfoil.matcher import Matcher
from counterfoil.negatives.candidates import Candidates, Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.masks import SHARE, Masked, Singles, chosen, masked, with_singles
from counterfoil.negatives.proposal import Proposal
from counterfoil.negatives.readings import Shown, read, scored
from counterfoil.negatives.refills import drawn, probabilities, refilled
from counterfoil.negatives.saliency import words_of
from counterfoil.negatives.tailored_words import TASKS, Kept, Task, judged, stray
from counterfoil.reading import ReadsWords, Want
from counterfoil.records import Batch, Items, Pairs, Role, Views, WordTask
from counterfoil.spec import unknown


@final
@dataclass(frozen=True, slots=True)
class _Draft:
    """What is masked and written for B anchors.

    Attributes:
        texts: their captions.
        hidden: (B, K, L) bool, the slots of each masking.
        masked: the B * K masked captions.
        written: (B, K * C, L) long, with new words.
    """

    texts: Items
    hidden: Tensor
    masked: Masked
    written: Tensor


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
        stray_positive: bool = False,
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
            stray_positive: measure against the authors' broken positive (T1), the second token
                in place of every word and region.

        Raises:
            ValueError: a number that is not possible, an unknown word task, or tasks for a model
                that reads with another lens than the writer.
        """
        for name, number in (("masks", masks), ("refills", refills), ("keep", keep)):
            if number < 1:
                raise ValueError(f"{name}={number} is not possible; it must be at least 1")
        if not temperature > 0 or not 0 < share <= 1:
            raise ValueError(
                f"temperature={temperature} and share={share} are not possible; a temperature is "
                "above 0, a share above 0 and at most 1"
            )
        if strange := [word for word in words if word not in TASKS]:
            raise ValueError(unknown(strange[0], list(TASKS), "a word task"))
        if reader is not None and (filler is None or words or stray_positive):
            raise ValueError(
                "a model that reads with a lens of its own needs a frozen filler, and learns no "
                f"word tasks from it; given were {', '.join(words) or 'none'}"
            )
        self.desk, self.filler, self.reader = desk, filler, reader
        self.masks, self.refills, self.keep = masks, refills, keep
        self.temperature, self.share, self.singles = temperature, share, singles
        self.words, self.sieve = words, sieve or Sieve()
        self.specials, self.stray_positive = specials, stray_positive
        self.provides_words = frozenset[str](words)

    def check(self, matcher: Matcher) -> None:
        """Whether the writer can write, and the model in training do what it is to learn.

        Raises:
            ValueError: they cannot.
        """
        asked = {TASKS[word] for word in self.words}
        asked |= {Want.SCORE} if self.stray_positive else set()
        _check(matcher, asked | ({Want.FILL} if self.filler is None else set()), "the model")
        if self.filler is not None:
            _check(self.filler, {Want.FILL}, "the filler")
        self._mask(matcher)

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """Written captions of every anchor, the same on every process."""
        draft, task = self._written(matcher, batch, views, rng)
        kept = self._kept(matcher, batch, draft)
        tasks = {} if task is None else {"masked": task}
        if not self.stray_positive and not {"doubt", "correct"} & set(self.words):
            return Proposal(
                texts=kept.texts if len(kept.anchor) else None,
                pairs={Role.WRITTEN: self._paired(batch, kept)},
                words=tasks,
            )
        shown = Shown(views.inference.images, kept.texts, batch.anchors.image[kept.anchor])
        scores, found = judged(matcher, shown, kept, draft.texts, draft.hidden, self.words)
        if self.stray_positive:
            image = views.inference.images.rows(batch.anchors.image)
            positive = shared(
                len(image),
                lambda rows: stray(
                    matcher, image.rows(rows), matcher.encode_texts(draft.texts.rows(rows))
                ),
                batch.positive.device,
            )
            true = grid[batch.anchors.image, batch.anchors.text]
            scores = scores - positive[kept.anchor] + true[kept.anchor]
        room = scores.new_full((len(batch.anchors.image), self.keep), -torch.inf)
        room = room.index_put((kept.anchor, kept.column), scores)
        return Proposal(words={**tasks, **found}, scores={Role.WRITTEN: room})

    def _written(
        self, matcher: Matcher, batch: Batch, views: Views, rng: torch.Generator
    ) -> tuple[_Draft, WordTask | None]:
        """New captions of all anchors, and what the model guessed of the old ones."""
        rows, device = batch.text_rows[batch.anchors.text.cpu()], batch.positive.device
        texts = self.desk.texts(rows)
        words = texts.mask & ~self.desk.banned[texts.values]
        phrases = with_singles(
            self.desk.phrases(rows, texts.mask.shape[1]), words, singles=self.singles
        )
        hidden = chosen(
            phrases,
            times=self.masks,
            rng=rng,
            share=self.share,
            first=self.singles == "only",
        )
        texts = texts.to(device)
        some = masked(texts, hidden, mask=self._mask(matcher), words=self.desk.words, rng=rng)
        logits, task = self._guessed(matcher, batch, views, some)
        banned = self.desk.banned_of(logits.shape[1], specials=self.specials).to(device)
        chances = probabilities(logits, temperature=self.temperature, banned=banned)
        new = refilled(some.texts.values, some.slots, drawn(chances, self.refills, rng))
        written = new.view(len(rows), -1, new.shape[1])
        return _Draft(texts, hidden.to(device), some, written), task

    def _guessed(
        self, matcher: Matcher, batch: Batch, views: Views, some: Masked
    ) -> tuple[Tensor, WordTask | None]:
        """The writer's logits at the slots, and the model's as a task."""
        anchor = torch.arange(len(batch.anchors.image), device=batch.positive.device)
        anchor = anchor.repeat_interleave(self.masks)
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

    def _kept(self, matcher: Matcher, batch: Batch, draft: _Draft) -> Kept:
        """The hardest of the captions that may be kept."""
        images = batch.image_rows[batch.anchors.image.cpu()]
        rows = batch.text_rows[batch.anchors.text.cpu()]
        found = Candidates(self.desk, images, rows, draft.texts.values, draft.written)
        may = self.sieve.may(found)
        anchor, number = may.nonzero(as_tuple=True)
        texts = self._read(rows, draft, anchor, number)
        with evaluating([matcher]):
            seen = matcher.encode_images(self._images(batch, self.reader or self.desk.lens))
        scores = scored(matcher, Shown(seen, texts, anchor))
        room = scores.new_full(may.shape, -torch.inf)
        room[anchor, number] = scores
        best = self.sieve.best(found, room, may, self.keep)
        row, column = (best >= 0).nonzero(as_tuple=True)
        place = torch.full_like(may, -1, dtype=torch.long)
        place[anchor, number] = torch.arange(len(anchor), device=place.device)
        number = best[row, column]
        return Kept(row, column, number // self.refills, texts.rows(place[row, number]))

    def _read(self, rows: Tensor, draft: _Draft, anchor: Tensor, number: Tensor) -> Items:
        """Written captions as the model in training reads them."""
        some = draft.texts.rows(anchor)
        values = draft.written[anchor, number]
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

    def _mask(self, matcher: Matcher) -> int:
        """The token that hides a word."""
        if self.desk.mask is not None:
            return self.desk.mask
        own = words_of(self.filler or matcher).mask_word
        found = self.desk.tokenizer.mask if own is None else own
        if found is None:
            raise ValueError(
                "neither the writer nor its tokenizer has a token that hides a word; give its id "
                "to the desk as mask, such as 3 for <unk>"
            )
        return found


def _check(matcher: Matcher, asked: set[Want], what: str) -> None:
    """Whether a model has heads for something."""
    if not asked:
        return
    if not isinstance(matcher, ReadsWords):
        raise ValueError(
            f"{what} {type(matcher).__name__} does not read words; give Tailored a frozen filler "
            "that does, such as UNITER, and no word tasks"
        )
    if missing := sorted(want.value for want in asked - matcher.wants):
        raise ValueError(
            f"{what} {type(matcher).__name__} has no heads for {', '.join(missing)}; it has "
            f"{', '.join(sorted(want.value for want in matcher.wants))}: name them in its outputs"
        )
