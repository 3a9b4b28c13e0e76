"""TAGS and TAGS-DC: false captions that a model generates for each image while it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_choice, parse_literal
from counterfoil.core.types import (
    Batch,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
    WordHead,
    WordHeadModel,
    WordSlots,
    WordTask,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.phrases import PhraseParser
from counterfoil.data.processor import ProcessedDataset, same_processors
from counterfoil.losses.base import WeightedSum
from counterfoil.model import Model, load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import check_positive, full_precision
from counterfoil.negatives.online import with_values
from counterfoil.negatives.sources import (
    MinedExtras,
    NegativeSource,
    PlannedModel,
    PlannedTraining,
)
from counterfoil.papers.compared.counterfactual import word_embeddings_of
from counterfoil.papers.tags.inputs import (
    SHARE,
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
    MaskedCaptions,
    SelectedNegatives,
    Singles,
    choose_spans,
    mask_spans,
    with_singles,
)
from counterfoil.papers.tags.scoring import (
    PairInputs,
    predict_words,
    read_in_parts,
    score_in_parts,
)
from counterfoil.scoring.encode import evaluation_mode


def refill_probabilities(
    logits: Tensor, *, temperature: float, banned: Tensor | None = None
) -> Tensor:
    """Return the (M, V) probability of each word in each slot; rows sum to 1.

    TAGS, Eq. 2: the softmax of a slot's logits divided by a temperature, each slot by itself; above
    1 it makes unlikely words likelier. The `banned` words, (V,) bool, are never chosen; with None
    special tokens are chosen too, as in the authors' code (T4).
    """
    logits = full_precision(logits.detach()) / temperature
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    return logits.softmax(1)


def draw_refills(chances: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw (M, C) words with replacement, the same on every device.

    `torch.multinomial` draws on the device of the probabilities, so a GPU and the CPU would differ.
    Here the numbers come from the CPU, and a binary search in the running sum of the (M, V)
    `chances` finds their words.
    """
    cumulative = chances.double().cumsum(1)
    # Below 1 by more than rounding takes, so that the last word of probability 0 is never reached;
    # times the last sum, which rounding may leave beside 1.
    place = torch.rand(len(chances), count, generator=rng, dtype=torch.double) * (1 - 1e-12)
    place = place.to(cumulative.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, place, right=True)


def fill_slots(values: Tensor, slots: WordSlots, words: Tensor) -> Tensor:
    """Fill the M slots of (P, L) masked texts with (M, C) words: (P * C, L), C texts of each."""
    filled = values.unsqueeze(1).repeat(1, words.shape[1], 1)
    filled[slots.pair, :, slots.place] = words
    return filled.flatten(0, 1)


@final
@dataclass(frozen=True, slots=True)
class MaskedInputs:
    """B captions, the slots (B, K, L) of their K maskings, and the B * K masked captions."""

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
        specials: special tokens may be generated, as in the authors' code.

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
        check_positive(masks=self.masks, refills=self.refills)
        if not self.temperature > 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"temperature={self.temperature} and share={self.share} are not possible; a "
                "temperature is above 0, a share above 0 and at most 1"
            )
        parse_literal(Singles, self.singles, "a way to hide single words")

    def mask(
        self,
        inputs: GeneratorInputs,
        rows: Tensor,
        *,
        mask: int,
        rng: torch.Generator,
        device: torch.device,
    ) -> MaskedInputs:
        """Mask the captions in (B,) rows, K times each, with the id `mask`; results on `device`."""
        texts = inputs.texts(rows)
        words = texts.mask & ~inputs.banned[texts.values]
        phrases = inputs.phrases(rows, texts.mask.shape[1])
        phrases = with_singles(phrases, words, singles=self.singles)
        slots = choose_spans(
            phrases, times=self.masks, rng=rng, share=self.share, first=self.singles == "only"
        )
        texts = texts.to(device)
        masked = mask_spans(texts, slots, mask=mask, words=inputs.words, rng=rng)
        return MaskedInputs(texts, slots.to(device), masked)

    def refill(
        self, inputs: GeneratorInputs, masked: MaskedInputs, logits: Tensor, rng: torch.Generator
    ) -> Tensor:
        """Refill masked captions: (B, K * C, L) long, given the (M, V) logits at their slots."""
        banned = inputs.banned_ids(logits.shape[1], specials=self.specials).to(logits.device)
        chances = refill_probabilities(logits, temperature=self.temperature, banned=banned)
        words = draw_refills(chances, self.refills, rng)
        filled = fill_slots(masked.masked.texts.values, masked.masked.slots, words)
        return filled.view(len(masked.texts), -1, filled.shape[1])


def check_heads(model: RetrievalModel, heads: set[WordHead], noun: str, instead: str) -> None:
    """Check that a model has the required word heads.

    `noun` names the model, as in "the filler", and `instead` advises if it has no heads at all.

    Raises:
        ValueError: a head is missing.
    """
    if not heads:
        return
    if not isinstance(model, WordHeadModel):
        raise ValueError(f"{noun} {type(model).__name__} does not read words; {instead}")
    if missing := sorted(head.value for head in heads - model.word_heads):
        heads_of_model = ", ".join(sorted(head.value for head in model.word_heads))
        raise ValueError(
            f"{noun} {type(model).__name__} has no heads for {', '.join(missing)}; it has "
            f"{heads_of_model}: name them in its outputs"
        )


def mask_token_of(inputs: GeneratorInputs, generator: RetrievalModel) -> int:
    """Return the id of the token that hides a word: of the inputs, the model or the tokenizer.

    Raises:
        ValueError: there is none.
    """
    if inputs.mask is not None:
        return inputs.mask
    mask_word = word_embeddings_of(generator).mask_word
    mask = inputs.tokenizer.mask if mask_word is None else mask_word
    if mask is None:
        raise ValueError(
            "neither the generator nor its tokenizer has a token that hides a word; give its id to "
            "GeneratorInputs as mask, such as 3 for <unk>"
        )
    return mask


Task = Literal["masked", "doubt", "correct"]
TASKS: dict[str, WordHead] = {
    "masked": WordHead.FILL,
    "doubt": WordHead.DOUBT,
    "correct": WordHead.CORRECT,
}


def word_tasks(
    model: RetrievalModel,
    pairs: PairInputs,
    anchor: Tensor,
    slots: Tensor,
    originals: ModalityBatch,
    words: tuple[Task, ...],
) -> tuple[Tensor, dict[str, WordTask]]:
    """Score C chosen captions and compute their word tasks, in one forward pass.

    If nothing was chosen, the first original is read without counting, so that every head takes
    part in the step: data-parallel training waits for the gradient of every parameter.

    Args:
        model: a model with word heads.
        pairs: the chosen captions with their images.
        anchor: (C,) the original of each.
        slots: (C, L) bool, its masked tokens.
        originals: B captions.
        words: the tasks; "masked" is ignored.

    Returns:
        (C,) scores, and the tasks by name.
    """
    count = len(anchor)
    if not count:
        anchor, slots = anchor.new_zeros(1), originals.mask[:1]
        pairs = PairInputs(pairs.images, originals.rows(anchor), anchor)
    pair, place = slots.nonzero(as_tuple=True)
    want = frozenset({WordHead.SCORE, *(TASKS[word] for word in words if word != "masked")})
    reading = read_in_parts(model, pairs, want, WordSlots(pair, place))
    true, tasks = originals.values[anchor], {}
    assert reading.score is not None
    if reading.doubt is not None:
        row, column = pairs.texts.mask.nonzero(as_tuple=True)
        same = (pairs.texts.values == true).long()[row, column]
        tasks["doubt"] = _task(reading.doubt[row, column], same, anchor[row], counts=count > 0)
    if reading.correct is not None:
        tasks["correct"] = _task(reading.correct, true[pair, place], anchor[pair], counts=count > 0)
    return reading.score[:count], tasks


def _task(logits: Tensor, labels: Tensor, anchor: Tensor, *, counts: bool) -> WordTask:
    return WordTask(logits, labels if counts else torch.full_like(labels, -1), anchor)


def written_anchors(batch: Batch) -> Tensor:
    """Return the places (B',) of the anchors that captions are generated for: mostly all.

    Where no anchor has candidates of both directions, those that have images.
    """
    everyone = torch.arange(len(batch.anchors.image), device=batch.device)
    images, texts = (batch.candidates.get(role) for role in (Role.HARD_IMAGE, Role.HARD_TEXT))
    if images is None or texts is None:
        return everyone
    has_images, has_texts = (images.image >= 0).any(1), (texts.text >= 0).any(1)
    if bool((has_images & has_texts).any()) or not bool(has_images.any()):
        return everyone
    return everyone[has_images.to(everyone.device)]


def _of_anchors(tasks: dict[str, WordTask], anchors: Tensor) -> dict[str, WordTask]:
    """Return word tasks whose anchors are places in the whole batch."""
    return {
        name: task if task.anchor is None else replace(task, anchor=anchors[task.anchor])
        for name, task in tasks.items()
    }


OTHER_WORDS = (
    "TagsGenerator has a filler with another processor, {!r}, so the model learns no words from "
    "what that one writes"
)
INSTEAD = "give TagsGenerator a frozen filler that does, such as UNITER, and no word tasks"


@final
class TagsGenerator(NegativeSource):
    """Hides phrases of a caption, fills them with a model that sees the image, keeps the hardest.

    TAGS (https://arxiv.org/abs/2111.03349; Algorithm 1): each anchor caption is masked K times, and
    each masking refilled C times with words drawn from the model's predictions. Copies and captions
    that may be true are left out, and those of the rest that the model scores highest are trained
    on. Nothing is stored: captions are generated anew for every batch. The generator is the model
    in training ("dynamic") or a frozen one, the `filler`; a frozen one may have a processor of its
    own, and then serves models of any kind, which read the captions as text. Word tasks: "masked",
    the hidden words themselves; "doubt", whether each token of a chosen caption is the original's;
    "correct", the original's words in its slots.

    Departs from the authors' code in: the positive is scored as itself; captions that the
    image's captions make true are left out; so are copies and repetitions; special tokens
    are never generated; if fewer than `keep` are left, the other places are empty.
    """

    anchors_only = True
    seed_name = "propose"
    takes: ClassVar[Mapping[str, str]] = {"filler": "train"}

    def __init__(
        self,
        filler: Model | str | None = None,
        *,
        parser: PhraseParser | str | None = None,
        mask: int | None = None,
        masks: int = 20,
        refills: int = 20,
        keep: int = 31,
        temperature: float = 1.5,
        share: float = SHARE,
        singles: Singles = "without phrases",
        words: tuple[Task, ...] = ("masked",),
        candidate_filter: CandidateFilter | None = None,
        specials: bool = False,
    ) -> None:
        """Create a generator.

        Args:
            filler: the frozen generator, or its name as `counterfoil.load_model` opens it; None for
                the model in training.
            parser: finds phrases, see `GeneratorInputs`; None to hide single words.
            mask: id of the token that hides a word, see `GeneratorInputs`.
            masks: K, see `MaskRefill`, as for refills, temperature, share, singles and specials.
            refills: C.
            keep: m, captions of each anchor that are trained on.
            temperature: see `MaskRefill`.
            share: see `MaskRefill`.
            singles: see `MaskRefill`.
            words: word tasks to compute as well: "masked", "doubt", "correct".
            candidate_filter: filter of the captions; None for the paper's rule.
            specials: see `MaskRefill`.

        Raises:
            ValueError: a number out of range, or an unknown word task.
        """
        check_positive(masks=masks, refills=refills, keep=keep)
        self.mask_refill = MaskRefill(
            masks=masks,
            refills=refills,
            temperature=temperature,
            share=share,
            singles=singles,
            specials=specials,
        )
        for word in words:
            parse_choice(TASKS, word, "a word task")
        self._given, self._parser, self._mask = filler, parser, mask
        self._opened: Model | None = None
        self.filler: RetrievalModel | None = None  # the network of the frozen generator
        # of the model in training, where its processor is not that of the generator
        self.model_inputs: ProcessedDataset | None = None
        self.keep, self.words = keep, words
        self.candidate_filter = candidate_filter or CandidateFilter()
        self.gives = Needs(roles=frozenset({Role.WRITTEN}), words=frozenset(words))

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Check that generator and model have the heads they need.

        Raises:
            ValueError: a head is missing.
        """
        heads = {TASKS[word] for word in self.words}
        heads |= {WordHead.FILL} if self._given is None else set()
        check_heads(model, heads, "the model", INSTEAD)
        if self._given is not None:
            self._open_filler()

    def _open_filler(self) -> Model:
        """Open the frozen generator; refuse one without what it needs."""
        if self._opened is None:
            given = self._given
            opened = given if isinstance(given, Model) else load_model(str(given))
            check_heads(opened.model, {WordHead.FILL}, "the filler", "name a UNITER")
            self._opened = opened
        return self._opened

    def check_plan(self, training: PlannedTraining) -> None:
        """Check the filler.

        Raises:
            ValueError: it has no output for words, or the model is to learn words that it reads
                with another processor.
        """
        given: object = self._given
        if given is None:
            return
        filler = given if isinstance(given, PlannedModel) else self._open_filler()
        assert filler.processor is not None, "a model with an output for words reads some"
        if self.words and not same_processors(filler.processor, training.processor, training.data):
            raise ValueError(f"{OTHER_WORDS.format(filler.name)}; set words=()")

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Make the inputs of the generator.

        Raises:
            ValueError: nothing hides a word, or the model is to learn words that it reads with
                another processor.
        """
        inputs = data = data.original  # new captions have no vectors yet
        if self._given is not None:
            opened = self._open_filler()
            self.filler = opened.model.requires_grad_(False)
            assert opened.processor is not None, "a model with an output for words reads some"
            if not same_processors(opened.processor, data.processor, data.dataset):
                inputs, self.model_inputs = opened.process(data.dataset), data
                if self.words:
                    raise ValueError(f"{OTHER_WORDS.format(opened.name)}; set words=()")
        self.inputs = GeneratorInputs(processor=inputs, parser=self._parser, mask=self._mask)
        mask_token_of(self.inputs, self.filler or model)

    def describe(self) -> dict[str, Any]:
        filler = None if self._given is None else self._open_filler().digest()
        return {**super().describe(), "filler": filler, "words": self.words}

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return generated captions of every anchor, the same on every process.

        Where the directions of retrieved candidates have anchors of their own
        (`CandidateConfig.streams`), those with candidate images alone, as in the authors' code.
        """
        whole, anchors = batch, written_anchors(batch)
        image, text = batch.anchors.image[anchors], batch.anchors.text[anchors]
        batch = replace(batch, anchors=Pairs(image, text))
        rows, device = batch.text_rows[batch.anchors.text.cpu()], batch.device
        mask = mask_token_of(self.inputs, self.filler or model)
        masked = self.mask_refill.mask(self.inputs, rows, mask=mask, rng=rng, device=device)
        logits, task = self._predict(model, batch, views, masked.masked)
        generated = self.mask_refill.refill(self.inputs, masked, logits, rng)
        best, texts = self._select(model, batch, masked.texts, generated)
        tasks = {} if task is None else {"masked": task}
        of_whole = replace(best, anchor=anchors[best.anchor])
        if not {"doubt", "correct"} & set(self.words):
            return MinedExtras(
                texts=texts if len(texts) else None,
                pairs={Role.WRITTEN: self._pairs(whole, of_whole)},
                words=_of_anchors(tasks, anchors),
            )
        pairs = PairInputs(views.inference.images, texts, batch.anchors.image[best.anchor])
        slots = masked.slots[best.anchor, best.number // self.mask_refill.refills]
        written, more = word_tasks(model, pairs, best.anchor, slots, masked.texts, self.words)
        table = written.new_full((len(whole.anchors.image), self.keep), -torch.inf)
        table = table.index_put((of_whole.anchor, best.rank), written)
        words = _of_anchors({**tasks, **more}, anchors)
        return MinedExtras(words=words, scores={Role.WRITTEN: table})

    def _predict(
        self, model: RetrievalModel, batch: Batch, views: EncodedViews, masked: MaskedCaptions
    ) -> tuple[Tensor, WordTask | None]:
        """Return the generator's logits at the slots, and the "masked" task of the model."""
        anchor = torch.arange(len(batch.anchors.image), device=batch.device)
        anchor = anchor.repeat_interleave(self.mask_refill.masks)
        task, slots = None, masked.slots
        if self.filler is None or "masked" in self.words:
            pairs = PairInputs(views.inference.images, masked.texts, batch.anchors.image[anchor])
            logits = predict_words(model, pairs, slots)
            if "masked" in self.words:
                task = WordTask(logits, masked.labels, anchor[slots.pair])
        if self.filler is not None:
            filler = self.filler.to(anchor.device)
            with evaluation_mode([filler]):
                images = filler.encode_images(self._images(batch, self.inputs.processor))
                logits = predict_words(filler, PairInputs(images, masked.texts, anchor), slots)
        return logits, task

    def _select(
        self, model: RetrievalModel, batch: Batch, originals: ModalityBatch, generated: Tensor
    ) -> tuple[SelectedNegatives, ModalityBatch]:
        """Return the hardest of the captions that the filter allows, and these as model inputs."""
        images = batch.image_rows[batch.anchors.image.cpu()]
        rows = batch.text_rows[batch.anchors.text.cpu()]
        candidates = GeneratedCandidates(self.inputs, images, rows, originals.values, generated)
        allowed = self.candidate_filter.allowed(candidates)
        anchor, number = allowed.nonzero(as_tuple=True)
        texts = self._model_texts(rows, originals.rows(anchor), anchor, generated[anchor, number])
        with evaluation_mode([model]):
            processor = self.model_inputs or self.inputs.processor
            encoded = model.encode_images(self._images(batch, processor))
        scores = score_in_parts(model, PairInputs(encoded, texts, anchor))
        scores = self.candidate_filter.read_scores(model, scores)
        best = self.candidate_filter.select(candidates, scores, allowed, self.keep)
        return best, texts.rows(best.place)

    def _model_texts(
        self, rows: Tensor, originals: ModalityBatch, anchor: Tensor, values: Tensor
    ) -> ModalityBatch:
        """Return generated captions as inputs of the model in training."""
        if self.model_inputs is None:
            return with_values(originals, values)
        process = self.model_inputs.processor.process_texts
        strings = self.inputs.strings(rows[anchor.cpu()].tolist(), values)
        if not strings:
            any_text = self.inputs.processor.dataset.texts[int(rows[0])]
            return process([any_text]).to(values.device).rows(slice(0, 0))
        return process(strings).to(values.device)

    def _images(self, batch: Batch, processor: ProcessedDataset) -> ModalityBatch:
        """Return the anchors' images, processed."""
        rows = batch.image_rows[batch.anchors.image.cpu()]
        return processor.images(rows).to(batch.device)

    def _pairs(self, batch: Batch, selected: SelectedNegatives) -> Pairs:
        """Return (B, m) pairs; -1 where there is no text."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.keep), -1, device=anchors.device)
        text[selected.anchor, selected.rank] = len(batch.text_rows) + torch.arange(
            len(selected.anchor), device=anchors.device
        )
        return Pairs(anchors.expand_as(text), text)
