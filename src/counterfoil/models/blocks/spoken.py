"""What a transformer over texts and images says of pairs, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from counterfoil.models.blocks import paired
from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.joint import Packing
from counterfoil.models.blocks.uniter_heads import UniterHeads, present
from counterfoil.reading import Reading, Slots, Want
from counterfoil.records import Encoded, Pairs

LOGIT_SCALE = 4.0  # near 0 a probability changes by a quarter of its logit

Score = Literal["probability", "logit"]


class Body(Protocol):
    """A transformer over packed sequences."""

    def __call__(self, tokens: Tensor, packing: Packing, kept: Tensor | None = None, /) -> Tensor:
        """(S, D) last hidden states, or (K, D) of the tokens that are kept."""
        ...


class Pool(Protocol):
    """What the state of a first token says of its pair."""

    def __call__(self, first: Tensor, /) -> Tensor:
        """(P, D) of (P, D)."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Joint:
    """P texts and images that have read each other; zeros at padding.

    Attributes:
        texts: (P, L, D) last hidden states.
        images: (P, R, D) last hidden states.
        pooled: (P, D) what the first token of each says of the whole.
    """

    texts: Encoded
    images: Encoded
    pooled: Tensor


@final
@dataclass(frozen=True, slots=True)
class Speaker:
    """The parts of a model that reads embedded texts and images together.

    Sequences are packed, so that neither padding nor the batch has a share in what is said.

    Attributes:
        body: reads.
        pool: sums a pair up.
        says: its heads.
        words: (V, D) embeddings of words, which the heads that name words end in.
        score: "probability" or "logit".
    """

    body: Body
    pool: Pool
    says: UniterHeads
    words: Tensor
    score: Score

    @property
    def wants(self) -> frozenset[Want]:
        """What there are heads for."""
        says = self.says
        heads = {Want.FILL: says.fill, Want.DOUBT: says.doubt, Want.CORRECT: says.correct}
        return frozenset({Want.SCORE, *(want for want, head in heads.items() if head is not None)})

    def listed(self, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores; those of like length are worked out together."""
        pool, pairs = paired.pooled(images, texts), pairs.to(texts.tokens.device)
        if not len(pairs.image):
            return pool.new_zeros(0)
        order, parts = paired.together(images, texts, pairs)
        scores = [self._first(*paired.listed(pool, images, texts, part)) for part in parts]
        return torch.cat(scores)[order.argsort()]

    def aligned(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        rows = torch.arange(len(images), device=texts.tokens.device)
        return self.listed(images, texts, Pairs(rows, rows))

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores of all pairs, a bounded number of them at a time."""
        image, text = torch.meshgrid(
            torch.arange(len(images)), torch.arange(len(texts)), indexing="ij"
        )
        scores = self.listed(images, texts, Pairs(image, text).flatten())
        return scores.view(len(images), len(texts))

    def read(
        self, images: Encoded, texts: Encoded, want: frozenset[Want], slots: Slots | None
    ) -> Reading:
        """What is wanted of P images with P texts, from one pass; see `ReadsWords`.

        Raises:
            ValueError: there is no head for something, or words are wanted without slots.
        """
        packing, tokens = paired.packed(images, texts)
        spoken = packing.column < texts.mask.shape[1]
        at = _asked(packing, want, slots)
        kept = torch.zeros_like(spoken)
        if Want.SCORE in want:
            kept[packing.first] = True
        if Want.DOUBT in want:
            kept |= spoken
        kept[at] = True
        states, place = self.body(tokens, packing, kept), kept.cumsum(0) - 1
        answers = states[place[at]]
        score = self._score(states[place[packing.first]]) if Want.SCORE in want else None
        doubt = None
        if Want.DOUBT in want:
            logits = present(self.says.doubt, "doubt")(states[place[spoken]])
            doubt = _unpacked(logits, texts.mask)
        return Reading(
            score=score,
            fill=self.filled(answers) if Want.FILL in want else None,
            doubt=doubt,
            correct=self.corrected(answers) if Want.CORRECT in want else None,
        )

    def joint(self, images: Encoded | None, texts: Encoded | None) -> Joint:
        """The last hidden states of P images with P texts, or of one side alone."""
        images, texts = paired.sides(images, texts)
        packing, tokens = paired.packed(images, texts)
        states = self.body(tokens, packing)
        room = _unpacked(states, torch.cat([texts.mask, images.mask], 1))
        long = texts.mask.shape[1]
        return Joint(
            Encoded(room[:, :long], texts.mask),
            Encoded(room[:, long:], images.mask),
            self.pool(states[packing.first]),
        )

    def filled(self, states: Tensor) -> Tensor:
        """(M, V) logits of the hidden word of each state."""
        found: Tensor = present(self.says.fill, "fill")(states, self.words)
        return found

    def corrected(self, states: Tensor) -> Tensor:
        """(M, V) logits of the word that ought to be at each state."""
        found: Tensor = present(self.says.correct, "correct")(states, self.words)
        return found

    def _first(self, packing: Packing, tokens: Tensor) -> Tensor:
        """(P,) scores of packed pairs, of which only the first tokens are asked."""
        kept = torch.zeros_like(packing.column, dtype=torch.bool)
        kept[packing.first] = True
        return self._score(self.body(tokens, packing, kept))

    def _score(self, first: Tensor) -> Tensor:
        """(P,) scores from the states of the first tokens."""
        logit = self.says.logit(self.pool(first))
        return full(logit).sigmoid() if self.score == "probability" else logit


def _asked(packing: Packing, want: frozenset[Want], slots: Slots | None) -> Tensor:
    """(M,) rows of the tokens that words are asked for."""
    if not want & {Want.FILL, Want.CORRECT}:
        return packing.column[:0]
    if slots is None:
        raise ValueError("words are wanted and no slots are given; say where they stand")
    at = packing.rows(slots.pair, slots.place)
    assert bool((at >= 0).all()), "a slot stands at padding"
    return at


def _unpacked(values: Tensor, mask: Tensor) -> Tensor:
    """(P, L, A) of (S, A), zero where the mask is False."""
    room = values.new_zeros(*mask.shape, values.shape[1])
    return room.index_put(mask.nonzero(as_tuple=True), values)
