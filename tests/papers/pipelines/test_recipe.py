from __future__ import annotations

from dataclasses import replace

import pytest

from counterfoil.core.config import config, from_stage
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.pipelines.overrides import apply_overrides, named_values
from counterfoil.pipelines.pipeline import (
    Compare,
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    Train,
    recipe_to_dict,
    stage_digests,
)
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.training.mined import MinedBatches

WHOLE = find_recipe("aoq")
ONLINE = WHOLE.stages[0]
assert isinstance(ONLINE, Train)


def train(name: str, **more) -> Train:
    return replace(ONLINE, name=name, **more)


def mined(name: str):
    return config(MinedBatches, negatives=from_stage(name))


def made(*stages) -> Recipe:
    return Recipe(name="mine", stages=stages)


@pytest.mark.parametrize(
    "stages,message",
    [
        ((train("a"), train("a")), "mine: two stages are called 'a'"),
        ((Mine(name="m", using=("a",)),), "'m' reads 'a', which no earlier stage writes"),
        (
            (Mine(name="m", using=("a",)), train("a")),
            "'m' reads 'a', which no earlier stage writes",
        ),
        ((train("a", start="a"),), "'a' reads 'a', which no earlier stage writes"),
        (
            (train("a"), Evaluate(name="e", using=("a",)), train("b", start="e")),
            "'b' needs a train stage where it names 'e', an evaluate stage",
        ),
        (
            (train("a"), train("b", sources=(mined("a"),))),
            "'b' needs a mine stage where it names 'a', a train stage",
        ),
        (
            (train("a"), Mine(name="m", using=("a",)), train("b", start="m")),
            "'b' needs a train stage where it names 'm', a mine stage",
        ),
        (
            (train("a"), Compare(name="c", results=("a",))),
            "'c' needs an evaluate stage where it names 'a', a train stage",
        ),
        (
            (train("a"), Mine(name="m", using=("a",)), Compare(name="c", results=("m",))),
            "'c' needs an evaluate stage where it names 'm', a mine stage",
        ),
        (
            (train("a"), train("b", sources=(from_stage("a"),))),
            "'b' needs a guide stage where it names 'a', a train stage",
        ),
        (
            (train("a"), ComputeTargets(name="t", using=("a",)), train("b", sources=(mined("t"),))),
            "'b' needs a mine stage where it names 't', a teach stage",
        ),
        (
            (train("a"), ComputeTargets(name="t", using=())),
            "'t' names no stage whose results it uses",
        ),
        (
            (train("a"), Evaluate(name="e", using=())),
            "'e' names no stage whose results it uses",
        ),
        (
            (train("a"), Evaluate(name="e", using=(), first=("a",))),
            "'e' names no stage whose results it uses",
        ),
        (
            (train("a"), Evaluate(name="e", using=("a",), first=("b",))),
            "'e' reads 'b', which no earlier stage writes",
        ),
        ((train("../a"),), r"'\.\./a' cannot name a stage; letters, digits and - are needed"),
        ((train("a.b"),), r"'a\.b' cannot name a stage"),
        ((), "mine has no stage"),
    ],
)
def test_what_is_no_recipe(stages, message):
    with pytest.raises(ValueError, match=message):
        made(*stages)


def test_a_stage_by_name():
    assert WHOLE.stage("online") is ONLINE
    with pytest.raises(
        ValueError, match="'onlin' is not a stage of aoq/vsepp-scenes; did you mean 'online'"
    ):
        WHOLE.stage("onlin")


NAMES = [stage.name for stage in WHOLE.stages]


def changed(setting: str, data: str = "d") -> list[str]:
    """Stages whose digest depends on a setting."""
    before, after = (
        stage_digests(WHOLE, "d"),
        stage_digests(apply_overrides(WHOLE, [setting] if setting else []), data),
    )
    assert list(before) == list(after) == NAMES
    return [name for name in NAMES if before[name] != after[name]]


@pytest.mark.parametrize(
    "setting,stages",
    [
        ("", []),
        ("online.seed=7", NAMES),
        ("online.model.image.width=3", NAMES),
        ("online.objective.triplet.second.margin=0.3", NAMES),
        ("online.processor.size=32", NAMES),
        ("online.rate=0.1", NAMES),
        ("online.schedule.warmup=1", NAMES),
        ("online.dev_images=0", []),
        ("online.dev_images=9", NAMES),
        ("online.positives=diagonal", NAMES),
        ("lists.texts=7", ["lists", "adaptive", "test-adaptive", "report"]),
        ("adaptive.mined.sampling.count=2", ["adaptive", "test-adaptive", "report"]),
        ("test-online.split=dev", ["test-online", "report"]),
        ("test-online.depth=50", []),
        ("test-online.full=false", []),
        ("test-adaptive.first=['online']", ["test-adaptive", "report"]),
        ("online.minutes=3", []),
        ("*.ahead=9", []),
        ("*.save_minutes=9", []),
        ("*.track=['tensorboard']", []),
    ],
)
def test_a_digest_depends_on_what_the_result_depends_on(setting, stages):
    assert changed(setting) == stages


def test_a_digest_depends_on_the_data():
    assert changed("", data="e") == NAMES


def test_a_folder_of_written_captions_counts_by_its_content(tmp_path):
    """It may be written again under the same name; nothing else changes a digest."""
    plain, foils = made(train("a")), tmp_path / "foils.jsonl"
    drawing = config(GeneratedCaptions, folder=str(tmp_path))
    queue = config(MomentumQueue)
    unwritten = stage_digests(plain, "d")
    for sources in ((drawing,), (queue, drawing)):
        told = []
        for text in ("", "one\n", "two\n"):
            foils.write_text(text)
            told.append(stage_digests(made(train("a", sources=sources)), "d")["a"])
        assert len(set(told)) == 3
        foils.write_text("one\n")
        assert stage_digests(made(train("a", sources=sources)), "d")["a"] == told[1]
    foils.unlink()
    assert stage_digests(made(train("a", sources=(drawing,))), "d")["a"] not in told
    assert stage_digests(plain, "d") == unwritten


def test_digests_are_stable_and_distinct():
    found = stage_digests(WHOLE, "d")
    assert found == stage_digests(find_recipe("aoq"), "d")
    assert len(set(found.values())) == len(NAMES)
    assert all(len(name) == 12 for name in found.values())


def test_two_schedules_with_the_same_numbers_differ():
    from counterfoil.training.config import ConstantLR, LinearLR

    one = made(train("a", plan=replace(ONLINE.plan, schedule=ConstantLR(warmup=5))))
    two = made(train("a", plan=replace(ONLINE.plan, schedule=LinearLR(warmup=5))))
    assert stage_digests(one, "d") != stage_digests(two, "d")


def test_plain_is_json():
    import json

    for stage in WHOLE.stages:
        written = recipe_to_dict(stage)
        assert json.loads(json.dumps(written)) == json.loads(json.dumps(recipe_to_dict(stage)))
        assert written["name"] == stage.name


def test_all_that_a_result_depends_on_counts(monkeypatch):
    """Defaults of recorded calls are spelt out; a stage's version counts, and what it reads."""
    stages = (train("a"), Mine(name="m", using=("a",)))
    known = stage_digests(made(*stages), "data")
    for change in ({"filters": FilterConfig(skip=1)}, {"guides": ("a",)}):
        other = stage_digests(made(stages[0], replace(stages[1], **change)), "data")
        assert other["a"] == known["a"]
        assert other["m"] != known["m"]
    defaults = named_values(ONLINE.model)
    assert defaults.keys() > ONLINE.model.arguments.keys()
    spelt = train("a", model=ONLINE.model.replace(**defaults))
    assert stage_digests(made(spelt, stages[1]), "data") == known
    monkeypatch.setattr(Mine, "version", 2)
    other = stage_digests(made(*stages), "data")
    assert other["a"] == known["a"]
    assert other["m"] != known["m"]


def test_a_placeholder_of_a_stage_is_read_and_counts():
    def reader(name, **more):
        lists = replace(Mine(name=name, using=("a",)), **more)
        return train("a"), lists, train("b", sources=(mined(name),))

    stages = made(*reader("m")).stages
    assert stages[2].reads == ("m",)
    assert recipe_to_dict(stages[2])["sources"][0]["negatives"] == {"from_stage": "m"}
    with pytest.raises(ValueError, match="'b' reads 'm', which no earlier stage writes"):
        made(stages[0], stages[2])
    with pytest.raises(ValueError, match="'b' needs a mine stage where it names 'a', a train"):
        made(stages[0], train("b", sources=(mined("a"),)))
    with pytest.raises(ValueError, match=r"from_stage.'m'. has not been filled in"):
        mined("m").build()
    known, longer = (stage_digests(made(*reader("m", texts=n)), "d") for n in (300, 200))
    assert known["b"] != longer["b"]


def test_guides_are_read_too():
    stages = train("a"), train("b"), Mine(name="m", using=("a",), guides=("b",))
    assert made(*stages).stages[2].reads == ("a", "b")
    with pytest.raises(ValueError, match="'m' reads 'b', which no earlier stage writes"):
        made(stages[0], stages[2])
    with pytest.raises(ValueError, match="'m' names no stage whose results it uses"):
        made(stages[0], stages[1], replace(stages[2], using=()))


def test_a_guide_counts():
    stages = (train("a"), ComputeTargets(name="t", using=("a",)), train("b"))
    guided = stage_digests(made(*stages[:2], train("b", sources=(from_stage("t"),))), "d")
    assert guided["b"] != stage_digests(made(*stages), "d")["b"]
    other = stage_digests(
        made(
            stages[0], replace(stages[1], standardise=True), train("b", sources=(from_stage("t"),))
        ),
        "d",
    )
    assert other["b"] != guided["b"]


@pytest.mark.parametrize(
    "change,message",
    [
        ({"form": "store"}, "a form of teachers"),
        ({"precision": "bf16"}, "a precision of stored encodings"),
        ({"inputs": "same"}, "'t' stores what teachers make of clean items"),
        (
            {"inputs": "same", "form": "models", "models": ("runs/a",)},
            "runs/a has a vocabulary and features of its own",
        ),
    ],
)
def test_teaching_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ComputeTargets(name="t", using=("a",), **change)


@pytest.mark.parametrize(
    ("given", "name"),
    [("lr", "rate"), ("num_epochs", "epochs"), ("bs", "batch"), ("batch_size", "batch")],
)
def test_names_of_other_libraries_are_answered_with_the_ones_here(given, name):
    with pytest.raises(ValueError, match=f"'{given}' is not a key .*; did you mean '{name}'"):
        apply_overrides(WHOLE, [f"online.{given}=1"])
