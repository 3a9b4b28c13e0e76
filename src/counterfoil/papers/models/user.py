"""USER's image tower: regions enhanced by the whole image (Zhang et al., TIP 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from counterfoil.core.config import lazy
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    BERT,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    given_options,
)
from counterfoil.models.layers.pooling import ImageTower, check_features, ensure_nonempty
from counterfoil.papers.models.gpo import NAMES as GPO_NAMES
from counterfoil.papers.models.gpo import gpo_from_checkpoint
from counterfoil.papers.models.sgraf import POOL_NAMES, GlobalPool


@final
class EnhancedRegions(ImageTower):
    """A tower over regions to each of which the pooled image is added.

    With g the pooled image of SGRAF and x_j the raw features, a = softmax_j(lambda x_j . g) at
    length 1 over the regions, and the tower reads x_j + a_j g. With
    `counterfoil.papers.models.gpo.GPO` on top it is the released USER.

    Departs from the authors' code in: images may have fewer regions.
    """

    def __init__(
        self,
        *,
        tower: ImageTower,
        features: int,
        regions: int = 36,
        sharpness: float = 1.0,
        dropout: float = 0.4,
    ) -> None:
        """Initialise the module.

        Args:
            tower: encoder of the enhanced features.
            features: width of the features as they are read.
            regions: the most regions an image has; their places are normalised one by one.
            sharpness: lambda, inverse temperature of the weights.
            dropout: share of entries dropped in the pooling in training.
        """
        super().__init__()
        self.tower, self.width, self.sharpness = tower, tower.width, sharpness
        self.pool = GlobalPool(width=features, regions=regions, dropout=dropout)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Enhance every region and encode it."""
        check_features(items, self.pool.local.in_features)
        values: Embeddings = self.tower(self.enhance(items))
        return values

    def enhance(self, items: ModalityBatch) -> ModalityBatch:
        """Return the items with the pooled image added to each region."""
        bag = ensure_nonempty(Embeddings(items.values.to(self.pool.local.weight.dtype), items.mask))
        pooled = self.pool(bag).tokens[:, :1]
        logits = self.sharpness * (bag.tokens * pooled).sum(2)
        weights = logits.masked_fill(~bag.mask, float("-inf")).softmax(1)
        weights = weights / (weights.norm(dim=1, keepdim=True) + 1e-8)
        return replace(items, values=bag.tokens + weights.unsqueeze(2) * pooled)


NAMES = TensorNames(
    system="a USER",
    prefixes={
        **{f"img_enc.v_sa.{a}": f"image.pool.{b}" for a, b in POOL_NAMES.items()},
        **{
            theirs: ours.replace("image.", "image.tower.", 1) if ours.startswith("image.") else ours
            for theirs, ours in GPO_NAMES.prefixes.items()
        },
    },
    unused=GPO_NAMES.unused,
    needed=("image.pool.common.weight", "image.tower.fc.weight"),
)


def user_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of USER: GPO behind `EnhancedRegions`."""
    state = NAMES.renamed(checkpoint.state)
    rest = {n: value for n, value in checkpoint.state.items() if ".v_sa." not in n}
    converted = gpo_from_checkpoint(Checkpoint(rest, checkpoint.options), bert=bert)
    image = lazy(
        EnhancedRegions,
        tower=converted.model.arguments["image"],
        features=state["image.pool.local.weight"].shape[1],
        regions=len(state["image.pool.local_norm.weight"]),
        **given_options(EnhancedRegions, checkpoint, {"attention_lamda": "sharpness"}),
    )
    return ConvertedModel(converted.model.replace(image=image), state)
