"""Mining, as a stage of a recipe and from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast, final

from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.config import digest
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.model import Model, load_model
from counterfoil.negatives.filters import (
    FilterConfig,
    NegativeFilters,
    build_filters,
    check_encoder,
)
from counterfoil.negatives.mining import mine_half_precision, mine_lists, rerank_proposals
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.pipelines.overrides import changed_settings
from counterfoil.pipelines.pipeline import Mine, MinePrecision
from counterfoil.pipelines.state import RunStopped
from counterfoil.scoring.checkpoint import EVERY
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.training.stopping import StopMonitor, watch_for_stop


def mining_request(
    models: Sequence[str],
    split: str,
    *,
    texts: int,
    images: int,
    filters: Sequence[str] = (),
    guides: Sequence[str] = (),
    proposing: Sequence[str] = (),
    proposals: int = 4,
    precision: str = "fp32",
) -> Mine:
    """The stage that a command line asks for.

    Args:
        models: names of those that score.
        split: what is mined.
        texts: of an image's list.
        images: of a text's list.
        filters: fields of a `FilterConfig`, ``key=value``.
        guides: names of those that judge too.
        proposing: names of those that choose the pairs to look at.
        proposals: how many times as many as are listed they choose.
        precision: "fp32" or "bf16".

    Raises:
        ValueError: an unknown filter, one out of range, or one that does not go with the rest.
    """
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
        proposals=proposals,
        precision=cast(MinePrecision, precision),  # the stage checks it
    )


def partial_folder(place: Path) -> Path:
    """Where mining into a folder keeps how far it is."""
    return place.with_name(f"{place.name}.partial")


def run_mining(
    stage: Mine,
    dataset: ImageTextDataset,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> tuple[NegativeStore, list[EmbeddedDataset]]:
    """List the hardest negatives of a split and save them, from where it was stopped on.

    Args:
        stage: what to mine.
        dataset: the split.
        place: where the store goes.
        find: from a name in the stage to what `load_model` opens.
        left: how many minutes are left; None for no limit.

    Returns:
        The store, and the models with what they have encoded.

    Raises:
        ValueError: models and data do not fit, or what was kept is of another mining.
        Stopped: the time was up, or a signal came.
    """
    check_encoder(stage.filters)
    crew = _MiningModels.of(stage, find)
    members = [model.embed(dataset) for model in crew.using]
    lists, precision = _listed(stage, dataset, crew, members, partial_folder(place), left)
    if crew.proposing:
        lists = rerank_proposals(
            lists,
            members,
            dataset.text_to_image,
            texts_per_image=min(stage.texts, lists.texts.shape[1]),
            images_per_text=min(stage.images, lists.images.shape[1]),
        )
    guides = tuple(f"guide: {guide.source().matcher}" for guide in crew.guides)
    store = NegativeStore.of(
        lists,
        dataset=dataset.fingerprint,
        split=stage.split,
        sources=tuple(model.source() for model in crew.using),
        filters=(*stage.filters.describe(), *guides),
        proposing=tuple(model.source() for model in crew.proposing),
        proposals=stage.proposals if crew.proposing else 0,
        precision=precision,
    )
    if distributed.rank() == 0:
        store.save(place)
    return store, members


def remove_partial(place: Path) -> None:
    """Remove what a finished mining no longer needs."""
    if distributed.rank() == 0:
        shutil.rmtree(partial_folder(place), ignore_errors=True)


@final
@dataclass(frozen=True, slots=True)
class _MiningModels:
    """The models of a stage, by what they do."""

    using: tuple[Model, ...]
    guides: tuple[Model, ...]
    proposing: tuple[Model, ...]

    @classmethod
    def of(cls, stage: Mine, find: Callable[[str], str]) -> Self:
        names = stage.using, stage.guides, stage.proposing
        using, guides, proposing = (tuple(load_model(find(n)) for n in some) for some in names)
        return cls((*using, *map(load_model, stage.models)), guides, proposing)

    def digest(self, dataset: ImageTextDataset) -> str:
        """Of what the lists that are swept for depend on, besides the stage's numbers."""
        scorers = [
            [model.source().model_dump() for model in some]
            for some in (self.proposing or self.using, self.guides)
        ]
        return digest({"corpus": dataset.fingerprint, "scorers": scorers})


def _listed(
    stage: Mine,
    dataset: ImageTextDataset,
    crew: _MiningModels,
    members: Sequence[EmbeddedDataset],
    keep: Path,
    left: Callable[[], float | None],
) -> tuple[HardNegativeLists, str]:
    """What the stage's models list, or what others propose to them; why half precision is exact."""
    judges = [guide.embed(dataset) for guide in crew.guides]
    filters = build_filters(stage.filters, dataset, guides=judges, device=distributed.device())
    proposers = [model.embed(dataset) for model in crew.proposing]
    minutes, run = left(), crew.digest(dataset)
    with watch_for_stop(0 if minutes is None else max(minutes, 0.01), EVERY / 60) as watch:
        try:
            if stage.precision == "bf16":
                return _halved(
                    stage, dataset.text_to_image, members, filters, keep, watch.wanted, run
                )
            many = stage.proposals if proposers else 1
            lists = mine_lists(
                proposers or members,
                dataset.text_to_image,
                texts_per_image=stage.texts * many,
                images_per_text=stage.images * many,
                filters=filters,
                keep=keep,
                every=EVERY,
                stop=watch.wanted,
                run=run,
            )
        except WorkStopped:
            raise _stopped(watch) from None
    return lists, ""


def _halved(
    stage: Mine,
    text_to_image: Tensor,
    members: Sequence[EmbeddedDataset],
    filters: NegativeFilters,
    keep: Path,
    stop: Callable[[], bool],
    run: str,
) -> tuple[HardNegativeLists, str]:
    """Lists by way of half precision, and why they are exact."""
    lists, certificate = mine_half_precision(
        members,
        text_to_image,
        texts_per_image=stage.texts,
        images_per_text=stage.images,
        filters=filters,
        keep=keep,
        every=EVERY,
        stop=stop,
        run=run,
    )
    return lists, f"bfloat16, then float32: {certificate.describe()}"


def _stopped(watch: StopMonitor) -> RunStopped:
    watch.heed()
    return RunStopped("out of time" if watch.late and watch.asked is None else "interrupted")
