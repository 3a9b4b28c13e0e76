"""Sources of mined lists: negatives drawn from them, batches composed of them, further anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Pairs, Role
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.sampling import (
    NegativeSampler,
    NeighbourImages,
    OfflineNegativeSampler,
    RoleSubset,
    SamplingConfig,
)
from counterfoil.negatives.sources import ListedSource, Negatives, PlannedTraining
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.training.callbacks import Callback
from counterfoil.training.remine import RemineConfig, Reminer, check_remine

_WHOLE_LISTS, _NO_REMINING, _BATCHES = SamplingConfig(), RemineConfig(), BatchMiningConfig()


@final
class Mined(ListedSource):
    """Draws mined negatives of every anchor, for losses such as `AdaptiveQuintuplet`.

    AOQ (https://arxiv.org/abs/2003.03669), sections 3.2 and 4.1; see `OfflineNegativeSampler`. With
    `remine`, the model in training mines the split anew every few epochs, and batches draw from
    its own lists from then on.

    Args:
        negatives: what `mine_hard_negatives` returned, its store, its lists, or a folder of lists;
            None where the model mines the first ones itself.
        sampling: how to draw from the lists, also from re-mined ones.
        remine: how often the model mines anew; never by default.

    Raises:
        ValueError: there are no lists and none will be mined.

    >>> Trainer(model, loss=loss, train=data, sources=[Mined(negatives)])  # doctest: +SKIP
    """

    gives = Needs(roles=OfflineNegativeSampler.provides)
    seed_name = "draw"

    def __init__(
        self,
        negatives: Negatives | None = None,
        *,
        sampling: SamplingConfig = _WHOLE_LISTS,
        remine: RemineConfig = _NO_REMINING,
    ) -> None:
        super().__init__(negatives)
        for name, given, kind in (
            ("sampling", sampling, SamplingConfig),
            ("remine", remine, RemineConfig),
        ):
            if not isinstance(given, kind):
                example = "every=2" if kind is RemineConfig else "texts=50, images=20"
                raise ValueError(
                    f"{name}={given!r:.40} is no {kind.__name__}; write "
                    f"{name}={kind.__name__}({example})"
                )
        if negatives is None and not remine.every:
            raise ValueError(
                "Mined() has no lists to draw from; give what mine_hard_negatives returned, or let "
                "the model mine them with remine=RemineConfig(every=1)"
            )
        self.sampling, self.remine = sampling, remine
        self.sampler: NegativeSampler | None = None  # of the present lists
        self._needs = frozenset[Role]()
        self._data: ProcessedDataset | None = None

    @property
    def depth(self) -> tuple[int, int]:
        return self.sampling.texts, self.sampling.images or 0

    def check_plan(self, training: PlannedTraining) -> None:
        super().check_plan(training)
        if self.remine.every:
            listed = self.negatives is not None
            check_remine(
                self.remine, training.loss, self.sampling, batches=training.batches, listed=listed
            )

    def describe(self) -> dict[str, Any]:
        settings = {"sampling": asdict(self.sampling), "remine": asdict(self.remine)}
        return {**super().describe(), **settings}

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Make the sampler of the roles that the loss needs, so that nothing unused is encoded."""
        self._data, self._needs = data, loss.needs.roles
        if self.remine.every:
            listed = self.lists is not None
            check_remine(self.remine, loss, self.sampling, batches=batches, listed=listed)
        self.sampler = self.sampler_of(self.lists) if self.lists else None

    def sampler_of(self, lists: HardNegativeLists) -> NegativeSampler:
        """A sampler of such lists, in the roles that are needed."""
        assert self._data is not None, "`begin` says which"
        relation = self._data.dataset.relation
        sampler = OfflineNegativeSampler(lists=lists, relation=relation, plan=self.sampling)
        return RoleSubset(sampler, self._needs)

    def callbacks(self, folder: Path, run: str) -> Sequence[Callback]:
        """The one that mines anew, into ``lists/``."""
        if not self.remine.every:
            return ()
        assert self._data is not None, "`begin` says which"
        lengths = self.lists and (self.lists.texts.shape[1], self.lists.images.shape[1])
        first = self.sampler

        def use(store: NegativeStore | None) -> None:
            self.sampler = self.sampler_of(store.lists) if store else first

        return (Reminer(self.remine, self._data, use, folder / "lists", run, lengths),)

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) anchor texts, by role, each (B, count)."""
        return self.sampler.draw(texts, rng) if self.sampler else {}


@final
class MinedBatches(ListedSource):
    """Composes batches of mutual negatives from mined lists, for any loss; see `NeighbourBatches`.

    Args:
        negatives: as those of `Mined`.
        config: which neighbours of the lists share a batch.
    """

    seed_name = "batches"  # unused: who shares a batch is drawn with the order of the epoch

    def __init__(self, negatives: Negatives, config: BatchMiningConfig = _BATCHES) -> None:
        super().__init__(negatives)
        self.config = config
        self._batches: NeighbourBatches | None = None

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **asdict(self.config)}

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Link images whose captions are each other's negatives."""
        self._batches = NeighbourBatches(self.opened(), data.dataset.relation, self.config)

    def partition(self, images: Tensor, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return (C, size) communities of mutual negatives, and the images that remain."""
        assert self._batches is not None, "`begin` makes it"
        return self._batches.partition(images, batch, rng)


@final
class MinedNeighbours(ListedSource):
    """Brings one mined hard image of each anchor into the batch (NegCLIP); see `NeighbourImages`.

    Args:
        negatives: as those of `Mined`.
    """

    seed_name = "neighbours"

    def __init__(self, negatives: Negatives) -> None:
        super().__init__(negatives)
        self._neighbours: NeighbourImages | None = None

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Check that there are neighbours to draw."""
        relation = data.dataset.relation
        self._neighbours = NeighbourImages(lists=self.opened(), relation=relation)

    def join(self, texts: Tensor, rng: torch.Generator) -> Tensor:
        """Return (B + N,) text rows: the (B,) anchors, then N <= B captions of neighbours."""
        assert self._neighbours is not None, "`begin` makes it"
        return self._neighbours.joined(texts, rng)
