"""Soft targets from teachers: the mean score of K frozen models, for the pairs of a batch.

NDGL (Expanding the Scope of Negatives, AAAI 2025), Eq. 3, is written over all images times all
texts. A batch needs one block of that matrix, so only the block is computed: from stored vectors,
from stored bags of vectors, or by encoding the batch with the frozen models. All three agree.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, final

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.config import parse_literal
from counterfoil.core.console import warn
from counterfoil.core.io import write_lock
from counterfoil.core.resumable import partial_folder
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Needs, Pairs, Role
from counterfoil.data.contents import ContentDigests
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.model import Model
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sources import NegativeSource
from counterfoil.scoring.embedding_store import (
    EmbeddingStore,
    ModelSource,
    StoredPrecision,
    encode_into,
)
from counterfoil.scoring.encode import (
    LoadRows,
    encode_images,
    encode_texts,
    evaluation_mode,
    gather_parts,
    gather_shards,
    images_in_batches,
    shard_index,
    texts_in_batches,
)

# Likely false negatives of a batch.


MarginKind = Literal["absolute", "relative"]


@final
@dataclass(frozen=True, kw_only=True)
class GuideMask:
    """Which negatives of a batch to leave out because a guide takes them for true pairs.

    GISTEmbed (https://arxiv.org/abs/2402.16829): a wrong pair that a frozen guide scores above the
    true pair of its anchor, less a margin, is no negative. Departs from the authors' code in: a
    pair of the batch has to be above the true pairs of its image and of its text, since that is
    more precise, and is left out for both directions; images or texts are not compared among
    themselves. A mined pair has to be above the true pair of the anchor that it was drawn for.

    Attributes:
        margin: how far below the true pair a negative has to be: in units of the student's scores,
            or as a share of the true pair's absolute score; None leaves nothing out.
        kind: "absolute" or "relative".

    Raises:
        ValueError: a margin that is not finite, or an unknown kind.
    """

    margin: float | None = None
    kind: MarginKind = "absolute"

    def __post_init__(self) -> None:
        if self.margin is not None and not math.isfinite(self.margin):
            raise ValueError(f"margin={self.margin}: a finite number is needed, as in 0.0")
        parse_literal(MarginKind, self.kind, "a kind of margin")

    def limits(self, true: Tensor) -> Tensor:
        """Return the guide's score above which a pair is left out, for true pairs (B,)."""
        assert self.margin is not None
        return true - self.margin * (true.abs() if self.kind == "relative" else 1)

    def block(self, guide: Tensor, positive: Tensor, anchors: Pairs) -> Tensor:
        """Return (I, T) bool, wrong pairs to leave out, given the guide's (I, T) scores.

        A pair is left out if the guide scores it above the limits of its image and of its text. Of
        an image with several captions in the batch the lowest limit counts.
        """
        limit = self.limits(guide[anchors.image, anchors.text])
        rows, columns = (guide.new_full((size,), torch.inf) for size in guide.shape)
        rows.scatter_reduce_(0, anchors.image, limit, "amin")
        columns.scatter_reduce_(0, anchors.text, limit, "amin")
        return (guide > torch.maximum(rows[:, None], columns)) & ~positive


@final
class Mask(NegativeSource):
    """Leaves out what a guide takes for true pairs: among the negatives of the batch and the drawn.

    Not those that other sources propose. It works with any loss.

    Args:
        guide: a source of targets, such as `Teachers`, whose scores are asked.
        margin: see `GuideMask`.
        kind: see `GuideMask`.

    Raises:
        ValueError: see `GuideMask`, or the guide gives no targets.
    """

    takes: ClassVar[Mapping[str, str]] = {"guide": "guide"}

    def __init__(
        self, guide: NegativeSource, *, margin: float = 0.0, kind: MarginKind = "absolute"
    ) -> None:
        if not (isinstance(guide, NegativeSource) and guide.gives.targets):
            raise ValueError(
                f"a mask asks a guide that gives target scores, such as Teachers(model); given was "
                f"{type(guide).__name__}"
            )
        self.guide, self.rule = guide, GuideMask(margin=margin, kind=kind)
        self.asks = (guide,)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "guide": self.guide.describe(), **asdict(self.rule)}


# Teachers' encodings of a data set on disk.


TeacherForm = Literal["stored", "models"]


@final
class TeacherTargets(BaseModel):
    """One teacher and the statistics of its scores.

    Attributes:
        source: its model and weights.
        scale: units of its scores, see `RetrievalModel.score_scale`.
        mean: mean score of wrong pairs.
        deviation: standard deviation of these.
        plain: whether an item is one vector and a score a plain inner product.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: ModelSource
    scale: float = Field(gt=0)
    mean: float
    deviation: float = Field(ge=0)
    plain: bool


@final
class TargetManifest(ArtifactManifest):
    """Provenance of stored teachers, so that they are never read for other data.

    Attributes:
        corpus: fingerprint of the data set whose rows are stored.
        form: "stored", or "models" for a folder with this manifest only.
        precision: of the encodings.
        image_count: images, I.
        text_count: texts, T.
        teachers: the teachers, in order.
        contents: what tells that pictures or features were exchanged.
    """

    corpus: str
    form: TeacherForm
    precision: StoredPrecision
    image_count: int = Field(ge=1)
    text_count: int = Field(ge=1)
    teachers: tuple[TeacherTargets, ...] = Field(min_length=1)
    contents: ContentDigests = ContentDigests()

    def same(self, other: TargetManifest) -> bool:
        """Return whether both describe the same files of the same models and data.

        Means and deviations are not compared: they may differ in the last digits between machines.
        """
        own, others = ([teacher.source for teacher in m.teachers] for m in (self, other))
        return (
            (self.corpus, self.form, self.precision) == (other.corpus, other.form, other.precision)
            and len(own) == len(others)
            and all(map(ModelSource.same, own, others))
        )


TARGETS = ArtifactFormat(
    name="stored teachers",
    manifest=TargetManifest,
    remedy="ask the teachers again",
    origin="was taught on",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TargetStore:
    """A folder of `write_targets`, opened and checked: images and texts of each teacher.

    There are no encodings if models encode every batch anew.
    """

    manifest: TargetManifest
    encodings: tuple[tuple[EmbeddingStore, EmbeddingStore], ...]

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Map a folder that `write_targets` wrote for a data set into memory.

        Raises:
            ValueError: no such folder, or it is damaged or of another data set.
        """
        manifest = TARGETS.read_manifest(folder, fingerprint=fingerprint)
        if manifest.form == "models":
            return cls(manifest, ())
        images, texts = (
            [EmbeddingStore(folder / f"{n}" / name, count) for n in range(len(manifest.teachers))]
            for name, count in (("images", manifest.image_count), ("texts", manifest.text_count))
        )
        return cls(manifest, tuple(zip(images, texts, strict=True)))

    def check(self, teacher: int, source: ModelSource, folder: Path) -> None:
        """Check that a model is the one that the encodings come from.

        Raises:
            ValueError: it is another model.
        """
        stored = self.manifest.teachers[teacher].source
        if stored.same(source):
            return
        weights = f"had the weights {stored.checkpoint}, but the model has {source.checkpoint}"
        if stored.checkpoint == source.checkpoint:
            weights = "had the weights of the model, but read or used them in another way"
        raise ValueError(
            f"teacher {teacher + 1} of {folder} {weights}; it was trained or saved again, or is "
            "another one, so name another folder as store"
        )


def target_weighting(
    teachers: Sequence[TeacherTargets], scale: float, *, standardise: bool
) -> list[tuple[float, float]]:
    """Return the factor and the offset of each teacher's scores; their sum is the target.

    With `standardise` all teachers get the mean of their means and of their deviations; `scale` is
    the unit of the student's scores.
    """
    count = len(teachers)
    if not standardise:
        return [(scale / t.scale / count, 0.0) for t in teachers]
    mean = sum(t.mean / t.scale for t in teachers) / count
    deviation = sum(t.deviation / t.scale for t in teachers) / count
    weights = []
    for t in teachers:
        factor = deviation / t.deviation if t.deviation else 1 / t.scale
        weights.append((scale * factor / count, scale * (mean - t.mean * factor) / count))
    return weights


SAMPLE = 256  # images, and as many texts, from whose scores mean and deviation are estimated
_SAME = 1e-5  # largest relative difference of an inner product and a teacher's score


@final
@dataclass(frozen=True, slots=True, eq=False)
class TeacherModel:
    """A model that encodes a split as a teacher, with its inputs from the split."""

    model: RetrievalModel
    processor: ProcessedDataset
    source: ModelSource


def write_targets(
    folder: Path,
    teachers: Sequence[TeacherModel],
    *,
    form: TeacherForm = "stored",
    precision: StoredPrecision = "fp32",
    stop: Callable[[], bool] = lambda: False,
) -> TargetManifest:
    """Encode a split with its teachers and store the result; a stopped run is resumed.

    Collective: every process calls this, the first process writes. Encodings are appended batch by
    batch to ``FOLDER.partial``, which is renamed when all are there.

    Args:
        folder: the folder to write.
        teachers: the teachers.
        form: "stored", or "models" for the manifest alone.
        precision: of the encodings.
        stop: polled after every batch; once it returns True on any process, all of them stop.

    Raises:
        ValueError: the partial folder is of other teachers or data, another process writes it, or
            something else than stored teachers has the name.
        WorkStopped: `stop` returned True.
    """
    dataset = teachers[0].processor.dataset
    manifest = TargetManifest(
        corpus=dataset.fingerprint,
        form=form,
        precision=precision,
        image_count=len(dataset),
        text_count=len(dataset.texts),
        teachers=tuple(_measure(teacher) for teacher in teachers),
        contents=ContentDigests.of(teachers[0].processor.dataset),
        version=__version__,
    )
    if TARGETS.exists(folder) and (existing := TARGETS.read_manifest(folder)).same(manifest):
        return existing
    TARGETS.check_replaceable(folder)
    lock = write_lock(folder.with_name(f".{folder.name}.lock"), folder)
    with distributed.on_rank_0(lock):
        partial = partial_folder(folder)
        manifest = _begin(partial, manifest)
        if form == "stored":
            for number, teacher in enumerate(teachers):
                _store(teacher, partial / f"{number}", precision, stop)
        distributed.barrier()
        if distributed.rank() == 0:
            TARGETS.finish(partial, folder)
        distributed.barrier()
    return manifest


def _begin(partial: Path, manifest: TargetManifest) -> TargetManifest:
    """Return the manifest of the partial folder, which is created if needed.

    The stored manifest wins: its means and deviations may differ in the last digits.
    """
    distributed.barrier()  # no process reads before all have computed the manifest
    if TARGETS.exists(partial):
        stored = TARGETS.read_manifest(partial)
        if not stored.same(manifest):
            raise ValueError(f"{partial} is of other teachers or data; delete it")
        manifest = stored
    distributed.barrier()  # no process writes before all have read
    if distributed.rank() == 0 and not TARGETS.exists(partial):
        TARGETS.write_manifest(partial, manifest)
    distributed.barrier()
    return manifest


def _store(
    teacher: TeacherModel, folder: Path, precision: StoredPrecision, stop: Callable[[], bool]
) -> None:
    """Encode all images and texts, each batch written at once."""
    dataset = teacher.processor.dataset
    for name, encode, inputs, count in (
        ("images", images_in_batches, teacher.processor.images, len(dataset)),
        ("texts", texts_in_batches, teacher.processor.texts, len(dataset.texts)),
    ):
        encode_into(
            folder / name, encode, teacher.model, inputs, count, precision=precision, stop=stop
        )


def _measure(teacher: TeacherModel) -> TeacherTargets:
    """Measure the scores of a teacher on a sample of pairs."""
    dataset, inputs = teacher.processor.dataset, teacher.processor
    image_rows, text_rows = _sample_rows(len(dataset)), _sample_rows(len(dataset.texts))
    images = encode_images(
        teacher.model, lambda rows: inputs.images(image_rows[rows]), len(image_rows)
    )
    texts = encode_texts(teacher.model, lambda rows: inputs.texts(text_rows[rows]), len(text_rows))
    device = distributed.device()
    with evaluation_mode([teacher.model]):
        scores = teacher.model.score_matrix(images.to(device), texts.to(device)).cpu()
    wrong = scores[dataset.text_to_image[text_rows] != image_rows.unsqueeze(1)].double()
    return TeacherTargets(
        source=teacher.source,
        scale=teacher.model.score_scale,
        mean=float(wrong.mean()) if len(wrong) else 0.0,
        deviation=float(wrong.std()) if len(wrong) > 1 else 0.0,
        plain=_is_inner_product(images, texts, scores),
    )


def _is_inner_product(images: Embeddings, texts: Embeddings, scores: Tensor) -> bool:
    width = images.tokens.shape[2]
    if images.tokens.shape[1:] != (1, width) or texts.tokens.shape[1:] != (1, width):
        return False
    products = images.tokens[:, 0] @ texts.tokens[:, 0].T
    tolerance = _SAME * max(1.0, float(scores.abs().max()))
    return float((products - scores).abs().max()) <= tolerance


def _sample_rows(count: int) -> Tensor:
    """Return up to `SAMPLE` rows, spread evenly over `count`."""
    return torch.linspace(0, count - 1, min(count, SAMPLE), dtype=torch.float64).long()


TeacherInputs = Literal["clean", "same"]
Weight = tuple[float, float]  # factor and offset of a teacher's scores


class Teacher(ABC):
    """Scores pairs of a batch; not a module of the training step, so never trained or saved."""

    @abstractmethod
    def block(self, batch: Batch) -> Tensor:
        """Return the (I, T) scores of the anchor block, the same on every process."""

    @abstractmethod
    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return the scores of P pairs of places in the pools, (P,)."""


@final
class StoredVectors(Teacher):
    """Stored teachers whose scores are inner products of one vector an item, all in one product.

    The weighted sum of K inner products is one inner product of concatenated vectors, with each
    image vector multiplied by its teacher's factor.
    """

    def __init__(
        self, *, stores: Sequence[tuple[EmbeddingStore, EmbeddingStore]], weights: Sequence[Weight]
    ) -> None:
        self.stores = tuple(stores)
        self.factors = torch.tensor([factor for factor, _ in weights])
        self.offset = sum(offset for _, offset in weights)

    def block(self, batch: Batch) -> Tensor:
        device, (images, texts) = batch.device, batch.block
        text = self._texts(batch.text_rows[:texts]).to(device).T

        def scores(rows: Tensor | slice) -> Tensor:
            share = rows if isinstance(rows, slice) else rows.cpu()
            return self._images(batch.image_rows[:images][share]).to(device) @ text

        return gather_shards(images, scores, device) + self.offset

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        image = self._images(batch.image_rows).to(batch.device)[pairs.image]
        text = self._texts(batch.text_rows).to(batch.device)[pairs.text]
        return (image * text).sum(1) + self.offset

    def _images(self, rows: Tensor) -> Tensor:
        vectors = [images.vectors(rows) for images, _ in self.stores]
        return concatenate_teachers(vectors, self.factors)

    def _texts(self, rows: Tensor) -> Tensor:
        return concatenate_teachers([texts.vectors(rows) for _, texts in self.stores])


class _ModelTeacher(Teacher):
    """A teacher whose own model scores the encodings; the subclass says where they come from.

    The model is moved to the device of this process; its weights are never written.
    """

    def __init__(self, model: RetrievalModel, weight: Weight) -> None:
        self.model = model.to(distributed.device()).eval()
        self.weight = weight
        self._last: tuple[Batch, tuple[Embeddings, Embeddings]] | None = None

    @abstractmethod
    def encodings(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        """Return the pools on the device, the same on every process; or only the anchor block's."""

    def block(self, batch: Batch) -> Tensor:
        images, texts = self._pools(batch, whole=False)
        images, texts = images.rows(slice(batch.block[0])), texts.rows(slice(batch.block[1]))
        scores = gather_shards(
            len(images),
            lambda rows: self.model.score_matrix(images.rows(rows), texts),
            batch.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        images, texts = self._pools(batch, whole=True)
        scores = gather_shards(
            len(pairs.image),
            lambda rows: self.model.score_indices(
                images, texts, Pairs(pairs.image[rows], pairs.text[rows])
            ),
            batch.device,
        )
        return scores.float() * self.weight[0] + self.weight[1]

    def _pools(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        if self._last and self._last[0] is batch:
            pools = self._last[1]
            missing = (len(batch.image_rows), len(batch.text_rows)) != tuple(map(len, pools))
            if not (whole and missing):
                return pools
        with evaluation_mode([self.model]):
            pools = self.encodings(batch, whole=whole)
        self._last = batch, pools
        return pools


@final
class StoredFragments(_ModelTeacher):
    """A stored teacher with bags of vectors, scored by its own model."""

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

    def encodings(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        images, texts = (None, None) if whole else batch.block
        return (
            self.images.rows(batch.image_rows[:images]).to(batch.device),
            self.texts.rows(batch.text_rows[:texts]).to(batch.device),
        )


@final
class FrozenTeacher(_ModelTeacher):
    """A teacher that encodes every batch anew, each process a share of it.

    Args:
        model: the model.
        processor: its inputs from the data set of the batches.
        inputs: "clean" items without augmentation, or the "same" ones as the student's.
        weight: of its scores.
    """

    def __init__(
        self,
        *,
        model: RetrievalModel,
        processor: ProcessedDataset,
        inputs: TeacherInputs,
        weight: Weight,
    ) -> None:
        super().__init__(model, weight)
        self.processor, self.inputs = processor, inputs

    def encodings(self, batch: Batch, *, whole: bool) -> tuple[Embeddings, Embeddings]:
        if self.inputs == "same":
            images, texts = batch.images, batch.texts
            counts = len(batch.image_rows), len(batch.text_rows)
        else:
            counts = (len(batch.image_rows), len(batch.text_rows)) if whole else batch.block
            images = self._items(self.processor.images, batch.image_rows[: counts[0]], batch)
            texts = self._items(self.processor.texts, batch.text_rows[: counts[1]], batch)
        return (
            gather_parts(self.model.encode_images(images), counts[0]),
            gather_parts(self.model.encode_texts(texts), counts[1]),
        )

    def _items(self, load: LoadRows, rows: Tensor, batch: Batch) -> ModalityBatch:
        return load(rows[shard_index(len(rows), rows.device)]).to(batch.device)


def stored_teachers(
    store: TargetStore, weights: Sequence[Weight], network: Callable[[int], RetrievalModel]
) -> list[Teacher]:
    """The teachers of a store; all that have one vector an item are one.

    `network` gives the model of a teacher by its number, for those whose score is no inner product.
    """
    found: list[Teacher] = []
    vectors = [n for n, teacher in enumerate(store.manifest.teachers) if teacher.plain]
    if vectors:
        stores = [store.encodings[n] for n in vectors]
        found.append(StoredVectors(stores=stores, weights=[weights[n] for n in vectors]))
    for number, weight in enumerate(weights):
        if number not in vectors:
            images, texts = store.encodings[number]
            found.append(
                StoredFragments(model=network(number), images=images, texts=texts, weight=weight)
            )
    return found


_EVERY_ROLE = Needs(targets=True, pair_targets=frozenset(Role))


@final
class TeacherEnsemble(NegativeSource):
    """The sum of several teachers' weighted scores, as targets of any pair; see `Teachers`.

    Args:
        teachers: each with its weight, so that the sum is a mean on the student's scale, see
            `target_weighting`.
    """

    gives = _EVERY_ROLE

    def __init__(self, *, teachers: Sequence[Teacher]) -> None:
        assert teachers
        self.teachers = tuple(teachers)

    def targets(self, batch: Batch) -> Tensor:
        """Return (I, T) targets on the scale of the model's scores, the same on every process."""
        with torch.no_grad(), _full_precision(batch):
            return torch.stack([teacher.block(batch) for teacher in self.teachers]).sum(0)

    def pair_targets(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return (B, N) targets of pairs of places in the pools, on the same scale."""
        flat = pairs.flatten()
        with torch.no_grad(), _full_precision(batch):
            scores = [teacher.pairs(batch, flat) for teacher in self.teachers]
        return torch.stack(scores).sum(0).view(pairs.shape)


@final
class Teachers(NegativeSource):
    """The mean scores of frozen models as targets, for losses such as those of NDGL, or for a mask.

    A teacher that is the model in training is copied before the first step: the loss
    ``MarginDistillationLoss(**distillation_settings())`` then keeps the model near its original.

    Args:
        models: as `counterfoil.load_model` opens them; each reads the data with its own processor.
        standardise: bring the scores of teachers of different kinds to one mean and deviation.
        inputs: "clean" items, or the "same" augmented ones as the student's, of its own processor.
        store: a folder for their encodings, so that each item is encoded once and not once an
            epoch; made if it is not there. None encodes the items of each batch anew.

    Raises:
        ValueError: no model, unknown inputs, the "same" ones from a store, or a store of other
            teachers or data.

    >>> Trainer(model, loss=loss, train=data, sources=[Teachers(large, other)])  # doctest: +SKIP
    """

    gives = _EVERY_ROLE

    def __init__(
        self,
        *models: Model,
        standardise: bool = False,
        inputs: TeacherInputs = "clean",
        store: str | Path | None = None,
    ) -> None:
        if wrong := [type(model).__name__ for model in models if not isinstance(model, Model)]:
            raise ValueError(
                f"teachers are models that load_model opened; given was a {wrong[0]}; write "
                "Teachers(load_model(NAME))"
            )
        if not models:
            raise ValueError("there is no teacher; write Teachers(load_model(NAME))")
        parse_literal(TeacherInputs, inputs, "an input of teachers")
        if inputs == "same" and store:
            raise ValueError(
                "a store holds what teachers make of clean items, so they cannot see the same ones "
                'as the student; leave store out, or set inputs="clean"'
            )
        self.models, self.standardise, self.inputs = models, standardise, inputs
        self.store = Path(store) if store else None
        self._ensemble: TeacherEnsemble | None = None

    def describe(self) -> dict[str, Any]:
        settings = {"standardise": self.standardise, "inputs": self.inputs}
        return {
            "source": type(self).__qualname__,
            "teachers": [model.digest() for model in self.models],
            **settings,
        }

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Measure the teachers' scores, and encode the data where there is a store for it."""
        teachers = [self._prepared(teacher, model, data) for teacher in self.models]
        for teacher in teachers:
            teacher.model.to(distributed.device()).eval()
        if self.store is None:
            measured = [_measure(teacher) for teacher in teachers]
            weights = target_weighting(measured, model.loss_scale, standardise=self.standardise)
            self._ensemble = TeacherEnsemble(
                teachers=[
                    FrozenTeacher(
                        model=teacher.model,
                        processor=teacher.processor,
                        inputs=self.inputs,
                        weight=weight,
                    )
                    for teacher, weight in zip(teachers, weights, strict=True)
                ]
            )
            return
        existed = TARGETS.exists(self.store)
        if not existed:
            write_targets(self.store, teachers, form="stored", precision="fp32")
        found = TargetStore.open(self.store, fingerprint=data.dataset.fingerprint)
        self._check_same([teacher.source for teacher in teachers], found, self.store)
        if existed:
            self._warn_of_exchanged(found, data.dataset, self.store)
        weights = target_weighting(
            found.manifest.teachers, model.loss_scale, standardise=self.standardise
        )
        networks = [teacher.model for teacher in teachers]
        self._ensemble = TeacherEnsemble(
            teachers=stored_teachers(found, weights, networks.__getitem__)
        )

    @staticmethod
    def _warn_of_exchanged(found: TargetStore, dataset: ImageTextDataset, store: Path) -> None:
        """Say that pictures or features are others than those that were encoded."""
        if exchanged := found.manifest.contents.exchanged(ContentDigests.of(dataset)):
            warn(
                f"the {' and '.join(exchanged)} of {dataset.name} are others than those that "
                f"{store} was made of; name another folder as store, unless they are copies in "
                "another form"
            )

    @staticmethod
    def _check_same(given: Sequence[ModelSource], found: TargetStore, store: Path) -> None:
        """Refuse a store of more or fewer teachers, in another order, or of others."""
        stored = [teacher.source for teacher in found.manifest.teachers]
        if len(stored) != len(given):
            raise ValueError(
                f"{store} holds the encodings of {len(stored)} teachers, not of {len(given)}; give "
                "those in the order in which they were stored, or name another folder as store"
            )
        same = [one.same(other) for one, other in zip(stored, given, strict=True)]
        if not all(same) and all(any(map(one.same, given)) for one in stored):
            raise ValueError(
                f"{store} holds these teachers in another order; give them in that order, or name "
                "another folder as store"
            )
        for number, source in enumerate(given):
            found.check(number, source, store)

    @staticmethod
    def _prepared(teacher: Model, model: RetrievalModel, data: ProcessedDataset) -> TeacherModel:
        """A teacher with its inputs; of the model in training, or of what holds it, a copy."""
        if any(part is model for part in teacher.model.modules()):
            return TeacherModel(deepcopy(model), data, teacher.source())
        return TeacherModel(teacher.model, teacher.process(data.dataset), teacher.source())

    def targets(self, batch: Batch) -> Tensor:
        """Return (I, T) mean scores on the scale of the model's, the same on every process."""
        assert self._ensemble is not None, "`begin` makes it"
        return self._ensemble.targets(batch)

    def pair_targets(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return (B, N) mean scores of pairs of places in the pools."""
        assert self._ensemble is not None, "`begin` makes it"
        return self._ensemble.pair_targets(batch, pairs)


def concatenate_teachers(vectors: Sequence[Tensor], factors: Tensor | None = None) -> Tensor:
    """Concatenate K times (N, D) vectors to (N, K * D), each multiplied by its teacher's factor."""
    if factors is not None:
        vectors = [v * factor for v, factor in zip(vectors, factors, strict=True)]
    return torch.cat(list(vectors), 1)


def _full_precision(batch: Batch) -> AbstractContextManager[object]:
    """Turn off the half precision that the student may be trained in."""
    return torch.autocast(batch.device.type, enabled=False)
