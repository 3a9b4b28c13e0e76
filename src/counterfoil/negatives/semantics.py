"""How near captions are in meaning, kept on disk, and a guide that says it of a batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.corpus.corpus import Corpus
from counterfoil.negatives.latent import SpacePlan, latent, nearness
from counterfoil.records import Batch
from counterfoil.spec import unknown

POINTS = "points.npy"

Measure = Literal["inner", "cosine"]


@final
class CaptionSpaceManifest(ArtifactManifest):
    """What the points were made from, so that they are never read against anything else.

    Attributes:
        corpus: fingerprint of the corpus whose text rows the points stand for.
        split: what it was cut to, as in "train".
        text_count: texts, T.
        width: dimensions of a point, K.
        components: asked for, see `SpacePlan`.
        passes: see `SpacePlan`.
        seed: see `SpacePlan`.
        stem: see `SpacePlan`.
    """

    corpus: str
    split: str
    text_count: int = Field(ge=1)
    width: int = Field(ge=1)
    components: int = Field(ge=1)
    passes: int = Field(ge=1)
    seed: int
    stem: bool


SPACE = ArtifactFormat(
    name="points of captions",
    manifest=CaptionSpaceManifest,
    remedy="make them again",
    origin="was made from the captions of",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionSpace:
    """Points of all captions of a corpus, by text row.

    On disk a folder: ``manifest.json`` and ``points.npy`` (T, K) float32, which stays mapped.
    """

    manifest: CaptionSpaceManifest
    points: npt.NDArray[np.float32]

    @classmethod
    def of(cls, corpus: Corpus, plan: SpacePlan) -> Self:
        """The points of a corpus.

        Raises:
            ValueError: it has no captions, or the stemmer is not installed.
        """
        points = latent(corpus.texts, plan).numpy()
        manifest = CaptionSpaceManifest(
            corpus=corpus.fingerprint,
            split=corpus.part,
            text_count=points.shape[0],
            width=points.shape[1],
            version=__version__,
            **asdict(plan),
        )
        return cls(manifest, points)

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all; older ones there are replaced.

        Raises:
            ValueError: something else is there.
        """
        SPACE.save(folder, self.manifest, {POINTS: self.points})

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Read a folder and check all of it.

        Args:
            folder: what `save` wrote.
            fingerprint: of the corpus that the text rows belong to.

        Raises:
            ValueError: no semantics, damaged, of another corpus or of a newer version.
        """
        manifest = SPACE.read_manifest(folder, fingerprint=fingerprint)
        shape = (manifest.text_count, manifest.width)
        points = SPACE.array(
            folder, POINTS, shape=shape, dtype=np.float32, content=SPACE.name, finite=True
        )
        return cls(manifest, points)

    def take(self, rows: Tensor) -> Tensor:
        """(N, K) points of these text rows."""
        return torch.from_numpy(np.array(self.points[rows.cpu().numpy()]))


@final
class CaptionSemantics:
    """Guides by how near captions are: an image stands for its anchor captions.

    LSEH (Gong and Cosma, Pattern Recognition 2023): row i says how near each caption of the batch
    is to the caption of image i, divided by the largest of the row; both directions of a loss read
    the same matrix. An image with several anchor captions has the mean of their rows, which is what
    one of them gives on average. These are shares of a margin, in no unit of a score; see
    `counterfoil.objectives.semantic`.

    A pair that is true by id but counts as wrong, as with "diagonal" positives, is at -inf.

    Args:
        space: points of the captions.
        measure: "inner", or "cosine": points at length 1, so that long captions count no more.

    Raises:
        ValueError: another measure.
    """

    def __init__(self, *, space: CaptionSpace, measure: Measure = "inner") -> None:
        if measure not in ("inner", "cosine"):
            raise ValueError(unknown(measure, ["inner", "cosine"], "a measure of nearness"))
        self.space, self.measure = space, measure

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) nearness of each anchor text to the captions of each anchor image."""
        device = batch.positive.device
        images, texts = batch.block
        image, text = batch.anchors.image.cpu(), batch.anchors.text.cpu()
        near = nearness(
            self.space.take(batch.text_rows[:texts]).to(device),
            cosine=self.measure == "cosine",
        )
        told = torch.zeros(images, texts).index_put_((image, text), torch.tensor(1.0))
        guide = (told / told.sum(1, keepdim=True)).to(device) @ near
        owner = torch.full((texts,), -1).index_put_((text,), batch.image_rows[image])
        same = (batch.image_rows[:images].unsqueeze(1) == owner).to(device)
        return guide.masked_fill(same & ~batch.positive, -torch.inf)
