import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import processes
from corpus_cases import small_corpus, write_picture, write_pictures
from corpus_timm import fake_timm
from counterfoil.data import extract
from counterfoil.data.extract import (
    extract_features,
    grid_boxes,
    grid_cells,
    open_backbone,
    pooled_features,
)
from counterfoil.data.features import features_of
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset


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


# Backbones.


def test_map_is_read_row_by_row():
    out = torch.arange(2 * 3 * 2 * 2.0).view(2, 3, 2, 2)
    grid = grid_cells(out)
    for item in range(2):
        for row in range(2):
            for column in range(2):
                assert torch.equal(grid[item, row * 2 + column], out[item, :, row, column])


def test_class_and_register_tokens_are_left_out():
    out = torch.randn(2, 5 + 16, 3)
    assert torch.equal(grid_cells(out), out[:, 5:])
    assert torch.equal(grid_cells(out, side=2), out[:, -4:])
    with pytest.raises(ValueError, match=r"the model gives \(2, 3\)"):
        grid_cells(torch.zeros(2, 3))


def test_pooled_is_the_mean_of_cells():
    grid = torch.randn(2, 16, 3, dtype=torch.float64)
    square = grid.view(2, 4, 4, 3)
    wanted = torch.stack(
        [square[:, a : a + 2, b : b + 2].mean((1, 2)) for a in (0, 2) for b in (0, 2)], dim=1
    )
    torch.testing.assert_close(pooled_features(grid, 2), wanted)
    torch.testing.assert_close(pooled_features(grid, 1)[:, 0], grid.mean(1))
    assert pooled_features(grid, None) is grid


@pytest.mark.parametrize("side", [0, 5])
def test_pooling_to_what_does_not_fit(side):
    with pytest.raises(ValueError, match="a grid of 16 cells cannot be averaged to"):
        pooled_features(torch.zeros(1, 16, 3), side)


TINY = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
}  # fmt: skip


def tiny_vit(folder):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**TINY, image_size=16, patch_size=4)
    model = transformers.ViTModel(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return model.eval()


def test_transformer_of_hugging_face(tmp_path, capfd):
    model = tiny_vit(tmp_path)
    capfd.readouterr()
    backbone = open_backbone(str(tmp_path))
    assert capfd.readouterr() == ("", "")  # no bars, no reports
    picture = Image.new("RGB", (30, 20), (255, 0, 128))
    values = backbone.prepare([picture, picture])
    with torch.inference_mode():
        grid = backbone.grid(values)
        wanted = model(pixel_values=values).last_hidden_state[:, 1:]
    assert grid.shape == (2, 16, 8)
    torch.testing.assert_close(grid, wanted)
    assert backbone.whole


def test_vision_half_of_clip(tmp_path):
    transformers = pytest.importorskip("transformers")
    vision = {**TINY, "image_size": 12, "patch_size": 4}
    config = transformers.CLIPConfig(vision_config=vision, text_config={**TINY, "vocab_size": 50})
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}
    )
    processor.save_pretrained(tmp_path)
    backbone = open_backbone(str(tmp_path))
    with torch.inference_mode():
        grid = backbone.grid(backbone.prepare([Image.new("RGB", (20, 30))]))
    assert grid.shape == (1, 9, 8)
    assert not backbone.whole  # the middle is cut out, so cells have no known boxes


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="is no vision model that can be read"):
        open_backbone(str(tmp_path))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r'needs transformers: pip install "counterfoil\[hf\]"'):
        open_backbone(str(tmp_path))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ValueError, match=r"'timm:resnet18' needs timm: pip install \"counterfoil\[v"
    ):
        open_backbone("timm:resnet18")


@pytest.mark.parametrize("kind", ["map", "last", "tokens"])
def test_timm(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "timm", fake_timm(kind))
    backbone = open_backbone("timm:any")
    values = backbone.prepare([Image.new("RGB", (8, 2), (255, 255, 255))])
    assert values[0, :, 0, 0].tolist() == [1.0, 0.75, 0.5]
    grid = backbone.grid(values)
    assert grid.shape == (1, 9, 6)
    torch.testing.assert_close(grid, torch.full((1, 9, 6), 0.75))


def test_timm_does_not_know_the_model(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    with pytest.raises(ValueError, match="timm cannot make 'none': Unknown model"):
        open_backbone("timm:none")
