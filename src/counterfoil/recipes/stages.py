"""What each kind of stage does."""

from __future__ import annotations

import torch

from counterfoil import world
from counterfoil.core.console import info
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import PictureFiles
from counterfoil.evaluate.protocols import folds_of, named
from counterfoil.matcher import Matcher
from counterfoil.models.adapted import Adapted
from counterfoil.negatives.draws import Draws
from counterfoil.negatives.hardness import hardness
from counterfoil.negatives.latent import check_captions
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mined import Mined
from counterfoil.negatives.neighbours import Neighbours
from counterfoil.negatives.offers import CandidatePlan
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes import comparison
from counterfoil.recipes.begin import begun, check_word_vectors
from counterfoil.recipes.context import Context
from counterfoil.recipes.guiding import check as check_guide
from counterfoil.recipes.guiding import check_teachers, guide
from counterfoil.recipes.keeping import best, keep, kept_already, remove_checkpoints, timed
from counterfoil.recipes.measured import Measured, shortlisting
from counterfoil.recipes.mining import mined, tidy
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.pretrain import check as check_pretrain
from counterfoil.recipes.proposing import check as check_proposer
from counterfoil.recipes.proposing import proposer
from counterfoil.recipes.recipe import (
    Compare,
    Evaluate,
    Mine,
    Pretrain,
    Rewrite,
    Semantics,
    Stage,
    Teach,
    Train,
    Write,
)
from counterfoil.recipes.selecting import measure
from counterfoil.recipes.tailoring import check as check_writer
from counterfoil.recipes.tailoring import check_rules
from counterfoil.train.loop import fit, sampler_of
from counterfoil.train.refresh import check as check_lists

BATCH, SAMPLES = 128, 4096  # for the hardness of negatives in the report


def check(context: Context, stage: Stage) -> None:
    """Refuse what would fail only after hours: a split or a picture that is not there.

    Raises:
        ValueError: there is no such split, its protocol does not fit, pictures are missing, or
            lists will be shorter than what is drawn from them, or items cannot be edited or
            compared.
    """
    match stage:
        case Train():
            check_guide(context.recipe, stage)
            check_proposer(context, stage)
            _visible(context, stage)
            check_word_vectors(stage)
            if stage.refresh.every:
                _refreshed(context, stage)
            if stage.negatives:
                _long_enough(context, stage)
            if stage.neighbours:
                _of_train(context, stage, stage.neighbours)
        case Pretrain():
            _visible(context, stage)
            check_pretrain(context, stage)
        case Mine():
            context.split(stage.split)
        case Rewrite():
            check_rules(context, stage)
        case Write():
            check_writer(context, stage)
        case Teach():
            check_teachers(context, stage)
        case Semantics():
            check_captions(context.train.texts, stage.space)
        case Evaluate():
            folds_of(named(stage.protocol), len(context.measured(stage)))


def _visible(context: Context, stage: Train | Pretrain) -> None:
    """Whether there are pictures, where a stage is to see them."""
    if stage.lens.images == "pixels" and not stage.start:
        for corpus in (context.train, *([context.dev] if context.dev else [])):
            _pictures(corpus)


def _long_enough(context: Context, stage: Train) -> None:
    """Whether the lists will be as long as the draws."""
    assert stage.negatives
    mined = context.recipe.stage(stage.negatives)
    assert isinstance(mined, Mine)
    corpus = context.split(mined.split)
    offer = stage.candidates if stage.screens_lists else CandidatePlan()
    texts, images = max(stage.draw.texts, offer.texts), max(stage.draw.images or 0, offer.images)
    for what, drawn, kept, there in (
        ("texts of an image", texts, mined.texts, len(corpus.texts)),
        ("images of a text", images, mined.images, len(corpus)),
    ):
        if drawn > min(kept, there):
            raise ValueError(
                f"{stage.name!r} draws from the {drawn:,} hardest {what}, but {mined.name!r} keeps "
                f"{kept:,} of {there:,}; set {stage.name}.draw to fewer, or mine longer lists"
            )


def _of_train(context: Context, stage: Train, mining: str) -> None:
    """Whether images that join batches are of the split that is trained on."""
    mined = context.recipe.stage(mining)
    assert isinstance(mined, Mine)
    if mined.split != "train":
        raise ValueError(
            f"{stage.name!r} trains on images of the split 'train', and {mining!r} mines those of "
            f"{mined.split!r}; set {mining}.split=train"
        )


def train(context: Context, stage: Train, *, resume: bool) -> None:
    """Fit the stage's model and save it with its lens."""
    if resume and kept_already(context, stage):
        remove_checkpoints(context, stage)
        return
    model = begun(context, stage)
    assert model.lens is not None
    place, seen = context.place(stage.name), model.on(context.train)
    fitted = fit(
        timed(stage.plan, context.left()),
        _moving(model, stage),
        stage.objective.build(),
        seen,
        folder=place,
        draws=_draws(context, stage),
        candidates=_candidates(context, stage),
        proposer=proposer(context, stage, model.lens.on(context.train)),
        guide=guide(context, stage, model.matcher.score_scale),
        positives=stage.positives,
        refresh=stage.refresh,
        draw=stage.draw,
        neighbours=_neighbours(context, stage),
        evaluate=measure(context, stage, model),
        run=context.digests[stage.name],
        resume=resume,
    )
    keep(context, stage, model, fitted)
    info(f"{stage.name}: {best(fitted, 'RSum')}, {fitted.seconds:,.0f} s, {place}")


def _moving(model: Model, stage: Train) -> Matcher:
    """What is trained: of a frozen model whose items are all known beforehand, its head alone."""
    matcher = model.matcher
    return matcher.head if isinstance(matcher, Adapted) and not stage.proposer else matcher


def mine(context: Context, stage: Mine) -> None:
    """List the hardest negatives of a split and save them."""
    corpus, place = context.split(stage.split), context.place(stage.name)
    store, members = mined(
        stage, corpus, place, find=lambda name: str(context.place(name)), left=context.left
    )
    if world.rank() == 0:
        rng, texts = torch.Generator().manual_seed(0), store.lists.texts
        found = hardness(members, corpus.owner, texts, batch=BATCH, samples=SAMPLES, rng=rng)
        comparison.save_hardness(found, place)
    tidy(place)
    info(f"{stage.name}: {store.lists.in_words()}, {place}")


def evaluate(context: Context, stage: Evaluate) -> None:
    """Measure, print and save numbers, ranks and the first items of every list."""
    corpus = context.measured(stage)
    names = (*(str(context.place(name)) for name in stage.using), *stage.models)
    models = [open_model(name) for name in names]
    folds_of(named(stage.protocol), len(corpus))  # refuses before anything is encoded
    members = [model.member(corpus) for model in models]
    seed = context.seed(stage.using[0]) if stage.using else None
    protocol = named(stage.protocol)
    by = shortlisting(
        stage.first,
        corpus,
        stage.depth,
        full=stage.full,
        find=lambda name: str(context.place(name)),
    )
    measured = Measured.of(members, corpus, protocol, seed=seed, by=by)
    if world.rank() == 0:
        measured.save(context.place(stage.name))
        measured.show(", ".join((*stage.using, *stage.models)))


def compare(context: Context, stage: Compare) -> None:
    """Print evaluations side by side and write the report."""
    if world.rank() == 0:
        page = comparison.page(context, stage)
        comparison.write(page, context.place(stage.name))


def _pictures(corpus: Corpus) -> None:
    if corpus.pictures is None:
        raise ValueError(
            f"{corpus.name} ({corpus.part}) has no pictures, and this model reads pixels; name "
            "their folder with --images"
        )
    if not isinstance(corpus.pictures, PictureFiles):
        return
    lost = [path for path in corpus.pictures.paths if not path.is_file()]
    if lost:
        raise ValueError(
            f"{len(lost):,} of {len(corpus):,} pictures of {corpus.name} ({corpus.part}) are "
            f"missing, such as {lost[0]}; `counterfoil data check` lists them"
        )


def _refreshed(context: Context, stage: Train) -> None:
    batches = len(sampler_of(stage.plan, context.train))
    check_lists(
        stage.refresh,
        stage.objective.build(),
        stage.draw,
        batches=batches,
        listed=stage.negatives is not None,
    )


def _lists(context: Context, stage: Train) -> Lists | None:
    return _stored(context, stage.negatives) if stage.negatives else None


def _stored(context: Context, mining: str) -> Lists:
    place = context.place(mining)
    return NegativeStore.open(place, fingerprint=context.train.fingerprint).lists


def _neighbours(context: Context, stage: Train) -> Neighbours | None:
    """Who joins the batches of a training, if anybody."""
    if stage.neighbours is None:
        return None
    return Neighbours(lists=_stored(context, stage.neighbours), relation=context.train.relation)


def _draws(context: Context, stage: Train) -> Draws | None:
    """Negatives that are trained on as they are drawn."""
    lists = None if stage.screens_lists else _lists(context, stage)
    if lists is None:
        return None
    return Mined(lists=lists, relation=context.train.relation, plan=stage.draw)


def _candidates(context: Context, stage: Train) -> Draws | None:
    """What is offered to the proposer."""
    plan = stage.candidates
    if not plan.provides:
        return None
    lists = _lists(context, stage) if stage.screens_lists else None
    return plan.draws(context.train.relation, lists, stage.draw)
