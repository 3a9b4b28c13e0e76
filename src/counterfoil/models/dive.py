"""DivE: a set of diverse vectors per image and per text (Kim et al., CVPR 2023)."""

from __future__ import annotations

from functools import partial
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.parts import PartsTower
from counterfoil.models.blocks.pool import chosen, single
from counterfoil.models.blocks.sets import SetSimilarity, set_grid, set_pairs
from counterfoil.models.blocks.slots import Slots
from counterfoil.models.blocks.spread import closeness, correlation, crowding, discrepancy
from counterfoil.models.blocks.tower import every
from counterfoil.records import INFERENCE, Batch, Encoded, Items, View, Views

APART = "apart"  # the view that carries what each item's own set costs
Diversity = Literal["slots", "elements"]


@final
class DivE(Matcher):
    """Slots gather what they find in the parts; with the whole added each gives one unit vector.

    In training the sets of the batch's anchors have losses of their own, the same with any number
    of processes or pieces: "mmd" brings the elements of images and texts together, "diversity"
    keeps the slots of an item apart, "correlation" and "queries" are in the authors' code, unused.

    Departs from the authors' code in: the image tower is run once, not twice with other dropout;
    padding has no share in the slots and places are counted in an item's own length
    (`released_padding` does as they do); "smooth_chamfer_euclidean" is negated, so that higher is
    better.
    """

    def __init__(
        self,
        *,
        image: PartsTower,
        text: PartsTower,
        slots: int = 4,
        heads: int = 4,
        head_width: int = 512,
        rounds: int = 4,
        dropout: float = 0.1,
        similarity: SetSimilarity = "smooth_chamfer",
        alpha: float = 16.0,
        mmd_weight: float = 0.01,
        diversity_weight: float = 0.01,
        diversity_of: Diversity = "slots",
        correlation_weight: float = 0.0,
        query_weight: float = 0.0,
        released_padding: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            slots: vectors to a set.
            heads: see `Slots`.
            head_width: see `Slots`.
            rounds: see `Slots`.
            dropout: see `Slots`.
            similarity: of two sets, see `set_grid`.
            alpha: see `set_grid`.
            mmd_weight: of `discrepancy` between all elements of images and of texts.
            diversity_weight: of `crowding` within an item's set, images and texts added.
            diversity_of: the "slots" before the whole is added, or the "elements" after.
            correlation_weight: of `correlation` of an item's slots, images and texts added.
            query_weight: of `closeness` of the slots before they see an item.
            released_padding: see `Slots`.

        Raises:
            ValueError: a word that is not known, or towers of different widths.
        """
        super().__init__()
        _check(image, text, similarity, diversity_of)
        self.image, self.text = image, text
        several = partial(
            Slots,
            width=image.width,
            slots=slots,
            heads=heads,
            head_width=head_width,
            rounds=rounds,
            dropout=dropout,
            released_padding=released_padding,
        )
        self.image_slots = several(part_width=image.part_width)
        self.text_slots = several(part_width=text.part_width, positions="sine")
        self.image_norm, self.text_norm = nn.LayerNorm(image.width), nn.LayerNorm(text.width)
        self.similarity, self.alpha = similarity, alpha
        self.mmd_weight, self.query_weight = mmd_weight, query_weight
        self.diversity_of = diversity_of
        self.own = {"diversity": diversity_weight, "correlation": correlation_weight}
        self.relates = bool(mmd_weight or query_weight or any(self.own.values()))

    def encode_images(self, images: Items) -> Encoded:
        """N images as K unit vectors each."""
        return self.images(images)[0]

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as K unit vectors each."""
        return self.texts(texts)[0]

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return set_pairs(self.similarity, images, texts, self.alpha)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return set_grid(self.similarity, images, texts, self.alpha)

    def forward(self, batch: Batch) -> Views:
        """Sets as they are used, and what each item's own set costs."""
        images, image_slots = self.images(batch.images)
        texts, text_slots = self.texts(batch.texts)
        views = {INFERENCE: View(images, texts)}
        if any(self.own.values()):
            views[APART] = View(self._costs(images, image_slots), self._costs(texts, text_slots))
        return Views(views)

    def relate(self, batch: Batch, views: Views, wanted: frozenset[str]) -> Views:
        """With the losses of the sets of all anchors; the model's own losses are these."""
        anchors = {
            name: tuple(
                bag.rows(slice(count)).tokens.flatten(0, 1)
                for bag, count in zip((view.images, view.texts), batch.block, strict=True)
            )
            for name, view in views.views.items()
        }
        losses: dict[str, Tensor] = {}
        if self.mmd_weight:
            losses["mmd"] = self.mmd_weight * discrepancy(*anchors[INFERENCE])
        if APART in anchors:
            images, texts = anchors[APART]
            costs = images.mean(0) + texts.mean(0)
            losses |= {n: w * c for (n, w), c in zip(self.own.items(), costs, strict=True) if w}
        if self.query_weight:
            close = closeness(self.image_slots.latents) + closeness(self.text_slots.latents)
            losses["queries"] = self.query_weight * close
        return Views({INFERENCE: views.inference}, losses)

    def images(self, images: Items) -> tuple[Encoded, Tensor]:
        """Sets of N images, and their slots (N, K, D) before the whole is added."""
        parts, whole = self.image(images)
        slots = self.image_slots(parts)
        return elements(self.image_norm(whole), slots), slots

    def texts(self, texts: Items) -> tuple[Encoded, Tensor]:
        """Sets of N texts, and their slots (N, K, D) before the whole is added."""
        parts, whole = self.text(texts)
        slots = self.text_slots(parts)
        return elements(self.text_norm(whole), slots), slots

    def _costs(self, sets: Encoded, slots: Tensor) -> Encoded:
        """Two numbers of each item, as a vector: `crowding` and `correlation`."""
        spread = normalize(slots, dim=2) if self.diversity_of == "slots" else sets.tokens
        return single(torch.stack([crowding(spread), correlation(slots)], 1))


def elements(whole: Tensor, slots: Tensor) -> Encoded:
    """(N, D) wholes added to (N, K, D) slots, at length 1."""
    tokens = normalize(whole.unsqueeze(1) + slots, dim=2)
    return Encoded(tokens, every(tokens))


def _check(image: PartsTower, text: PartsTower, similarity: str, diversity_of: str) -> None:
    chosen("similarity", similarity, get_args(SetSimilarity))
    chosen("diversity_of", diversity_of, get_args(Diversity))
    if image.width != text.width:
        raise ValueError(
            f"the image tower gives {image.width} numbers for a whole and the text tower "
            f"{text.width}; give both the same width"
        )
