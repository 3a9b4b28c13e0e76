from __future__ import annotations

from dataclasses import replace

import pytest

from counterfoil.core.config import config, from_stage
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.batch_mining import BatchMiningConfig
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.papers.models.configs import scan_config
from counterfoil.papers.models.scan import SCAN
from counterfoil.pipelines.overrides import apply_overrides, changed_settings
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.training.mined import MinedBatches

WHOLE = find_recipe("aoq")


def value(path: str, *settings: str):
    found = apply_overrides(WHOLE, settings)
    stage, *keys = path.split(".")
    reached = found.stage(stage)
    for key in keys:
        inner = getattr(reached, "arguments", reached)
        if isinstance(inner, tuple):
            reached = inner[int(key)]
            continue
        reached = inner[key] if hasattr(inner, "keys") else getattr(inner, key)
    return reached


@pytest.mark.parametrize(
    "setting,path,wanted",
    [
        ("online.plan.epochs=3", "online.plan.epochs", 3),
        ("online.epochs=3", "online.plan.epochs", 3),
        (" online.epochs = 3 ", "online.plan.epochs", 3),
        ("online.rate=1e-5", "online.plan.optimiser.rate", 1e-5),
        ("online.rate=1", "online.plan.optimiser.rate", 1.0),
        ("online.plan.optimiser.rate=2e-5", "online.plan.optimiser.rate", 2e-5),
        ("online.betas=[0.8, 0.9]", "online.plan.optimiser.betas", (0.8, 0.9)),
        ("online.betas=(0, 1)", "online.plan.optimiser.betas", (0.0, 1.0)),
        ("online.track=['tensorboard']", "online.plan.track", ("tensorboard",)),
        ("online.schedule.warmup=7", "online.plan.schedule.warmup", 7.0),
        ("online.drop_last=true", "online.plan.drop_last", True),
        ("online.drop_last=False", "online.plan.drop_last", False),
        ("online.one_caption=True", "online.plan.one_caption", True),
        ("online.model.image.width=3", "online.model.image.width", 3),
        ("online.model.text.layers=2", "online.model.text.layers", 2),  # has a default only
        ("online.model.text.words=50", "online.model.text.words", 50),  # was late
        (
            "online.objective.triplet.second.margin=0.4",
            "online.objective.terms.triplet.1.second.margin",
            0.4,
        ),
        ("online.processor.texts=bert-base-uncased", "online.processor.texts", "bert-base-uncased"),
        ("online.processor.texts='x y'", "online.processor.texts", "x y"),
        ("online.objective.triplet.weight=2", "online.objective.terms.triplet.0", 2.0),
        (
            "online.objective.terms.triplet.term.steps=9",
            "online.objective.terms.triplet.1.steps",
            9,
        ),
        ("online.precision=bf16", "online.plan.precision", "bf16"),
        ("online.positives=diagonal", "online.positives", "diagonal"),
        ("adaptive.start=online", "adaptive.start", "online"),
        ("report.negatives=none", "report.negatives", None),
        ("lists.texts=5", "lists.texts", 5),
        ("test-online.protocol=coco-5k", "test-online.protocol", "coco-5k"),
    ],
)
def test_a_setting(setting, path, wanted):
    found = value(path, setting)
    assert found == wanted
    assert type(found) is type(wanted)


def test_nothing_else_changes():
    found = apply_overrides(WHOLE, ["lists.texts=5"])
    assert [s for s in found.stages if s.name != "lists"] == [
        s for s in WHOLE.stages if s.name != "lists"
    ]
    assert apply_overrides(WHOLE, []) == WHOLE


def test_the_last_one_counts():
    assert value("online.plan.seed", "*.seed=1", "online.seed=2") == 2
    assert value("online.plan.seed", "online.seed=2", "*.seed=1") == 1


def test_every_stage_that_has_the_key():
    found = apply_overrides(WHOLE, ["*.seed=5", "*.split=dev"])
    assert found.stage("online").plan.seed == found.stage("adaptive").plan.seed == 5
    assert {found.stage(n).split for n in ("lists", "test-online", "test-adaptive")} == {"dev"}


@pytest.mark.parametrize(
    "setting,message",
    [
        ("online.epochs", "is no setting; write stage.key=value"),
        ("epochs=3", "is no setting; write stage.key=value"),
        ("=3", "is no setting"),
        (".epochs=3", "'' is not a stage of aoq/vsepp-scenes"),
        ("online.=3", "is no setting"),
        ("onlien.epochs=3", "'onlien' is not a stage of aoq/vsepp-scenes; did you mean 'online'"),
        ("online.epoch=3", "'epoch' is not a key of online; did you mean 'epochs'"),
        ("online.modle.width=3", "did you mean 'model'"),
        ("online.plan.epocs=3", "'epocs' is not a key of TrainConfig; did you mean 'epochs'"),
        ("online.model.image.witdh=3", "'witdh' is not a key of PatchTower; did you mean 'width'"),
        ("online.objective.tripet.steps=3", "'tripet' is not a key of .*'triplet'"),
        ("online.epochs.x=3", "'x' is not a key of int"),
        ("*.nothing=3", "'nothing' is not a key"),
        ("online.epochs=three", "'three' is text, but 'epochs' takes a whole number, as in"),
        ("online.epochs=3.0", "3.0 is a number, but 'epochs' takes a whole number"),
        ("online.epochs=true", "True is true or false, but 'epochs' takes a whole number"),
        ("online.rate=fast", "'fast' is text, but 'rate' takes a number"),
        ("online.rate=true", "True is true or false, but 'rate' takes a number"),
        ("online.drop_last=1", "1 is a whole number, but 'drop_last' takes true or false"),
        ("online.drop_last=yes", "'yes' is text, but 'drop_last' takes true or false"),
        ("online.betas=0.9", "0.9 is a number, but 'betas' takes a list, as in"),
        ("online.betas=[0.9]", r"\(0.9,\) is a list, but 'betas' takes a list, as in \(0.9, 0.9"),
        ("online.track=['wandbb']", "takes a list"),
        ("online.epochs=none", "None is none"),
        ("online.processor.texts=3", "3 is a whole number, but 'texts' takes text"),
        ("adaptive.start=3", "3 is a whole number, but 'start' takes text or none"),
        ("online.precision=fp16", "'fp16' is not a value of 'precision'; did you mean 'bf16'"),
        ("online.model=3", "'model' cannot be replaced whole; set one of: .*image_pool"),
        ("online.plan=none", "'plan' cannot be replaced whole"),
        ("online.plan.schedule.kind=cosine", "'kind' is not a key of "),
        ("online.epochs=-1", "epochs=-1: at least 1 is needed"),
        ("adaptive.start=lists", "'adaptive' needs a train stage where it names 'lists'"),
        ("online.name=o", "reads 'online', which no earlier stage writes"),
    ],
)
def test_what_is_no_setting(setting, message):
    with pytest.raises(ValueError, match=message):
        apply_overrides(WHOLE, [setting])


def test_a_written_call():
    spec = changed_settings(scan_config(width=8), "direction=i2t")
    assert spec.make is SCAN
    assert spec.arguments["direction"] == "i2t"
    assert (
        changed_settings(scan_config(width=8), "image.width=4")
        .arguments["image"]
        .arguments["width"]
        == 4
    )
    with pytest.raises(ValueError, match="'i2i' is not a value of 'direction'; did you mean 't2i'"):
        changed_settings(scan_config(width=8), "direction=i2i")
    with pytest.raises(ValueError, match="'direction' is no setting; write key=value"):
        changed_settings(scan_config(width=8), "direction")
    assert WHOLE.stage("online").model.make is VSEPP


def test_each_of_several_sources_is_named() -> None:
    recipe = find_recipe("tags-dc")
    cooler = apply_overrides(
        recipe, ["*.tagsgenerator.temperature=1", "tags.topscoringminer.keep=5"]
    )
    graphs = apply_overrides(recipe, ["tags.tagsgenerator.parser=txt_db/"])
    writes = graphs.stage("tags").sources[1]
    assert writes.arguments["parser"] == "txt_db/"
    made = {}
    for stage in ("tags", "tags-dc"):
        screens, writes = cooler.stage(stage).sources
        made[stage] = screens.arguments["keep"], writes.arguments["temperature"]
        assert writes.arguments["keep"] == 7
    assert made == {"tags": (5, 1.0), "tags-dc": (7, 1.0)}
    for wrong, told in (
        ("tags.sources.tagsgenerater.masks=3", "did you mean 'tagsgenerator'"),
        ("tags.tagsgenerator=3", "cannot be replaced whole"),
        ("tags.sources=3", "cannot be replaced whole"),
    ):
        with pytest.raises(ValueError, match=told):
            apply_overrides(recipe, [wrong])


def test_a_source_that_is_not_there_is_added_by_its_name() -> None:
    recipe = find_recipe("aoq")
    listed = ["adaptive.minedbatches.negatives=lists", "adaptive.minedbatches.config.size=4"]
    changed = apply_overrides(recipe, [*listed, "adaptive.sources.mined.remine.every=2"])
    mined, batches = changed.stage("adaptive").sources
    assert mined.arguments["remine"].every == 2
    assert mined.arguments["negatives"] == from_stage("lists")
    assert batches == config(
        MinedBatches, negatives=from_stage("lists"), config=BatchMiningConfig(size=4)
    )
    elsewhere = apply_overrides(recipe, ["adaptive.mined.negatives=./lists"]).stage("adaptive")
    assert elsewhere.sources[0].arguments["negatives"] == "./lists"
    assert elsewhere.reads == ()
    for wrong, told in (
        ("adaptive.mined.negatives=list", "'list' is not a stage of this recipe; did you mean"),
        ("adaptive.mined.sampling.text=3", "did you mean 'texts'"),
        ("adaptive.minedbatch.config.size=3", "did you mean 'minedbatches'"),
        ("adaptive.mask.guide=online", "needs a guide stage where it names 'online', a train"),
        ("*.minedbatches.negatives=lists", "'minedbatches' is not a key of"),
    ):
        with pytest.raises(ValueError, match=told):
            apply_overrides(recipe, [wrong])


def test_a_second_source_of_a_class_has_a_number() -> None:
    (first, *_) = (stage for stage in find_recipe("queue").stages if stage.kind == "train")
    queue = config(MomentumQueue, size=8)
    recipe = Recipe(name="mine", stages=(replace(first, name="two", sources=(queue, queue)),))
    changed = apply_overrides(recipe, ["two.momentumqueue2.size=9"]).stage("two").sources
    assert [source.arguments["size"] for source in changed] == [8, 9]
