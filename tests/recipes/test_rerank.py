"""A re-ranker that is trained on mined lists and measured on a retriever's shortlists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipes_cases
import sentence_transformer_cases
from counterfoil import load_dataset, load_model
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.evaluation.bootstrap import compare
from counterfoil.evaluation.metrics import METRICS
from counterfoil.models.layers.joint_encoder import PairModel
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.scan import SCAN
from counterfoil.pipelines.pipeline import Evaluate, Mine, Recipe, Train
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.clip import train_recipe
from counterfoil.saved import save_model
from counterfoil.training.mined import Mined
from recipes_cases import run

SCENES = "scenes:images=36"
OPTIONS = {"way": "full", "written": None, "teachers": ()}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    recipes_cases.blip_like(root / "blip")
    recipes_cases.vilt_like(root / "vilt", "ImageAndTextRetrieval")
    recipes_cases.clip_like(root / "clip")
    return root


def recipe(name: str, hub: Path, **options: object) -> Recipe:
    model = str(hub / name)
    return train_recipe("reranker", load_dataset(SCENES), model=model, **OPTIONS, **options)


def test_lists_are_given_or_mined_by_the_retriever(hub: Path, tmp_path: Path) -> None:
    first = str(hub / "clip")
    mined = recipe("blip", hub, first=first)
    lists = next(stage for stage in mined.stages if isinstance(stage, Mine))
    assert lists.models == (first,)
    given = recipe("blip", hub, first=first, negatives=tmp_path)
    training = next(stage for stage in given.stages if isinstance(stage, Train))
    assert training.source(Mined).arguments["negatives"] == str(tmp_path)
    for made in (mined, given):
        tests = [stage for stage in made.stages if isinstance(stage, Evaluate)]
        assert [test.first for test in tests] == [(first,)] * 2


def test_a_cross_encoder_learns_from_logits_in_single_precision(hub: Path, tmp_path: Path) -> None:
    cross = sentence_transformer_cases.judge(tmp_path / "cross", ["a", "red", "square"])
    made = train_recipe(
        "reranker", load_dataset(SCENES), model=str(cross), first=str(hub / "clip"), **OPTIONS
    )
    training = next(stage for stage in made.stages if isinstance(stage, Train))
    _, loss = training.objective.arguments["terms"]["mined"]
    assert loss.arguments["temperature"] == 1.0
    assert training.model.arguments["weights"] == "fp32"


@pytest.mark.parametrize("name", ["blip", "vilt"])
def test_a_public_model_is_trained_saved_and_measured(name: str, hub: Path, tmp_path: Path) -> None:
    folder, short = tmp_path / "run", ("--set=*.steps=2", "--set=*.batch=4")
    command = ("train", "reranker", "--model", hub / name, "--first", hub / "clip", *short)
    assert run(*command, "--data", SCENES, "--output", folder) == 0
    tuned, original = load_model(folder / "reranker"), load_model(hub / name)
    assert isinstance(tuned.model, PairModel)
    assert tuned.model.score == "logit"
    changed = [
        key
        for key, value in tuned.model.state_dict().items()
        if not torch.equal(value, original.model.state_dict()[key])
    ]
    assert changed
    report = RetrievalEvaluation.open(folder / "test-reranker")
    assert report.shortlists is not None
    page = (folder / "report" / "report.html").read_text()
    assert "Recall against cost" in page


def test_what_is_refused(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"give them with --negatives, or name .* with --first"):
        recipe("blip", hub)
    with pytest.raises(ValueError, match="clip compares one vector of each item, and a re-ranker"):
        recipe("clip", hub, first=str(hub / "clip"))
    with pytest.raises(ValueError, match="leave other options out"):
        recipe("blip", hub, first=str(hub / "clip"), distill=1.0)
    data = ("--data", SCENES, "--output", tmp_path / "run")
    assert run("train", "triplet", "--model", hub / "clip", "--first", hub / "clip", *data) == 2
    assert "--first names the retriever of a re-ranker" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_training_on_lists_beats_the_untrained_re_ranker_on_scenes(tmp_path: Path) -> None:
    """A small SCAN on regions, on the shortlists of a VSE++.

    With three seeds RSum rises by 104 to 155, its interval from 45 on.
    """
    data = "scenes:images=160,features=regions"
    train = load_dataset(data)["train"]
    processor = ProcessorConfig(images="features", standardise=True).fit(train)
    torch.manual_seed(0)
    text = lazy(GRU, words=processor.tokenizer.size, width=64, word_width=32)
    spec = config(SCAN, image=lazy(Regions, features=train.features.width, width=64), text=text)
    untrained = tmp_path / "untrained"
    save_model(untrained, spec=spec, model=spec.build(), processor=processor)
    first = ("--output", tmp_path / "first", "--epochs", "3", "--batch-size", "32")
    assert run("train", "vsepp", "--data", data, *first) == 0
    lists = ("--first", tmp_path / "first" / "online", "--epochs", "10", "--lr", "0.003")
    command = ("train", "reranker", "--model", untrained, "--data", data, *lists)
    assert run(*command, "--output", tmp_path / "run") == 0
    before, after = (
        RetrievalEvaluation.open(tmp_path / "run" / f"test-{name}").report
        for name in ("original", "reranker")
    )
    change = compare(before, after)[METRICS.index("RSum")]
    assert change.interval.low > 0, change
