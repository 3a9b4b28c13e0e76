"""A graph over the images and texts of a batch, in which they read each other.

Only training has it: what an item reads depends on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterfoil.models.blocks.fragments import Found, found
from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.residual import attention_layer
from counterfoil.models.blocks.tower import positive
from counterfoil.records import Encoded

Divergence = Literal["forward", "reverse"]
Padding = Literal["hidden", "borrowed"]


@final
@dataclass(frozen=True, slots=True)
class Edges:
    """From A items that read to B that are read.

    Attributes:
        kept: (A, B) bool, whether A reads B at all (connection).
        relevance: (A, B) what is added to the attention.
    """

    kept: Tensor
    relevance: Tensor


@final
@dataclass(frozen=True, slots=True)
class Relations:
    """All edges of a batch; i2t are those of images that read texts."""

    i2i: Edges
    i2t: Edges
    t2i: Edges
    t2t: Edges

    def bias(self, weight: float) -> Tensor:
        """(I + T, I + T) for the attention of images and texts in a row; -inf where cut."""
        rows = ((self.i2i, self.i2t), (self.t2i, self.t2t))
        relevance = torch.cat([torch.cat([e.relevance for e in row], 1) for row in rows])
        kept = torch.cat([torch.cat([e.kept for e in row], 1) for row in rows])
        return (weight * relevance).masked_fill(~kept, -torch.inf)


@final
@dataclass(frozen=True, slots=True)
class Enhanced:
    """What comes out of the graph.

    Attributes:
        images: (I, D) unit vectors.
        texts: (T, D) unit vectors.
        penalty: how far the learnt relevance is from the distance of the vectors, weighted.
    """

    images: Tensor
    texts: Tensor
    penalty: Tensor


@final
class BatchGraph(nn.Module):
    """One attention layer over a batch, along edges that are kept and weighted by relations.

    Images (and texts) are relevant to each other by their distance. How relevant an image and a
    text are is learnt from what their regions and words find in each other, see `found`, held close
    to their distance by a divergence.

    The instance-level relations of HREM (Fu et al., CVPR 2023,
    https://github.com/CrossmodalGroup/HREM). Departs from the authors' code in: padding is never
    read; texts of fewer than `best` words have zeros for those missing; the divergence goes the way
    in which the distance is the target; numbers of images and texts may differ; a batch of one
    keeps its own edge.
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
        divergence: Divergence = "forward",
        padding: Padding = "hidden",
        sigma: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        """Keyword arguments.

        Args:
            width: of the vectors.
            heads: of the attention.
            dropout: share of entries dropped in training.
            share: of the images, and of the texts, that each item reads: the nearest ones.
            best: how many fragments' scores make the relevance of an image and a text.
            mask_weight: of the relevance in the attention; the authors give 1.0 on Flickr30K and
                1.5 on COCO.
            penalty: weight of the divergence.
            divergence: "forward" is KL(distance || relevance), "reverse" the other way round, as
                the authors' code has it.
            padding: "hidden", or "borrowed" as in the authors' code, see `found`.
            sigma: a relevance by distance is exp(-distance / sigma).
            temperature: of the divergence.

        Raises:
            ValueError: a size, a share or a word that is not possible.
        """
        super().__init__()
        positive(best=best)
        chosen("divergence", divergence, get_args(Divergence))
        chosen("padding", padding, get_args(Padding))
        if not 0 < share <= 1:
            raise ValueError(f"share={share} of a batch cannot be read; give more than 0, up to 1")
        self.width, self.best, self.share = width, best, share
        self.mask_weight, self.weight = mask_weight, penalty
        self.divergence, self.padding = divergence, padding
        self.sigma, self.temperature = sigma, temperature
        self.layer = attention_layer(width, heads, dropout)
        self.by_images, self.by_texts = (
            nn.Sequential(nn.Linear(best, best), nn.ReLU(), nn.Linear(best, 1)) for _ in range(2)
        )

    def forward(self, images: Tensor, texts: Tensor, regions: Encoded, words: Encoded) -> Enhanced:
        """Let a batch read itself.

        Args:
            images: (I, D) unit vectors.
            texts: (T, D) unit vectors.
            regions: of the images; they get no gradient.
            words: of the texts; they get no gradient.
        """
        with torch.autocast(images.device.type, enabled=False):
            images, texts = full(images), full(texts)
            relations = self.relations(images, texts, regions, words)
            told = self._told(torch.cat([images, texts]), relations.bias(self.mask_weight))
            penalty = self.weight * self.apart(images, texts, relations)
            return Enhanced(told[: len(images)], told[len(images) :], penalty)

    def relations(
        self, images: Tensor, texts: Tensor, regions: Encoded, words: Encoded
    ) -> Relations:
        """Who reads whom, and how relevant that is; arguments as in `forward`."""
        borrowed = self.padding == "borrowed"
        by_images, by_texts = found(regions, words, self.best, borrowed=borrowed)
        return Relations(
            self._near(images),
            self._across(self.by_images, by_images),
            self._across(self.by_texts, by_texts),
            self._near(texts),
        )

    def apart(self, images: Tensor, texts: Tensor, relations: Relations) -> Tensor:
        """The divergence of both directions, each a mean over those who read."""
        guide = self._by_distance(images, texts).detach()
        i2t = self._diverges(guide, relations.i2t.relevance)
        return i2t + self._diverges(guide.T, relations.t2i.relevance)

    def _told(self, vectors: Tensor, bias: Tensor) -> Tensor:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(value=False)  # torch's shortcut makes NaN of a bias
        try:
            return normalize(self.layer(vectors[None], bias)[0], dim=-1)
        finally:
            torch.backends.mha.set_fastpath_enabled(value=fast)

    def _near(self, vectors: Tensor) -> Edges:
        kept = self._kept((vectors @ vectors.T).detach())
        return Edges(kept, self._by_distance(vectors, vectors))

    def _across(self, judge: nn.Sequential, seen: Found) -> Edges:
        return Edges(self._kept(seen.mean), judge(seen.best).squeeze(-1) + seen.mean)

    def _by_distance(self, left: Tensor, right: Tensor) -> Tensor:
        exact = "donot_use_mm_for_euclid_dist"  # a product is off by 3e-4 where two are alike
        return torch.exp(-torch.cdist(left, right, compute_mode=exact) / self.sigma)

    def _kept(self, similarity: Tensor) -> Tensor:
        """(A, B) bool, the highest `share` of each row."""
        count = max(1, int(self.share * similarity.shape[1]))
        return similarity >= similarity.topk(count).values[:, -1:]

    def _diverges(self, guide: Tensor, relevance: Tensor) -> Tensor:
        target, given = ((x / self.temperature).log_softmax(-1) for x in (guide, relevance))
        if self.divergence == "reverse":
            target, given = given, target
        each = (target.exp() * (target - given)).sum(-1)
        return each.mean() * self.temperature**2
