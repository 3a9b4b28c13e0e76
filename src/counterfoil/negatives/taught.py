"""What teachers make of a corpus, on disk, with the evidence of where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field

from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.engine.bags import BagPrecision, Bags
from counterfoil.negatives.store import Source

Form = Literal["stored", "models"]


@final
class Taught(BaseModel):
    """One teacher.

    Attributes:
        source: its model and weights.
        scale: units of its scores, see `Matcher.score_scale`.
        mean: of its scores of wrong pairs.
        deviation: of them.
        plain: whether an item is one vector and a score a plain inner product.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: Source
    scale: float = Field(gt=0)
    mean: float
    deviation: float = Field(ge=0)
    plain: bool


@final
class TaughtManifest(ArtifactManifest):
    """What encodings were made from, so that they are never read against anything else.

    Attributes:
        corpus: fingerprint of the images, texts and owners whose rows they are.
        form: "stored", or "models" where nothing but this manifest is kept.
        precision: of what is stored.
        image_count: images, I.
        text_count: texts, T.
        teachers: who they are.
    """

    corpus: str
    form: Form
    precision: BagPrecision
    image_count: int = Field(ge=1)
    text_count: int = Field(ge=1)
    teachers: tuple[Taught, ...] = Field(min_length=1)

    def same(self, other: TaughtManifest) -> bool:
        """Whether the same models are asked about the same data for the same files.

        What was measured of them may differ in the last digits between machines.
        """
        own, others = ([one.source for one in asked.teachers] for asked in (self, other))
        return (
            (self.corpus, self.form, self.precision) == (other.corpus, other.form, other.precision)
            and len(own) == len(others)
            and all(map(Source.same, own, others))
        )


TAUGHT = ArtifactFormat(
    name="stored teachers",
    manifest=TaughtManifest,
    remedy="ask the teachers again",
    origin="was taught on",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TaughtStore:
    """What `write` wrote, checked.

    Attributes:
        manifest: what it was made from.
        encodings: images and texts of each teacher; () where models encode every batch anew.
    """

    manifest: TaughtManifest
    encodings: tuple[tuple[Bags, Bags], ...]

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Map a folder into memory.

        Args:
            folder: what `write` wrote.
            fingerprint: of the corpus whose rows will be looked up.

        Raises:
            ValueError: nothing taught is there, it is damaged, or of another corpus.
        """
        manifest = TAUGHT.read_manifest(folder, fingerprint=fingerprint)
        if manifest.form == "models":
            return cls(manifest, ())
        encodings = tuple(
            (
                Bags(folder / f"{n}" / "images", manifest.image_count),
                Bags(folder / f"{n}" / "texts", manifest.text_count),
            )
            for n in range(len(manifest.teachers))
        )
        return cls(manifest, encodings)

    def check(self, teacher: int, source: Source, folder: Path) -> None:
        """Whether a model is the teacher that was asked.

        Raises:
            ValueError: it is another model.
        """
        there = self.manifest.teachers[teacher].source
        if there.same(source):
            return
        weights = f"had the weights {there.checkpoint}, but the model has {source.checkpoint}"
        if there.checkpoint == source.checkpoint:
            weights = "had the weights of the model, but read or used them in another way"
        raise ValueError(
            f"teacher {teacher} of {folder} {weights}; it was trained or saved again, so ask the "
            "teachers again"
        )


def weigher(
    teachers: Sequence[Taught], scale: float, *, standardise: bool
) -> list[tuple[float, float]]:
    """What each teacher's score is multiplied with, and what is added, before all are added up.

    Args:
        teachers: who they are.
        scale: units of the student's scores.
        standardise: whether to bring all to the mean of their means and of their deviations.
    """
    many = len(teachers)
    if not standardise:
        return [(scale / t.scale / many, 0.0) for t in teachers]
    mean = sum(t.mean / t.scale for t in teachers) / many
    deviation = sum(t.deviation / t.scale for t in teachers) / many
    found = []
    for t in teachers:
        factor = deviation / t.deviation if t.deviation else 1 / t.scale
        found.append((scale * factor / many, scale * (mean - t.mean * factor) / many))
    return found
