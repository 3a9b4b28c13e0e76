import sys

import pytest
import torch
from PIL import Image

from corpus_timm import fake_timm
from counterfoil.data.extract import grid_cells, open_backbone, pooled_features

transformers = pytest.importorskip("transformers")


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


def tiny_vit(folder):
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=4,
    )
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
    vision = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "image_size": 12,
        "patch_size": 4,
    }
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        vision_config=vision, text_config={**text, "intermediate_size": 8, "vocab_size": 50}
    )
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
