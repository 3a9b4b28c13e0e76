"""Mined negatives on disk, with the evidence of where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.negatives.lists import Lists


@final
class Source(BaseModel):
    """One model whose scores made the lists.

    Attributes:
        matcher: the model in words, as its written call prints.
        spec: digest of its written call.
        checkpoint: digest of its weights.
        identity: digest of all that its scores depend on; "" where nobody noted it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    matcher: str
    spec: str = ""
    checkpoint: str = ""
    identity: str = ""

    def same(self, other: Source) -> bool:
        """Whether it is the same model, by its weights where nothing more was noted."""
        noted = self.identity and other.identity
        return self.checkpoint == other.checkpoint and (
            not noted or self.identity == other.identity
        )


@final
class NegativeStoreManifest(ArtifactManifest):
    """What the lists were mined from, so that they are never read against anything else.

    Attributes:
        corpus: fingerprint of the images, texts and owners whose rows the lists hold.
        split: what was mined, as in "train".
        sources: whose scores; several are an ensemble's mean, none is unknown.
        image_count: images, I.
        text_count: texts, T.
        texts_per_image: longest list of an image, h.
        images_per_text: longest list of a text, h'.
        scored: whether the scores are kept beside the rows.
        seed: of what was drawn on the way, if anything was.
        filters: what was taken out of the lists, in words, in order.
        proposing: whose scores chose the pairs that the sources looked at; none for all pairs.
        proposals: how many times as many as are listed were proposed; 0 for all pairs.
        precision: how the pairs were scored, and why that is exact; "" for float32.
    """

    corpus: str
    split: str
    sources: tuple[Source, ...]
    image_count: int = Field(ge=0)
    text_count: int = Field(ge=0)
    texts_per_image: int = Field(ge=1)
    images_per_text: int = Field(ge=1)
    scored: bool
    seed: int | None = None
    filters: tuple[str, ...] = ()
    proposing: tuple[Source, ...] = ()
    proposals: int = Field(default=0, ge=0)
    precision: str = ""


MINED = ArtifactFormat(
    name="mined negatives",
    manifest=NegativeStoreManifest,
    remedy="mine again with `counterfoil mine`",
    origin="was mined from",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class NegativeStore:
    """Ranked hard negatives of a corpus and their provenance.

    On disk a folder: ``manifest.json``, ``texts.npy`` (I, h) and ``images.npy`` (T, h') int32, and,
    where scores are kept, ``text_scores.npy`` and ``image_scores.npy`` float16.
    """

    manifest: NegativeStoreManifest
    lists: Lists

    @classmethod
    def of(
        cls,
        lists: Lists,
        *,
        corpus: str,
        split: str,
        sources: tuple[Source, ...],
        seed: int | None = None,
        filters: tuple[str, ...] = (),
        proposing: tuple[Source, ...] = (),
        proposals: int = 0,
        precision: str = "",
    ) -> Self:
        """A store of these lists; see `NegativeStoreManifest` for the rest."""
        manifest = NegativeStoreManifest(
            corpus=corpus,
            split=split,
            sources=sources,
            image_count=len(lists.texts),
            text_count=len(lists.images),
            texts_per_image=lists.texts.shape[1],
            images_per_text=lists.images.shape[1],
            scored=lists.text_scores is not None,
            seed=seed,
            filters=filters,
            proposing=proposing,
            proposals=proposals,
            precision=precision,
            version=__version__,
        )
        return cls(manifest, lists)

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all; an older store there is replaced.

        Raises:
            ValueError: something else is there.
        """
        arrays = {name: rows.numpy() for name, rows in _files(self.lists).items()}
        MINED.save(folder, self.manifest, arrays)

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Read a folder and check all of it.

        Args:
            folder: what `save` wrote.
            fingerprint: of the corpus that the rows will be looked up in.

        Raises:
            ValueError: no store, damaged, of another corpus or of a newer version.
        """
        manifest = MINED.read_manifest(folder, fingerprint=fingerprint)
        m = manifest
        texts = _rows(folder, "texts.npy", (m.image_count, m.texts_per_image), m.text_count)
        images = _rows(folder, "images.npy", (m.text_count, m.images_per_text), m.image_count)
        if not manifest.scored:
            return cls(manifest, Lists(texts, images))
        text_scores = _scores(folder, "text_scores.npy", texts)
        image_scores = _scores(folder, "image_scores.npy", images)
        return cls(manifest, Lists(texts, images, text_scores, image_scores))


def _files(lists: Lists) -> dict[str, Tensor]:
    files = {"texts.npy": lists.texts, "images.npy": lists.images}
    if lists.text_scores is not None and lists.image_scores is not None:
        files |= {"text_scores.npy": lists.text_scores, "image_scores.npy": lists.image_scores}
    return files


def _rows(folder: Path, name: str, shape: tuple[int, int], limit: int) -> Tensor:
    array = MINED.array(folder, name, shape=shape, dtype=np.int32, content="a list of mined rows")
    rows = torch.from_numpy(np.array(array))
    if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < limit:
        raise ValueError(
            f"{folder / name} holds rows {int(rows.min())} to {int(rows.max())}, but rows go from "
            f"0 to {limit - 1}, and -1 for none; {MINED.remedy}"
        )
    if bool(((rows[:, :-1] < 0) & (rows[:, 1:] >= 0)).any()):
        raise ValueError(f"{folder / name} has lists with a hole: a row after -1; {MINED.remedy}")
    return rows


def _scores(folder: Path, name: str, rows: Tensor) -> Tensor:
    array = MINED.array(
        folder,
        name,
        shape=tuple(rows.shape),
        dtype=np.float16,
        content="scores of mined rows",
    )
    scores = torch.from_numpy(np.array(array))
    if bool(scores.isnan().any()):
        raise ValueError(f"{folder / name} holds scores that are no numbers; {MINED.remedy}")
    return scores
