"""Mined negatives on disk, with the evidence of where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.files import read_array, replacing_folder, write_array, write_json
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.manifests import MANIFEST, read_as

FORMAT = 1


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
class Manifest(BaseModel):
    """What the lists were mined from, so that they are never read against anything else.

    Attributes:
        format: version of this layout.
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
        version: the counterfoil that wrote it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = Field(default=FORMAT, ge=1)
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
    version: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class NegativeStore:
    """Ranked hard negatives of a corpus and their provenance.

    On disk a folder: ``manifest.json``, ``texts.npy`` (I, h) and ``images.npy`` (T, h') int32, and,
    where scores are kept, ``text_scores.npy`` and ``image_scores.npy`` float16.
    """

    manifest: Manifest
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
        """A store of these lists; see `Manifest` for the rest."""
        manifest = Manifest(
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
        if folder.is_file() or (
            folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file()
        ):
            raise ValueError(
                f"{folder} exists and holds no mined negatives; it is left alone, name another"
            )
        with replacing_folder(folder) as temporary:
            for name, rows in _files(self.lists).items():
                write_array(temporary / name, rows.numpy())
            write_json(temporary / MANIFEST, self.manifest.model_dump(mode="json"))

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Read a folder and check all of it.

        Args:
            folder: what `save` wrote.
            fingerprint: of the corpus that the rows will be looked up in.

        Raises:
            ValueError: no store, damaged, of another corpus or of a newer version.
        """
        manifest = read_manifest(folder)
        if manifest.corpus != fingerprint:
            raise ValueError(
                f"{folder} was mined from corpus {manifest.corpus} (split {manifest.split!r}), but "
                f"this one is {fingerprint}; name the data it was mined from, decided as they "
                "were, or mine again with `counterfoil mine`"
            )
        m = manifest
        texts = _rows(folder / "texts.npy", (m.image_count, m.texts_per_image), m.text_count)
        images = _rows(folder / "images.npy", (m.text_count, m.images_per_text), m.image_count)
        if not manifest.scored:
            return cls(manifest, Lists(texts, images))
        text_scores = _scores(folder / "text_scores.npy", texts)
        image_scores = _scores(folder / "image_scores.npy", images)
        return cls(manifest, Lists(texts, images, text_scores, image_scores))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store.

    Raises:
        ValueError: there is none, it is damaged, or a newer counterfoil wrote it.
    """
    return read_as(
        Manifest, folder, latest=FORMAT, what="the manifest of mined negatives", again="mine again"
    )


def _files(lists: Lists) -> dict[str, Tensor]:
    files = {"texts.npy": lists.texts, "images.npy": lists.images}
    if lists.text_scores is not None and lists.image_scores is not None:
        files |= {"text_scores.npy": lists.text_scores, "image_scores.npy": lists.image_scores}
    return files


def _array(
    path: Path, shape: tuple[int, ...], dtype: type[np.generic], what: str
) -> npt.NDArray[Any]:
    array = read_array(path, what)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}, but its manifest promises "
            f"{np.dtype(dtype)} of shape {shape}; mine again"
        )
    return np.array(array)


def _rows(path: Path, shape: tuple[int, int], limit: int) -> Tensor:
    rows = torch.from_numpy(_array(path, shape, np.int32, "a list of mined rows"))
    if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < limit:
        raise ValueError(
            f"{path} holds rows {int(rows.min())} to {int(rows.max())}, but rows go from 0 to "
            f"{limit - 1}, and -1 for none; mine again"
        )
    if bool(((rows[:, :-1] < 0) & (rows[:, 1:] >= 0)).any()):
        raise ValueError(f"{path} has lists with a hole: a row after -1; mine again")
    return rows


def _scores(path: Path, rows: Tensor) -> Tensor:
    found = _array(path, tuple(rows.shape), np.float16, "scores of mined rows")
    scores = torch.from_numpy(found)
    if bool(scores.isnan().any()):
        raise ValueError(f"{path} holds scores that are no numbers; mine again")
    return scores
