from __future__ import annotations

import argparse
import json
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

import hub_cases
import recipes_cases
from corpus_cases import (
    karpathy_image,
    random_array,
    small_corpus,
    write_karpathy,
    write_picture,
    write_split,
)
from counterfoil.core.config import config, lazy
from counterfoil.data.features import open_features
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.model import load_model
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.store import NegativeStore
from counterfoil.papers.models.scan import SCAN
from recipes_cases import run, snapshot

SCENES = "scenes:images=36"


# evaluate


@pytest.mark.parametrize("name", ["pixels", "clip", "run/adaptive", "run/adaptive/model"])
def test_evaluate_says_by_which_protocol(name, models, printed, tmp_path):
    shown = printed("evaluate", models / name, "--data", SCENES, "--json", tmp_path / "e.json")
    assert "scenes test; whole split: 6 images, 30 texts, ranked as a whole" in shown
    assert "of equal scores the lower row comes first" in shown
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["models"] == [str(models / name)]
    assert f"{found['rsum']:.1f}" in shown
    assert "few images: one more hit of an image moves a recall by 16.7" in shown
    if name.startswith("run/"):
        noted = json.loads((models / "run/test-adaptive/evaluation.json").read_text())
        assert [found[side] for side in ("i2t", "t2i")] == [noted["i2t"], noted["t2i"]]


def test_evaluate_vectors(printed, tmp_path):
    images = np.eye(5, 8, dtype=np.float32)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "texts.npy", images.repeat(2, 0))
    shown = printed("evaluate", "vectors", "--data", tmp_path, "--ties", "pessimistic")
    assert "5 images, 10 texts" in shown
    assert "600.0" in shown
    assert "ties: a tied competitor counts as better" in shown


def test_evaluate_an_ensemble(models, printed, tmp_path):
    pair = (models / "run/online", models / "run/adaptive")
    shown = printed(
        "evaluate", "+".join(map(str, pair)), "--data", SCENES, "--json", tmp_path / "e.json"
    )
    assert "ensemble of 2 by mean score" in shown
    twice = f"{pair[0]}+{pair[0]}"
    printed("evaluate", twice, "--data", SCENES, "--json", tmp_path / "twice.json")
    printed("evaluate", pair[0], "--data", SCENES, "--json", tmp_path / "once.json")
    twice, once = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("twice", "once"))
    assert twice["i2t"] == once["i2t"]


def test_evaluate_compares_models_and_report_reads_what_it_saves(models, printed, tmp_path):
    first, second = models / "run/online", models / "run/adaptive"
    out, saved = tmp_path / "e.json", tmp_path / "measured"
    shown = printed(
        *("evaluate", first, second, "--data", SCENES, "--json", out, "--output", saved)
    )
    assert "adaptive reaches RSum" in shown
    assert "interval of the difference" in shown
    found = json.loads(out.read_text())
    noted = [
        json.loads((models / f"run/test-{n}/evaluation.json").read_text())
        for n in ("online", "adaptive")
    ]
    assert [one["rsum"] for one in found["evaluations"]] == [one["rsum"] for one in noted]
    change = found["comparison"][1]["against"][-1]
    assert change["difference"] == pytest.approx(noted[1]["rsum"] - noted[0]["rsum"])
    page = tmp_path / "report.html"
    printed("report", saved / "online", saved / "adaptive", "--output", page)
    of_saved = json.loads(page.with_suffix(".json").read_text())["runs"]
    assert of_saved[1]["against"][-1]["difference"] == pytest.approx(change["difference"])
    models_page = tmp_path / "models.html"
    printed("report", first, second, "--data", SCENES, "--output", models_page)
    of_models = json.loads(models_page.with_suffix(".json").read_text())["runs"]
    assert [one["numbers"] for one in of_models] == [one["numbers"] for one in of_saved]


def test_evaluate_what_others_shortlist(models, printed, tmp_path):
    first, last, out = models / "run/online", models / "run/adaptive", tmp_path / "e.json"
    shown = printed(
        "evaluate", last, "--first", first, "--depth", "2", "--data", SCENES, "--json", out
    )
    assert f"top-2 of {first} re-ranked" in shown.replace("/ ", "/")
    found = json.loads(out.read_text())
    assert found["setting"]["depth"] == 2
    i2t, t2i = found["shortlists"]["ceiling"]
    assert found["i2t"]["r1"] <= i2t
    assert found["t2i"]["r1"] <= t2i
    printed("evaluate", last, "--data", SCENES, "--json", tmp_path / "full.json")
    full = json.loads((tmp_path / "full.json").read_text())
    assert found["shortlists"]["full"]["i2t"] == full["i2t"]
    last_out = tmp_path / "again.json"
    printed("evaluate", last, "--first", first, "--full", "--data", SCENES, "--json", last_out)
    assert json.loads(last_out.read_text())["rsum"] == full["rsum"]  # 50 are all there are


def test_evaluate_another_split(models, printed):
    assert "scenes dev;" in printed(
        "evaluate", models / "pixels", "--data", SCENES, "--split", "val"
    )
    assert "36 images" in printed("evaluate", models / "pixels", "--data", SCENES, "--split", "all")


# mine


def test_mine(models, printed, tmp_path):
    model, out = models / "run/online", tmp_path / "lists"
    lists = ("--output", out, "--texts-per-image", "7", "--images-per-text", "3")
    shown = printed("mine", model, "--data", SCENES, *lists)
    assert "7 texts of each of 24 images and 3 images of each of 120 texts, scenes train" in shown
    dataset = load_dataset(SCENES).split("train")
    store = NegativeStore.open(out, fingerprint=dataset.fingerprint)
    assert store.lists.texts.shape == (24, 7)
    assert store.lists.images.shape == (120, 3)
    member = load_model(model).embed(dataset)
    scores = member.model.score_matrix(member.images, member.texts).detach()
    scores[dataset.text_to_image, torch.arange(120)] = -torch.inf
    best = scores.topk(7).indices.sort().values
    assert torch.equal(store.lists.texts.long().sort().values, best)


# search


def test_search_for_a_caption(models, printed, tmp_path):
    page = tmp_path / "found.html"
    query = "a red circle left of a blue square"
    shown = printed(
        *("search", models / "run/adaptive", query, "--data", SCENES, "--top", "3"),
        *("--output", page),
    )
    places = re.findall(r"scenes\S*/\d+", shown)
    assert len(places) == 3
    assert str(page) in shown.replace(" ", "")
    text = page.read_text()
    assert text.count("<img") == 3
    assert text.count("data:image/") >= 3
    assert query in text
    model, dataset = load_model(models / "run/adaptive"), load_dataset(SCENES).split("test")
    member = model.embed(dataset)
    scores = model.model.score_matrix(member.images, model.encode([query]))[:, 0]
    wanted = [dataset.pictures.place(row) for row in scores.topk(3).indices.tolist()]
    assert places == wanted, (shown, scores)


def test_search_with_a_picture(models, printed, tmp_path):
    write_picture(tmp_path / "dog.png")
    shown = printed(
        *("search", models / "run/adaptive", tmp_path / "dog.png", "--data", SCENES),
        *("--top", "2", "--output", tmp_path / "found.html"),
    )
    dataset = load_dataset(SCENES).split("test")
    text = (tmp_path / "found.html").read_text()
    assert sum(caption in text for caption in dataset.texts) >= 2
    assert "caption" in shown


def test_search_among_features(models, printed, tmp_path):
    """No pictures: ids instead of thumbnails."""
    captions = [f"a dog {n}" for n in range(10)]
    write_split(tmp_path / "pre", "test", random_array(5, 3, 4), captions)
    page = tmp_path / "found.html"
    shown = printed(
        "search", models / "regions", "a dog", "--data", tmp_path / "pre", "--output", page
    )
    assert "test/0" in shown
    assert "test/0" in page.read_text()


def test_pages_of_searches_are_never_overwritten(models, printed, tmp_path, monkeypatch, capsys):
    write_split(tmp_path / "pre", "test", random_array(5, 3, 4), [f"a dog {n}" for n in range(10)])
    monkeypatch.chdir(tmp_path)
    words = ("search", models / "regions", "a dog", "--data", tmp_path / "pre")
    Path("search.html").write_text("mine")
    printed(*words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pre", "search.html"]
    assert recipes_cases.run(*words, "--output", "search.html") == 2
    assert "search.html exists and is left alone; name another file" in capsys.readouterr().err
    assert Path("search.html").read_text() == "mine"


# data check


def photos(folder, *, broken: bool = False):
    split = ["train", "train", "dev", "test"]
    images = [karpathy_image(f"{n}.png", split[n % 4], [f"a dog {n}"], first=n) for n in range(8)]
    write_karpathy(folder, images)
    if broken:
        (folder / "images" / "1.png").write_bytes(b"x")
    return folder


def test_data_check(printed, tmp_path):
    shown = printed("data", "check", photos(tmp_path / "photos"))
    for fragment in ("train", "dev", "test"):
        assert fragment in shown
    before = snapshot(tmp_path)
    assert "cannot be read" in printed("data", "check", photos(tmp_path / "b", broken=True), code=2)
    assert {k: v for k, v in snapshot(tmp_path).items() if not k.startswith("b")} == before


def test_data_check_says_which_features_are_no_numbers(printed, tmp_path):
    values = random_array(5, 3, 4)
    values[3] = np.nan
    write_split(tmp_path / "pre", "train", values, [f"a dog {n}" for n in range(10)])
    assert "train/3" in printed("data", "check", tmp_path / "pre", code=2)


# features


def test_features(printed, tmp_path):
    hub_cases.vit(tmp_path / "vit")
    hub_cases.processor(
        tmp_path / "vit",
        size={"height": 16, "width": 16},
        image_processor_type="ViTImageProcessor",
    )
    args = ("features", "scenes:images=12", tmp_path / "feat", "--model", tmp_path / "vit")
    assert "12 images" in printed(*args, "--batch-size", "5")
    table = open_features(tmp_path / "feat")
    assert table.features.values.shape == (12, 4, 16)
    before = snapshot(tmp_path)
    printed(*args, "--batch-size", "5")
    assert snapshot(tmp_path) == before
    small = ("--set", "*.model.image.width=8", "--set", "*.model.text.width=8")
    quick = ("--set", "online.epochs=1", "--set", "online.processor.min_count=1")
    run_ = ("--output", tmp_path / "run", *small, *quick)
    data = f"scenes:images=12,features={tmp_path / 'feat'}"
    printed("train", "vsepp", "--data", data, *run_)
    shown = printed("evaluate", tmp_path / "run" / "online", "--data", data)
    assert "2 images, 10 texts" in shown


# convert

WORDS = [*SPECIAL, "a", "dog", "in", "the", "snow"]


class Vocabulary:
    """The authors' class, in a module of the same name as theirs."""

    def __init__(self) -> None:
        self.word2idx = {word: n for n, word in enumerate(WORDS)}
        self.idx2word = dict(enumerate(WORDS))
        self.idx = len(WORDS)


Vocabulary.__module__ = "vocab"


def write_vocabulary(path) -> None:
    if path.suffix == ".json":
        index = {word: n for n, word in enumerate(WORDS)}
        plain = {"word2idx": index, "idx2word": {n: w for w, n in index.items()}, "idx": len(WORDS)}
        path.write_text(json.dumps(plain))
        return
    import sys
    import types

    module = types.ModuleType("vocab")
    module.Vocabulary = Vocabulary
    sys.modules["vocab"] = module
    try:
        path.write_bytes(pickle.dumps(Vocabulary(), protocol=2))
    finally:
        del sys.modules["vocab"]


def authors(model, path, options: argparse.Namespace) -> None:
    """A matcher's weights as the authors save theirs."""
    sides = {"image": OrderedDict(), "text": OrderedDict()}
    for name, value in model.state_dict().items():
        side, _, rest = name.partition(".")
        sides[side][rest] = value
    saved = {
        "epoch": 3,
        "model": list(sides.values()),
        "best_rsum": 1.5,
        "opt": options,
        "Eiters": 9,
    }
    torch.save(saved, path)


@pytest.mark.parametrize(
    "system,ending,options,spec",
    [
        (
            "vsepp",
            "pkl",
            {"measure": "cosine", "use_abs": False, "no_imgnorm": False},
            config(
                VSEPP,
                image=lazy(Regions, features=4, width=6),
                text=lazy(GRU, words=9, word_width=5, width=6, bidirectional=False),
                text_pool="last",
            ),
        ),
        (
            "scan",
            "json",
            {
                "cross_attn": "i2t",
                "raw_feature_norm": "clipped_l2norm",
                "agg_func": "Mean",
                "lambda_softmax": 4.0,
                "lambda_lse": 5.0,
                "no_imgnorm": False,
                "no_txtnorm": False,
            },
            config(
                SCAN,
                image=lazy(Regions, features=4, width=6),
                text=lazy(GRU, words=9, word_width=5, width=6),
                direction="i2t",
                aggregate="Mean",
                lambda_softmax=4.0,
                lambda_lse=5.0,
            ),
        ),
    ],
    ids=["vsepp", "scan"],
)
def test_convert(system, ending, options, spec, printed, tmp_path):
    torch.manual_seed(3)
    model = spec.build().eval()
    authors(model, tmp_path / "best.pth.tar", argparse.Namespace(**options, lr=0.1))
    vocabulary = tmp_path / f"vocab.{ending}"
    write_vocabulary(vocabulary)
    printed("papers", "convert", system, tmp_path / "best.pth.tar", vocabulary, tmp_path / "out")
    opened = load_model(tmp_path / "out")
    assert opened.processor.tokenizer.words == WORDS
    dataset = small_corpus((2, 1, 3, 2))
    member = opened.embed(dataset)
    found = member.model.score_matrix(member.images, member.texts)
    processor = opened.process(dataset)
    images = model.encode_images(processor.images(torch.arange(4)))
    texts = model.encode_texts(processor.texts(torch.arange(8)))
    torch.testing.assert_close(found, model.score_matrix(images, texts))
    write_split(tmp_path / "pre", "test", random_array(3, 2, 4), [f"a dog {n}" for n in range(6)])
    assert "3 images, 6 texts" in printed("evaluate", tmp_path / "out", "--data", tmp_path / "pre")


# what else the command line does


def test_interrupted_is_no_traceback(monkeypatch, capsys):
    from counterfoil.recipes import catalogue

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "print_catalogue", interrupt)
    assert run("plan") == 130
    told = "counterfoil: interrupted; nothing is left half-written, run the command again\n"
    assert capsys.readouterr().err == told


def test_the_traceback_is_there_when_asked_for(monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="'demoo' is not a recipe"):
        run("plan", "demoo")


def test_our_own_bugs_are_not_swallowed(monkeypatch):
    from counterfoil.recipes import catalogue

    monkeypatch.setattr(catalogue, "print_catalogue", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("plan")


def test_train_on_a_folder_of_photos(printed, tmp_path):
    folder = photos(tmp_path / "photos")
    args = ("--data", folder, "--output", tmp_path / "run", "--set", "online.epochs=1")
    assert "whole split" in printed("train", "vsepp", *args, *recipes_cases.SMALL)
    assert "dog" in (tmp_path / "run/online/model/tokenizer.json").read_text()


def test_train_shows_its_plan_and_writes_nothing(printed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    knobs = ("--epochs", 3, "--precision", "bf16", "--track", "tensorboard", "--device", "cpu")
    knobs += ("--grad-cache", 4, "--gradient-checkpointing")
    shown = printed("train", "vsepp", "--data", SCENES, *knobs, "--plan")
    assert "grad_cache=4" in shown
    assert "gradient_checkpointing=True" in shown
    assert "epochs=3" in shown
    assert "length: 3 epochs of 2 steps, 6 steps in all; measured on 6 images of dev" in shown
    assert "precision='bf16'" in shown
    assert "track=['tensorboard']" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="has the device")
def test_a_device_that_is_not_there(capsys):
    assert run("evaluate", "vectors", "--data", SCENES, "--device", "mps") == 2
    assert "PyTorch finds no mps" in capsys.readouterr().err
