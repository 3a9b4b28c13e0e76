"""A transformer over two modalities, packed: no token of padding is ever computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from counterfoil.core.types import Embeddings, Pairs, WordHead, WordReading, WordSlots
from counterfoil.models.checkpoints import State
from counterfoil.models.layers.pooling import (
    check_choice,
    check_heads,
    check_positive,
    full_precision,
)

EPSILON = 1e-12


@final
@dataclass(frozen=True, slots=True)
class TokenPacking:
    """Where S real tokens of P sequences stand, sequence after sequence.

    Attributes:
        sequence: (S,) which sequence a token belongs to.
        column: (S,) where it stood among the real and hidden ones.
        first: (P',) rows of the first token of every sequence that has one.
        at: (S,) its place in (P, longest), flat.
        shape: P and the longest sequence.
        columns: C, real and hidden.
        keys: (P, 1, 1, longest) True at real tokens; None where there is no padding.
    """

    sequence: Tensor
    column: Tensor
    first: Tensor
    at: Tensor
    shape: tuple[int, int]
    columns: int
    keys: Tensor | None

    @staticmethod
    def of(mask: Tensor) -> TokenPacking:
        """The tokens that a mask (P, C) calls real."""
        sequence, column = mask.nonzero(as_tuple=True)
        lengths = mask.sum(1)
        longest = int(lengths.max()) if mask.numel() else 0
        place = (mask.cumsum(1) - 1)[mask]
        keys = None
        if len(sequence) < len(mask) * longest:
            keys = torch.arange(longest, device=mask.device) < lengths.unsqueeze(1)
            keys = keys[:, None, None]
        first = (place == 0).nonzero().squeeze(1)
        at = sequence * longest + place
        return TokenPacking(sequence, column, first, at, (len(mask), longest), mask.shape[1], keys)

    def only(self, kept: Tensor) -> TokenPacking:
        """Some of the tokens: (S,) bool, True where one is kept."""
        mask = torch.zeros(self.shape, dtype=torch.bool, device=kept.device)
        mask.view(-1)[self.at[kept]] = True
        return replace(TokenPacking.of(mask), column=self.column[kept], columns=self.columns)

    def rows(self, sequence: Tensor, column: Tensor) -> Tensor:
        """(M,) rows of the tokens that stood there; -1 where one is not packed."""
        table = self.sequence.new_full((self.shape[0], self.columns), -1)
        table[self.sequence, self.column] = torch.arange(len(self.sequence), device=table.device)
        return table[sequence, column]

    def padded(self, tokens: Tensor) -> Tensor:
        """(P, longest, D) of (S, D), zero at padding."""
        if self.keys is None:
            return tokens.view(*self.shape, tokens.shape[1])
        room = tokens.new_zeros(self.shape[0] * self.shape[1], tokens.shape[1])
        return room.index_copy(0, self.at, tokens).view(*self.shape, tokens.shape[1])

    def packed(self, padded: Tensor) -> Tensor:
        """(S, D) of (P, longest, D)."""
        flat = padded.flatten(0, 1)
        return flat if self.keys is None else flat[self.at]


@final
class JointLayer(nn.Module):
    """Attention within each sequence, then a perceptron, each added and normalised (post-LN)."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float) -> None:
        """Keyword arguments.

        Args:
            width: of the tokens.
            heads: of the attention.
            inner: width of the perceptron.
            dropout: share dropped of attention weights and of what is added.
        """
        super().__init__()
        self.heads, self.share = heads, dropout
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.last_norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, packing: TokenPacking, kept: Tensor | None = None) -> Tensor:
        """(S, D) to the same, or to those that are kept.

        Args:
            tokens: of all sequences.
            packing: where they stand.
            kept: (S,) bool, which tokens are wanted; None for all.
        """
        width = tokens.shape[1]
        asking, asked = packing, tokens
        if kept is None:
            query, key, value = self.enter(tokens).chunk(3, 1)
        else:
            asking, asked = packing.only(kept), tokens[kept]
            weight, bias = self.enter.weight, self.enter.bias
            query = linear(asked, weight[:width], bias[:width])
            key, value = linear(tokens, weight[width:], bias[width:]).chunk(2, 1)
        found = scaled_dot_product_attention(
            self._heads(query, asking),
            self._heads(key, packing),
            self._heads(value, packing),
            attn_mask=packing.keys,
            dropout_p=self.share if self.training else 0.0,
        )
        found = asking.packed(found.transpose(1, 2).flatten(2))
        asked = self.norm(asked + self.dropout(self.leave(found)))
        told = self.narrow(gelu(self.wide(asked)))
        out: Tensor = self.last_norm(asked + self.dropout(told))
        return out

    def _heads(self, tokens: Tensor, packing: TokenPacking) -> Tensor:
        each = tokens.shape[1] // self.heads
        return packing.padded(tokens).view(*packing.shape, self.heads, each).transpose(1, 2)


@final
class JointEncoder(nn.Module):
    """BERT's encoder over packed sequences; what the last layer need not say is not computed."""

    def __init__(self, *, layers: int, width: int, heads: int, inner: int, dropout: float) -> None:
        """Keyword arguments.

        Args:
            layers: how many.
            width: see `JointLayer`.
            heads: see `JointLayer`.
            inner: see `JointLayer`.
            dropout: see `JointLayer`.

        Raises:
            ValueError: a size below 1, or heads that do not divide the width.
        """
        super().__init__()
        check_positive(layers=layers, inner=inner)
        check_heads(heads, width)
        self.layers = nn.ModuleList(
            JointLayer(width=width, heads=heads, inner=inner, dropout=dropout)
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor, packing: TokenPacking, kept: Tensor | None = None) -> Tensor:
        """(S, D) last hidden states, or (K, D) of the tokens that are kept; see `JointLayer`."""
        for layer in self.layers[:-1]:
            tokens = layer(tokens, packing)
        last: Tensor = self.layers[-1](tokens, packing, kept)
        return last


# Images and texts side by side, as sequences of one transformer.


TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 2**17}  # tokens read together where only scores are wanted


def pack_pairs(images: Embeddings, texts: Embeddings) -> tuple[TokenPacking, Tensor]:
    """P texts, each with its image behind it: where their tokens stand, and they (S, D)."""
    mask = torch.cat([texts.mask, images.mask], 1)
    packing = TokenPacking.of(mask)
    tokens = torch.cat([texts.tokens, images.tokens], 1)
    return packing, tokens[packing.sequence, packing.column]


def gather_pairs(
    pool: Tensor, images: Embeddings, texts: Embeddings, pairs: Pairs
) -> tuple[TokenPacking, Tensor]:
    """The same of listed pairs of two pools, without a padded copy of any.

    Args:
        pool: all tokens of the texts, then of the images, as `pooled` gives them.
        images: of the pool.
        texts: of the pool.
        pairs: (P,) which of them.
    """
    long, wide = texts.mask.shape[1], images.mask.shape[1]
    packing = TokenPacking.of(torch.cat([texts.mask[pairs.text], images.mask[pairs.image]], 1))
    said = pairs.text[packing.sequence] * long + packing.column
    seen = pairs.image[packing.sequence] * wide + packing.column - long + texts.mask.numel()
    return packing, pool[torch.where(packing.column < long, said, seen)]


def token_pool(images: Embeddings, texts: Embeddings) -> Tensor:
    """All tokens of the texts, then of the images."""
    return torch.cat([texts.tokens.flatten(0, 1), images.tokens.flatten(0, 1)])


def length_batches(
    images: Embeddings, texts: Embeddings, pairs: Pairs
) -> tuple[Tensor, Iterator[Pairs]]:
    """Listed pairs ordered by length, and that order cut where enough tokens have come together."""
    lengths = texts.mask.sum(1)[pairs.text] + images.mask.sum(1)[pairs.image]
    lengths, order = lengths.sort(stable=True)
    most = TOKENS_AT_ONCE.get(lengths.device.type, TOKENS_AT_ONCE["cuda"])
    sizes = [size for size in (lengths.cumsum(0) // most).bincount().tolist() if size]
    parts = (Pairs(pairs.image[rows], pairs.text[rows]) for rows in torch.split(order, sizes))
    return order, parts


def both_modalities(
    images: Embeddings | None, texts: Embeddings | None
) -> tuple[Embeddings, Embeddings]:
    """Both, an absent one as items without tokens."""
    one = texts if images is None else images
    assert one is not None, "nothing was given"
    none = Embeddings(one.tokens[:, :0], one.mask[:, :0])
    return none if images is None else images, none if texts is None else texts


# What is said of single tokens: words, features and classes of regions.


OUTPUTS = ("rank", "match", "fill", "doubt", "correct", "regress", "classify")
Head = TypeVar("Head", bound=nn.Module)


def head_transform(width: int) -> nn.Sequential:
    """norm(gelu(linear)), as BERT's."""
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=EPSILON))


@final
class TiedHead(nn.Module):
    """Ends in a matrix that belongs to another part: word embeddings, or a layer turned round."""

    def __init__(self, *, width: int, answers: int) -> None:
        """Keyword arguments.

        Args:
            width: of the states.
            answers: how many numbers it gives.
        """
        super().__init__()
        self.enter = head_transform(width)
        self.bias = nn.Parameter(torch.zeros(answers))

    def forward(self, states: Tensor, matrix: Tensor) -> Tensor:
        """(M, A) of (M, D) states, through a matrix (A, D)."""
        return linear(self.enter(states), matrix, self.bias)


@final
class ClassHead(nn.Module):
    """Logits of classes."""

    def __init__(self, *, width: int, classes: int) -> None:
        """Keyword arguments.

        Args:
            width: of the states.
            classes: how many there are.
        """
        super().__init__()
        self.enter, self.out = head_transform(width), nn.Linear(width, classes)

    def forward(self, states: Tensor) -> Tensor:
        """(M, C) of (M, D) states."""
        logits: Tensor = self.out(self.enter(states))
        return logits


@final
class UniterHeads(nn.Module):
    """What UNITER says of what it has read; a head that was not asked for is None."""

    def __init__(
        self, *, outputs: tuple[str, ...], width: int, words: int, features: int, classes: int
    ) -> None:
        """Keyword arguments.

        Args:
            outputs: names of the heads to have, of `OUTPUTS`.
            width: of the states.
            words: how many there are.
            features: width of a region's features.
            classes: of regions.

        Raises:
            ValueError: an unknown output, or none that gives a score.
        """
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
        """(P,) in at least single precision: the rank, or where there is none, yes minus no."""
        with torch.autocast(pooled.device.type, enabled=False):
            if self.rank is not None:
                ranked: Tensor = self.rank(full_precision(pooled)).squeeze(1)
                return ranked
            no, yes = self.matched(full_precision(pooled)).unbind(1)
            return yes - no

    def matched(self, pooled: Tensor) -> Tensor:
        """(P, 2) logits that text and image do not belong together, and that they do."""
        logits: Tensor = require_head(self.match, "match")(pooled)
        return logits


def require_head(head: Head | None, name: str) -> Head:
    """A head that is there.

    Raises:
        ValueError: it is not.
    """
    if head is None:
        raise ValueError(f"this model has no head {name!r}; build it with that among its outputs")
    return head


# What a transformer over texts and images says of pairs, whatever it is made of.


LOGIT_SCALE = 4.0  # near 0 a probability changes by a quarter of its logit

Score = Literal["probability", "logit"]


class JointBody(Protocol):
    """A transformer over packed sequences."""

    def __call__(
        self, tokens: Tensor, packing: TokenPacking, kept: Tensor | None = None, /
    ) -> Tensor:
        """(S, D) last hidden states, or (K, D) of the tokens that are kept."""
        ...


class JointPooler(Protocol):
    """What the state of a first token says of its pair."""

    def __call__(self, first: Tensor, /) -> Tensor:
        """(P, D) of (P, D)."""
        ...


@final
@dataclass(frozen=True, slots=True)
class JointTokens:
    """P texts and images that have read each other; zeros at padding.

    Attributes:
        texts: (P, L, D) last hidden states.
        images: (P, R, D) last hidden states.
        pooled: (P, D) what the first token of each says of the whole.
    """

    texts: Embeddings
    images: Embeddings
    pooled: Tensor


@final
@dataclass(frozen=True, slots=True)
class JointScorer:
    """The parts of a model that reads embedded texts and images together.

    Sequences are packed, so that neither padding nor the batch has a share in what is said.

    Attributes:
        body: reads.
        pool: sums a pair up.
        says: its heads.
        words: (V, D) embeddings of words, which the heads that name words end in.
        score: "probability" or "logit".
    """

    body: JointBody
    pool: JointPooler
    says: UniterHeads
    words: Tensor
    score: Score

    @property
    def wants(self) -> frozenset[WordHead]:
        """What there are heads for."""
        says = self.says
        heads = {
            WordHead.FILL: says.fill,
            WordHead.DOUBT: says.doubt,
            WordHead.CORRECT: says.correct,
        }
        return frozenset(
            {WordHead.SCORE, *(want for want, head in heads.items() if head is not None)}
        )

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """(P,) scores; those of like length are worked out together."""
        pool, pairs = token_pool(images, texts), pairs.to(texts.tokens.device)
        if not len(pairs.image):
            return pool.new_zeros(0)
        order, parts = length_batches(images, texts, pairs)
        scores = [self._first(*gather_pairs(pool, images, texts, part)) for part in parts]
        return torch.cat(scores)[order.argsort()]

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) scores of aligned pairs."""
        rows = torch.arange(len(images), device=texts.tokens.device)
        return self.score_indices(images, texts, Pairs(rows, rows))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) scores of all pairs, a bounded number of them at a time."""
        image, text = torch.meshgrid(
            torch.arange(len(images)), torch.arange(len(texts)), indexing="ij"
        )
        scores = self.score_indices(images, texts, Pairs(image, text).flatten())
        return scores.view(len(images), len(texts))

    def read(
        self,
        images: Embeddings,
        texts: Embeddings,
        want: frozenset[WordHead],
        slots: WordSlots | None,
    ) -> WordReading:
        """What is wanted of P images with P texts, from one pass; see `WordHeadModel`.

        Raises:
            ValueError: there is no head for something, or words are wanted without slots.
        """
        packing, tokens = pack_pairs(images, texts)
        spoken = packing.column < texts.mask.shape[1]
        at = _asked(packing, want, slots)
        kept = torch.zeros_like(spoken)
        if WordHead.SCORE in want:
            kept[packing.first] = True
        if WordHead.DOUBT in want:
            kept |= spoken
        kept[at] = True
        states, place = self.body(tokens, packing, kept), kept.cumsum(0) - 1
        answers = states[place[at]]
        score = self._score(states[place[packing.first]]) if WordHead.SCORE in want else None
        doubt = None
        if WordHead.DOUBT in want:
            logits = require_head(self.says.doubt, "doubt")(states[place[spoken]])
            doubt = _unpacked(logits, texts.mask)
        return WordReading(
            score=score,
            fill=self.filled(answers) if WordHead.FILL in want else None,
            doubt=doubt,
            correct=self.corrected(answers) if WordHead.CORRECT in want else None,
        )

    def joint(self, images: Embeddings | None, texts: Embeddings | None) -> JointTokens:
        """The last hidden states of P images with P texts, or of one side alone."""
        images, texts = both_modalities(images, texts)
        packing, tokens = pack_pairs(images, texts)
        states = self.body(tokens, packing)
        room = _unpacked(states, torch.cat([texts.mask, images.mask], 1))
        long = texts.mask.shape[1]
        return JointTokens(
            Embeddings(room[:, :long], texts.mask),
            Embeddings(room[:, long:], images.mask),
            self.pool(states[packing.first]),
        )

    def filled(self, states: Tensor) -> Tensor:
        """(M, V) logits of the hidden word of each state."""
        found: Tensor = require_head(self.says.fill, "fill")(states, self.words)
        return found

    def corrected(self, states: Tensor) -> Tensor:
        """(M, V) logits of the word that ought to be at each state."""
        found: Tensor = require_head(self.says.correct, "correct")(states, self.words)
        return found

    def _first(self, packing: TokenPacking, tokens: Tensor) -> Tensor:
        """(P,) scores of packed pairs, of which only the first tokens are asked."""
        kept = torch.zeros_like(packing.column, dtype=torch.bool)
        kept[packing.first] = True
        return self._score(self.body(tokens, packing, kept))

    def _score(self, first: Tensor) -> Tensor:
        """(P,) scores from the states of the first tokens."""
        logit = self.says.logit(self.pool(first))
        return full_precision(logit).sigmoid() if self.score == "probability" else logit


def _asked(packing: TokenPacking, want: frozenset[WordHead], slots: WordSlots | None) -> Tensor:
    """(M,) rows of the tokens that words are asked for."""
    if not want & {WordHead.FILL, WordHead.CORRECT}:
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


# What a UNITER begins with: fresh weights, or those of one with other heads.


SPREAD = 0.02  # of fresh weights
FREE = ("says.", "image.veil")  # what one UNITER may have and another not
COPIES = {"doubt": "match", "correct": "fill"}  # heads that begin as others were pre-trained


def initialize_weights(model: nn.Module, spread: float = SPREAD) -> None:
    """Weights and free vectors from N(0, spread), biases 0; norms stay."""
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
    """The same weights with the heads that TAGS adds.

    Where they are missing, the rank begins as the yes of the match, doubt as the match, and correct
    as fill. Those that are there stay.

    Args:
        state: weights of a `UNITER`.
    """
    new = dict(state)
    for part in ("weight", "bias"):
        if (match := state.get(f"says.match.{part}")) is not None:
            new.setdefault(f"says.rank.{part}", match[1:].clone())
    for head, source in COPIES.items():
        before = f"says.{source}."
        own = {name: value for name, value in state.items() if name.startswith(before)}
        for name, value in own.items():
            new.setdefault(f"says.{head}.{name.removeprefix(before)}", value.clone())
    return new


def match_state(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> State:
    """What is given, of the heads that are there; heads that are not given stay as they are.

    Args:
        own: the weights of a `UNITER`.
        given: those it is to have, of another.

    Raises:
        ValueError: they are not of a UNITER with as many layers.
    """
    for name in {*own, *given}:
        if not name.startswith(FREE) and (name in own) != (name in given):
            lacks = "is not in the weights given" if name in own else "is not in this model"
            raise ValueError(f"weights of another model cannot be taken over: {name!r} {lacks}")
    return {name: given.get(name, value) for name, value in own.items()}
