from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from corpus_cases import write_picture
from counterfoil.corpus import seen
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import PixelEye
from counterfoil.corpus.pictures import PictureFiles
from counterfoil.corpus.reading import open_corpus
from counterfoil.corpus.seen import SeenEye
from counterfoil.records import Items

PIXELS = PixelEye(8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "states"


class Model:
    """Means of eight patches of each channel; fails when it is to look at more than `most`."""

    def __init__(self) -> None:
        self.count, self.most = 0, 1000

    def __call__(self, images: Items) -> Tensor:
        if self.count + len(images) > self.most:
            raise KeyboardInterrupt
        self.count += len(images)
        return patches(images)

    def of(self, corpus: Corpus, rows: Sequence[int], key: str = "key") -> Tensor:
        """What a lens that is new sees."""
        return SeenEye(PIXELS, self, key).look(corpus, torch.tensor(rows)).values


def patches(images: Items) -> Tensor:
    return images.values.flatten(2).unflatten(2, (8, 8)).mean(3).transpose(1, 2)


def wanted(corpus: Corpus, rows: Sequence[int]) -> Tensor:
    return patches(PIXELS.look(corpus, torch.tensor(rows))).half().float()


def test_numbers_too_large_for_half_precision_are_kept_as_they_are():
    corpus = scenes()

    def large(images: Items) -> Tensor:
        found = patches(images)
        return torch.where((images.values.amax((1, 2, 3)) > 0)[:, None, None], found * 1e6, found)

    def of() -> Tensor:
        return SeenEye(PIXELS, large, "large").look(corpus, torch.tensor([5, 1])).values

    found = of()
    torch.testing.assert_close(found, large(PIXELS.look(corpus, torch.tensor([5, 1]))))
    assert found.abs().max() > 65504
    assert torch.equal(of(), found)


def photos(paths: Sequence[Path]) -> Corpus:
    names, none = [path.name for path in paths], torch.empty(0, dtype=torch.long)
    return Corpus("photos", names, [], [], none, ["all"] * len(names), pictures=PictureFiles(paths))


def scenes(count: int = 40) -> Corpus:
    return open_corpus(f"scenes:images={count}")


def test_rows_are_those_of_the_model_in_any_order():
    corpus, model, rows = scenes(), Model(), [7, 2, 39, 7]
    eye = SeenEye(PIXELS, model, "key")
    found = eye.look(corpus, torch.tensor(rows))
    assert torch.equal(found.values, wanted(corpus, rows))
    assert found.values.std() > 0.1
    assert found.mask.shape == (4, 8)
    assert found.mask.all()
    eye.look(corpus, torch.tensor([3]))
    assert model.count == 40


def test_data_sets_share_the_pictures_that_they_have_in_common(cache):
    model, corpus, more = Model(), scenes(), scenes(60)
    model.of(corpus.subset(torch.tensor([9, 30, 2])), [0])
    assert model.count == 3
    assert torch.equal(model.of(corpus, range(40)), wanted(corpus, range(40)))
    assert model.count == 40
    assert torch.equal(model.of(more, range(60)), wanted(more, range(60)))
    assert model.count == 60
    assert len(list(cache.iterdir())) == 1


def test_models_share_nothing(cache):
    model = Model()
    for key in ("one", "other"):
        model.of(scenes(), [0], key)
    assert model.count == 80
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("most", [0, 14, 16, 32, 50])
def test_after_a_kill_it_goes_on(monkeypatch, most):
    monkeypatch.setattr(seen, "BATCH", 4)
    monkeypatch.setattr(seen, "LEAST", 16)
    corpus, model = scenes(60), Model()
    model.most = most
    with pytest.raises(KeyboardInterrupt):
        model.of(corpus, [0])
    lost, model.most = model.count % 16, 1000
    assert torch.equal(model.of(corpus, range(60)), wanted(corpus, range(60)))
    assert model.count == 60 + lost


def test_a_part_that_was_not_finished_does_not_count(monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    model = Model()
    with monkeypatch.context() as patch:
        patch.setattr(seen, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            model.of(scenes(), [0])
    assert torch.equal(model.of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert model.count == 80


def test_a_large_data_set_makes_few_parts(cache, monkeypatch):
    monkeypatch.setattr(seen, "LEAST", 2)
    monkeypatch.setattr(seen, "PARTS", 5)
    assert torch.equal(Model().of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert len(list(cache.glob("*/*.npy"))) == 5


@pytest.mark.parametrize("name", ["*.npy", "*.json"])
def test_what_is_damaged_is_looked_at_again(cache, name):
    model = Model()
    model.of(scenes(), [0])
    (path,) = cache.glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(model.of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert model.count == 80


def test_a_file_that_has_changed_is_looked_at_again(tmp_path):
    paths, model = [tmp_path / f"{n}.png" for n in range(3)], Model()
    for n, path in enumerate(paths):
        write_picture(path, n)
    model.of(photos(paths), [0])
    write_picture(paths[1], 7, size=(20, 20))
    corpus = photos(paths)
    assert torch.equal(model.of(corpus, range(3)), wanted(corpus, range(3)))
    assert model.count == 4
