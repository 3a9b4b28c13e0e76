"""Mining of hard negatives, as a stage of a recipe and from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast, final

import torch

from counterfoil.core import distributed
from counterfoil.core.config import parse_literal
from counterfoil.core.console import detail, info
from counterfoil.core.io import check_room
from counterfoil.core.resumable import partial_folder
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Precision
from counterfoil.data.dataset import ImageTextDataset, Positives
from counterfoil.model import load_model
from counterfoil.negatives.filters import FilterConfig, check_encoder
from counterfoil.negatives.mining import IVF, mine_store
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.overrides import changed_settings
from counterfoil.pipelines.stages.base import Stage, models_content
from counterfoil.pipelines.state import RunContext, stop_watch
from counterfoil.report.figures import NamedSample
from counterfoil.scoring.checkpoint import EVERY
from counterfoil.scoring.encode import EmbeddedDataset

BATCH, SAMPLES = 128, 4096  # of the hardness in the report, at most
HARDNESS = "hardness.safetensors"


@dataclass(frozen=True, kw_only=True)
class ListsStage(Stage):
    """A stage that lists negatives of a split, both ways. Writes a store.

    Attributes:
        texts: hardest texts listed for each image.
        images: hardest images listed for each text.
        split: the split.
    """

    kind: ClassVar[str] = "mine"
    texts: int = 300
    images: int = 60
    split: str = "train"

    def check(self, context: RunContext) -> None:
        """Refuse a split that does not exist."""
        context.split(self.split)


@final
@dataclass(frozen=True, kw_only=True)
class Mine(ListsStage):
    """List the hardest negatives of a split, both ways. Writes a store.

    Attributes:
        using: stages whose models score; several are one ensemble.
        filters: rules that leave likely false negatives out of the lists.
        guides: stages of the guide models, for `FilterConfig.guided`.
        proposing: stages or saved models that choose the pairs that `using` and `models` look at;
            none for all pairs; "ivf" alone for the vectors of `using`, see
            `counterfoil.negatives.proposals`.
        proposals: candidates proposed per listed negative.
        precision: "bf16" scores all pairs in half precision and rescores the candidates in fp32.
        models: saved models or names of pretrained ones that score too, as
            `counterfoil.model.load_model` opens them.
        positives: "text" never lists a text that says what a caption of the image says; "id" does,
            as in the papers.
    """

    takes: ClassVar[Mapping[str, str]] = {
        "using": "train",
        "guides": "train",
        "proposing": "train",
    }
    elsewhere: ClassVar[frozenset[str]] = frozenset({"proposing"})
    using: tuple[str, ...]
    filters: FilterConfig = FilterConfig()
    guides: tuple[str, ...] = ()
    proposing: tuple[str, ...] = ()
    proposals: int = 4
    precision: Precision = "fp32"
    models: tuple[str, ...] = ()
    positives: Positives = "text"

    def __post_init__(self) -> None:
        models = (*self.using, *self.models)
        if self.proposals < 1:
            raise ValueError(f"proposals={self.proposals}: at least 1 is needed")
        parse_literal(Precision, self.precision, "a precision of mining")
        parse_literal(Positives, self.positives, "a kind of positives")
        if self.precision != "fp32" and (self.proposing or self.filters.score_settings):
            raise ValueError(
                f"precision={self.precision} works with all pairs, and with filters of captions "
                "and pictures alone; leave out the others and what proposes, or mine in fp32"
            )
        if self.proposing and self.filters.score_settings:
            raise ValueError(
                f"{self.name!r} re-ranks what others propose, whose scores are not its own; leave "
                "out all filters but captions and pictures, or propose nothing"
            )
        if IVF in self.proposing and (len(self.proposing) > 1 or len(models) > 1):
            raise ValueError(
                f"{self.name!r} lets {IVF!r} propose, by the vectors of one model; name one model, "
                "and no other that proposes"
            )

    @property
    def dependencies(self) -> tuple[tuple[str, str | None], ...]:
        return tuple(named for named in super().dependencies if named[0] != IVF)

    @property
    def lacks_inputs(self) -> bool:
        return not (self.using or self.models)

    def digest_content(self) -> dict[str, Any]:
        return models_content(self.models)

    def check(self, context: RunContext) -> None:
        """Refuse a split that does not exist, or that has no negative whatever the model."""
        context.split(self.split).with_positives(self.positives).check_wrong_pairs()

    def run(self, context: RunContext, *, resume: bool) -> None:
        """List the hardest negatives of the split and save them with their hardness."""
        dataset, place = context.split(self.split), context.place(self.name)
        dataset = dataset.with_positives(self.positives)
        store, members = run_mining(
            self, dataset, place, find=context.model_path, left=context.left
        )
        if distributed.rank() == 0:
            rng, texts = torch.Generator().manual_seed(0), store.lists.texts
            from counterfoil.negatives.diagnose import hardness

            # a model that others propose to is slow: one batch, or a tenth of the listed pairs
            slow = bool({*self.proposing} - {IVF})
            listed = sum(int((one >= 0).sum()) for one in (texts, store.lists.images))
            samples = min(SAMPLES, listed // (10 * BATCH)) if slow else SAMPLES
            measured = hardness(
                members, dataset.relation, texts, batch=BATCH, samples=samples, rng=rng
            )
            tensors = {
                "positive": measured.positive,
                "online": measured.online,
                "offline": measured.offline,
            }
            write_tensors(place / HARDNESS, tensors, {"batch": measured.batch})
        remove_partial(place)
        report_lists(self.name, store, place)


def report_lists(name: str, store: NegativeStore, place: Path) -> None:
    """Say how long the lists are, how full, and what each filter left out."""
    info(f"{name}: {store.lists.describe()}, {place}")
    for line in store.manifest.summary():
        detail(f"{name}: {line}")


def mining_request(
    models: Sequence[str],
    split: str,
    *,
    texts: int,
    images: int,
    filters: Sequence[str] = (),
    guides: Sequence[str] = (),
    proposing: Sequence[str] = (),
    precision: str = "fp32",
) -> Mine:
    """Build the stage for a command line, whose filters are ``key=value`` of a `FilterConfig`."""
    plan = FilterConfig()
    for setting in filters:
        plan = changed_settings(plan, setting)
    return Mine(
        name="lists",
        using=tuple(models),
        texts=texts,
        images=images,
        split=split,
        filters=plan,
        guides=tuple(guides),
        proposing=tuple(proposing),
        precision=cast(Precision, precision),  # the stage checks it
    )


def run_mining(
    stage: Mine,
    dataset: ImageTextDataset,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> tuple[NegativeStore, list[EmbeddedDataset]]:
    """List the hardest negatives of a split and save them; continues a mining that was stopped.

    Args:
        stage: the settings.
        dataset: the split.
        place: folder of the store.
        find: from a name in the stage to the path or name that `load_model` opens.
        left: returns the minutes left; None for no limit.

    Returns:
        The store, and the split as the models encoded it.

    Raises:
        ValueError: models and data do not fit, the saved progress is of another mining, or nothing
            is left to list.
        RunStopped: the time was up, or a signal came.
    """
    check_encoder(stage.filters)
    dataset = dataset.with_positives(stage.positives)
    ivf = IVF in stage.proposing
    using, guides, proposing = (
        [load_model(find(name)) for name in names]
        for names in (stage.using, stage.guides, () if ivf else stage.proposing)
    )
    using += map(load_model, stage.models)
    listed = len(dataset) * stage.texts + len(dataset.texts) * stage.images
    check_room(place, 8 * listed)  # a row and a score each
    with stop_watch(left(), EVERY / 60) as watch:
        store, members = mine_store(
            using,
            dataset,
            texts_per_image=stage.texts,
            images_per_text=stage.images,
            filters=stage.filters,
            guides=guides,
            proposing=IVF if ivf else proposing,
            proposals=stage.proposals,
            precision=stage.precision,
            device=distributed.device(),
            keep=partial_folder(place),
            every=EVERY,
            stop=watch.wanted,
        )
        try:
            store.check_filled()
        except ValueError:  # resuming would end here again
            remove_partial(place)
            raise
        if distributed.rank() == 0:
            store.save(place)  # a signal that came late is raised when the watch ends
    return store, members


def remove_partial(place: Path) -> None:
    """Remove the progress of a finished mining."""
    if distributed.rank() == 0:
        shutil.rmtree(partial_folder(place), ignore_errors=True)


def hardness_at(folder: Path, scorer: str) -> tuple[NamedSample, ...]:
    """Read the gaps between negatives and positives, online and offline, that were saved."""
    tensors, about = read_tensors(folder / HARDNESS, "the hardness of negatives")
    names = {
        "online": f"online: hardest of a batch of {about['batch']}, by {scorer}",
        "offline": f"offline: mined, by {scorer}",
    }
    gaps = {kind: tensors[kind] - tensors["positive"] for kind in names}
    return tuple(NamedSample(name, gaps[kind].numpy()) for kind, name in names.items())
