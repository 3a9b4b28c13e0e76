"""Inputs and selection of generated captions: masks, allowed words, filters, scores of many pairs.

TAGS (https://arxiv.org/abs/2111.03349, section 2.1) generates false captions from true ones. The
steps around the generator (`generation.tags`): hide phrases of a caption (`choose_spans`,
`mask_spans`), list the words that may fill them (`GeneratorInputs`), leave out captions that may be
true (`CandidateFilter`), score the rest (`score_in_parts`, `read_in_parts`).

Masking, section 2.1.1: whole phrases are hidden. Each is chosen with the mean, over its tokens, of
0.15 divided by the number of phrases that the token is part of; if none is chosen, a random one is.
Word masking is UNITER's: each token by itself, the first if none is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core.config import parse_literal
from counterfoil.core.types import ModalityBatch, WordSlots
from counterfoil.data.caption_edits import (
    PIECE,
    RewrittenCaption,
    replace_tokens,
    token_text,
    wordnet_synonyms,
)
from counterfoil.data.phrases import (
    PHRASE_KINDS,
    PhraseFile,
    PhraseKind,
    PhraseParser,
    inflection,
    lemma,
    touched_tokens,
)
from counterfoil.data.processor import ProcessedDataset
from counterfoil.data.tokenizers import Tokenizer
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import full_precision
from counterfoil.negatives.online import with_values

Singles = Literal["without phrases", "always", "only"]
HIDDEN, EXCHANGED = 0.8, 0.1  # shares of the masked tokens; the others keep their word
SHARE = 0.15  # probability that a token is masked


@final
@dataclass(frozen=True, slots=True)
class MaskedCaptions:
    """K masked forms of each of B texts.

    Attributes:
        texts: (B * K) texts, the K forms of one text side by side.
        slots: (M,) the masked tokens, text by text and from left to right.
        labels: (M,) long, their original ids.
    """

    texts: ModalityBatch
    slots: WordSlots
    labels: Tensor


def mask_table(phrases: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """Return (B, N, L) bool, the tokens of each phrase, given their places; repeated ones count.

    Phrases without a token before `length` are left out.
    """
    inside = [
        [places for phrase in text if (places := [p for p in phrase if p < length])]
        for text in phrases
    ]
    table = torch.zeros(len(inside), max(map(len, inside), default=0), length, dtype=torch.bool)
    for row, text in enumerate(inside):
        for number, places in enumerate(text):
            table[row, number, places] = True
    return table


def with_singles(phrases: Tensor, words: Tensor, *, singles: Singles) -> Tensor:
    """Add single words to the phrases: (B, N + L, L) bool.

    Args:
        phrases: (B, N, L) bool.
        words: (B, L) bool, tokens that are not special.
        singles: "without phrases" adds words to texts without a phrase, "always" to all; "only"
            returns the words alone: word masking.
    """
    parse_literal(Singles, singles, "a way to hide single words")
    single = torch.diag_embed(words)
    if singles == "without phrases":
        single = single & ~phrases.flatten(1).any(1)[:, None, None]
    return single if singles == "only" else torch.cat([phrases, single], 1)


def mask_probabilities(phrases: Tensor, *, share: float = SHARE) -> Tensor:
    """Return the (B, N) probability that each of (B, N, L) phrases is chosen.

    A token is masked with probability `share`, divided by the number of its phrases.
    """
    count = phrases.sum(1, keepdim=True).clamp(min=1)
    return (phrases * (share / count.double())).sum(2) / phrases.sum(2).clamp(min=1)


def choose_spans(
    phrases: Tensor, *, times: int, rng: torch.Generator, share: float = SHARE, first: bool = False
) -> Tensor:
    """Choose the tokens to hide in each of K maskings of each text: (B, K, L) bool.

    Nothing is hidden in a text without phrases. Where chance chooses no phrase, a random one is
    hidden, or with `first` the first one.

    Args:
        phrases: (B, N, L) bool, on the CPU.
        times: K.
        rng: of the choice.
        share: see `mask_probabilities`.
        first: see above.
    """
    size = len(phrases), times, phrases.shape[1]
    exists = phrases.any(2)
    if not size[2]:
        return torch.zeros(*size[:2], phrases.shape[2], dtype=torch.bool)
    chosen = (
        torch.rand(size, generator=rng, dtype=torch.double)
        < mask_probabilities(phrases, share=share)[:, None]
    )
    # Drawn even with `first`, so that the later numbers of the generator are the same.
    order = torch.rand(size, generator=rng).masked_fill(~exists[:, None], 2.0)
    forced = exists.int().argmax(1)[:, None].expand(size[:2]) if first else order.argmin(2)
    empty = ~chosen.any(2) & exists.any(1, keepdim=True)
    chosen[empty] = torch.nn.functional.one_hot(forced, size[2]).bool()[empty]
    return (chosen.double() @ phrases.double()) > 0


def mask_spans(
    texts: ModalityBatch, slots: Tensor, *, mask: int, words: Tensor, rng: torch.Generator
) -> MaskedCaptions:
    """Mask the tokens in (B, K, L) slots (80 %), exchange them (10 %), or leave them (10 %).

    Args:
        texts: B texts.
        slots: (B, K, L) bool, on the CPU.
        mask: id of the token that hides a word.
        words: (W,) long, on the CPU, ids of the words to exchange them for.
        rng: of the choice for each slot.
    """
    times, device = slots.shape[1], texts.values.device
    pair, place = slots.flatten(0, 1).nonzero(as_tuple=True)
    fate = torch.rand(len(pair), generator=rng)
    other = words[torch.randint(len(words), (len(pair),), generator=rng)]
    pair, place, fate, other = (t.to(device) for t in (pair, place, fate, other))
    repeated = texts.rows(torch.arange(len(texts), device=device).repeat_interleave(times))
    labels = repeated.values[pair, place]
    values = repeated.values.clone()
    new = other.where(fate >= HIDDEN, mask)
    values[pair, place] = new.where(fate < HIDDEN + EXCHANGED, labels)
    return MaskedCaptions(with_values(repeated, values), WordSlots(pair, place), labels)


# Which generated captions may be negatives, and which of them are the hardest.
#
# TAGS (https://arxiv.org/abs/2111.03349, section 2.1.2): a caption whose new words all occur in the
# captions of the image is taken for a true one. Here such captions, copies of the original, and
# repeated captions are removed before anything is scored.
#
# Departs from the authors' code in: theirs has no such rule in its first step and crashes on it in
# the second, and only lowers the scores of copies, so that they may still be chosen; see
# `penalise_copies` for that form.


COPY, TWICE = 3.0, 2.0  # penalties of the authors' code for copies and repetitions


def copies_original(generated: Tensor, original: Tensor) -> Tensor:
    """Return (B, N) bool, which of (B, N, L) captions equal the original, (B, L)."""
    return (generated == original.unsqueeze(1)).all(2)


def repeated_captions(generated: Tensor) -> Tensor:
    """Return (B, N) bool, which of (B, N, L) captions a later one of the same anchor repeats."""
    number = torch.arange(len(generated), device=generated.device)
    rows = torch.cat([number[:, None, None].expand(*generated.shape[:2], 1), generated], 2)
    group = torch.unique(rows.flatten(0, 1), dim=0, return_inverse=True)[1]
    place = torch.arange(len(group), device=group.device)
    last = torch.zeros_like(group).scatter_reduce(0, group, place, "amax", include_self=False)
    return (last[group] != place).view(generated.shape[:2])


def is_true_caption(generated: Tensor, original: Tensor, occurring: Tensor) -> Tensor:
    """Return (B, N) bool, whether every changed word occurs in captions of the image.

    Args:
        generated: (B, N, L) long.
        original: (B, L) long.
        occurring: (B, V) bool, words that occur in the captions of each anchor's image.
    """
    changed = generated != original.unsqueeze(1)
    occurs = occurring.gather(1, generated.flatten(1)).view(generated.shape)
    return (occurs | ~changed).all(2)


def occurs_in_captions(
    captions: Tensor, mask: Tensor, text_to_image: Tensor, shape: tuple[int, int]
) -> Tensor:
    """Return (B, V) bool, the words of C captions, (C, L), that belong to B anchors' images."""
    occurring = torch.zeros(shape, dtype=torch.bool, device=captions.device)
    occurring[text_to_image.unsqueeze(1).expand_as(captions)[mask], captions[mask]] = True
    return occurring


def penalise_copies(scores: Tensor, copy: Tensor, repeat: Tensor) -> Tensor:
    """Lower the (B, N) scores of copies by 3, and those of captions repeated later by 2.

    This is the authors' code, on logits in its first step and on sigmoids in its second. Nothing
    is left out: a copy whose score is high enough is chosen, and copies fill the places that are
    left.
    """
    return scores - COPY * copy.to(scores.dtype) - TWICE * repeat.to(scores.dtype)


def hardest_allowed(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Return the (B, count) places of each row's highest allowed (B, N) scores, -1 for none."""
    ranked = full_precision(scores).masked_fill(~allowed, -torch.inf)
    order = ranked.sort(dim=1, descending=True, stable=True).indices[:, :count]
    places = order.masked_fill(~allowed.gather(1, order), -1)
    return pad(places, (0, count - places.shape[1]), value=-1)


@final
class GeneratorInputs:
    """A data set as input of a caption generator: captions, phrases and allowed words.

    Args:
        processor: the generator's inputs from the data set.
        parser: finds phrases, or the path of a `counterfoil.data.phrases.PhraseFile`; None to hide
            single words.
        mask: id of the token that hides a word; None for the generator's own, or the tokenizer's.

    Raises:
        ValueError: the texts are ready-made vectors.
    """

    def __init__(
        self,
        *,
        processor: ProcessedDataset,
        parser: PhraseParser | str | None = None,
        mask: int | None = None,
    ) -> None:
        if processor.processor.tokenizer is None:
            raise ValueError(
                "a caption generator reads words, and this processor gives it ready-made vectors"
            )
        self.processor = processor
        self.parser = PhraseFile(path=parser) if isinstance(parser, str) else parser
        self.tokenizer: Tokenizer = processor.processor.tokenizer
        self.mask = mask
        self._phrases: dict[int, list[tuple[PhraseKind, list[int]]]] = {}
        self._wider: dict[int, list[int]] = {}

    def texts(self, rows: Tensor) -> ModalityBatch:
        """Return these captions as token ids."""
        return self.processor.texts(rows.cpu())

    def phrases(self, rows: Tensor, length: int) -> Tensor:
        """Return (B, N, L) bool, the tokens of each phrase; each caption is parsed once."""
        captions = rows.tolist()
        if self.parser is None:
            return torch.zeros(len(captions), 0, length, dtype=torch.bool)
        if new := sorted(set(captions) - self._phrases.keys()):
            dataset = self.processor.dataset
            texts = [dataset.texts[row] for row in new]
            parsed = self.parser.phrases(texts, [dataset.text_ids[row] for row in new])
            for row, phrases, spans in zip(new, parsed, self.tokenizer.spans(texts), strict=True):
                self._phrases[row] = [
                    (phrase.kind, touched_tokens(phrase, spans)) for phrase in phrases
                ]
        return mask_table(
            [[places for _, places in self._phrases[row]] for row in captions], length
        )

    def kind(self, row: int, changed: Sequence[int]) -> str:
        """Return the kind of phrase that the changed tokens of a caption are part of.

        "word" if they are part of no phrase, "several" if no kind is common to all of them.
        """
        self.phrases(torch.tensor([row]), 1)
        phrases = self._phrases.get(row, [])
        kinds = [{kind for kind, places in phrases if place in places} for place in changed]
        if not any(kinds):
            return "word"
        return next((kind for kind in PHRASE_KINDS if all(kind in k for k in kinds)), "several")

    def occurring(self, images: Tensor) -> Tensor:
        """Return (B, V) bool, the words of all captions of these images."""
        texts, counts = self.processor.dataset.relation.captions(images.cpu())
        text_to_image = torch.arange(len(images)).repeat_interleave(counts)
        captions = self.processor.texts(texts)
        return occurs_in_captions(
            captions.values, captions.mask, text_to_image, (len(images), self.tokenizer.size)
        )

    def strings(self, rows: Sequence[int], values: Tensor) -> list[str]:
        """Return captions with some tokens exchanged, as text; see `rewritings`."""
        return [rewritten.text for rewritten in self.rewritings(rows, values)]

    def rewritings(self, rows: Sequence[int], values: Tensor) -> list[RewrittenCaption]:
        """Return P captions with some tokens exchanged for (P, L) ids, and the changed words."""
        if not rows:
            return []
        captions = {row: self.processor.dataset.texts[row] for row in rows}
        spans = dict(zip(captions, self.tokenizer.spans([*captions.values()]), strict=True))
        originals = self.texts(torch.tensor(rows)).values
        changed = values[:, : originals.shape[1]].cpu() != originals
        out = []
        for row, words, new in zip(rows, values.tolist(), changed, strict=True):
            places = new.nonzero().squeeze(1).tolist()
            tokens = self.tokenizer.tokens([words[place] for place in places])
            replaced = dict(zip(places, tokens, strict=True))
            out.append(replace_tokens(captions[row], spans[row], replaced))
        return out

    @cached_property
    def banned(self) -> Tensor:
        """(V,) bool, ids that stand for no word."""
        out = torch.zeros(self.tokenizer.size, dtype=torch.bool)
        out[list(self.tokenizer.wordless)] = True
        return out

    @cached_property
    def words(self) -> Tensor:
        """(W,) long, ids of all words that may be generated."""
        return (~self.banned).nonzero().squeeze(1)

    def banned_ids(self, width: int, *, specials: bool) -> Tensor:
        """Return (V,) bool, ids that a generator of `width` ids never generates.

        These are those that the tokenizer does not know and, unless `specials`, special tokens.
        """
        out = torch.ones(width, dtype=torch.bool)
        known = min(width, self.tokenizer.size)
        out[:known] = False if specials else self.banned[:known]
        return out

    def with_wider_terms(self, occurring: Tensor) -> Tensor:
        """Add to (B, V) bool words all forms of their WordNet synonyms and wider terms."""
        out = occurring.clone()
        for row, word in occurring.nonzero().tolist():
            if word not in self._wider:
                terms = wordnet_synonyms(token_text(self._tokens[word]).lower())
                self._wider[word] = [form for term in terms for form in self._forms.get(term, ())]
            out[row, self._wider[word]] = True
        return out

    @cached_property
    def lemmas(self) -> Tensor:
        """(V,) long, one number for all forms of a word: the lowest of their ids."""
        return self._numbered(lemma, lambda token: token)

    @cached_property
    def inflections(self) -> Tensor:
        """(V,) long, one number for all words of the same ending, and one for pieces of words."""
        return self._numbered(inflection, lambda token: PIECE)

    def _numbered(self, key: Callable[[str], str], piece: Callable[[str], str]) -> Tensor:
        """Return (V,) the lowest id with the same key, of words and of pieces of words."""
        first: dict[str, int] = {}
        keys = (
            piece(token) if token.startswith(PIECE) else key(token_text(token).lower())
            for token in self._tokens
        )
        return torch.tensor([first.setdefault(own, word) for word, own in enumerate(keys)])

    @cached_property
    def _forms(self) -> dict[str, list[int]]:
        """Whole words by their letters, and by those of their dictionary form."""
        forms: dict[str, list[int]] = {}
        for word, token in enumerate(self._tokens):
            if not token.startswith(PIECE) and not self.banned[word]:
                form = token_text(token).lower()
                for letters in {form, lemma(form)}:
                    forms.setdefault(letters, []).append(word)
        return forms

    @cached_property
    def _tokens(self) -> list[str]:
        return self.tokenizer.tokens(range(self.tokenizer.size))


Rule = Literal["captions", "lemmas", "wordnet", "inflection"]
RULES: tuple[Rule, ...] = get_args(Rule)
Choice = Literal["exact", "lowered logits", "lowered scores"]


@final
@dataclass(frozen=True, slots=True)
class GeneratedCandidates:
    """Captions generated for B anchors.

    Attributes:
        inputs: the inputs they were generated from.
        images: (B,) data set rows of the anchors' images.
        rows: (B,) data set rows of the anchors' captions.
        original: (B, L) long, their captions.
        generated: (B, N, L) long.
    """

    inputs: GeneratorInputs
    images: Tensor
    rows: Tensor
    original: Tensor
    generated: Tensor


@final
@dataclass(frozen=True, slots=True)
class SelectedNegatives:
    """The hardest of B anchors' generated captions; C of them in all.

    Attributes:
        anchor: (C,) the anchor.
        rank: (C,) rank among the anchor's captions, the hardest first.
        number: (C,) index among the anchor's generated captions.
        place: (C,) index among the scored captions.
    """

    anchor: Tensor
    rank: Tensor
    number: Tensor
    place: Tensor


class FalseNegativeJudge(Protocol):
    """Another model that judges whether generated captions are true."""

    def is_true(self, images: Tensor, rows: Tensor, generated: list[str]) -> Tensor:
        """Return (P,) bool, which captions it takes for true, given P image and original rows."""
        ...


@final
class CandidateFilter:
    """Leaves out captions that may be true or are repeated, and picks the hardest of the rest.

    Args:
        rules: a caption is left out if all its new words occur in the image's captions
            ("captions", the paper's rule), or some form of each does ("lemmas"), or some form of
            each is a WordNet synonym or wider term of one that does ("wordnet"); and if a new word
            has another inflection than the old one ("inflection").
        choice: "exact" leaves copies out; "lowered logits" and "lowered scores" are the authors'
            first and second step, which leave nothing out and lower the scores of copies, before
            the sigmoid or after it (`RetrievalModel.loss_scores`). They have no rules.
        opinion: judges of the hardest captions; one that any judge takes for true is left out.

    Raises:
        ValueError: an unknown rule or choice, or rules for a choice that has none.
    """

    def __init__(
        self,
        *,
        rules: tuple[Rule, ...] = ("captions",),
        choice: Choice = "exact",
        opinion: Sequence[FalseNegativeJudge] | None = None,
    ) -> None:
        for rule in rules:
            parse_literal(Rule, rule, "a rule for generated captions")
        parse_literal(Choice, choice, "a way to choose generated captions")
        if choice != "exact" and (rules or opinion):
            raise ValueError(
                f"choice={choice!r} is the authors' form, which leaves nothing out; give it "
                "rules=() and no opinion"
            )
        self.rules, self.choice, self.judges = rules, choice, tuple(opinion or ())

    def allowed(self, candidates: GeneratedCandidates) -> Tensor:
        """Return (B, N) bool, captions that may be chosen; the others need not be scored."""
        generated = candidates.generated
        if self.choice != "exact":
            return torch.ones_like(generated[:, :, 0], dtype=torch.bool)
        copies = copies_original(generated, candidates.original)
        allowed = ~(copies | repeated_captions(generated))
        for rule in self.rules:
            allowed &= self._passes(rule, candidates)
        return allowed

    def read_scores(self, model: RetrievalModel, scores: Tensor) -> Tensor:
        """Return a model's scores as this choice ranks them: before the sigmoid or after it."""
        return model.loss_scores(scores) if self.choice == "lowered scores" else scores

    def select(
        self, candidates: GeneratedCandidates, scores: Tensor, allowed: Tensor, count: int
    ) -> SelectedNegatives:
        """Choose the hardest `count` captions of each anchor.

        Args:
            candidates: the captions.
            scores: (P,) of those that may be chosen, anchor by anchor, as `read_scores` gives them.
            allowed: (B, N) bool, captions that may be chosen.
            count: M.
        """
        table = scores.new_full(allowed.shape, -torch.inf)
        table[allowed] = scores
        hardest = self._hardest(candidates, table, allowed, count)
        anchor, rank = (hardest >= 0).nonzero(as_tuple=True)
        number = hardest[anchor, rank]
        place = (allowed.flatten().cumsum(0) - 1).view(allowed.shape)
        return SelectedNegatives(anchor, rank, number, place[anchor, number])

    def _hardest(
        self, candidates: GeneratedCandidates, scores: Tensor, allowed: Tensor, count: int
    ) -> Tensor:
        """Return the (B, count) indices of the hardest captions; -1 for none."""
        generated = candidates.generated
        if self.choice != "exact":
            copies = copies_original(generated, candidates.original)
            repeats = repeated_captions(generated)
            return hardest_allowed(penalise_copies(scores, copies, repeats), allowed, count)
        # With judges, twice as many are scored by them: some of the hardest will be true.
        places = hardest_allowed(scores, allowed, 2 * count if self.judges else count)
        anchor, rank = (places >= 0).nonzero(as_tuple=True)
        if not self.judges or not len(anchor):
            return places[:, :count]
        place, rows = places[anchor, rank], candidates.rows[anchor.cpu()]
        strings = candidates.inputs.strings(rows.tolist(), generated[anchor, place])
        images = candidates.images[anchor.cpu()]
        true = torch.stack([judge.is_true(images, rows, strings) for judge in self.judges]).any(0)
        false_captions = torch.zeros_like(allowed)
        false_captions[anchor, place] = ~true.to(allowed.device)
        return hardest_allowed(scores, false_captions, count)

    def _passes(self, rule: Rule, candidates: GeneratedCandidates) -> Tensor:
        inputs, generated, original = candidates.inputs, candidates.generated, candidates.original
        device = generated.device
        if rule == "inflection":
            form = inputs.inflections.to(device)  # every new word has that of the old one
            return (form[generated] == form[original].unsqueeze(1)).all(2)
        occurring = inputs.occurring(candidates.images)
        if rule == "wordnet":
            occurring = inputs.with_wider_terms(occurring)
        if rule == "lemmas":
            lemmas = inputs.lemmas
            occurring = torch.zeros(occurring.shape).scatter_reduce(
                1, lemmas.expand_as(occurring), occurring.float(), "amax"
            )
            lemmas = lemmas.to(device)
            generated, original = lemmas[generated], lemmas[original]
        return ~is_true_caption(generated, original, occurring.bool().to(device))
