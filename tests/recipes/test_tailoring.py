"""A stage that lets a trained model write, and trainings that draw from what it wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.uniter import UNITER
from counterfoil.models.vse import VSE
from counterfoil.negatives import written_parts
from counterfoil.negatives.written import Written
from counterfoil.negatives.written_store import WrittenStore
from counterfoil.objectives.term import total
from counterfoil.objectives.triplet import HardestTriplet, RankedBelow
from counterfoil.recipes.pretraining import Pretrain, pretrain_plan
from counterfoil.recipes.recipe import Recipe, Stage, Train, digests
from counterfoil.recipes.run import Source, execute
from counterfoil.recipes.settings import apply
from counterfoil.recipes.show import plan as show
from counterfoil.recipes.writes import Write
from counterfoil.spec import late, of, part
from counterfoil.train.plan import TrainPlan

DATA = Source("scenes:images=16,features=regions")
PRETRAINED = Pretrain(
    name="pretrained",
    model=of(
        UNITER,
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=late("words"),
        features=late("features"),
        outputs=("match", "fill"),
    ),
    plan=replace(pretrain_plan(epochs=1, batch=16), steps=3),
)
FOILS = Write(name="foils", using="pretrained", masks=2, refills=3, keep=2)
HOST = Train(
    name="host",
    model=of(
        VSE,
        image=part(Regions, features=late("features"), width=8),
        text=part(GRU, words=late("words"), width=8, word_width=4),
    ),
    objective=total(own=part(HardestTriplet), written=part(RankedBelow, role="written")),
    plan=TrainPlan(batch=16, steps=4, log_every=1),
    proposer=of(Written, folder=late("written"), lens=late("lens"), count=2),
    written="foils",
)


def recipe(*stages: Stage) -> Recipe:
    pretrained = apply(Recipe(name="x", stages=(PRETRAINED,)), ["*.mrfr=0", "*.mrckl=0"])
    return Recipe(name="foils", stages=(*pretrained.stages, *stages))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert execute(recipe(FOILS, HOST), DATA, folder)
    return folder


def test_a_host_trains_on_what_a_model_wrote(whole: Path) -> None:
    train = DATA.split("train")
    store = WrittenStore.open(whole / "foils", fingerprint=train.fingerprint)
    foils = list(store.foils())
    assert {foil.text for foil in foils} <= set(train.text_ids)
    assert len(foils) > len(train.texts)
    assert store.manifest.writer == "UNITER (TAGS)"
    settings = store.manifest.settings
    assert (settings["masks"], settings["keep"], settings["rules"]) == (2, 2, ("captions",))
    assert len(str(settings["checkpoint"])) == 16
    lines = (whole / "host" / "metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("loss_written", 0) > 0 for line in lines)


def test_a_killed_stage_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert execute(recipe(), DATA, tmp_path)
    monkeypatch.setattr(written_parts, "CAPTIONS", 8)
    save, saved = written_parts._save, list[Path]()

    def dies(path: Path, foils: Any) -> None:
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(path)
        save(path, foils)

    monkeypatch.setattr(written_parts, "_save", dies)
    with pytest.raises(KeyboardInterrupt):
        execute(recipe(FOILS), DATA, tmp_path)
    assert not (tmp_path / "foils").exists()
    with pytest.raises(ValueError, match="holds a run that was stopped; add --resume"):
        execute(recipe(FOILS), DATA, tmp_path)
    saved.clear()
    monkeypatch.setattr(written_parts, "_save", save)
    assert execute(recipe(FOILS), DATA, tmp_path, resume=True)
    assert files(tmp_path / "foils") == files(whole / "foils")
    note = tmp_path / "foils.json"
    note.write_text(note.read_text().replace('"done"', '"running"'))
    assert execute(recipe(FOILS), DATA, tmp_path, resume=True), "killed before its last note"
    assert files(tmp_path / "foils") == files(whole / "foils")
    assert not list(tmp_path.glob("*.partial"))


def test_out_of_time_is_no_loss(whole: Path, tmp_path: Path) -> None:
    assert execute(recipe(), DATA, tmp_path)
    assert not execute(recipe(FOILS), DATA, tmp_path, minutes=1e-9)
    assert execute(recipe(FOILS), DATA, tmp_path, resume=True)
    assert files(tmp_path / "foils") == files(whole / "foils")


def test_digests_hang_on_the_writer_and_its_settings() -> None:
    plain = digests(recipe(FOILS, HOST), "d")
    for other in (replace(FOILS, seed=1), replace(FOILS, guide="pretrained")):
        found = digests(recipe(other, HOST), "d")
        assert found["foils"] != plain["foils"]
        assert found["host"] != plain["host"]
    silent = replace(HOST, written=None)
    assert "written" not in json.dumps(digests(recipe(silent), "d"))


def test_settings_reach_inside() -> None:
    found = apply(recipe(FOILS), ["foils.masks=5", "foils.rules=('lemmas',)"]).stage("foils")
    assert isinstance(found, Write)
    assert (found.masks, found.rules) == (5, ("lemmas",))
    with pytest.raises(ValueError, match="'lemas'"):
        apply(recipe(FOILS), ["foils.rules=('lemas',)"])


def test_the_plan_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    show(recipe(FOILS, HOST))
    shown = " ".join(capsys.readouterr().out.split())
    assert "foils write ← pretrained" in shown
    assert "parser: RulePhraseParser()" in shown


@pytest.mark.parametrize(
    ("stages", "fragment"),
    [
        ((FOILS, replace(HOST, written=None)), "names no stage that writes them"),
        ((FOILS, replace(HOST, proposer=None)), "nothing that writes them"),
        (
            (FOILS, replace(HOST, proposer=None, objective=total(own=part(HardestTriplet)))),
            "and nothing that draws from them",
        ),
        ((replace(FOILS, split="test"), HOST), "set foils.split=train"),
        ((replace(FOILS, split="tset"),), "'tset'"),
    ],
)
def test_what_does_not_go_together(
    stages: tuple[Stage, ...], fragment: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=fragment):
        execute(recipe(*stages), DATA, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_writer_without_a_head_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    mute = replace(PRETRAINED, model=PRETRAINED.model.but(outputs=("match",)))
    mute = apply(Recipe(name="x", stages=(mute,)), ["*.mrfr=0", "*.mrckl=0", "*.mlm=0"]).stages[0]
    with pytest.raises(ValueError, match="whose model has no head 'fill'"):
        execute(Recipe(name="x", stages=(mute, FOILS)), DATA, tmp_path)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"keep": 0}, "keep=0"),
        ({"masks": 0}, "masks=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"singles": "alone"}, "'alone'"),
    ],
)
def test_numbers_that_are_not_possible(change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment):
        replace(FOILS, **change)


def test_a_stage_that_nobody_wrote() -> None:
    with pytest.raises(ValueError, match="reads 'foils', which no earlier stage writes"):
        recipe(HOST)
    with pytest.raises(ValueError, match="needs a write stage where it names 'pretrained'"):
        recipe(replace(HOST, written="pretrained"))
