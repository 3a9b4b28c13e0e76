"""HREM: vectors that learn from a graph over their batch (Fu et al., CVPR 2023)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.graph import BatchGraph
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.pool import single, unit
from counterfoil.models.blocks.residual import ResidualPool
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.models.vse import same_width
from counterfoil.records import INFERENCE, Batch, Encoded, Items, View, Views

IMAGES, TEXTS, BOTH = "images enhanced", "texts enhanced", "both enhanced"
FRAGMENTS = "fragments"


@final
class HREM(Matcher):
    """One vector per image and text, compared by cosine; in training a graph over the batch.

    Where one of the enhanced grids is judged, the anchors read each other in a graph, and what they
    have been told makes views of their own: enhanced images with plain texts, plain images with
    enhanced texts, and both. Until then nothing of it is computed. The graph is saved with the
    model; nothing asks it at test time.

    The view "fragments" holds the regions and words that the graph reads, and has no scores.

    Learning Semantic Relationship among Instances for Image-Text Matching, the fusion mechanism
    (https://github.com/CrossmodalGroup/HREM). What departs from the authors' code is said at
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
        shrinking: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            graph: of a batch in training; None for no enhanced views.
            heads: of the attention between an item's own vectors.
            dropout: share of entries dropped there in training.
            residual: weight of the highest values of an item, see `ResidualPool`.
            shrinking: pool as the authors' code does, see `top_mean`.

        Raises:
            ValueError: parts of different widths, or an argument that is not possible.
        """
        super().__init__()
        same_width(image, text)
        if graph is not None and graph.width != image.width:
            raise ValueError(
                f"the graph reads {graph.width} numbers per item and the image tower gives "
                f"{image.width}; give both the same width"
            )
        self.image, self.text, self.graph = image, text, graph
        self.image_pool, self.text_pool = (
            ResidualPool(
                width=image.width,
                heads=heads,
                dropout=dropout,
                residual=residual,
                shrinking=shrinking,
            )
            for _ in range(2)
        )
        self.relates = graph is not None
        if graph is not None:
            self.grids = frozenset({INFERENCE, IMAGES, TEXTS, BOTH})

    def encode_images(self, images: Items) -> Encoded:
        """N images as one vector each."""
        return unit(single(self.image_pool(self.image(images))))

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as one vector each."""
        return unit(single(self.text_pool(self.text(texts))))

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) cosines of aligned pairs."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) cosines."""
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Vectors as they are used, and the regions and words that the graph wants to see."""
        regions, words = self.image(batch.images), self.text(batch.texts)
        images, texts = self.image_pool(regions), self.text_pool(words)
        views = {INFERENCE: View(unit(single(images)), unit(single(texts)))}
        if self.graph is not None:
            views[FRAGMENTS] = View(_seen(regions), _seen(words))
        return Views(views)

    def relate(self, batch: Batch, views: Views, wanted: frozenset[str]) -> Views:
        """With the enhanced views, where one is judged, and how far the graph is from its guide."""
        if self.graph is None or not wanted & {IMAGES, TEXTS, BOTH}:
            return views
        plain, fragments = (_anchors(batch, views.views[name]) for name in (INFERENCE, FRAGMENTS))
        told = self.graph(
            plain.images.tokens[:, 0],
            plain.texts.tokens[:, 0],
            _seen(fragments.images),
            _seen(fragments.texts),
        )
        images, texts = single(told.images), single(told.texts)
        new = {
            IMAGES: View(images, plain.texts),
            TEXTS: View(plain.images, texts),
            BOTH: View(images, texts),
        }
        return Views({**views.views, **new}, {**views.auxiliary, "relations": told.penalty})


def _seen(bag: Encoded) -> Encoded:
    """Without a gradient."""
    return Encoded(bag.tokens.detach(), bag.mask)


def _anchors(batch: Batch, view: View) -> View:
    images, texts = batch.block
    return View(view.images.rows(slice(images)), view.texts.rows(slice(texts)))
