"""What picks or writes negatives while a stage trains."""

from __future__ import annotations

from counterfoil.corpus.lens import Lens
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.offers import check as check_candidates
from counterfoil.negatives.proposal import Proposer
from counterfoil.negatives.screened import Screened
from counterfoil.recipes.context import Context
from counterfoil.recipes.recipe import Train
from counterfoil.records import Role

EDITS = frozenset({Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})


def proposer(stage: Train, lens: Lens) -> Proposer | None:
    """The source of a training, if it has one."""
    if stage.proposer is None:
        return None
    mask = lens.tokenizer.mask if lens.tokenizer else None
    return stage.proposer.resolve({"mask": mask}).build()


def check(context: Context, stage: Train) -> None:
    """Refuse what is judged and nobody makes, or cannot be made, before anything is trained.

    Raises:
        ValueError: edits that nobody makes, or of what cannot be edited; candidates that nobody
            screens, or none where they are screened.
    """
    _offered(stage)
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
    makes = []
    if stage.proposer is not None:
        parts = stage.proposer.arguments.get("proposers", ())
        makes = [stage.proposer.make, *(part.make for part in parts)]
    screened = Screened.screens if Screened in makes else frozenset[Role]()
    check_candidates(stage.candidates.provides, screened, stage.objective.build().needs)


def _seen(context: Context, stage: Train) -> str:
    """What a stage sees of an image, in words."""
    features = context.train.features
    if stage.lens.images == "pixels":
        return "pixels"
    if features is None:
        return "no features"
    return "regions" if features.regions > 1 else "one vector an image"
