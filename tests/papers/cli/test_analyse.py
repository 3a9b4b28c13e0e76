from __future__ import annotations

import json
import shutil

import numpy as np

from analysis_cases import SCENES
from corpus_cases import random_array
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.papers.aoq.figures import BINS, cross_ranks, expected_rank, pair_ranks, rank_shares
from counterfoil.pipelines.scorers import ensemble_parts, short_names


def test_online_rank(models, analysed):
    few = ("--anchors", "20", "--draws", "4", "--seed", "5", "--top", "10")
    shown, _, numbers = analysed("online-rank", models / "run/online", *few, figures=2)
    for said in ("scenes train, whole split: 24 images, 120 texts", "sampling seed 5"):
        assert said in shown
    assert "single model, score: cosine, trained with seed 0" in shown
    assert "20 anchors, 4 batches of each size" in shown
    assert [line["batch"] for line in numbers["lines"]] == [32, 64, 32, 64]
    assert [line["hardest"] for line in numbers["lines"]] == [10, 10, 2, 2]
    assert numbers["lines"][0]["expected_rank"] == 120 / 32
    assert numbers["lines"][2]["expected_rank"] == expected_rank(120, 32, captions=5)


def test_online_rank_of_given_batches(models, analysed):
    sizes = ("--batch", "100", "--batch", "7", "--anchors", "5", "--draws", "2")
    pair = f"{models / 'run/online'}+{models / 'pixels'}"
    shown, _, numbers = analysed("online-rank", pair, *sizes, "--split", "train")
    assert [line["batch"] for line in numbers["lines"]] == [7, 100, 7, 100]
    assert "ensemble of 2 by mean score" in shown


def test_negatives(models, analysed):
    few = ("--anchors", "3", "--batch", "16", "--top", "12", "--shown", "2")
    shown, page, numbers = analysed("negatives", models / "run/online", *few)
    assert "offline: drawn from 12 texts and 3 images, the model's own lists" in shown
    assert len(numbers["anchors"]) == 3
    for anchor in numbers["anchors"]:
        assert max(anchor["texts"]["offline"]["places"]) <= 12
        assert anchor["caption"] in page
    assert page.count("data:image/") >= 3 * 4


def test_negatives_from_lists(models, analysed):
    lists = models / "run/lists"
    drawn = analysed("negatives", models / "pixels", "--lists", lists, "--top", "4")
    rows = np.load(lists / "texts.npy")
    for anchor in drawn[2]["anchors"]:
        found = anchor["texts"]
        assert set(found["offline"]["rows"]) <= set(rows[found["row"], :4].tolist())
    assert f"drawn from 4 texts and 1 images, lists of {lists}" in drawn[2]["protocol"]
    whole = analysed("negatives", models / "pixels", "--lists", lists, name="whole")[2]
    assert f"drawn from {rows.shape[1]} texts and" in whole["protocol"]


def test_curves_of_a_run(models, analysed):
    shown, page, numbers = analysed("curves", models / "run", data=None, figures=4)
    names = [one["curve"]["name"] for one in numbers["trainings"]]
    assert names == ["adaptive", "online"]
    losses = [one["losses"] for one in numbers["trainings"]]
    assert losses == ["SumTriplet then AdaptiveQuintuplet", "SumTriplet then HardestTriplet"]
    assert "scenes dev, whole split: RSum after each epoch" in shown
    assert "single models; seed 0" in shown
    assert "Development R@1 image to text, % by epoch: adaptive ends at" in page
    assert "Development R@1 text to image, % by epoch: adaptive ends at" in page
    lines = (models / "run/online/metrics.jsonl").read_text().splitlines()
    dev = [json.loads(line) for line in lines if "dev_rsum" in line]
    curve = numbers["trainings"][1]["curve"]
    for name in ("dev_rsum", "dev_i2t_r1", "dev_t2i_r1"):
        assert curve[name] == [line[name] for line in dev]
    best = max(dev, key=lambda line: line["dev_rsum"])
    assert f"{best['dev_i2t_r1']:.1f}" in shown
    assert f"{best['dev_t2i_r1']:.1f}" in shown


def test_curves_on_different_data(models, analysed, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(models / "run/online", other / "online")
    note = json.loads((models / "run/online.json").read_text())
    note["data"]["fingerprint"] = "another"
    (other / "online.json").write_text(json.dumps(note))
    shown, _, numbers = analysed("curves", models / "run/online", other, data=None)
    assert "2 trainings on different data, whose figures do not compare." in shown
    assert numbers["trainings"][1]["fingerprint"] == "another"


def test_curves_of_a_bare_log(analysed, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "epoch": 1.0, "loss": 2.0}\n')
    shown, _, numbers = analysed("curves", tmp_path, data=None)
    assert "Training loss of 1 trainings; none was measured on dev" in shown
    assert numbers["trainings"][0]["seed"] is None


def test_cross_rank(models, analysed):
    first, second = models / "run/online", models / "pixels"
    shown, _, numbers = analysed("cross-rank", first, second, f"{first}+{second}", figures=1)
    assert set(numbers["percent"]) == {"online", "pixels", "online + pixels"}
    assert "online + pixels: ensemble of 2 by mean score" in shown
    assert "Percent of 30 true pairs" in shown
    assert numbers["bins"] == list(BINS)
    dataset = load_dataset(SCENES).split("test")
    members = [load_model(str(second)).embed(dataset)]
    ranks = cross_ranks(*pair_ranks(members, dataset.text_to_image), 5)
    assert numbers["percent"]["pixels"] == rank_shares(ranks)
    assert numbers["median"]["pixels"] == float(ranks.median())


def test_vectors_without_pictures(analysed, tmp_path):
    """Captions stand for images where there are no pictures; ready-made texts may be empty."""
    data = tmp_path / "vectors"
    data.mkdir()
    np.save(data / "images.npy", random_array(6, 8))
    np.save(data / "texts.npy", random_array(18, 8))
    whole = ("vectors", "--split", "all")
    shown, _, numbers = analysed("negatives", *whole, "--anchors", "2", data=data)
    assert len(numbers["anchors"]) == 2
    assert "batches of 18; offline: drawn from 18 texts and 6 images" in shown
    for verb in ("cross-rank", "online-rank", "margins", "quantiles", "map"):
        analysed(verb, *whole, data=data, name=verb)


def test_names_that_tell_apart(tmp_path):
    assert short_names(["a", "b/c"]) == ("a", "c")
    assert short_names(["x/m/model", "y/m/model"]) == ("x/m", "y/m")
    assert short_names(["x/m", "x/m/model"]) == ("x/m", "x/m/model")
    assert short_names(["openai/clip"]) == ("clip",)
    (tmp_path / "a+b").mkdir()
    assert ensemble_parts(str(tmp_path / "a+b")) == [str(tmp_path / "a+b")], "a folder's name"
    assert ensemble_parts("a + b") == ["a", "b"]
