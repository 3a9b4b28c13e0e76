"""Mining that is stopped or killed goes on to the lists of one that was not."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import processes
import recipes_cases
from counterfoil.negatives import proposals
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages import mine as mine_module
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe
from counterfoil.scoring import encode, stream
from recipes_cases import SMALL_AOQ, run

DATA = "scenes:images=80"
FILES = ("texts.npy", "images.npy", "text_scores.npy", "image_scores.npy")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return recipes_cases.pixel_model(tmp_path_factory.mktemp("model") / "pixels")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Many tiles, each saved after."""
    torch.set_num_threads(1)
    monkeypatch.setattr(encode, "_VECTORS", dict.fromkeys(("cpu", "cuda"), (16, 16)))
    monkeypatch.setattr(mine_module, "EVERY", 0.0)


@pytest.fixture
def slow(monkeypatch):
    """Tiles that take a while."""
    visit = stream._Pass._visit

    def late(self, job):
        time.sleep(0.03)
        return visit(self, job)

    monkeypatch.setattr(stream._Pass, "_visit", late)


def mine(model: Path, out: Path, *more: object) -> int:
    lists = ("--texts-per-image", "20", "--images-per-text", "5")
    return run("mine", model, "--data", DATA, "--output", out, *lists, *more)


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> list[bytes]:
    """Lists by a mining that was never interrupted, in tiles of the ordinary size."""
    out = tmp_path_factory.mktemp("whole") / "lists"
    assert mine(model, out) == 0
    return content(out)


def forked(model: Path, out: Path) -> int:
    """Mining, begun or gone on with, in a process of its own; its number."""
    return processes.forked(lambda: mine(model, out, "--resume"))


def test_terminated_and_gone_on_with(model, whole, tmp_path, slow, capsys):
    out = tmp_path / "lists"
    child = forked(model, out)
    processes.wait_for((tmp_path / "lists.partial" / "process-0.safetensors").exists, child)
    os.kill(child, signal.SIGTERM)
    assert processes.ended(child) == 3
    assert not out.exists()
    assert mine(model, out) == 2
    assert "holds a mining that was stopped; add --resume to continue it" in said(capsys)
    assert mine(model, out, "--resume") == 0
    assert content(out) == whole
    assert sorted(f.name for f in tmp_path.iterdir()) == ["lists"]


def said(capsys) -> str:
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


def test_out_of_time_and_gone_on_with(model, whole, tmp_path, slow, capsys):
    out = tmp_path / "lists"
    assert mine(model, out, "--minutes", "0.01") == 3
    assert "stopped, out of time; add --resume to continue" in said(capsys)
    assert mine(model, out, "--resume") == 0
    assert content(out) == whole


def test_other_lists_are_not_gone_on_with(model, tmp_path, slow, capsys):
    out = tmp_path / "lists"
    assert mine(model, out, "--minutes", "0.01") == 3
    assert mine(model, out, "--resume", "--texts-per-image", "19") == 2
    assert "texts of an image is 20 there and 19 here; continue with" in said(capsys)
    assert mine(model, out, "--resume", "--filter", "skip=1") == 2
    shown = said(capsys)
    assert "the 1 hardest of the rest here" in shown
    assert (tmp_path / "lists.partial" / "process-0.safetensors").is_file()


@pytest.mark.slow
def test_killed_again_and_again(model, whole, tmp_path, slow):
    out, chance = tmp_path / "lists", random.Random(0)
    for patience in range(30):
        child = forked(model, out)
        time.sleep(0.1 + chance.uniform(0, 0.2 * 1.3**patience))
        if not processes.killed(child):
            break
    assert patience
    assert content(out) == whole
    shutil.rmtree(tmp_path / "lists.partial", ignore_errors=True)  # a kill after the last act
    assert not [f for f in tmp_path.rglob("*") if ".part" in f.name]


def _mine_as_one_of_many(model: str, out: str, minutes: str) -> int:
    torch.set_num_threads(1)
    return mine(Path(model), Path(out), "--resume", *(("--minutes", minutes) if minutes else ()))


def test_another_number_of_processes_goes_on(model, whole, tmp_path, slow):
    out = tmp_path / "lists"
    assert processes.run(_mine_as_one_of_many, 2, str(model), str(out), "0.01") == [3, 3]
    assert len(list((tmp_path / "lists.partial").iterdir())) == 2
    assert processes.run(_mine_as_one_of_many, 3, str(model), str(out), "") == [0] * 3
    assert content(out) == whole


def mined_by_a_recipe(folder: Path, *settings: str) -> NegativeStore:
    """The lists of the recipe `aoq`, whose run ends with them."""
    whole = apply_overrides(find_recipe("aoq"), [*SMALL_AOQ[1::2], *settings])
    source = DataSource("scenes:images=36")
    assert run_pipeline(smoke_recipe(replace(whole, stages=whole.stages[:2])), source, folder)
    fingerprint = source.split("train").fingerprint
    return NegativeStore.open(folder / "lists", fingerprint=fingerprint)


def test_filters_and_guides_of_a_stage(tmp_path):
    """As settings of a recipe; the manifest says them."""
    settings = ("lists.filters.captions=0.9", "lists.filters.skip=1")
    guide = ("lists.filters.guided=-0.1", "lists.guides=['online']")
    said = mined_by_a_recipe(tmp_path, *settings, *guide).manifest.filters
    assert said[0] == "texts within TF-IDF cosine 0.9 of a caption of the image"
    assert said[1].startswith("pairs that the guide scores above")
    assert said[2] == "the 1 hardest of the rest"
    assert said[3].startswith("guide: ")


def test_filters_of_the_command(model, tmp_path, capsys):
    guide = ("--filter", "guided=0", "--guide", model)
    assert mine(model, tmp_path / "a", "--filter", "captions=0.5", *guide) == 0
    assert mine(model, tmp_path / "b", "--filter", "caption=0.5") == 2
    assert "did you mean 'captions'?" in said(capsys)
    assert mine(model, tmp_path / "c", "--filter", "guided=0") == 2
    assert "guided=0.0 needs a guide model, and none was named" in said(capsys)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a"]


def test_one_model_proposes_and_another_looks_closer(model, whole, tmp_path, capsys):
    """A model that looks at what it has proposed itself lists what it would have listed."""
    assert mine(model, tmp_path / "a", "--propose", model, "--set", "proposals=2") == 0
    for name, expected in zip(FILES[2:], whole[2:], strict=True):
        scores = np.load(tmp_path / "a" / name), np.load(io.BytesIO(expected))
        np.testing.assert_allclose(*scores, rtol=1e-3)  # rounded to float16
    dataset = DataSource(DATA).split("train")
    found = NegativeStore.open(tmp_path / "a", fingerprint=dataset.fingerprint).manifest
    assert found.proposing == found.sources
    assert found.proposals == 2
    assert mine(model, tmp_path / "b", "--propose", model, "--filter", "highest=1") == 2
    assert "leave out all filters but captions and pictures" in said(capsys)


def test_the_models_own_vectors_propose(model, whole, tmp_path, capsys):
    """80 images lie in 8 cells and 32 are searched, so that nothing is missed."""
    pytest.importorskip("faiss")
    assert mine(model, tmp_path / "a", "--propose", "ivf") == 0
    for name, expected in zip(FILES[2:], whole[2:], strict=True):
        scores = np.load(tmp_path / "a" / name), np.load(io.BytesIO(expected))
        np.testing.assert_allclose(*scores, rtol=1e-3)  # rounded to float16
    dataset = DataSource(DATA).split("train")
    found = NegativeStore.open(tmp_path / "a", fingerprint=dataset.fingerprint).manifest
    assert (found.proposing, found.proposals) == ((), 4)
    assert found.precision == (
        "float32, of pairs that FAISS IVF proposes (32 of √N cells for each query)"
    )
    assert mine(model, tmp_path / "b", "--propose", "ivf", "--propose", model) == 2
    assert "name one model, and no other that proposes" in said(capsys)
    assert mine(model, tmp_path / "b", "--propose", "ivf", "--filter", "highest=1") == 2
    assert "leave out all filters but captions and pictures" in said(capsys)
    two = ("mine", model, model, "--data", DATA, "--output", tmp_path / "b")
    assert run(*two, "--propose", "ivf") == 2
    assert "name one model" in said(capsys)
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_own_vectors_propose_no_pair_that_filters_leave_out(model, tmp_path):
    pytest.importorskip("faiss")
    filters = ("--filter", "captions=0.6")
    assert mine(model, tmp_path / "a", *filters) == 0
    assert mine(model, tmp_path / "b", *filters, "--propose", "ivf", "--set", "proposals=40") == 0
    for name in FILES[2:]:
        scores = np.load(tmp_path / "a" / name), np.load(tmp_path / "b" / name)
        np.testing.assert_allclose(*scores, rtol=1e-3)  # rounded to float16


class Late:
    """A function that takes a while."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.1

    def __call__(self, *arguments):
        time.sleep(self.seconds)
        return self.function(*arguments)


def test_own_vectors_propose_anew_after_a_stop(model, tmp_path, monkeypatch, slow, capsys):
    pytest.importorskip("faiss")
    ivf = ("--propose", "ivf")
    assert mine(model, tmp_path / "a", "--minutes", "0.01") == 3
    assert mine(model, tmp_path / "a", *ivf, "--resume") == 2
    assert "holds an unfinished mining, and one with proposals by IVF starts anew" in said(capsys)
    monkeypatch.setattr(proposals, "AT_ONCE", 8)
    monkeypatch.setattr(proposals, "_values", late := Late(proposals._values))
    assert mine(model, tmp_path / "b", *ivf, "--minutes", "0.01") == 3
    late.seconds = 0
    assert mine(model, tmp_path / "b", *ivf) == 0
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.partial", "b"]


@pytest.mark.parametrize("proposing", ["ivf", "online"])
def test_a_stage_proposes(proposing, tmp_path):
    if proposing == "ivf":
        pytest.importorskip("faiss")
    settings = (f"lists.proposing=['{proposing}']", "lists.proposals=3")
    store = mined_by_a_recipe(tmp_path, *settings)
    assert store.manifest.proposals == 3
    assert store.lists.texts.shape == (24, 20)
    assert ("of pairs that FAISS IVF proposes" in store.manifest.precision) == (proposing == "ivf")


def test_half_precision_lists_the_same_and_says_why(model, whole, tmp_path, capsys):
    assert mine(model, tmp_path / "a", "--precision", "bf16", "--filter", "captions=1") == 0
    assert mine(model, tmp_path / "b", "--filter", "captions=1") == 0
    for name in FILES[2:]:
        scores = np.load(tmp_path / "a" / name), np.load(tmp_path / "b" / name)
        np.testing.assert_allclose(*scores, rtol=1e-3)  # rounded to float16
    dataset = DataSource(DATA).split("train")
    found = NegativeStore.open(tmp_path / "a", fingerprint=dataset.fingerprint).manifest
    assert found.precision.startswith("bfloat16, then float32: ")
    assert mine(model, tmp_path / "c", "--precision", "bf17") == 2
    assert "did you mean 'bf16'?" in said(capsys)
    assert mine(model, tmp_path / "c", "--precision", "bf16", "--filter", "skip=1") == 2
    assert "precision=bf16 works with all pairs" in said(capsys)


def test_half_precision_goes_on_where_it_was_stopped(model, tmp_path, slow, capsys):
    halved = ("--precision", "bf16")
    assert mine(model, tmp_path / "a", *halved) == 0
    assert mine(model, tmp_path / "b", *halved, "--minutes", "0.01") == 3
    assert (tmp_path / "b.partial" / "process-0.safetensors").is_file()
    assert mine(model, tmp_path / "b", "--resume") == 2
    assert "precision is bfloat16 there and float32 here" in said(capsys)
    assert mine(model, tmp_path / "b", *halved, "--resume") == 0
    assert content(tmp_path / "b") == content(tmp_path / "a")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a", "b"]
