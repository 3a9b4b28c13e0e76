import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import processes
from corpus_cases import small_corpus, write_picture, write_pictures
from corpus_timm import fake_timm
from counterfoil.data import extract
from counterfoil.data.extract import extract_features, grid_boxes
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.precomp import features_of


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    paths = write_pictures(tmp_path / "photos", range(7))
    return replace(small_corpus((1,) * 7), pictures=PictureFiles(paths), features=None)


def values_of(folder, dataset):
    return features_of(dataset.image_ids, folder).take(torch.arange(len(dataset))).values


def test_features_and_boxes(dataset, tmp_path):
    table = extract_features(dataset, "timm:any", tmp_path / "f", batch=2, shard=3)
    assert table.ids == list(dataset.image_ids)
    assert table.features.values.dtype == np.float16
    items = table.features.take(torch.arange(7))
    assert items.values.shape == (7, 9, 6)
    torch.testing.assert_close(items.boxes[0], torch.from_numpy(grid_boxes(3)).float())
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == [
        "boxes.npy",
        "checksums.json",
        "features.json",
        "features.npy",
    ]


def test_features_do_not_depend_on_batch_and_shard(dataset, tmp_path):
    settings = [(1, 1), (2, 3), (7, 7), (32, 512), (3, 2)]
    results = []
    for batch, shard in settings:
        out = tmp_path / f"{batch} {shard}"
        extract_features(dataset, "timm:any", out, batch=batch, shard=shard, kind="float32")
        results.append(values_of(out, dataset))
    assert all(torch.equal(values, results[0]) for values in results)
    assert results[0].std(0).min() > 0  # and the pictures differ


def test_pooled_grid(dataset, tmp_path):
    table = extract_features(dataset, "timm:any", tmp_path / "f", grid=1)
    assert table.features.values.shape == (7, 1, 6)
    with pytest.raises(ValueError, match="a grid of 9 cells cannot be averaged to 4 x 4"):
        extract_features(dataset, "timm:any", tmp_path / "g", grid=4)
    assert not (tmp_path / "g").exists()


def killed(dataset, out, after, *, written=False):
    """Extract in a process that kills itself after so many shards; the next may be `written`."""

    def extracted():
        write_rows, calls = extract._write_rows, []

        def dying(*args):
            if written or len(calls) < after:
                write_rows(*args)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(1)

        extract._write_rows = dying
        extract_features(dataset, "timm:any", out, shard=2)

    assert processes.ended(processes.forked(extracted)) == -signal.SIGKILL


@pytest.mark.parametrize("after, written", [(0, False), (1, False), (1, True), (3, False)])
def test_killed_run_goes_on_where_it_stopped(dataset, tmp_path, monkeypatch, after, written):
    extract_features(dataset, "timm:any", tmp_path / "whole", shard=2)
    killed(dataset, tmp_path / "f", after, written=written)
    assert not (tmp_path / "f").exists()
    opened = []
    original = PictureFiles.open
    monkeypatch.setattr(
        PictureFiles, "open", lambda self, row: opened.append(row) or original(self, row)
    )
    extract_features(dataset, "timm:any", tmp_path / "f", shard=2)
    assert sorted(opened) == list(range(2 * after, 7))
    whole, resumed = tmp_path / "whole", tmp_path / "f"
    for file in whole.iterdir():
        assert file.read_bytes() == (resumed / file.name).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_complete_folder_is_only_opened(dataset, tmp_path, monkeypatch):
    extract_features(dataset, "timm:any", tmp_path / "f")
    monkeypatch.setitem(sys.modules, "timm", None)
    extract_features(dataset, "timm:any", tmp_path / "f")
    with pytest.raises(ValueError, match="f exists and does not hold these features"):
        extract_features(dataset, "timm:any", tmp_path / "f", grid=1)
    with pytest.raises(ValueError, match="photos exists and does not hold these features"):
        extract_features(dataset, "timm:any", tmp_path / "photos")


def test_stopped_run_of_other_settings_is_not_mixed_in(dataset, tmp_path):
    killed(dataset, tmp_path / "f", 1)
    with pytest.raises(ValueError, match=r"begun otherwise: grid is none there and 1 here"):
        extract_features(dataset, "timm:any", tmp_path / "f", grid=1)


def test_bad_input_in_words(dataset, tmp_path):
    with pytest.raises(ValueError, match="has no pictures to extract features of"):
        extract_features(small_corpus(), "timm:any", tmp_path / "f")
    with pytest.raises(ValueError, match="batch 0, shard 512 and grid None have to be at least 1"):
        extract_features(dataset, "timm:any", tmp_path / "f", batch=0)
    Path(dataset.pictures.place(3)).write_bytes(b"")
    with pytest.raises(ValueError, match=r"3\.png cannot be read as a picture"):
        extract_features(dataset, "timm:any", tmp_path / "f", shard=2)
    write_picture(Path(dataset.pictures.place(3)), 3)
    extract_features(dataset, "timm:any", tmp_path / "f", shard=2)


@pytest.mark.skipif("COUNTERFOIL_DATA" not in os.environ, reason="COUNTERFOIL_DATA is not set")
def test_real_backbone_on_real_photos(tmp_path):
    transformers = pytest.importorskip("transformers")
    data = Path(os.environ["COUNTERFOIL_DATA"])
    dataset = load_dataset(data / "coco_mini").subset(torch.tensor([0, 5, 9]))
    model = data / "backbone_mobilenet_v2"
    table = extract_features(dataset, str(model), tmp_path / "f", kind="float32", batch=2)
    network = transformers.MobileNetV2Model.from_pretrained(model, dtype=torch.float32).eval()
    picture = dataset.pictures.open(1).resize((224, 224), 2)
    values = torch.from_numpy(np.asarray(picture).astype(np.float32)) / 127.5 - 1
    with torch.inference_mode():
        wanted = network(values.permute(2, 0, 1)[None]).last_hidden_state[0]
    results = table.features.take(torch.tensor([1])).values[0]
    torch.testing.assert_close(results, wanted.flatten(1).T, atol=1e-3, rtol=1e-3)
