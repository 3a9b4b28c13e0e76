"""Records of tensors that pass from stage to stage: batches, embeddings, scores.

Axes in shapes, in every docstring and comment of the package:

    I  images of a batch, pool or split      T  texts of a batch, pool or split
    B  anchor pairs of a batch               N  candidates of an anchor; also items of a batch
    P  aligned pairs                         M  word slots
    L  vectors (regions, words) of an item   R  regions of an image
    F  width of raw features                 D  width of embeddings
    Q  queries                               K  length of a list, as in top-k
    V  size of the vocabulary                C  channels or classes

A *row* is the index of an item in its data set. A *pool* holds the items that a batch encodes, each
once: first the anchors, whose score matrix is the *block*, then candidates of the negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Literal, Protocol, TypeAlias, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

INFERENCE = "inference"
Precision: TypeAlias = Literal["fp32", "bf16"]  # of computations: bf16 stands for autocast


@final
class Role(Enum):
    """Role of a scored pair: losses declare the roles they need, samplers those they provide."""

    HARD_TEXT = "hard text"  # (anchor image, negative text)
    HARD_IMAGE = "hard image"  # (negative image, anchor text)
    CROSS = "cross"  # (negative image, negative text)
    COMPANION = "companion"  # (image of the negative text, a caption of the negative image)
    WRITTEN = "written"  # (anchor image, generated text)
    WRITTEN_IMAGE = "written image"  # (picture of a generated text, anchor text)
    WRITTEN_PAIR = "written pair"  # (picture of the anchor's generated text, generated text)
    EDITED = "edited"  # (anchor, counterfactually edited positive)
    MASKED_POSITIVE = "masked positive"  # (anchor, positive without its most important tokens)
    MASKED_NEGATIVE = "masked negative"  # (anchor, hardest negative without these)
    QUEUE_TEXT = "queue text"  # (anchor image, text of earlier batches by a momentum encoder)
    QUEUE_IMAGE = "queue image"  # (image of earlier batches by a momentum encoder, anchor text)
    KEY_TEXT = "key text"  # (anchor image, its own text by a momentum encoder)
    KEY_IMAGE = "key image"  # (its own image by a momentum encoder, anchor text)


@final
@dataclass(frozen=True, slots=True)
class Needs:
    """The pairs, word tasks and targets that losses need, or that sources give; ``|`` unites.

    Attributes:
        roles: roles of pairs that are scored.
        words: names of word tasks.
        targets: whether there are target similarities of the score matrix.
        pair_targets: roles whose pairs have target similarities.
        block: whether wrong pairs of the score matrix are read; else the anchors alone, and where
            nobody reads the others, they are not scored. No source gives it.
        vectors: whether the embeddings of the anchors are read, as losses of other libraries do.
            No source gives it.
    """

    roles: frozenset[Role] = frozenset()
    words: frozenset[str] = frozenset()
    targets: bool = False
    pair_targets: frozenset[Role] = frozenset()
    block: bool = True
    vectors: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.roles | other.roles,
            self.words | other.words,
            self.targets or other.targets,
            self.pair_targets | other.pair_targets,
            self.block or other.block,
            self.vectors or other.vectors,
        )

    def __and__(self, other: Needs) -> Needs:
        return Needs(
            self.roles & other.roles,
            self.words & other.words,
            self.targets and other.targets,
            self.pair_targets & other.pair_targets,
            self.block and other.block,
            self.vectors and other.vectors,
        )

    def __bool__(self) -> bool:
        """True if anything beside the score matrix is needed, or given."""
        return bool(self.roles or self.words or self.targets or self.pair_targets)


def _select(tensor: Tensor, index: Tensor | slice) -> Tensor:
    return tensor[index if isinstance(index, slice) else index.to(tensor.device)]


def _move(tensor: Tensor, device: torch.device | str) -> Tensor:
    # a copy from a GPU to the CPU that does not block could be read before it has arrived
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")


@final
@dataclass(frozen=True, slots=True)
class ModalityBatch:
    """A padded batch of items of one modality, as a model reads them.

    Attributes:
        ids: (N,) long, row of each item in its data set; -1 for items of none.
        values: (N, L, F) float features, (N, L) long word ids, or (N, C, H, W) float pixels.
        mask: (N, L) bool, True where a token is real; (N, 1) for pixels.
        boxes: (N, L, 4) float x1, y1, x2, y2 as fractions of the image, if known; (N, L, 6) with
            widths and heights where these are stored apart.
        targets: (N, C, L) long, token ids of C anchor captions of each image of a training batch,
            for models that learn to generate them; -1 after the last token.
        words: (N, L) long, index of the word that each token is a piece of; -1 for special tokens
            and padding. None if every token is a word.
        dependencies: (N, E, 2) long, see `ImageTextDataset.dependencies`; None without a parser.
    """

    ids: Tensor
    values: Tensor
    mask: Tensor
    boxes: Tensor | None = None
    targets: Tensor | None = None
    words: Tensor | None = None
    dependencies: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Tensor | slice) -> ModalityBatch:
        """The items at these places."""
        return self.map(lambda tensor: _select(tensor, index))

    def to(self, device: torch.device | str) -> ModalityBatch:
        """Move the items to another device."""
        return self.map(lambda tensor: _move(tensor, device))

    def map(self, change: Callable[[Tensor], Tensor]) -> ModalityBatch:
        """Apply a function to every tensor."""
        tensors = (getattr(self, part.name) for part in fields(self))
        changed = (None if tensor is None else change(tensor) for tensor in tensors)
        return ModalityBatch(*changed)  # type: ignore[arg-type]


def joined_dependencies(parts: Sequence[tuple[int, Tensor | None]]) -> Tensor | None:
    """Join the (T, E, 2) dependency pairs of several parts, each with its number of texts T.

    Texts of a part without pairs have none, which is -1. The result is None if no part has any.
    """
    known = [pairs for _, pairs in parts if pairs is not None]
    if not known:
        return None
    most = max(1, *(pairs.shape[1] for pairs in known))
    given = [known[0].new_empty(count, 0, 2) if pairs is None else pairs for count, pairs in parts]
    return torch.cat([pad(pairs, (0, 0, 0, most - pairs.shape[1]), value=-1) for pairs in given])


@final
@dataclass(frozen=True, slots=True, repr=False)
class Embeddings:
    """Encoded items: each is a bag of L vectors; L is 1 for global embeddings.

    Attributes:
        tokens: (N, L, D) float.
        mask: (N, L) bool.
        gram: (N, L, L) inner products of an item's vectors, if the model's score needs them.
    """

    tokens: Tensor
    mask: Tensor
    gram: Tensor | None = None

    def __repr__(self) -> str:
        count, length, width = self.tokens.shape
        vectors = "one vector" if length == 1 else f"up to {length} vectors"
        return f"Embeddings({count:,} items, each {vectors} of {width})"

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, index: Tensor | slice) -> Embeddings:
        """The items at these places."""
        return self.map(lambda tensor: _select(tensor, index))

    def to(self, device: torch.device | str) -> Embeddings:
        """Move the items to another device."""
        return self.map(lambda tensor: _move(tensor, device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Embeddings:
        """Apply a function to every tensor."""
        gram = None if self.gram is None else change(self.gram)
        return Embeddings(change(self.tokens), change(self.mask), gram)

    def padded(self, length: int) -> Embeddings:
        """Pad the items to at least `length` vectors."""
        missing = length - self.tokens.shape[1]
        if missing <= 0:
            return self
        gram = None if self.gram is None else pad(self.gram, (0, missing, 0, missing))
        return Embeddings(pad(self.tokens, (0, 0, 0, missing)), pad(self.mask, (0, missing)), gram)

    @staticmethod
    def cat(parts: list[Embeddings]) -> Embeddings:
        """Concatenate items, padding to the longest."""
        longest = max(part.tokens.shape[1] for part in parts)
        parts = [part.padded(longest) for part in parts]
        grams = [part.gram for part in parts if part.gram is not None]
        return Embeddings(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.mask for part in parts]),
            torch.cat(grams) if len(grams) == len(parts) else None,
        )


@final
@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of indices: into an image pool and a text pool, both long and of one shape."""

    image: Tensor
    text: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of both tensors."""
        return self.image.shape

    def flatten(self) -> Pairs:
        """The same pairs in one dimension, row by row."""
        return Pairs(self.image.flatten(), self.text.flatten())

    def to(self, device: torch.device | str) -> Pairs:
        """Move the pairs to another device."""
        return Pairs(self.image.to(device), self.text.to(device))


@final
@dataclass(frozen=True, slots=True, eq=False)
class EqualTexts:
    """Texts that say what a caption of an image says: they are true of it, whoever's they are.

    Each wording has a number. Memory grows with images and texts, never with their pairs.

    Attributes:
        of_text: (T,) long, number of each text; -1 where no caption of another image says the same.
        starts: (I + 1,) long, image i has ``keys[starts[i] : starts[i + 1]]``.
        keys: (n,) long, ascending: image row times `wordings`, plus the number of what a caption of
            it says.
        wordings: above every number.
        pairs: number of pairs of an image and a text that are true for this reason alone.
    """

    of_text: Tensor
    starts: Tensor
    keys: Tensor
    wordings: int
    pairs: int = 0

    @staticmethod
    def of(wording: Tensor, true: Pairs, owner: Tensor, images: int) -> EqualTexts | None:
        """Find the texts of equal wording; None if they relate no text to another image.

        Args:
            wording: (T,) long, equal for texts that say the same; -1 for a text without words.
            true: (P,) rows of all pairs that are true anyway.
            owner: (T,) image of each text, -1 for none.
            images: I.
        """
        wordings = int(wording.max()) + 1 if len(wording) else 0
        worded = wording[true.text] >= 0
        keys = torch.unique(true.image[worded] * wordings + wording[true.text[worded]])
        # of each wording: pairs by wording, and those of a text with the image that it describes
        holders = torch.bincount(keys % max(wordings, 1), minlength=wordings)
        pairs = holders * torch.bincount(wording[wording >= 0], minlength=wordings)
        pairs -= torch.bincount(wording[(owner >= 0) & (wording >= 0)], minlength=wordings)
        if not bool((pairs > 0).any()):
            return None
        live = torch.cat([pairs > 0, torch.zeros(1, dtype=torch.bool)])  # -1 is the last, False
        keys = keys[live[keys % wordings]]
        counts = torch.bincount(keys // wordings, minlength=images)
        return EqualTexts(
            of_text=wording.masked_fill(~live[wording], -1),
            starts=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            keys=keys,
            wordings=wordings,
            pairs=int(pairs.sum()),
        )

    def contains(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return True where the text says what a caption of the image says.

        Rows of any shapes that broadcast; -1 is no item. A caption of the image itself counts.
        """
        number = self.of_text[texts]
        wanted = images * self.wordings + number
        place = torch.searchsorted(self.keys, wanted.contiguous()).clamp_(max=len(self.keys) - 1)
        return (self.keys[place] == wanted) & (number >= 0) & (texts >= 0) & (images >= 0)

    def places(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return (p,) rows and columns of such pairs among (i,) images and (t,) texts, each once.

        Those of a caption with its own image are among them.
        """
        number = self.of_text[texts]
        column = (number >= 0).nonzero().squeeze(1)
        numbers, order = number[column].sort(stable=True)
        row, entry = self._entries(images)
        said = self.keys[entry] % self.wordings
        first = torch.searchsorted(numbers, said)
        counts = torch.searchsorted(numbers, said, right=True) - first
        at = torch.arange(int(counts.sum()), device=images.device)
        at += (first - (counts.cumsum(0) - counts)).repeat_interleave(counts)
        return row.repeat_interleave(counts), column[order[at]]

    def select(self, images: Tensor, texts: Tensor) -> EqualTexts:
        """Return the same of (i,) images and (t,) texts, whose rows begin at 0."""
        row, entry = self._entries(images)
        counts = torch.bincount(row, minlength=len(images))
        return EqualTexts(
            of_text=self.of_text[texts],
            starts=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            keys=row * self.wordings + self.keys[entry] % self.wordings,
            wordings=self.wordings,
        )

    def to(self, device: torch.device | str) -> EqualTexts:
        """Move the tensors to another device."""
        return replace(
            self,
            of_text=self.of_text.to(device),
            starts=self.starts.to(device),
            keys=self.keys.to(device),
        )

    def _entries(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the keys of some images, image after image, with the place of the image."""
        first = self.starts[images]
        counts = self.starts[images + 1] - first
        row = torch.arange(len(images), device=images.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=images.device)
        return row, place + (first - (counts.cumsum(0) - counts)).index_select(0, row)


@final
@dataclass(frozen=True, slots=True)
class ExemptPairs:
    """Pairs of a batch that are no negatives though no anchor pairs: judged true, or ambiguous.

    Attributes:
        block: (E,) pairs of the score matrix of the anchors, as indices into it.
        weight: (E,) float32, weight of each as a positive; 0 for an ambiguous pair.
        negatives: (B, N) bool by role, which of the `pairs` of the batch.
    """

    block: Pairs
    weight: Tensor
    negatives: Mapping[Role, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> ExemptPairs:
        """Move the tensors to another device."""
        negatives = {role: pairs.to(device) for role, pairs in self.negatives.items()}
        return ExemptPairs(self.block.to(device), self.weight.to(device), negatives)


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch: a pool of images and one of texts, anchors first, then candidates.

    All fields are the same on every process, except that `images`, `texts` and `offered` hold the
    process's share of the items (all of them for a single one), see `counterfoil.data.batching`.

    Attributes:
        step: number of earlier batches.
        image_rows: data set rows of the whole image pool; the first ``block[0]`` are anchors.
        text_rows: data set rows of the whole text pool; the first ``block[1]`` are anchors.
        images: images of the pool that this process encodes.
        texts: texts of the pool that this process encodes.
        block: (I, T), size of the score matrix of the anchors.
        anchors: (B,) anchor pairs, one for each text of the block, that `pairs` are aligned with,
            as indices into the pools.
        pairs: (B, N) pairs to score besides the block, by role, as indices into the pools.
        candidates: (B, N) pairs that a `NegativeSource` chooses from, by role, as data set rows; -1
            for none.
        offered: images and texts of this process's share of the candidates, in order of ids.
        exempt: pairs that were judged to be no negatives; None for none.
        equal: of the whole data set, on the CPU: texts that say what a caption of an image says and
            are no negatives of it; None for none, or where they count as negatives.
    """

    step: int
    image_rows: Tensor
    text_rows: Tensor
    images: ModalityBatch
    texts: ModalityBatch
    block: tuple[int, int]
    anchors: Pairs
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    candidates: Mapping[Role, Pairs] = field(default_factory=dict)
    offered: tuple[ModalityBatch, ModalityBatch] | None = None
    exempt: ExemptPairs | None = None
    equal: EqualTexts | None = None

    @property
    def positive(self) -> Tensor:
        """(I, T) bool, True if the text describes the image."""
        mask = torch.zeros(self.block, dtype=torch.bool, device=self.device)
        return mask.index_put_((self.anchors.image, self.anchors.text), mask.new_ones(()))

    @property
    def device(self) -> torch.device:
        """The device of the batch; the data set rows are on the CPU."""
        return self.anchors.image.device

    def to(self, device: torch.device | str) -> Batch:
        """Move the batch to another device; the data set rows stay where they are."""
        return replace(
            self,
            images=self.images.to(device),
            texts=self.texts.to(device),
            anchors=self.anchors.to(device),
            pairs={role: pair.to(device) for role, pair in self.pairs.items()},
            candidates={role: pair.to(device) for role, pair in self.candidates.items()},
            offered=self.offered and (self.offered[0].to(device), self.offered[1].to(device)),
            exempt=self.exempt and self.exempt.to(device),
        )


@final
@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded pools of a batch.

    Attributes:
        images: image pool.
        texts: text pool.
        repeats: encodings of each item, side by side: with 2, rows 2n and 2n + 1 are item n.
    """

    images: Embeddings
    texts: Embeddings
    repeats: int = 1


@final
@dataclass(frozen=True, slots=True)
class EncodedViews:
    """Output of a model for a training batch.

    Attributes:
        views: encodings by name. "inference" is the one used at test time and covers the whole
            pools; a model may add others in training, which cover the anchor block.
        auxiliary: scalar losses of the model itself, by name; each is this process's part of a sum
            over the batch.
    """

    views: Mapping[str, EncodedBatch]
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def inference(self) -> EncodedBatch:
        """The encoding used at test time."""
        return self.views[INFERENCE]


@final
@dataclass(frozen=True, slots=True)
class ExtraPositives:
    """E true pairs of a score matrix that are no anchor pairs, with their weights in training.

    Attributes:
        image: (E,) row of each.
        text: (E,) column of each.
        score: (E,) score; the matrix itself holds -inf there.
        weight: (E,) above 0 and at most 1.
    """

    image: Tensor
    text: Tensor
    score: Tensor
    weight: Tensor


@final
@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """Scores of a block of images and texts, with their targets.

    Attributes:
        scores: (I, T); -inf for a wrong pair that is not to count as a negative.
        positive: (I, T) bool, True if the text describes the image.
        anchor: (B,) scores of the anchor pairs; the lowest of an item's repeats.
        guide: (I, T) target similarities of teachers, or None.
        scale: units of a score, see `RetrievalModel.loss_scale`.
        name: of the view.
        repeats: rows and columns of each item, side by side, see `EncodedBatch`.
        extra: further true pairs, which a loss may learn from; None for none.
    """

    scores: Tensor
    positive: Tensor
    anchor: Tensor
    guide: Tensor | None = None
    scale: float = 1.0
    name: str = INFERENCE
    repeats: int = 1
    extra: ExtraPositives | None = None


@final
@dataclass(frozen=True, slots=True)
class WordTask:
    """Predictions for single words, with labels.

    Attributes:
        logits: (M, C), one row for each supervised word.
        labels: (M,) long; -1 for words to ignore.
        anchor: (M,) long, anchor pair of each word; None if no loss needs it.
    """

    logits: Tensor
    labels: Tensor
    anchor: Tensor | None = None


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """Input of a loss: scores and targets, without model or data set.

    Attributes:
        matrices: score matrices by view; "inference" always exists.
        pairs: (B, N) scores by role, aligned with the anchors.
        words: word tasks by name.
        step: number of earlier batches.
        guides: (B, N) target similarities of the pairs of a role, for roles whose loss needs them.
        seed: of random choices of losses at this step; the same on every process.
        vectors: the embeddings of the anchors, where a loss needs them.
    """

    matrices: Mapping[str, ScoreMatrix]
    pairs: Mapping[Role, Tensor] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    step: int = 0
    guides: Mapping[Role, Tensor] = field(default_factory=dict)
    seed: int = 0
    vectors: VectorScores | None = None


@final
@dataclass(frozen=True, slots=True)
class VectorScores:
    """Input of a loss of embeddings, or in its tiled form: inner products are the scores.

    Attributes:
        images: (I, d).
        texts: (T, d).
        text_to_image: (T,) image row of each text.
        exempt: (E,) pairs that were judged to be no negatives.
        weight: (E,) weight of each as a positive; 0 for none. None if there are no such pairs.
        equal: texts that say what a caption of an image says, by these rows; None for none.
        rows: (I,) row of each image in the data set, on the CPU, the same in every batch.
    """

    images: Tensor
    texts: Tensor
    text_to_image: Tensor
    exempt: Pairs | None = None
    weight: Tensor | None = None
    equal: EqualTexts | None = None
    rows: Tensor | None = None


# Heads of models that read image and text together and judge single words.


@final
class WordHead(Enum):
    """Outputs that one pass over the pairs may compute; only requested heads are run."""

    SCORE = "score"
    FILL = "fill"
    DOUBT = "doubt"
    CORRECT = "correct"


@final
@dataclass(frozen=True, slots=True)
class WordSlots:
    """Tokens of P pairs that heads predict; both (M,) long.

    Attributes:
        pair: index of the pair.
        place: index of the token in its text.
    """

    pair: Tensor
    place: Tensor


@final
@dataclass(frozen=True, slots=True)
class WordReading:
    """Outputs of the heads; None if not requested.

    Attributes:
        score: (P,) as `RetrievalModel.score_pairs`.
        fill: (M, V) logits of a masked language model that sees the image.
        doubt: (P, L, 2) logits that each token is wrong (0) or right (1).
        correct: (M, V) logits of the right token at each slot, from a head of its own.
    """

    score: Tensor | None = None
    fill: Tensor | None = None
    doubt: Tensor | None = None
    correct: Tensor | None = None


@runtime_checkable
class WordHeadModel(Protocol):
    """A model that computes all requested heads in one pass over aligned pairs."""

    @property
    def word_heads(self) -> frozenset[WordHead]:
        """The heads it has."""
        ...

    def read(
        self,
        images: Embeddings,
        texts: Embeddings,
        want: frozenset[WordHead],
        slots: WordSlots | None = None,
    ) -> WordReading:
        """Run heads on P encoded images with P encoded texts.

        Logits over the vocabulary are computed at the slots only, which `fill` and `correct` need.
        """
        ...
