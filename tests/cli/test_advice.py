"""What `counterfoil advice` says, by the pages that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from counterfoil.cli import main
from counterfoil.core.config import config
from counterfoil.data.readers import load_dataset
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model, load_model
from counterfoil.models.clip import vector_width
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.recipes.advice import advise_training
from counterfoil.recipes.clip import train_recipe
from counterfoil.training.trainer import Trainer

ROOT = Path(__file__).parents[2]


def test_ten_lines_whose_numbers_stand_on_the_page_that_is_named(capsys):
    assert main(["advice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == list(advise_training())
    assert len(lines) == 10
    pages = [page for line in lines for page in re.findall(r"\((docs/\S+\.md)\)", line)]
    assert len(pages) >= 5
    for line in lines:
        for page in re.findall(r"\((docs/\S+\.md)\)", line):
            told = (ROOT / page).read_text(encoding="utf-8")
            for number in re.findall(r"\d+\.\d+", line):
                assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", told), (number, page)


def test_the_default_is_what_the_rule_gave():
    table = json.loads((ROOT / "docs" / "evidence" / "truths.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "truths.md").read_text(encoding="utf-8")
    assert "**Default by the rule**: InfoNCE, batch 512. " in page
    arms = {arm["arm"]: arm for arm in table["arms"]}
    uses = [name for name in arms if not name.startswith(("CCA", "InfoNCE"))]
    assert len(uses) == 11
    assert {arm["seeds"] for name, arm in arms.items() if name in uses} == {20}
    told = advise_training()
    assert "none of eleven uses of negatives" in told[2]
    lost = arms["InfoNCE, batch 128"]["differences"]
    dev, test = (-lost[name][0] for name in ("dev RSum", "test RSum"))
    assert f"at 128, RSum is {dev:.1f} lower on dev and {test:.1f} on test" in told[3]


@pytest.mark.parametrize(
    ("data", "batch", "first"),
    [
        ("scenes:images=60", 128, "evaluate"),  # 40 photos
        ("scenes:images=200", 512, "evaluate"),  # 134 photos with 670 captions
        ("scenes:images=600", 512, "train"),
    ],
)
def test_the_advice_on_data_is_what_a_training_does(data, batch, first, models, tmp_path, capsys):
    assert main(["advice", "--data", data]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"counterfoil {first} ")
    assert f"in batches of {batch} captions. {data} has " in lines[1]
    assert ("photos, as here:" in lines[4]) == (first == "evaluate")
    other = {"train": "counterfoil evaluate ", "evaluate": "counterfoil train "}[first]
    assert lines[-1].startswith(other)
    clip = {"model": str(models / "clip"), "way": "frozen", "written": None, "teachers": ()}
    dataset = load_dataset(data)
    plan = train_recipe("contrastive", dataset, **clip).stage("tuned").plan
    assert plan.batch == batch
    assert plan.optimiser.rate == {128: 2e-4, 512: 4e-4}[batch]
    given = load_model(models / "clip")
    spec = config(FrozenWithAdapters, body=given.spec, width=vector_width(str(models / "clip")))
    model = Model(spec.build(), given.processor, "adapters", spec)
    trainer = Trainer(model, loss=InfoNCELoss(), train=dataset["train"], output=tmp_path / "run")
    assert trainer.config == plan


def test_columns_need_data(capsys):
    assert main(["advice", "--image-column", "foto"]) == 2
    assert "--image-column" in capsys.readouterr().err
