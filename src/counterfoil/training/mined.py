"""Sources of mined lists: negatives drawn from them, batches composed of them, further anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.console import warn
from counterfoil.core.types import Batch, Needs, Pairs, Role
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.aoq import OFFLINE
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.sampling import (
    NegativeSampler,
    NeighbourImages,
    OfflineNegativeSampler,
    RoleSubset,
    SamplingConfig,
    check_listed_scores,
)
from counterfoil.negatives.sources import (
    ListedSource,
    Negatives,
    PlannedTraining,
    open_negatives,
    scored_by,
)
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.checkpoint import weights_digest
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

    @property
    def reads_scores(self) -> bool:
        return self.sampling.ambiguity > 0

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
class MinedTeacher(ListedSource):
    """Draws negatives from lists that a re-ranker has scored, and gives its scores as targets.

    A cross-encoder, a joint encoder or a judge that scores pairs teaches a model over the
    candidates of its lists, without being asked again: with the loss
    ``MarginDistillationLoss(**listwise_settings())``. Lists with its scores are those that it mined
    among what a fast model proposed (``counterfoil mine RERANKER --propose MODEL``), or that it
    judged (``counterfoil judge RERANKER --scores``). It draws as `Mined` does, with replacement.

    Targets are the re-ranker's scores in units of the standard deviation of those listed, so that a
    temperature fits any re-ranker, times the scale of the model in training, which losses divide
    by. Of the score matrix those of true pairs are known, and -inf stands for the others: they are
    no candidates.

    Args:
        negatives: as those of `Mined`, with scores of listed and of true pairs.
        sampling: how to draw from the lists.

    Raises:
        ValueError: the lists hold no scores, or others than a number can tell apart.

    >>> source = MinedTeacher("scored-lists/")  # doctest: +SKIP
    >>> Trainer(model, loss=loss, train=data, sources=[source])  # doctest: +SKIP
    """

    gives = Needs(roles=OfflineNegativeSampler.provides, targets=True, pair_targets=OFFLINE)
    seed_name = "draw"

    def __init__(self, negatives: Negatives, *, sampling: SamplingConfig = _WHOLE_LISTS) -> None:
        super().__init__(negatives)
        self.sampling = sampling
        self._relation: Relation | None = None
        self._sampler: NegativeSampler | None = None
        self._unit = 1.0

    @property
    def depth(self) -> tuple[int, int]:
        return self.sampling.texts, self.sampling.images or 0

    @property
    def reads_scores(self) -> bool:
        return True

    def check_plan(self, training: PlannedTraining) -> None:
        super().check_plan(training)
        if isinstance(self.negatives, str | Path):
            check_listed_scores(open_negatives(self.negatives, training.data), *_LEARNS)

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        super().check(model, data)
        check_listed_scores(self.opened(), *_LEARNS)
        assert self.negatives is not None, "these lists are of it"
        if scored_by(self.negatives) == {weights_digest(model)}:
            warn(
                "the scores of these lists are those of the model that is trained, so they teach "
                f"it nothing new; {_LEARNS[1]}"
            )

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "sampling": asdict(self.sampling)}

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Make the sampler of the roles that the loss needs."""
        self._relation = data.dataset.relation
        self.lists = lists = self.opened().checked(self._relation)
        sides = (lists.texts, lists.text_scores), (lists.images, lists.image_scores)
        listed = torch.cat([_known(scores)[rows >= 0] for rows, scores in sides])
        self._unit = listed.double().std(correction=0).item() / model.loss_scale
        sampler = OfflineNegativeSampler(
            lists=self.lists, relation=self._relation, plan=self.sampling
        )
        self._sampler = RoleSubset(sampler, loss.needs.roles)

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) anchor texts, by role, each (B, count)."""
        assert self._sampler is not None, "`begin` makes it"
        return self._sampler.draw(texts, rng)

    def targets(self, batch: Batch) -> Tensor:
        """Return (I, T) scores of true pairs; -inf for the others."""
        known = torch.full(batch.block, -torch.inf)
        anchors = Pairs(batch.anchors.image.cpu(), batch.anchors.text.cpu())
        known[anchors.image, anchors.text] = self._scores(batch, anchors)
        return known.to(batch.device)

    def pair_targets(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Return (B, N) scores of pairs of places in the pools; -inf for those of no list."""
        return self._scores(batch, Pairs(pairs.image.cpu(), pairs.text.cpu())).to(batch.device)

    def _scores(self, batch: Batch, pairs: Pairs) -> Tensor:
        """Scores of pairs of places, of any shape, on the CPU."""
        lists, relation = self.opened(), self._relation
        assert relation is not None, "`begin` says which"
        images = batch.image_rows.cpu()[pairs.image]
        texts = batch.text_rows.cpu()[pairs.text]
        own = relation.text_to_image[texts] == images
        found = torch.where(own, _known(lists.true_scores)[texts].float(), -torch.inf)
        for rows, scores, query, item in (
            (lists.texts, lists.text_scores, images, texts),
            (lists.images, lists.image_scores, texts, images),
        ):
            other = rows[query] != item.unsqueeze(-1)
            listed = _known(scores)[query].float().masked_fill(other, -torch.inf)
            found = torch.maximum(found, listed.amax(-1))
        return found / self._unit


_LEARNS = (
    "a model learns from a re-ranker's scores of listed pairs and of true ones",
    "have the re-ranker score them: counterfoil judge RERANKER --negatives LISTS --scores SCORED",
)


def _known(scores: Tensor | None) -> Tensor:
    assert scores is not None, "`check` asks for them"
    return scores


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
