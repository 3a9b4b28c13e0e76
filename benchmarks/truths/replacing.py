"""A source that replaces mined negatives once the model has learnt them (Conan-embedding)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Needs, Role
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sources import ListedSource, MinedExtras, Negatives
from counterfoil.negatives.store import usable_entries
from counterfoil.scoring.encode import gather_parts, gather_shards, shard_index

FALL = 1.15  # a negative is learnt once its score times this is below its first one, and ...
MOST = 0.8  # ... lies between minus this and this (from memory of the paper)


@final
class Places(nn.Module):
    """Of each list the negative in use, its first score and the step of that.

    Attributes:
        entry: (Q,) place in the list.
        first: (Q,) score when it came first.
        since: (Q,) step at which it did; -1 where it has not yet.
    """

    entry: Tensor
    first: Tensor
    since: Tensor

    def __init__(self, lists: Tensor, usable: Tensor, start: int) -> None:
        super().__init__()
        self.lists, self.counts, _ = usable_entries(lists, usable)
        if (least := int(self.counts.min())) <= start:
            raise ValueError(
                f"lists are used from entry {start} on, counted from 0, and one has {least}; begin "
                "earlier, or mine longer ones with fewer filters"
            )
        self.register_buffer("entry", torch.full((len(lists),), start))
        self.register_buffer("first", torch.zeros(len(lists)))
        self.register_buffer("since", torch.full((len(lists),), -1))

    def rows(self, queries: Tensor) -> Tensor:
        """The negatives in use of (B,) queries."""
        return self.lists[queries, self.entry.cpu()[queries]].long()

    def note(self, queries: Tensor, scores: Tensor, step: int, every: int) -> None:
        """Note the (B,) scores of the negatives in use; replace those that are learnt."""
        rows, inverse = queries.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        counts = self.counts[rows].to(scores.device)
        rows, inverse = rows.to(scores.device), inverse.to(scores.device)
        now = scores.new_zeros(len(rows)).index_add_(0, inverse, scores) / inverse.bincount()
        entry, first, since = self.entry[rows], self.first[rows], self.since[rows]
        fresh, due = since < 0, step >= since + every
        learnt = ~fresh & due & (FALL * now < first) & (now.abs() < MOST) & (entry + 1 < counts)
        self.entry[rows] = entry + learnt
        self.first[rows] = torch.where(fresh, now.float(), first)
        self.since[rows] = torch.where(fresh, step, since).masked_fill(learnt, -1)


@final
class Replaced(ListedSource, nn.Module):
    """Gives each anchor a mined text of its image and a mined image, the same until it is learnt.

    Conan-embedding (https://arxiv.org/abs/2408.15710), dynamic hard negative mining: every 100
    steps, a negative whose score has fallen from s to below s / 1.15 is replaced by the next of its
    list. What is in use, and its first score, is saved with the training.

    Departs from the paper in: a negative is looked at when its anchor comes, by the score that the
    step computes anyway, with dropout; negatives are replaced one by one.

    Args:
        negatives: as those of `Mined`.
        every: steps for which a negative is kept at least; 0 for all.
        start: first entry of lists of texts, and of lists of images, that is used.
    """

    gives = Needs(roles=frozenset({Role.HARD_TEXT, Role.HARD_IMAGE}))
    saved = True
    anchors_only = True

    def __init__(self, negatives: Negatives, *, every: int, start: tuple[int, int]) -> None:
        nn.Module.__init__(self)
        ListedSource.__init__(self, negatives)
        self.every, self.start = every, start
        self._data: ProcessedDataset | None = None

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "start": list(self.start)}

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Begin with the first negative of each list.

        Raises:
            ValueError: there is none.
        """
        relation = data.dataset.relation
        self._data, lists = data, self.opened().checked(relation)
        self.texts = Places(lists.texts, relation.text_to_image >= 0, self.start[0])
        self.images = Places(lists.images, relation.counts > 0, self.start[1])

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Score the negatives in use, and replace what is learnt; the same on every process."""
        assert self._data is not None, "`begin` says which"
        image, text, view = batch.anchors.image, batch.anchors.text, views.inference
        owners, captions = batch.image_rows[image.cpu()], batch.text_rows[text.cpu()]
        texts = self._data.texts(self.texts.rows(owners)).to(text.device)
        images = self._data.images(self.images.rows(captions)).to(image.device)
        found = {
            Role.HARD_TEXT: _scores(
                model, view.images.rows(image), _encoded(model.encode_texts, texts)
            ),
            Role.HARD_IMAGE: _scores(
                model, _encoded(model.encode_images, images), view.texts.rows(text)
            ),
        }
        if self.every:
            for places, rows, now in zip((self.texts, self.images), (owners, captions), found):
                places.note(rows, found[now].detach(), batch.step, self.every)
        return MinedExtras(scores={role: one.unsqueeze(1) for role, one in found.items()})


def _encoded(encode: Callable[[ModalityBatch], Embeddings], items: ModalityBatch) -> Embeddings:
    """Encode items, on each process its share."""
    share = shard_index(len(items), items.values.device)
    return gather_parts(encode(items.rows(share)), len(items))


def _scores(model: RetrievalModel, images: Embeddings, texts: Embeddings) -> Tensor:
    """(B,) scores of images and texts in equal places, each process a share of them."""

    def score(rows: Tensor | slice) -> Tensor:
        return model.score_pairs(images.rows(rows), texts.rows(rows))

    return gather_shards(len(images), score, images.tokens.device)
