"""Negatives that a model writes for each image by itself (TAGS, TAGS-DC)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_choice, unknown_name
from counterfoil.core.types import (
    Batch,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
    WordHead,
    WordHeadModel,
    WordSlots,
    WordTask,
)
from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.counterfactual import word_embeddings_of
from counterfoil.negatives.generation.inputs import (
    SHARE,
    SINGLES,
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
    MaskedCaptions,
    PairInputs,
    Singles,
    choose_spans,
    mask_spans,
    read_in_parts,
    score_in_parts,
    with_singles,
)
from counterfoil.negatives.online import MinedExtras
from counterfoil.scoring.encode import evaluation_mode

# New words for the slots of masked captions.
#
# TAGS (https://arxiv.org/abs/2111.03349, Eq. 2): the words of a slot are drawn from the softmax of
# its logits divided by a temperature, each slot by itself.


def refill_probabilities(
    logits: Tensor, *, temperature: float, banned: Tensor | None = None
) -> Tensor:
    """(M, V) how likely each word is written in each slot; rows sum to 1.

    Args:
        logits: (M, V).
        temperature: above 1 makes unlikely words likelier.
        banned: (V,) bool, words that are never written; None for the authors' form, which writes
            special tokens too (T4 of their code).
    """
    logits = logits.detach().float() / temperature
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    return logits.softmax(1)


def draw_refills(chances: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """(M, C) long, words drawn with replacement, alike on every device.

    Args:
        chances: (M, V).
        count: C, words for each slot.
        rng: on the CPU.
    """
    below = chances.double().cumsum(1)
    at = torch.rand(len(chances), count, generator=rng, dtype=torch.double) * (1 - 1e-12)
    return torch.searchsorted(below, at.to(below.device) * below[:, -1:], right=True)


def fill_slots(values: Tensor, slots: WordSlots, words: Tensor) -> Tensor:
    """(P * C, L) token ids of P masked texts, each with C sets of words in its slots.

    Args:
        values: (P, L) long, masked.
        slots: M places.
        words: (M, C) long.
    """
    out = values.unsqueeze(1).repeat(1, words.shape[1], 1)
    out[slots.pair, :, slots.place] = words
    return out.flatten(0, 1)


# How captions are written: what is hidden of them, and what is put in its place.


@final
@dataclass(frozen=True, slots=True)
class MaskedInputs:
    """B captions of which some words are hidden.

    Attributes:
        texts: the captions as they are.
        slots: (B, K, L) bool, the slots of each masking.
        masked: the B * K masked captions.
    """

    texts: ModalityBatch
    slots: Tensor
    masked: MaskedCaptions


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MaskRefill:
    """K maskings of a caption, C refills of each (TAGS, section 2.1).

    Attributes:
        masks: K, maskings of each caption.
        refills: C, refills of each masking.
        temperature: of the draw of words.
        share: of the tokens that are hidden, roughly.
        singles: "only" hides single words (UNITER's way) instead of phrases; "always" hides them
            besides phrases.
        specials: special tokens may be written, as in the authors' code (T4).

    Raises:
        ValueError: a number that is not possible, or an unknown way to hide single words.
    """

    masks: int = 20
    refills: int = 20
    temperature: float = 1.5
    share: float = SHARE
    singles: Singles = "without phrases"
    specials: bool = False

    def __post_init__(self) -> None:
        at_least_one({"masks": self.masks, "refills": self.refills})
        if not self.temperature > 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"temperature={self.temperature} and share={self.share} are not possible; a "
                "temperature is above 0, a share above 0 and at most 1"
            )
        parse_choice(SINGLES, self.singles, "a way to hide single words")

    def hidden(
        self,
        desk: GeneratorInputs,
        rows: Tensor,
        *,
        mask: int,
        rng: torch.Generator,
        device: torch.device,
    ) -> MaskedInputs:
        """K masked forms of captions.

        Args:
            desk: where they lie.
            rows: (B,) which captions of the data set.
            mask: id of the token that hides a word.
            rng: of what is hidden, and how.
            device: where the captions go.
        """
        texts = desk.texts(rows)
        words = texts.mask & ~desk.banned[texts.values]
        phrases = with_singles(desk.phrases(rows, texts.mask.shape[1]), words, singles=self.singles)
        slots = choose_spans(
            phrases, times=self.masks, rng=rng, share=self.share, first=self.singles == "only"
        )
        texts = texts.to(device)
        some = mask_spans(texts, slots, mask=mask, words=desk.words, rng=rng)
        return MaskedInputs(texts, slots.to(device), some)

    def written(
        self, desk: GeneratorInputs, of: MaskedInputs, logits: Tensor, rng: torch.Generator
    ) -> Tensor:
        """(B, K * C, L) long, the captions with new words in their slots.

        Args:
            desk: where they lie.
            of: what is hidden of them.
            logits: (M, V) what the writer makes of the slots.
            rng: of the draw of words.
        """
        banned = desk.banned_of(logits.shape[1], specials=self.specials).to(logits.device)
        chances = refill_probabilities(logits, temperature=self.temperature, banned=banned)
        new = fill_slots(
            of.masked.texts.values, of.masked.slots, draw_refills(chances, self.refills, rng)
        )
        return new.view(len(of.texts), -1, new.shape[1])


def at_least_one(numbers: Mapping[str, int]) -> None:
    """Refuse numbers below 1, by name.

    Raises:
        ValueError: one is.
    """
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}={number} is not possible; it must be at least 1")


def check_heads(model: RetrievalModel, asked: set[WordHead], what: str, instead: str) -> None:
    """Whether a model has heads for what is asked of it.

    Args:
        model: the model.
        asked: what is asked; nothing asks nothing of it.
        what: the model in words, as in "the filler".
        instead: what to do where it does not read words at all.

    Raises:
        ValueError: it has not.
    """
    if not asked:
        return
    if not isinstance(model, WordHeadModel):
        raise ValueError(f"{what} {type(model).__name__} does not read words; {instead}")
    if missing := sorted(want.value for want in asked - model.wants):
        raise ValueError(
            f"{what} {type(model).__name__} has no heads for {', '.join(missing)}; it has "
            f"{', '.join(sorted(want.value for want in model.wants))}: name them in its outputs"
        )


def mask_token_of(desk: GeneratorInputs, writer: RetrievalModel) -> int:
    """The token that hides a word.

    Raises:
        ValueError: nobody has one.
    """
    if desk.mask is not None:
        return desk.mask
    own = word_embeddings_of(writer).mask_word
    found = desk.tokenizer.mask if own is None else own
    if found is None:
        raise ValueError(
            "neither the writer nor its tokenizer has a token that hides a word; give its id "
            "to the desk as mask, such as 3 for <unk>"
        )
    return found


# What a model learns of the words of captions that were written for it.


Task = Literal["masked", "doubt", "correct"]
TASKS: dict[str, WordHead] = {
    "masked": WordHead.FILL,
    "doubt": WordHead.DOUBT,
    "correct": WordHead.CORRECT,
}


@final
@dataclass(frozen=True, slots=True)
class SelectedMasks:
    """Written captions that are trained on.

    Attributes:
        anchor: (C,) for which anchor.
        column: (C,) its place among those of the anchor, the hardest first.
        masking: (C,) which masking of the anchor's caption it fills.
        texts: C of them, as the model in training reads them.
    """

    anchor: Tensor
    column: Tensor
    masking: Tensor
    texts: ModalityBatch


def word_tasks(
    model: RetrievalModel,
    shown: PairInputs,
    kept: SelectedMasks,
    originals: ModalityBatch,
    hidden: Tensor,
    words: tuple[Task, ...],
) -> tuple[Tensor, dict[str, WordTask]]:
    """(C,) scores of kept captions, and their word tasks, from one pass over them.

    Where nothing was kept, the first original is read so that every head takes part in the step;
    nothing of it counts.

    Args:
        model: reads words.
        shown: the kept captions with their images.
        kept: which they are.
        originals: B captions.
        hidden: (B, K, L) bool, slots of each masking.
        words: the tasks; "masked" is none of them.
    """
    anchor, none = kept.anchor, not len(kept.anchor)
    slots_of = hidden[anchor, kept.masking]
    if none:
        anchor, slots_of = anchor.new_zeros(1), hidden[:1, 0]
        shown = PairInputs(shown.images, originals.rows(anchor), anchor)
    pair, place = slots_of.nonzero(as_tuple=True)
    want = frozenset({WordHead.SCORE, *(TASKS[word] for word in words if word != "masked")})
    found = read_in_parts(model, shown, want, WordSlots(pair, place))
    true, tasks = originals.values[anchor], {}
    assert found.score is not None
    if found.doubt is not None:
        row, column = shown.texts.mask.nonzero(as_tuple=True)
        same = (shown.texts.values == true).long()[row, column]
        tasks["doubt"] = _task(found.doubt[row, column], same, anchor[row], none)
    if found.correct is not None:
        tasks["correct"] = _task(found.correct, true[pair, place], anchor[pair], none)
    return found.score[: len(kept.anchor)], tasks


def _task(logits: Tensor, labels: Tensor, anchor: Tensor, none: bool) -> WordTask:
    """A word task; where it is of nothing, no label counts."""
    return WordTask(logits, torch.full_like(labels, -1) if none else labels, anchor)


INSTEAD = "give TagsGenerator a frozen filler that does, such as UNITER, and no word tasks"


@final
class TagsGenerator:
    """Hides phrases of a caption, lets a model that sees the image fill them, keeps the hardest.

    TAGS (https://arxiv.org/abs/2111.03349; Algorithm 1): K maskings of each anchor caption, each
    refilled C times by words drawn from the model's own guesses; of what is no copy and may be
    false, the model keeps those that it scores highest. Nothing is stored: captions are written
    anew whenever an anchor is visited. The writer is the model in training ("dynamic") or a frozen
    one; a frozen one may read with a processor of its own, and then writes for models of any kind,
    which
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
        desk: GeneratorInputs,
        filler: RetrievalModel | None = None,
        reader: ProcessedDataset | None = None,
        masks: int = 20,
        refills: int = 20,
        keep: int = 31,
        temperature: float = 1.5,
        share: float = SHARE,
        singles: Singles = "without phrases",
        words: tuple[Task, ...] = ("masked",),
        sieve: CandidateFilter | None = None,
        specials: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            desk: what the writer reads.
            filler: the frozen writer; None for the model in training.
            reader: what the model in training sees of the data set, where it is not the desk's
                processor.
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
                that reads with another processor than the writer.
        """
        at_least_one({"masks": masks, "refills": refills, "keep": keep})
        self.hand = MaskRefill(
            masks=masks,
            refills=refills,
            temperature=temperature,
            share=share,
            singles=singles,
            specials=specials,
        )
        if strange := [word for word in words if word not in TASKS]:
            raise ValueError(unknown_name(strange[0], list(TASKS), "a word task"))
        if reader is not None and (filler is None or words):
            raise ValueError(
                "a model that reads with a lens of its own needs a frozen filler, and learns no "
                f"word tasks from it; given were {', '.join(words) or 'none'}"
            )
        self.desk, self.filler, self.reader = desk, filler, reader
        self.keep, self.words, self.sieve = keep, words, sieve or CandidateFilter()
        self.provides_words = frozenset[str](words)

    def check(self, model: RetrievalModel) -> None:
        """Whether the writer can write, and the model in training do what it is to learn.

        Raises:
            ValueError: they cannot.
        """
        asked = {TASKS[word] for word in self.words}
        asked |= {WordHead.FILL} if self.filler is None else set()
        check_heads(model, asked, "the model", INSTEAD)
        if self.filler is not None:
            check_heads(self.filler, {WordHead.FILL}, "the filler", INSTEAD)
        mask_token_of(self.desk, self.filler or model)

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Written captions of every anchor, the same on every process."""
        rows, device = batch.text_rows[batch.anchors.text.cpu()], batch.positive.device
        mask = mask_token_of(self.desk, self.filler or model)
        draft = self.hand.hidden(self.desk, rows, mask=mask, rng=rng, device=device)
        logits, task = self._guessed(model, batch, views, draft.masked)
        written = self.hand.written(self.desk, draft, logits, rng)
        kept = self._kept(model, batch, draft.texts, written)
        tasks = {} if task is None else {"masked": task}
        if not {"doubt", "correct"} & set(self.words):
            return MinedExtras(
                texts=kept.texts if len(kept.anchor) else None,
                pairs={Role.WRITTEN: self._paired(batch, kept)},
                words=tasks,
            )
        shown = PairInputs(views.inference.images, kept.texts, batch.anchors.image[kept.anchor])
        scores, found = word_tasks(model, shown, kept, draft.texts, draft.slots, self.words)
        room = scores.new_full((len(batch.anchors.image), self.keep), -torch.inf)
        room = room.index_put((kept.anchor, kept.column), scores)
        return MinedExtras(words={**tasks, **found}, scores={Role.WRITTEN: room})

    def _guessed(
        self, model: RetrievalModel, batch: Batch, views: EncodedViews, some: MaskedCaptions
    ) -> tuple[Tensor, WordTask | None]:
        """The writer's logits at the slots, and the model's as a task."""
        anchor = torch.arange(len(batch.anchors.image), device=batch.positive.device)
        anchor = anchor.repeat_interleave(self.hand.masks)
        want, task, logits = frozenset({WordHead.FILL}), None, None
        if self.filler is None or "masked" in self.words:
            shown = PairInputs(views.inference.images, some.texts, batch.anchors.image[anchor])
            logits = read_in_parts(model, shown, want, some.slots).fill
            assert logits is not None
            if "masked" in self.words:
                task = WordTask(logits, some.labels, anchor[some.slots.pair])
        if self.filler is not None:
            filler = self.filler.to(anchor.device)
            with evaluation_mode([filler]):
                images = filler.encode_images(self._images(batch, self.desk.processor))
                logits = read_in_parts(
                    filler, PairInputs(images, some.texts, anchor), want, some.slots
                ).fill
        assert logits is not None
        return logits, task

    def _kept(
        self, model: RetrievalModel, batch: Batch, originals: ModalityBatch, written: Tensor
    ) -> SelectedMasks:
        """The hardest of the captions that may be kept."""
        images = batch.image_rows[batch.anchors.image.cpu()]
        rows = batch.text_rows[batch.anchors.text.cpu()]
        found = GeneratedCandidates(self.desk, images, rows, originals.values, written)
        may = self.sieve.may(found)
        anchor, number = may.nonzero(as_tuple=True)
        texts = self._read(rows, originals.rows(anchor), anchor, written[anchor, number])
        with evaluation_mode([model]):
            seen = model.encode_images(self._images(batch, self.reader or self.desk.processor))
        scores = score_in_parts(model, PairInputs(seen, texts, anchor))
        best = self.sieve.picked(found, scores, may, self.keep)
        masking = best.number // self.hand.refills
        return SelectedMasks(best.anchor, best.column, masking, texts.rows(best.place))

    def _read(
        self, rows: Tensor, some: ModalityBatch, anchor: Tensor, values: Tensor
    ) -> ModalityBatch:
        """Written captions as the model in training reads them."""
        if self.reader is None:
            return replace(some, ids=torch.full_like(some.ids, -1), values=values)
        strings = self.desk.strings(rows[anchor.cpu()].tolist(), values)
        if not strings:
            strings = [self.desk.processor.dataset.texts[int(rows[0])]]
            return self.reader.processor.process_texts(strings).to(values.device).rows(slice(0, 0))
        return self.reader.processor.process_texts(strings).to(values.device)

    def _images(self, batch: Batch, processor: ProcessedDataset) -> ModalityBatch:
        """The anchors' images through a processor."""
        rows = batch.image_rows[batch.anchors.image.cpu()]
        return processor.images(rows).to(batch.positive.device)

    def _paired(self, batch: Batch, kept: SelectedMasks) -> Pairs:
        """(B, m) pairs; -1 where there is no text."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.keep), -1, device=anchors.device)
        text[kept.anchor, kept.column] = len(batch.text_rows) + torch.arange(
            len(kept.anchor), device=anchors.device
        )
        return Pairs(anchors.expand_as(text), text)
