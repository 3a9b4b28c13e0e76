"""Numbers of the modern hosts' papers and scripts, written down once more."""

from __future__ import annotations

import pytest
from torch import nn

from counterfoil.recipes import modern, modern_losses, modern_rounds
from counterfoil.recipes.profiles import PROFILES
from counterfoil.train.schedule import Cosine, StepDecay

LARGE = ("flickr30k", "coco")
CAPTIONS = {"flickr30k": 145_000, "coco": 566_435}
NAMED = [(name, dataset) for name in modern.HOSTS for dataset in LARGE]
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
    plan = modern_rounds.plan(name, dataset)
    epochs, drops, batches, decay, margin, warm = NUMBERS[name]
    assert (plan.epochs, plan.batch) == (epochs, batches[LARGE.index(dataset)])
    assert plan.schedule == StepDecay(at=drops)
    assert (plan.optimiser.rule, plan.optimiser.rate) == ("adamw", 5e-4)
    assert (plan.optimiser.decay, plan.optimiser.clip) == (decay, 2.0)
    assert modern_losses.margin(name) == margin
    assert modern_losses.warmup(name, dataset) == warm * (CAPTIONS[dataset] // plan.batch)
    rates = {group.match: (group.rate, group.begins) for group in plan.optimiser.groups}
    slow = {"text.body.*": (0.1, 0)} if modern.reads_bert(name) else {}
    assert rates == slow | ({"image.body.*": (0.01, 1)} if name == "gpo-grid" else {})


@pytest.mark.parametrize("dataset", LARGE)
def test_dive_has_images_with_all_their_captions(dataset):
    plan = modern_rounds.plan("dive", dataset)
    assert (plan.epochs, plan.batch, plan.all_captions) == (80, 200, True)
    assert plan.schedule == Cosine()
    assert (plan.optimiser.rate, plan.optimiser.decay, plan.optimiser.clip) == (1e-3, 1e-4, 1.0)
    assert modern_losses.warmup("dive", dataset) == 0
    assert modern_losses.reduction("dive") == "mean"


def test_all_of_dive_but_what_reads_words_is_slow():
    matcher = modern.host("dive", "flickr8k").resolve({"words": 9, "features": 6}).build()
    built = modern_rounds.plan("dive", "flickr30k").optimiser.build(matcher)
    slow = {id(p) for group in built.param_groups if group["share"] == 0.1 for p in group["params"]}
    fast = {name for name, p in matcher.named_parameters() if id(p) not in slow}
    assert fast == {name for name, _ in matcher.named_parameters() if name.startswith("text.gru.")}


@pytest.mark.parametrize("dataset", ["scenes", "flickr8k"])
@pytest.mark.parametrize("name", ["gpo", "chan", "esa", "hrem", "dive"])
def test_small_hosts_are_as_wide_as_their_data_set(name, dataset):
    late = {"words": 9, "features": 6, "size": 64}
    matcher = modern.host(name, dataset).resolve(late).build()
    assert isinstance(matcher, nn.Module)
    assert matcher.image.width == matcher.text.width == PROFILES[dataset].width


@pytest.mark.parametrize("dataset", LARGE)
def test_what_differs_between_data_sets(dataset):
    def written(name):
        return modern.host(name, dataset).arguments

    graph, chan = written("hrem")["graph"].arguments, written("chan")
    assert (graph["mask_weight"], graph["width"]) == (
        {"flickr30k": 1.0, "coco": 1.5}[dataset],
        1024,
    )
    assert (chan["pooling"], chan["block"]) == ("LSE", "selfattention")
    assert (written("chan-bert")["pooling"], written("chan-bert")["block"]) == ("Mean", "basic")
