"""What picks or writes negatives while a stage trains."""

from __future__ import annotations

from counterfoil.corpus.lens import CorpusLens, LensPlan
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.offers import check as check_candidates
from counterfoil.negatives.proposal import Proposer
from counterfoil.negatives.screened import Screened
from counterfoil.negatives.tailored import Tailored
from counterfoil.negatives.written import Written
from counterfoil.recipes.context import Context
from counterfoil.recipes.kinds import inside
from counterfoil.recipes.model import open_model
from counterfoil.recipes.recipe import Pretrain, Recipe, Rewrite, Train, Write
from counterfoil.records import Role
from counterfoil.spec import Late, Spec

EDITS = frozenset({Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
OURS = (Edited, Screened, Tailored, Written)


def proposer(context: Context, stage: Train, seen: CorpusLens) -> Proposer | None:
    """The source of a training, if it has one.

    The late values "lens" and "mask" become what the writer sees of the training split and the
    token that hides a word for it; "filler" the frozen writer, if the stage names one; "reader"
    what the model in training sees, where it sees with another lens than the writer; "written" the
    folder of the stored captions that the stage names.

    Args:
        context: the run.
        stage: the training.
        seen: what its model sees of the training split.
    """
    if stage.proposer is None:
        return None
    filler, writes = None, seen
    if stage.filler:
        model = open_model(str(context.place(stage.filler)))
        filler = model.matcher.requires_grad_(False)
        if _apart(context.recipe, stage):
            writes = model.on(context.train)
    tokenizer = writes.lens.tokenizer
    known = {
        "lens": writes,
        "mask": tokenizer.mask if tokenizer else None,
        "filler": filler,
        "reader": None if writes is seen else seen,
        "written": str(context.place(stage.written)) if stage.written else None,
    }
    return stage.proposer.resolve(known).build()


def check(context: Context, stage: Train) -> None:
    """Refuse what is judged and nobody makes, or cannot be made, before anything is trained.

    Raises:
        ValueError: edits that nobody makes, or of what cannot be edited; candidates that nobody
            screens, or none where they are screened; word tasks that nobody solves; stored captions
            that nobody draws from, or none where they are drawn from.
    """
    _offered(stage)
    _written(context.recipe, stage)
    _stored(context.recipe, stage)
    if stage.proposer is None:
        if stage.objective.build().needs & EDITS:
            raise ValueError(
                f"the loss of {stage.name!r} judges edited negatives, and the stage names nothing "
                "that makes them; set its proposer to Edited"
            )
        return
    if stage.proposer.make is not Edited:
        return
    seen = _seen(context, stage)
    if seen != "regions" or stage.lens.texts == "vectors":
        raise ValueError(
            f"{stage.name!r} sees {seen} and texts as {stage.lens.texts!r}; edited negatives need "
            "images of several regions, and words: choose other features, or leave the proposer out"
        )


def _offered(stage: Train) -> None:
    """Whether candidates and what screens them go together."""
    screens = any(part.make is Screened for part in _parts(stage))
    screened = Screened.screens if screens else frozenset[Role]()
    check_candidates(stage.candidates.provides, screened, stage.objective.build().needs)


def _written(recipe: Recipe, stage: Train) -> None:
    """Whether somebody writes what is judged, and learns words where the loss judges them."""
    objective, parts = stage.objective.build(), _parts(stage)
    writers = [part for part in parts if part.make is Tailored]
    if not parts and (Role.WRITTEN in objective.needs or objective.needs_words):
        raise ValueError(
            f"the loss of {stage.name!r} judges written captions, and the stage names nothing that "
            "writes them; set its proposer to Tailored"
        )
    tasks = {task for part in writers for task in inside(part)["words"]}
    lost = sorted(objective.needs_words - tasks)
    if lost and all(part.make in OURS for part in parts):
        raise ValueError(
            f"the loss of {stage.name!r} judges the word task {lost[0]!r}, which its proposer "
            "leaves out; name it in words, or drop the loss"
        )
    if stage.filler and not writers:
        raise ValueError(
            f"{stage.name!r} names the filler {stage.filler!r}, and nothing that it could write "
            "for; set its proposer to Tailored"
        )
    if tasks and _apart(recipe, stage):
        raise ValueError(
            f"{stage.name!r} reads with another lens than its filler {stage.filler!r}, so it "
            "learns no words from what that one writes; set words=()"
        )


def _stored(recipe: Recipe, stage: Train) -> None:
    """Whether stored captions and what draws from them go together."""
    folders = [p.arguments.get("folder") for p in _parts(stage) if p.make is Written]
    draws = any(isinstance(folder, Late) for folder in folders)
    if draws and not stage.written:
        raise ValueError(
            f"{stage.name!r} draws from written captions and names no stage that writes them; set "
            "its written to a stage such as Write, or its proposer's folder to one that is there"
        )
    if not stage.written:
        return
    if not draws:
        raise ValueError(
            f"{stage.name!r} names the written captions of {stage.written!r}, and nothing that "
            "draws from them; set its proposer to Written with folder=late('written')"
        )
    writing = recipe.stage(stage.written)
    assert isinstance(writing, Write | Rewrite)
    if writing.split != "train":
        raise ValueError(
            f"{stage.name!r} trains on captions of the split 'train', and {writing.name!r} writes "
            f"those of {writing.split!r}; set {writing.name}.split=train"
        )


def _parts(stage: Train) -> tuple[Spec[Proposer], ...]:
    """The proposers of a stage: its own, or those inside it."""
    if stage.proposer is None:
        return ()
    inner: tuple[Spec[Proposer], ...] = stage.proposer.arguments.get("proposers", ())
    return inner or (stage.proposer,)


def _apart(recipe: Recipe, stage: Train) -> bool:
    """Whether a stage sees with another lens than its filler."""
    if stage.filler is None:
        return False
    filler = recipe.stage(stage.filler)
    assert isinstance(filler, Train | Pretrain)
    return _lens(recipe, filler) != _lens(recipe, stage)


def _lens(recipe: Recipe, stage: Train | Pretrain) -> LensPlan:
    """What a stage sees: that of where it starts from, if it does."""
    while stage.start:
        before = recipe.stage(stage.start)
        assert isinstance(before, Train | Pretrain)
        stage = before
    return stage.lens


def _seen(context: Context, stage: Train) -> str:
    """What a stage sees of an image, in words."""
    features = context.train.features
    if stage.lens.images == "pixels":
        return "pixels"
    if features is None:
        return "no features"
    return "regions" if features.regions > 1 else "one vector an image"
