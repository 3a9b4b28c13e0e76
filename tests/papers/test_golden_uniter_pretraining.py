"""UNITER's pre-training (https://github.com/ChenRocks/UNITER, 1dbfa62): losses and transport.

The model and its hard negatives have tests of their own; every key of the folder that neither runs
is run here.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import golden_scores
import golden_vectors
import uniter_cases
from counterfoil.core.types import Pairs, WordSlots
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.pretraining.losses import (
    likeliest_class,
    optimal_transport,
    region_classification,
    region_kl_divergence,
    region_regression,
    transport_cost,
    transport_plan,
    word_region_alignment,
)
from counterfoil.papers.pretraining.pretrain import (
    PretrainBatch,
    PretrainStep,
    PretrainTasks,
    Task,
    TaskOutputs,
    task_outputs,
)
from uniter_cases import authors_state

SYSTEM = "uniter"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
HERE = re.compile(
    r"ot/.+|itm/(loss|ot_.+|wra_loss)|mlm/(loss|grad_.+)|mrfr/(loss_.+|target|grad_.+)"
    r"|mrc/(loss|label_.+)|mrckl/.+"
)
TURNED = re.compile(r"distance(?:_beta(\d+)_it(\d+))?")


def keys() -> list[str]:
    found = [key for key in golden_vectors.keys(SYSTEM) if HERE.fullmatch(key)]
    return found or ["none"]


def inputs() -> dict[str, Tensor]:
    return golden_scores.load(SYSTEM).inputs


def batch(task: Task) -> PretrainBatch:
    """Their joint batch with what they hid for a task."""
    rows = inputs()
    images = uniter_cases.images(SYSTEM, rows["pairs/image"])
    words = rows["mlm/masked_ids"] if task == "mlm" else None
    texts = uniter_cases.captions(SYSTEM, rows["pairs/caption"], words)
    regions = images.mask.shape[1]
    hides = task in ("mrfr", "mrc", "mrckl")
    at = (rows["mlm/labels"] >= 0).nonzero()
    return PretrainBatch(
        task=task,
        anchors=Pairs(images.ids, texts.ids),
        images=images,
        texts=texts,
        real=torch.ones(len(texts), dtype=torch.bool),
        slots=WordSlots(at[:, 0], at[:, 1] + 1),  # behind [CLS]
        labels=rows["mlm/labels"][at[:, 0], at[:, 1]],
        hidden_regions=(rows["mrm/region_mask"][:, :regions].bool() & images.mask) & hides,
        matching=rows["caption_image"][texts.ids] == images.ids,
        classes=rows["mrm/soft_labels"][images.ids][:, :regions],
    )


def said(task: Task) -> TaskOutputs:
    with torch.no_grad():
        return task_outputs(uniter_cases.build(SYSTEM), batch(task), transport=task == "itm")


def gradients(task: Task) -> dict[str, Tensor]:
    """Of the mean loss, as the stage works it out, by the authors' names."""
    model: UNITER = uniter_cases.build(SYSTEM)
    PretrainStep(model, PretrainTasks())(batch(task))[task].backward()
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    return authors_state(grads)


def matching() -> dict[str, Tensor]:
    """ITM and WRA."""
    found, truth = said("itm"), batch("itm").matching
    assert found.distance is not None
    return {
        "loss": cross_entropy(found.predictions, found.targets, reduction="none"),
        "ot_pos": found.distance[truth],
        "ot_neg": found.distance[~truth],
        "wra_loss": word_region_alignment(found.distance, truth).mean(),
    }


def regions(task: Task) -> dict[str, Tensor]:
    found = said(task)
    if task == "mrfr":
        return {
            "loss_mean": region_regression(found.predictions, found.targets).mean(),
            "target": found.targets,
        }
    judged = {"mrc": region_classification, "mrckl": region_kl_divergence}[task]
    return {
        "loss": judged(found.predictions, found.targets),
        "label_target_argmax": likeliest_class(found.targets),
    }


def moved(what: str) -> Tensor:
    """Transport between vectors alone."""
    rows = inputs()
    texts, images = (rows[f"ot/{side}"].clone().requires_grad_() for side in ("txt", "img"))
    words, seen = (
        torch.arange(values.shape[1]) < rows[f"ot/{side}_len"].unsqueeze(1)
        for side, values in (("txt", texts), ("img", images))
    )
    if found := TURNED.fullmatch(what):
        how = {"beta": float(found[1]), "rounds": int(found[2])} if found[1] else {}
        return optimal_transport(texts, images, words, seen, **how)
    if what.startswith("grad_"):
        optimal_transport(texts, images, words, seen).sum().backward()
        return {"grad_txt": texts, "grad_img": images}[what].grad
    pays = transport_cost(texts, images).masked_fill(~(words.unsqueeze(2) & seen.unsqueeze(1)), 0)
    return {"cost": pays, "plan": transport_plan(pays, words, seen).mT}[what]


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    room, _, what = key.partition("/")
    if room == "ot":
        return moved(what)
    kind, _, parameter = what.partition("/")
    if kind == "grad_mean_loss":
        return gradients(room)[parameter]
    if room == "mlm":
        found = said("mlm")
        return {"loss": cross_entropy(found.predictions, found.targets, reduction="none")}[what]
    return (matching() if room == "itm" else regions(room))[what]


@pytest.mark.parametrize("key", keys())
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))


@pytest.mark.parametrize("task", ["mlm", "mrfr", "mrc", "mrckl", "itm"])
def test_the_stage_takes_their_means(task):
    golden = golden_scores.load(SYSTEM)
    found = PretrainStep(uniter_cases.build(SYSTEM), PretrainTasks())(batch(task))
    key = "loss_mean" if task == "mrfr" else "loss"
    expected = golden.outputs[f"{task}/{key}"].mean()
    torch.testing.assert_close(found[task], expected, rtol=1e-5, atol=golden.atol(f"{task}/{key}"))
    if task == "itm":
        torch.testing.assert_close(
            found["wra"], 0.1 * golden.outputs["itm/wra_loss"], rtol=1e-5, atol=1e-6
        )
