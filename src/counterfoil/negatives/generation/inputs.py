"""Which words of a caption are hidden, so that other words can be written in their place.

TAGS (https://arxiv.org/abs/2111.03349, section 2.1.1) hides whole phrases: each is chosen with the
mean, over its tokens, of 0.15 divided by the number of phrases that a token is part of; where none
is chosen, any one of them. Word masking is UNITER's: each token by itself, the first where none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice, unknown_name
from counterfoil.core.types import (
    Embeddings,
    ModalityBatch,
    Pairs,
    WordHead,
    WordHeadModel,
    WordReading,
    WordSlots,
)
from counterfoil.data.caption_edits import (
    PIECE,
    RewrittenCaption,
    replace_tokens,
    token_text,
    wordnet_synonyms,
)
from counterfoil.data.phrases import (
    PHRASE_KINDS,
    PhraseKind,
    PhraseParser,
    inflection,
    lemma,
    touched_tokens,
)
from counterfoil.data.processor import ProcessedDataset
from counterfoil.data.tokenizers import Tokenizer
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import evaluation_mode, gather_shards

Singles = Literal["without phrases", "always", "only"]
SINGLES: tuple[Singles, ...] = ("without phrases", "always", "only")
HIDDEN, EXCHANGED = 0.8, 0.1  # of the slots; the others keep their word
SHARE = 0.15


@final
@dataclass(frozen=True, slots=True)
class MaskedCaptions:
    """K masked forms of each of B texts.

    Attributes:
        texts: (B * K) texts, those of one text side by side.
        slots: (M,) the tokens that were hidden, text by text and from left to right.
        labels: (M,) long, what stood there.
    """

    texts: ModalityBatch
    slots: WordSlots
    labels: Tensor


def mask_table(phrases: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """(B, N, L) bool, True where a token belongs to a phrase, from the places of its tokens.

    Phrases without a token before `length` are left out; a phrase that stands twice is two.
    """
    kept = [
        [inside for phrase in some if (inside := [p for p in phrase if p < length])]
        for some in phrases
    ]
    out = torch.zeros(len(kept), max(map(len, kept), default=0), length, dtype=torch.bool)
    for text, some in enumerate(kept):
        for number, places in enumerate(some):
            out[text, number, places] = True
    return out


def with_singles(phrases: Tensor, words: Tensor, *, singles: Singles) -> Tensor:
    """(B, N + L, L) phrases and, where they are wanted, every word as one.

    Args:
        phrases: (B, N, L) bool.
        words: (B, L) bool, tokens that are no special ones.
        singles: "without phrases" gives single words to texts without a phrase, "always" to all,
            and "only" gives nothing else: word masking.
    """
    parse_choice(SINGLES, singles, "a way to hide single words")
    one = torch.diag_embed(words)
    if singles == "without phrases":
        one = one & ~phrases.flatten(1).any(1)[:, None, None]
    return one if singles == "only" else torch.cat([phrases, one], 1)


def mask_probabilities(phrases: Tensor, *, share: float = SHARE) -> Tensor:
    """(B, N) how likely each phrase is chosen, 0 for one without tokens.

    Args:
        phrases: (B, N, L) bool.
        share: how likely a token is hidden, divided by the number of phrases that it is part of.
    """
    many = phrases.sum(1, keepdim=True).clamp(min=1)
    return (phrases * (share / many.double())).sum(2) / phrases.sum(2).clamp(min=1)


def choose_spans(
    phrases: Tensor, *, times: int, rng: torch.Generator, share: float = SHARE, first: bool = False
) -> Tensor:
    """(B, K, L) bool, the tokens that are hidden in each of K maskings of each text.

    Nothing is hidden in a text that has no phrase at all.

    Args:
        phrases: (B, N, L) bool, on the CPU.
        times: K.
        rng: of the choice.
        share: see `mask_probabilities`.
        first: force the first phrase where none was chosen, instead of any.
    """
    size = len(phrases), times, phrases.shape[1]
    there = phrases.any(2)
    if not size[2]:
        return torch.zeros(*size[:2], phrases.shape[2], dtype=torch.bool)
    picked = (
        torch.rand(size, generator=rng, dtype=torch.double)
        < mask_probabilities(phrases, share=share)[:, None]
    )
    order = torch.rand(size, generator=rng).masked_fill(~there[:, None], 2.0)
    forced = there.int().argmax(1)[:, None].expand(size[:2]) if first else order.argmin(2)
    none = ~picked.any(2) & there.any(1, keepdim=True)
    picked[none] = torch.nn.functional.one_hot(forced, size[2]).bool()[none]
    return (picked.double() @ phrases.double()) > 0


def mask_spans(
    texts: ModalityBatch, slots: Tensor, *, mask: int, words: Tensor, rng: torch.Generator
) -> MaskedCaptions:
    """Texts with what stands in the slots hidden (80 %), exchanged (10 %), or left (10 %).

    Args:
        texts: B of them.
        slots: (B, K, L) bool, on the CPU.
        mask: id of the token that hides a word.
        words: (W,) long, on the CPU, ids of all words that may stand there.
        rng: of what happens to each slot.
    """
    times, device = slots.shape[1], texts.values.device
    pair, place = slots.flatten(0, 1).nonzero(as_tuple=True)
    fate = torch.rand(len(pair), generator=rng)
    other = words[torch.randint(len(words), (len(pair),), generator=rng)]
    pair, place, fate, other = (t.to(device) for t in (pair, place, fate, other))
    several = repeat_masked(texts, times)
    labels = several.values[pair, place]
    values = several.values.clone()
    new = other.where(fate >= HIDDEN, mask)
    values[pair, place] = new.where(fate < HIDDEN + EXCHANGED, labels)
    return MaskedCaptions(replace(several, values=values), WordSlots(pair, place), labels)


def repeat_masked(texts: ModalityBatch, times: int) -> ModalityBatch:
    """Each text so often, side by side, as texts that stand in no data set."""
    row = torch.arange(len(texts), device=texts.values.device).repeat_interleave(times)
    some = texts.rows(row)
    return replace(some, ids=torch.full_like(some.ids, -1), targets=None)


# Which written captions may be negatives, and which of them are the hardest.
#
# TAGS (https://arxiv.org/abs/2111.03349, section 2.1.2): a caption whose new words all occur in the
# captions of the image is taken for a true one. Here such captions, copies of the original, and
# what
# was written twice are out before anything is scored.
#
# Departs from the authors' code in: theirs has no such rule in its first step and crashes on it in
# the second (T2), and only lowers the scores of copies, so that they may still be chosen (T3); see
# `lowercase_all` for that form.


Scale = Literal["logits", "sigmoid"]
SCALES: tuple[Scale, ...] = ("logits", "sigmoid")
COPY, TWICE = 3.0, 2.0  # what the authors' code takes off


def copies_original(written: Tensor, original: Tensor) -> Tensor:
    """(B, N) bool, True for a caption that is the original.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
    """
    return (written == original.unsqueeze(1)).all(2)


def duplicates_of(written: Tensor) -> Tensor:
    """(B, N) bool, True for a caption that a later one of the same anchor repeats.

    Args:
        written: (B, N, L) long.
    """
    number = torch.arange(len(written), device=written.device)
    rows = torch.cat([number[:, None, None].expand(*written.shape[:2], 1), written], 2)
    group = torch.unique(rows.flatten(0, 1), dim=0, return_inverse=True)[1]
    place = torch.arange(len(group), device=group.device)
    last = torch.zeros_like(group).scatter_reduce(0, group, place, "amax", include_self=False)
    return (last[group] != place).view(written.shape[:2])


def is_true_caption(written: Tensor, original: Tensor, there: Tensor) -> Tensor:
    """(B, N) bool, True where every word that differs from the original's is known to be true.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
        there: (B, V) bool, words that occur in the captions of each anchor's image.
    """
    changed = written != original.unsqueeze(1)
    occurs = there.gather(1, written.flatten(1)).view(written.shape)
    return (occurs | ~changed).all(2)


def occurs_in_captions(
    captions: Tensor, mask: Tensor, text_to_image: Tensor, shape: tuple[int, int]
) -> Tensor:
    """(B, V) bool, the words that occur in the captions of each anchor's image.

    Args:
        captions: (C, L) long.
        mask: (C, L) bool.
        text_to_image: (C,) long, to which anchor each caption belongs.
        shape: B and V.
    """
    there = torch.zeros(shape, dtype=torch.bool, device=captions.device)
    there[text_to_image.unsqueeze(1).expand_as(captions)[mask], captions[mask]] = True
    return there


def agrees_with_wording(written: Tensor, original: Tensor, form: Tensor) -> Tensor:
    """(B, N) bool, True where every new word has the inflection of the one it replaces.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
        form: (V,) long, a number for each inflection.
    """
    return (form[written] == form[original].unsqueeze(1)).all(2)


def lowercase_all(scores: Tensor, copy: Tensor, repeat: Tensor, *, scale: Scale) -> Tensor:
    """Scores with those of copies lowered by 3, and of captions written again later by 2.

    This is the authors' code, on logits in its first step and on sigmoids in its second. Nothing
    is left out: a copy whose score is high enough is chosen, and copies fill up what is missing.

    Args:
        scores: (B, N) logits.
        copy: (B, N) bool, see `copies_original`.
        repeat: (B, N) bool, see `twice`.
        scale: what is lowered.

    Raises:
        ValueError: another scale.
    """
    parse_choice(SCALES, scale, "a scale of scores")
    scores = scores.sigmoid() if scale == "sigmoid" else scores
    return scores - COPY * copy.to(scores.dtype) - TWICE * repeat.to(scores.dtype)


def hardest_kept(scores: Tensor, keep: Tensor, count: int) -> Tensor:
    """(B, M) long, places of the highest scores of each row, best first; -1 where none is left.

    Args:
        scores: (B, N).
        keep: (B, N) bool, which may be chosen.
        count: M.
    """
    left = scores.float().masked_fill(~keep, -torch.inf)
    order = left.sort(dim=1, descending=True, stable=True).indices[:, :count]
    places = order.masked_fill(~keep.gather(1, order), -1)
    return torch.nn.functional.pad(places, (0, count - places.shape[1]), value=-1)


# What a writer has before it: captions with their phrases, and the words it may write.


@final
class GeneratorInputs:
    """A data set as a writer reads it.

    Args:
        processor: what the writer sees of the data set.
        parser: finds phrases; None where single words are hidden.
        mask: id of the token that hides a word; None for the writer's own, or the tokenizer's.

    Raises:
        ValueError: the writer reads vectors.
    """

    def __init__(
        self,
        *,
        processor: ProcessedDataset,
        parser: PhraseParser | None = None,
        mask: int | None = None,
    ) -> None:
        if processor.processor.tokenizer is None:
            raise ValueError("a writer reads words, and this lens shows it ready-made vectors")
        self.processor, self.parser = processor, parser
        self.tokenizer: Tokenizer = processor.processor.tokenizer
        self.mask = mask
        self._phrases: dict[int, list[tuple[PhraseKind, list[int]]]] = {}
        self._wider: dict[int, list[int]] = {}

    def texts(self, rows: Tensor) -> ModalityBatch:
        """These captions."""
        return self.processor.texts(rows.cpu())

    def phrases(self, rows: Tensor, length: int) -> Tensor:
        """(B, N, L) bool, the tokens of each phrase of these captions; each is read once."""
        wanted = rows.tolist()
        if self.parser is None:
            return torch.zeros(len(wanted), 0, length, dtype=torch.bool)
        if new := sorted({row for row in wanted if row not in self._phrases}):
            dataset = self.processor.dataset
            texts = [dataset.texts[row] for row in new]
            found = self.parser.phrases(texts, [dataset.text_ids[row] for row in new])
            for row, phrases, spans in zip(new, found, self.tokenizer.spans(texts), strict=True):
                self._phrases[row] = [
                    (phrase.kind, touched_tokens(phrase, spans)) for phrase in phrases
                ]
        return mask_table([[some for _, some in self._phrases[row]] for row in wanted], length)

    def kind(self, row: int, changed: Sequence[int]) -> str:
        """What some tokens of a caption say, by the kind of the phrases that they are part of.

        "word" where they are part of none, "several" where no kind is common to all of them.

        Args:
            row: the caption.
            changed: places of its tokens.
        """
        self.phrases(torch.tensor([row]), 1)
        found = self._phrases.get(row, [])
        said = [{kind for kind, some in found if place in some} for place in changed]
        if not any(said):
            return "word"
        return next(
            (kind for kind in PHRASE_KINDS if all(kind in kinds for kinds in said)), "several"
        )

    def occurring(self, images: Tensor) -> Tensor:
        """(B, V) bool, the words of all captions of these images."""
        texts, counts = self.processor.dataset.relation.captions(images.cpu())
        text_to_image = torch.arange(len(images)).repeat_interleave(counts)
        read = self.processor.texts(texts)
        return occurs_in_captions(
            read.values, read.mask, text_to_image, (len(images), self.tokenizer.size)
        )

    def strings(self, rows: Sequence[int], values: Tensor) -> list[str]:
        """Captions with some tokens exchanged, as text; see `rewritings`."""
        return [found.text for found in self.rewritings(rows, values)]

    def rewritings(self, rows: Sequence[int], values: Tensor) -> list[RewrittenCaption]:
        """Captions with some tokens exchanged, and which words that changes.

        Args:
            rows: (P,) the captions that they were.
            values: (P, L) long, what they are now.
        """
        if not rows:
            return []
        unique = sorted(set(rows))
        texts = [self.processor.dataset.texts[row] for row in unique]
        spans = dict(zip(unique, self.tokenizer.spans(texts), strict=True))
        told = dict(zip(unique, texts, strict=True))
        originals = self.texts(torch.tensor(rows)).values
        width = originals.shape[1]
        changed = values[:, :width].cpu() != originals
        out = []
        for row, words, new in zip(rows, values.tolist(), changed, strict=True):
            at = new.nonzero().squeeze(1).tolist()
            said = self.tokenizer.tokens([words[place] for place in at])
            out.append(replace_tokens(told[row], spans[row], dict(zip(at, said, strict=True))))
        return out

    @cached_property
    def banned(self) -> Tensor:
        """(V,) bool, what stands for no word."""
        out = torch.zeros(self.tokenizer.size, dtype=torch.bool)
        out[list(self.tokenizer.wordless)] = True
        return out

    @cached_property
    def words(self) -> Tensor:
        """(W,) long, ids of all words that may be written."""
        return (~self.banned).nonzero().squeeze(1)

    def banned_of(self, width: int, *, specials: bool) -> Tensor:
        """(V,) bool, what is not written, for a writer that knows so many ids.

        Args:
            width: V; what the tokenizer does not know is never written.
            specials: special tokens may be.
        """
        out = torch.ones(width, dtype=torch.bool)
        known = min(width, self.tokenizer.size)
        out[:known] = False if specials else self.banned[:known]
        return out

    def widened(self, there: Tensor) -> Tensor:
        """(B, V) bool, words and all forms of what WordNet has as synonyms and wider terms of them.

        Raises:
            ValueError: WordNet is not installed.
        """
        out = there.clone()
        for row, word in there.nonzero().tolist():
            if word not in self._wider:
                found = wordnet_synonyms(token_text(self._said[word]).lower())
                self._wider[word] = [form for one in found for form in self._forms.get(one, ())]
            out[row, self._wider[word]] = True
        return out

    @cached_property
    def lemmas(self) -> Tensor:
        """(V,) long, one number for all forms of a word: the lowest of their ids."""
        first: dict[str, int] = {}
        return torch.tensor(
            [
                word
                if said.startswith(PIECE)
                else first.setdefault(lemma(token_text(said).lower()), word)
                for word, said in enumerate(self._said)
            ]
        )

    @cached_property
    def inflections(self) -> Tensor:
        """(V,) long, one number for all words of the same ending, and one for pieces of words."""
        number: dict[str, int] = {}
        return torch.tensor(
            [
                number.setdefault(
                    PIECE if said.startswith(PIECE) else inflection(token_text(said).lower()),
                    len(number),
                )
                for said in self._said
            ]
        )

    @cached_property
    def _forms(self) -> dict[str, list[int]]:
        """Whole words by their letters, and by those of their dictionary form."""
        found: dict[str, list[int]] = {}
        for word, said in enumerate(self._said):
            if not said.startswith(PIECE) and not self.banned[word]:
                form = token_text(said).lower()
                for letters in {form, lemma(form)}:
                    found.setdefault(letters, []).append(word)
        return found

    @cached_property
    def _said(self) -> list[str]:
        return self.tokenizer.tokens(range(self.tokenizer.size))


# Which of the captions written for an anchor may be kept, and which are.


Rule = Literal["captions", "lemmas", "wordnet", "inflection"]
RULES: tuple[Rule, ...] = ("captions", "lemmas", "wordnet", "inflection")
Choice = Literal["exact", "lowered logits", "lowered scores"]
CHOICES: tuple[Choice, ...] = ("exact", "lowered logits", "lowered scores")


@final
@dataclass(frozen=True, slots=True)
class GeneratedCandidates:
    """Captions written for B anchors.

    Attributes:
        desk: where they were written.
        images: (B,) data set rows of the anchors' images.
        rows: (B,) data set rows of the anchors' captions.
        original: (B, L) long, their captions.
        written: (B, N, L) long.
    """

    desk: GeneratorInputs
    images: Tensor
    rows: Tensor
    original: Tensor
    written: Tensor


@final
@dataclass(frozen=True, slots=True)
class SelectedNegatives:
    """The hardest of B anchors' written captions; C of them in all.

    Attributes:
        anchor: (C,) for which anchor.
        column: (C,) its place among those of the anchor, the hardest first.
        number: (C,) which of the anchor's written captions it is.
        place: (C,) which of those that were scored it is.
    """

    anchor: Tensor
    column: Tensor
    number: Tensor
    place: Tensor


class FalseNegativeJudge(Protocol):
    """Another model's say on whether captions are true."""

    def true(self, images: Tensor, rows: Tensor, written: list[str]) -> Tensor:
        """(P,) bool, whether it takes each written caption for true.

        Args:
            images: (P,) data set rows.
            rows: (P,) data set rows of the captions that were changed.
            written: P captions.
        """
        ...


@final
class CandidateFilter:
    """Leaves out what may be true or is written twice, and picks the hardest of the rest.

    Args:
        rules: a caption is left out when all its new words occur in the image's captions
            ("captions", the paper's rule), or some form of each does ("lemmas"), or some form of
            each is what WordNet has as a synonym or a wider term of one that does ("wordnet"); and
            when a new word has another inflection than the old one ("inflection").
        choice: "exact" leaves copies out; "lowered logits" and "lowered scores" are the authors'
            first and second step, which leave nothing out and lower the scores of copies: what a
            probability was before the sigmoid, or the score itself (T3). They know no rules (T2).
        opinion: a model that is asked about the hardest.

    Raises:
        ValueError: an unknown rule or choice, or rules where the choice has none.
    """

    def __init__(
        self,
        *,
        rules: tuple[Rule, ...] = ("captions",),
        choice: Choice = "exact",
        opinion: FalseNegativeJudge | None = None,
    ) -> None:
        if strange := [rule for rule in rules if rule not in RULES]:
            raise ValueError(unknown_name(strange[0], list(RULES), "a rule for written captions"))
        parse_choice(CHOICES, choice, "a way to choose written captions")
        if choice != "exact" and (rules or opinion):
            raise ValueError(
                f"choice={choice!r} is the authors' form, which leaves nothing out; give it "
                "rules=() and no opinion"
            )
        self.rules, self.choice, self.opinion = rules, choice, opinion

    def may(self, found: GeneratedCandidates) -> Tensor:
        """(B, N) bool, which may be kept; the others need not be scored."""
        written, original = found.written, found.original
        if self.choice != "exact":
            return torch.ones_like(written[:, :, 0], dtype=torch.bool)
        out = ~(copies_original(written, original) | duplicates_of(written))
        for rule in self.rules:
            out &= self._passes(rule, found)
        return out

    def picked(
        self, found: GeneratedCandidates, scores: Tensor, may: Tensor, count: int
    ) -> SelectedNegatives:
        """The hardest of the captions that may be kept.

        Args:
            found: the captions.
            scores: (P,) of those that may be kept, anchor by anchor.
            may: (B, N) bool, which these are.
            count: M, of each anchor.
        """
        room = scores.new_full(may.shape, -torch.inf)
        room[may] = scores
        best = self.best(found, room, may, count)
        row, column = (best >= 0).nonzero(as_tuple=True)
        number = best[row, column]
        place = (may.flatten().cumsum(0) - 1).view(may.shape)
        return SelectedNegatives(row, column, number, place[row, number])

    def best(self, found: GeneratedCandidates, scores: Tensor, may: Tensor, count: int) -> Tensor:
        """(B, M) long, places of the hardest; -1 where none is left.

        Args:
            found: the captions.
            scores: (B, N), -inf where they may not be kept.
            may: (B, N) bool.
            count: M.
        """
        if self.choice != "exact":
            copy, again = (
                copies_original(found.written, found.original),
                duplicates_of(found.written),
            )
            if self.choice == "lowered logits":
                scores = _logits(scores)
            return hardest_kept(lowercase_all(scores, copy, again, scale="logits"), may, count)
        places = hardest_kept(scores, may, 2 * count if self.opinion else count)
        if self.opinion is None:
            return places
        row, column = (places >= 0).nonzero(as_tuple=True)
        if not len(row):
            return places[:, :count]
        values = found.written[row, places[row, column]]
        rows = found.rows[row.cpu()]
        written = found.desk.strings(rows.tolist(), values)
        true = self.opinion.true(found.images[row.cpu()], rows, written).to(may.device)
        left = torch.zeros_like(may)
        left[row, places[row, column]] = ~true
        return hardest_kept(scores, left, count)

    def _passes(self, rule: Rule, found: GeneratedCandidates) -> Tensor:
        desk, device = found.desk, found.written.device
        written, original = found.written, found.original
        if rule == "inflection":
            return agrees_with_wording(written, original, desk.inflections.to(device))
        there = desk.occurring(found.images)
        if rule == "captions":
            return ~is_true_caption(written, original, there.to(device))
        if rule == "wordnet":
            return ~is_true_caption(written, original, desk.widened(there).to(device))
        lemmas = desk.lemmas
        seen = torch.zeros(there.shape).scatter_reduce(
            1, lemmas.expand_as(there), there.float(), "amax"
        )
        lemmas = lemmas.to(device)
        return ~is_true_caption(lemmas[written], lemmas[original], seen.bool().to(device))


def _logits(scores: Tensor) -> Tensor:
    """What probabilities were before the sigmoid."""
    scores = scores.float()
    if bool(((scores < 0) | (scores > 1)).any()):
        raise ValueError(
            f"choice='lowered logits' was given scores from {scores.min():.3g} to "
            f"{scores.max():.3g}, which are no probabilities; use 'lowered scores'"
        )
    return scores.logit()


# Readings of many pairs: without a graph in parts, and shared between processes.


TEXTS_AT_ONCE = 1024


@final
@dataclass(frozen=True, slots=True)
class PairInputs:
    """Texts with the images that they are shown with.

    Attributes:
        images: I of them.
        texts: P of them.
        image: (P,) which image goes with each text.
    """

    images: Embeddings
    texts: ModalityBatch
    image: Tensor


def score_in_parts(model: RetrievalModel, shown: PairInputs) -> Tensor:
    """(P,) scores in evaluation mode without a graph; each process scores a share of the texts."""
    count, device = len(shown.texts), shown.image.device

    def score(rows: Tensor | slice) -> Tensor:
        texts, image = shown.texts.rows(rows), shown.image[rows]
        parts = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = slice(start, start + TEXTS_AT_ONCE)
            some = model.encode_texts(texts.rows(part))
            pairs = Pairs(image[part], torch.arange(len(some), device=device))
            parts.append(model.score_indices(shown.images, some, pairs))
        return torch.cat(parts)

    if not count:
        return torch.zeros(0, device=device)
    with evaluation_mode([model]):
        return gather_shards(count, score, device)


def read_in_parts(
    model: RetrievalModel, shown: PairInputs, want: frozenset[WordHead], slots: WordSlots
) -> WordReading:
    """What is wanted of all texts, alike on all processes, each of which reads a share of them.

    Args:
        model: reads words.
        shown: P texts, at least one, with their images.
        want: what is asked.
        slots: M places in the texts, in the order of the texts.
    """
    assert isinstance(model, WordHeadModel), "the step checks that it reads words"
    count, device = len(shown.texts), shown.image.device
    begin, end = _bounds(count, distributed.rank())
    rows = torch.arange(begin, end, device=device)
    inside = (slots.pair >= begin) & (slots.pair < end)
    here = WordSlots(slots.pair[inside] - begin, slots.place[inside])
    texts = model.encode_texts(shown.texts.rows(rows))
    found = model.read(shown.images.rows(shown.image[rows]), texts, want, here)
    if distributed.size() == 1:
        return found
    by_text, by_slot = _order(count, slots)
    return WordReading(
        score=_together(found.score, by_text),
        fill=_together(found.fill, by_slot),
        doubt=_together(found.doubt, by_text),
        correct=_together(found.correct, by_slot),
    )


def _bounds(count: int, rank: int) -> tuple[int, int]:
    """First row of a process's share and the one after its last; the last row if it has none."""
    each = -(-count // distributed.size())
    begin = min(rank * each, count - 1)
    return begin, max(min((rank + 1) * each, count), begin + 1)


@final
@dataclass(frozen=True, slots=True)
class _Order:
    """How the rows of all processes lie when each sends `most` of them.

    Attributes:
        most: rows that each process sends.
        places: (n,) where the rows that count stand among what was sent.
    """

    most: int
    places: Tensor


def _order(count: int, slots: WordSlots) -> tuple[_Order, _Order]:
    """Of the texts, and of the slots."""
    each = -(-count // distributed.size())
    texts, words = [], []
    for rank in range(distributed.size()):
        begin, end = _bounds(count, rank)
        real = rank * each < count
        many = int(((slots.pair >= begin) & (slots.pair < end)).sum())
        texts.append((end - begin, real))
        words.append((many, real))
    return _placed(texts, slots.pair.device), _placed(words, slots.pair.device)


def _placed(sent: list[tuple[int, bool]], device: torch.device) -> _Order:
    most = max(many for many, _ in sent)
    places = [
        torch.arange(rank * most, rank * most + many, device=device)
        for rank, (many, real) in enumerate(sent)
        if real
    ]
    return _Order(most, torch.cat(places))


def _together(share: Tensor | None, order: _Order) -> Tensor | None:
    """The rows of all processes, with their gradients."""
    if share is None:
        return None
    room = pad(share, (0, 0) * (share.dim() - 1) + (0, order.most - len(share)))
    return distributed.gather_rows(room)[order.places]
