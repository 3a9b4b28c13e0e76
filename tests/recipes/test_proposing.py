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
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.patches import Patches
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.uniter import UNITER
from counterfoil.models.vse import VSE
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.latent import SpacePlan
from counterfoil.negatives.semantics import CaptionSpace
from counterfoil.negatives.tailored import Tailored
from counterfoil.objectives.counterfactual import SelfAdjusted, SelfExplored
from counterfoil.objectives.semantic import SemanticMargin
from counterfoil.objectives.term import total
from counterfoil.objectives.triplet import HardestTriplet, RankedBelow
from counterfoil.objectives.words import Words
from counterfoil.recipes.context import Context
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.proposing import check, proposer
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


def uniter(*outputs: str) -> Any:
    return of(
        UNITER,
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=late("words"),
        features=late("features"),
        mask=late("mask"),
        outputs=outputs,
    )


def written(**options: Any) -> Any:
    """Few maskings and refills."""
    desk = part(Desk, lens=late("lens"), parser=part(RulePhraseParser), mask=late("mask"))
    return of(Tailored, desk=desk, masks=2, refills=3, keep=2, **options)


RANKED = part(RankedBelow, role="written")
WRITER = Pretrain(
    name="writer",
    model=uniter("match", "fill", "regress"),
    plan=TrainPlan(epochs=1, batch=8, steps=2, select="accuracy"),
)
TAGS = Train(
    name="tags",
    model=uniter("rank", "fill"),
    objective=total(written=RANKED, masked=part(Words, task="masked")),
    plan=TrainPlan(batch=4, steps=2, log_every=1),
    proposer=written(),
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
    assert f"meant: {len(train.texts):,} captions in 12 dimensions" in capsys.readouterr().err
    named = {name for line in lines(tmp_path / "run" / "cfm") for name in line}
    assert {"loss_triplet", "loss_adjusted", "loss_explored"} <= named
    for stage in ("lseh", "cfm"):
        assert (tmp_path / "run" / stage / "model" / "model.safetensors").is_file()
    assert execute(recipe(MEANT, LSEH, CFM), source, tmp_path / "run")
    assert "meant: kept" in capsys.readouterr().err


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
        ((replace(TAGS, proposer=None),), "'tags' judges written captions, and the stage names no"),
        (
            (replace(TAGS, proposer=written(words=())),),
            "'tags' judges the word task 'masked', which its proposer leaves out; name it in wor",
        ),
        ((WRITER, replace(CFM, filler="writer")), "'cfm' names the filler 'writer', and nothing"),
        (
            (WRITER, replace(TAGS, filler="writer", lens=LensPlan(min_count=2))),
            "'tags' reads with another lens than its filler 'writer', so it learns no words from",
        ),
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


def test_a_model_writes_for_itself_and_a_frozen_one_for_it(tmp_path: Path) -> None:
    frozen = replace(TAGS, name="frozen", proposer=written(filler=late("filler")), filler="writer")
    assert execute(recipe(WRITER, TAGS, frozen), Source(REGIONS), tmp_path / "run")
    losses = {}
    for stage in ("tags", "frozen"):
        found = lines(tmp_path / "run" / stage)
        losses[stage] = [line["loss_masked"] for line in found if "loss_masked" in line]
        assert all(loss > 0 for loss in losses[stage])
    assert losses["tags"][0] == losses["frozen"][0]  # who writes has no share in it


def test_a_frozen_model_writes_for_one_of_another_kind(tmp_path: Path) -> None:
    """A dual encoder with fewer words reads as text what a UNITER wrote."""
    host = Train(
        name="host",
        model=MODEL,
        objective=total(triplet=part(HardestTriplet), written=RANKED),
        lens=LensPlan(min_count=3),
        plan=TrainPlan(batch=8, steps=2, log_every=1),
        proposer=written(filler=late("filler"), reader=late("reader"), words=()),
        filler="writer",
    )
    whole, folder, source = recipe(WRITER, host), tmp_path / "run", Source(REGIONS)
    assert execute(whole, source, folder)
    assert any(line.get("loss_written") for line in lines(folder / "host"))
    context = Context(whole, source.open(), folder, digests(whole, "d"))
    seen = host.lens.fit(context.train).on(context.train)
    made = proposer(context, host, seen)
    assert isinstance(made, Tailored)
    assert made.reader is seen
    assert made.desk.tokenizer.size > seen.lens.tokenizer.size
    assert made.filler is not None
    assert not any(weight.requires_grad for weight in made.filler.parameters())


def test_a_filler_is_part_of_the_digest_only_where_there_is_one() -> None:
    frozen = replace(TAGS, filler="writer")
    first = digests(recipe(WRITER, TAGS), "d")
    assert digests(recipe(TAGS), "d")["tags"] == first["tags"]
    assert digests(recipe(WRITER, frozen), "d")["tags"] != first["tags"]
    with pytest.raises(ValueError, match="'tags' reads 'writer', which no earlier stage writes"):
        recipe(frozen)
