"""Remedies against forgetting: distillation towards the original, and weights in between."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import recipes_cases
from counterfoil import Teachers, Trainer, WeightedSum, load_dataset, load_model, losses
from counterfoil.core import registry
from counterfoil.core.config import from_stage
from counterfoil.losses.ndgl import MarginDistillationLoss, distillation_settings
from counterfoil.negatives.teachers import Mask
from counterfoil.pipelines.pipeline import Recipe, Train
from counterfoil.pipelines.stages.interpolate import Interpolate
from counterfoil.recipes.clip import train_recipe
from counterfoil.training.config import OptimizerConfig, TrainConfig
from recipes_cases import run

SCENES, OTHER = "scenes:images=36", "scenes:images=60,seed=5"
SHORT = tuple(
    f"--set=*.{each}" for each in ("epochs=3", "batch=16", "rate=0.001", "schedule.warmup=0")
)
ORIGINAL = from_stage("original")
OPTIONS = {"way": "full", "written": None, "teachers": ()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip")


def scores(model: Path) -> Tensor:
    """All images of test with the first caption of each."""
    dataset = load_dataset(SCENES)["test"]
    embedded = load_model(model).embed(dataset)
    grid = embedded.model.score_matrix(embedded.images, embedded.texts)
    own = [dataset.text_to_image.tolist().index(image) for image in range(len(dataset))]
    return grid[:, own]


def distance(original: Path, tuned: Path) -> float:
    """Divergence of the rankings on test."""
    loss = MarginDistillationLoss(**distillation_settings(temperature=0.1))
    return float(loss(scores(tuned), guide=scores(original)))


def test_the_loss_is_the_divergence_of_rows_and_columns() -> None:
    """Against the formula, written out for one true pair in every row and column."""
    torch.manual_seed(0)
    own, original = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4)
    found = MarginDistillationLoss(**distillation_settings(temperature=0.1))(own, guide=original)
    expected = torch.zeros(())
    for ours, theirs in ((own, original), (own.T, original.T)):
        p, q = (theirs / 0.1).softmax(1), (ours / 0.1).softmax(1)
        expected = expected + (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(found, expected)
    found.backward()
    nearer = own.detach() - 0.01 * own.grad
    again = MarginDistillationLoss(**distillation_settings(temperature=0.1))
    assert again(nearer, guide=original) < found


def test_one_report_compares_original_tuned_interpolated_and_distilled(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    more = ("--remedies", "--distill", "10", "--other", OTHER, *SHORT)
    assert (
        run("train", "triplet", "--model", model, "--data", SCENES, *more, "--output", folder) == 0
    )
    page = (folder / "report" / "report.html").read_text()
    table = page[page.index("What is forgotten") :]
    names = (str(model), "tuned", "wise-ft", "distilled")
    for where in ("scenes test", f"{OTHER} test"):
        assert [name for name in names if f"{where}: {name}<" in table] == list(names)
    assert len(re.findall("has forgotten", page)) == 6
    away = {name: distance(model, folder / name) for name in ("tuned", "wise-ft", "distilled")}
    assert 0 < away["distilled"] < 0.7 * away["tuned"]
    assert away["wise-ft"] <= away["tuned"]
    noted = load_model(folder / "wise-ft").card.provenance["interpolated"]
    assert (noted["original"], noted["tuned"], len(noted["dev_rsum"])) == (str(model), "tuned", 11)


def recipe(name: str, model: Path, **options: object) -> Recipe:
    return train_recipe(name, load_dataset(SCENES), model=str(model), **{**OPTIONS, **options})


@pytest.mark.parametrize("name", sorted({*registry.names("training")} - {"ndgl", "listwise"}))
@pytest.mark.parametrize("way", ["full", "frozen"])
def test_every_fine_tuning_can_be_distilled(name: str, way: str, model: Path) -> None:
    made = recipe(name, model, way=way, distill=0.5)
    trainings = [stage for stage in made.stages if isinstance(stage, Train)]
    for stage in trainings:
        assert ORIGINAL in stage.sources
        weight, loss = stage.objective.arguments["terms"]["original"]
        assert (weight, loss.make) == (0.5, MarginDistillationLoss)
    plain = recipe(name, model, way=way)
    assert len(made.stages) == len(plain.stages) + 1
    both = recipe(name, model, way=way, remedies=True)
    assert [s.name for s in both.stages if isinstance(s, Train) and ORIGINAL in s.sources] == [
        "distilled"
    ]
    assert any(isinstance(stage, Interpolate) for stage in both.stages) == (way == "full")


@pytest.mark.papers
def test_what_cannot_be_distilled_is_refused(model: Path) -> None:
    with pytest.raises(ValueError, match=r"has targets of 'targets' already.*--teacher names it"):
        recipe("ndgl", model, distill=1.0)
    with pytest.raises(ValueError, match=r"has targets of a re-ranker already.*leave --distill"):
        recipe("listwise", model, distill=1.0, teachers=(str(model),))
    both = recipe("triplet", model, distill=1.0, guide=str(model)).stage("tuned")
    assert [source.name for source in both.sources if source == ORIGINAL] == ["original"]
    assert both.source(Mask).arguments["guide"] == from_stage("guide")
    with pytest.raises(ValueError, match=r"--distill is 0; give a weight above 0"):
        recipe("triplet", model, distill=0)
    with pytest.raises(ValueError, match="are for a pretrained model"):
        train_recipe("vsepp", load_dataset(SCENES), model=None, **OPTIONS, remedies=True)
    with pytest.raises(ValueError, match="shares of the tuned weights from 0 to 1"):
        Interpolate(name="between", original=str(model), tuned="tuned", alphas=(0.5, 2.0))


def test_a_trainer_distils(model: Path, tmp_path: Path) -> None:
    data = load_dataset(SCENES)
    config = TrainConfig(epochs=3, batch=16, optimiser=OptimizerConfig(rate=0.001))
    away = []
    for weight in (0.0, 10.0):
        output, start = tmp_path / f"{weight}", load_model(model)
        near = MarginDistillationLoss(**distillation_settings(reduction="sum"))
        terms = {"own": (1.0, losses.HardestTripletLoss()), "original": (weight, near)}
        trainer = Trainer(
            start,
            loss=WeightedSum(terms=terms),
            train=data["train"],
            sources=[Teachers(start)],
            output=output,
            config=config,
        )
        trainer.train()
        away.append(distance(model, output))
    assert away[1] < 0.7 * away[0]
