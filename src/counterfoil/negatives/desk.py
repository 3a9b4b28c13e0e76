"""What a writer has before it: captions with their phrases, and the words it may write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.lens import CorpusLens
from counterfoil.corpus.words import Tokenizer
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
from counterfoil.negatives.masks import table
from counterfoil.negatives.written_filters import occurring
from counterfoil.records import Items


@final
class Desk:
    """A corpus as a writer reads it.

    Args:
        lens: what the writer sees of the corpus.
        parser: finds phrases; None where single words are hidden.
        mask: id of the token that hides a word; None for the writer's own, or the tokenizer's.

    Raises:
        ValueError: the writer reads vectors.
    """

    def __init__(
        self, *, lens: CorpusLens, parser: PhraseParser | None = None, mask: int | None = None
    ) -> None:
        if lens.lens.tokenizer is None:
            raise ValueError("a writer reads words, and this lens shows it ready-made vectors")
        self.lens, self.parser = lens, parser
        self.tokenizer: Tokenizer = lens.lens.tokenizer
        self.mask = mask
        self._phrases: dict[int, list[tuple[PhraseKind, list[int]]]] = {}
        self._wider: dict[int, list[int]] = {}

    def texts(self, rows: Tensor) -> Items:
        """These captions."""
        return self.lens.texts(rows.cpu())

    def phrases(self, rows: Tensor, length: int) -> Tensor:
        """(B, N, L) bool, the tokens of each phrase of these captions; each is read once."""
        wanted = rows.tolist()
        if self.parser is None:
            return torch.zeros(len(wanted), 0, length, dtype=torch.bool)
        if new := sorted({row for row in wanted if row not in self._phrases}):
            corpus = self.lens.corpus
            texts = [corpus.texts[row] for row in new]
            found = self.parser.phrases(texts, [corpus.text_ids[row] for row in new])
            for row, phrases, spans in zip(new, found, self.tokenizer.spans(texts), strict=True):
                self._phrases[row] = [
                    (phrase.kind, touched_tokens(phrase, spans)) for phrase in phrases
                ]
        return table([[some for _, some in self._phrases[row]] for row in wanted], length)

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
        texts, counts = self.lens.corpus.relation.captions(images.cpu())
        owner = torch.arange(len(images)).repeat_interleave(counts)
        read = self.lens.texts(texts)
        return occurring(read.values, read.mask, owner, (len(images), self.tokenizer.size))

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
        texts = [self.lens.corpus.texts[row] for row in unique]
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
