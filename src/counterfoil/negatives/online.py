"""What a proposer adds to a batch that has been encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, final, runtime_checkable

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
from counterfoil.scoring.encode import evaluation_mode, gather_batches, join_batches


@final
@dataclass(frozen=True, slots=True)
class MinedExtras:
    """Candidates that depend on the model as it is now.

    Attributes:
        texts: new texts; their places follow those of the batch's text pool.
        pairs: pairs to score, by role; places may point at new items, and a pair with the place -1
            is none, which scores -inf; each (B, N).
        words: word tasks that were solved on the way.
        images: new images; their places follow those of the batch's image pool.
        scores: (B, N) scores by role, of pairs that were scored on the way; such a role is not
            among `pairs`, and -inf is no pair.
    """

    texts: ModalityBatch | None = None
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    images: ModalityBatch | None = None
    scores: Mapping[Role, Tensor] = field(default_factory=dict)


class OnlineMiner(Protocol):
    """Picks or writes candidates that depend on the model as it is now."""

    @property
    def provides(self) -> frozenset[Role]:
        """Roles it proposes pairs for."""
        ...

    @property
    def provides_words(self) -> frozenset[str]:
        """Word tasks it solves on the way."""
        ...

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Candidates for a batch, the same on every process.

        Args:
            model: the model in training.
            batch: `batch.images` and `batch.texts` hold this process's share only.
            views: the whole pools, encoded.
            grid: (I, T) scores of the anchor block; NaN but for the anchor pairs where nobody looks
                at others, see `AnchorsOnly`.
            rng: in the same state on every process.
        """
        ...


@runtime_checkable
class ChecksLoss(OnlineMiner, Protocol):
    """Does not go with every model."""

    def check(self, model: RetrievalModel) -> None:
        """Whether it goes with this one, before training begins.

        Raises:
            ValueError: it does not.
        """
        ...


@runtime_checkable
class ScreensCandidates(OnlineMiner, Protocol):
    """Chooses among candidates that are drawn for it."""

    @property
    def screens(self) -> frozenset[Role]:
        """Roles of the candidates that it chooses among."""
        ...


@runtime_checkable
class AnchorsOnly(OnlineMiner, Protocol):
    """May leave the wrong pairs of the anchor block alone."""

    @property
    def anchors_only(self) -> bool:
        """Whether it looks at no more of the block than at the scores of the anchor pairs."""
        ...


def reads_whole_block(proposer: OnlineMiner | None) -> bool:
    """Whether a proposer looks at wrong pairs of the anchor block."""
    return proposer is not None and not (
        isinstance(proposer, AnchorsOnly) and proposer.anchors_only
    )


def screens_lists(proposer: OnlineMiner | None) -> frozenset[Role]:
    """Roles that a proposer provides only where candidates are drawn for it."""
    return proposer.screens if isinstance(proposer, ScreensCandidates) else frozenset()


def existing_extras(pairs: Pairs, score: Callable[[Pairs], Tensor]) -> Tensor:
    """(P,) scores of listed pairs; -inf, and not asked for, where a place is -1."""
    there = ((pairs.image >= 0) & (pairs.text >= 0)).nonzero().squeeze(1)
    if len(there) == len(pairs.image):
        return score(pairs)
    none = torch.full(pairs.shape, -torch.inf, device=pairs.image.device)
    if not len(there):
        return none
    found = score(Pairs(pairs.image[there], pairs.text[there]))
    return none.to(found.dtype).index_put((there,), found)


# The hardest of many candidates, told by the model in training (UNITER's hard negatives).


@final
class TopScoringMiner:
    """Keeps the hardest candidates of every anchor, in both directions.

    UNITER (Chen et al., "UNITER: universal image-text representation learning", ECCV 2020,
    https://arxiv.org/abs/1909.11740) and TAGS: of 399 random wrong images of a caption, and of as
    many wrong captions of an image, the 31 that score highest are trained on. All are scored in
    evaluation mode and without a graph; what is kept is encoded once more, as in training, where
    the batch does not hold it already. A candidate that is offered twice counts once. Where fewer
    are offered than are kept, the rest are none. Several processes screen the candidates of their
    own anchors; of equal scores the candidate offered first is harder.

    Departs from the authors' code in: images and captions are put together rightly (theirs shows
    captions' candidates a few of the regions only); each anchor may have both directions.

    Args:
        keep: how many of an anchor's candidates are trained on, in each direction.
        at_once: how many items are encoded, and pairs scored, at a time; memory grows with it.

    Raises:
        ValueError: a number below 1.
    """

    provides = screens = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
    provides_words = frozenset[str]()
    anchors_only = True

    def __init__(self, *, keep: int = 31, at_once: int = 512) -> None:
        for name, given in (("keep", keep), ("at_once", at_once)):
            if given < 1:
                raise ValueError(f"{name}={given}: at least 1 is needed")
        self.keep, self.at_once = keep, at_once

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """The hardest candidates of the batch, the same on every process.

        Raises:
            ValueError: there are no candidates.
        """
        if batch.offered is None:
            raise ValueError(
                "there are no candidates to screen; say how many texts and images are offered for "
                "an anchor, as in texts=399, images=399"
            )
        kept = self._kept(model, batch, batch.offered)
        images = _Side.of(
            batch.image_rows, batch.offered[0], {r: pair.image for r, pair in kept.items()}
        )
        texts = _Side.of(
            batch.text_rows, batch.offered[1], {r: pair.text for r, pair in kept.items()}
        )
        pairs = {role: Pairs(images.places[role], texts.places[role]) for role in kept}
        return MinedExtras(images=images.new, texts=texts.new, pairs=pairs)

    def _kept(
        self, model: RetrievalModel, batch: Batch, offered: tuple[ModalityBatch, ModalityBatch]
    ) -> dict[Role, Pairs]:
        """(B, k) data set rows of what is kept, -1 for none; each process asks for its anchors."""
        count = len(batch.anchors.image)
        mine, kept = distributed.shard(count), {}
        with evaluation_mode([model]):
            images = self._encoded(model.encode_images, offered[0])
            texts = self._encoded(model.encode_texts, offered[1])
            for role, pairs in batch.candidates.items():
                share = torch.arange(mine.start, mine.stop, device=pairs.image.device)
                share = share.clamp(max=count - 1)
                some = distinct_candidates(Pairs(pairs.image[share], pairs.text[share]))
                at = Pairs(
                    candidate_places(some.image, offered[0].ids),
                    candidate_places(some.text, offered[1].ids),
                )
                scores = self._offered_scores(model, images, texts, role, at)
                best = hardest_candidates(some, scores.view(some.shape), self.keep)
                kept[role] = Pairs(*(distributed.gather(s).flatten(0, 1)[:count] for s in best))
        return kept

    def _offered_scores(
        self, model: RetrievalModel, images: Embeddings, texts: Embeddings, role: Role, at: Pairs
    ) -> Tensor:
        """Scores of the candidates of a role, -inf where there is none."""
        return existing_extras(
            at.flatten(), lambda pairs: self._scores(model, images, texts, pairs)
        )

    def _encoded(
        self, encode: Callable[[ModalityBatch], Embeddings], items: ModalityBatch
    ) -> Embeddings:
        starts = range(0, len(items), self.at_once)
        return Embeddings.cat([encode(items.rows(slice(s, s + self.at_once))) for s in starts])

    def _scores(
        self, model: RetrievalModel, images: Embeddings, texts: Embeddings, pairs: Pairs
    ) -> Tensor:
        """(P,) scores, a few pairs with what they are made of at a time."""
        found = []
        for start in range(0, len(pairs.image), self.at_once):
            part = slice(start, start + self.at_once)
            image, left = torch.unique(pairs.image[part], return_inverse=True)
            text, right = torch.unique(pairs.text[part], return_inverse=True)
            some = images.rows(image), texts.rows(text)
            found.append(model.score_indices(*some, Pairs(left, right)).float())
        return torch.cat(found)


@final
@dataclass(frozen=True, slots=True)
class _Side:
    """Where the images, or the texts, of what is kept stand.

    Attributes:
        places: by role, in the pool and the new items behind it; -1 for none.
        new: what the pool does not hold, if anything.
    """

    places: Mapping[Role, Tensor]
    new: ModalityBatch | None

    @classmethod
    def of(cls, pool: Tensor, offered: ModalityBatch, kept: Mapping[Role, Tensor]) -> Self:
        """Collect what is kept from the processes to which it was offered.

        Args:
            pool: (P,) data set rows of the batch's pool.
            offered: this process's items.
            kept: (B, k) data set rows by role, the same on every process.
        """
        rows = torch.cat(list(kept.values()), 1)
        pool = pool.to(rows.device)
        wanted = torch.unique(rows)
        wanted = wanted[(wanted >= 0) & ~torch.isin(wanted, pool)]
        known = torch.cat([pool, wanted])
        found = {role: candidate_places(some, known) for role, some in kept.items()}
        if not len(wanted):
            return cls(found, None)
        return cls(found, _collected(wanted, rows, offered))


def distinct_candidates(pairs: Pairs) -> Pairs:
    """(B, N) pairs, both sides -1 where one is or where the same one stands further left."""
    rows = pairs.image * (pairs.text.amax() + 2) + pairs.text
    ordered, order = rows.sort(dim=1, stable=True)
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    none = torch.zeros_like(again).scatter(1, order, again) | (pairs.image < 0) | (pairs.text < 0)
    return Pairs(pairs.image.masked_fill(none, -1), pairs.text.masked_fill(none, -1))


def hardest_candidates(pairs: Pairs, scores: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """(B, k) image and text of the pairs that score highest, -1 where the score is -inf."""
    ranked, order = scores.sort(dim=1, descending=True, stable=True)
    order, none = order[:, :keep], ranked[:, :keep].isneginf()
    image, text = pairs.image.gather(1, order), pairs.text.gather(1, order)
    return image.masked_fill(none, -1), text.masked_fill(none, -1)


def candidate_places(rows: Tensor, known: Tensor) -> Tensor:
    """Where rows stand among those that are known, for the first time; -1 where a row is -1."""
    ordered, order = known.sort(stable=True)
    found = order[torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(known) - 1)]
    return found.masked_fill(rows < 0, -1)


def _collected(wanted: Tensor, kept: Tensor, offered: ModalityBatch) -> ModalityBatch:
    """The items of rows that some process was offered, on every process.

    Args:
        wanted: (U,) data set rows, ascending.
        kept: (B, N) which anchors keep them.
        offered: this process's items.
    """
    each = -(-len(kept) // distributed.size())
    anchor = torch.arange(len(kept), device=kept.device).unsqueeze(1).expand_as(kept)
    at = torch.searchsorted(wanted, kept.contiguous()).clamp(max=len(wanted) - 1)
    there = wanted[at] == kept
    first = torch.full_like(wanted, len(kept)).scatter_reduce(0, at[there], anchor[there], "amin")
    holder = first // each
    most = int(holder.bincount(minlength=distributed.size()).max())
    own = wanted[holder == distributed.rank()]
    own = torch.cat([own, offered.ids[:1].expand(most - len(own))])
    whole = gather_batches(
        offered.rows(candidate_places(own, offered.ids)), most * distributed.size()
    )
    return whole.rows(candidate_places(wanted, whole.ids))


# Several proposers in one step.


@final
class MinerChain:
    """What several proposers propose for the same batch, as TAGS screens and writes at once.

    Args:
        proposers: in the order in which they draw.

    Raises:
        ValueError: there are none, or two provide the same role or word task.
    """

    def __init__(self, *, proposers: tuple[OnlineMiner, ...]) -> None:
        if not proposers:
            raise ValueError("proposers=() propose nothing; name at least one")
        self.proposers = proposers
        self.provides, self.screens = frozenset[Role](), frozenset[Role]()
        self.provides_words = frozenset[str]()
        for one in proposers:
            twice = [role.value for role in self.provides & one.provides]
            twice += self.provides_words & one.provides_words
            if twice:
                raise ValueError(
                    f"{type(one).__name__} and another proposer both provide "
                    f"{', '.join(repr(name) for name in sorted(twice))}; drop one of the two"
                )
            self.provides |= one.provides
            self.provides_words |= one.provides_words
            self.screens |= screens_lists(one)
        self.anchors_only = not any(reads_whole_block(one) for one in proposers)

    def check(self, model: RetrievalModel) -> None:
        """Whether all of them go with a model.

        Raises:
            ValueError: one does not.
        """
        for one in self.proposers:
            if isinstance(one, ChecksLoss):
                one.check(model)

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """All proposals as one."""
        images: list[ModalityBatch] = []
        texts: list[ModalityBatch] = []
        pairs: dict[Role, Pairs] = {}
        words: dict[str, WordTask] = {}
        scores: dict[Role, Tensor] = {}
        pools = len(batch.image_rows), len(batch.text_rows)
        for one in self.proposers:
            found = one.propose(model, batch, views, grid, rng)
            for role, pair in found.pairs.items():
                pairs[role] = Pairs(
                    _behind(pair.image, pools[0], images), _behind(pair.text, pools[1], texts)
                )
            words.update(found.words)
            scores.update(found.scores)
            images += [found.images] if found.images else []
            texts += [found.texts] if found.texts else []
        return MinedExtras(
            texts=join_batches(texts) if texts else None,
            pairs=pairs,
            words=words,
            images=join_batches(images) if images else None,
            scores=scores,
        )


def _behind(place: Tensor, pool: int, before: list[ModalityBatch]) -> Tensor:
    """Places in which new items stand behind those that were proposed before."""
    return torch.where(place >= pool, place + sum(len(items) for items in before), place)
