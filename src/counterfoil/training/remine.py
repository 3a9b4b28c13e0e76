"""Re-mining: a model in training mines the training split anew every few epochs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import torch

from counterfoil.core import distributed
from counterfoil.core.artifact import MANIFEST
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import mine_lists, with_true_scores
from counterfoil.negatives.sampling import OfflineNegativeSampler, SamplingConfig
from counterfoil.negatives.store import NegativeStore
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts
from counterfoil.training.callbacks import Callback

if TYPE_CHECKING:
    from counterfoil.training.trainer import TrainingLoop

TEXTS, IMAGES = 300, 60  # default list lengths: those of AOQ


@final
@dataclass(frozen=True, kw_only=True)
class RemineConfig:
    """Settings of re-mining the training split with the model in training.

    Attributes:
        every: epochs `every`, 2 * `every`, … counted from 0 begin with mining; 0 for none.
        texts: hardest texts kept for each image; 0 for as many as the first lists keep.
        images: hardest images kept for each text; 0 for as many as the first lists keep.
        filters: what to leave out of the lists because it may be true.

    Raises:
        ValueError: a negative number, or a filter that asks a guide.
    """

    every: int = 0
    texts: int = 0
    images: int = 0
    filters: FilterConfig = FilterConfig()

    def __post_init__(self) -> None:
        for name in ("every", "texts", "images"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}={value}: it may not be below 0")
        if self.filters.needs_guide:
            raise ValueError(
                "a guide cannot filter lists that are mined while training; leave guided out, or "
                "mine with it in a stage of its own"
            )


@final
class Reminer(Callback):
    """Mines the training split at the beginning of epochs; batches then draw from the new lists.

    Stores are folders named after the run and the epoch they were mined at. All processes call
    every method together; the first one writes. `use` is called with the store that batches are to
    draw from, and with None for the first lists; `lengths` are those of the first lists.
    """

    def __init__(
        self,
        plan: RemineConfig,
        processor: ProcessedDataset,
        use: Callable[[NegativeStore | None], None],
        folder: Path,
        run: str,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        self.plan, self.processor, self.use = plan, processor, use
        self.folder, self.run, self.lengths = folder, run, lengths or (TEXTS, IMAGES)
        self._lists: str | None = None  # name of the lists that batches draw from

    def on_train_begin(self, loop: TrainingLoop[Any]) -> None:
        # lists that a kill left half-written, or all when a training begins anew
        self.remove_lists("." if loop.resumed else "")

    def on_epoch_begin(self, loop: TrainingLoop[Any]) -> None:
        epoch, place = divmod(loop.progress.step, loop.per_epoch)
        mined_at = epoch // self.plan.every * self.plan.every  # 0: the first lists
        name = f"{self.run}-{mined_at}" if mined_at else ""
        if name and epoch == mined_at and not place:
            self._mine_epoch(loop, name, epoch)
        elif name != self._lists:
            self._draw_from(name, self.open(name))

    def on_checkpoint_saved(self, loop: TrainingLoop[Any]) -> None:
        # older lists may go only when no checkpoint names them any more
        self.remove_lists(but=loop.progress.lists)

    def open(self, name: str) -> NegativeStore | None:
        """Open the lists with this name; None for "", the first lists."""
        if not name:
            return None
        place = self.folder / name
        if not (place / MANIFEST).is_file():
            raise ValueError(
                f"{place} is missing, the negatives of the interrupted training; train again in "
                "another folder"
            )
        return self._open_store(place)

    def mine(self, name: str, model: RetrievalModel, stop: Callable[[], bool]) -> NegativeStore:
        """Mine with the present model, continuing an interrupted pass, and save the lists.

        The weights and running statistics of the first process are used. Neither random states
        nor the modes of the model change.

        Raises:
            ValueError: what the model's scores or the filters forbid.
            WorkStopped: `stop` returned True; the finished part is kept on disk.
        """
        # different processors round differently, and all must mine with the same weights
        distributed.broadcast_from_first(model.state_dict().values())
        place, weights = self.folder / name, weights_digest(model)
        if (place / MANIFEST).is_file():
            # a kill came after this mining and before the next checkpoint: take its result
            store = self._open_store(place)
            if [source.checkpoint for source in store.manifest.sources] == [weights]:
                return store
        partial = self.folder / f"{name}-{weights}.partial"
        device = distributed.device()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            store = self._mine_store(model, weights, partial, stop)
        if distributed.rank() == 0:
            store.save(place)
            shutil.rmtree(partial, ignore_errors=True)
        distributed.barrier()
        return store

    def remove_lists(self, prefix: str = "", *, but: str = "") -> None:
        """Remove lists whose name begins so, all but one."""
        if distributed.rank() == 0:
            for path in self.folder.glob(f"{prefix}*"):
                if path.name != but:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        distributed.barrier()

    def _mine_store(
        self, model: RetrievalModel, weights: str, partial: Path, stop: Callable[[], bool]
    ) -> NegativeStore:
        processor, dataset, plan = self.processor, self.processor.dataset, self.plan
        images = encode_images(model, processor.images, len(dataset))
        texts = encode_texts(model, processor.texts, len(dataset.texts))
        members = [EmbeddedDataset(model, images, texts)]
        lists = mine_lists(
            members,
            dataset.text_to_image,
            texts_per_image=plan.texts or self.lengths[0],
            images_per_text=plan.images or self.lengths[1],
            filters=NegativeFilters(plan.filters, dataset, device=distributed.device()),
            keep=partial,
            stop=stop,
            run=dataset.fingerprint,
        )
        lists = with_true_scores(lists, members, dataset.text_to_image)
        name = f"{type(model).__name__} in training {partial.name.removesuffix('.partial')}"
        return NegativeStore.of(
            lists,
            dataset=dataset.fingerprint,
            split="train",
            sources=(ModelSource(matcher=name, checkpoint=weights),),
            filters=plan.filters.describe(),
        )

    def _open_store(self, place: Path) -> NegativeStore:
        return NegativeStore.open(place, fingerprint=self.processor.dataset.fingerprint)

    def _mine_epoch(self, loop: TrainingLoop[Any], name: str, epoch: int) -> None:
        began = time.monotonic()
        try:
            with loop.evaluation_model() as model:
                store = self.mine(name, model, loop.stop.wanted)
        except WorkStopped:
            reason, _ = loop.stop.decide()
            loop.stop.mark_handled()
            loop.stop_reason = reason or "signal"
            return
        self._draw_from(name, store)
        loop.progress.lists = name
        seconds = round(time.monotonic() - began, 3)
        loop.metrics.write(
            loop.progress.step, {"epoch": epoch, "lists": name, "mined_seconds": seconds}
        )

    def _draw_from(self, name: str, store: NegativeStore | None) -> None:
        self.use(store)
        self._lists = name


def check_remine(
    plan: RemineConfig, objective: WeightedSum, draw: SamplingConfig, *, batches: int, listed: bool
) -> None:
    """Refuse a loss that needs lists before the first mining, or draws beyond their length.

    An epoch has so many `batches`; `listed` says whether there are lists from the beginning.

    Raises:
        ValueError: a term needs lists earlier, no term ever does, or they are too short.
    """
    if not objective.needs.roles & OfflineNegativeSampler.provides:
        raise ValueError(
            f"lists would be mined every {plan.every} epochs, and no term of the objective needs "
            "them; choose another objective, or set remine.every to 0"
        )
    first = min(_batches_without_lists(cast("Loss", term)) for term in objective.terms.values())
    if not listed and first < plan.every * batches:
        raise ValueError(
            f"the first lists are mined after {plan.every} epochs, at batch "
            f"{plan.every * batches}, and the objective needs them from batch {first:.0f} on; give "
            "Mined the first ones as negatives, or let the term begin later"
        )
    for key, kept, wanted in (
        ("texts", plan.texts or (0 if listed else TEXTS), draw.texts),
        ("images", plan.images or (0 if listed else IMAGES), draw.images or 0),
    ):
        if 0 < kept < wanted:
            raise ValueError(
                f"{wanted} {key} would be drawn from, but lists of {kept} are mined; set "
                f"remine.{key} to {wanted} or more, or sampling.{key} to {kept} or fewer"
            )


def _batches_without_lists(term: Loss) -> float:
    """Return the number of first batches in which a loss needs no negatives from lists."""
    if not term.needs.roles & OfflineNegativeSampler.provides:
        return float("inf")
    if not isinstance(term, SwitchAfter):
        return 0.0
    first = _batches_without_lists(term.first)
    if first < term.steps:
        return first
    return max(float(term.steps), _batches_without_lists(term.second))
