"""TAGS for photos: ViLT, which reads pixels, in the place of UNITER, which reads regions.

Not in the paper. On `scenes` it is small and pre-trained in the domain, by hidden words and by
whether text and image match; on a user's own photos it begins with public weights.
"""

from __future__ import annotations

from dataclasses import replace

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.models.vilt import ViLT
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Train
from counterfoil.spec import Spec, late, of

PUBLIC = "dandelin/vilt-b32-mlm"
SIDE, PATCH, LONGEST = 384, 32, 40  # of the public weights
SETS: tuple[Dataset, ...] = ("scenes",)
DATA = "scenes:images=2600,dev=100,test=500"
REGIONS = ("regress", "classify")  # heads that say what regions were


def small(stage: Train | Pretrain) -> Train | Pretrain:
    """A stage of UNITER on `scenes` as one of a small ViLT."""
    return trained(stage) if isinstance(stage, Train) else pretrained(stage)


def trained(stage: Train) -> Train:
    """A training of UNITER on `scenes` as one of a small ViLT."""
    return replace(stage, model=_small(stage.model), lens=PROFILES["scenes"].lens)


def pretrained(stage: Pretrain) -> Pretrain:
    """The pre-training of UNITER on `scenes` as that of a small ViLT: no region is hidden."""
    tasks = replace(stage.tasks, mrfr=0.0, mrc=0.0, mrckl=0.0)
    lens = PROFILES["scenes"].lens
    return replace(stage, model=_small(stage.model), lens=lens, tasks=tasks)


def from_public(stage: Train) -> Train:
    """A training of UNITER as one of a ViLT that begins with public weights."""
    model = of(
        ViLT,
        vocabulary=late("words"),
        mask=late("mask"),
        dropout=0.1,
        weights=PUBLIC,
        pretrained=late("pretrained"),
        outputs=_heads(stage.model),
    )
    lens = LensPlan(images="pixels", size=SIDE, divisor=PATCH, texts=PUBLIC, longest=LONGEST)
    return replace(stage, model=model, lens=lens)


def _small(uniter: Spec[Matcher]) -> Spec[Matcher]:
    """As wide and as deep as a UNITER; texts may be as long as the lens lets them."""
    taken = {name: uniter.arguments[name] for name in ("layers", "width", "heads", "inner")}
    return of(
        ViLT,
        layers=taken["layers"],
        width=taken["width"],
        heads=taken["heads"],
        inner=taken["inner"],
        vocabulary=late("words"),
        positions=PROFILES["scenes"].lens.longest + 2,
        size=late("size"),
        patch=16,
        spread=uniter.arguments["spread"],
        mask=late("mask"),
        outputs=_heads(uniter),
        score=uniter.arguments.get("score", "probability"),
    )


def _heads(uniter: Spec[Matcher]) -> tuple[str, ...]:
    return tuple(name for name in uniter.arguments["outputs"] if name not in REGIONS)
