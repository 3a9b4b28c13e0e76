"""What analyses are checked against: tiny models, and runs with made-up results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from counterfoil.core.config import config, from_stage
from counterfoil.core.io import write_json
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.protocols import WHOLE
from counterfoil.evaluation.truth import open_truth
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.online import own_recipe
from counterfoil.pipelines.pipeline import (
    ComputeTargets,
    Evaluate,
    Recipe,
    Stage,
    Train,
    recipe_to_dict,
)
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.saved import save_model
from evaluation_cases import member, scores, slow_ranks
from tailored_cases import ALL

SCENES = "scenes:images=36"
REGIONS = f"{SCENES},features=regions"


def reader(folder: Path, seed: int = 0, outputs: tuple[str, ...] = ALL) -> Path:
    """A tiny UNITER that has learnt nothing but the words of the training captions."""
    train = load_dataset(REGIONS).split("train")
    processor = ProcessorConfig().fit(train)
    assert processor.tokenizer is not None
    assert train.features is not None
    spec = config(
        UNITER, layers=1, width=16, heads=2, inner=16, vocabulary=processor.tokenizer.size,
        features=train.features.width, mask=3, outputs=outputs,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = spec.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_model(folder, spec=spec, model=model, processor=processor)
    return folder


def training(name: str, *, seed: int = 0, batch: int = 16, guide: str | None = None) -> Train:
    stage = own_recipe("vsepp", pixels=True).stages[0]
    assert isinstance(stage, Train)
    sources = (from_stage(guide),) if guide else ()
    plan = replace(stage.plan, seed=seed, batch=batch)
    return replace(stage, name=name, sources=sources, plan=plan)


def measured_by(*names: str) -> Evaluate:
    return Evaluate(name=f"test-{'-'.join(names)}", using=names)


def taught(many: int = 2, students: Sequence[int] = ()) -> Recipe:
    """Teachers alone, ensembles of the first few, and students of these."""
    names = [f"teacher-{n + 1}" for n in range(many)]
    stages: list[Stage] = [training(name, seed=n + 1) for n, name in enumerate(names)]
    for k in students or (many,):
        own = f"student-of-{k}" if students else "student"
        stages += [ComputeTargets(name=f"targets-{k}", using=tuple(names[:k]))]
        stages += [training(own, guide=f"targets-{k}"), measured_by(own)]
        if k > 1:
            stages.append(measured_by(*names[:k]))
    return Recipe(name="taught", stages=(*stages, *(measured_by(name) for name in names)))


def batches(sizes: Sequence[int]) -> Recipe:
    """Trainings with batches of these sizes, and their tests."""
    trained = [training(f"own-{size}", batch=size) for size in sizes]
    return Recipe(name="batches", stages=(*trained, *(measured_by(one.name) for one in trained)))


def write_run(
    folder: Path, recipe: Recipe, data: str = SCENES, state: str = "done"
) -> Mapping[str, float]:
    """The notes and results of a run that never was; RSum of each test by a slow count."""
    dataset = load_dataset(data).split("test")
    found = {}
    folder.mkdir(parents=True)
    for place, stage in enumerate(recipe.stages):
        note = {"kind": stage.kind, "state": state, "stage": recipe_to_dict(stage)}
        write_json(folder / f"{stage.name}.json", note)
        if isinstance(stage, Evaluate):
            drawn = scores(len(dataset), dataset.text_to_image, place)
            truth = None if stage.truth == "own" else open_truth(stage.truth, dataset)
            evaluated = RetrievalEvaluation.of([member(drawn)], dataset, WHOLE, seed=0, truth=truth)
            evaluated.save(folder / stage.name)
            found[stage.name] = slow_rsum(drawn, dataset.text_to_image)
    return found


def slow_rsum(found: Tensor, text_to_image: Tensor) -> float:
    sides = [torch.tensor(side) for side in slow_ranks(found, text_to_image, "row")]
    return sum(100 * float((side < k).double().mean()) for side in sides for k in (1, 5, 10))
