"""A stage that lets a trained model write, and trainings that draw from what it wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recipes_cases
from counterfoil.core.config import config, from_stage, lazy
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.negatives.generated import GeneratedCaptions, GeneratedStore
from counterfoil.papers.pretraining.stage import Pretrain, pretrain_config
from counterfoil.papers.tags import generator
from counterfoil.papers.tags.stage import Generate
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Recipe, Stage, Train, stage_digests
from counterfoil.pipelines.plan import print_plan
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.training.config import TrainConfig
from counterfoil.training.logging import read_metrics

DATA = DataSource("scenes:images=16,features=regions")
PRETRAINED = Pretrain(
    name="pretrained",
    model=recipes_cases.uniter("match", "fill"),
    plan=replace(pretrain_config(epochs=1, batch=16), steps=3),
)
FOILS = Generate(name="foils", using="pretrained", masks=2, refills=3, keep=2)


def drawn(folder: str) -> Any:
    return config(GeneratedCaptions, folder=from_stage(folder), count=2)


HOST = Train(
    name="host",
    model=recipes_cases.VSEPP_OF_REGIONS,
    objective=weighted_sum(
        own=lazy(HardestTripletLoss), written=lazy(MarginRankingLoss, role="written")
    ),
    plan=TrainConfig(batch=16, steps=4, log_every=1),
    sources=(drawn("foils"),),
)


def recipe(*stages: Stage) -> Recipe:
    pretrained = apply_overrides(Recipe(name="x", stages=(PRETRAINED,)), ["*.mrfr=0", "*.mrckl=0"])
    return Recipe(name="foils", stages=(*pretrained.stages, *stages))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert run_pipeline(recipe(FOILS, HOST), DATA, folder)
    return folder


def test_a_host_trains_on_what_a_model_wrote(whole: Path) -> None:
    train = DATA.split("train")
    store = GeneratedStore.open(whole / "foils", fingerprint=train.fingerprint)
    foils = list(store.foils())
    assert {foil.text for foil in foils} <= set(train.text_ids)
    assert len(foils) > len(train.texts)
    assert store.manifest.writer == "UNITER (TAGS)"
    settings = store.manifest.settings
    assert (settings["masks"], settings["keep"], settings["rules"]) == (2, 2, ("captions",))
    assert len(str(settings["checkpoint"])) == 16
    lines = read_metrics(whole / "host" / "metrics.jsonl")
    assert any(line.get("loss_written", 0) > 0 for line in lines)


def test_a_killed_stage_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_pipeline(recipe(), DATA, tmp_path)
    monkeypatch.setattr(generator, "CAPTIONS", 8)
    save, saved = generator.PartsFolder.save, list[int]()

    def dies(folder: Any, number: int, write: Any) -> None:
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(number)
        save(folder, number, write)

    monkeypatch.setattr(generator.PartsFolder, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(recipe(FOILS), DATA, tmp_path)
    assert not (tmp_path / "foils").exists()
    with pytest.raises(ValueError, match="holds a run that was stopped; add --resume"):
        run_pipeline(recipe(FOILS), DATA, tmp_path)
    saved.clear()
    monkeypatch.setattr(generator.PartsFolder, "save", save)
    assert run_pipeline(recipe(FOILS), DATA, tmp_path, resume=True)
    assert files(tmp_path / "foils") == files(whole / "foils")
    note = tmp_path / "foils.json"
    note.write_text(note.read_text().replace('"done"', '"running"'))
    assert run_pipeline(recipe(FOILS), DATA, tmp_path, resume=True), "killed before its last note"
    assert files(tmp_path / "foils") == files(whole / "foils")
    assert not list(tmp_path.glob("*.partial"))


def test_out_of_time_is_no_loss(whole: Path, tmp_path: Path) -> None:
    assert run_pipeline(recipe(), DATA, tmp_path)
    assert not run_pipeline(recipe(FOILS), DATA, tmp_path, minutes=1e-9)
    assert run_pipeline(recipe(FOILS), DATA, tmp_path, resume=True)
    assert files(tmp_path / "foils") == files(whole / "foils")


def test_digests_hang_on_the_writer_and_its_settings() -> None:
    plain = stage_digests(recipe(FOILS, HOST), "d")
    for other in (replace(FOILS, seed=1), replace(FOILS, guide="pretrained")):
        found = stage_digests(recipe(other, HOST), "d")
        assert found["foils"] != plain["foils"]
        assert found["host"] != plain["host"]


def test_settings_reach_inside() -> None:
    found = apply_overrides(recipe(FOILS), ["foils.masks=5", "foils.rules=('lemmas',)"]).stage(
        "foils"
    )
    assert isinstance(found, Generate)
    assert (found.masks, found.rules) == (5, ("lemmas",))
    with pytest.raises(ValueError, match="'lemas'"):
        apply_overrides(recipe(FOILS), ["foils.rules=('lemas',)"])


def test_the_plan_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(recipe(FOILS, HOST))
    shown = " ".join(capsys.readouterr().out.split())
    assert "foils write ← pretrained" in shown
    assert "parser: RulePhraseParser()" in shown


@pytest.mark.parametrize(
    ("stages", "fragment"),
    [
        ((FOILS, replace(HOST, sources=())), "'host': the loss .* needs .*'written', which no"),
        (
            (
                FOILS,
                replace(HOST, objective=weighted_sum(own=lazy(HardestTripletLoss))),
            ),
            "GeneratedCaptions gives .* HardestTripletLoss needs none of it",
        ),
        ((replace(FOILS, split="test"), HOST), "set foils.split=train"),
        ((replace(FOILS, split="tset"),), "'tset'"),
    ],
)
def test_what_does_not_go_together(
    stages: tuple[Stage, ...], fragment: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=fragment):
        run_pipeline(recipe(*stages), DATA, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_writer_without_a_head_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    mute = replace(PRETRAINED, model=PRETRAINED.model.replace(outputs=("match",)))
    mute = apply_overrides(
        Recipe(name="x", stages=(mute,)), ["*.mrfr=0", "*.mrckl=0", "*.mlm=0"]
    ).stages[0]
    with pytest.raises(ValueError, match="whose model has no head 'fill'"):
        run_pipeline(Recipe(name="x", stages=(mute, FOILS)), DATA, tmp_path)


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
        recipe(replace(HOST, sources=(drawn("pretrained"),)))
