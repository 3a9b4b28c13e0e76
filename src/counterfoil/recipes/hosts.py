"""The hosts of the papers, written down for features or for pixels."""

from __future__ import annotations

from typing import Literal

from counterfoil.matcher import Matcher
from counterfoil.models.bfan import BFAN
from counterfoil.models.blocks.attention import Direction
from counterfoil.models.blocks.focal import Rule
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.patches import Patches
from counterfoil.models.blocks.pool import Pool
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.blocks.tower import ImageTower
from counterfoil.models.scan import SCAN
from counterfoil.models.vse import VSE
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


def _image(sees: Sees, width: int) -> ImageTower:
    if sees == "pixels":
        return part(Patches, size=late("size"), width=width)
    return part(Regions, features=late("features"), width=width)
