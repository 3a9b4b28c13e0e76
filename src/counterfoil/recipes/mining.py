"""Mining, as a stage of a recipe and from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.kept import EVERY, SweepStopped
from counterfoil.engine.tiles import Member
from counterfoil.negatives.filters import FilterPlan, filters_of
from counterfoil.negatives.mine import mine
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes.context import Stopped
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.recipe import Mine
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
) -> Mine:
    """The stage that a command line asks for.

    Args:
        models: names of those that score.
        split: what is mined.
        texts: of an image's list.
        images: of a text's list.
        filters: fields of a `FilterPlan`, ``key=value``.
        guides: names of those that judge too.

    Raises:
        ValueError: an unknown filter, or one out of range.
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
    models, guides = ([open_model(find(n)) for n in names] for names in (stage.using, stage.guides))
    members = [model.member(corpus) for model in models]
    judges = [guide.member(corpus) for guide in guides]
    filters = filters_of(stage.filters, corpus, guides=judges, device=world.device())
    minutes = left()
    with stopping(0 if minutes is None else max(minutes, 0.01), EVERY / 60) as watch:
        try:
            lists = mine(
                members,
                corpus.owner,
                texts_per_image=stage.texts,
                images_per_text=stage.images,
                filters=filters,
                keep=partial(place),
                every=EVERY,
                stop=watch.wanted,
                run=_run(corpus, models, guides),
            )
        except SweepStopped:
            raise _stopped(watch) from None
    store = NegativeStore.of(
        lists,
        corpus=corpus.fingerprint,
        split=stage.split,
        sources=tuple(model.source() for model in models),
        filters=(*stage.filters.in_words(), *(f"guide: {g.source().matcher}" for g in guides)),
    )
    if world.rank() == 0:
        store.save(place)
    return store, members


def tidy(place: Path) -> None:
    """Remove what a finished mining no longer needs."""
    if world.rank() == 0:
        shutil.rmtree(partial(place), ignore_errors=True)


def _run(corpus: Corpus, models: list[Model], guides: list[Model]) -> str:
    """Digest of what the lists depend on besides the stage's numbers."""
    scorers = [[model.source().model_dump() for model in some] for some in (models, guides)]
    return digest({"corpus": corpus.fingerprint, "scorers": scorers})


def _stopped(watch: Stopping) -> Stopped:
    watch.heed()
    return Stopped("out of time" if watch.late and watch.asked is None else "interrupted")
