"""Stages that compare captions, and trainings that edit them, from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recipes_cases
import train_cases
from counterfoil.core.config import config, from_data, from_stage, lazy
from counterfoil.data.features import FeatureArray
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.negatives.similarity import CaptionSpace, LatentSpaceConfig
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.compared.losses import LSEHLoss, SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import CaptionSpaceStage, Recipe, Train, stage_digests
from counterfoil.pipelines.plan import print_plan
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.state import RunContext
from counterfoil.training.config import TrainConfig
from counterfoil.training.logging import read_metrics

REGIONS = "scenes:images=24,features=regions"
MODEL = recipes_cases.VSEPP_OF_REGIONS
PIXELS = MODEL.replace(image=lazy(PatchTower, size=16, patch=8, width=8, channels=4))
PLAN = TrainConfig(batch=16, steps=6)
MEANT = CaptionSpaceStage(name="meant", space=LatentSpaceConfig(components=12))
LSEH = Train(
    name="lseh",
    model=MODEL,
    objective=weighted_sum(triplet=lazy(LSEHLoss)),
    plan=PLAN,
    sources=(from_stage("meant"),),
)
CFM = Train(
    name="cfm",
    model=MODEL,
    objective=weighted_sum(
        triplet=lazy(HardestTripletLoss),
        adjusted=lazy(SelfAdjustedCFMLoss),
        explored=lazy(SelfExploredCFMLoss),
    ),
    plan=PLAN,
    sources=(config(CounterfactualSampler, adjust=1.0, explore=1.0),),
)


def written(**options: Any) -> Any:
    """Few maskings and refills."""
    parser = lazy(RulePhraseParser)
    return config(TagsGenerator, parser=parser, masks=2, refills=3, keep=2, **options)


RANKED = lazy(MarginRankingLoss, role="written")
WRITER = Pretrain(
    name="writer",
    model=recipes_cases.uniter("match", "fill", "regress"),
    plan=TrainConfig(epochs=1, batch=8, steps=2, select="accuracy"),
)
TAGS = Train(
    name="tags",
    model=recipes_cases.uniter("rank", "fill"),
    objective=weighted_sum(written=RANKED, masked=lazy(WordLoss, task="masked")),
    plan=TrainConfig(batch=4, steps=2, log_every=1),
    sources=(written(),),
)
FROZEN = replace(TAGS, sources=(written(filler=from_stage("writer")),))


def recipe(*stages: Any) -> Recipe:
    return Recipe(name="mine", stages=stages)


def test_both_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = DataSource(REGIONS)
    assert run_pipeline(recipe(MEANT, LSEH, CFM), source, tmp_path / "run")
    train = source.split("train")
    space = CaptionSpace.open(tmp_path / "run" / "meant", fingerprint=train.fingerprint)
    assert space.points.shape == (len(train.texts), 12)
    assert f"meant: {len(train.texts):,} captions in 12 dimensions" in capsys.readouterr().err
    named = {
        name for line in read_metrics(tmp_path / "run" / "cfm" / "metrics.jsonl") for name in line
    }
    assert {"loss_triplet", "loss_adjusted", "loss_explored"} <= named
    for stage in ("lseh", "cfm"):
        assert (tmp_path / "run" / stage / "model" / "model.safetensors").is_file()
    assert run_pipeline(recipe(MEANT, LSEH, CFM), source, tmp_path / "run")
    assert "meant: kept" in capsys.readouterr().err


def test_released_margins_train_on_the_diagonal(tmp_path: Path) -> None:
    released = replace(
        LSEH, positives="diagonal", objective=weighted_sum(t=lazy(LSEHLoss, same_image="no margin"))
    )
    assert run_pipeline(recipe(MEANT, released), DataSource(REGIONS), tmp_path / "run")


def test_a_damaged_space_is_told(tmp_path: Path) -> None:
    source, folder = DataSource(REGIONS), tmp_path / "run"
    assert run_pipeline(recipe(MEANT), source, folder)
    points = folder / "meant" / "points.npy"
    np.save(points, np.load(points)[:-1])
    with pytest.raises(ValueError, match="its manifest promises float32"):
        run_pipeline(recipe(MEANT, LSEH), source, folder)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((MEANT, replace(LSEH, sources=())), "'lseh': the loss LSEHLoss needs a guide"),
        ((replace(CFM, sources=()),), "'cfm': the loss .*'edited'.* such as CounterfactualSampler"),
        ((replace(TAGS, sources=()),), "'tags': the loss .*'written', which no source gives"),
        (
            (replace(TAGS, sources=(written(words=()),)),),
            "'tags': the loss .* needs .*'masked', which no source gives; .* tasks in words",
        ),
        (
            (WRITER, replace(FROZEN, processor=ProcessorConfig(min_count=2))),
            "'tags': TagsGenerator has a filler with another processor, 'writer', so the model",
        ),
        (
            (replace(CFM, model=PIXELS, processor=ProcessorConfig(images="pixels", size=16)),),
            "'cfm': edited negatives need images of several regions, .* sees pixels and texts",
        ),
        (
            (replace(CFM, processor=ProcessorConfig(texts="vectors")),),
            "edited negatives need images of several regions, and words, .* texts as 'vectors'",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    stages: tuple[Any, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        run_pipeline(recipe(*stages), DataSource(REGIONS), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_of_one_vector_cannot_be_edited(tmp_path: Path) -> None:
    dataset = train_cases.dataset()
    one = replace(dataset, features=FeatureArray.of(np.zeros((len(dataset), 1, 6), np.float32)))
    context = RunContext(recipe(CFM), one, tmp_path, {})
    with pytest.raises(ValueError, match="sees one vector an image and texts as 'words'"):
        CFM.check_sources(context)
    CFM.check_sources(replace(context, dataset=dataset))


def test_a_model_without_a_mask_is_refused_when_it_is_built(tmp_path: Path) -> None:
    text = lazy(GRU, words=from_data("words"), width=8, word_width=4)
    plain = replace(CFM, model=MODEL.replace(text=text))
    with pytest.raises(ValueError, match="no token that hides a word; give its id as mask"):
        run_pipeline(recipe(plain), DataSource(REGIONS), tmp_path / "run")
    masked = replace(
        plain, sources=(config(CounterfactualSampler, adjust=1.0, explore=1.0, mask=3),)
    )
    assert run_pipeline(recipe(masked), DataSource(REGIONS), tmp_path / "run")


def test_digests() -> None:
    plain = replace(CFM, name="own", sources=())
    known = stage_digests(recipe(MEANT, LSEH, CFM, plain), "d")
    changed = stage_digests(
        apply_overrides(recipe(MEANT, LSEH, CFM, plain), ["meant.space.seed=1"]), "d"
    )
    assert {name for name in known if known[name] != changed[name]} == {"meant", "lseh"}
    changed = stage_digests(
        apply_overrides(recipe(MEANT, LSEH, CFM, plain), ["cfm.counterfactualsampler.hidden=0.2"]),
        "d",
    )
    assert {name for name in known if known[name] != changed[name]} == {"cfm"}


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(recipe(MEANT, LSEH, CFM))
    shown = " ".join(capsys.readouterr().out.split())
    assert "sources: CounterfactualSampler(adjust=1.0, explore=1.0)" in shown
    assert "lseh train ← meant" in shown


def test_a_measure_that_is_none() -> None:
    with pytest.raises(ValueError, match="'dot' is not a measure"):
        CaptionSpaceStage(name="s", measure="dot")  # type: ignore[arg-type]


def test_a_model_writes_for_itself_and_a_frozen_one_for_it(tmp_path: Path) -> None:
    frozen = replace(FROZEN, name="frozen")
    assert run_pipeline(recipe(WRITER, TAGS, frozen), DataSource(REGIONS), tmp_path / "run")
    losses = {}
    for stage in ("tags", "frozen"):
        found = read_metrics(tmp_path / "run" / stage / "metrics.jsonl")
        losses[stage] = [line["loss_masked"] for line in found if "loss_masked" in line]
        assert all(loss > 0 for loss in losses[stage])
    assert losses["tags"][0] == losses["frozen"][0]  # who writes has no share in it


def test_a_frozen_model_writes_for_one_of_another_kind(tmp_path: Path) -> None:
    """A dual encoder with fewer words reads as text what a UNITER wrote."""
    host = Train(
        name="host",
        model=MODEL,
        objective=weighted_sum(triplet=lazy(HardestTripletLoss), written=RANKED),
        processor=ProcessorConfig(min_count=3),
        plan=TrainConfig(batch=8, steps=2, log_every=1),
        sources=(written(filler=from_stage("writer"), words=()),),
    )
    whole, folder, source = recipe(WRITER, host), tmp_path / "run", DataSource(REGIONS)
    assert run_pipeline(whole, source, folder)
    assert any(line.get("loss_written") for line in read_metrics(folder / "host" / "metrics.jsonl"))
    context = RunContext(whole, source.open(), folder, stage_digests(whole, "d"))
    seen = host.processor.fit(context.train).process(context.train)
    (made,) = host.built_sources(context, 1.0)
    assert isinstance(made, TagsGenerator)
    made.begin(Any, seen, Any, batches=1)  # type: ignore[arg-type]
    assert made.model_inputs is seen
    assert made.inputs.tokenizer.size > seen.processor.tokenizer.size
    assert made.filler is not None
    assert not any(weight.requires_grad for weight in made.filler.parameters())


def test_a_filler_is_part_of_the_digest_only_where_there_is_one() -> None:
    first = stage_digests(recipe(WRITER, TAGS), "d")
    assert stage_digests(recipe(TAGS), "d")["tags"] == first["tags"]
    assert stage_digests(recipe(WRITER, FROZEN), "d")["tags"] != first["tags"]
    with pytest.raises(ValueError, match="'tags' reads 'writer', which no earlier stage writes"):
        recipe(FROZEN)
