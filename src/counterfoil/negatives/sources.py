"""Where the negatives of a training come from: `NegativeSource`, the base class, and what it needs.

A training takes any number of them, ``Trainer(model, loss=loss, train=data, sources=[...])``:

    Mined            mined lists, which negatives are drawn from; the model may mine them anew
    MinedTeacher     lists with a re-ranker's scores, which are targets of what is drawn from them
    TopScoringMiner  of many candidates the hardest, by the model as it is now
    MinedBatches     batches of mutual negatives, composed from mined lists
    MinedNeighbours  mined hard images with a caption each, which join a batch
    MomentumQueue    items of earlier batches, encoded by a slow copy of the model
    GeneratedCaptions  captions that were generated and stored
    Foils            those of a foil set, with pictures of them
    Teachers         target similarities, by frozen models
    Mask             which negatives to leave out because a guide takes them for true

Those of the papers, such as `counterfoil.papers.tags.generation.TagsGenerator`, are subclasses like
anybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from counterfoil.core.types import (
    Batch,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
    WordTask,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessedDataset, Processor, ProcessorConfig
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.aoq_format import open_lists
from counterfoil.negatives.store import MINED, HardNegativeLists, NegativeStore

if TYPE_CHECKING:
    from counterfoil.training.callbacks import Callback


@final
@dataclass(frozen=True, slots=True)
class MinedExtras:
    """The items and pairs that a source adds to a batch that is encoded already.

    Attributes:
        texts: new texts; their places follow those of the batch's text pool.
        pairs: pairs to score, by role, each (B, N); places may point at new items, and a pair with
            the place -1 is empty and scores -inf.
        words: word tasks that the source computed as well.
        images: new images; their places follow those of the batch's image pool.
        scores: (B, N) scores by role of pairs that the source has scored itself; such a role is not
            among `pairs`, and -inf stands for no pair.
    """

    texts: ModalityBatch | None = None
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    images: ModalityBatch | None = None
    scores: Mapping[Role, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """What is known of a training before its model is there.

    Attributes:
        data: the training split.
        loss: the loss.
        images: form of the images that the model sees, in words: "pixels", "regions", ….
        texts: form of the texts, see `ProcessorConfig`.
        processor: of the model, or its settings.
        batches: number of batches in an epoch.
    """

    data: ImageTextDataset
    loss: WeightedSum
    images: str
    texts: str
    processor: Processor | ProcessorConfig
    batches: int


@runtime_checkable
class PlannedLists(Protocol):
    """Lists that a stage will mine: of so many texts of an image, and images of a text."""

    @property
    def name(self) -> str:
        """Name of the stage."""

    @property
    def split(self) -> str:
        """The split whose negatives are listed."""

    @property
    def texts(self) -> int:
        """Texts listed for an image."""

    @property
    def images(self) -> int:
        """Images listed for a text."""


@final
@dataclass(frozen=True)
class PlannedModel:
    """A model that a stage will train.

    Attributes:
        name: of the stage.
        processor: of the model, or its settings.
    """

    name: str
    processor: Processor | ProcessorConfig


class NegativeSource:
    """Gives a training negatives, or says which there are and how hard they ought to be.

    Every hook has a default that does nothing; override those that your source needs. Before an
    epoch `partition` chooses who shares a batch. For every batch, `join` adds anchors, `draw` and
    `candidates` choose pairs of data set rows, all before anything is encoded and in a thread that
    reads ahead; `propose` adds pairs after the model has scored the batch; `targets` and
    `pair_targets` say how similar a teacher finds them. Each hook with an `rng` gets one that
    depends on the seed of the training, `seed_name` and the number of the batch alone, in the same
    state on every process.

    A source that is an `nn.Module` too, with ``saved = True``, is moved to the device, and its
    state is saved and restored with the training.

    Attributes:
        gives: roles of pairs, word tasks and targets that it provides for losses.
        anchors_only: whether `propose` reads no wrong pairs of the score matrix.
        seed_name: names its random numbers, its class by default; a second source of the name gets
            others.
        saved: whether its state belongs in checkpoints.
        asks: other sources that it asks; they are checked, and begin, once before it.
        takes: in a recipe, arguments that name what a stage writes (or a folder of that kind), each
            with the kind of stage, such as "mine" for lists.
    """

    gives: Needs = Needs()
    anchors_only: bool = False
    seed_name: str = ""
    saved: bool = False
    asks: tuple[NegativeSource, ...] = ()
    takes: ClassVar[Mapping[str, str]] = {}

    def __repr__(self) -> str:
        given = [role.value for role in Role if role in self.gives.roles]
        given += [*sorted(self.gives.words), *(["targets"] if self.gives.targets else [])]
        return f"{type(self).__name__}(gives {', '.join(given) or 'who shares a batch'})"

    # what a recipe calls before any of its stages runs

    def check_plan(self, training: PlannedTraining) -> None:
        """Check what is known of a training before its model, or what it reads, is there.

        Where an argument of `takes` is to name what a stage writes, the source holds what stands
        for it: `PlannedLists`, `PlannedCaptions`, `PlannedModel`, or a source of targets.

        Raises:
            ValueError: the source cannot work with it.
        """

    # what a training calls, in this order

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Check a model and the data it is to be trained on, before anything is computed.

        Raises:
            ValueError: the source cannot work with them.
        """

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Get ready for a training with a loss, in epochs of so many batches.

        Raises:
            ValueError: the source cannot work with them.
        """

    def describe(self) -> dict[str, Any]:
        """All that the trained weights depend on, JSON-ready: a resumed training compares it."""
        plain = {
            name: value
            for name, value in sorted(vars(self).items())
            if not name.startswith("_") and isinstance(value, int | float | str)
        }
        return {"source": f"{type(self).__module__}.{type(self).__qualname__}", **plain}

    def callbacks(self, folder: Path, run: str) -> Sequence[Callback]:
        """Hooks of the training loop; `folder` is that of the training, `run` names it."""
        return ()

    def partition(self, images: Tensor, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return (C, size) of (N,) different images, rows share a batch, and those that remain.

        `batch` is the number of images of a batch, and the most that may share one.
        """
        raise NotImplementedError

    def join(self, texts: Tensor, rng: torch.Generator) -> Tensor:
        """Return the (B,) text rows of a batch's anchors with further ones behind them."""
        return texts

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) anchor texts, by role, each (B, N)."""
        return {}

    def candidates(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows, as `draw` does, that `propose` chooses from; -1 for none.

        Each process loads those of its share of the anchors, `Batch.offered`.
        """
        return {}

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return the additions to a batch, the same on every process.

        Args:
            model: the model in training.
            batch: `batch.images` and `batch.texts` hold this process's share only.
            views: encodings of the whole pools.
            scores: (I, T) scores of the anchor block; NaN except for the anchor pairs if no
                source and no loss reads the others.
            rng: in the same state on every process.
        """
        return MinedExtras()

    def targets(self, batch: Batch) -> Tensor:
        """Return (I, T) targets on the scale of the model's scores, the same on every process."""
        raise NotImplementedError

    def pair_targets(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return (B, N) targets of pairs of places in the pools."""
        raise NotImplementedError


def overrides(source: NegativeSource, hook: str) -> bool:
    """True if the class of a source has its own version of a hook."""
    return getattr(type(source), hook) is not getattr(NegativeSource, hook)


def having(sources: Iterable[NegativeSource], hook: str) -> tuple[NegativeSource, ...]:
    """The sources that have their own version of a hook, in order."""
    return tuple(source for source in sources if overrides(source, hook))


def named(sources: Iterable[NegativeSource]) -> tuple[tuple[str, NegativeSource], ...]:
    """Sources by the names of their random numbers: "draw", and "draw 2" for a second one."""
    pairs: list[tuple[str, NegativeSource]] = []
    seen: dict[str, int] = {}
    for source in sources:
        name = source.seed_name or type(source).__name__
        seen[name] = number = seen.get(name, 0) + 1
        pairs.append((name if number == 1 else f"{name} {number}", source))
    return tuple(pairs)


def with_asked(sources: Iterable[NegativeSource]) -> tuple[NegativeSource, ...]:
    """All sources and those that they ask, each once, behind those that it asks."""
    each: dict[int, NegativeSource] = {}
    for source in sources:
        for part in (*with_asked(source.asks), source):
            each.setdefault(id(part), part)
    return tuple(each.values())


# Mined lists, in any of the forms in which people hold them.


class StoredNegatives(Protocol):
    """Mined negatives that carry their store, as `mine_hard_negatives` returns them."""

    @property
    def store(self) -> NegativeStore:
        """Ranked lists and their provenance."""
        ...


Negatives = NegativeStore | StoredNegatives | HardNegativeLists | str | Path


def open_negatives(negatives: Negatives, train: ImageTextDataset) -> HardNegativeLists:
    """Open mined lists of a data set.

    Raises:
        ValueError: there are none, or they were mined from other data.
    """
    if isinstance(negatives, HardNegativeLists):
        return negatives  # a sampler checks that lists fit the data set
    if isinstance(negatives, str | Path):
        return open_lists(Path(negatives), train)
    store = negatives if isinstance(negatives, NegativeStore) else negatives.store
    if store.manifest.corpus != train.fingerprint:
        raise ValueError(
            f"the negatives were mined from another data set than {train.name} "
            f"({train.split_name}); mine them from the data set that is trained on"
        )
    store.manifest.check_contents(train, "the negatives")
    return store.lists


def scored_by(negatives: Negatives) -> frozenset[str]:
    """Digests of the weights of the models whose scores lists hold; none where it is not said."""
    if isinstance(negatives, str | Path):
        folder = Path(negatives)
        sources = MINED.read_manifest(folder).sources if MINED.exists(folder) else ()
    elif isinstance(negatives, HardNegativeLists):
        sources = ()
    else:
        store = negatives if isinstance(negatives, NegativeStore) else negatives.store
        sources = store.manifest.sources
    return frozenset(source.checkpoint for source in sources)


class ListedSource(NegativeSource):
    """A source with mined lists of the data that are trained on; None where it has none of its own.

    Attributes:
        negatives: as they were given.
        lists: opened by `check`.
    """

    takes: ClassVar[Mapping[str, str]] = {"negatives": "mine"}

    def __init__(self, negatives: Negatives | None) -> None:
        self.negatives = negatives
        self.lists: HardNegativeLists | None = None

    @property
    def depth(self) -> tuple[int, int]:
        """How many of the hardest texts of an image, and images of a text, the lists must hold."""
        return 0, 0

    @property
    def reads_scores(self) -> bool:
        """Whether the training depends on the scores of the lists, too."""
        return False

    def check_plan(self, training: PlannedTraining) -> None:
        """Check the split and the lengths of lists that will be mined, or that are there.

        Raises:
            ValueError: they are of other data, or too short.
        """
        given: object = self.negatives
        if isinstance(given, PlannedLists):
            if given.split != "train":
                raise ValueError(
                    f"it trains on images of the split 'train', and {given.name!r} mines those of "
                    f"{given.split!r}; set {given.name}.split=train"
                )
            name, kept = given.name, (given.texts, given.images)
        elif self.negatives is not None:
            lists = open_negatives(self.negatives, training.data)
            name, kept = str(given), (lists.texts.shape[1], lists.images.shape[1])
        else:
            return
        sizes = len(training.data.texts), len(training.data)
        items = "texts of an image", "images of a text"
        for noun, wanted, listed, total in zip(items, self.depth, kept, sizes, strict=True):
            if wanted > min(listed, total):
                raise ValueError(
                    f"{type(self).__name__} draws from the {wanted:,} hardest {noun}, but "
                    f"{name!r} keeps {listed:,} of {total:,}; set its sampling to fewer, or mine "
                    "longer lists"
                )

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Open the mined lists and compare them with the data.

        Raises:
            ValueError: there are none, or they were mined from other data.
        """
        self.lists = None if self.negatives is None else open_negatives(self.negatives, data)

    def describe(self) -> dict[str, Any]:
        if (lists := self.lists) is None:
            return {**super().describe(), "lists": None}
        scores = (lists.text_scores, lists.image_scores, lists.true_scores)
        read = [s for s in scores if s is not None] if self.reads_scores else []
        return {**super().describe(), "lists": _tensors_digest(lists.texts, lists.images, *read)}

    def opened(self) -> HardNegativeLists:
        """The lists, which `check` has opened."""
        assert self.lists is not None, "`check` opens them"
        return self.lists


def _tensors_digest(*tensors: Tensor) -> str:
    """Return sixteen hex digits of the values of tensors on the CPU."""
    content = sha256()
    for tensor in tensors:
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]
