"""HREM: vectors that learn from a graph over their batch (Fu et al., CVPR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize, pad

from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
)
from counterfoil.models.base import SingleVectorModel, anchors_of
from counterfoil.models.checkpoints import (
    BERT,
    POSITIONS,
    REGIONS,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.cross_attention import CELLS_AT_ONCE, pack_texts
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_heads,
    check_positive,
    ensure_nonempty,
    full_precision,
    pool_vectors,
    single_vector,
    unit_vectors,
    zero_padded,
)
from counterfoil.models.layers.towers import TwoTowerModel

# Pooling: self-attention, then the highest values mixed with the mean.


HIGHEST = 2


@final
class ResidualPool(nn.Module):
    """Pooling: the two highest values of every feature, mixed with the mean of a transformer layer.

    `residual` is the weight of the highest values; the mean has 1 - residual.

    Departs from the authors' code in: an item of one vector does not change how its successors are
    pooled; an empty item gives zeros.
    """

    def __init__(
        self, *, width: int, heads: int = 16, dropout: float = 0.1, residual: float = 0.8
    ) -> None:
        super().__init__()
        if not 0 <= residual <= 1:
            raise ValueError(f"residual={residual} is no share; give a number from 0 to 1")
        self.residual = residual
        self.layer = transformer_layer(width, heads, dropout)

    def forward(self, bag: Embeddings) -> Tensor:
        """Pool each item to one vector, (N, D), in at least single precision."""
        bag = Embeddings(zero_padded(bag.tokens, bag.mask), bag.mask)
        # an empty item attends to its padding, which is zero
        padding = ~bag.mask & bag.mask.any(1, keepdim=True)
        hidden = padding if bool(padding.any()) else None
        states = full_precision(self.layer(bag.tokens, src_key_padding_mask=hidden))
        mean = pool_vectors("mean", Embeddings(states, bag.mask))
        top = top_mean(Embeddings(full_precision(bag.tokens), bag.mask), HIGHEST)
        return self.residual * top + (1 - self.residual) * mean


def transformer_layer(width: int, heads: int, dropout: float) -> nn.TransformerEncoderLayer:
    """Return a post-norm transformer layer whose MLP is as wide as its input."""
    check_heads(heads, width)
    return nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True)


def top_mean(bag: Embeddings, highest: int) -> Tensor:
    """Return (N, D) means of the `highest` values of every feature, of all if there are fewer."""
    count = bag.mask.sum(1).clamp(max=highest)
    left = bag.tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf)
    total = torch.zeros_like(left[:, 0])
    for rank in range(min(highest, left.shape[1])):
        value, place = left.max(1)
        total = total + value.masked_fill((rank >= count).unsqueeze(-1), 0)
        if rank + 1 < highest:
            left = left.scatter(1, place.unsqueeze(1), -torch.inf)
    return total / count.clamp(min=1).unsqueeze(-1)


# Matches of words with regions and of regions with words, for all images with all texts.
#
# HREM's graph over a batch reads them as fixed inputs, so nothing here has a gradient. One matrix
# product of regions and real words serves both directions, for captions of one length at a time.
# Images are the last axis, so that reductions over words or regions run along memory.


SLOPE = 0.1
CELLS_IN_CACHE = 1 << 20  # affinities of one block
TINY = 1e-12


@final
@dataclass(frozen=True, slots=True)
class FragmentMatches:
    """Scores of the fragments (regions or words) of A items with B items of the other modality."""

    best: Tensor  # (A, B, K) the highest scores, in descending order; 0 where there are fewer
    mean: Tensor  # (A, B) mean of all scores


@torch.no_grad()
def match_fragments(
    images: Embeddings, texts: Embeddings, best: int
) -> tuple[FragmentMatches, FragmentMatches]:
    """Match regions of I images with T texts, (I, T), and words of the texts with images, (T, I).

    The cosine of a word with a region passes a leaky ReLU and is divided by the length of the
    vector of all words' (or regions') cosines with the same counterpart; the score of a fragment is
    its highest over the other side. An item without fragments scores 0. The `best` highest scores
    of an item are returned beside their mean.
    """
    images, texts = ensure_nonempty(images), ensure_nonempty(texts)
    packed, order = pack_texts(
        Embeddings(normalize(full_precision(texts.tokens), dim=-1), texts.mask)
    )
    regions = normalize(full_precision(images.tokens), dim=-1).transpose(0, 1)  # (R, I, D)
    real = None if bool(images.mask.all()) else images.mask.T
    cells = max(1, regions.shape[0] * regions.shape[1])
    by_texts, by_images = [], []
    for part in packed.parts(max(1, CELLS_AT_ONCE // cells)):
        affinity = part.words @ regions.flatten(0, 1).T
        for cut in (cut for run in part.runs() for cut in run.cut(CELLS_IN_CACHE // cells)):
            block = affinity[cut.words].view(cut.n, cut.length, *regions.shape[:2])
            of_words, of_regions = _fragment_scores(block, real)
            by_texts.append(_summarise(of_words, None, best))
            by_images.append(_summarise(of_regions, real, best))
    back = order.argsort()  # captions were sorted by length
    (text_best, text_mean), (image_best, image_mean) = (
        (torch.cat([x.best for x in parts])[back], torch.cat([x.mean for x in parts])[back])
        for parts in (by_texts, by_images)
    )
    return (
        FragmentMatches(image_best.transpose(0, 1), image_mean.T),
        FragmentMatches(text_best, text_mean),
    )


def _fragment_scores(block: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return scores (n, L, I) of words and (n, R, I) of regions from cosines, overwritten."""
    block = leaky_relu(block, SLOPE, inplace=True)
    if real is not None:
        block.masked_fill_(~real, 0)
    words = block / _lengths(block, 1)
    if real is not None:
        words.masked_fill_(~real, -torch.inf)
    regions = block.div_(_lengths(block, 2))
    return words.amax(2), regions.amax(1)


def _lengths(block: Tensor, dim: int) -> Tensor:
    return (block * block).sum(dim, keepdim=True).sqrt_().clamp_(min=TINY)


def _summarise(scores: Tensor, real: Tensor | None, best: int) -> FragmentMatches:
    """Return the K best and the mean of (n, F, I) scores; `real` is (F, I) as above."""
    if real is None:
        mean = scores.mean(1)
    else:
        mean = scores.masked_fill(~real, 0).sum(1) / real.sum(0)
        scores = scores.masked_fill(~real, -torch.inf)
    top = scores.transpose(1, 2).topk(min(best, scores.shape[1])).values
    top = top.masked_fill(top == -torch.inf, 0)
    return FragmentMatches(pad(top, (0, best - top.shape[-1])), mean)


# The graph over the images and texts of a batch; in training only, as it depends on the batch.


@final
@dataclass(frozen=True, slots=True)
class GraphEdges:
    """Directed edges from A items to the B items that they attend to."""

    connected: Tensor  # (A, B) bool, whether A attends to B
    relevance: Tensor  # (A, B) bias of the attention logits


@final
@dataclass(frozen=True, slots=True)
class GraphRelations:
    """All edges of a batch; "i2t" are those of images that attend to texts."""

    i2i: GraphEdges
    i2t: GraphEdges
    t2i: GraphEdges
    t2t: GraphEdges

    def bias(self, weight: float) -> Tensor:
        """Return (I + T, I + T) attention biases, images before texts; -inf where not connected."""
        rows = ((self.i2i, self.i2t), (self.t2i, self.t2t))
        relevance = torch.cat([torch.cat([e.relevance for e in row], 1) for row in rows])
        connected = torch.cat([torch.cat([e.connected for e in row], 1) for row in rows])
        return (weight * relevance).masked_fill(~connected, -torch.inf)


@final
@dataclass(frozen=True, slots=True)
class EnhancedVectors:
    """The outputs of the graph: unit vectors (I, D) and (T, D), and the weighted divergence."""

    images: Tensor
    texts: Tensor
    penalty: Tensor


@final
class BatchGraph(nn.Module):
    """One attention layer over a batch, along learned edges that are weighted by relations.

    The relevance of two images (or two texts) is given by their distance. That of an image and a
    text is learnt from the matches of their regions and words, see `match_fragments`, and a
    divergence pulls it towards their distance.

    The instance-level relations of HREM (Fu et al., CVPR 2023,
    https://github.com/CrossmodalGroup/HREM). Departs from the authors' code in: padding is never
    read; texts of fewer than `best` words have zeros for those missing; the distance is the target
    of the divergence, theirs the other way round; numbers of images and texts may differ; a batch
    of one keeps its own edge.
    """

    def __init__(
        self,
        *,
        width: int = 1024,
        heads: int = 16,
        dropout: float = 0.1,
        share: float = 0.5,
        best: int = 10,
        mask_weight: float = 1.0,
        penalty: float = 10.0,
        sigma: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        """Initialise the module.

        Args:
            width: of the vectors.
            heads: of the attention.
            dropout: share of entries dropped in training.
            share: share of the images, and of the texts, that each item attends to: the nearest.
            best: number of fragment scores that the relevance of an image and a text depends on.
            mask_weight: weight of the relevance in the attention; 1.0 on Flickr30K and 1.5 on COCO
                in the authors' code.
            penalty: weight of the divergence KL(distance || relevance).
            sigma: scale of distances: the relevance is exp(-distance / sigma).
            temperature: temperature of the divergence.

        Raises:
            ValueError: an impossible size or share.
        """
        super().__init__()
        check_positive(best=best)
        if not 0 < share <= 1:
            raise ValueError(f"share={share} of a batch cannot be read; give more than 0, up to 1")
        self.width, self.best, self.share = width, best, share
        self.mask_weight, self.weight = mask_weight, penalty
        self.sigma, self.temperature = sigma, temperature
        self.layer = transformer_layer(width, heads, dropout)
        self.by_images, self.by_texts = (
            nn.Sequential(nn.Linear(best, best), nn.ReLU(), nn.Linear(best, 1)) for _ in range(2)
        )

    def forward(
        self, images: Tensor, texts: Tensor, regions: Embeddings, words: Embeddings
    ) -> EnhancedVectors:
        """Attend over a batch of (I, D) and (T, D) unit vectors; fragments get no gradient."""
        with torch.autocast(images.device.type, enabled=False):
            images, texts = full_precision(images), full_precision(texts)
            relations = self.relations(images, texts, regions, words)
            enhanced = self._attend(torch.cat([images, texts]), relations.bias(self.mask_weight))
            penalty = self.weight * self.divergences(images, texts, relations)
            return EnhancedVectors(enhanced[: len(images)], enhanced[len(images) :], penalty)

    def relations(
        self, images: Tensor, texts: Tensor, regions: Embeddings, words: Embeddings
    ) -> GraphRelations:
        """Return all edges and their relevance; arguments as in `forward`."""
        by_images, by_texts = match_fragments(regions, words, self.best)
        return GraphRelations(
            self._near(images),
            self._across(self.by_images, by_images),
            self._across(self.by_texts, by_texts),
            self._near(texts),
        )

    def divergences(self, images: Tensor, texts: Tensor, relations: GraphRelations) -> Tensor:
        """Return the sum of the mean divergences of both directions."""
        guide = self._by_distance(images, texts).detach()
        i2t = self._divergence(guide, relations.i2t.relevance)
        return i2t + self._divergence(guide.T, relations.t2i.relevance)

    def _attend(self, vectors: Tensor, bias: Tensor) -> Tensor:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(value=False)  # torch's shortcut makes NaN of a bias
        try:
            return normalize(self.layer(vectors[None], bias)[0], dim=-1)
        finally:
            torch.backends.mha.set_fastpath_enabled(value=fast)

    def _near(self, vectors: Tensor) -> GraphEdges:
        nearest = self._nearest((vectors @ vectors.T).detach())
        return GraphEdges(nearest, self._by_distance(vectors, vectors))

    def _across(self, relevance: nn.Sequential, matches: FragmentMatches) -> GraphEdges:
        learnt = relevance(matches.best).squeeze(-1)
        return GraphEdges(self._nearest(matches.mean), learnt + matches.mean)

    def _by_distance(self, left: Tensor, right: Tensor) -> Tensor:
        # with matrix products, distances of nearly equal vectors are off by 3e-4
        exact = "donot_use_mm_for_euclid_dist"
        return torch.exp(-torch.cdist(left, right, compute_mode=exact) / self.sigma)

    def _nearest(self, similarity: Tensor) -> Tensor:
        """Return (A, B) bool, True at the highest `share` of each row."""
        count = max(1, int(self.share * similarity.shape[1]))
        return similarity >= similarity.topk(count).values[:, -1:]

    def _divergence(self, guide: Tensor, relevance: Tensor) -> Tensor:
        target, student = ((x / self.temperature).log_softmax(-1) for x in (guide, relevance))
        divergences = (target.exp() * (target - student)).sum(-1)
        return divergences.mean() * self.temperature**2


IMAGES, TEXTS, BOTH = "images enhanced", "texts enhanced", "both enhanced"
FRAGMENTS = "fragments"


@final
class HREM(TwoTowerModel, SingleVectorModel):
    """One vector per image and text, compared by cosine; in training a graph over the batch.

    If a loss scores an enhanced view, the anchors attend to each other in a graph, and its outputs
    make further views: enhanced images with plain texts, plain images with enhanced texts, and
    both. Otherwise the graph is not computed. It is saved with the model but unused at test time.

    The view "fragments" holds the regions and words that the graph reads, and has no scores.

    Learning Semantic Relationship among Instances for Image-Text Matching, the fusion mechanism
    (https://github.com/CrossmodalGroup/HREM). For departures from the authors' code see
    `ResidualPool` and `BatchGraph`.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        graph: BatchGraph | None = None,
        heads: int = 16,
        dropout: float = 0.1,
        residual: float = 0.8,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            graph: of a batch in training; None for no enhanced views.
            heads: of the attention between an item's own vectors.
            dropout: share of entries dropped there in training.
            residual: weight of the highest values of an item, see `ResidualPool`.

        Raises:
            ValueError: parts of different widths, or an argument that is not possible.
        """
        super().__init__(image, text)
        if graph is not None and graph.width != image.width:
            raise ValueError(
                f"the graph reads {graph.width} numbers per item and the image tower gives "
                f"{image.width}; give both the same width"
            )
        self.graph = graph
        self.image_pool, self.text_pool = (
            ResidualPool(width=image.width, heads=heads, dropout=dropout, residual=residual)
            for _ in range(2)
        )
        self.uses_batch_context = graph is not None
        if graph is not None:
            self.score_names = frozenset({INFERENCE, IMAGES, TEXTS, BOTH})

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        return unit_vectors(single_vector(self.image_pool(self.image(images))))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return unit_vectors(single_vector(self.text_pool(self.text(texts))))

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode a training batch, with the regions and words that the graph reads."""
        regions, words = self.image(batch.images), self.text(batch.texts)
        images, texts = self.image_pool(regions), self.text_pool(words)
        views = {
            INFERENCE: EncodedBatch(
                unit_vectors(single_vector(images)), unit_vectors(single_vector(texts))
            )
        }
        if self.graph is not None:
            views[FRAGMENTS] = EncodedBatch(_detached(regions), _detached(words))
        return EncodedViews(views)

    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        """Add the enhanced views and the graph's penalty, if an enhanced view is wanted."""
        if self.graph is None or not wanted & {IMAGES, TEXTS, BOTH}:
            return views
        plain, fragments = (anchors_of(batch, views.views[name]) for name in (INFERENCE, FRAGMENTS))
        enhanced = self.graph(
            plain.images.tokens[:, 0],
            plain.texts.tokens[:, 0],
            _detached(fragments.images),
            _detached(fragments.texts),
        )
        images, texts = single_vector(enhanced.images), single_vector(enhanced.texts)
        new = {
            IMAGES: EncodedBatch(images, plain.texts),
            TEXTS: EncodedBatch(plain.images, texts),
            BOTH: EncodedBatch(images, texts),
        }
        return EncodedViews(
            {**views.views, **new}, {**views.auxiliary, "relations": enhanced.penalty}
        )


def _detached(bag: Embeddings) -> Embeddings:
    return Embeddings(bag.tokens.detach(), bag.mask)


# The authors' checkpoints: their tensor names and ours.


NAMES = TensorNames(
    system="an HREM",
    prefixes={
        **{theirs.replace("img_enc.", "img_enc.fc."): ours for theirs, ours in REGIONS.items()},
        "img_enc.aggr.layers.0.": "image_pool.layer.",
        "txt_enc.bert.": "text.body.",
        "txt_enc.linear.": "text.fc.",
        "txt_enc.aggr.layers.0.": "text_pool.layer.",
    },
    unused=("img_enc.fc.mlp.bns.1.", POSITIONS),
    needed=(
        "image.fc.weight",
        "image.norm.running_mean",
        "image_pool.layer.linear1.weight",
        "text.body.embeddings.word_embeddings.weight",
        "text.fc.weight",
        "text_pool.layer.linear1.weight",
    ),
)
OPTIONS = {"nhead": "heads", "dropout": "dropout", "residual_weight": "residual"}


def hrem_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of HREM, which holds no graph: that is unused at test time."""
    state = NAMES.renamed(checkpoint.state)
    return convert_towers(HREM, checkpoint, state, options=OPTIONS, bert=bert)
