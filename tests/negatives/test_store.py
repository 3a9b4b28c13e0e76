from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from artifact_cases import resealed
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.embedding_store import ModelSource
from negatives_cases import ragged, random_lists

CORPUS = "0123456789abcdef"
RELATION = ragged(7, 1)


def made(*, scored: bool = True, dataset: str = CORPUS) -> NegativeStore:
    lists = random_lists(RELATION, 5, 3)
    if scored:
        rng = torch.Generator().manual_seed(0)
        scores = [
            torch.rand(rows.shape, generator=rng).half().sort(descending=True).values
            for rows in (lists.texts, lists.images)
        ]
        true = torch.rand(len(lists.images), generator=rng).half()
        lists = HardNegativeLists(lists.texts, lists.images, *scores, true)
    source = ModelSource(matcher="VSE(width=8)", spec="aa", checkpoint="bb")
    return NegativeStore.of(
        lists, dataset=dataset, split="train", sources=(source,), seed=3, filters=("duplicates",)
    )


@pytest.mark.parametrize("scored", [True, False])
def test_a_store_comes_back_as_it_was(tmp_path: Path, scored: bool) -> None:
    store = made(scored=scored)
    store.save(tmp_path / "lists")
    again = NegativeStore.open(tmp_path / "lists", fingerprint=CORPUS)
    assert again.manifest == store.manifest
    assert again.manifest.images_per_text == 3
    for name in ("texts", "images", "text_scores", "image_scores", "true_scores"):
        ours, theirs = getattr(store.lists, name), getattr(again.lists, name)
        assert (ours is None) == (theirs is None) == (name.endswith("scores") and not scored)
        assert ours is None or (torch.equal(ours, theirs) and ours.dtype == theirs.dtype)
    files = {path.name for path in (tmp_path / "lists").iterdir()}
    scores = {f"{n}_scores.npy" for n in ("text", "image", "true")} if scored else set()
    assert files == {"manifest.json", "texts.npy", "images.npy"} | scores


def change(**values: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return apply


def drop(key: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        kept = {k: v for k, v in json.loads(path.read_text()).items() if k != key}
        path.write_text(json.dumps(kept))

    return apply


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def truncate(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-8])

    return apply


def edit(name: str, how: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, how(np.load(folder / name)))


def put(place: tuple[int, int], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def apply(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return apply


def pickled(folder: Path) -> None:
    np.save(folder / "texts.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "manifest cut short": (
        write("manifest.json", '{"format": 1'),
        "cannot be read as the manifest",
    ),
    "key missing": (drop("corpus"), "is damaged: corpus: field required"),
    "format 0": (change(format=0), "is damaged: format"),
    "another corpus": (
        change(corpus="beef"),
        "was mined from corpus beef .split 'train'., but .* with the same corrections",
    ),
    "no array": (write("images.npy", "hello"), "images.npy cannot be read as a list"),
    "pickle": (pickled, "texts.npy cannot be read as a list"),
    "rows lost": (edit("texts.npy", lambda a: a[:-1]), r"int32 of shape \(6, 5\), but .*\(7, 5\)"),
    "columns lost": (edit("images.npy", lambda a: a[:, 1:]), r"shape \(\d+, 2\), but"),
    "flat": (edit("texts.npy", lambda a: a.ravel()), r"int32 of shape \(35,\), but"),
    "long rows": (edit("texts.npy", lambda a: a.astype(np.int64)), "holds int64 of shape"),
    "row too large": (edit("texts.npy", put((0, 0), 999)), "to 999, but rows go from 0 to"),
    "row too small": (edit("images.npy", put((0, 0), -2)), "holds rows -2 to"),
    "hole": (edit("texts.npy", put((1, 2), -1)), "lists with a hole"),
    "scores in float32": (edit("text_scores.npy", lambda a: a.astype(np.float32)), "float32 of"),
    "score not a number": (edit("text_scores.npy", put((0, 0), np.nan)), "are no numbers"),
    "infinite score": (
        edit("text_scores.npy", put((3, 0), np.inf)),
        "1 lists hold scores that are",
    ),
    "listed at -inf": (edit("image_scores.npy", put((2, 2), -np.inf)), "1 lists hold scores"),
    "ascending": (edit("text_scores.npy", lambda a: a[:, ::-1].copy()), "scores of 7 lists ascend"),
    "one ascends": (edit("image_scores.npy", put((2, 2), 2.0)), "scores of 1 lists ascend"),
    "true scores lost": (
        edit("true_scores.npy", lambda a: a[1:]),
        r"float16 of shape \(\d+,\), but",
    ),
    "true score not a number": (edit("true_scores.npy", put((0,), np.nan)), "are no numbers"),
    "one row again": (
        edit("texts.npy", lambda a: np.repeat(a[:, :1], a.shape[1], 1)),
        "7 lists hold an item twice",
    ),
    "a row twice": (
        edit("images.npy", lambda a: np.concatenate([a[:, :2], a[:, :1]], 1)),
        "lists hold an item twice",
    ),
}


def damage_of_manifest(kind: str) -> bool:
    return kind in ("manifest cut short", "key missing", "format 0", "another corpus")


def test_neighbours_may_be_exchanged_by_a_rounding(tmp_path: Path) -> None:
    store = made()
    store.lists.text_scores[:, 1] = torch.nextafter(
        store.lists.text_scores[:, 0], torch.tensor(2.0).half()
    )
    store.save(tmp_path / "lists")
    NegativeStore.open(tmp_path / "lists", fingerprint=CORPUS)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_store_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "lists"
    made().save(folder)
    damage, words = BAD[kind]
    damage(folder)
    if not damage_of_manifest(kind):
        resealed(folder)
    with pytest.raises(ValueError, match=words) as caught:
        NegativeStore.open(folder, fingerprint=CORPUS)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
