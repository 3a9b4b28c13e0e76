"""Stages that compare captions, and trainings that edit them, from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train_cases
from counterfoil.corpus.lens import LensPlan
from counterfoil.corpus.regions import Features
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.patches import Patches
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.vse import VSE
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.latent import SpacePlan
from counterfoil.negatives.semantics import CaptionSpace
from counterfoil.objectives.counterfactual import SelfAdjusted, SelfExplored
from counterfoil.objectives.semantic import SemanticMargin
from counterfoil.objectives.term import total
from counterfoil.objectives.triplet import HardestTriplet
from counterfoil.recipes.context import Context
from counterfoil.recipes.proposing import check
from counterfoil.recipes.recipe import Recipe, Semantics, Train, digests
from counterfoil.recipes.run import Source, execute
from counterfoil.recipes.settings import apply
from counterfoil.recipes.show import plan as show
from counterfoil.spec import late, of, part
from counterfoil.train.plan import TrainPlan

REGIONS = "scenes:images=24,features=regions"
MODEL = of(
    VSE,
    image=part(Regions, features=late("features"), width=8),
    text=part(GRU, words=late("words"), width=8, word_width=4, word_drop=0.2),
)
PIXELS = MODEL.but(image=part(Patches, size=16, patch=8, width=8, channels=4))
PLAN = TrainPlan(batch=16, steps=6)
MEANT = Semantics(name="meant", space=SpacePlan(components=12))
LSEH = Train(
    name="lseh",
    model=MODEL,
    objective=total(triplet=part(SemanticMargin)),
    plan=PLAN,
    guide="meant",
)
CFM = Train(
    name="cfm",
    model=MODEL,
    objective=total(
        triplet=part(HardestTriplet), adjusted=part(SelfAdjusted), explored=part(SelfExplored)
    ),
    plan=PLAN,
    proposer=of(Edited, adjust=1.0, explore=1.0),
)


def recipe(*stages: Any) -> Recipe:
    return Recipe(name="mine", stages=stages)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_both_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(REGIONS)
    assert execute(recipe(MEANT, LSEH, CFM), source, tmp_path / "run")
    train = source.split("train")
    space = CaptionSpace.open(tmp_path / "run" / "meant", fingerprint=train.fingerprint)
    assert space.points.shape == (len(train.texts), 12)
    assert f"meant: {len(train.texts):,} captions in 12 dimensions" in capsys.readouterr().out
    named = {name for line in lines(tmp_path / "run" / "cfm") for name in line}
    assert {"loss_triplet", "loss_adjusted", "loss_explored"} <= named
    for stage in ("lseh", "cfm"):
        assert (tmp_path / "run" / stage / "model" / "model.safetensors").is_file()
    assert execute(recipe(MEANT, LSEH, CFM), source, tmp_path / "run")
    assert "meant: kept" in capsys.readouterr().out


def test_released_margins_train_on_the_diagonal(tmp_path: Path) -> None:
    released = replace(
        LSEH, positives="diagonal", objective=total(t=part(SemanticMargin, same_image="no margin"))
    )
    assert execute(recipe(MEANT, released), Source(REGIONS), tmp_path / "run")


def test_a_damaged_space_is_told(tmp_path: Path) -> None:
    source, folder = Source(REGIONS), tmp_path / "run"
    assert execute(recipe(MEANT), source, folder)
    points = folder / "meant" / "points.npy"
    np.save(points, np.load(points)[:-1])
    with pytest.raises(ValueError, match="its manifest promises float32"):
        execute(recipe(MEANT, LSEH), source, folder)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((MEANT, replace(LSEH, guide=None)), "the loss of 'lseh' needs a guide"),
        ((replace(CFM, proposer=None),), "the loss of 'cfm' judges edited negatives, and the "),
        (
            (replace(CFM, model=PIXELS, lens=LensPlan(images="pixels", size=16)),),
            "'cfm' sees pixels and texts as 'words'; edited negatives need images of several",
        ),
        (
            (replace(CFM, lens=LensPlan(texts="vectors")),),
            "texts as 'vectors'; edited negatives need images of several regions, and words",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    stages: tuple[Any, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        execute(recipe(*stages), Source(REGIONS), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_of_one_vector_cannot_be_edited(tmp_path: Path) -> None:
    corpus = train_cases.corpus()
    one = replace(corpus, features=Features.of(np.zeros((len(corpus), 1, 6), np.float32)))
    context = Context(recipe(CFM), one, tmp_path, {})
    with pytest.raises(ValueError, match="'cfm' sees one vector an image and texts as 'words'"):
        check(context, CFM)
    check(replace(context, corpus=corpus), CFM)


def test_a_model_without_a_mask_is_refused_when_it_is_built(tmp_path: Path) -> None:
    text = part(GRU, words=late("words"), width=8, word_width=4)
    plain = replace(CFM, model=MODEL.but(text=text))
    with pytest.raises(ValueError, match="no token that hides a word; give its id as mask"):
        execute(recipe(plain), Source(REGIONS), tmp_path / "run")
    masked = replace(plain, proposer=of(Edited, adjust=1.0, explore=1.0, mask=3))
    assert execute(recipe(masked), Source(REGIONS), tmp_path / "run")


def test_digests() -> None:
    plain = replace(CFM, name="own", proposer=None)
    known = digests(recipe(MEANT, LSEH, CFM, plain), "d")
    changed = digests(apply(recipe(MEANT, LSEH, CFM, plain), ["meant.space.seed=1"]), "d")
    assert {name for name in known if known[name] != changed[name]} == {"meant", "lseh"}
    changed = digests(apply(recipe(MEANT, LSEH, CFM, plain), ["cfm.proposer.hidden=0.2"]), "d")
    assert {name for name in known if known[name] != changed[name]} == {"cfm"}


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(recipe(MEANT, LSEH, CFM))
    shown = " ".join(capsys.readouterr().out.split())
    assert "proposer: Edited(adjust=1.0, explore=1.0)" in shown
    assert "lseh train ← meant" in shown


def test_a_measure_that_is_none() -> None:
    with pytest.raises(ValueError, match="'dot' is not a measure"):
        Semantics(name="s", measure="dot")  # type: ignore[arg-type]
