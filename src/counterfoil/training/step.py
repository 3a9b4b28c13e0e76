"""One training step, as one module: encode, score the block, ask the sources, score pairs, losses.

Where neither the loss nor a source reads wrong pairs of the block, only its anchor
pairs are scored. Where the whole training split is one batch, the loss is computed from the vectors
in tiles, and no block exists.

Several processes share the work and agree on the loss. Each encodes its share of the pools and
scores its share of the block's rows and of the pairs; encodings and scores are gathered with their
gradients, and every process computes the losses of the same scores. The mean of gradients over
processes is then exactly the gradient of one process with the whole batch.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from counterfoil.core import distributed
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ExemptPairs,
    ExtraPositives,
    ModalityBatch,
    Needs,
    Pairs,
    Precision,
    Role,
    ScoreMatrix,
    Scores,
    VectorScores,
    WordTask,
)
from counterfoil.losses.base import Loss, TiledLoss, WeightedSum, full_precision
from counterfoil.models.base import RetrievalModel, SingleVectorModel
from counterfoil.negatives.online import existing_extras
from counterfoil.negatives.sources import (
    MinedExtras,
    NegativeSource,
    having,
    named,
    overrides,
)
from counterfoil.negatives.teachers import Mask
from counterfoil.scoring.encode import (
    concatenate_batches,
    gather_parts,
    gather_shards,
    shard_index,
)
from counterfoil.training.checkpoint import derive_seed
from counterfoil.training.config import TrainConfig, clip_gradients
from counterfoil.training.logging import StepMonitor

# The interface between a training loop and what it trains.


class BatchLike(Protocol):
    """A batch, the same on every process but for the items that each one reads."""

    @property
    def anchors(self) -> Pairs:
        """(B,) the pairs that are learnt from, on all processes together."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """Move the batch to another device."""
        ...


B = TypeVar("B", bound=BatchLike)
B_co = TypeVar("B_co", bound=BatchLike, covariant=True)


class BatchSource(Protocol[B_co]):
    """The batches of a training, each the same from the same seed wherever it begins."""

    @property
    def sampler(self) -> Sized:
        """Its length is the batches in an epoch."""
        ...

    def batches(self, start: int = 0) -> Iterator[B_co]:
        """Batch `start` of the training and those after it."""
        ...


class TrainableModule(nn.Module, ABC, Generic[B]):
    """A module that maps a batch to named losses, for DistributedDataParallel to wrap."""

    model: RetrievalModel
    watch: StepMonitor  # records figures of logged steps
    pace: Fraction = Fraction(1)  # steps of the schedules of the loss in one step of the training

    @abstractmethod
    def forward(self, batch: B) -> dict[str, Tensor]:
        """Weighted losses by name, of the whole batch; their sum is minimised."""

    @abstractmethod
    def level(self, batch: B) -> Tensor | None:
        """The loss if all scores were equal; None where it is unknown or meaningless."""


# The views of a batch of which each process has made a share.


def gather_views(batch: Batch, share: EncodedViews) -> EncodedViews:
    """The views of the whole batch; the model's own losses are added up over processes."""
    views = {
        name: EncodedBatch(
            gather_parts(view.images, len(batch.image_rows) * view.repeats),
            gather_parts(view.texts, len(batch.text_rows) * view.repeats),
            view.repeats,
        )
        for name, view in share.views.items()
    }
    auxiliary = {
        name: distributed.gather_rows(loss.reshape(1)).sum()
        for name, loss in share.auxiliary.items()
    }
    return replace(share, views=views, auxiliary=auxiliary)


# Scores of the anchors of a batch: of all images with all texts, or of the anchor pairs alone.


def score_whole_block(model: RetrievalModel, batch: Batch, view: EncodedBatch) -> Tensor:
    """(I, T) scores of every anchor image with every anchor text, and of their copies."""
    images = view.images.rows(slice(batch.block[0] * view.repeats))
    texts = view.texts.rows(slice(batch.block[1] * view.repeats))
    return gather_shards(
        len(images),
        lambda rows: model.score_matrix(images.rows(rows), texts),
        batch.device,
    )


def score_anchor_pairs(model: RetrievalModel, batch: Batch, view: EncodedBatch) -> Tensor:
    """(I, T) scores of the anchor pairs; unused entries are NaN."""
    assert view.repeats == 1
    image, text = batch.anchors.image, batch.anchors.text
    scores = gather_shards(
        len(image),
        lambda rows: model.score_indices(view.images, view.texts, Pairs(image[rows], text[rows])),
        batch.device,
    )
    empty = torch.full(batch.block, torch.nan, dtype=scores.dtype, device=scores.device)
    return empty.index_put((image, text), scores)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bfloat16, or nothing for "fp32"."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


OWN = "model_"  # begins the names of losses that are the model's own


@final
class TrainingStep(TrainableModule[Batch]):
    """A module that maps a batch to its weighted losses by name.

    Args:
        model: the model in training.
        objective: the loss.
        sources: of negatives and targets, which have begun, see `NegativeSource`; what they draw
            before a batch is encoded is in the batch already.
        precision: "bf16" encodes and scores under autocast; losses are float32 at least.
        seed: of what sources draw once the batch is scored.
        chunk: images and texts encoded at a time (GradCache), so that memory for encoding does not
            grow with the batch; 0 for all. Every piece is encoded once more in the backward pass,
            with the same dropout. Equal to the plain gradient, but running statistics of
            normalisation move twice and the model's own losses are added up over the pieces. The
            idea is that of Gao et al., 2021 (https://arxiv.org/abs/2101.06983).
        tiled: compute the loss from the vectors in tiles, so that memory does not grow with the
            product of images and texts; see `check_tiled`.
        pace: steps that the schedules of the loss go on in one step; above 1 a warm-up is shorter.

    Raises:
        ValueError: see `check_sources`, or something needs the score matrix of a tiled loss.
    """

    def __init__(
        self,
        model: RetrievalModel,
        objective: WeightedSum,
        *,
        sources: Sequence[NegativeSource] = (),
        precision: Precision = "fp32",
        seed: int = 0,
        chunk: int = 0,
        tiled: bool = False,
        pace: Fraction = Fraction(1),
    ) -> None:
        super().__init__()
        if tiled:
            check_tiled(objective, model, source_names(sources))
        check_sources(objective, model, sources)
        self.model, self.objective = model, objective
        # in tuples, so that modules inside the sources are not registered: they are frozen, belong
        # in no checkpoint, and DDP must not see them
        self._proposing = tuple(
            (name, source) for name, source in named(sources) if overrides(source, "propose")
        )
        self._teachers = having(sources, "targets")[:1]
        self._masks = tuple(source for source in sources if isinstance(source, Mask))
        # but a source with a state of its own is saved with the training
        self.stateful = nn.ModuleList(
            source for source in sources if source.saved and isinstance(source, nn.Module)
        )
        anchors_only = all(source.anchors_only for _, source in self._proposing)
        self.scores_anchors_only = anchors_only and not objective.needs.block
        self.precision, self.seed, self.chunk, self.tiled = precision, seed, chunk, tiled
        self._flat: Tensor | None = None
        self._copies: dict[str, int] = {}
        self._proposed: tuple[int, dict[Role, Tensor]] = -1, {}
        self.watch, self.pace = StepMonitor(), pace

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Weighted losses by name, the model's own among them; their sum is minimised."""
        return self.compute_losses(batch, self.encode(batch))

    def encode(self, batch: Batch) -> EncodedViews:
        """Encode this process's share of the batch."""
        if not self.chunk:
            return self._encode(batch)
        # the tensors are given so that `checkpoint` keeps the random state of their device
        return _concatenate(
            [
                checkpoint(
                    lambda *_, piece=piece: self._encode(piece),
                    piece.images.values,
                    piece.texts.values,
                    use_reentrant=False,
                )
                for piece in _pieces(batch, self.chunk)
            ]
        )

    def _encode(self, batch: Batch) -> EncodedViews:
        with autocast(self.precision, batch.device):
            views: EncodedViews = self.model(batch)
        return views

    def compute_losses(self, batch: Batch, share: EncodedViews) -> dict[str, Tensor]:
        """Losses of the whole batch; `share` is what `encode` returns on this process."""
        if self.tiled:
            return self._tiled_losses(batch, gather_views(batch, share))
        with autocast(self.precision, batch.device):
            views = self._with_batch_context(batch, gather_views(batch, share))
            matrices = self._matrices(batch, views)
            self._copies = {name: matrix.repeats for name, matrix in matrices.items()}
            proposal = self._proposal(batch, views, matrices[INFERENCE].scores)
            pairs = self._pairs(batch, views, proposal)
        roles = {*proposal.pairs, *proposal.scores}
        self._proposed = batch.step, {role: pairs[role].isneginf() for role in roles}
        vectors = _anchor_vectors(batch, views) if self.objective.needs.vectors else None
        losses = self._losses(batch, matrices, pairs, proposal.words, vectors)
        self.watch.record(matrices, losses, pairs)
        return {**losses, **_own_losses(views)}

    def _tiled_losses(self, batch: Batch, views: EncodedViews) -> dict[str, Tensor]:
        view = views.inference
        vectors = _vectors(batch, view.images.tokens[:, 0], view.texts.tokens[:, 0])
        losses = self.objective.tiled(vectors)
        self.watch.record_tiled(vectors)
        return {**losses, **_own_losses(views)}

    @torch.no_grad()
    def level(self, batch: Batch) -> Tensor | None:
        """The loss if all scores were equal: 2·B·margin for a hinge on the hardest negative.

        None where it is unknown: for word losses, losses of embeddings, and for proposed pairs
        before this batch's losses; and for a module of the user, whose state a call may change.
        """
        if any(isinstance(p, Loss) and not p.pure for p in self.objective.modules()):
            return None
        if self.tiled:
            if self._flat is None:  # the same of every batch, which is the whole split
                sides = [torch.zeros(size, 1, device=batch.device) for size in batch.block]
                losses = self.objective.tiled(_vectors(batch, *sides))
                self._flat = torch.stack(list(losses.values())).sum()
            return self._flat
        step, proposed = self._proposed
        none = proposed if step == batch.step else {}
        needs = self.objective.needs
        if needs.roles - {*batch.pairs, *none} or needs.words or needs.vectors:
            return None
        # run the objective itself on zeros: no formula per loss, and schedules, guides and margins
        # count as they do in training
        flat = torch.zeros(batch.block, device=batch.device)
        matrices = {}
        for name in self._wanted(batch):
            copies = self._copies.get(name, 1)  # as in the previous batch
            zeros = flat.new_zeros(batch.block[0] * copies, batch.block[1] * copies)
            matrices[name] = self._score_matrix(batch, zeros, name)
        pairs = {role: flat.new_zeros(pair.shape) for role, pair in batch.pairs.items()}
        pairs |= {r: flat.new_zeros(n.shape).masked_fill(n, -torch.inf) for r, n in none.items()}
        losses = self._losses(batch, matrices, pairs, {})
        return torch.stack(list(losses.values())).sum()

    def _losses(
        self,
        batch: Batch,
        matrices: Mapping[str, ScoreMatrix],
        pairs: Mapping[Role, Tensor],
        words: Mapping[str, WordTask],
        vectors: VectorScores | None = None,
    ) -> dict[str, Tensor]:
        guides = {
            role: teacher.pair_targets(batch, batch.pairs[role])
            for teacher in self._teachers
            for role in self.objective.needs.pair_targets
        }
        seed = derive_seed(self.seed, "judge", batch.step)
        step = self._scheduled(batch)
        losses: dict[str, Tensor] = self.objective(
            Scores(matrices, self._masked(batch, pairs), words, step, guides, seed, vectors)
        )
        return losses

    def _scheduled(self, batch: Batch) -> int:
        """The step that the schedules of the loss are at."""
        return int(batch.step * self.pace)

    def _wanted(self, batch: Batch) -> frozenset[str]:
        return self.objective.views_at(self._scheduled(batch)) | {INFERENCE}

    def _with_batch_context(self, batch: Batch, views: EncodedViews) -> EncodedViews:
        """Add views that depend on the whole batch, with the same dropout on every process."""
        if not self.model.uses_batch_context:
            return views
        device = batch.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.seed, "relate", batch.step))
            return self.model.batch_forward(batch, views, self._wanted(batch))

    def _matrices(self, batch: Batch, views: EncodedViews) -> dict[str, ScoreMatrix]:
        """Scores of the anchor block, in the view for inference and in those that losses read."""
        matrices = {}
        for name in sorted(self._wanted(batch)):
            view = views.views[name]
            only = self.scores_anchors_only and name == INFERENCE and view.repeats == 1
            score = score_anchor_pairs if only else score_whole_block
            scores = self.model.loss_scores(score(self.model, batch, view))
            matrices[name] = self._score_matrix(batch, scores, name)
        return matrices

    def _score_matrix(self, batch: Batch, scores: Tensor, name: str) -> ScoreMatrix:
        guided = self.objective.needs.targets and name == INFERENCE
        known: dict[
            int, Tensor
        ] = {}  # targets by their source, which the loss and a mask may share
        for source in (*(self._teachers if guided else ()), *self._asked):
            if id(source) not in known:
                known[id(source)] = source.targets(batch)
        targets = known[id(self._teachers[0])] if guided else None
        out = self._left_out(batch, known)
        copies = len(scores) // batch.block[0]
        image, text = batch.anchors.image, batch.anchors.text
        blocks = scores.view(batch.block[0], copies, batch.block[1], copies)
        positive = batch.positive
        if copies > 1:
            positive = positive.repeat_interleave(copies, 0).repeat_interleave(copies, 1)
        if out is not None:
            out = out.repeat_interleave(copies, 0).repeat_interleave(copies, 1)
            scores = scores.masked_fill(out, -torch.inf)
        return ScoreMatrix(
            scores=scores,
            positive=positive,
            anchor=blocks[image, :, text].flatten(1).amin(1),
            guide=targets,
            scale=self.model.loss_scale,
            name=name,
            repeats=copies,
            extra=_extra_positives(batch.exempt, blocks) if batch.exempt else None,
        )

    def _left_out(self, batch: Batch, targets: Mapping[int, Tensor]) -> Tensor | None:
        """(I, T) bool, pairs that are no negatives, or that a mask takes for true."""
        out, positive = None, batch.positive
        if self._asked:
            for mask in self._masks:
                true = mask.rule.block(targets[id(mask.guide)], positive, batch.anchors)
                out = true if out is None else out | true
        if batch.equal is not None:
            rows = batch.image_rows[: batch.block[0]], batch.text_rows[: batch.block[1]]
            places = tuple(part.to(batch.device) for part in batch.equal.places(*rows))
            out = torch.zeros_like(positive) if out is None else out
            out = out.index_put(places, out.new_ones(())) & ~positive
        if batch.exempt is None:
            return out
        out = torch.zeros_like(positive) if out is None else out
        return out.index_put((batch.exempt.block.image, batch.exempt.block.text), out.new_ones(()))

    @property
    def _asked(self) -> tuple[NegativeSource, ...]:
        """The guides of masks, where the block is scored."""
        return () if self.scores_anchors_only else tuple(mask.guide for mask in self._masks)

    def _masked(self, batch: Batch, pairs: Mapping[Role, Tensor]) -> Mapping[Role, Tensor]:
        """Scores by role, -inf at drawn pairs that corrections or the guide take for true."""
        if batch.exempt is not None:
            exempt = batch.exempt.negatives
            pairs = {
                r: p.masked_fill(exempt[r], -torch.inf) if r in exempt else p
                for r, p in pairs.items()
            }
        roles = [role for role in Role if role in self.objective.needs.roles & {*batch.pairs}]
        masked = dict(pairs)
        for mask in self._masks if roles else ():
            anchors = Pairs(batch.anchors.image.unsqueeze(1), batch.anchors.text.unsqueeze(1))
            limit = mask.rule.limits(mask.guide.pair_targets(batch, anchors))
            for role in roles:
                out = mask.guide.pair_targets(batch, batch.pairs[role]) > limit
                masked[role] = masked[role].masked_fill(out, -torch.inf)
        return masked

    def _proposal(self, batch: Batch, views: EncodedViews, scores: Tensor) -> MinedExtras:
        """The additions of all sources as one: new items stand one behind the other."""
        found = []
        for name, source in self._proposing:
            rng = torch.Generator().manual_seed(derive_seed(self.seed, name, batch.step))
            found.append(source.propose(self.model, batch, views, scores, rng))
        if len(found) == 1:
            return found[0]
        return join_extras(found, (len(batch.image_rows), len(batch.text_rows)))

    def _pairs(
        self, batch: Batch, views: EncodedViews, proposal: MinedExtras
    ) -> dict[Role, Tensor]:
        """(B, N) scores by role, as losses read them, from one call of the model."""
        wanted = {**batch.pairs, **proposal.pairs}
        if not wanted:
            return {r: self.model.loss_scores(scores) for r, scores in proposal.scores.items()}
        images, texts = views.inference.images, views.inference.texts
        images = _append_items(images, proposal.images, self.model.encode_images)
        texts = _append_items(texts, proposal.texts, self.model.encode_texts)
        flat = Pairs(
            torch.cat([pair.image.flatten() for pair in wanted.values()]),
            torch.cat([pair.text.flatten() for pair in wanted.values()]),
        )
        scores = existing_extras(
            flat,
            lambda there: gather_shards(
                len(there.image),
                lambda rows: self.model.score_indices(
                    images, texts, Pairs(there.image[rows], there.text[rows])
                ),
                batch.device,
            ),
        )
        parts = torch.split(scores, [pair.image.numel() for pair in wanted.values()])
        by_role = {r: part.view(wanted[r].shape) for r, part in zip(wanted, parts, strict=True)}
        return {r: self.model.loss_scores(s) for r, s in {**by_role, **proposal.scores}.items()}


def _extra_positives(exempt: ExemptPairs, blocks: Tensor) -> ExtraPositives | None:
    """Extra positives among the (I, r, T, r) scores of a block, the lowest of the copies of each.

    None if there are none.
    """
    true = exempt.weight > 0
    if not bool(true.any()):
        return None
    image, text = exempt.block.image[true], exempt.block.text[true]
    score = blocks[image, :, text].flatten(1).amin(1)
    return ExtraPositives(image, text, score, exempt.weight[true])


def _vectors(batch: Batch, images: Tensor, texts: Tensor) -> VectorScores:
    """The anchors of a batch, with their vectors."""
    exempt = batch.exempt
    block, weight = (exempt.block, exempt.weight) if exempt else (None, None)
    rows = batch.image_rows[: batch.block[0]], batch.text_rows[: batch.block[1]]
    equal = batch.equal and batch.equal.select(*rows)
    return VectorScores(
        images,
        texts,
        batch.anchors.image,
        block,
        weight,
        equal and equal.to(batch.device),
        rows[0],
    )


def _anchor_vectors(batch: Batch, views: EncodedViews) -> VectorScores:
    """The vectors of the anchors, for losses that read them."""
    sides = views.inference.images, views.inference.texts
    images, texts = (
        full_precision(s.tokens[:n, 0]) for s, n in zip(sides, batch.block, strict=True)
    )
    return _vectors(batch, images, texts)


def _own_losses(views: EncodedViews) -> dict[str, Tensor]:
    return {f"{OWN}{name}": loss for name, loss in views.auxiliary.items()}


def _append_items(
    pool: Embeddings, proposed: ModalityBatch | None, encode: Callable[[ModalityBatch], Embeddings]
) -> Embeddings:
    """A pool with the proposed items appended."""
    if proposed is None:
        return pool
    new = encode(proposed.rows(shard_index(len(proposed), pool.tokens.device)))
    return Embeddings.cat([pool, gather_parts(new, len(proposed))])


def join_extras(found: Sequence[MinedExtras], pools: tuple[int, int]) -> MinedExtras:
    """Additions of several sources as one; `pools` are the images and texts of the batch."""
    images: list[ModalityBatch] = []
    texts: list[ModalityBatch] = []
    pairs: dict[Role, Pairs] = {}
    words: dict[str, WordTask] = {}
    scores: dict[Role, Tensor] = {}
    for extras in found:
        for role, pair in extras.pairs.items():
            pairs[role] = Pairs(
                _behind(pair.image, pools[0], images), _behind(pair.text, pools[1], texts)
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


def _behind(place: Tensor, pool: int, before: list[ModalityBatch]) -> Tensor:
    """Move the places of new items behind those of earlier sources."""
    return torch.where(place >= pool, place + sum(len(items) for items in before), place)


# What a loss needs and what the sources give, compared once.


_WAYS = {  # to get what is missing
    **dict.fromkeys(
        (Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION),
        "mine them from the training split and give sources=[Mined(negatives)]",
    ),
    Role.WRITTEN: "give a source that writes captions, such as GeneratedCaptions",
    **dict.fromkeys(
        (Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR),
        "give foils with their pictures, sources=[Foils(file)]",
    ),
    **dict.fromkeys(
        (Role.QUEUE_TEXT, Role.QUEUE_IMAGE, Role.KEY_TEXT, Role.KEY_IMAGE),
        "give sources=[MomentumQueue()]",
    ),
    **dict.fromkeys(
        (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE),
        "give a source that edits captions and images, such as CounterfactualSampler",
    ),
}


def check_sources(
    objective: WeightedSum,
    model: RetrievalModel | None,
    sources: Sequence[NegativeSource],
) -> None:
    """Refuse a loss that needs what no source gives, and sources that give nothing it needs.

    The model may not be there yet.

    Raises:
        ValueError: so, or a view of the batch that the model does not have, or two sources of one
            role, word task or kind of targets.
    """
    for source in sources:
        if not isinstance(source, NegativeSource):
            raise ValueError(
                f"sources holds a {type(source).__name__}; give sources of negatives, such as "
                "Mined(negatives), in a list"
            )
    needs, losses = objective.needs, _names(objective)
    given = Needs(block=False)
    for source in sources:
        name, twice = type(source).__name__, given & source.gives
        if twice:
            raise ValueError(
                f"{name} and another source both give {_what(twice)}; leave one of the two out"
            )
        if source.gives and not source.gives & needs:
            raise ValueError(
                f"{name} gives {_what(source.gives)}, and the loss {losses} needs none of it; "
                "choose a loss that does, such as AdaptiveQuintuplet() for mined negatives, or "
                "leave the source out"
            )
        given |= source.gives
    if model is not None and (views := objective.views - model.score_names):
        raise ValueError(
            f"the loss {losses} reads the scores of {', '.join(sorted(map(repr, views)))}, and "
            f"{type(model).__name__} makes: {', '.join(sorted(map(repr, model.score_names)))}"
        )
    if model is not None:
        check_vectors(objective, type(model))
    if missing := needs.roles - given.roles:
        ways = dict.fromkeys(_WAYS[role] for role in Role if role in missing)
        raise ValueError(
            f"the loss {_names(objective, lambda needs: needs.roles & missing)} needs "
            f"{_what(Needs(roles=missing))}, which no source gives; "
            f"{'; '.join(ways)}, or choose a loss that needs the batch alone, such as "
            "HardestTripletLoss()"
        )
    if tasks := needs.words - given.words:
        asking = _names(objective, lambda needs: needs.words & tasks)
        raise ValueError(
            f"the loss {asking} needs {_what(Needs(words=tasks))}, which no source gives; give one "
            "that does, such as TagsGenerator, with these tasks in words"
        )
    _check_targets(objective, given, sources)


def _names(objective: WeightedSum, ask: Callable[[Needs], object] = lambda needs: True) -> str:
    """Classes of the terms of a loss whose own needs are asked for."""
    terms = (cast("Loss", term) for term in objective.terms.values())
    asked = (term for term in terms if ask(term.needs))
    return ", ".join(sorted({term.title for term in asked}))


def _check_targets(objective: WeightedSum, given: Needs, sources: Sequence[NegativeSource]) -> None:
    """Refuse a loss, or a mask, without the target similarities that it reads."""
    needs = objective.needs
    if needs.targets and not given.targets:
        asking = _names(objective, lambda needs: needs.targets)
        raise ValueError(
            f"the loss {asking} needs a guide that says how similar images and texts ought to be, "
            "and there is none; give sources=[Teachers(model)]"
        )
    drawn = Needs()
    for source in having(sources, "draw"):
        drawn |= source.gives
    if wrong := needs.pair_targets - (given.pair_targets & drawn.roles):
        raise ValueError(
            f"the loss {_names(objective, lambda needs: needs.pair_targets & wrong)} needs targets "
            f"of {_what(Needs(roles=wrong))} too, and no source "
            "gives them for drawn pairs; give sources=[Mined(negatives), Teachers(model)]"
        )
    for mask in sources:
        if isinstance(mask, Mask) and drawn.roles - mask.guide.gives.pair_targets:
            raise ValueError(
                f"a mask leaves out what its guide takes for true, and {type(mask.guide).__name__} "
                "does not score drawn pairs; give it Teachers(model), or leave the mask out"
            )


def _what(needs: Needs) -> str:
    """What is needed, or given, in words."""
    roles = ", ".join(sorted(repr(role.value) for role in needs.roles))
    words = ", ".join(sorted(map(repr, needs.words)))
    parts = [f"pairs in the role of {roles}"] if roles else []
    parts += [f"the word tasks {words}"] if words else []
    parts += ["targets"] if needs.targets or needs.pair_targets else []
    return " and ".join(parts)


def check_vectors(objective: WeightedSum, model: type[RetrievalModel]) -> None:
    """Refuse a loss of embeddings for a model that makes several vectors of an item.

    Raises:
        ValueError: so.
    """
    if objective.needs.vectors and not issubclass(model, SingleVectorModel):
        raise ValueError(
            f"the loss {_names(objective, lambda needs: needs.vectors)} reads one vector of every "
            f"image and caption, and {model.__name__} is no model of one vector an item; train one "
            "that is, such as a CLIP, or choose a loss of scores"
        )


def source_names(sources: Iterable[NegativeSource]) -> list[str]:
    """The classes of sources, by name."""
    return [type(source).__name__ for source in sources]


def check_tiled(
    objective: WeightedSum,
    model: RetrievalModel | type[RetrievalModel] | None = None,
    others: Iterable[str] = (),
) -> None:
    """Refuse a whole split as one batch where something needs its score matrix.

    The model is given as such or by its class, or is not known yet; `others` names further inputs
    of the training, which are not possible then.

    Raises:
        ValueError: something does.
    """
    wrong = [
        f"the loss {cast('Loss', term).title}"
        for term in objective.terms.values()
        if not isinstance(term, TiledLoss) or cast("Loss", term).view != INFERENCE
    ]
    kind = model if isinstance(model, type) else type(model)
    if model and (not issubclass(kind, SingleVectorModel) or model.uses_batch_context):
        wrong.append(f"the model {kind.__name__}")
    wrong += others
    if wrong:
        raise ValueError(
            "batch=0 makes the whole training split one batch, whose score matrix is never held, "
            f"but {', '.join(wrong)} would need it; allowed are HardestTripletLoss and InfoNCELoss "
            "on a model with one vector per item, such as FrozenAdapters, without mined, proposed "
            "or guided negatives; leave the others out, or set batch to a number of captions"
        )


# Less memory: activations that are computed again, and pieces that are encoded one after another.


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Let the transformers inside a model compute their activations again in the backward pass.

    Chen et al., 2016 (https://arxiv.org/abs/1604.06174), as transformers and open_clip do it, layer
    by layer and while training only.

    Raises:
        ValueError: there is none in it that can.
    """
    switches: list[tuple[Callable[[], object], Callable[[], object]]] = []
    inside: set[nn.Module] = set()  # of a model that is switched as a whole
    for part in model.modules():
        found: Any = part
        if part in inside:
            continue
        if getattr(part, "supports_gradient_checkpointing", False):
            # transformers 5.23 gave both methods other names; the other kind of checkpoint needs
            # inputs that have a gradient
            ours = "activation" if hasattr(part, "activation_checkpointing_enable") else "gradient"
            on = getattr(found, f"{ours}_checkpointing_enable")
            off = getattr(found, f"{ours}_checkpointing_disable")
            switches.append((partial(on, {"use_reentrant": False}), off))
        elif hasattr(part, "set_grad_checkpointing"):
            on = found.set_grad_checkpointing
            switches.append((partial(on, True), partial(on, False)))
        else:
            continue
        inside.update(part.modules())
    if not switches:
        raise ValueError(
            f"gradient checkpointing computes the activations of transformer layers again, and "
            f"{type(model).__name__} holds no model of transformers, sentence-transformers or "
            "open_clip in training; leave gradient_checkpointing out, or set grad_cache to encode "
            "that many items at a time"
        )
    for on, _ in switches:
        on()
    try:
        yield
    finally:
        for _, off in switches:
            off()


def _pieces(batch: Batch, chunk: int) -> Iterator[Batch]:
    """The batch in pieces of about `chunk` images and texts, none of them empty."""
    fewest, most = sorted((len(batch.images), len(batch.texts)))
    count = min(fewest, -(-most // chunk))
    images = torch.arange(len(batch.images)).tensor_split(count)
    texts = torch.arange(len(batch.texts)).tensor_split(count)
    for some, others in zip(images, texts, strict=True):
        yield replace(
            batch,
            images=batch.images.rows(slice(int(some[0]), int(some[-1]) + 1)),
            texts=batch.texts.rows(slice(int(others[0]), int(others[-1]) + 1)),
        )


def _concatenate(parts: Sequence[EncodedViews]) -> EncodedViews:
    """The views of the whole share."""
    views = {
        name: EncodedBatch(
            Embeddings.cat([part.views[name].images for part in parts]),
            Embeddings.cat([part.views[name].texts for part in parts]),
            view.repeats,
        )
        for name, view in parts[0].views.items()
    }
    auxiliary = {
        name: torch.stack([part.auxiliary[name] for part in parts]).sum()
        for name in parts[0].auxiliary
    }
    return EncodedViews(views, auxiliary)


@final
class OptimizerStep(Generic[B]):
    """Updates the parameters of a training step once for each group of batches.

    Attributes:
        optimiser: of the moving parameters.
        rate: the learning rate of the last step.
    """

    def __init__(self, plan: TrainConfig, step: TrainableModule[B]) -> None:
        self.plan, self.step = plan, step
        self.optimiser = plan.optimiser.build(step)
        self._parameters = [p for p in step.parameters() if p.requires_grad]
        distributed.broadcast_from_first(step.state_dict().values())
        self._parallel = None
        if distributed.size() > 1:  # losses that start later leave parameters unused until then
            warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
            self._parallel = DistributedDataParallel(step, find_unused_parameters=True)
        self._last_objective = torch.zeros(())
        self.rate = 0.0

    def __call__(self, group: Sequence[B], factor: float, *, epoch: int = 0) -> dict[str, Tensor]:
        """Make one step; return mean losses and the norm of the gradient.

        Gradients of the batches in the group are averaged; `factor` multiplies the learning rates;
        `epoch` counts whole epochs made before.
        """
        self.plan.optimiser.unfreeze(self.optimiser, epoch)
        self.optimiser.zero_grad()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(group):
            losses = self._backward(batch, 1 / len(group), last=number == len(group) - 1)
            sums = {name: sums.get(name, 0) + loss for name, loss in losses.items()}
        means = {f"loss_{name}": total / len(group) for name, total in sums.items()}
        norm = clip_gradients(self._parameters, self.plan.optimiser.clip)
        self.rate = self.plan.optimiser.set_rate(self.optimiser, factor)
        self.optimiser.step()
        # running statistics differ between processes
        distributed.broadcast_from_first(self.step.buffers())
        loss_terms = [loss for name, loss in losses.items() if not name.startswith(OWN)]
        self._last_objective = torch.stack(loss_terms).sum()
        total = torch.stack(list(means.values())).sum()
        return {"loss": total, **means, "grad_norm": norm}

    def last_objective(self) -> float:
        """Loss of the last batch, without the model's own losses."""
        return self._last_objective.item()

    def _backward(self, batch: B, share: float, *, last: bool) -> dict[str, Tensor]:
        # processes exchange the gradients of a group once, with its last batch
        with self._parallel.no_sync() if self._parallel and not last else nullcontext():
            losses = (self._parallel or self.step)(batch)
            torch.autograd.backward(torch.stack(list(losses.values())).sum() * share)
        return {name: loss.detach() for name, loss in losses.items()}
