"""VSRN: regions that reason about each other, read into one vector (Li et al., ICCV 2019)."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.captioner import Captioner
from counterfoil.models.blocks.gru import recurrent
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.norm import normed
from counterfoil.models.blocks.pool import chosen, pool, single, unit
from counterfoil.models.blocks.relation import RegionNorm, Relation, level
from counterfoil.models.blocks.tower import ImageTower, TextTower, hidden
from counterfoil.models.vse import same_width
from counterfoil.records import INFERENCE, Batch, Encoded, Items, View, Views

Passes = Literal["together", "separate"]


@final
class VSRN(Matcher):
    """Relation layers, then a recurrent network over the regions; its last state is the image.

    In training the regions are also asked to tell their captions, see `Captioner`: the loss
    "caption" is the mean over the anchors; negatives drawn behind them are never described. The
    branch is saved with the model, and nothing asks it at test time.

    Several processes give the loss of one, but batch normalisation sees each process's own images.

    Departs from the authors' code in: zero vectors give no NaN; regions may be padded; captioner
    parameters are updated and clipped once (V2); anchors and offline negatives may be encoded
    together; and `region_norm="vector"` is what the paper says, "channel" what they trained (V1).
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        captioner: Captioner | None = None,
        caption_weight: float = 1.0,
        layers: int = 4,
        region_norm: RegionNorm = "vector",
        normalise_regions: bool = True,
        batch_norm: bool = False,
        bn_passes: Passes = "together",
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts; its last state is the text.
            captioner: writes captions in training; None for no such loss.
            caption_weight: of its loss; at 0 there is no captioner.
            layers: how many relation layers.
            region_norm: what is brought to length 1, see `level`.
            normalise_regions: do that before the relation layers too; the authors do on COCO.
            batch_norm: normalise image vectors over the batch; the authors do on Flickr30K.
            bn_passes: "together", or "separate": anchors and offline negatives have batch
                statistics of their own. The authors' form has three passes, with the negatives of
                images and those of texts apart.

        Raises:
            ValueError: a word that is not known, or parts of different widths.
        """
        super().__init__()
        chosen("region_norm", region_norm, get_args(RegionNorm))
        chosen("bn_passes", bn_passes, get_args(Passes))
        same_width(image, text)
        if captioner is not None and captioner.width != image.width:
            raise ValueError(
                f"the captioner reads {captioner.width} numbers per region and the image tower "
                f"gives {image.width}; give both the same width"
            )
        self.image, self.text = image, text
        self.relations = nn.ModuleList(Relation(width=image.width) for _ in range(layers))
        self.reader = nn.GRU(image.width, image.width, batch_first=True)
        self.norm = nn.BatchNorm1d(image.width) if batch_norm else None
        self.captioner = captioner if caption_weight else None
        self.caption_weight = caption_weight
        self.region_norm: RegionNorm = region_norm
        self.normalise_regions = normalise_regions
        self.bn_passes = bn_passes

    def encode_images(self, images: Items) -> Encoded:
        """N images as one vector each."""
        return self.read(self.regions(images))

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as one vector each."""
        return unit(single(pool("last", self.text(texts))))

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Images and texts as they are used, and the loss of telling the anchors' captions."""
        images, regions = self._encoded(batch)
        views = {INFERENCE: View(images, self.encode_texts(batch.texts))}
        targets = batch.images.targets
        if self.captioner is None or targets is None:
            return Views(views)
        place, number = (targets[:, :, 0] >= 0).nonzero(as_tuple=True)
        told = self.captioner(regions.rows(place), targets[place, number])
        return Views(views, {"caption": self.caption_weight * told / len(batch.anchors.text)})

    def regions(self, images: Items) -> Encoded:
        """N images as region vectors that have been told about each other."""
        bag = self.image(images)
        tokens = hidden(bag.tokens, bag.mask)
        mask = None if bool(bag.mask.all()) else bag.mask
        if self.normalise_regions:
            tokens = level(self.region_norm, tokens)
        for layer in self.relations:
            tokens = layer(tokens, mask)
        return Encoded(level(self.region_norm, tokens), bag.mask)

    def read(self, regions: Encoded) -> Encoded:
        """Regions, in the order they are stored, as one vector."""
        whole = bool(regions.mask.all())
        states = (
            self.reader(regions.tokens)[0]
            if whole
            else recurrent(self.reader, regions.tokens, regions.mask)
        )
        vector = pool("last", Encoded(states, regions.mask))
        return unit(single(normed(self.norm, vector) if self.norm else vector))

    def _encoded(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """Vectors and regions of the batch's images, in as many passes as asked for."""
        if self.bn_passes == "together":
            regions = self.regions(batch.images)
            return self.read(regions), regions
        anchors = batch.image_rows[: batch.block[0]].to(batch.images.ids.device)
        anchor = torch.isin(batch.images.ids, anchors)
        places = [places for some in (anchor, ~anchor) if len(places := some.nonzero()[:, 0])]
        parts = [self.regions(batch.images.rows(some)) for some in places]
        back = torch.cat(places).argsort()
        images = Encoded.cat([self.read(part) for part in parts])
        return images.rows(back), Encoded.cat(parts).rows(back)
