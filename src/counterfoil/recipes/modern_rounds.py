"""Rates, epochs and batches of NDGL's hosts, as their authors' scripts have them.

AdamW everywhere. With a BiGRU the scripts of GPO, CHAN and ESA leave the decay at PyTorch's 0.01;
with BERT it is 1e-4, as it always is in those of HREM and DivE. Theirs decays biases and norms too,
ours does not, see `Optimiser`. The rates of `scenes` and Flickr8k are ours, the same as of the
older hosts.
"""

from __future__ import annotations

from dataclasses import replace

from counterfoil.recipes import rounds
from counterfoil.recipes.modern import Host, paper, reads_bert
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.train.optimise import Group, Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine, StepDecay

RATE, DECAY, BERT_DECAY = 5e-4, 0.01, 1e-4
SLOWER = 0.1  # BERT; DivE's image side, and what makes sets of its texts
DIVE_SLOWER = ("image.*", "image_slots.*", "image_norm.*", "text_slots.*", "text_norm.*")
IMAGES = 200  # of a batch of DivE, each with all of its captions


def plan(name: Host, dataset: Dataset, *, seed: int = 0) -> TrainPlan:
    """The training written down."""
    if dataset not in LARGE:
        return _small(name, dataset, seed)
    if paper(name) == "dive":
        return _dive(seed)
    hrem = paper(name) == "hrem"
    return TrainPlan(
        epochs=30 if hrem else 25,
        batch=_batch(name, dataset),
        seed=seed,
        drop_last=True,
        optimiser=_optimiser(name),
        schedule=StepDecay(at=(15, 25) if hrem else (15,)),
    )


def _batch(name: Host, dataset: Dataset) -> int:
    if paper(name) == "chan" and not reads_bert(name):
        return 384
    return 256 if paper(name) == "hrem" and dataset == "coco" else 128


def _optimiser(name: Host) -> Optimiser:
    if not reads_bert(name):
        decay = BERT_DECAY if paper(name) == "hrem" else DECAY
        return Optimiser(rule="adamw", rate=RATE, decay=decay)
    groups: tuple[Group, ...] = (Group(match="text.body.*", rate=SLOWER),)
    if name.endswith("-grid"):  # an epoch of standing still, then a hundredth (WSL weights)
        groups = (*groups, Group(match="image.body.*", rate=0.01, begins=1))
    return Optimiser(rule="adamw", rate=RATE, decay=BERT_DECAY, groups=groups)


def _dive(seed: int) -> TrainPlan:
    slower = tuple(Group(match=match, rate=SLOWER) for match in DIVE_SLOWER)
    return TrainPlan(
        epochs=80,
        batch=IMAGES,
        all_captions=True,
        seed=seed,
        drop_last=True,
        optimiser=Optimiser(rule="adamw", rate=1e-3, decay=BERT_DECAY, clip=1.0, groups=slower),
        schedule=Cosine(),
    )


def _small(name: Host, dataset: Dataset, seed: int) -> TrainPlan:
    """DivE's batch has about as many captions as the others'."""
    plan = rounds.own(dataset, seed)
    if paper(name) != "dive":
        return plan
    return replace(plan, batch=max(1, plan.batch // 5), all_captions=True)
