"""What differs between data sets: how long, how wide, how often the rate drops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from counterfoil.corpus.lens import LensPlan
from counterfoil.recipes.hosts import Sees

Dataset = Literal["scenes", "flickr8k", "flickr30k", "coco"]
LARGE: tuple[Dataset, ...] = ("flickr30k", "coco")  # those of the papers


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """How a data set is read.

    Attributes:
        data: what is opened when the user names nothing.
        lens: features or pixels, and the vocabulary's threshold.
        width: of the joint space.
        word_width: of a word embedding.
        dropout: share of a word embedding's entries dropped in training.
        protocol: how the test split is measured.
    """

    data: str
    lens: LensPlan
    width: int
    word_width: int = 300
    dropout: float = 0.0
    protocol: Literal["whole", "flickr-1k", "coco-1k", "coco-5k"]

    @property
    def sees(self) -> Sees:
        """Features or pixels."""
        return self.lens.images


_BUTD = LensPlan(images="features", min_count=4)

PROFILES: dict[Dataset, Profile] = {
    "scenes": Profile(
        data="scenes",
        lens=LensPlan(images="pixels", size=64),
        width=192,
        word_width=128,
        protocol="whole",
    ),
    "flickr8k": Profile(
        data="flickr8k",
        lens=LensPlan(images="features", standardise=True, min_count=4),
        width=128,
        word_width=128,
        dropout=0.2,
        protocol="flickr-1k",
    ),
    "flickr30k": Profile(data="f30k_precomp", lens=_BUTD, width=1024, protocol="flickr-1k"),
    "coco": Profile(data="coco_precomp", lens=_BUTD, width=1024, protocol="coco-1k"),
}
