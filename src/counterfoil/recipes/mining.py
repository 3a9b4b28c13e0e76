"""Mining, as a stage of a recipe and from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast, final

from torch import Tensor

from counterfoil import world
from counterfoil.core.resumable import WorkStopped
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.kept import EVERY
from counterfoil.engine.tiles import Member
from counterfoil.negatives.filters import FilterPlan, Filters, check_encoder, filters_of
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mine import mine
from counterfoil.negatives.proposed import reranked
from counterfoil.negatives.shortlist import mine_halved
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes.context import Stopped
from counterfoil.recipes.mines import Mine, MinePrecision
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.settings import changed
from counterfoil.spec import digest
from counterfoil.train.stopping import Stopping, stopping


def asked(
    models: Sequence[str],
    split: str,
    *,
    texts: int,
    images: int,
    filters: Sequence[str] = (),
    guides: Sequence[str] = (),
    proposing: Sequence[str] = (),
    proposals: int = 4,
    precision: str = "fp32",
) -> Mine:
    """The stage that a command line asks for.

    Args:
        models: names of those that score.
        split: what is mined.
        texts: of an image's list.
        images: of a text's list.
        filters: fields of a `FilterPlan`, ``key=value``.
        guides: names of those that judge too.
        proposing: names of those that choose the pairs to look at.
        proposals: how many times as many as are listed they choose.
        precision: "fp32" or "bf16".

    Raises:
        ValueError: an unknown filter, one out of range, or one that does not go with the rest.
    """
    plan = FilterPlan()
    for setting in filters:
        plan = changed(plan, setting)
    return Mine(
        name="lists",
        using=tuple(models),
        texts=texts,
        images=images,
        split=split,
        filters=plan,
        guides=tuple(guides),
        proposing=tuple(proposing),
        proposals=proposals,
        precision=cast(MinePrecision, precision),  # the stage checks it
    )


def partial(place: Path) -> Path:
    """Where mining into a folder keeps how far it is."""
    return place.with_name(f"{place.name}.partial")


def mined(
    stage: Mine,
    corpus: Corpus,
    place: Path,
    *,
    find: Callable[[str], str] = str,
    left: Callable[[], float | None] = lambda: None,
) -> tuple[NegativeStore, list[Member]]:
    """List the hardest negatives of a split and save them, from where it was stopped on.

    Args:
        stage: what to mine.
        corpus: the split.
        place: where the store goes.
        find: from a name in the stage to what `open_model` opens.
        left: how many minutes are left; None for no limit.

    Returns:
        The store, and the models with what they have encoded.

    Raises:
        ValueError: models and data do not fit, or what was kept is of another mining.
        Stopped: the time was up, or a signal came.
    """
    check_encoder(stage.filters)
    crew = _Crew.of(stage, find)
    members = [model.member(corpus) for model in crew.using]
    lists, precision = _listed(stage, corpus, crew, members, partial(place), left)
    if crew.proposing:
        lists = reranked(
            lists,
            members,
            corpus.owner,
            texts_per_image=min(stage.texts, lists.texts.shape[1]),
            images_per_text=min(stage.images, lists.images.shape[1]),
        )
    guides = tuple(f"guide: {guide.source().matcher}" for guide in crew.guides)
    store = NegativeStore.of(
        lists,
        corpus=corpus.fingerprint,
        split=stage.split,
        sources=tuple(model.source() for model in crew.using),
        filters=(*stage.filters.in_words(), *guides),
        proposing=tuple(model.source() for model in crew.proposing),
        proposals=stage.proposals if crew.proposing else 0,
        precision=precision,
    )
    if world.rank() == 0:
        store.save(place)
    return store, members


def tidy(place: Path) -> None:
    """Remove what a finished mining no longer needs."""
    if world.rank() == 0:
        shutil.rmtree(partial(place), ignore_errors=True)


@final
@dataclass(frozen=True, slots=True)
class _Crew:
    """The models of a stage, by what they do."""

    using: tuple[Model, ...]
    guides: tuple[Model, ...]
    proposing: tuple[Model, ...]

    @classmethod
    def of(cls, stage: Mine, find: Callable[[str], str]) -> Self:
        names = stage.using, stage.guides, stage.proposing
        using, guides, proposing = (tuple(open_model(find(n)) for n in some) for some in names)
        return cls((*using, *map(open_model, stage.models)), guides, proposing)

    def digest(self, corpus: Corpus) -> str:
        """Of what the lists that are swept for depend on, besides the stage's numbers."""
        scorers = [
            [model.source().model_dump() for model in some]
            for some in (self.proposing or self.using, self.guides)
        ]
        return digest({"corpus": corpus.fingerprint, "scorers": scorers})


def _listed(
    stage: Mine,
    corpus: Corpus,
    crew: _Crew,
    members: Sequence[Member],
    keep: Path,
    left: Callable[[], float | None],
) -> tuple[Lists, str]:
    """What the stage's models list, or what others propose to them; why half precision is exact."""
    judges = [guide.member(corpus) for guide in crew.guides]
    filters = filters_of(stage.filters, corpus, guides=judges, device=world.device())
    proposers = [model.member(corpus) for model in crew.proposing]
    minutes, run = left(), crew.digest(corpus)
    with stopping(0 if minutes is None else max(minutes, 0.01), EVERY / 60) as watch:
        try:
            if stage.precision == "bf16":
                return _halved(stage, corpus.owner, members, filters, keep, watch.wanted, run)
            many = stage.proposals if proposers else 1
            lists = mine(
                proposers or members,
                corpus.owner,
                texts_per_image=stage.texts * many,
                images_per_text=stage.images * many,
                filters=filters,
                keep=keep,
                every=EVERY,
                stop=watch.wanted,
                run=run,
            )
        except WorkStopped:
            raise _stopped(watch) from None
    return lists, ""


def _halved(
    stage: Mine,
    owner: Tensor,
    members: Sequence[Member],
    filters: Filters,
    keep: Path,
    stop: Callable[[], bool],
    run: str,
) -> tuple[Lists, str]:
    """Lists by way of half precision, and why they are exact."""
    lists, certificate = mine_halved(
        members,
        owner,
        texts_per_image=stage.texts,
        images_per_text=stage.images,
        filters=filters,
        keep=keep,
        every=EVERY,
        stop=stop,
        run=run,
    )
    return lists, f"bfloat16, then float32: {certificate.in_words()}"


def _stopped(watch: Stopping) -> Stopped:
    watch.heed()
    return Stopped("out of time" if watch.late and watch.asked is None else "interrupted")
