"""Online miners: negatives chosen or made by the model in training, for the batch at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
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
    Needs,
    Pairs,
    Role,
)
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import check_positive, full_precision
from counterfoil.negatives.sampling import CandidateConfig, RoleSubset, SamplingConfig
from counterfoil.negatives.sources import ListedSource, MinedExtras, Negatives
from counterfoil.scoring.encode import (
    evaluation_mode,
    gather_batches,
    gather_shards,
)


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


CANDIDATES, _WHOLE_LISTS = CandidateConfig(texts=399, images=399), SamplingConfig()


@final
class TopScoringMiner(ListedSource):
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
        candidates: how many of each anchor, and where they come from.
        negatives: the lists that candidates come from, where their source is "mined".
        sampling: how far down these lists.

    Raises:
        ValueError: a number below 1, no candidates, or lists where none are read or the reverse.
    """

    anchors_only = True
    seed_name = "candidates"

    def __init__(
        self,
        *,
        keep: int = 31,
        at_once: int = 512,
        candidates: CandidateConfig = CANDIDATES,
        negatives: Negatives | None = None,
        sampling: SamplingConfig = _WHOLE_LISTS,
    ) -> None:
        super().__init__(negatives)
        check_positive(keep=keep, at_once=at_once)
        self.keep, self.at_once = keep, at_once
        self.offer, self.sampling = candidates, sampling
        if not candidates.provides:
            raise ValueError(
                "there are no candidates to choose from; say how many texts and images are offered "
                "for an anchor, as in CandidateConfig(texts=399, images=399)"
            )
        if (candidates.source == "mined") != (negatives is not None):
            raise ValueError(
                f"candidates of the source {candidates.source!r} are drawn "
                + (
                    "from lists, and none are given; set negatives"
                    if negatives is None
                    else 'from all data, not from lists; leave negatives out, or set source="mined"'
                )
            )
        self.gives = Needs(roles=candidates.provides)
        self._candidates: RoleSubset | None = None

    @property
    def depth(self) -> tuple[int, int]:
        sampled, offer = self.sampling, self.offer
        return max(sampled.texts, offer.texts), max(sampled.images or 0, offer.images)

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Make the sampler of the candidates that the loss needs."""
        sampler = self.offer.draws(data.dataset.relation, self.lists, self.sampling)
        self._candidates = RoleSubset(sampler, loss.needs.roles)

    def describe(self) -> dict[str, Any]:
        settings = {"candidates": asdict(self.offer), "sampling": asdict(self.sampling)}
        return {**super().describe(), **settings}

    def candidates(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) anchor texts, by role, each (B, texts or images)."""
        assert self._candidates is not None, "`begin` makes it"
        return self._candidates.draw(texts, rng)

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
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
            scores.append(full_precision(model.score_indices(*items, Pairs(left, right))))
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
