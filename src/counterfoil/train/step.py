"""One training step, as one module: encode, score the block, propose, score pairs, judge.

Several processes share the work and agree on the loss. Each encodes its share of the pools and
scores its share of the block's rows and of the pairs; encodings and scores are gathered with their
gradients, and every process judges the same scores. The mean of gradients over processes is then
exactly the gradient of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from counterfoil import world
from counterfoil.matcher import Matcher
from counterfoil.negatives.guide import Guide
from counterfoil.negatives.proposal import Proposal, Proposer
from counterfoil.objectives.term import Objective
from counterfoil.records import INFERENCE, Batch, Encoded, Grid, Pairs, Role, Scores, View, Views
from counterfoil.train.plan import Precision
from counterfoil.train.seeds import seed_of

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
class Step(nn.Module):
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
        ValueError: the objective needs what nobody provides, or a role is provided twice.
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
        self.matcher, self.objective = matcher, objective
        self.sources = Sources(proposer, guide)  # not registered: no parameters of this step
        self.precision, self.seed = precision, seed

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
            views = _whole(batch, share)
            grids = self._grids(batch, views)
            proposal = self._proposal(batch, views, grids[INFERENCE].scores)
            pairs = self._pairs(batch, views, proposal)
        losses: dict[str, Tensor] = self.objective(Scores(grids, pairs, proposal.words, batch.step))
        return {**losses, **{f"{OWN}{name}": loss for name, loss in views.auxiliary.items()}}

    @torch.no_grad()
    def level(self, batch: Batch) -> Tensor | None:
        """The loss if all scores were equal: 2·B·margin for a hinge on the hardest negative.

        None where it cannot be told before the batch has been encoded.
        """
        if self.objective.needs - set(batch.pairs) or self.objective.needs_words:
            return None
        flat = torch.zeros(batch.block, device=batch.positive.device)
        grids = {n: self._judged(batch, flat, n) for n in self.objective.needs_grids}
        pairs = {role: flat.new_zeros(pair.shape) for role, pair in batch.pairs.items()}
        losses = self.objective(Scores(grids, pairs, {}, batch.step))
        return torch.stack(list(losses.values())).sum()

    def _cast(self, batch: Batch) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(batch.positive.device.type, torch.bfloat16)

    def _grids(self, batch: Batch, views: Views) -> dict[str, Grid]:
        """Scores of the anchor block, in the view for inference and in those that are judged."""
        return {
            name: self._judged(batch, self._block(batch, views.views[name]), name)
            for name in sorted({INFERENCE, *self.objective.needs_grids})
        }

    def _block(self, batch: Batch, view: View) -> Tensor:
        images = view.images.rows(slice(batch.block[0]))
        texts = view.texts.rows(slice(batch.block[1]))
        return _shared(
            len(images),
            lambda rows: self.matcher.grid(images.rows(rows), texts),
            batch.positive.device,
        )

    def _judged(self, batch: Batch, scores: Tensor, name: str) -> Grid:
        guide = self.sources.guide if self.objective.needs_guide and name == INFERENCE else None
        return Grid(
            scores=scores,
            positive=batch.positive,
            anchor=scores[batch.anchors.image, batch.anchors.text],
            guide=guide(batch) if guide else None,
            scale=self.matcher.score_scale,
            name=name,
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
            return {}
        images, texts = views.inference.images, self._extended(views, proposal)
        flat = Pairs(
            torch.cat([pair.image.flatten() for pair in wanted.values()]),
            torch.cat([pair.text.flatten() for pair in wanted.values()]),
        )
        scores = _shared(
            len(flat.image),
            lambda rows: self.matcher.listed(
                images, texts, Pairs(flat.image[rows], flat.text[rows])
            ),
            batch.positive.device,
        )
        parts = torch.split(scores, [pair.image.numel() for pair in wanted.values()])
        return {r: part.view(wanted[r].shape) for r, part in zip(wanted, parts, strict=True)}

    def _extended(self, views: Views, proposal: Proposal) -> Encoded:
        """The text pool with the proposed texts behind it."""
        texts = views.inference.texts
        if proposal.texts is None:
            return texts
        rows = _mine(len(proposal.texts), texts.tokens.device)
        new = self.matcher.encode_texts(proposal.texts.rows(rows))
        return Encoded.cat([texts, _gathered(new, len(proposal.texts))])


def _mine(count: int, device: torch.device) -> Tensor | slice:
    """This process's share of `count` rows; the last row stands in where they do not divide."""
    mine = world.share(count)
    if mine.stop <= count:
        return mine
    return torch.arange(mine.start, mine.stop, device=device).clamp(max=count - 1)


def _shared(count: int, score: Callable[[Tensor | slice], Tensor], device: torch.device) -> Tensor:
    """`score` of all rows, of which each process computes a share."""
    return world.gather_rows(score(_mine(count, device)))[:count]


def _gathered(share: Encoded, count: int) -> Encoded:
    """All processes' items, without those that only stood in."""
    share = share.padded(world.largest(share.tokens.shape[1]))
    gram = None if share.gram is None else world.gather_rows(share.gram)[:count]
    tokens, mask = world.gather_rows(share.tokens), world.gather_rows(share.mask)
    return Encoded(tokens[:count], mask[:count], gram)


def _whole(batch: Batch, share: Views) -> Views:
    """The views of the whole batch; the model's own losses are added up over processes."""
    views = {
        name: View(
            _gathered(view.images, len(batch.image_rows)),
            _gathered(view.texts, len(batch.text_rows)),
        )
        for name, view in share.views.items()
    }
    auxiliary = {
        name: world.gather_rows(loss.reshape(1)).sum() for name, loss in share.auxiliary.items()
    }
    return replace(share, views=views, auxiliary=auxiliary)


def _names(roles: Iterable[Role]) -> frozenset[str]:
    return frozenset(repr(role.value) for role in roles)


def _check(what: str, needed: frozenset[str], provided: frozenset[str]) -> None:
    if missing := needed - provided:
        offered = ", ".join(sorted(provided)) or "none"
        raise ValueError(
            f"the objective needs {what} {', '.join(sorted(missing))}, but provided are: {offered}"
        )
