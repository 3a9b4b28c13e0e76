"""Encoders that read a text and an image together: what UNITER, ViLT and BLIP share.

`PairModel` is the base class of all three, `JointModel` that of UNITER and ViLT. In these two,
items are encoded by embedding layers alone; the transformer reads the tokens of a text, then those
of an image, as one sequence. Sequences are packed without padding, so linear layers and norms
compute real tokens only, and a score depends neither on padding nor on the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from counterfoil.core.config import Config
from counterfoil.core.types import Embeddings, Pairs, WordHead, WordReading, WordSlots
from counterfoil.models.base import LOGIT_SCALE, RetrievalModel, probabilities
from counterfoil.models.checkpoints import State
from counterfoil.models.layers.pooling import (
    check_choice,
    full_precision,
)

EPSILON = 1e-12  # of BERT's layer norms


@final
@dataclass(frozen=True, slots=True)
class TokenPacking:
    """The positions of S real tokens of P sequences, packed sequence after sequence.

    Three layouts occur: the given one (P, C), with padding anywhere; the packed one (S, D), for
    linear layers and norms; and (P, longest, D), in which each sequence is moved to the left, for
    attention.
    """

    sequence: Tensor  # (S,) the sequence that each token belongs to
    column: Tensor  # (S,) its column in the given layout
    first: Tensor  # (P',) packed rows of the first token of every sequence that has one
    at: Tensor  # (S,) its index in (P, longest), flat
    shape: tuple[int, int]  # P and the length of the longest sequence
    columns: int  # C
    # (P, 1, 1, longest) attention mask, True at real tokens; None without padding
    keys: Tensor | None

    @staticmethod
    def of(mask: Tensor) -> TokenPacking:
        """Pack the tokens that are True in a mask (P, C)."""
        sequence, column = mask.nonzero(as_tuple=True)
        lengths = mask.sum(1)
        longest = int(lengths.max()) if mask.numel() else 0
        place = (mask.cumsum(1) - 1)[mask]  # rank among the real tokens of its sequence
        keys = None
        if len(sequence) < len(mask) * longest:
            keys = torch.arange(longest, device=mask.device) < lengths.unsqueeze(1)
            keys = keys[:, None, None]
        first = (place == 0).nonzero().squeeze(1)
        at = sequence * longest + place
        return TokenPacking(sequence, column, first, at, (len(mask), longest), mask.shape[1], keys)

    def only(self, token_mask: Tensor) -> TokenPacking:
        """Pack the tokens where `token_mask` (S,) is True."""
        mask = torch.zeros(self.shape, dtype=torch.bool, device=token_mask.device)
        mask.view(-1)[self.at[token_mask]] = True
        return replace(TokenPacking.of(mask), column=self.column[token_mask], columns=self.columns)

    def rows(self, sequence: Tensor, column: Tensor) -> Tensor:
        """Return the (M,) packed rows of tokens at a sequence and column; -1 for padding."""
        table = self.sequence.new_full((self.shape[0], self.columns), -1)
        table[self.sequence, self.column] = torch.arange(len(self.sequence), device=table.device)
        return table[sequence, column]

    def padded(self, tokens: Tensor) -> Tensor:
        """Unpack (S, D) to (P, longest, D), zero at padding."""
        if self.keys is None:
            return tokens.view(*self.shape, tokens.shape[1])
        flat = tokens.new_zeros(self.shape[0] * self.shape[1], tokens.shape[1])
        return flat.index_copy(0, self.at, tokens).view(*self.shape, tokens.shape[1])

    def packed(self, padded: Tensor) -> Tensor:
        """Pack (P, longest, D) to (S, D)."""
        flat = padded.flatten(0, 1)
        return flat if self.keys is None else flat[self.at]


# Texts and images as packed sequences: the text's tokens, then the image's.


TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 2**17}  # in one pass of the transformer, when scoring


def tokens_at_once(device: torch.device) -> int:
    """Return how many tokens a device reads in one pass when scoring."""
    return TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cuda"])


def pack_pairs(images: Embeddings, texts: Embeddings) -> tuple[TokenPacking, Tensor]:
    """Pack P texts, each followed by its image; returns the packing and the tokens (S, D)."""
    packing = TokenPacking.of(torch.cat([texts.mask, images.mask], 1))
    tokens = torch.cat([texts.tokens, images.tokens], 1)
    return packing, tokens[packing.sequence, packing.column]


def token_pool(images: Embeddings, texts: Embeddings) -> Tensor:
    """Return all tokens of the texts, then all of the images, flat, for `gather_pairs`."""
    return torch.cat([texts.tokens.flatten(0, 1), images.tokens.flatten(0, 1)])


def gather_pairs(
    pool: Tensor, images: Embeddings, texts: Embeddings, pairs: Pairs
) -> tuple[TokenPacking, Tensor]:
    """Pack listed pairs like `pack_pairs`, from the `token_pool` of the images and texts."""
    text_length, image_length = texts.mask.shape[1], images.mask.shape[1]
    packing = TokenPacking.of(torch.cat([texts.mask[pairs.text], images.mask[pairs.image]], 1))
    # index of each token in the pool, if it is a word, and if it is of the image
    of_text = pairs.text[packing.sequence] * text_length + packing.column
    of_image = pairs.image[packing.sequence] * image_length + packing.column - text_length
    of_image = of_image + texts.mask.numel()
    return packing, pool[torch.where(packing.column < text_length, of_text, of_image)]


def length_batches(
    images: Embeddings, texts: Embeddings, pairs: Pairs
) -> tuple[Tensor, Iterator[Pairs]]:
    """Sort pairs by their number of tokens and cut them into batches of `TOKENS_AT_ONCE`.

    Sequences of like length make the attention's padding small. Returns the order and the batches.
    """
    lengths = texts.mask.sum(1)[pairs.text] + images.mask.sum(1)[pairs.image]
    lengths, order = lengths.sort(stable=True)
    most = tokens_at_once(lengths.device)
    sizes = [size for size in (lengths.cumsum(0) // most).bincount().tolist() if size]
    batches = (Pairs(pairs.image[rows], pairs.text[rows]) for rows in torch.split(order, sizes))
    return order, batches


def both_modalities(
    images: Embeddings | None, texts: Embeddings | None
) -> tuple[Embeddings, Embeddings]:
    """Return both, a missing one as items without tokens."""
    present = texts if images is None else images
    assert present is not None, "nothing was given"
    empty = Embeddings(present.tokens[:, :0], present.mask[:, :0])
    return empty if images is None else images, empty if texts is None else texts


def _unpacked(values: Tensor, mask: Tensor) -> Tensor:
    """Return (P, L, A) of (S, A), zero where the mask is False."""
    padded = values.new_zeros(*mask.shape, values.shape[1])
    return padded.index_put(mask.nonzero(as_tuple=True), values)


# Output layers: scores of pairs, and predictions for words and regions.


OUTPUTS = ("rank", "match", "fill", "doubt", "correct", "regress", "classify")
Head = TypeVar("Head", bound=nn.Module)


def head_transform(width: int) -> nn.Sequential:
    """Return BERT's transform before an output layer: norm(gelu(linear))."""
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=EPSILON))


@final
class TiedHead(nn.Module):
    """An output layer that shares its matrix with another module, such as the word embeddings."""

    def __init__(self, *, width: int, answers: int) -> None:
        super().__init__()
        self.enter = head_transform(width)
        self.bias = nn.Parameter(torch.zeros(answers))

    def forward(self, states: Tensor, matrix: Tensor) -> Tensor:
        """Map (M, D) states to (M, A) through a shared matrix (A, D)."""
        return linear(self.enter(states), matrix, self.bias)


@final
class ClassHead(nn.Module):
    """An output layer that classifies."""

    def __init__(self, *, width: int, classes: int) -> None:
        super().__init__()
        self.enter, self.out = head_transform(width), nn.Linear(width, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Map (M, D) states to (M, C) logits."""
        logits: Tensor = self.out(self.enter(states))
        return logits


@final
class UniterHeads(nn.Module):
    """The output layers of a joint model; a head that was not chosen is None."""

    def __init__(
        self, *, outputs: tuple[str, ...], width: int, words: int, features: int, classes: int
    ) -> None:
        super().__init__()
        for output in outputs:
            check_choice("outputs", output, OUTPUTS)
        if not {"rank", "match"} & set(outputs):
            raise ValueError(
                f"outputs={outputs!r} give no score; name 'rank' or 'match' among them"
            )
        self.rank = nn.Linear(width, 1) if "rank" in outputs else None
        self.match = nn.Linear(width, 2) if "match" in outputs else None
        self.fill = TiedHead(width=width, answers=words) if "fill" in outputs else None
        self.doubt = nn.Linear(width, 2) if "doubt" in outputs else None
        self.correct = TiedHead(width=width, answers=words) if "correct" in outputs else None
        self.regress = TiedHead(width=width, answers=features) if "regress" in outputs else None
        self.classify = ClassHead(width=width, classes=classes) if "classify" in outputs else None

    def logit(self, pooled: Tensor) -> Tensor:
        """Return the (P,) rank, or without that head yes minus no of `match`, never in half."""
        with torch.autocast(pooled.device.type, enabled=False):
            if self.rank is not None:
                rank: Tensor = self.rank(full_precision(pooled)).squeeze(1)
                return rank
            no, yes = self.matched(full_precision(pooled)).unbind(1)
            return yes - no

    def matched(self, pooled: Tensor) -> Tensor:
        """Return (P, 2) logits that a text and an image do not match (0) and that they do (1)."""
        logits: Tensor = require_head(self.match, "match")(pooled)
        return logits


def require_head(head: Head | None, name: str) -> Head:
    """Return a head; that the model has none is an error."""
    if head is None:
        raise ValueError(f"this model has no head {name!r}; build it with that among its outputs")
    return head


# The base classes.


Score = Literal["probability", "logit"]


class PairModel(RetrievalModel, ABC):
    """A model that reads a text and an image together, and scores them by one logit.

    Attributes:
        score: what losses read: the "logit", or its sigmoid, the "probability".
    """

    score: Score
    score_scale = LOGIT_SCALE

    def __init__(self, score: Score) -> None:
        super().__init__()
        check_choice("score", score, get_args(Score))
        self.score = score

    @property
    def score_name(self) -> str:
        return "logit of a joint encoder"

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        rows = torch.arange(len(images), device=texts.tokens.device)
        return self.score_indices(images, texts, Pairs(rows, rows))

    def loss_scores(self, scores: Tensor) -> Tensor:
        return probabilities(scores) if self.score == "probability" else scores

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.score == "probability" else LOGIT_SCALE


@final
@dataclass(frozen=True, slots=True)
class JointTokens:
    """Last hidden states of P texts and images that were read together; zero at padding."""

    texts: Embeddings  # (P, L, D)
    images: Embeddings  # (P, R, D)
    pooled: Tensor  # (P, D) pooled state of the first token of each


class JointModel(PairModel):
    """A model whose score is read off the first token of a transformer over words and image.

    It implements `counterfoil.core.types.WordHeadModel`: one pass gives the score, and predictions
    for words. Subclasses implement the embedding of tokens, the transformer and the pooling.
    """

    says: UniterHeads

    @abstractmethod
    def run_body(
        self, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
    ) -> Tensor:
        """Return last hidden states (S, D) of packed tokens, or (K, D) of those in `token_mask`."""

    @abstractmethod
    def pool_first(self, first: Tensor) -> Tensor:
        """Pool the states (P, D) of first tokens to (P, D)."""

    @property
    @abstractmethod
    def word_vectors(self) -> Tensor:
        """(V, D) word embeddings, which are the output matrix of heads that predict words."""

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """Return the (P,) scores of listed pairs of rows, those of like length together."""
        pool, pairs = token_pool(images, texts), pairs.to(texts.tokens.device)
        if not len(pairs.image):
            return pool.new_zeros(0)
        order, batches = length_batches(images, texts, pairs)
        scores = [self._score_packed(*gather_pairs(pool, images, texts, part)) for part in batches]
        return torch.cat(scores)[order.argsort()]

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, a bounded number of tokens at a time."""
        image, text = torch.meshgrid(
            torch.arange(len(images)), torch.arange(len(texts)), indexing="ij"
        )
        scores = self.score_indices(images, texts, Pairs(image, text).flatten())
        return scores.view(len(images), len(texts))

    @property
    def word_heads(self) -> frozenset[WordHead]:
        """The outputs that `read` can return."""
        heads = {
            WordHead.FILL: self.says.fill,
            WordHead.DOUBT: self.says.doubt,
            WordHead.CORRECT: self.says.correct,
        }
        return frozenset(
            {WordHead.SCORE, *(name for name, head in heads.items() if head is not None)}
        )

    def read(
        self,
        images: Embeddings,
        texts: Embeddings,
        want: frozenset[WordHead],
        slots: WordSlots | None = None,
    ) -> WordReading:
        """Return the wanted outputs for P images with P texts, see `WordHeadModel`."""
        packing, tokens = pack_pairs(images, texts)
        is_word = packing.column < texts.mask.shape[1]
        slot_rows = _slot_rows(packing, want, slots)
        token_mask = torch.zeros_like(is_word)
        if WordHead.SCORE in want:
            token_mask[packing.first] = True
        if WordHead.DOUBT in want:
            token_mask |= is_word
        token_mask[slot_rows] = True
        # row of each kept token among the states that the body returns
        states, row = self.run_body(tokens, packing, token_mask), token_mask.cumsum(0) - 1
        slot_states = states[row[slot_rows]]
        score = self._score_first(states[row[packing.first]]) if WordHead.SCORE in want else None
        doubt = None
        if WordHead.DOUBT in want:
            logits = require_head(self.says.doubt, "doubt")(states[row[is_word]])
            doubt = _unpacked(logits, texts.mask)
        return WordReading(
            score=score,
            fill=self.filled(slot_states) if WordHead.FILL in want else None,
            doubt=doubt,
            correct=self.corrected(slot_states) if WordHead.CORRECT in want else None,
        )

    def joint(self, images: Embeddings | None, texts: Embeddings | None) -> JointTokens:
        """Return last hidden states of P images with P texts, or of one modality alone."""
        images, texts = both_modalities(images, texts)
        packing, tokens = pack_pairs(images, texts)
        states = self.run_body(tokens, packing)
        padded = _unpacked(states, torch.cat([texts.mask, images.mask], 1))
        length = texts.mask.shape[1]
        return JointTokens(
            Embeddings(padded[:, :length], texts.mask),
            Embeddings(padded[:, length:], images.mask),
            self.pool_first(states[packing.first]),
        )

    def matched(self, pooled: Tensor) -> Tensor:
        """Return (P, 2) logits that a text and an image do not match (0) and that they do (1)."""
        return self.says.matched(pooled)

    def filled(self, states: Tensor) -> Tensor:
        """Return (M, V) logits of the masked word at each state."""
        logits: Tensor = require_head(self.says.fill, "fill")(states, self.word_vectors)
        return logits

    def corrected(self, states: Tensor) -> Tensor:
        """Return (M, V) logits of the word that should be at each state."""
        logits: Tensor = require_head(self.says.correct, "correct")(states, self.word_vectors)
        return logits

    def adopted(self, state: Mapping[str, Tensor]) -> State:
        """Return the state dict to load, from a model of the same kind with other heads.

        Where they are missing, the rank starts as the yes of `match`, `doubt` as `match`, and
        `correct` as `fill`.
        """
        return match_state(self.state_dict(), with_derived_heads(state))

    def _score_packed(self, packing: TokenPacking, tokens: Tensor) -> Tensor:
        """Return (P,) scores of packed pairs; in the last layer only first tokens are queries."""
        token_mask = torch.zeros_like(packing.column, dtype=torch.bool)
        token_mask[packing.first] = True
        return self._score_first(self.run_body(tokens, packing, token_mask))

    def _score_first(self, first: Tensor) -> Tensor:
        """Return (P,) scores from the states of the first tokens."""
        return self.says.logit(self.pool_first(first))


def _slot_rows(packing: TokenPacking, want: frozenset[WordHead], slots: WordSlots | None) -> Tensor:
    """Return the (M,) packed rows of the slots, none if no words are wanted."""
    if not want & {WordHead.FILL, WordHead.CORRECT}:
        return packing.column[:0]
    if slots is None:
        raise ValueError("words are wanted and no slots are given; say where they stand")
    rows = packing.rows(slots.pair, slots.place)
    assert bool((rows >= 0).all()), "a slot stands at padding"
    return rows


def mask_token(mask: int | None, vocabulary: int) -> tuple[int, int]:
    """Return the id of the token that hides a word, and the number of embeddings.

    Args:
        mask: id of the tokenizer's mask token; None for one more embedding behind the vocabulary.
        vocabulary: number of token ids.
    """
    if mask is None:
        return vocabulary, vocabulary + 1
    if not 0 <= mask < vocabulary:
        raise ValueError(
            f"mask={mask} is not an id of a vocabulary of {vocabulary}; give the id of the "
            "tokenizer's mask token, or None"
        )
    return mask, vocabulary


# Initial weights: fresh ones, or those of a model with other heads.


SPREAD = 0.02  # standard deviation of fresh weights, as BERT's
# weights that one model may have and another not
FREE = ("says.", "image.veil", "image.embed.regions.veil")
COPIES = {"doubt": "match", "correct": "fill"}  # heads that start as copies of pretrained ones


def initialize_weights(model: nn.Module, spread: float = SPREAD) -> None:
    """Draw weights and free vectors from N(0, spread), set biases to 0; norms stay as they are."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=spread)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        for name in ("kind", "veil"):
            vector = getattr(module, name, None)
            if isinstance(vector, nn.Parameter):
                nn.init.normal_(vector, std=spread)


def with_derived_heads(state: Mapping[str, Tensor]) -> State:
    """Add the heads of TAGS that a state dict lacks, as copies of its pretrained heads.

    The rank starts as the yes of `match`, `doubt` as `match` and `correct` as `fill`.
    """
    new = dict(state)
    for part in ("weight", "bias"):
        if (match := state.get(f"says.match.{part}")) is not None:
            new.setdefault(f"says.rank.{part}", match[1:].clone())
    for head, source in COPIES.items():
        prefix = f"says.{source}."
        pretrained = {name: value for name, value in state.items() if name.startswith(prefix)}
        for name, value in pretrained.items():
            new.setdefault(f"says.{head}.{name.removeprefix(prefix)}", value.clone())
    return new


def head_names(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the `outputs` of a model that starts from weights: the heads in them and a rank."""
    heads = {name.split(".")[1] for name in state if name.startswith("says.")}
    return tuple(name for name in OUTPUTS if name in heads | {"rank"})


def build_seeded(spec: Config[Head]) -> Head:
    """Build a model whose fresh weights are the same in every run."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return spec.build()


def match_state(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> State:
    """Return the given weights for the heads that a model has; missing heads stay as they are."""
    for name in {*own, *weights}:
        if not name.startswith(FREE) and (name in own) != (name in weights):
            lacks = "is not in the weights given" if name in own else "is not in this model"
            raise ValueError(f"weights of another model cannot be taken over: {name!r} {lacks}")
    return {name: weights.get(name, value) for name, value in own.items()}
