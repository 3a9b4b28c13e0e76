"""Proposals for multi-vector search: one vector per item whose inner product is nearly MaxSim.

MaxSim of a text with an image is a sum over words, each with its best region. Replace every word
by its nearest centroids c_k of all words:

    sum_i max_j q_i . d_j  ~  sum_k a_k v_k       a_k  words of the text that are near to c_k
                                                   v_k  max_j c_k . d_j over the regions

So a text is a vector of counts and an image one of maxima, whatever their numbers of words and
regions, and any index for inner products proposes candidates, of which the model then computes the
exact scores. The only error is that of the centroids, as in PLAID (arXiv:2205.09707), where the
*documents'* vectors are replaced; here it is the queries', whose words are few and cluster well.
For the other direction the sides are exchanged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Embeddings
from counterfoil.data.tokenizers import SPECIAL, WordPieceTokenizer, WordTokenizer
from counterfoil.model import Model
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.sentence_transformers import SentenceTransformersModel
from counterfoil.scoring.encode import Side

FILE = "proposals.safetensors"
# centroids; the same where the vectors to search with are unknown, and those of the other side
# stand for them; vectors of each that they are fitted on
CENTROIDS, OTHER_CENTROIDS, SAMPLE = 512, 1024, 64
NEAREST, SHARPNESS = 4, 20.0  # centroids of a vector, and inverse temperature of their shares
# sentences of random words, their words, those drawn from, and sentences encoded together
SENTENCES, WORDS_OF_SENTENCE, KNOWN_WORDS, BATCH = 600, 8, 4000, 64
SHARE, LEAST = 0.05, 64  # proposed items, of all and at least
_AT_ONCE = 512  # items


@final
@dataclass(frozen=True, eq=False)
class MaxSimProposals:
    """Centroids of an index by which texts and images become single vectors.

    Attributes:
        words: (K, D) centroids of words, for the direction from text to image; None if the model
            does not score in it.
        regions: (K', D) centroids of regions, for the other direction; None likewise.
        mean: the model averages over vectors.
    """

    words: Tensor | None
    regions: Tensor | None
    mean: bool

    @staticmethod
    def fit(
        model: MaxSimModel, images: Embeddings | None, texts: Embeddings | None
    ) -> MaxSimProposals:
        """Cluster the vectors of the items; where one side has none, those of the other."""

        def centroids(own: Embeddings | None, other: Embeddings | None) -> Tensor:
            if own is not None:
                return _centroids(own, CENTROIDS)
            assert other is not None
            return _centroids(other, OTHER_CENTROIDS)

        return MaxSimProposals(
            None if model.direction == "i2t" else centroids(texts, images),
            None if model.direction == "t2i" else centroids(images, texts),
            model.mean,
        )

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return sum(len(part) for part in (self.words, self.regions) if part is not None)

    def image_vectors(self, images: Embeddings) -> Tensor:
        """Return (N, width) float32 vectors of images, or of queries for texts."""
        return self._vectors(images, self.words, self.regions, counts_first=False)

    def text_vectors(self, texts: Embeddings) -> Tensor:
        """Return (N, width) float32 vectors of texts, or of queries for images."""
        return self._vectors(texts, self.regions, self.words, counts_first=True)

    def write(self, folder: Path) -> None:
        """Write the centroids into an index."""
        named = {"words": self.words, "regions": self.regions}
        tensors = {name: part for name, part in named.items() if part is not None}
        write_tensors(folder / FILE, tensors, {"mean": self.mean})

    @staticmethod
    def read(folder: Path) -> MaxSimProposals:
        """Read the centroids of an index; a `ValueError` if they are damaged."""
        tensors, about = read_tensors(folder / FILE, "the centroids of an index")
        return MaxSimProposals(
            tensors.get("words"), tensors.get("regions"), bool(about.get("mean", True))
        )

    def _vectors(
        self,
        items: Embeddings,
        searching: Tensor | None,
        own: Tensor | None,
        *,
        counts_first: bool,
    ) -> Tensor:
        """Return maxima for the centroids that search these items, and counts of their own."""
        parts = [torch.zeros(0, self.width)]
        for start in range(0, len(items), _AT_ONCE):
            bag = items.rows(slice(start, start + _AT_ONCE)).to("cpu")
            tokens, columns = bag.tokens.float(), []
            if searching is not None:
                best = (tokens @ searching.T).masked_fill(~bag.mask[..., None], -torch.inf).amax(1)
                columns.append(best.masked_fill(~bag.mask.any(1, keepdim=True), 0))
            if own is not None:
                columns.append(_counts(tokens, bag.mask, own, mean=self.mean))
            parts.append(torch.cat(columns[::-1] if counts_first else columns, 1))
        return torch.cat(parts)


def vocabulary_sentences(model: Model) -> Embeddings | None:
    """Encode random sentences of words that a model knows, where an index holds no captions.

    Their vectors stand for those of queries better than regions do. None for a model whose
    vocabulary is not known.
    """
    words = _known_words(model)
    if not words:
        return None
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(words, k=WORDS_OF_SENTENCE)) for _ in range(SENTENCES)]
    starts = range(0, SENTENCES, BATCH)
    return Embeddings.cat(
        [model.encode(sentences[start : start + BATCH]).to("cpu") for start in starts]
    )


def _known_words(model: Model) -> list[str]:
    tokenizer = model.processor and model.processor.tokenizer
    if isinstance(tokenizer, WordTokenizer):
        return [word for word in tokenizer.words if word not in SPECIAL]
    if isinstance(model.model, SentenceTransformersModel):
        pieces = model.model.body.tokenizer
    else:
        pieces = tokenizer.pretrained if isinstance(tokenizer, WordPieceTokenizer) else None
    if pieces is None:
        return []
    ids = sorted({*pieces.get_vocab().values()} - {*pieces.all_special_ids})
    chosen = random.Random(0).sample(ids, min(len(ids), KNOWN_WORDS))
    words = (pieces.decode([i]).strip() for i in chosen)
    return [word for word in words if word.isalpha()]


def proposed(count: int, results: int) -> int:
    """Return how many of `count` items are proposed for so many results."""
    return min(count, max(LEAST, 10 * results, -(-count // round(1 / SHARE))))


def rank_side(side: Side, results: Embeddings, query: Embeddings, model: MaxSimModel) -> Tensor:
    """Return the (P,) exact scores of results with one query, which plays the other side."""
    repeated = query.rows(torch.zeros(len(results), dtype=torch.long))
    images, texts = (results, repeated) if side == "image" else (repeated, results)
    return model.score_pairs(images, texts).float()


def _counts(tokens: Tensor, mask: Tensor, centroids: Tensor, *, mean: bool) -> Tensor:
    """Share each vector, by its length, among its nearest centroids; those of padding count 0."""
    length = tokens.norm(dim=2, keepdim=True)
    cosine = tokens @ centroids.T / length.clamp(min=torch.finfo(tokens.dtype).tiny)
    best = cosine.topk(min(NEAREST, len(centroids)), dim=2)
    share = (SHARPNESS * best.values).softmax(2) * length
    share = share.masked_fill(~mask.unsqueeze(2), 0)
    if mean:
        share = share / mask.sum(1).clamp(min=1).view(-1, 1, 1)
    counts = tokens.new_zeros(len(tokens), len(centroids))
    return counts.scatter_add_(1, best.indices.flatten(1), share.flatten(1))


def _centroids(items: Embeddings, count: int) -> Tensor:
    """Return at most `count` unit vectors that the items' vectors are near to."""
    from sklearn.cluster import MiniBatchKMeans

    vectors = items.tokens[items.mask].float().cpu()
    draw = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))
    sample = normalize(vectors[draw[: count * SAMPLE]], dim=1)
    different: Tensor = sample.unique(dim=0)  # type: ignore[no-untyped-call]
    count = min(count, max(LEAST, len(different) // 8))  # a small index needs fewer
    if len(different) <= count:
        return different
    options: dict[str, Any] = {"random_state": 0, "n_init": 1, "batch_size": 4096, "max_iter": 30}
    fitted = MiniBatchKMeans(count, **options).fit(sample.numpy())
    return normalize(torch.from_numpy(fitted.cluster_centers_).float(), dim=1)
