"""What a model in pre-training is asked: one task a step, and what it hides.

UNITER (Chen et al., ECCV 2020), section 3.2: hidden words (MLM), features of hidden regions (MRFR),
their classes (MRC, MRC-kl), and whether text and image match (ITM) with the cost of moving words
onto regions (WRA).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol, final, get_args

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.lens import CorpusLens
from counterfoil.corpus.sampler import Sampler
from counterfoil.negatives.masks import chosen, masked, with_singles
from counterfoil.reading import Slots
from counterfoil.records import Items, Pairs
from counterfoil.train.seeds import seed_of

Task = Literal["mlm", "mrfr", "mrc", "mrckl", "itm"]
TASKS: tuple[Task, ...] = get_args(Task)
SIGHTED: tuple[Task, ...] = ("mrfr", "mrc", "mrckl")  # what is asked of hidden regions
CLASSED: tuple[Task, ...] = ("mrc", "mrckl")  # what needs a detector's probabilities


@final
@dataclass(frozen=True, kw_only=True)
class Tasks:
    """How often each task is drawn, and how much is hidden.

    Attributes:
        mlm: hidden words; what counts is the ratio to the others.
        mrfr: features of hidden regions.
        mrc: likeliest classes of hidden regions.
        mrckl: probabilities of the classes of hidden regions.
        itm: whether text and image match.
        transport: weight of the cost of moving words onto regions, which goes with `itm`.
        words: how likely a word is hidden.
        regions: how likely a region is hidden.
        mismatched: how likely a pair gets another image for `itm`.

    Raises:
        ValueError: a number out of range, or no task.
    """

    mlm: float = 2.0
    mrfr: float = 1.0
    mrc: float = 0.0
    mrckl: float = 1.0
    itm: float = 2.0
    transport: float = 0.1
    words: float = 0.15
    regions: float = 0.15
    mismatched: float = 0.5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            most = 1.0 if name in ("words", "regions", "mismatched") else torch.inf
            if not 0 <= value <= most:
                raise ValueError(
                    f"{name}={value}: a number from 0 {'to 1' if most == 1 else 'on'} is needed"
                )
        if not any(self.ratios()):
            raise ValueError("no task is left to pre-train with; give one of them a ratio above 0")

    def ratios(self) -> list[float]:
        """Of each of `TASKS`."""
        return [getattr(self, task) for task in TASKS]

    @property
    def sighted(self) -> bool:
        """Whether regions are hidden."""
        return any(getattr(self, task) for task in SIGHTED)

    def without_classes(self) -> Tasks:
        """What is left where nobody says how likely the classes of regions are.

        Raises:
            ValueError: nothing is.
        """
        return replace(self, **dict.fromkeys(CLASSED, 0.0))

    def only(self, wanted: Task) -> Tasks:
        """The same with one task alone."""
        return replace(self, **{str(task): float(task == wanted) for task in TASKS})

    def draw(self, seed: int) -> Task:
        """One of the tasks, by their ratios."""
        rng = torch.Generator().manual_seed(seed)
        ratios = torch.tensor(self.ratios(), dtype=torch.double)
        return TASKS[int(torch.multinomial(ratios, 1, generator=rng))]


class Classes(Protocol):
    """Says how likely the classes of regions are, as a detector thinks."""

    def likely(self, rows: Tensor) -> Tensor:
        """(N, R, C) of these images of a corpus; rows of regions sum to 1."""
        ...


@final
@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Pairs with something hidden; P of the B are this process's share.

    Attributes:
        task: what is asked.
        anchors: (B,) corpus rows of all pairs.
        images: P of them, as they are.
        texts: P of them; words are hidden for "mlm".
        real: (P,) bool, False for a pair that only fills up the share.
        slots: where words are hidden, in real pairs.
        labels: (M,) long, what stood there.
        veiled: (P, R) bool, True where a region is hidden, in real pairs.
        matching: (P,) bool, True where text and image belong together.
        classes: (P, R, C) probabilities of the classes of regions, where they are asked.
    """

    task: Task
    anchors: Pairs
    images: Items
    texts: Items
    real: Tensor
    slots: Slots
    labels: Tensor
    veiled: Tensor
    matching: Tensor
    classes: Tensor | None = None

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch on another device; the corpus rows stay where they are."""
        return replace(
            self,
            images=self.images.to(device),
            texts=self.texts.to(device),
            real=self.real.to(device),
            slots=Slots(self.slots.pair.to(device), self.slots.place.to(device)),
            labels=self.labels.to(device),
            veiled=self.veiled.to(device),
            matching=self.matching.to(device),
            classes=None if self.classes is None else self.classes.to(device),
        )


@final
@dataclass(frozen=True, kw_only=True)
class TaskStream:
    """The batches of a pre-training, each the same from the same seed wherever it begins.

    Attributes:
        lens: where items come from.
        sampler: which captions meet.
        epochs: how many.
        seed: of what is drawn.
        tasks: what is asked.
        mask: id of the token that hides a word.
        words: (W,) long, ids that may stand in the place of a hidden word.
        accumulate: batches of one task in a row, as one optimiser step takes them.
        classes: what says how likely the classes of regions are.
    """

    lens: CorpusLens
    sampler: Sampler
    epochs: int
    seed: int
    tasks: Tasks
    mask: int
    words: Tensor
    accumulate: int = 1
    classes: Classes | None = None

    def batches(self, start: int = 0) -> Iterator[TaskBatch]:
        """Batch `start` of the training and those after it."""
        first, place = divmod(start, len(self.sampler))
        steps = -(-len(self.sampler) // self.accumulate)
        for epoch in range(first, self.epochs):
            for at, texts in enumerate(self.sampler.epoch(epoch, start=place), place):
                step = epoch * steps + at // self.accumulate
                task = self.tasks.draw(seed_of(self.seed, "task", step))
                number = epoch * len(self.sampler) + at
                yield self._batch(task, texts, number)
            place = 0

    def _batch(self, task: Task, texts: Tensor, number: int) -> TaskBatch:
        rng = torch.Generator().manual_seed(seed_of(self.seed, "hide", number))
        images = self.lens.corpus.relation.owner[texts]
        matching = torch.ones(len(texts), dtype=torch.bool)
        if task == "itm":
            images, matching = mismatched(
                images, len(self.lens.corpus), share=self.tasks.mismatched, rng=rng
            )
        share = world.share(len(texts))
        here = torch.arange(share.start, share.stop)
        real = here < len(texts)
        here = here.clamp(max=len(texts) - 1)
        seen = self.lens.images(images[here])
        told, slots, labels = self._told(task, texts, rng)
        mine = (slots.pair >= share.start) & (slots.pair < share.stop)
        veiled = torch.zeros_like(seen.mask)
        if task in SIGHTED:
            chance = torch.rand(len(texts), seen.mask.shape[1], generator=rng)[here]
            veiled = hidden(seen.mask, chance, share=self.tasks.regions) & real.unsqueeze(1)
        asked = self.classes if task in CLASSED else None
        return TaskBatch(
            task=task,
            anchors=Pairs(images, texts),
            images=seen,
            texts=told.rows(here),
            real=real,
            slots=Slots(slots.pair[mine] - share.start, slots.place[mine]),
            labels=labels[mine],
            veiled=veiled,
            matching=matching[here],
            classes=asked.likely(images[here]) if asked else None,
        )

    def _told(self, task: Task, rows: Tensor, rng: torch.Generator) -> tuple[Items, Slots, Tensor]:
        """The texts of all processes, with some words hidden where that is asked."""
        texts = self.lens.texts(rows)
        none = torch.zeros(0, dtype=torch.long)
        if task != "mlm":
            return texts, Slots(none, none), none
        singles = with_singles(
            torch.zeros(len(rows), 0, texts.mask.shape[1], dtype=torch.bool),
            spoken(texts, self.words),
            singles="only",
        )
        slots = chosen(singles, times=1, rng=rng, share=self.tasks.words, first=True)
        found = masked(texts, slots, mask=self.mask, words=self.words, rng=rng)
        return replace(found.texts, ids=texts.ids), found.slots, found.labels


def spoken(texts: Items, words: Tensor) -> Tensor:
    """(N, L) bool, True at tokens that can be hidden: all but special ones.

    A text of special and unknown tokens alone keeps all that its mask calls real.
    """
    found = texts.mask & torch.isin(texts.values, words)
    return found | texts.mask & ~found.any(1, keepdim=True)


def hidden(mask: Tensor, chance: Tensor, *, share: float) -> Tensor:
    """(N, R) bool, True at regions that are hidden: each by itself, one at least of each image.

    Args:
        mask: (N, R) bool, True where a region is real.
        chance: (N, R) drawn evenly from 0 to 1.
        share: how likely a region is hidden.
    """
    chance = chance.masked_fill(~mask, 2.0)
    least = chance == chance.amin(1, keepdim=True)
    return ((chance < share) | least) & mask


def mismatched(
    images: Tensor, count: int, *, share: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(B,) rows of which some are of another image, and (B,) bool, True where it is the same.

    Args:
        images: (B,) rows.
        count: of all images.
        share: how likely another one takes its place.
        rng: of the choice.
    """
    other = torch.randint(max(count - 1, 1), images.shape, generator=rng)
    other = other + (other >= images).long()
    same = torch.rand(images.shape, generator=rng) >= share
    if count < 2:
        return images, torch.ones_like(same)
    return images.where(same, other), same
