from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import counterfoil as cf
import recipes_cases
from artifact_cases import resealed
from counterfoil.data.corrections import Correction, apply_corrections
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation import cascade
from counterfoil.evaluation.cascade import Shortlister
from counterfoil.evaluation.metrics import Protocol
from counterfoil.evaluation.protocols import WHOLE
from counterfoil.evaluation.results import results
from counterfoil.evaluation.truth import open_truth
from counterfoil.model import load_model
from counterfoil.pipelines.pipeline import Compare
from counterfoil.pipelines.stages import compare
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation

BEST = 0  # ranks count from 0
SCENES = load_dataset("scenes:images=36").split("test")


def measured_model(root):
    return recipes_cases.pixel_model(root / "m")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = measured_model(tmp_path_factory.mktemp("model"))
    return RetrievalEvaluation.of([load_model(folder).embed(SCENES)], SCENES, WHOLE, seed=3)


def test_round_trip(measured, tmp_path):
    measured.save(tmp_path / "e")
    back = RetrievalEvaluation.open(tmp_path / "e")
    assert back.report.to_dict() == measured.report.to_dict()
    assert back.dataset == SCENES.fingerprint
    for one, two in zip(back.report.ranked, measured.report.ranked):
        assert one.direction == two.direction
        assert torch.equal(one.ranks, two.ranks.long())
    for name in ("texts", "text_scores", "images", "image_scores"):
        assert torch.equal(getattr(back, name), getattr(measured, name).to(getattr(back, name)))


def test_the_places_of_all_true_pairs_are_kept(tmp_path):
    """A report shows and compares them as the evaluation did."""
    model = load_model(measured_model(tmp_path))
    truth = open_truth("complete", SCENES)
    found = RetrievalEvaluation.of([model.embed(SCENES)], SCENES, WHOLE, seed=3, truth=truth)
    found.save(tmp_path / "e")
    back = RetrievalEvaluation.open(tmp_path / "e").report
    assert back.to_dict() == found.report.to_dict()
    assert back.names == found.report.names
    assert back.names[-1] == "t2i AUC of others"
    assert [run.to_dict() for run in results({"a": back, "b": back})] == [
        run.to_dict() for run in results({"a": found.report, "b": found.report})
    ]


def test_an_evaluation_saved_before_opens():
    """It was saved in November 2026 and is never written again: later fields need a default."""
    folder = Path(__file__).parents[1] / "saved" / "evaluation"
    stored = json.loads((folder / "evaluation.json").read_text())
    report = RetrievalEvaluation.open(folder).report
    assert report.rsum == pytest.approx(stored["rsum"])
    plain = report.to_dict()
    for side in ("i2t", "t2i"):
        assert stored[side].items() <= plain[side].items()
    assert stored["setting"].items() <= plain["setting"].items()


def test_a_stage_measures_by_a_truth(tmp_path):
    folder = str(measured_model(tmp_path / "m"))
    stages = (
        cf.Evaluate(name="test", using=(), models=(folder,), truth="complete"),
        Compare(name="page", results=("test",)),
    )
    run = cf.run(
        cf.Recipe(name="by-truth", stages=stages), data="scenes:images=36", output=tmp_path / "run"
    )
    report = RetrievalEvaluation.open(tmp_path / "run" / "test").report
    assert "; truth complete: " in report.setting.line()
    assert run.evaluations["test"].protocol == report.setting.line()
    assert "AUC of others" in (tmp_path / "run" / "page" / "report.html").read_text()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"first": ("a",), "truth": "complete"}, "leave out `first`, or the truth"),
        ({"truth": "judged"}, "judgements"),
        ({"truth": "entire"}, "entire"),
    ],
)
def test_what_a_truth_refuses(fields, said, tmp_path):
    folder = str(measured_model(tmp_path / "m"))

    def measure():
        stage = cf.Evaluate(name="test", using=(), models=(folder,), **fields)
        recipe = cf.Recipe(name="by-truth", stages=(stage,))
        cf.run(recipe, data="scenes:images=36", output=tmp_path / "run")

    with pytest.raises(ValueError, match=said):
        measure()


@pytest.mark.parametrize("folds", [1, 2])
def test_metrics_that_came_later_are_counted_from_the_ranks(folds, tmp_path):
    model = load_model(measured_model(tmp_path / "m"))
    protocol = Protocol("some", folds)
    found = RetrievalEvaluation.of([model.embed(SCENES)], SCENES, protocol, seed=3)
    found.save(tmp_path / "e")
    plain = json.loads((tmp_path / "e" / "evaluation.json").read_text())
    for part in (plain, *plain["folds"]):
        del part["i2t"]["r5"], part["t2i"]["median_rank"]
    (tmp_path / "e" / "evaluation.json").write_text(json.dumps(plain))
    resealed(tmp_path / "e")
    assert RetrievalEvaluation.open(tmp_path / "e").report.to_dict() == found.report.to_dict()


def test_the_first_items_fit_the_ranks(measured):
    """A query is ranked best exactly where its first item is its own."""
    found = {ranked.direction: ranked.ranks for ranked in measured.report.ranked}
    of_images = SCENES.text_to_image[measured.texts[:, 0].long()] == torch.arange(len(SCENES))
    of_texts = measured.images[:, 0].long() == SCENES.text_to_image
    assert of_texts.any()
    assert not of_texts.all()
    for hit, ranks in ((of_images, found["i2t"]), (of_texts, found["t2i"])):
        assert torch.equal(hit, ranks == BEST)
    assert (measured.text_scores[:, :-1] >= measured.text_scores[:, 1:]).all()


def test_what_was_decided_counts_and_is_told(measured, tmp_path):
    """Each caption's first image is decided to be true: every caption is then ranked best."""
    images = measured.images[:, 0].long()
    decisions = [
        Correction("true", SCENES.image_ids[image], SCENES.text_ids[text], SCENES.texts[text])
        for text, image in enumerate(images.tolist())
        if image != int(SCENES.text_to_image[text])
    ]
    dataset = apply_corrections(SCENES, decisions)
    model = load_model(measured_model(tmp_path))
    found = RetrievalEvaluation.of([model.embed(dataset)], dataset, WHOLE, seed=3)
    assert found.report.t2i.r1 == 100
    assert found.report.i2t.r1 >= measured.report.i2t.r1
    told = f"the data as decided: {len(decisions)} pairs true besides the captions' own"
    assert told in found.report.setting.line()
    assert "as decided" not in measured.report.setting.line()
    found.save(tmp_path / "e")
    assert RetrievalEvaluation.open(tmp_path / "e").report.to_dict() == found.report.to_dict()


@pytest.mark.parametrize("full", [False, True])
def test_a_cascade_round_trip(full, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cascade, "AFFORDABLE", 0)
    folders = [recipes_cases.pixel_model(tmp_path / name) for name in ("m", "n")]
    one, two = (load_model(folder).embed(SCENES) for folder in folders)
    by = Shortlister((two,), "quick", 3, full)
    found = RetrievalEvaluation.of([one], SCENES, WHOLE, seed=3, by=by)
    found.save(tmp_path / "e")
    back = RetrievalEvaluation.open(tmp_path / "e")
    assert back.to_dict() == found.to_dict()
    assert back.shortlists is not None
    assert found.shortlists is not None
    assert back.shortlists.ceiling == found.shortlists.ceiling
    assert (back.shortlists.full is not None) == full
    for ours, theirs in zip(back.shortlists.curve, found.shortlists.curve, strict=True):
        assert (ours.depth, ours.pairs) == (theirs.depth, theirs.pairs)
        assert ours.report.numbers == theirs.report.numbers
    assert [point.depth for point in back.shortlists.curve] == [1, 2, 3]
    first = back.shortlists.first.ranked[1].ranks, found.shortlists.first.ranked[1].ranks
    assert torch.equal(*first)
    back.show("slow")
    shown = " ".join(capsys.readouterr().out.split())
    assert "top-3 of quick re-ranked, all behind them in its order" in shown
    assert "quick alone" in shown
    assert ("full ranking difference" in shown) == full
    assert ("lost against the full ranking" in shown) == full


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("evaluation.json", b"{", "cannot be read as an evaluation"),
        ("evaluation.json", b"{}", "cannot be read as an evaluation: no 'setting'"),
        ("evaluation.safetensors", b"x", "is damaged"),
    ],
)
def test_damage_behind_the_checksums(name, content, message, measured, tmp_path):
    measured.save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        RetrievalEvaluation.open(resealed(tmp_path))


@pytest.mark.parametrize("part", ["setting", "i2t"])
def test_fields_of_another_version(part, measured, tmp_path):
    measured.save(tmp_path)
    path = tmp_path / "evaluation.json"
    plain = json.loads(path.read_text())
    plain[part]["later"] = 1.0
    path.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="later") as error:
        RetrievalEvaluation.open(resealed(tmp_path))
    assert str(error.value) == (
        f"{path} was written by another version of counterfoil ({cf.__version__}): it has the "
        "fields later, which this one does not know; evaluate again"
    )


def test_numbers_of_one_evaluation_and_ranks_of_another_are_refused(measured, tmp_path):
    """As a kill leaves them when one evaluation replaces another."""
    measured.save(tmp_path / "a")
    measured.save(tmp_path / "b", models=["other"])
    shutil.copy(tmp_path / "b" / "evaluation.json", tmp_path / "a" / "evaluation.json")
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged: .* evaluate again"):
        RetrievalEvaluation.open(tmp_path / "a")


def test_curve_of_metrics(tmp_path):
    lines = [
        {"step": 1, "epoch": 0.5, "loss": 4.0},
        {"step": 2, "epoch": 1.0, "loss": 2.0},
        {"step": 2, "epoch": 1, "dev_rsum": 100.0, "dev_i2t_r1": 20.0, "dev_t2i_r1": 10.0},
        {"step": 3, "epoch": 1.5, "loss": 1.0},
        {"step": 4, "epoch": 2, "dev_rsum": 120.0, "dev_i2t_r1": 25.0},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compare.learning_curve("online", path)
    known = (1.0, 2.0), (100.0, 120.0), (3.0, 1.0), (20.0, 25.0)
    assert found == compare.LearningCurve("online", *known)  # one epoch without R@1: none shown


def test_curve_without_dev(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "epoch": 0.5, "loss": 4.0}\n{"step": 2, "epoch": 1.5, "loss": 2}\n'
    )
    assert compare.learning_curve("a", path).epochs == (1.0, 2.0)
