"""Calls that a newcomer makes with a value of another type: right, or a sentence what to write."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import counterfoil as cf
import recipes_cases

LOSS = cf.losses.HardestTripletLoss()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return recipes_cases.pixel_model(tmp_path_factory.mktemp("types") / "model")


@pytest.fixture(scope="module")
def data():
    return cf.load_dataset("scenes:images=24")


def trainer(folder, data, tmp_path, **changes):
    given = {"model": cf.load_model(folder), "loss": LOSS, "train": data["train"]} | changes
    return cf.Trainer(given.pop("model"), output=tmp_path / "run", **given)


def test_names_of_models_are_opened(folder, data, tmp_path):
    by_name = cf.evaluate(str(folder), data["test"])
    assert by_name.metrics == cf.evaluate(cf.load_model(folder), data["test"]).metrics
    assert len(cf.mine_hard_negatives(str(folder), data["train"], texts_per_image=3).lists.texts)
    cf.build_index(str(folder), data["test"], tmp_path / "index")
    assert cf.explain(str(folder), data["test"].pictures.open(0), "a red circle") is not None
    assert trainer(folder, data, tmp_path, model=str(folder)).model.name


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f, d, p: cf.evaluate(3, d["test"]), "3 is no model; give what cf.load_model"),
        (
            lambda f, d, p: cf.evaluate(nn.Linear(2, 2), d["test"]),
            "Linear has neither encode_image",
        ),
        (lambda f, d, p: cf.evaluate(f, "photos"), r"write data = cf.load_dataset\('photos'\)"),
        (lambda f, d, p: cf.mine_hard_negatives(f, [1]), "list is no data set; write data = "),
        (lambda f, d, p: cf.build_index(f, "photos", p / "i"), "'photos' is a name"),
        (lambda f, d, p: trainer(f, d, p, train="photos"), 'then data."train"'),
        (lambda f, d, p: trainer(f, d, p, dev=torch.zeros(2)), "Tensor is no data set"),
        (lambda f, d, p: trainer(f, d, p, loss="triplet"), "'triplet' is no loss; give one of"),
        (lambda f, d, p: trainer(f, d, p, loss=3.0), "3.0 is no loss; give one of"),
        (lambda f, d, p: trainer(f, d, p, loss=[LOSS]), "no loss; give one of.*WeightedSum"),
        (lambda f, d, p: trainer(f, d, p, loss=type(LOSS)), "write HardestTripletLoss()"),
        (
            lambda f, d, p: trainer(f, d, p, loss=lambda scores: scores.mean()),
            r"it has to take \(scores, positives\)",
        ),
        (
            lambda f, d, p: trainer(f, d, p, loss=lambda s, p: s.mean(), resume=True),
            "cannot be resumed.*a lambda has no name",
        ),
        (
            lambda f, d, p: trainer(f, d, p, loss=cf.losses.weighted_sum(a=LOSS)),
            "is a recorded call, which recipes take; give the loss itself",
        ),
        (lambda f, d, p: cf.WeightedSum(terms={"a": LOSS}), "give its weight and the loss"),
        (lambda f, d, p: d["tset"], "tset"),
        (
            lambda f, d, p: cf.evaluate(f, d["test"], metrics=trainer),
            r"metrics=trainer is one metric; write metrics=\[trainer\]",
        ),
    ],
)
def test_other_types_say_what_to_write(call, message, folder, data, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        call(folder, data, tmp_path)


def test_losses_of_embeddings_name_their_adapter(folder, data, tmp_path):
    theirs = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    metric = pytest.importorskip("pytorch_metric_learning.losses")
    for loss, message in (
        (metric.SupConLoss(), r"write cf.losses.MetricLearningLoss\(SupConLoss"),
        (theirs.CoSENTLoss(None), r"write cf.losses.SentenceTransformersLoss\(CoSENTLoss"),
    ):
        with pytest.raises(TypeError, match=message):
            trainer(folder, data, tmp_path, loss=loss)


def test_one_source_needs_no_list(folder, data, tmp_path):
    loss = cf.losses.AdaptiveQuintuplet()
    mined = cf.Mined(cf.mine_hard_negatives(folder, data["train"], texts_per_image=5))
    assert trainer(folder, data, tmp_path, loss=loss, sources=mined).sources == (mined,)


def test_training_on_more_than_a_split_is_said(folder, data, tmp_path, capsys):
    trainer(folder, data, tmp_path, train=data, dev=data["dev"])
    said = capsys.readouterr().err
    assert "train holds the splits" in said
    assert "train and dev share" in said
    trainer(folder, data, tmp_path, dev=data["dev"])
    assert "warning" not in capsys.readouterr().err
