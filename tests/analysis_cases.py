"""What analyses are checked against: dense scores of a model, and runs with made-up results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from counterfoil import open_corpus, open_model
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import LensPlan
from counterfoil.evaluate.protocols import WHOLE
from counterfoil.files import write_json
from counterfoil.models.uniter import UNITER
from counterfoil.recipes import online
from counterfoil.recipes.guides import Teach
from counterfoil.recipes.measured import Measured
from counterfoil.recipes.recipe import Evaluate, Recipe, Stage, Train, plain
from counterfoil.spec import of
from counterfoil.train.saved import save_model
from evaluation_cases import member, scores, slow_ranks
from tailored_cases import ALL

SCENES = "scenes:images=36"
REGIONS = f"{SCENES},features=regions"


def dense(model: object, split: str) -> tuple[Corpus, Tensor]:
    """A split and all scores of a model on it."""
    corpus = open_corpus(SCENES).split(split)
    found = open_model(str(model)).member(corpus)
    return corpus, found.matcher.grid(found.images, found.texts).detach()


def reader(folder: Path, seed: int = 0, outputs: tuple[str, ...] = ALL) -> Path:
    """A tiny UNITER that has learnt nothing but the words of the training captions."""
    train = open_corpus(REGIONS).split("train")
    lens = LensPlan().fit(train)
    assert lens.tokenizer is not None
    assert train.features is not None
    spec = of(
        UNITER, layers=1, width=16, heads=2, inner=16, vocabulary=lens.tokenizer.size,
        features=train.features.width, mask=3, outputs=outputs,
    )  # fmt: skip
    torch.manual_seed(seed)
    matcher = spec.build()
    for parameter in matcher.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_model(folder, spec=spec, matcher=matcher, lens=lens)
    return folder


def training(name: str, *, seed: int = 0, batch: int = 16, guide: str | None = None) -> Train:
    stage = online.own("vsepp", pixels=True).stages[0]
    assert isinstance(stage, Train)
    return replace(stage, name=name, guide=guide, plan=replace(stage.plan, seed=seed, batch=batch))


def measured_by(*names: str) -> Evaluate:
    return Evaluate(name=f"test-{'-'.join(names)}", using=names)


def taught(many: int = 2, students: Sequence[int] = ()) -> Recipe:
    """Teachers alone, ensembles of the first few, and students of these."""
    names = [f"teacher-{n + 1}" for n in range(many)]
    stages: list[Stage] = [training(name, seed=n + 1) for n, name in enumerate(names)]
    for k in students or (many,):
        own = f"student-of-{k}" if students else "student"
        stages += [Teach(name=f"targets-{k}", using=tuple(names[:k]))]
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
    corpus = open_corpus(data).split("test")
    found = {}
    folder.mkdir(parents=True)
    for place, stage in enumerate(recipe.stages):
        note = {"kind": stage.kind, "state": state, "stage": plain(stage)}
        write_json(folder / f"{stage.name}.json", note)
        if isinstance(stage, Evaluate):
            drawn = scores(len(corpus), corpus.owner, place)
            Measured.of([member(drawn)], corpus, WHOLE, seed=0).save(folder / stage.name)
            found[stage.name] = slow_rsum(drawn, corpus.owner)
    return found


def slow_rsum(found: Tensor, owner: Tensor) -> float:
    sides = [torch.tensor(side) for side in slow_ranks(found, owner, "row")]
    return sum(100 * float((side < k).double().mean()) for side in sides for k in (1, 5, 10))
