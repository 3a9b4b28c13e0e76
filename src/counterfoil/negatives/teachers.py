"""Teachers as a guide: the mean score of K frozen models, for the pairs of a batch alone.

NDGL (Expanding the Scope of Negatives, AAAI 2025), Eq. 3, is written over all images times all
texts. A batch reads a block of that, so a block is what is computed: from stored vectors, from
stored bags, or from what the frozen models make of the batch. All three give the same.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, final, runtime_checkable

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs
from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.embedding_store import (
    BagPrecision,
    EmbeddingStore,
    EmbeddingWriter,
    Source,
)
from counterfoil.scoring.encode import (
    Look,
    encode_images,
    encode_texts,
    evaluation_mode,
    gather_parts,
    gather_shards,
    images_in_batches,
    shard_bounds,
    texts_in_batches,
)

# Where soft targets come from.


class TargetSource(Protocol):
    """Says how similar each anchor image and anchor text ought to be."""

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) targets on the scale of the inference grid, the same on every process."""
        ...


@runtime_checkable
class PairTargetSource(TargetSource, Protocol):
    """Knows single pairs too, such as those drawn from lists."""

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(B, N) targets of pairs of places in the pools, on the scale of the inference grid."""
        ...


# What teachers make of a data set, on disk, with the evidence of where it came from.


Form = Literal["stored", "models"]


@final
class TeacherTargets(BaseModel):
    """One teacher.

    Attributes:
        source: its model and weights.
        scale: units of its scores, see `RetrievalModel.score_scale`.
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
class TargetManifest(ArtifactManifest):
    """What encodings were made from, so that they are never read against anything else.

    Attributes:
        dataset: fingerprint of the images, texts and owners whose rows they are.
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
    teachers: tuple[TeacherTargets, ...] = Field(min_length=1)

    def same(self, other: TargetManifest) -> bool:
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
    manifest=TargetManifest,
    remedy="ask the teachers again",
    origin="was taught on",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TargetStore:
    """What `write` wrote, checked.

    Attributes:
        manifest: what it was made from.
        encodings: images and texts of each teacher; () where models encode every batch anew.
    """

    manifest: TargetManifest
    encodings: tuple[tuple[EmbeddingStore, EmbeddingStore], ...]

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Map a folder into memory.

        Args:
            folder: what `write` wrote.
            fingerprint: of the data set whose rows will be looked up.

        Raises:
            ValueError: nothing taught is there, it is damaged, or of another data set.
        """
        manifest = TAUGHT.read_manifest(folder, fingerprint=fingerprint)
        if manifest.form == "models":
            return cls(manifest, ())
        encodings = tuple(
            (
                EmbeddingStore(folder / f"{n}" / "images", manifest.image_count),
                EmbeddingStore(folder / f"{n}" / "texts", manifest.text_count),
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


def target_weighting(
    teachers: Sequence[TeacherTargets], scale: float, *, standardise: bool
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


# Asks teachers about a whole split and writes down what they say, straight to the disk.


SAMPLE = 256  # images, and as many texts, whose scores tell a teacher's mean and deviation
_SAME = 1e-5  # how far an inner product may be from a teacher's score


@final
@dataclass(frozen=True, slots=True, eq=False)
class TeacherModel:
    """A model that is to teach.

    Attributes:
        model: the model.
        processor: what it sees of the split that is taught.
        source: its model and weights, in words.
    """

    model: RetrievalModel
    processor: ProcessedDataset
    source: Source


def write_targets(
    folder: Path,
    trained: Sequence[TeacherModel],
    *,
    form: Form = "stored",
    precision: BagPrecision = "fp32",
    stop: Callable[[], bool] = lambda: False,
) -> TargetManifest:
    """Write down what a split looks like to its teachers, from where it was stopped on.

    Every process of a group calls this; the first one writes. Encodings go to the disk as they are
    made, into ``FOLDER.partial``, which takes the folder's name when all are there.

    Args:
        folder: where to.
        trained: the teachers.
        form: "stored", or "models" for the manifest alone.
        precision: of what is stored.
        stop: asked after every batch; when it answers True on any process, all of them stop.

    Raises:
        ValueError: what was begun there is of other teachers or data.
        WorkStopped: a process was asked to stop.
    """
    dataset = trained[0].processor.dataset
    manifest = TargetManifest(
        corpus=dataset.fingerprint,
        form=form,
        precision=precision,
        image_count=len(dataset),
        text_count=len(dataset.texts),
        teachers=tuple(_taught(one) for one in trained),
        version=__version__,
    )
    if TAUGHT.exists(folder) and (there := TAUGHT.read_manifest(folder)).same(manifest):
        return there
    partial = partial_folder(folder)
    manifest = _begin(partial, manifest)
    if form == "stored":
        for number, one in enumerate(trained):
            _store(one, partial / f"{number}", precision, stop)
    distributed.barrier()
    if distributed.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    distributed.barrier()
    return manifest


def partial_folder(folder: Path) -> Path:
    """Where `write` keeps how far it is."""
    return folder.with_name(f"{folder.name}.partial")


def _begin(partial: Path, manifest: TargetManifest) -> TargetManifest:
    """The manifest of what was begun, or now is."""
    distributed.barrier()  # nobody looks before everybody has what is in the manifest
    if TAUGHT.exists(partial):
        begun = TAUGHT.read_manifest(partial)
        if not begun.same(manifest):
            raise ValueError(f"{partial} is of other teachers or data; delete it")
        manifest = begun
    distributed.barrier()  # nobody writes before everybody has looked
    if distributed.rank() == 0 and not TAUGHT.exists(partial):
        TAUGHT.write_manifest(partial, manifest)
    distributed.barrier()
    return manifest


def _store(
    one: TeacherModel, folder: Path, precision: BagPrecision, stop: Callable[[], bool]
) -> None:
    """Encode all images and texts straight to the disk."""
    dataset = one.processor.dataset
    for name, encode, look, count in (
        ("images", images_in_batches, one.processor.images, len(dataset)),
        ("texts", texts_in_batches, one.processor.texts, len(dataset.texts)),
    ):
        writer = EmbeddingWriter(folder / name, precision) if distributed.rank() == 0 else None
        done = distributed.all_reduce_max(writer.written.batches if writer else 0)
        for rows, part in encode(one.model, look, count, done=done):
            if writer:
                writer.put(rows, part)
            if distributed.all_reduce_max(int(stop())):
                if writer:
                    writer.close()
                raise WorkStopped
        if writer:
            writer.close()


def _taught(one: TeacherModel) -> TeacherTargets:
    """A teacher, measured on a sample of pairs."""
    dataset = one.processor.dataset
    images, texts = _spread(len(dataset)), _spread(len(dataset.texts))
    seen = encode_images(one.model, lambda rows: one.processor.images(images[rows]), len(images))
    read = encode_texts(one.model, lambda rows: one.processor.texts(texts[rows]), len(texts))
    device = distributed.device()
    with evaluation_mode([one.model]):
        scores = one.model.score_matrix(seen.to(device), read.to(device)).cpu()
    wrong = scores[dataset.text_to_image[texts] != images.unsqueeze(1)].double()
    return TeacherTargets(
        source=one.source,
        scale=one.model.score_scale,
        mean=float(wrong.mean()) if len(wrong) else 0.0,
        deviation=float(wrong.std()) if len(wrong) > 1 else 0.0,
        plain=_plain(seen, read, scores),
    )


def _plain(images: Embeddings, texts: Embeddings, scores: Tensor) -> bool:
    if images.tokens.shape[1] > 1 or texts.tokens.shape[1] > 1:
        return False
    if images.tokens.shape[2] != texts.tokens.shape[2]:
        return False
    products = images.tokens[:, 0] @ texts.tokens[:, 0].T
    room = _SAME * max(1.0, float(scores.abs().max()))
    return float((products - scores).abs().max()) <= room


def _spread(count: int) -> Tensor:
    """Up to `SAMPLE` rows, evenly over `count`."""
    return torch.linspace(0, count - 1, min(count, SAMPLE), dtype=torch.float64).long()


Inputs = Literal["clean", "same"]
Weight = tuple[float, float]  # of a teacher's score: its factor, and what is added


class Teacher(ABC):
    """Scores pairs of places in a batch's pools; no part of the step that it teaches."""

    @abstractmethod
    def block(self, batch: Batch) -> Tensor:
        """(I, T) scores of the anchor block, the same on every process."""

    @abstractmethod
    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(P,) scores of P pairs of places in the pools."""


@final
class StoredVectors(Teacher):
    """Stored teachers with one vector an item and inner products: all of them are one product.

    Args:
        stores: images and texts of each.
        weights: of each; their sum is what this teacher says.
    """

    def __init__(
        self, *, stores: Sequence[tuple[EmbeddingStore, EmbeddingStore]], weights: Sequence[Weight]
    ) -> None:
        self.stores = tuple(stores)
        self.factors = torch.tensor([factor for factor, _ in weights])
        self.more = sum(more for _, more in weights)

    def block(self, batch: Batch) -> Tensor:
        device, (images, texts) = batch.positive.device, batch.block
        text = self._texts(batch.text_rows[:texts]).to(device).T

        def scores(rows: Tensor | slice) -> Tensor:
            at = rows if isinstance(rows, slice) else rows.cpu()
            return self._images(batch.image_rows[:images][at]).to(device) @ text

        return gather_shards(images, scores, device) + self.more

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        device = batch.positive.device
        image = self._images(batch.image_rows).to(device)[pairs.image]
        text = self._texts(batch.text_rows).to(device)[pairs.text]
        return (image * text).sum(1) + self.more

    def _images(self, rows: Tensor) -> Tensor:
        found = [images.vectors(rows) for images, _ in self.stores]
        return concatenate_teachers(found, self.factors)

    def _texts(self, rows: Tensor) -> Tensor:
        return concatenate_teachers([texts.vectors(rows) for _, texts in self.stores])


class _Seeing(Teacher):
    """A model and where its encodings come from.

    Args:
        model: the model; it is frozen and moves to where this process computes.
        weight: of its scores.
    """

    def __init__(self, model: RetrievalModel, weight: Weight) -> None:
        self.model = model.to(distributed.device()).eval().requires_grad_(requires_grad=False)
        self.weight = weight
        self._last: tuple[Batch, tuple[Embeddings, Embeddings]] | None = None

    @abstractmethod
    def look(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        """The pools on the device, the same on every process; the anchor block where not whole."""

    def block(self, batch: Batch) -> Tensor:
        images, texts = self._pools(batch, whole=False)
        images, texts = images.rows(slice(batch.block[0])), texts.rows(slice(batch.block[1]))
        scores = gather_shards(
            len(images),
            lambda rows: self.model.score_matrix(images.rows(rows), texts),
            batch.positive.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        images, texts = self._pools(batch, whole=True)
        scores = gather_shards(
            len(pairs.image),
            lambda rows: self.model.score_indices(
                images, texts, Pairs(pairs.image[rows], pairs.text[rows])
            ),
            batch.positive.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def _pools(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        if self._last and self._last[0] is batch:
            pools = self._last[1]
            missing = (len(batch.image_rows), len(batch.text_rows)) != tuple(map(len, pools))
            if not (whole and missing):
                return pools
        with evaluation_mode([self.model]):
            pools = self.look(batch, whole=whole)
        self._last = batch, pools
        return pools


@final
class StoredFragments(_Seeing):
    """A stored teacher with bags of vectors, scored by its own model.

    Args:
        model: the model.
        images: its encodings of all images.
        texts: its encodings of all texts.
        weight: of its scores.
    """

    def __init__(
        self,
        *,
        model: RetrievalModel,
        images: EmbeddingStore,
        texts: EmbeddingStore,
        weight: Weight,
    ) -> None:
        super().__init__(model, weight)
        self.images, self.texts = images, texts

    def look(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        device, (images, texts) = batch.positive.device, batch.block
        rows = slice(None if whole else images), slice(None if whole else texts)
        return (
            self.images.rows(batch.image_rows[rows[0]]).to(device),
            self.texts.rows(batch.text_rows[rows[1]]).to(device),
        )


@final
class FrozenTeacher(_Seeing):
    """A model that encodes every batch anew, each process a share of it.

    Args:
        model: the model.
        processor: what it sees of the data set that batches come from.
        inputs: "clean" items of its own, or the "same" ones as the student.
        weight: of its scores.
    """

    def __init__(
        self, *, model: RetrievalModel, processor: ProcessedDataset, inputs: Inputs, weight: Weight
    ) -> None:
        super().__init__(model, weight)
        self.processor, self.inputs = processor, inputs

    def look(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        if self.inputs == "same":
            images, texts = batch.images, batch.texts
            many = len(batch.image_rows), len(batch.text_rows)
        else:
            many = (len(batch.image_rows), len(batch.text_rows)) if whole else batch.block
            images = self._items(self.processor.images, batch.image_rows[: many[0]], batch)
            texts = self._items(self.processor.texts, batch.text_rows[: many[1]], batch)
        return (
            gather_parts(self.model.encode_images(images), many[0]),
            gather_parts(self.model.encode_texts(texts), many[1]),
        )

    def _items(self, look: Look, rows: Tensor, batch: Batch) -> ModalityBatch:
        return look(rows[shard_bounds(len(rows), rows.device)]).to(batch.positive.device)


@final
class TeacherEnsemble:
    """The sum of what teachers say of a batch: a `TargetSource` and a `PairTargetSource`.

    Args:
        teachers: each with its weight; weights are what makes the sum a mean on the student's
            scale, see `counterfoil.negatives.teachers.target_weighting`.
    """

    def __init__(self, *, teachers: Sequence[Teacher]) -> None:
        assert teachers
        self.teachers = tuple(teachers)

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) targets on the scale of the inference grid, the same on every process."""
        with torch.no_grad(), _exactly(batch):
            return torch.stack([teacher.block(batch) for teacher in self.teachers]).sum(0)

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(B, N) targets of pairs of places in the pools, on the scale of the inference grid."""
        flat = pairs.flatten()
        with torch.no_grad(), _exactly(batch):
            found = [teacher.pairs(batch, flat) for teacher in self.teachers]
        return torch.stack(found).sum(0).view(pairs.shape)


def concatenate_teachers(vectors: Sequence[Tensor], factors: Tensor | None = None) -> Tensor:
    """(N, K * D) of K times (N, D) vectors, each teacher's times its factor."""
    if factors is not None:
        vectors = [v * factor for v, factor in zip(vectors, factors, strict=True)]
    return torch.cat(list(vectors), 1)


def _exactly(batch: Batch) -> AbstractContextManager[object]:
    """Without the half precision that the student may be trained in."""
    return torch.autocast(batch.positive.device.type, enabled=False)
