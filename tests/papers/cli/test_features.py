"""``counterfoil features`` and models that are trained on its regions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hub_cases
from analysis_cases import REGIONS, reader
from corpus_cases import write_features
from counterfoil.core.config import config, from_data
from counterfoil.data.features import open_features
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.negatives.generated import GeneratedStore
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.pretraining.pretrain import PretrainTasks
from counterfoil.papers.pretraining.stage import Pretrain, pretrain_config
from counterfoil.papers.tags.inputs import GeneratorInputs
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.training.logging import read_metrics
from recipes_cases import snapshot
from uniter_files import Caption, image_database, text_database, tsv


def test_a_table_becomes_features_of_a_data_set(printed, tmp_path):
    first = tsv(tmp_path / "butd" / "train.tsv.0", [(7, 3), (12, 5)])
    tsv(tmp_path / "butd" / "train.tsv.1", [(12, 4), (30, 2)])
    assert "3 images" in printed("features", tmp_path / "butd", tmp_path / "out")
    before = snapshot(tmp_path)
    printed("features", tmp_path / "butd", tmp_path / "out")
    assert snapshot(tmp_path) == before
    photos = tmp_path / "captions.csv"
    names = ("COCO_val2014_000000000012.jpg", "COCO_val2014_000000000007.jpg")
    photos.write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in names))
    for place in ("out", "butd"):  # the table itself is read too
        features = load_dataset(photos, features=tmp_path / place).features
        values = features.take(torch.tensor([0])).values[0]
        torch.testing.assert_close(values, torch.from_numpy(first[1]), atol=2e-3, rtol=0)
        assert features.boxes is not None


def test_a_database_becomes_a_feature_folder(printed, tmp_path):
    image_database(tmp_path / "img_db", "feat_numbb8", compressed=False)
    assert "2 images" in printed("features", tmp_path / "img_db", tmp_path / "out")
    table = open_features(tmp_path / "out")
    assert table.features.values.shape == (2, 8, 6)
    assert table.features.boxes is not None
    assert table.features.classes is not None


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with captions."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = load_dataset("scenes:images=12")
    for row in range(12):
        scenes.pictures.open(row).resize((48, 64 - row)).save(folder / f"{row}.png")
        texts = scenes.texts[5 * row : 5 * row + 5]
        (folder / f"{row}.txt").write_text("\n".join(texts) + "\n")
    return folder


@pytest.fixture(scope="module")
def regions(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its regions by a DETR, by the command line."""
    from counterfoil.cli import main

    folder = tmp_path_factory.mktemp("regions")
    model = hub_cases.detr(folder / "detr")
    words = ["features", str(photos), str(folder / "out"), "--model", model, "--regions", "6"]
    assert main(words) == 0
    return folder / "out"


def test_scan_trains_on_regions_of_photos(printed, photos, regions, tmp_path):
    place = ("--data", f"{photos}:features={regions}")
    small = ("--set", "*.model.image.width=8", "--set", "*.model.text.width=8")
    quick = ("--set", "online.epochs=1", "--set", "online.processor.min_count=1")
    run = tmp_path / "run"
    printed("train", "scan-t2i", *place, "--output", run, *small, *quick)
    shown = printed("evaluate", run / "online", *place, "--split", "all")
    assert "12 images, 60 texts" in shown


def test_uniter_trains_on_regions_of_photos(photos, regions, tmp_path):
    """With the detector's boxes, and its classes as targets."""
    model = config(
        UNITER,
        layers=1,
        width=16,
        heads=2,
        inner=32,
        vocabulary=from_data("words"),
        positions=64,
        features=from_data("features"),
        classes=from_data("classes"),
        mask=from_data("mask"),
        outputs=("match", "fill", "regress", "classify"),
    )
    plan = replace(pretrain_config(epochs=1, batch=8, rate=1e-3), steps=2, log_every=1)
    tasks = PretrainTasks(mlm=0, mrfr=1, mrc=0, mrckl=1, itm=0)
    stage = Pretrain(name="pretrained", model=model, plan=plan, tasks=tasks)
    source = DataSource(str(photos), features=regions)
    assert run_pipeline(Recipe(name="tiny", stages=(stage,)), source, tmp_path / "run")
    rows = list(read_metrics(tmp_path / "run" / "pretrained" / "metrics.jsonl"))
    assert {"loss_mrfr", "loss_mrckl"} <= set().union(*rows)
    assert np.isfinite([value for row in rows for key, value in row.items() if "loss" in key]).all()


def test_scene_graphs_of_a_database_are_the_phrases_of_tags(printed, tmp_path):
    """Of every caption the second word alone is a phrase, so nothing else may change."""
    scenes = load_dataset(REGIONS).split("train")
    words = [text.replace(".", " .").split() for text in scenes.texts]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({w for c in words for w in c})]
    captions: dict[str, Caption] = {}
    for row, caption in enumerate(words):
        image = f"{scenes.image_ids[int(scenes.text_to_image[row])]}.npz"
        tree = {"node": [[1]], "attribute": [], "relation": [None]}
        captions[str(row)] = (image, [pieces.index(word) for word in caption], tree)
    data = tmp_path / "txt_db"
    text_database(data / "itm_scenes_train.db", captions=captions, pieces=pieces)
    write_features(tmp_path / "regions", scenes.image_ids, scenes.features)
    model = reader(tmp_path / "model")
    printed(
        *("papers", "write", "tags", model, f"{data}:features={tmp_path / 'regions'}"),
        *(
            "--phrases",
            data,
            "--set",
            "masks=3",
            "--set",
            "refills=3",
            "--output",
            tmp_path / "written",
        ),
    )
    train = load_dataset(data, features=tmp_path / "regions").split("train")
    inputs = GeneratorInputs(processor=load_model(model).process(train), parser=str(data))
    assert inputs.phrases(torch.tensor([0]), 5).tolist() == [[[False, False, True, False, False]]]
    store = GeneratedStore.open(tmp_path / "written", fingerprint=train.fingerprint)
    foils = list(store.foils())
    assert len(foils) > 50
    for foil in foils:
        old, new = foil.caption.split(), foil.foil.split()
        assert (old[0], old[2:]) == (new[0], new[2:])
        assert foil.kind == "object"
