"""The hosts of the papers, written down for features or for pixels."""

from __future__ import annotations

from typing import Literal

from counterfoil.matcher import Matcher
from counterfoil.models.bfan import BFAN
from counterfoil.models.blocks.captioner import Captioner
from counterfoil.models.blocks.focal import Rule
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.head import Direction
from counterfoil.models.blocks.patches import Patches
from counterfoil.models.blocks.pool import Pool
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.blocks.relation import RegionNorm
from counterfoil.models.blocks.tower import ImageTower
from counterfoil.models.scan import SCAN
from counterfoil.models.vse import VSE
from counterfoil.models.vsrn import VSRN
from counterfoil.spec import Spec, late, of, part

Sees = Literal["features", "pixels"]


def vsepp(
    *,
    width: int = 1024,
    word_width: int = 300,
    sees: Sees = "features",
    image_pool: Pool = "mean",
    two_way: bool = False,
) -> Spec[Matcher]:
    """VSE++: pooled image vector, last state of a unidirectional GRU (both ways, mean pooled)."""
    return of(
        VSE,
        image=_image(sees, width),
        text=part(
            GRU, words=late("words"), word_width=word_width, width=width, bidirectional=two_way
        ),
        image_pool=image_pool,
        text_pool="mean+max" if two_way else "last",
    )


def scan(
    *,
    direction: Direction = "t2i",
    aggregate: Literal["LogSumExp", "Mean"] = "LogSumExp",
    lambda_lse: float = 6.0,
    width: int = 1024,
    sees: Sees = "features",
) -> Spec[Matcher]:
    """SCAN: the temperatures are the paper's, 9 where words attend and 4 where regions do."""
    return of(
        SCAN,
        image=_image(sees, width),
        text=part(GRU, words=late("words"), width=width),
        direction=direction,
        aggregate=aggregate,
        lambda_softmax=9.0 if direction == "t2i" else 4.0,
        lambda_lse=lambda_lse,
    )


def bfan(*, focus: Rule = "equal", width: int = 1024, sees: Sees = "features") -> Spec[Matcher]:
    """BFAN: one focal rule; the published results average an "equal" and a "prob" model."""
    return of(
        BFAN,
        image=_image(sees, width),
        text=part(GRU, words=late("words"), width=width),
        focus=focus,
    )


def vsrn(
    *,
    width: int = 2048,
    word_width: int = 300,
    sees: Sees = "features",
    variant: Literal["f30k", "coco"] = "f30k",
    region_norm: RegionNorm = "channel",
    captions: bool = True,
    hidden: int | None = None,
) -> Spec[Matcher]:
    """VSRN as the authors train it on Flickr30K or MS-COCO.

    Args:
        width: of the joint space.
        word_width: of a word embedding.
        sees: what it looks at.
        variant: "f30k" normalises image vectors over the batch; "coco" regions before reasoning.
        region_norm: "channel" is what the published numbers come from, "vector" what the paper
            says.
        captions: also learn to write the anchors' captions.
        hidden: width of the networks that write; by default a quarter of `width`, as published.
    """
    told = part(
        Captioner,
        words=late("words"),
        width=width,
        hidden=hidden or max(1, width // 4),
        word_width=word_width,
    )
    return of(
        VSRN,
        image=_image(sees, width),
        text=part(
            GRU, words=late("words"), word_width=word_width, width=width, bidirectional=False
        ),
        captioner=told if captions else None,
        region_norm=region_norm,
        normalise_regions=variant == "coco",
        batch_norm=variant == "f30k",
    )


def _image(sees: Sees, width: int) -> ImageTower:
    if sees == "pixels":
        return part(Patches, size=late("size"), width=width)
    return part(Regions, features=late("features"), width=width)
