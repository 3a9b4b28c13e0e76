"""Numbers of the modern models' papers and scripts, written down once more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from counterfoil.papers.ndgl import systems as ndgl_models
from counterfoil.papers.systems import PROFILES
from counterfoil.training.config import CosineLR, StepDecayLR

LARGE = ("flickr30k", "coco")
CAPTIONS = {"flickr30k": 145_000, "coco": 566_435}
NAMED = [(name, dataset) for name in ndgl_models.MODERN for dataset in LARGE]
NUMBERS = {  # epochs, drops, batch on Flickr30K and on COCO, decay, margin, epochs of warm-up
    "gpo": (25, (15,), (128, 128), 0.01, 0.2, 1),
    "chan": (25, (15,), (384, 384), 0.01, 0.05, 1),
    "esa": (25, (15,), (128, 128), 0.01, 0.2, 1),
    "hrem": (30, (15, 25), (128, 256), 1e-4, 0.2, 0),
    "gpo-bert": (25, (15,), (128, 128), 1e-4, 0.2, 1),
    "chan-bert": (25, (15,), (128, 128), 1e-4, 0.05, 1),
    "esa-bert": (25, (15,), (128, 128), 1e-4, 0.2, 1),
    "hrem-bert": (30, (15, 25), (128, 256), 1e-4, 0.2, 0),
    "gpo-grid": (25, (15,), (128, 128), 1e-4, 0.2, 1),
}


@pytest.mark.parametrize(("name", "dataset"), [at for at in NAMED if at[0] != "dive"])
def test_rates_and_epochs(name, dataset):
    plan = ndgl_models.train_config(name, dataset)
    epochs, drops, batches, decay, margin, warm = NUMBERS[name]
    assert (plan.epochs, plan.batch) == (epochs, batches[LARGE.index(dataset)])
    assert plan.schedule == StepDecayLR(at=drops)
    assert (plan.optimiser.rule, plan.optimiser.rate) == ("adamw", 5e-4)
    assert (plan.optimiser.decay, plan.optimiser.clip) == (decay, 2.0)
    assert ndgl_models.MODELS[name].margin == margin
    assert ndgl_models.warmup_steps(name, dataset) == warm * (CAPTIONS[dataset] // plan.batch)
    rates = {group.match: (group.rate, group.begins) for group in plan.optimiser.groups}
    slow = {"text.body.*": (0.1, 0)} if ndgl_models.MODELS[name].bert else {}
    assert rates == slow | ({"image.body.*": (0.01, 1)} if name == "gpo-grid" else {})


@pytest.mark.parametrize("dataset", LARGE)
def test_gpo_on_a_grid_raises_its_loss_while_the_backbone_is_new(dataset):
    """As its authors: epoch 0 counts in full, step i of the n of epoch 1 by i / n."""
    stage, plain = (
        ndgl_models.modern_recipe(name, dataset).stages[0] for name in ("gpo-grid", "gpo-bert")
    )
    steps = CAPTIONS[dataset] // stage.plan.batch
    ramped, whole = (one.objective.build() for one in (stage, plain))
    block = torch.tensor([[0.5, 0.4, 0.2], [0.4, 0.3, 0.3], [0.1, 0.2, 0.6]])
    positives = torch.eye(3, dtype=torch.bool)
    for step, share in (
        (0, 1),
        (steps - 1, 1),
        (steps, 0),
        (steps + 1, 1 / steps),
        (steps + steps // 2, (steps // 2) / steps),
        (2 * steps - 1, (steps - 1) / steps),
        (2 * steps, 1),
    ):
        got, full = (
            loss(block, positives, step=step)["triplet"].item() for loss in (ramped, whole)
        )
        assert full > 0.1
        assert got == pytest.approx(share * full, rel=1e-5)


@pytest.mark.parametrize("dataset", LARGE)
def test_dive_has_images_with_all_their_captions(dataset):
    plan = ndgl_models.train_config("dive", dataset)
    assert (plan.epochs, plan.batch, plan.all_captions) == (80, 200, True)
    assert plan.schedule == CosineLR()
    assert (plan.optimiser.rate, plan.optimiser.decay, plan.optimiser.clip) == (1e-3, 1e-4, 1.0)
    assert ndgl_models.warmup_steps("dive", dataset) == 0
    assert ndgl_models.MODELS["dive"].reduction == "mean"


def test_only_dives_text_tower_has_the_full_rate():
    model = ndgl_models.model_config("dive", "flickr8k").fill({"words": 9, "features": 6}).build()
    built = ndgl_models.train_config("dive", "flickr30k").optimiser.build(model)
    slow = {id(p) for group in built.param_groups if group["share"] == 0.1 for p in group["params"]}
    fast = {name for name, p in model.named_parameters() if id(p) not in slow}
    assert fast == {name for name, _ in model.named_parameters() if name.startswith("text.gru.")}


@pytest.mark.parametrize("dataset", ["scenes", "flickr8k"])
@pytest.mark.parametrize("name", ["gpo", "chan", "esa", "hrem", "dive"])
def test_small_models_are_as_wide_as_their_data_set(name, dataset):
    late = {"words": 9, "features": 6, "size": 64}
    model = ndgl_models.model_config(name, dataset).fill(late).build()
    assert isinstance(model, nn.Module)
    assert model.image.width == model.text.width == PROFILES[dataset].width


@pytest.mark.parametrize("dataset", LARGE)
def test_differences_between_data_sets(dataset):
    def written(name):
        return ndgl_models.model_config(name, dataset).arguments

    graph, chan = written("hrem")["graph"].arguments, written("chan")
    assert (graph["mask_weight"], graph["width"]) == (
        {"flickr30k": 1.0, "coco": 1.5}[dataset],
        1024,
    )
    assert (chan["pooling"], chan["block"]) == ("LSE", "selfattention")
    assert (written("chan-bert")["pooling"], written("chan-bert")["block"]) == ("Mean", "basic")
