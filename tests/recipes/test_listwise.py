"""A re-ranker that teaches an embedder over its lists, with one command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil import load_dataset, load_model
from counterfoil.core.tensors import read_tensors
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.stages.mine import HARDNESS
from recipes_cases import run

SCENES = "scenes:images=36"
SHORT = ("--set=*.steps=2", "--set=*.batch=8")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    recipes_cases.blip_like(root / "blip")
    recipes_cases.clip_like(root / "clip")
    return root


def opened(folder: Path) -> NegativeStore:
    train = load_dataset(SCENES).split("train")
    return NegativeStore.open(folder, fingerprint=train.fingerprint, relation=train.relation)


def test_lists_are_mined_scored_and_learnt_from(hub: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("train", "listwise", "--model", hub / "clip", "--data", SCENES, *SHORT)
    assert run(*command, "--teacher", hub / "blip", "--output", folder) == 0
    store = opened(folder / "lists")
    # the re-ranker scores and orders what the embedder lists, and the true pairs
    clip, blip = load_model(hub / "clip"), load_model(hub / "blip")
    train = load_dataset(SCENES).split("train")
    assert [one.matcher for one in store.manifest.sources] == [blip.source().matcher]
    assert [one.matcher for one in store.manifest.proposing] == [clip.source().matcher]
    lists = store.lists
    listed = mine_hard_negatives(
        clip, train, texts_per_image=lists.texts.shape[1], images_per_text=lists.images.shape[1]
    ).lists
    for one, other in ((listed.texts, lists.texts), (listed.images, lists.images)):
        assert [sorted(row) for row in one.tolist()] == [sorted(row) for row in other.tolist()]
    judge = blip.embed(train)
    with torch.no_grad():
        first = judge.model.score_matrix(judge.images.rows(slice(3, 4)), judge.texts)[0]
    torch.testing.assert_close(lists.text_scores[3], first[lists.texts[3].long()].half())
    own = train.text_to_image == 3
    torch.testing.assert_close(lists.true_scores[own], first[own].half())
    # the report's random batches are few, as the re-ranker is slow
    hardness, about = read_tensors(folder / "lists" / HARDNESS, "the hardness of negatives")
    assert 0 < len(hardness["online"]) <= about["batch"]
    tuned, original = load_model(folder / "tuned"), clip
    assert any(
        not torch.equal(value, original.model.state_dict()[key])
        for key, value in tuned.model.state_dict().items()
        if key in original.model.state_dict()
    )
    for name in ("original", "tuned"):
        assert RetrievalEvaluation.open(folder / f"test-{name}").report
    assert (folder / "report" / "report.html").is_file()


def test_a_judge_keeps_its_scores_and_a_training_learns_from_them(hub, tmp_path, capsys) -> None:
    lists, scored = tmp_path / "lists", tmp_path / "scored"
    short = ("--texts-per-image", 6, "--images-per-text", 3, "--data", SCENES)
    assert run("mine", hub / "clip", *short, "--output", lists) == 0
    judge = ("judge", hub / "blip", "--negatives", lists, "--data", SCENES)
    assert run(*judge) == 2
    assert "nothing is to be written; name a file" in " ".join(capsys.readouterr().err.split())
    assert run(*judge, "--scores", scored) == 0
    mined, judged = opened(lists).lists, opened(scored).lists
    for side in ("texts", "images"):
        rows = [[sorted(row) for row in getattr(one, side).tolist()] for one in (mined, judged)]
        assert rows[0] == rows[1]
    again = tmp_path / "again"
    propose = ("--propose", hub / "clip", "--set", "proposals=1")
    assert run("mine", hub / "blip", *propose, *short, "--output", again) == 0
    for name in ("texts", "images", "text_scores", "image_scores", "true_scores"):
        one, other = (getattr(lists, name).float() for lists in (judged, opened(again).lists))
        torch.testing.assert_close(one, other, msg=name)
    assert opened(scored).manifest.sources == opened(again).manifest.sources
    assert opened(scored).manifest.proposing == opened(again).manifest.proposing
    folder = tmp_path / "run"
    command = ("train", "listwise", "--model", hub / "clip", "--data", SCENES, *SHORT)
    assert run(*command, "--negatives", scored, "--output", folder) == 0
    assert not (folder / "lists").exists()
    assert (folder / "tuned").is_dir()
    assert run(*judge, "--scores", scored) == 2


def test_what_is_refused(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("train", "listwise", "--model", hub / "clip", "--data", SCENES)
    for more in ((), ("--teacher", hub / "blip", "--negatives", tmp_path)):
        assert run(*command, *more, "--output", tmp_path / "run") == 2
        assert "learns from a re-ranker: name it with" in " ".join(capsys.readouterr().err.split())
    assert run("mine", hub / "clip", "--data", SCENES, "--output", tmp_path / "lists") == 0
    store = opened(tmp_path / "lists")
    replace(store, lists=replace(store.lists, true_scores=None)).save(tmp_path / "lists-only")
    more = ("--negatives", tmp_path / "lists-only", "--output", tmp_path / "run")
    assert run(*command, *more) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "learns from a re-ranker's scores" in error
    assert not (tmp_path / "run").exists()
