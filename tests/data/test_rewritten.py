"""Pictures that are written again under their names give new vectors; the third round, 1."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

import recipes_cases
from corpus_cases import write_shard
from counterfoil.data import images
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.processor import PixelProcessor
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import open_index

COUNT = 3
_ENCODE = """
import json, sys
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
dataset = load_dataset(sys.argv[2])
print(json.dumps(load_model(sys.argv[1]).embed(dataset).images.tokens.flatten(1).tolist()))
"""


def bmp(seed: int) -> bytes:
    """A picture of noise; all have one size in bytes."""
    torch.manual_seed(seed)
    out = io.BytesIO()
    Image.fromarray(torch.randint(0, 256, (16, 16, 3)).byte().numpy()).save(out, "bmp")
    return out.getvalue()


def shard(folder, seed):
    members = {}
    for row in range(COUNT):
        members |= {f"{row}.bmp": bmp(seed + row), f"{row}.txt": f"picture {row}"}
    return write_shard(folder / "x.tar", members)


def files(folder, seed):
    for row in range(COUNT):
        (folder / "photos").mkdir(exist_ok=True)
        (folder / "photos" / f"{row}.bmp").write_bytes(bmp(seed + row))
        (folder / "photos" / f"{row}.txt").write_text(f"picture {row}")
    return folder / "photos"


def table(folder, seed):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {
        "image": [{"bytes": bmp(seed + row), "path": None} for row in range(COUNT)],
        "caption": [f"picture {row}" for row in range(COUNT)],
    }
    features = datasets.Features(image=datasets.Image(), caption=datasets.Value("string"))
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


def paths(folder, seed):
    """A table whose pictures are files beside it, and which stays as it is."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    places = [str(files(folder, seed) / f"{row}.bmp") for row in range(COUNT)]
    if seed == 0:
        rows = {"image": places, "caption": ["a", "b", "c"]}
        datasets.Dataset.from_dict(rows).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


KINDS = [shard, files, table, paths]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    return load_model(recipes_cases.pixel_model(tmp_path / "model"))


def vectors(model, dataset):
    return model.embed(dataset).images.tokens[:, 0]


def wanted(model, seed):
    return model.encode([Image.open(io.BytesIO(bmp(seed + row))) for row in range(COUNT)]).tokens[
        :, 0
    ]


@pytest.mark.parametrize("write", KINDS)
def test_new_pictures_give_new_vectors(write, model, tmp_path):
    for seed in (0, 50, 100):
        dataset = load_dataset(write(tmp_path, seed))
        torch.testing.assert_close(vectors(model, dataset), wanted(model, seed))
        torch.testing.assert_close(vectors(model, dataset), wanted(model, seed))


@pytest.mark.slow
def test_in_a_new_process(model, tmp_path):
    vectors(model, load_dataset(shard(tmp_path, 0)))
    words = [sys.executable, "-c", _ENCODE, str(tmp_path / "model"), str(shard(tmp_path, 50))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), wanted(model, 50))


@pytest.mark.parametrize("write", [files, paths])
def test_behind_a_data_set_that_is_open(write, model, tmp_path):
    dataset = load_dataset(write(tmp_path, 0))
    assert not torch.allclose(vectors(model, dataset), wanted(model, 50))
    write(tmp_path, 50)
    torch.testing.assert_close(vectors(model, dataset), wanted(model, 50))


def test_a_shard_behind_a_data_set_that_is_open(model, tmp_path):
    """Its members stand elsewhere now, and its captions may be others."""
    dataset = load_dataset(shard(tmp_path, 0))
    vectors(model, dataset)
    shard(tmp_path, 50)
    with pytest.raises(ValueError, match=r"x\.tar was written again.*load the data set again"):
        vectors(model, dataset)
    (tmp_path / "x.tar").unlink()
    with pytest.raises(ValueError, match=r"x\.tar was written again, or removed"):
        dataset.pictures.open(0)


@pytest.mark.parametrize("write", KINDS)
def test_states_of_a_frozen_tower_are_made_again(write, model, tmp_path):
    pixels = PixelProcessor(16)

    def states(batch):
        return batch.values.flatten(2).float()

    frozen, every = CachedFeatureProcessor(pixels, states, "key"), torch.arange(COUNT)
    for seed in (0, 50):
        dataset = load_dataset(write(tmp_path, seed))
        images._packed.cache_clear()
        right = states(pixels.from_dataset(dataset, every))
        found = frozen.from_dataset(dataset, every).values
        torch.testing.assert_close(found, right, rtol=0, atol=1e-3)


@pytest.mark.parametrize("write", KINDS)
def test_an_index_exchanges_them(write, model, tmp_path, capsys):
    source, index = write(tmp_path, 0), tmp_path / "index"
    made = ("index", tmp_path / "model", source, "--output", index)
    assert recipes_cases.run(*made) == 0
    write(tmp_path, 50)
    assert recipes_cases.run(*made, "--add", "--exchange") == 0
    assert "3 exchanged" in " ".join(capsys.readouterr().out.split())
    with open_index(index) as opened:
        rows = torch.arange(COUNT)
        found = opened.vectors.images.vectors(opened.vectors.images.live_rows[rows])
        right = torch.nn.functional.normalize(wanted(model, 50), dim=1)
        found = torch.nn.functional.normalize(found.float(), dim=1)
        assert (found @ right.T).max(0).values.min() > 0.999
