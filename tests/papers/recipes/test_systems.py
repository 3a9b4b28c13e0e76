"""Every number of the papers and of their authors' scripts, beside those of the recipes' plans."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from counterfoil.core.config import lazy
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.papers import systems
from counterfoil.papers.models.uniter import UNITER, uniter_name
from counterfoil.papers.systems import LARGE, SYSTEMS
from counterfoil.pipelines.pipeline import Train
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.training.config import LinearLR, TrainConfig

CAPTIONS = {"flickr30k": 145_000, "coco": 566_435}


class Numbers(NamedTuple):
    """What is published of a training: a tenth of the rate after the epochs of `drops`."""

    rate: float
    epochs: int
    drops: tuple[int, ...]
    batch: int = 128


# Flickr30K, then MS-COCO
ADAM = {  # without weight decay, clipped at 2
    "vsepp": (Numbers(2e-4, 30, (15,)), Numbers(2e-4, 30, (15,))),
    "scan-t2i": (Numbers(2e-4, 30, (15,)), Numbers(5e-4, 20, (10,))),
    "scan-t2i-avg": (Numbers(2e-4, 30, (15,)), Numbers(5e-4, 20, (10,))),
    "scan-i2t": (Numbers(2e-4, 30, (15,)), Numbers(5e-4, 20, (10,))),
    "bfan-equal": (Numbers(2e-4, 15, ()), Numbers(5e-4, 20, (15,))),
    "bfan-prob": (Numbers(2e-4, 15, ()), Numbers(5e-4, 20, (15,))),
    "vsrn-single": (Numbers(2e-4, 20, (10,)), Numbers(2e-4, 30, (15,))),
    "naaf-single": (Numbers(5e-4, 20, (10,)), Numbers(5e-4, 20, (10,), 256)),
    "sgraf-sgr": (Numbers(2e-4, 40, (30,)), Numbers(2e-4, 20, (10,))),
    "sgraf-saf": (Numbers(2e-4, 30, (20,)), Numbers(2e-4, 20, (10,))),
}
ADAMW = {  # the same, then decay, margin and epochs against all negatives first
    "gpo": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 0.01, 0.2, 1),
    "chan": (Numbers(5e-4, 25, (15,), 384), Numbers(5e-4, 25, (15,), 384), 0.01, 0.05, 1),
    "esa": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 0.01, 0.2, 1),
    "hrem": (Numbers(5e-4, 30, (15, 25)), Numbers(5e-4, 30, (15, 25), 256), 1e-4, 0.2, 0),
    "dive": (Numbers(1e-3, 80, (), 200), Numbers(1e-3, 80, (), 200), 1e-4, 0.2, 0),
    "xdim": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 20, (10,)), 1e-4, 0.2, 1),
    "user": (Numbers(5e-4, 20, (10,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.2, 0),
    "gpo-bert": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.2, 1),
    "chan-bert": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.05, 1),
    "esa-bert": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.2, 1),
    "hrem-bert": (Numbers(5e-4, 30, (15, 25)), Numbers(5e-4, 30, (15, 25), 256), 1e-4, 0.2, 0),
    "xdim-bert": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 20, (10,)), 1e-4, 0.2, 1),
    "user-bert": (Numbers(5e-4, 20, (10,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.2, 0),
    "gpo-grid": (Numbers(5e-4, 25, (15,)), Numbers(5e-4, 25, (15,)), 1e-4, 0.2, 1),
}
CGMN = Numbers(2e-4, 30, (20, 25))  # Adam without decay, after 500 steps on all negatives
LINE = {  # without decay, clipped at 2; a tenth of the steps up, then a straight line to 0
    "lightningdot": (Numbers(2e-5, 15, (), 64), Numbers(2e-5, 20, (), 64)),
}
AOQ = {  # round two, in the paper and in the released code, on both data sets
    "vsepp": (Numbers(2e-4, 15, (10,)), Numbers(2e-4, 15, (10,))),  # ours
    "scan-t2i": (Numbers(5e-4, 15, (10,)), Numbers(5e-4, 15, (10,))),
    "scan-t2i-avg": (Numbers(5e-4, 15, (10,)), Numbers(5e-4, 15, (10,))),
    "scan-i2t": (Numbers(5e-4, 15, (10,)), Numbers(5e-4, 15, (10,))),
    "bfan-equal": (Numbers(5e-4, 15, (10,)), Numbers(2e-4, 15, (10,))),
    "bfan-prob": (Numbers(5e-4, 15, (10,)), Numbers(2e-4, 15, (10,))),
    "vsrn-single": (Numbers(2e-4, 20, (10,)), Numbers(2e-4, 20, (10,))),
}


class Step(NamedTuple):
    """A row of TAGS's Table 5, or of a script; words is the weight of each of two word tasks."""

    rate: float
    temperature: float
    kept: int
    masked: float
    written: float
    words: float
    batch: int = 128
    steps: int = 5000


TAGS = {  # model, data set, whether as released: both steps
    ("uniter", "flickr30k", False): (
        Step(5e-5, 1.5, 31, 0.1, 1e-3, 0),
        Step(1e-5, 1.5, 31, 0.1, 1e-3, 1e-3, steps=1500),
    ),
    ("uniter", "flickr30k", True): (
        Step(5e-5, 2.0, 31, 0.05, 5e-4, 0),
        Step(1e-5, 1.5, 31, 0.1, 5e-4, 5e-4, 256, 1500),
    ),
    ("uniter", "coco", False): (
        Step(5e-5, 1.5, 31, 0.05, 1e-4, 0),
        Step(1e-5, 1.5, 31, 0.05, 1e-4, 5e-4, steps=1500),
    ),
    ("uniter", "coco", True): (
        Step(5e-5, 1.5, 31, 0.01, 5e-5, 0, 256),
        Step(1e-5, 1.5, 31, 0.05, 1e-4, 5e-4, 256, 1500),
    ),
    ("uniter-large", "flickr30k", False): (
        Step(4e-5, 1.5, 23, 0.1, 5e-4, 0),
        Step(1e-5, 1.5, 23, 0.1, 5e-4, 5e-4, steps=1500),
    ),
    ("uniter-large", "flickr30k", True): (
        Step(5e-5, 2.0, 23, 0.05, 1e-3, 0, 256),
        Step(1e-5, 1.5, 23, 0.05, 5e-4, 5e-4, 256, 5000),
    ),
    ("uniter-large", "coco", False): (
        Step(4e-5, 1.5, 23, 0.05, 5e-4, 0),
        Step(1e-5, 1.5, 23, 0.05, 5e-4, 5e-4, steps=1500),
    ),
    ("uniter-large", "coco", True): (
        Step(4e-5, 1.5, 23, 0.05, 1e-3, 0, 256),
        Step(1e-5, 1.5, 31, 0.05, 1e-4, 5e-4, 256, 1500),
    ),
}
METHODS: dict[str, Any] = {
    "TEXTS": 300,  # AOQ's h
    "IMAGES": 60,
    "K": 2,  # NDGL's teachers
    "MR_WEIGHT": 100.0,
    "HNR_WEIGHT": 0.5,
    "GAMMA": 0.01,
    "DOUBT_WEIGHTS": (1.0, 0.11),
    "CLIP": 2.0,  # of TAGS
    "TAGS_WARMUP": 0.1,
    "VSEC_FOILS": 5,
    "VSEC_WORD_WIDTH": 400,
    "NEIGHBOURS": 3,  # of NegCLIP
    "RERANKED": 100,  # of LightningDOT
}
BY_DATASET = {  # Flickr30K, MS-COCO
    "GRAPH_AFTER": (8000, 8000),  # of HREM
    "FURTHEST": (1.7, 1.9),
    "IN_BATCH": (20.0, 1.0),  # of USER
    "QUEUE": (2048, 4096),
    "EPOCH": tuple(CAPTIONS[like] // 128 for like in LARGE),
    "WIDE_EPOCH": tuple(CAPTIONS[like] // 384 for like in LARGE),
}


def numbers(plan: TrainConfig) -> Numbers:
    return Numbers(plan.optimiser.rate, plan.epochs, getattr(plan.schedule, "at", ()), plan.batch)


def stage(name: str, recipe: str, **arguments: Any) -> Train:
    found = find_recipe(recipe, **arguments).stage(name)
    assert isinstance(found, Train)
    return found


def test_every_system_has_its_numbers_here():
    joint = {"uniter", "uniter-large", "vilt", "vilt-public"}
    assert {*ADAM, *ADAMW, *LINE, "cgmn", "ernievil"} | joint == set(SYSTEMS)


@pytest.mark.parametrize("like", LARGE)
def test_numbers_of_the_papers(like):
    place = LARGE.index(like)
    for name, row in ADAM.items():
        made = stage("online", "online", model=name, like=like)
        assert numbers(made.plan) == row[place], name
        optimiser = made.plan.optimiser
        assert (optimiser.rule, optimiser.decay, optimiser.clip) == ("adam", 0, 2), name
        assert made.objective.arguments["terms"]["triplet"][1].arguments["margin"] == 0.2
        assert not made.plan.drop_last
    for name, (*rows, decay, margin, warmup) in ADAMW.items():
        plan = stage("online", "online", model=name, like=like).plan
        dive = name == "dive"
        assert numbers(plan) == rows[place], name
        assert (plan.optimiser.rule, plan.optimiser.decay) == ("adamw", decay), name
        assert plan.optimiser.decay_vectors, name  # biases and norms too
        assert (plan.optimiser.clip, plan.all_captions, plan.drop_last) == (
            1 if dive else 2,
            dive,
            True,
        )
        assert plan.schedule.kind == ("cosine" if dive else "steps")
        system = SYSTEMS[name]
        assert system.margin == margin, name
        assert system.warmup[like] == warmup * (CAPTIONS[like] // plan.batch), name
        assert system.reduction == ("mean" if dive or system.paper == "user" else "sum")
        slow = [("text.body.*", 0.1, 0)] * system.bert + [("image.body.*", 0.01, 1)] * system.grid
        if not dive:  # whose groups `test_modern` checks
            groups = [(group.match, group.rate, group.begins) for group in plan.optimiser.groups]
            assert groups == slow, name
    cgmn = stage("online", "online", model="cgmn", like=like)
    assert numbers(cgmn.plan) == CGMN
    assert (cgmn.plan.optimiser.rule, cgmn.plan.optimiser.decay) == ("adam", 0)
    terms = cgmn.objective.arguments["terms"]
    assert terms["triplet"][1].arguments["steps"] == 500
    assert terms["matching"] == (1 / 3, lazy(SumTripletLoss, margin=0.2, view="matching"))
    assert (cgmn.model.arguments["image"].arguments["width"], cgmn.plan.optimiser.clip) == (2048, 2)
    for name, row in LINE.items():
        plan = stage("online", "online", model=name, like=like).plan
        assert numbers(plan) == row[place], name
        optimiser = plan.optimiser
        assert (optimiser.rule, optimiser.decay, optimiser.clip) == ("adamw", 0, 2), name
        assert (plan.schedule.kind, plan.schedule.warmup) == ("linear", 0.1), name
        assert not plan.drop_last
    for name, (paper, released) in AOQ.items():
        arguments = {"model": name, "like": like}
        assert numbers(stage("adaptive", "aoq", **arguments).plan) == paper, name
        again = stage("released-code", "aoq", loss="released-code", **arguments)
        assert numbers(again.plan) == released, name


def test_numbers_of_ernie_vil():
    made = stage("online", "online", model="ernievil", like="flickr30k")
    plan = made.plan
    assert numbers(plan) == Numbers(2e-5, 40, (24, 32), 8)
    assert (plan.accumulate, plan.schedule.warmup) == (8, 0.1)
    optimiser = plan.optimiser
    assert (optimiser.rule, optimiser.decay, optimiser.clip) == ("adamw", 0.01, 1)
    assert {weight for weight, _ in made.objective.arguments["terms"].values()} == {0.5}
    (source,) = made.sources
    drawn = source.arguments["candidates"]
    assert (drawn.arguments, source.arguments["keep"]) == ({"texts": 10, "images": 10}, 10)
    with pytest.raises(ValueError, match="ernievil has no numbers for coco"):
        find_recipe("online", model="ernievil", like="coco")


@pytest.mark.parametrize("row", TAGS, ids=str)
def test_numbers_of_tags(row):
    model, like, released = row
    ends = "-released" if released else ""
    for wanted, name in zip(TAGS[row], ("tags", "tags-dc"), strict=True):
        made = stage(name + ends, "tags-dc", model=model, like=like, released=released)
        terms = made.objective.arguments["terms"]
        weights = {term: weight for term, (weight, _) in terms.items()}
        assert weights.pop("doubt", 0) == weights.pop("correct", 0) == wanted.words
        assert weights == {
            "texts": 1, "images": 1, "masked": wanted.masked, "written": wanted.written
        }  # fmt: skip
        screens, writer = made.sources
        assert screens.arguments["keep"] == writer.arguments["keep"] == wanted.kept
        assert (writer.arguments["masks"], writer.arguments["refills"]) == (20, 20)
        assert writer.arguments["temperature"] == wanted.temperature
        offered = screens.arguments["candidates"].arguments
        assert (offered["texts"], offered["images"]) == (399, 399)
        plan = made.plan
        assert (plan.optimiser.rate, plan.steps) == (wanted.rate, wanted.steps)
        assert plan.batch * plan.accumulate == wanted.batch
        assert plan.optimiser.clip == 2
        assert plan.optimiser.rule == "transformers-adamw"
        assert plan.schedule == LinearLR(warmup=0.1, ahead=1)


# tensors of UNITER's code that are no matrices here, without biases; the fact is in their names
THEIR_VECTORS = (
    "uniter.embeddings.LayerNorm.weight",
    "uniter.img_embeddings.LayerNorm.weight",
    "uniter.img_embeddings.img_layer_norm.weight",
    "uniter.img_embeddings.pos_layer_norm.weight",
    "uniter.encoder.layer.0.attention.output.LayerNorm.weight",
    "uniter.encoder.layer.0.output.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.weight",
    "correction_output.predictions.transform.LayerNorm.weight",
    "feat_regress.net.2.weight",
    "region_classifier.net.2.weight",
)


@pytest.mark.parametrize("name", ["pretrained", "tags", "tags-dc"])
def test_what_decays_in_uniters_code(name):
    """Theirs spares what is called bias or LayerNorm, and nothing else."""
    made = find_recipe("tags-dc", like="flickr30k").stage(name)
    body = UNITER(
        layers=1, width=8, heads=2, inner=8, vocabulary=9, positions=9, features=8, classes=3,
        outputs=made.model.arguments["outputs"],
    )  # fmt: skip
    groups = made.plan.optimiser.build(body).param_groups
    decays = {id(p): group["weight_decay"] > 0 for group in groups for p in group["params"]}
    decaying = {uniter_name(their) for their in THEIR_VECTORS if "LayerNorm" not in their}
    decaying |= {"text.kind", "image.kind", "image.veil"}  # rows of matrices, theirs
    for own, parameter in body.named_parameters():
        assert decays[id(parameter)] == (parameter.ndim > 1 or own in decaying), own
    assert made.plan.optimiser.decay == 0.01


def test_the_small_sets_have_an_optimiser_of_our_own():
    for like in ("scenes", "flickr8k"):
        plan = stage("tags", "tags", like=like).plan
        assert (plan.optimiser.rule, plan.optimiser.groups) == ("adamw", ())
        assert plan.schedule == LinearLR(warmup=0.1)
        assert not stage("online", "online", model="chan", like=like).plan.optimiser.decay_vectors


def test_numbers_of_the_methods():
    assert {name: getattr(systems, name) for name in METHODS} == METHODS
    for name, values in BY_DATASET.items():
        found = getattr(systems, name)
        assert tuple(found[like] for like in LARGE) == values, name
    assert numbers(systems.VSEC_PLAN) == Numbers(1e-3, 30, (15,))
    adaptive = stage("adaptive", "aoq", like="coco").objective.arguments["terms"]["quintuplet"][1]
    assert adaptive.arguments == {"online": 0.2, "offline": 0.0, "alpha": 0.3, "beta": 1.5}
