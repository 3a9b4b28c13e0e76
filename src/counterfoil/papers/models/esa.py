"""ESA: external space attention, and copies of every item in training (Zhu et al., TCSVT 2023)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
)
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.checkpoints import (
    BERT,
    REGIONS,
    TEXTS,
    UNUSED,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_positive,
    projection,
    single_vector,
    zero_padded,
)
from counterfoil.models.layers.towers import TwoTowerModel, check_share

# The pooling.


@final
class ExternalAttention(nn.Module):
    """External space attention: a weighted sum of vectors with separate weights per dimension.

    Dimension d of the result is sum_n softmax_n(a_nd) f_nd, where a = W f + b: L vectors have
    L * D weights, not L (ESA, Zhu et al., IEEE TCSVT 2023).

    Departs from the authors' code in: elements left out have a logit of -inf, theirs -1e4; an item
    of which nothing would be left keeps all; and W begins alike for images, BERT and GRU, uniform
    within sqrt(6 / (in + out)), where theirs for the GRU begins as PyTorch's layers do.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        check_positive(width=width)
        self.fc = projection(width, width)

    def forward(self, bag: Embeddings, keep: Tensor | None = None) -> Tensor:
        """Pool (N, L, D) to (N, C, D), one vector for each copy in `keep` (N, C, L); 0 if empty."""
        tokens = zero_padded(bag.tokens, bag.mask)
        logits = self.fc(tokens)
        masks = bag.mask.unsqueeze(1)
        if keep is not None:
            copies = keep & masks
            masks = torch.where(copies.any(2, keepdim=True), copies, masks)
        return torch.stack([_weighted_sum(tokens, logits, mask) for mask in masks.unbind(1)], 1)


def _weighted_sum(tokens: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """Return (N, D) weighted sums of (N, L, D) tokens where a mask (N, L) is True."""
    # nothing is masked in an empty item: its tokens are zero, and -inf everywhere would give NaN
    hidden = (~mask & mask.any(1, keepdim=True)).unsqueeze(-1)
    weights = logits.masked_fill(hidden, -torch.inf).softmax(1)
    return (weights * tokens).sum(1)


EXPANDED = "expanded"


@final
class ESA(TwoTowerModel, SingleVectorModel):
    """Two towers with external space attention behind each, compared by cosine.

    Detected regions are read by `MLPRegions`, grid cells by one linear layer, words by a `GRU` in
    both directions or by `BertTextTower`, each with a dropout of 0.1.

    In training every item of the batch occurs `copies` times in the view "expanded". Copies of an
    image differ in the regions that are pooled; its tower reads all of them, once. Copies of a text
    are read one by one, so they differ in what the tower drops, see `word_drop` and `dropout`
    there: without either they are equal, and one copy does. The view for inference is the first
    copy of each, augmented like the others, so that it costs nothing beside them; there a guide may
    score as well. In evaluation both views are the same, of one copy, with nothing dropped.

    Departs from the authors' code in: images may have any number of copies, theirs two; zero
    vectors give no NaN; padding takes no part in the batch statistics of `MLPRegions`; and see
    `ExternalAttention`.
    """

    score_names = frozenset({INFERENCE, EXPANDED})

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        copies: int = 2,
        region_drop: float = 0.2,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            copies: of each item in training; 1 for losses that judge the view for inference alone.
            region_drop: share of regions that a copy of an image is pooled without.
            normalise_images: scale image vectors to length 1.
            normalise_texts: scale text vectors to length 1.

        Raises:
            ValueError: no copy, no share, or towers that end in spaces of different widths.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_positive(copies=copies)
        self.image_pool, self.text_pool = (
            ExternalAttention(width=image.width),
            ExternalAttention(width=text.width),
        )
        self.copies, self.region_drop = copies, check_share(region_drop, "region_drop")

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each, of all their regions."""
        return self.pooled(self.image(images))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return self.scale_texts(single_vector(self.text_pool(self.text(texts))[:, 0]))

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode copies of all items side by side, and return the first of each for inference."""
        copies, bag = (self.copies if self.training else 1), self.image(batch.images)
        images = self.pooled(bag, self._draw_regions(bag.mask, copies) if self.training else None)
        rows = torch.arange(len(batch.texts), device=batch.texts.mask.device)
        repeated = batch.texts if copies == 1 else batch.texts.rows(rows.repeat_interleave(copies))
        texts = self.encode_texts(repeated)
        first = slice(None, None, copies)
        return EncodedViews(
            {
                INFERENCE: EncodedBatch(images.rows(first), texts.rows(first)),
                EXPANDED: EncodedBatch(images, texts, copies),
            }
        )

    def pooled(self, bag: Embeddings, keep: Tensor | None = None) -> Embeddings:
        """Pool images to one vector for each copy in `keep` (N, C, R), copies side by side."""
        return self.scale_images(single_vector(self.image_pool(bag, keep).flatten(0, 1)))

    def _draw_regions(self, mask: Tensor, copies: int) -> Tensor:
        shape = (len(mask), copies, mask.shape[1])
        return torch.rand(shape, device=mask.device) >= self.region_drop


# The authors' checkpoints: their tensor names and ours.


NAMES = TensorNames(
    system="an ESA",
    prefixes={
        **REGIONS,
        "img_enc.linear1.": "image_pool.fc.",
        **TEXTS,
        "txt_enc.linear1.": "text_pool.fc.",
    },
    unused=UNUSED,
    needed=("image.fc.weight", "image_pool.fc.weight", "text_pool.fc.weight"),
    either=("text.fc.weight", "text.embed.weight"),
)


def esa_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of ESA on regions or grid cells, with BiGRU or BERT."""
    state = NAMES.renamed(checkpoint.state)
    return convert_towers(ESA, checkpoint, state, options={"hardnum": "copies"}, bert=bert)
