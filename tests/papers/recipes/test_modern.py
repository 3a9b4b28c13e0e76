"""Schedules and widths of the newer models; their numbers are in `test_systems`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from counterfoil.papers.models.configs import model_config
from counterfoil.papers.online import modern_recipe
from counterfoil.papers.systems import PROFILES, training_config

LARGE = ("flickr30k", "coco")
CAPTIONS = {"flickr30k": 145_000, "coco": 566_435}


@pytest.mark.parametrize("dataset", LARGE)
def test_gpo_on_a_grid_raises_its_loss_while_the_backbone_is_new(dataset):
    """As its authors: epoch 0 counts in full, step i of the n of epoch 1 by i / n."""
    stage, plain = (modern_recipe(name, dataset).stages[0] for name in ("gpo-grid", "gpo-bert"))
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


def test_only_dives_text_tower_has_the_full_rate():
    model = model_config("dive", "flickr8k").fill({"words": 9, "features": 6}).build()
    built = training_config("dive", "flickr30k").optimiser.build(model)
    slow = {id(p) for group in built.param_groups if group["share"] == 0.1 for p in group["params"]}
    fast = {name for name, p in model.named_parameters() if id(p) not in slow}
    assert fast == {name for name, _ in model.named_parameters() if name.startswith("text.gru.")}


@pytest.mark.parametrize("dataset", ["scenes", "flickr8k"])
@pytest.mark.parametrize("name", ["gpo", "chan", "esa", "hrem", "dive"])
def test_small_models_are_as_wide_as_their_data_set(name, dataset):
    late = {"words": 9, "features": 6, "size": 64}
    model = model_config(name, dataset).fill(late).build()
    assert isinstance(model, nn.Module)
    assert model.image.width == model.text.width == PROFILES[dataset].width


@pytest.mark.parametrize("dataset", LARGE)
def test_differences_between_data_sets(dataset):
    def written(name):
        return model_config(name, dataset).arguments

    graph, chan = written("hrem")["graph"].arguments, written("chan")
    assert (graph["mask_weight"], graph["width"]) == (
        {"flickr30k": 1.0, "coco": 1.5}[dataset],
        1024,
    )
    assert (chan["pooling"], chan["block"]) == ("LSE", "selfattention")
    assert (written("chan-bert")["pooling"], written("chan-bert")["block"]) == ("Mean", "basic")
