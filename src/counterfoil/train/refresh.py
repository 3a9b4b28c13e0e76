"""Lists of negatives that a model mines anew while it is trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import torch

from counterfoil import world
from counterfoil.core.artifact import MANIFEST
from counterfoil.engine.encode import encode_images, encode_texts
from counterfoil.engine.kept import weights_digest
from counterfoil.engine.tiles import Member
from counterfoil.matcher import Matcher
from counterfoil.negatives.draws import Draws, Needed
from counterfoil.negatives.filters import FilterPlan, filters_of
from counterfoil.negatives.mine import mine
from counterfoil.negatives.mined import Mined, MinedPlan
from counterfoil.negatives.store import NegativeStore, Source
from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.term import Objective, Term
from counterfoil.records import Role
from counterfoil.train.prefetch import Stream

TEXTS, IMAGES = 300, 60  # where nobody says how many: AOQ's


@final
@dataclass(frozen=True, kw_only=True)
class Refresh:
    """Whether, and how often, the model in training mines the training split anew.

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
    filters: FilterPlan = FilterPlan()

    def __post_init__(self) -> None:
        for name in ("every", "texts", "images"):
            if (given := getattr(self, name)) < 0:
                raise ValueError(f"{name}={given}: it may not be below 0")
        if self.filters.needs_guide:
            raise ValueError(
                "a guide cannot judge lists that are mined while training; leave guided out, or "
                "mine with it in a stage of its own"
            )


@final
class Relisting:
    """Mines at the epochs of a plan, and keeps the lists as long as they may be needed.

    Stores are folders named after the run and the epoch they were mined at. All processes call
    every method together; the first one writes.

    Args:
        plan: when, and how much.
        stream: the batches, with the lists that are drawn from till the first mining, if any.
        draw: how to draw.
        needs: roles that the objective needs.
        folder: where the stores go.
        run: digest of everything the training's numbers depend on.
    """

    def __init__(
        self,
        plan: Refresh,
        stream: Stream,
        draw: MinedPlan,
        needs: frozenset[Role],
        folder: Path,
        run: str,
    ) -> None:
        self.plan, self.stream, self.draw, self.needs = plan, stream, draw, needs
        self.folder, self.run = folder, run

    def since(self, epoch: int) -> int:
        """The epoch at which the lists of an epoch were mined; 0 where they are the first."""
        return epoch // self.plan.every * self.plan.every

    def name(self, epoch: int) -> str:
        """What the lists mined at an epoch are called; empty for the first."""
        return f"{self.run}-{epoch}" if epoch else ""

    def open(self, name: str) -> Draws | None:
        """The draws from lists that a checkpoint names; the first ones where it names none.

        Raises:
            ValueError: they are gone, or damaged.
        """
        if not name:
            return self.stream.draws
        place = self.folder / name
        if not (place / MANIFEST).is_file():
            raise ValueError(
                f"{place} is gone, the negatives that the training went on with; train again in "
                "another folder"
            )
        return self._draws(self._stored(place))

    def mine(self, name: str, matcher: Matcher, stop: Callable[[], bool]) -> Draws:
        """Mine with the model as it is now, from where that was stopped on, and save the lists.

        The first process's weights and running statistics count. No generator is moved, and the
        model's modes are left as they are.

        Raises:
            ValueError: what the model's scores or the filters forbid.
            WorkStopped: `stop` asked for it; what was done is kept.
        """
        world.agree(matcher.state_dict().values())  # unlike processors round unlike
        place, weights = self.folder / name, weights_digest(matcher)
        if (place / MANIFEST).is_file():
            found = self._stored(place)
            if [source.checkpoint for source in found.manifest.sources] == [weights]:
                return self._draws(found)
        keep = self.folder / f"{name}-{weights}.partial"
        with torch.random.fork_rng(_devices()):
            store = self._mined(matcher, weights, keep, stop)
        if world.rank() == 0:
            store.save(place)
            shutil.rmtree(keep, ignore_errors=True)
        world.wait()
        return self._draws(store)

    def tidy(self, named: str) -> None:
        """Remove all lists but those that the last checkpoint names."""
        if world.rank() == 0 and self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name != named:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        world.wait()

    def sweep_up(self, *, everything: bool) -> None:
        """Remove what a kill left half-written, or all lists of a training that begins."""
        if world.rank() == 0:
            for path in self.folder.glob("*" if everything else ".*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        world.wait()

    def _mined(
        self, matcher: Matcher, weights: str, keep: Path, stop: Callable[[], bool]
    ) -> NegativeStore:
        lens, corpus, plan = self.stream.lens, self.stream.lens.corpus, self.plan
        images = encode_images(matcher, lens.images, len(corpus))
        texts = encode_texts(matcher, lens.texts, len(corpus.texts))
        long = self._lengths()
        lists = mine(
            [Member(matcher, images, texts)],
            corpus.owner,
            texts_per_image=long[0],
            images_per_text=long[1],
            filters=filters_of(plan.filters, corpus, device=world.device()),
            keep=keep,
            stop=stop,
            run=corpus.fingerprint,
        )
        name = f"{type(matcher).__name__} in training {keep.name.removesuffix('.partial')}"
        return NegativeStore.of(
            lists,
            corpus=corpus.fingerprint,
            split="train",
            sources=(Source(matcher=name, checkpoint=weights),),
            filters=plan.filters.in_words(),
        )

    def _lengths(self) -> tuple[int, int]:
        """How long a list of texts and one of images are to be."""
        drawn = self.stream.draws.draws if isinstance(self.stream.draws, Needed) else None
        given = drawn.lengths if isinstance(drawn, Mined) else (TEXTS, IMAGES)
        return self.plan.texts or given[0], self.plan.images or given[1]

    def _stored(self, place: Path) -> NegativeStore:
        return NegativeStore.open(place, fingerprint=self.stream.lens.corpus.fingerprint)

    def _draws(self, store: NegativeStore) -> Draws:
        relation = self.stream.lens.corpus.relation
        return Needed(Mined(lists=store.lists, relation=relation, plan=self.draw), self.needs)


def check(
    plan: Refresh, objective: Objective, draw: MinedPlan, *, batches: int, listed: bool
) -> None:
    """Refuse a training that would want lists before there are any, or draw from too short ones.

    Args:
        plan: when lists are mined.
        objective: the loss.
        draw: how the lists are drawn from.
        batches: in an epoch.
        listed: whether there are lists from the beginning.

    Raises:
        ValueError: a term needs lists earlier, no term ever does, or they are too short.
    """
    if not objective.needs & Mined.provides:
        raise ValueError(
            f"lists are to be mined every {plan.every} epochs, and no term of the objective needs "
            "them; choose another objective, or set refresh.every to 0"
        )
    first = min(_quiet(cast("Term", term)) for term in objective.terms.values())
    if not listed and first < plan.every * batches:
        raise ValueError(
            f"the first lists are mined after {plan.every} epochs, at batch "
            f"{plan.every * batches}, and the objective needs them from batch {first:.0f} on; name "
            "the mining stage of the first ones with negatives, or let the term begin later"
        )
    for what, kept, wanted in (
        ("texts", plan.texts or (0 if listed else TEXTS), draw.texts),
        ("images", plan.images or (0 if listed else IMAGES), draw.images or 0),
    ):
        if 0 < kept < wanted:
            raise ValueError(
                f"{wanted} {what} are to be drawn from, but lists of {kept} are to be mined; set "
                f"refresh.{what} to {wanted} or more, or draw.{what} to {kept} or fewer"
            )


def _quiet(term: Term) -> float:
    """For how many batches a term needs nothing that is drawn from lists."""
    if not term.needs & Mined.provides:
        return float("inf")
    if not isinstance(term, Then):
        return 0.0
    first = _quiet(term.first)
    return first if first < term.steps else max(float(term.steps), _quiet(term.second))


def _devices() -> list[torch.device]:
    return [world.device()] if world.device().type == "cuda" else []
