"""One training step, as one module: encode, score the block, propose, score pairs, judge.

Where neither the loss nor what proposes looks at wrong pairs of the block, those are not scored.

Several processes share the work and agree on the loss. Each encodes its share of the pools and
scores its share of the block's rows and of the pairs; encodings and scores are gathered with their
gradients, and every process judges the same scores. The mean of gradients over processes is then
exactly the gradient of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.negatives.guide import Guide, PairGuide
from counterfoil.negatives.proposal import Choosy, Proposal, Proposer, existing, reads_block
from counterfoil.objectives.term import Objective
from counterfoil.records import (
    INFERENCE,
    Batch,
    Encoded,
    Grid,
    Items,
    Pairs,
    Role,
    Scores,
    Views,
    WordTask,
)
from counterfoil.train.blocks import anchors_alone, whole_block
from counterfoil.train.guidance import Watch
from counterfoil.train.learner import Learner
from counterfoil.train.plan import Precision
from counterfoil.train.seeds import seed_of
from counterfoil.train.shares import gathered, mine, shared, whole

OWN = "model_"  # begins the names of losses that are the model's own


@final
@dataclass(frozen=True, slots=True)
class Sources:
    """What a step asks beside the model.

    Attributes:
        proposer: candidates that depend on the model as it is now.
        guide: soft targets.
    """

    proposer: Proposer | None
    guide: Guide | None


@final
class Step(Learner[Batch]):
    """From a batch to named losses. This is what DistributedDataParallel wraps.

    Args:
        matcher: the model in training.
        objective: the loss.
        proposer: candidates that depend on the model as it is now.
        guide: soft targets.
        provides: roles that are drawn before the batch is encoded.
        precision: "bf16" encodes and scores under autocast; losses are float32 in any case.
        seed: of what the proposer draws.

    Raises:
        ValueError: the objective needs what nobody provides, a role is provided twice, or the
            proposer does not go with the model.
    """

    def __init__(
        self,
        matcher: Matcher,
        objective: Objective,
        *,
        proposer: Proposer | None = None,
        guide: Guide | None = None,
        provides: frozenset[Role] = frozenset(),
        precision: Precision = "fp32",
        seed: int = 0,
    ) -> None:
        super().__init__()
        proposed = proposer.provides if proposer else frozenset[Role]()
        words = proposer.provides_words if proposer else frozenset[str]()
        _check("pairs in the role of", _names(objective.needs), _names(provides | proposed))
        _check("the word tasks", objective.needs_words, words)
        _check("the grids", objective.needs_grids, matcher.grids)
        if objective.needs_guide and guide is None:
            raise ValueError(
                "the objective needs a guide that says how similar images and texts ought to be, "
                "and there is none; name the teachers"
            )
        if twice := _names(provides & proposed):
            raise ValueError(
                f"pairs in the role of {', '.join(sorted(twice))} are both drawn and proposed; "
                "drop one of the two sources"
            )
        _guided(objective.needs_guided, guide, provides)
        if isinstance(proposer, Choosy):
            proposer.check(matcher)
        self.matcher, self.objective = matcher, objective
        self.sources = Sources(proposer, guide)  # not registered: no parameters of this step
        self.spares_block = not (objective.needs_block or reads_block(proposer))
        self.precision, self.seed = precision, seed
        self._copies: dict[str, int] = {}
        self._proposed: tuple[int, dict[Role, Tensor]] = -1, {}
        self.watch = Watch()

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Weighted losses by name, the model's own among them; their sum is minimised."""
        return self.judge(batch, self.encode(batch))

    def encode(self, batch: Batch) -> Views:
        """This process's share of the batch, encoded."""
        with self._cast(batch):
            views: Views = self.matcher(batch)
        return views

    def judge(self, batch: Batch, share: Views) -> dict[str, Tensor]:
        """Losses of the whole batch.

        Args:
            batch: the batch.
            share: what `encode` made of this process's share of it.
        """
        with self._cast(batch):
            views = self._related(batch, whole(batch, share))
            grids = self._grids(batch, views)
            self._copies = {name: grid.copies for name, grid in grids.items()}
            proposal = self._proposal(batch, views, grids[INFERENCE].scores)
            pairs = self._pairs(batch, views, proposal)
        roles = {*proposal.pairs, *proposal.scores}
        self._proposed = batch.step, {role: pairs[role].isneginf() for role in roles}
        losses = self._losses(batch, grids, pairs, proposal.words)
        self.watch.look(grids, losses, pairs)
        return {**losses, **{f"{OWN}{name}": loss for name, loss in views.auxiliary.items()}}

    @torch.no_grad()
    def level(self, batch: Batch) -> Tensor | None:
        """The loss if all scores were equal: 2·B·margin for a hinge on the hardest negative.

        None where it cannot be told: of words, and of what is proposed before this batch is judged.
        """
        step, proposed = self._proposed
        none = proposed if step == batch.step else {}
        if self.objective.needs - {*batch.pairs, *none} or self.objective.needs_words:
            return None
        flat = torch.zeros(batch.block, device=batch.positive.device)
        grids = {n: self._judged(batch, self._flat(batch, n), n) for n in self._wanted(batch)}
        pairs = {role: flat.new_zeros(pair.shape) for role, pair in batch.pairs.items()}
        pairs |= {r: flat.new_zeros(n.shape).masked_fill(n, -torch.inf) for r, n in none.items()}
        losses = self._losses(batch, grids, pairs, {})
        return torch.stack(list(losses.values())).sum()

    def _flat(self, batch: Batch, name: str) -> Tensor:
        """Equal scores, as many as the grid of this name had of the batch before."""
        images, texts = (size * self._copies.get(name, 1) for size in batch.block)
        return torch.zeros(images, texts, device=batch.positive.device)

    def _losses(
        self,
        batch: Batch,
        grids: Mapping[str, Grid],
        pairs: Mapping[Role, Tensor],
        words: Mapping[str, WordTask],
    ) -> dict[str, Tensor]:
        guide = self.sources.guide
        guides = (
            {role: guide.pairs(batch, batch.pairs[role]) for role in self.objective.needs_guided}
            if isinstance(guide, PairGuide)
            else {}
        )
        seed = seed_of(self.seed, "judge", batch.step)
        losses: dict[str, Tensor] = self.objective(
            Scores(grids, pairs, words, batch.step, guides, seed)
        )
        return losses

    def _wanted(self, batch: Batch) -> frozenset[str]:
        return self.objective.grids_at(batch.step) | {INFERENCE}

    def _related(self, batch: Batch, views: Views) -> Views:
        """With what arises only where the whole batch is seen; drawn alike on every process."""
        if not self.matcher.relates:
            return views
        device = batch.positive.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed_of(self.seed, "relate", batch.step))
            return self.matcher.relate(batch, views, self._wanted(batch))

    def _cast(self, batch: Batch) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(batch.positive.device.type, torch.bfloat16)

    def _grids(self, batch: Batch, views: Views) -> dict[str, Grid]:
        """Scores of the anchor block, in the view for inference and in those that are judged."""
        found = {}
        for name in sorted(self._wanted(batch)):
            view = views.views[name]
            alone = self.spares_block and name == INFERENCE and view.copies == 1
            scores = (anchors_alone if alone else whole_block)(self.matcher, batch, view)
            found[name] = self._judged(batch, scores, name)
        return found

    def _judged(self, batch: Batch, scores: Tensor, name: str) -> Grid:
        guide = self.sources.guide if self.objective.needs_guide and name == INFERENCE else None
        copies = len(scores) // batch.block[0]
        image, text = batch.anchors.image, batch.anchors.text
        blocks = scores.view(batch.block[0], copies, batch.block[1], copies)
        positive = batch.positive
        if copies > 1:
            positive = positive.repeat_interleave(copies, 0).repeat_interleave(copies, 1)
        return Grid(
            scores=scores,
            positive=positive,
            anchor=blocks[image, :, text].flatten(1).amin(1),
            guide=guide(batch) if guide else None,
            scale=self.matcher.score_scale,
            name=name,
            copies=copies,
        )

    def _proposal(self, batch: Batch, views: Views, grid: Tensor) -> Proposal:
        proposer = self.sources.proposer
        if proposer is None:
            return Proposal()
        rng = torch.Generator().manual_seed(seed_of(self.seed, "propose", batch.step))
        return proposer.propose(self.matcher, batch, views, grid, rng)

    def _pairs(self, batch: Batch, views: Views, proposal: Proposal) -> dict[Role, Tensor]:
        """(B, N) scores by role, from one call of the model."""
        wanted = {**batch.pairs, **proposal.pairs}
        if not wanted:
            return dict(proposal.scores)
        images, texts = views.inference.images, views.inference.texts
        images = _extended(images, proposal.images, self.matcher.encode_images)
        texts = _extended(texts, proposal.texts, self.matcher.encode_texts)
        flat = Pairs(
            torch.cat([pair.image.flatten() for pair in wanted.values()]),
            torch.cat([pair.text.flatten() for pair in wanted.values()]),
        )
        scores = existing(
            flat,
            lambda there: shared(
                len(there.image),
                lambda rows: self.matcher.listed(
                    images, texts, Pairs(there.image[rows], there.text[rows])
                ),
                batch.positive.device,
            ),
        )
        parts = torch.split(scores, [pair.image.numel() for pair in wanted.values()])
        found = {r: part.view(wanted[r].shape) for r, part in zip(wanted, parts, strict=True)}
        return {**found, **proposal.scores}


def _extended(pool: Encoded, proposed: Items | None, encode: Callable[[Items], Encoded]) -> Encoded:
    """A pool with the proposed items behind it."""
    if proposed is None:
        return pool
    new = encode(proposed.rows(mine(len(proposed), pool.tokens.device)))
    return Encoded.cat([pool, gathered(new, len(proposed))])


def _names(roles: Iterable[Role]) -> frozenset[str]:
    return frozenset(repr(role.value) for role in roles)


def _check(what: str, needed: frozenset[str], provided: frozenset[str]) -> None:
    if missing := needed - provided:
        offered = ", ".join(sorted(provided)) or "none"
        raise ValueError(
            f"the objective needs {what} {', '.join(sorted(missing))}, but provided are: {offered}"
        )


def _guided(roles: frozenset[Role], guide: Guide | None, drawn: frozenset[Role]) -> None:
    """Whether a guide says something of the pairs that an objective wants guided."""
    if not roles:
        return
    if not isinstance(guide, PairGuide):
        raise ValueError(
            "the objective needs a guide for drawn pairs too, and there is none that knows them; "
            "name the teachers"
        )
    _check("guided pairs in the role of", _names(roles), _names(drawn))
