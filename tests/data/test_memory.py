"""Data sets from memory: the same as from files, in every form that people have."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import counterfoil as cf
from counterfoil.data.images import PictureFiles

CAPTIONS = {"a.png": ["a dog", "a wet dog"], "b.png": ["a cat"], "c.png": ["the sea"]}
COLUMNS = {
    "file name": ["a.png", "b.png", "a.png", "c.png"],
    "title": ["a dog", "a cat", "a wet dog", "the sea"],
    "set": ["train", "train", "train", "val"],
    "year": [2020, 2021, 2020, None],
}
ROWS = [dict(zip(COLUMNS, row)) for row in zip(*COLUMNS.values())]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    for shade, name in enumerate(CAPTIONS):
        Image.new("RGB", (4, 3), (shade * 50, 0, 0)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def captions(data) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in data.image_ids}
    for text, image in zip(data.texts, data.text_to_image.tolist()):
        found[data.image_ids[image]].append(text)
    return found


def pixels(data) -> list[tuple[int, ...]]:
    return [data.pictures.open(row).getpixel((0, 0)) for row in range(len(data))]


def tables():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    yield pandas.DataFrame(COLUMNS)
    yield pandas.DataFrame(COLUMNS).convert_dtypes()  # with pandas' own null
    yield pyarrow.table(COLUMNS)
    yield datasets.Dataset.from_dict(COLUMNS)
    yield COLUMNS
    yield ROWS
    yield iter(ROWS)


@pytest.mark.usefixtures("photos")
def test_every_table_is_the_same_data_set():
    found = [cf.load_dataset(table, split_column="set", name="mine") for table in tables()]
    assert len(found) == 7
    for data in found:
        assert captions(data) == CAPTIONS
        assert data.splits == ["train", "train", "dev"]
        assert list(data.columns["year"]) == [2020, 2021, None]
        assert isinstance(data.pictures, PictureFiles)
        assert pixels(data) == [(0, 0, 0), (50, 0, 0), (100, 0, 0)]
        assert data.fingerprint == found[0].fingerprint
        assert data["val"].texts == ["the sea"]


def test_polars(photos):
    polars = pytest.importorskip("polars")
    for table in (polars.DataFrame(COLUMNS), polars.DataFrame(COLUMNS).lazy()):
        data = cf.load_dataset(table, split_column="set")
        assert captions(data) == CAPTIONS
        assert list(data.columns["year"]) == [2020, 2021, None]


@pytest.mark.usefixtures("photos")
def test_a_table_with_the_methods_of_polars():
    """Polars is not installed everywhere; these are the methods that are called."""
    frame = type("DataFrame", (), {"to_dicts": lambda self: [dict(row) for row in ROWS]})
    lazy = type("LazyFrame", (), {"collect": lambda self: frame()})
    for kind in (frame, lazy):
        kind.__module__ = "polars.some.frame"
        assert captions(cf.load_dataset(kind(), split_column="set")) == CAPTIONS


def test_pairs_of_paths(photos, tmp_path_factory, monkeypatch):
    pairs = [(name, text) for name, own in CAPTIONS.items() for text in own]
    data = cf.load_dataset(pairs)
    assert captions(data) == CAPTIONS
    assert set(data.splits) == {"train", "dev", "test"}
    whole = cf.load_dataset([(photos / name, own) for name, own in CAPTIONS.items()])
    assert list(captions(whole).values()) == list(CAPTIONS.values())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert pixels(data) == pixels(whole)  # relative paths were of the folder at that time
    assert captions(cf.load_dataset(zip(*zip(*pairs)), images=photos)) == CAPTIONS


def shots(folder) -> list[Image.Image]:
    found = []
    for name in CAPTIONS:
        with Image.open(folder / name) as picture:
            found.append(picture.copy())
    return found


def forms_of_pictures(folder) -> list[list[object]]:
    opened = shots(folder)
    return [
        opened,
        [np.asarray(picture) for picture in opened],
        [(folder / name).read_bytes() for name in CAPTIONS],
        [opened[0], "b.png", (folder / "c.png").read_bytes()],
    ]


def test_pictures_in_memory(photos):
    for forms in forms_of_pictures(photos):
        pairs = [(picture, own) for picture, own in zip(forms, CAPTIONS.values())]
        # equal pictures in memory are one image, as the same file is
        data = cf.load_dataset([*pairs, (forms[0], "once more")])
        assert list(captions(data).values()) == [
            ["a dog", "a wet dog", "once more"],
            ["a cat"],
            ["the sea"],
        ]
        assert pixels(data) == [(0, 0, 0), (50, 0, 0), (100, 0, 0)]
        again = cf.load_dataset(pairs)
        prints = [data.pictures.fingerprint(row) for row in range(3)]
        assert len(set(prints)) == 3
        assert prints == [again.pictures.fingerprint(row) for row in range(3)]
        part = data.subset(torch.tensor([2, 0]))
        assert pixels(part) == [(100, 0, 0), (0, 0, 0)]


def test_transparency_and_16_bits_are_read_as_from_files():
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    deep = np.full((2, 2), 40_000, np.uint16)
    data = cf.load_dataset([(clear, "nothing"), (deep, "grey")])
    assert pixels(data) == [(255, 255, 255), (156, 156, 156)]


def test_data_sets_of_hugging_face(photos):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"image": shots(photos), "caption": list(CAPTIONS.values()), "id": [10, 11, 12]},
        features=datasets.Features(
            image=datasets.Image(),
            caption=datasets.List(datasets.Value("string")),
            id=datasets.Value("int64"),
        ),
    )
    data = cf.load_dataset(table)
    assert captions(data) == dict(zip(["10", "11", "12"], CAPTIONS.values()))
    assert pixels(data) == [(0, 0, 0), (50, 0, 0), (100, 0, 0)]
    # a choice of rows, in another order, and a format
    chosen = cf.load_dataset(table.select([2, 0]).with_format("torch"))
    assert list(captions(chosen)) == ["12", "10"]
    assert pixels(chosen) == [(100, 0, 0), (0, 0, 0)]
    assert [chosen.pictures.byte_count(row) for row in range(2)] == [
        data.pictures.byte_count(row) for row in (2, 0)
    ]
    parts = datasets.DatasetDict(train=table.select([0, 1]), validation=table.select([2]))
    assert cf.load_dataset(parts).splits == ["train", "train", "dev"]
    named = table.remove_columns("image").add_column("image_path", list(CAPTIONS))
    both = datasets.DatasetDict(train=named.select([0, 1]), test=named.select([2]))
    found = cf.load_dataset(both)
    assert isinstance(found.pictures, PictureFiles)
    assert found.splits == ["train", "train", "test"]


def test_rows_with_one_picture_are_one_image(photos, capsys):
    datasets = pytest.importorskip("datasets")
    names = ["a.png", "b.png", "a.png", "c.png", "a.png"]
    texts = ["a dog", "a cat", "a wet dog", "the sea", "a dog again"]
    expected = {"row/0": ["a dog", "a wet dog", "a dog again"], "row/1": ["a cat"]}
    opened = [Image.open(photos / name).copy() for name in names]
    for pictures in ([str(photos / name) for name in names], opened):
        table = datasets.Dataset.from_dict({"image": pictures, "caption": texts})
        table = table.cast_column("image", datasets.Image())
        data = cf.load_dataset(table)
        assert captions(data) == {**expected, "row/3": ["the sea"]}
        assert pixels(data) == [(0, 0, 0), (50, 0, 0), (100, 0, 0)]
        chosen = cf.load_dataset(table.select([4, 3, 2]))
        assert captions(chosen) == {"row/0": ["a dog again", "a wet dog"], "row/1": ["the sea"]}
        assert pixels(chosen) == [(0, 0, 0), (100, 0, 0)]
        # ids that are given count, as elsewhere
        assert len(cf.load_dataset(table.add_column("id", list("abcde")))) == 5
        assert "several splits" not in capsys.readouterr().err
        parts = datasets.DatasetDict(train=table.select([0, 1, 2]), test=table.select([3, 4]))
        assert captions(cf.load_dataset(parts)) == {
            "train/0": ["a dog", "a wet dog"],
            "train/1": ["a cat"],
            "test/0": ["the sea"],
            "test/1": ["a dog again"],
        }
        assert (
            "the DatasetDict: 1 picture is in several splits, such as train/0 in train and test/1 "
            "in test; "
        ) in " ".join(capsys.readouterr().err.split())


def test_equal_ends_are_not_equal_pictures():
    datasets = pytest.importorskip("datasets")
    images = [np.zeros((64, 64, 3), np.uint8) for _ in range(3)]
    images[1][0, 0] = 200
    contents = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "BMP")  # pixels as they are, the first line last
        contents.append({"bytes": stream.getvalue()[:54] + image.tobytes(), "path": None})
    table = datasets.Dataset.from_dict({"image": contents, "caption": list("abc")})
    assert captions(cf.load_dataset(table)) == {"row/0": ["a", "c"], "row/1": ["b"]}


VECTORS = np.random.default_rng(0).normal(size=(3, 4))


def test_arrays():
    texts = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    asked = {"images": VECTORS, "texts": torch.from_numpy(texts), "owner": [0, 0, 2, 1]}
    data = cf.load_dataset(asked)
    assert data.splits == ["test"] * 3
    result = cf.evaluate(cf.load_model("vectors"), data["test"])
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (VECTORS, texts)]
    best = (unit[0] @ unit[1].T).argmax(0)
    assert result.metrics["t2i R@1"] == 100 * (best == [0, 0, 2, 1]).mean()
    words = {
        "images": torch.randn(3, 5, 8, dtype=torch.bfloat16),
        "captions": ["a", "b", "c"],
        "owner": np.array([2, 0, 1]),
        "image_ids": ["x", "y", "z"],
        "splits": ("train", "train", "val"),
    }
    data = cf.load_dataset(words)
    assert captions(data) == {"x": ["b"], "y": ["c"], "z": ["a"]}
    assert data.splits == ["train", "train", "dev"]
    assert data.features.regions == 5
    assert data.text_features is None
    assert set(cf.load_dataset({**words, "splits": None}).splits) == {"train", "dev", "test"}


def test_fractions_are_exact_and_of_the_seed(photos):
    names = [f"{row}.png" for row in range(40)]
    for name in names:
        Image.new("RGB", (2, 2)).save(photos / name)
    pairs = [(name, "a picture") for name in names]
    shares = {"train": 0.7, "val": 0.1, "test": 0.2}
    data = cf.load_dataset(pairs, fractions=shares, seed=3)
    assert {name: data.splits.count(name) for name in data.split_names} == {
        "train": 28,
        "dev": 4,
        "test": 8,
    }
    shuffled = cf.load_dataset(pairs[::-1], fractions=shares, seed=3)
    assert dict(zip(data.image_ids, data.splits)) == dict(zip(shuffled.image_ids, shuffled.splits))
    assert cf.load_dataset(pairs, fractions=shares, seed=4).splits != data.splits
    # files too, in place of the splits that they name
    (photos / "captions.csv").write_text("image,caption,split\na.png,x,test\nb.png,y,test\n")
    both = cf.load_dataset(photos / "captions.csv", fractions={"train": 0.5, "test": 0.5})
    assert sorted(both.splits) == ["test", "train"]
    assert "split" not in both.columns


def test_a_split_column_of_a_file(photos):
    (photos / "x.csv").write_text("image,caption,fold\na.png,x,val\nb.png,y,test\n")
    assert cf.load_dataset("x.csv", split_column="fold").splits == ["dev", "test"]
    with pytest.raises(ValueError, match="'fald' is not a column; did you mean 'fold'"):
        cf.load_dataset("x.csv", split_column="fald")


PAIR = [("a.png", "a dog")]


@pytest.mark.parametrize(
    "given, options, message",
    [
        (None, {}, "NoneType is no data set; give a path, or a list of .* pairs, a table"),
        (3, {}, "int is no data set"),
        ([], {}, "the list is empty; at least one picture with a caption"),
        (["a.png", "b.png"], {}, "item 0 of the list is 'a.png'; a pair is needed"),
        ((["a.png"], ["one", "two"]), {}, r"two lists become pairs by list\(zip\(paths, capt"),
        ([*PAIR, ("b.png",)], {}, r"item 1 of the list is \('b.png',\)"),
        ([("a dog", "a.png")], {}, "captions first; write the picture first, as"),
        ([*PAIR, ("gone.png", "x")], {}, r"1 of 2 pictures are not there, .*gone\.png; images="),
        ([*PAIR, ("b.png", 3)], {}, "the list, row 1: the caption is 3; text or a list"),
        ([(3, "a dog")], {}, "row 0: the image is int; a path, a PIL image"),
        ([(None, "a dog")], {}, "row 0: the image is None; the name of a file"),
        ([(np.zeros((3, 4, 4)), "a")], {}, r"an array of shape \(3, 4, 4\) of float64"),
        ([("https://x.org/a.png", "a")], {}, "pictures are not fetched"),
        (PAIR, {"image_column": "x"}, "a list of pairs has no columns; leave out image_column='x'"),
        (PAIR, {"images": "nowhere"}, "nowhere"),
        (PAIR, {"fractions": {"train": 0.5}}, "numbers above 0 are needed, whose sum is 1"),
        (PAIR, {"fractions": {"train": 0.5, "test": 0.5}}, "of 1 images leave none for"),
        ({"picture": ["a.png"]}, {}, "there is no 'caption' among the columns"),
        ({"image": ["a.png"], "caption": ["x", "y"]}, {}, "lists of one length, not {'image': 1"),
        ({"image": "a.png", "caption": "x"}, {}, "lists of one length, not {'image': str"),
        ([{"foto": "a.png", "text": "x"}], {}, "image_column in Python"),
        (VECTORS, {}, r"an array of shape \(3, 4\) has no captions; give a dict of images, texts"),
        ({"images": VECTORS}, {}, "neither texts .* nor captions"),
        ({"images": VECTORS, "captions": ["a"] * 4}, {}, "4 texts for 3 images do not divide"),
        ({"images": VECTORS, "captions": ["a"], "owner": [3]}, {}, "owner of .* names images 3"),
        ({"images": VECTORS, "captions": ["a"], "owners": [0]}, {}, "'owners' is not a part"),
        ({"texts": VECTORS, "owner": [0, 1, 2]}, {}, "the dict has no images"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("photos")
def test_what_does_not_fit(given, options, message):
    with pytest.raises(ValueError, match=message):
        cf.load_dataset(given, **options)


def test_streams_are_refused():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict(
        {"image": ["a.png"], "caption": ["x"]}
    ).to_iterable_dataset()
    with pytest.raises(
        ValueError, match=r"IterableDataset is read from a stream.*take what you need"
    ):
        cf.load_dataset(stream)


def test_null_captions_are_left_out_with_a_warning(photos, capsys):
    data = cf.load_dataset(
        [{"image": "a.png", "caption": None}, {"image": "b.png", "caption": "x"}]
    )
    assert captions(data) == {"a.png": [], "b.png": ["x"]}
    assert "1 left out, rows without a caption" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_picture_in_memory_says_which(photos):
    content = (photos / "a.png").read_bytes()[:40]
    data = cf.load_dataset([(content, "a dog")])
    with pytest.raises(ValueError, match="picture/000000 cannot be read as a picture"):
        data.pictures.open(0)


def test_pairs_need_no_library_of_tables(photos):
    """Reading pairs imports neither pandas nor datasets."""
    code = (
        "import sys, counterfoil as cf; cf.load_dataset([('a.png', 'a dog')]); "
        "assert not {'pandas', 'polars', 'datasets', 'pyarrow'} & {*sys.modules}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=photos, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
