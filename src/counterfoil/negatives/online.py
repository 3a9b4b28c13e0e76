"""Online miners: negatives chosen or made by the model in training, for the batch at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
    WordTask,
)
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import check_positive
from counterfoil.scoring.encode import (
    concatenate_batches,
    evaluation_mode,
    gather_batches,
    gather_shards,
)


@final
@dataclass(frozen=True, slots=True)
class MinedExtras:
    """The items and pairs that an online miner adds to a batch.

    Attributes:
        texts: new texts; their places follow those of the batch's text pool.
        pairs: pairs to score, by role, each (B, N); places may point at new items, and a pair with
            the place -1 is empty and scores -inf.
        words: word tasks that the miner computed as well.
        images: new images; their places follow those of the batch's image pool.
        scores: (B, N) scores by role of pairs that the miner has scored itself; such a role is not
            among `pairs`, and -inf stands for no pair.
    """

    texts: ModalityBatch | None = None
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    images: ModalityBatch | None = None
    scores: Mapping[Role, Tensor] = field(default_factory=dict)


class OnlineMiner(ABC):
    """Chooses or generates negatives with the model in its current state.

    Attributes:
        provides: roles of the pairs it proposes.
        provides_words: word tasks it computes as well.
        screens: roles for which it chooses among candidates of a `NegativeSampler`.
        anchors_only: whether it reads no wrong pairs of the anchor block.
    """

    provides: frozenset[Role]
    provides_words: frozenset[str] = frozenset()
    screens: frozenset[Role] = frozenset()
    anchors_only: bool = False
    takes_filler: bool = (
        False  # whether a frozen model may generate in place of the one in training
    )

    @classmethod
    def word_tasks(cls, settings: Mapping[str, Any]) -> frozenset[str] | None:
        """Word tasks that it computes with some arguments; None where that is not known."""
        return None

    @classmethod  # noqa: B027  (any by default)
    def check_inputs(cls, images: str, texts: str) -> None:
        """Check what a model in training sees: images and texts, in words.

        Raises:
            ValueError: the miner cannot work with it.
        """

    @classmethod  # noqa: B027  (any by default)
    def check_filler(cls, filler: RetrievalModel, noun: str) -> None:
        """Check a frozen model that is to generate.

        Raises:
            ValueError: it cannot.
        """

    def check(self, model: RetrievalModel) -> None:  # noqa: B027  (any model by default)
        """Check a model before training begins.

        Raises:
            ValueError: the miner cannot work with it.
        """

    @abstractmethod
    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return the additions to a batch, the same on every process.

        Args:
            model: the model in training.
            batch: `batch.images` and `batch.texts` hold this process's share only.
            views: encodings of the whole pools.
            grid: (I, T) scores of the anchor block; NaN except for the anchor pairs if neither the
                miner nor the loss reads the others.
            rng: in the same state on every process.
        """


def with_values(items: ModalityBatch, values: Tensor) -> ModalityBatch:
    """Return items with other values and with ids of no data set."""
    return replace(items, ids=torch.full_like(items.ids, -1), values=values, targets=None)


def existing_extras(pairs: Pairs, score: Callable[[Pairs], Tensor]) -> Tensor:
    """Score the (P,) pairs that exist; -inf where a place is -1."""
    existing = ((pairs.image >= 0) & (pairs.text >= 0)).nonzero().squeeze(1)
    if len(existing) == len(pairs.image):
        return score(pairs)
    empty = torch.full(pairs.shape, -torch.inf, device=pairs.image.device)
    if not len(existing):
        return empty
    scores = score(Pairs(pairs.image[existing], pairs.text[existing]))
    return empty.to(scores.dtype).index_put((existing,), scores)


@final
class TopScoringMiner(OnlineMiner):
    """Trains on the highest-scoring of many candidates of every anchor, in both directions.

    UNITER (Chen et al., "UNITER: universal image-text representation learning", ECCV 2020,
    https://arxiv.org/abs/1909.11740) and TAGS: of 399 random wrong images of a caption, and of as
    many wrong captions of an image, the 31 that score highest are trained on. All are scored in
    evaluation mode without a graph; the chosen ones are encoded again for training, unless the
    batch holds them already. A repeated candidate counts once. If there are fewer candidates than
    `keep`, the other places are empty. Each process scores the candidates of its own anchors; of
    equal scores the earlier candidate is harder.

    Departs from the authors' code in: images and captions are put together correctly (theirs shows
    captions' candidates only some of the regions); each anchor may have both directions.

    Args:
        keep: candidates of an anchor that are trained on, in each direction.
        at_once: items encoded, and pairs scored, at a time; memory grows with it.

    Raises:
        ValueError: a number below 1.
    """

    provides = screens = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
    anchors_only = True

    @classmethod
    def word_tasks(cls, settings: Mapping[str, Any]) -> frozenset[str]:
        return frozenset()

    def __init__(self, *, keep: int = 31, at_once: int = 512) -> None:
        check_positive(keep=keep, at_once=at_once)
        self.keep, self.at_once = keep, at_once

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return the hardest candidates of the batch, the same on every process.

        Raises:
            ValueError: there are no candidates.
        """
        if batch.offered is None:
            raise ValueError(
                "there are no candidates to screen; say how many texts and images are offered for "
                "an anchor, as in texts=399, images=399"
            )
        hardest = self._hardest(model, batch, batch.offered)
        image_rows = {role: pairs.image for role, pairs in hardest.items()}
        text_rows = {role: pairs.text for role, pairs in hardest.items()}
        image_places, images = _added_items(batch.image_rows, batch.offered[0], image_rows)
        text_places, texts = _added_items(batch.text_rows, batch.offered[1], text_rows)
        pairs = {role: Pairs(image_places[role], text_places[role]) for role in hardest}
        return MinedExtras(images=images, texts=texts, pairs=pairs)

    def _hardest(
        self, model: RetrievalModel, batch: Batch, offered: tuple[ModalityBatch, ModalityBatch]
    ) -> dict[Role, Pairs]:
        """Return (B, k) data set rows of the hardest candidates by role, -1 for none."""
        count = len(batch.anchors.image)
        with evaluation_mode([model]):
            images = self._encode(model.encode_images, offered[0])
            texts = self._encode(model.encode_texts, offered[1])

            def best(role: Role, share: Tensor | slice) -> Tensor:
                """The hardest of this process's anchors, (b, k, 2) rows of images and texts."""
                pairs = batch.candidates[role]
                candidates = distinct_candidates(Pairs(pairs.image[share], pairs.text[share]))
                places = Pairs(
                    candidate_places(candidates.image, offered[0].ids),
                    candidate_places(candidates.text, offered[1].ids),
                )
                scores = self._candidate_scores(model, images, texts, role, places)
                return torch.stack(hardest_candidates(candidates, scores, self.keep), 2)

            return {
                role: Pairs(*gather_shards(count, partial(best, role), batch.device).unbind(2))
                for role in batch.candidates
            }

    def _encode(
        self, encode: Callable[[ModalityBatch], Embeddings], items: ModalityBatch
    ) -> Embeddings:
        starts = range(0, len(items), self.at_once)
        return Embeddings.cat([encode(items.rows(slice(s, s + self.at_once))) for s in starts])

    def _candidate_scores(
        self, model: RetrievalModel, images: Embeddings, texts: Embeddings, role: Role, at: Pairs
    ) -> Tensor:
        """Score the (B, N) candidates of a role; -inf where a place is -1."""
        scores = existing_extras(at.flatten(), lambda p: self._scores(model, images, texts, p))
        return scores.view(at.shape)

    def _scores(
        self, model: RetrievalModel, images: Embeddings, texts: Embeddings, pairs: Pairs
    ) -> Tensor:
        """Score (P,) pairs, a part of them with the items they need at a time."""
        scores = []
        for start in range(0, len(pairs.image), self.at_once):
            part = slice(start, start + self.at_once)
            image, left = torch.unique(pairs.image[part], return_inverse=True)
            text, right = torch.unique(pairs.text[part], return_inverse=True)
            items = images.rows(image), texts.rows(text)
            scores.append(model.score_indices(*items, Pairs(left, right)).float())
        return torch.cat(scores)


def _added_items(
    pool: Tensor, offered: ModalityBatch, chosen: Mapping[Role, Tensor]
) -> tuple[dict[Role, Tensor], ModalityBatch | None]:
    """Return the places of chosen items in a pool and new items behind it, and the new items.

    `pool` are the (P,) rows of the batch's pool and `chosen` (B, k) rows by role, -1 for none, the
    same on every process; `offered` are this process's candidates.
    """
    rows = torch.cat(list(chosen.values()), 1)
    pool = pool.to(rows.device)
    new = torch.unique(rows)
    new = new[(new >= 0) & ~torch.isin(new, pool)]
    known = torch.cat([pool, new])
    places = {role: candidate_places(items, known) for role, items in chosen.items()}
    return places, _collect(new, rows, offered) if len(new) else None


def distinct_candidates(pairs: Pairs) -> Pairs:
    """Set both sides of (B, N) pairs to -1 where one is, or where a pair repeats an earlier one."""
    # One number for each pair; a stable sort brings equal ones together with the first in front.
    numbers = pairs.image * (pairs.text.amax() + 2) + pairs.text
    ordered, order = numbers.sort(dim=1, stable=True)
    repeated = torch.zeros_like(numbers, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    empty = torch.zeros_like(repeated).scatter(1, order, repeated)
    empty |= (pairs.image < 0) | (pairs.text < 0)
    return Pairs(pairs.image.masked_fill(empty, -1), pairs.text.masked_fill(empty, -1))


def hardest_candidates(pairs: Pairs, scores: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Return the (B, k) images and texts of the highest-scoring pairs, -1 for a score of -inf."""
    ranked, order = scores.sort(dim=1, descending=True, stable=True)
    order, none = order[:, :keep], ranked[:, :keep].isneginf()
    image, text = pairs.image.gather(1, order), pairs.text.gather(1, order)
    return image.masked_fill(none, -1), text.masked_fill(none, -1)


def candidate_places(rows: Tensor, known: Tensor) -> Tensor:
    """Return the first place of each row among the known ones; -1 where a row is -1."""
    ordered, order = known.sort(stable=True)
    places = order[torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(known) - 1)]
    return places.masked_fill(rows < 0, -1)


def _collect(new: Tensor, chosen: Tensor, offered: ModalityBatch) -> ModalityBatch:
    """Gather the items of the (U,) ascending `new` rows, on every process.

    Each anchor has chosen (B, N) rows, and its process has these among its `offered` items.
    """
    each = -(-len(chosen) // distributed.size())
    anchor = torch.arange(len(chosen), device=chosen.device).unsqueeze(1).expand_as(chosen)
    at = torch.searchsorted(new, chosen.contiguous()).clamp(max=len(new) - 1)
    match = new[at] == chosen
    # An item is sent by the process of the first anchor that has chosen it.
    first = torch.full_like(new, len(chosen)).scatter_reduce(0, at[match], anchor[match], "amin")
    sender = first // each
    most = int(sender.bincount(minlength=distributed.size()).max())
    own = new[sender == distributed.rank()]
    own = torch.cat([own, offered.ids[:1].expand(most - len(own))])  # all send the same number
    items = gather_batches(
        offered.rows(candidate_places(own, offered.ids)), most * distributed.size()
    )
    return items.rows(candidate_places(new, items.ids))


@final
class MinerChain(OnlineMiner):
    """Several online miners in one step, as TAGS chooses candidates and generates captions.

    Args:
        proposers: the miners, in the order in which they use the generator.

    Raises:
        ValueError: there are none, or two provide the same role or word task.
    """

    def __init__(self, *, proposers: tuple[OnlineMiner, ...]) -> None:
        if not proposers:
            raise ValueError("proposers=() propose nothing; name at least one")
        self.proposers = proposers
        self.provides = frozenset()
        for miner in proposers:
            twice = [role.value for role in self.provides & miner.provides]
            twice += self.provides_words & miner.provides_words
            if twice:
                raise ValueError(
                    f"{type(miner).__name__} and another proposer both provide "
                    f"{', '.join(repr(name) for name in sorted(twice))}; drop one of the two"
                )
            self.provides |= miner.provides
            self.provides_words |= miner.provides_words
            self.screens |= miner.screens
        self.anchors_only = all(miner.anchors_only for miner in proposers)

    def check(self, model: RetrievalModel) -> None:
        """Check a model with each miner."""
        for miner in self.proposers:
            miner.check(model)

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return the additions of all miners as one."""
        images: list[ModalityBatch] = []
        texts: list[ModalityBatch] = []
        pairs: dict[Role, Pairs] = {}
        words: dict[str, WordTask] = {}
        scores: dict[Role, Tensor] = {}
        pools = len(batch.image_rows), len(batch.text_rows)
        for miner in self.proposers:
            extras = miner.propose(model, batch, views, grid, rng)
            for role, pair in extras.pairs.items():
                pairs[role] = Pairs(
                    _shift(pair.image, pools[0], images), _shift(pair.text, pools[1], texts)
                )
            words.update(extras.words)
            scores.update(extras.scores)
            images += [extras.images] if extras.images else []
            texts += [extras.texts] if extras.texts else []
        return MinedExtras(
            texts=concatenate_batches(texts) if texts else None,
            pairs=pairs,
            words=words,
            images=concatenate_batches(images) if images else None,
            scores=scores,
        )


def _shift(place: Tensor, pool: int, before: list[ModalityBatch]) -> Tensor:
    """Move the places of new items behind those of earlier miners."""
    return torch.where(place >= pool, place + sum(len(items) for items in before), place)
