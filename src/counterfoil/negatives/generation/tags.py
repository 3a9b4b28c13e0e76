"""TAGS and TAGS-DC: false captions that a model generates for each image while it is trained."""

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
from counterfoil.negatives.online import MinedExtras, OnlineMiner
from counterfoil.scoring.encode import evaluation_mode


def refill_probabilities(
    logits: Tensor, *, temperature: float, banned: Tensor | None = None
) -> Tensor:
    """Return the (M, V) probability of each word in each slot; rows sum to 1.

    TAGS, Eq. 2: the softmax of a slot's logits divided by a temperature, each slot by itself.

    Args:
        logits: (M, V).
        temperature: above 1 makes unlikely words likelier.
        banned: (V,) bool, words that are never chosen; None for the authors' form, which chooses
            special tokens too (T4 of their code).
    """
    logits = logits.detach().float() / temperature
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    return logits.softmax(1)


def draw_refills(chances: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw (M, C) words with replacement, the same on every device.

    `torch.multinomial` draws on the device of the probabilities, so a GPU and the CPU would differ.
    Here the numbers come from the CPU, and a binary search in the running sum finds their words.

    Args:
        chances: (M, V).
        count: C, words for each slot.
        rng: on the CPU.
    """
    cumulative = chances.double().cumsum(1)
    # Below 1 by more than rounding takes, so that the last word of probability 0 is never reached;
    # times the last sum, which rounding may leave beside 1.
    place = torch.rand(len(chances), count, generator=rng, dtype=torch.double) * (1 - 1e-12)
    place = place.to(cumulative.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, place, right=True)


def fill_slots(values: Tensor, slots: WordSlots, words: Tensor) -> Tensor:
    """Fill the slots of P masked texts with C sets of words each: (P * C, L) token ids.

    Args:
        values: (P, L) long, masked.
        slots: M places.
        words: (M, C) long.
    """
    filled = values.unsqueeze(1).repeat(1, words.shape[1], 1)
    filled[slots.pair, :, slots.place] = words
    return filled.flatten(0, 1)


@final
@dataclass(frozen=True, slots=True)
class MaskedInputs:
    """B captions with their K masked forms.

    Attributes:
        texts: the original captions.
        slots: (B, K, L) bool, the slots of each masking.
        masked: the B * K masked captions.
    """

    texts: ModalityBatch
    slots: Tensor
    masked: MaskedCaptions


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MaskRefill:
    """Settings of mask and refill: K maskings of a caption, C refills of each (TAGS, section 2.1).

    Attributes:
        masks: K, maskings of each caption.
        refills: C, refills of each masking.
        temperature: of the softmax over words.
        share: approximate share of the tokens that are hidden.
        singles: "only" hides single words (UNITER's way) instead of phrases; "always" hides both.
        specials: special tokens may be generated, as in the authors' code (T4).

    Raises:
        ValueError: a number out of range, or an unknown way to hide single words.
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
        """Mask captions, K times each.

        Args:
            desk: the data set.
            rows: (B,) rows of the captions.
            mask: id of the token that hides a word.
            rng: of the masked tokens.
            device: of the result.
        """
        texts = desk.texts(rows)
        words = texts.mask & ~desk.banned[texts.values]
        phrases = with_singles(desk.phrases(rows, texts.mask.shape[1]), words, singles=self.singles)
        slots = choose_spans(
            phrases, times=self.masks, rng=rng, share=self.share, first=self.singles == "only"
        )
        texts = texts.to(device)
        masked = mask_spans(texts, slots, mask=mask, words=desk.words, rng=rng)
        return MaskedInputs(texts, slots.to(device), masked)

    def written(
        self, desk: GeneratorInputs, of: MaskedInputs, logits: Tensor, rng: torch.Generator
    ) -> Tensor:
        """Refill masked captions: (B, K * C, L) long, with new words in the slots.

        Args:
            desk: the data set.
            of: the masked captions.
            logits: (M, V) the generator's logits at the slots.
            rng: of the words.
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
    """Check that a model has the required word heads.

    Args:
        model: the model.
        asked: required heads, if any.
        what: noun for messages, as in "the filler".
        instead: advice for a model without any word heads.

    Raises:
        ValueError: a head is missing.
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
    """Return the id of the token that hides a word: of the inputs, the model or the tokenizer.

    Raises:
        ValueError: there is none.
    """
    if desk.mask is not None:
        return desk.mask
    own = word_embeddings_of(writer).mask_word
    mask = desk.tokenizer.mask if own is None else own
    if mask is None:
        raise ValueError(
            "neither the writer nor its tokenizer has a token that hides a word; give its id "
            "to the desk as mask, such as 3 for <unk>"
        )
    return mask


Task = Literal["masked", "doubt", "correct"]
TASKS: dict[str, WordHead] = {
    "masked": WordHead.FILL,
    "doubt": WordHead.DOUBT,
    "correct": WordHead.CORRECT,
}


@final
@dataclass(frozen=True, slots=True)
class SelectedMasks:
    """Generated captions that are trained on.

    Attributes:
        anchor: (C,) the anchor.
        column: (C,) rank among the anchor's captions, the hardest first.
        masking: (C,) the masking of the anchor's caption that was filled.
        texts: C captions, as inputs of the model in training.
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
    """Score the C chosen captions and compute their word tasks, in one forward pass.

    If nothing was chosen, the first original is read without counting, so that every head takes
    part in the step: data-parallel training waits for the gradient of every parameter.

    Args:
        model: a model with word heads.
        shown: the chosen captions with their images.
        kept: the chosen captions.
        originals: B captions.
        hidden: (B, K, L) bool, slots of each masking.
        words: the tasks; "masked" is ignored.

    Returns:
        (C,) scores, and the tasks by name.
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
    """Create a word task; with `none`, no label counts."""
    return WordTask(logits, torch.full_like(labels, -1) if none else labels, anchor)


INSTEAD = "give TagsGenerator a frozen filler that does, such as UNITER, and no word tasks"


@final
class TagsGenerator(OnlineMiner):
    """Hides phrases of a caption, fills them with a model that sees the image, keeps the hardest.

    TAGS (https://arxiv.org/abs/2111.03349; Algorithm 1): each anchor caption is masked K times, and
    each masking refilled C times with words drawn from the model's predictions. Copies and captions
    that may be true are left out, and those of the rest that the model scores highest are trained
    on. Nothing is stored: captions are generated anew for every batch. The generator is the model
    in training ("dynamic") or a frozen one, the `filler`; a frozen one may have a processor of its
    own, and then serves models of any kind, which read the captions as text. Word tasks: "masked",
    the hidden words themselves; "doubt", whether each token of a chosen caption is the original's;
    "correct", the original's words in its slots.

    Departs from the authors' code in: the positive is scored as itself (T1); captions that the
    image's captions make true are left out (T2); so are copies and repetitions (T3); special tokens
    are never generated (T4); if fewer than `keep` are left, the other places are empty.
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
        """Create a generator.

        Args:
            desk: inputs of the generator.
            filler: the frozen generator; None for the model in training.
            reader: inputs of the model in training, if its processor is not that of `desk`.
            masks: K, maskings of each caption.
            refills: C, refills of each masking.
            keep: m, captions of each anchor that are trained on.
            temperature: of the softmax over words.
            share: approximate share of the tokens that are hidden.
            singles: "only" hides single words (UNITER's way) instead of phrases; "always" hides
                both.
            words: word tasks to compute as well: "masked", "doubt", "correct".
            sieve: filter of the captions; None for the paper's rule.
            specials: special tokens may be generated, as in the authors' code (T4).

        Raises:
            ValueError: a number out of range, an unknown word task, or tasks for a model that has
                another processor than the generator.
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
        if unknown := [word for word in words if word not in TASKS]:
            raise ValueError(unknown_name(unknown[0], list(TASKS), "a word task"))
        if reader is not None and (filler is None or words):
            raise ValueError(
                "a model that reads with a lens of its own needs a frozen filler, and learns no "
                f"word tasks from it; given were {', '.join(words) or 'none'}"
            )
        self.desk, self.filler, self.reader = desk, filler, reader
        self.keep, self.words, self.sieve = keep, words, sieve or CandidateFilter()
        self.provides_words = frozenset[str](words)

    def check(self, model: RetrievalModel) -> None:
        """Check that generator and model have the heads they need.

        Raises:
            ValueError: a head is missing.
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
        """Return generated captions of every anchor, the same on every process."""
        rows, device = batch.text_rows[batch.anchors.text.cpu()], batch.positive.device
        mask = mask_token_of(self.desk, self.filler or model)
        draft = self.hand.hidden(self.desk, rows, mask=mask, rng=rng, device=device)
        logits, task = self._predict(model, batch, views, draft.masked)
        written = self.hand.written(self.desk, draft, logits, rng)
        kept = self._select(model, batch, draft.texts, written)
        tasks = {} if task is None else {"masked": task}
        if not {"doubt", "correct"} & set(self.words):
            return MinedExtras(
                texts=kept.texts if len(kept.anchor) else None,
                pairs={Role.WRITTEN: self._pairs(batch, kept)},
                words=tasks,
            )
        shown = PairInputs(views.inference.images, kept.texts, batch.anchors.image[kept.anchor])
        scores, more = word_tasks(model, shown, kept, draft.texts, draft.slots, self.words)
        table = scores.new_full((len(batch.anchors.image), self.keep), -torch.inf)
        table = table.index_put((kept.anchor, kept.column), scores)
        return MinedExtras(words={**tasks, **more}, scores={Role.WRITTEN: table})

    def _predict(
        self, model: RetrievalModel, batch: Batch, views: EncodedViews, masked: MaskedCaptions
    ) -> tuple[Tensor, WordTask | None]:
        """Return the generator's logits at the slots, and the "masked" task of the model."""
        anchor = torch.arange(len(batch.anchors.image), device=batch.positive.device)
        anchor = anchor.repeat_interleave(self.hand.masks)
        want, task, logits = frozenset({WordHead.FILL}), None, None
        if self.filler is None or "masked" in self.words:
            shown = PairInputs(views.inference.images, masked.texts, batch.anchors.image[anchor])
            logits = read_in_parts(model, shown, want, masked.slots).fill
            assert logits is not None
            if "masked" in self.words:
                task = WordTask(logits, masked.labels, anchor[masked.slots.pair])
        if self.filler is not None:
            filler = self.filler.to(anchor.device)
            with evaluation_mode([filler]):
                images = filler.encode_images(self._images(batch, self.desk.processor))
                logits = read_in_parts(
                    filler, PairInputs(images, masked.texts, anchor), want, masked.slots
                ).fill
        assert logits is not None
        return logits, task

    def _select(
        self, model: RetrievalModel, batch: Batch, originals: ModalityBatch, written: Tensor
    ) -> SelectedMasks:
        """Return the hardest of the captions that the filter allows."""
        images = batch.image_rows[batch.anchors.image.cpu()]
        rows = batch.text_rows[batch.anchors.text.cpu()]
        candidates = GeneratedCandidates(self.desk, images, rows, originals.values, written)
        may = self.sieve.may(candidates)
        anchor, number = may.nonzero(as_tuple=True)
        texts = self._as_inputs(rows, originals.rows(anchor), anchor, written[anchor, number])
        with evaluation_mode([model]):
            encoded = model.encode_images(self._images(batch, self.reader or self.desk.processor))
        scores = score_in_parts(model, PairInputs(encoded, texts, anchor))
        best = self.sieve.picked(candidates, scores, may, self.keep)
        masking = best.number // self.hand.refills
        return SelectedMasks(best.anchor, best.column, masking, texts.rows(best.place))

    def _as_inputs(
        self, rows: Tensor, originals: ModalityBatch, anchor: Tensor, values: Tensor
    ) -> ModalityBatch:
        """Return generated captions as inputs of the model in training."""
        if self.reader is None:
            return replace(originals, ids=torch.full_like(originals.ids, -1), values=values)
        strings = self.desk.strings(rows[anchor.cpu()].tolist(), values)
        if not strings:
            strings = [self.desk.processor.dataset.texts[int(rows[0])]]
            return self.reader.processor.process_texts(strings).to(values.device).rows(slice(0, 0))
        return self.reader.processor.process_texts(strings).to(values.device)

    def _images(self, batch: Batch, processor: ProcessedDataset) -> ModalityBatch:
        """Return the anchors' images, processed."""
        rows = batch.image_rows[batch.anchors.image.cpu()]
        return processor.images(rows).to(batch.positive.device)

    def _pairs(self, batch: Batch, kept: SelectedMasks) -> Pairs:
        """Return (B, m) pairs; -1 where there is no text."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.keep), -1, device=anchors.device)
        text[kept.anchor, kept.column] = len(batch.text_rows) + torch.arange(
            len(kept.anchor), device=anchors.device
        )
        return Pairs(anchors.expand_as(text), text)
