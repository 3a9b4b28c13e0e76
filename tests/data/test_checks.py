import io
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from corpus_cases import random_array, small_corpus, write_picture, write_pictures
from counterfoil.data.checks import SplitCounts, check_dataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import DrawnPictures, PictureFiles
from counterfoil.data.readers import load_dataset

SPLITS = ["train", "train", "dev", "test"]


def healthy():
    dataset = small_corpus((2, 2, 2, 2), SPLITS)
    train = [f"caption number {n}" for n in range(4)]
    others = [f"number {n} caption" for n in range(4)]  # of the same words
    return replace(dataset, texts=[*train, *others])


def pictured(tmp_path, seeds=(0, 1, 2, 3)):
    paths = write_pictures(tmp_path, seeds)
    return replace(healthy(), pictures=PictureFiles(paths), features=None)


def text_of(findings):
    out = io.StringIO()
    Console(file=out, width=300).print(findings)
    return out.getvalue()


SMALL = (
    "dev has 1 image and test has 1 image: with fewer than 100, differences between models are "
    "mostly chance"
)


def test_healthy_data_can_be_trained_on(tmp_path):
    for dataset in (healthy(), pictured(tmp_path)):
        for quick in (True, False):
            report = check_dataset(dataset, quick=quick)
            assert report.errors == ()
            assert report.warnings == (SMALL,)
            assert report.splits == (
                SplitCounts("train", 2, 4, 0),
                SplitCounts("dev", 1, 2, 0),
                SplitCounts("test", 1, 2, 0),
            )
            assert report.captions_per_image == ((2, 4),)
            assert report.words == (3, 3, 3)
            assert "This data set can be trained on." in text_of(report)


def test_histogram_and_images_without_caption():
    report = check_dataset(small_corpus((2, 0, 1, 1), SPLITS))
    assert report.captions_per_image == ((0, 1), (1, 2), (2, 1))
    assert report.splits[0] == SplitCounts("train", 2, 2, 1)
    assert any("1 image without a caption" in warning for warning in report.warnings)


def test_missing_and_unreadable_pictures(tmp_path):
    dataset = pictured(tmp_path)
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").write_bytes((tmp_path / "3.png").read_bytes()[:100])
    report = check_dataset(dataset)
    assert len(report.unreadable) == 2
    assert "1.png does not exist" in report.unreadable[0]
    assert "2.png cannot be read as a picture" in report.unreadable[1]
    assert report.errors[0].startswith("2 pictures cannot be read, such as: ")
    assert len(check_dataset(dataset, quick=True).unreadable) == 1
    beside = check_dataset(replace(dataset, features=FeatureArray.of(random_array(4, 2, 3))))
    assert beside.errors == ()
    assert any("2 pictures cannot be read" in warning for warning in beside.warnings)


def test_same_picture_across_and_within_splits(tmp_path):
    report = check_dataset(pictured(tmp_path, seeds=(0, 0, 5, 5)))
    assert [(twins.names, twins.across) for twins in report.same_images] == [
        (("a0", "a1"), False),
        (("a2", "a3"), True),
    ]
    assert report.warnings == (
        "1 image in more than one split, such as a2 (dev) and a3 (test)",
        "1 image more than once in a split, such as a0 (train) and a1 (train)",
        SMALL,
    )


def test_same_picture_in_another_file_format_is_the_same(tmp_path):
    dataset = pictured(tmp_path)
    write_picture(tmp_path / "x.bmp", 0)
    dataset.pictures.paths[3] = tmp_path / "x.bmp"
    assert [twins.names for twins in check_dataset(dataset).same_images] == [("a0", "a3")]


def test_same_features_where_there_are_no_pictures():
    values = random_array(4, 2, 3)
    values[3] = values[0]
    report = check_dataset(replace(healthy(), features=FeatureArray.of(values)))
    assert [twins.names for twins in report.same_images] == [("a0", "a3")]


def test_same_caption_across_splits_only():
    texts = ["A dog.", "a dog", "b", "c", "A  Dog .", "e", "f", "g"]
    report = check_dataset(replace(healthy(), texts=texts))
    assert [twins.names for twins in report.same_texts] == [("'A dog.'", "'a dog'", "'A  Dog .'")]
    across = "1 caption in more than one split, such as 'A dog.' (train) and 'A  Dog .' (dev)"
    assert report.warnings[0] == across, "one of each split"
    within = check_dataset(replace(healthy(), texts=["x", "X", *"bcdefg"]))
    assert within.same_texts == ()


def test_captions_repeated_within_an_image():
    texts = ["x", "X", "c", "d", "e", "E.", "x", "h"]
    report = check_dataset(replace(healthy(), texts=texts))
    (said,) = [line for line in report.warnings if "within an image" in line]
    assert said == (
        "2 captions repeated within an image, such as 'X' (a0); `counterfoil audit` lists them"
    )
    assert not any("within an image" in line for line in check_dataset(healthy()).warnings)


def test_not_finite_features_are_found_in_every_block():
    counts = [1] * 200
    dataset = small_corpus(counts, ["train"] * 190 + ["dev"] * 5 + ["test"] * 5)
    values = random_array(200, 2, 3)
    values[[3, 150], 0, 0] = np.nan, -np.inf
    report = check_dataset(replace(dataset, features=FeatureArray.of(values)))
    assert report.not_finite == ("a3", "a150")
    assert "2 images with NaN or infinite features, such as 'a3'" in report.errors[0]


@pytest.mark.parametrize(
    "dataset, words",
    [
        (small_corpus((1, 1), ["test", "dev"]), "there is no train split .*: test, dev"),
        (small_corpus((0, 1), ["train", "test"]), "no image of the train split has a caption"),
        (small_corpus((1, 1, 0), ["train", "train", "dev"]), "no image of the dev split has a"),
        (replace(healthy(), features=None), "neither pictures nor features"),
    ],
)
def test_what_cannot_be_trained_on(dataset, words):
    report = check_dataset(dataset)
    with pytest.raises(ValueError, match=words):
        raise ValueError(" ".join(report.errors))
    assert "error: " in text_of(report)
    assert "can be trained on" not in text_of(report)


def test_warnings_about_captions():
    texts = ["b'a man in red'", " ", "w " * 61, *"defgh"]
    dataset = replace(healthy(), texts=texts, text_to_image=torch.tensor([0, 0, 1, 1, 2, 2, 3, -1]))
    report = check_dataset(dataset)
    assert report.orphans == 1
    assert report.warnings == (
        "1 caption describing no image",
        "1 caption without a word",
        "1 caption like \"b'a man in red'\", which are printed bytes: write them again as text",
        "1 caption of more than 60 words, cut there by default",
        "100.0 % of the words of dev and 100.0 % of the words of test are in no caption of train, "
        "so a model that learns its vocabulary there (SCAN, VSE++, …) reads them all as one word; "
        "a pretrained CLIP reads pieces of words",
        SMALL,
    )


def test_missing_splits_are_a_warning():
    report = check_dataset(small_corpus((1, 1), ["train", "train"]))
    assert report.errors == ()
    assert report.warnings[:2] == (
        "there is no dev split, which the best epoch is chosen on",
        "there is no test split, which results are measured on",
    )


def test_drawn_pictures_are_looked_at_too():
    def draw(row):
        raise ValueError(f"scene {row} cannot be drawn")

    dataset = replace(healthy(), pictures=DrawnPictures(draw, range(4), "toy"), features=None)
    assert len(check_dataset(dataset).unreadable) == 4
    assert check_dataset(dataset, quick=True).unreadable == ()


def test_what_is_not_read_is_listed(tmp_path, capsys):
    paths = write_pictures(tmp_path, range(6))
    (tmp_path / "notes.txt").write_text("x")
    os.mkfifo(tmp_path / "pipe.jpg")
    lines = ["image,caption", *(f"{path.name},caption {n}" for n, path in enumerate(paths[:4]))]
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    paths[0].write_bytes(b"")
    report = check_dataset(load_dataset(tmp_path))
    shown = text_of(report)
    for reason, number, example in (
        ("no regular file", 1, "pipe.jpg"),
        ("neither a picture nor captions of one", 1, "notes.txt"),
        ("a picture that the table does not name, which an index takes", 2, paths[4].name),
        ("a picture that cannot be read", 1, str(paths[0])),
    ):
        assert re.search(f"{reason} +│ +{number} │ {example}", shown)
    assert "2 pictures that the table does not name" in " ".join(report.warnings)
    assert "1 left out, no regular file, such as pipe.jpg" in " ".join(
        capsys.readouterr().err.split()
    )


def test_pictures_alone_are_whole(tmp_path):
    write_pictures(tmp_path, range(3))
    report = check_dataset(load_dataset(tmp_path))
    assert not report.errors
    assert not report.warnings
    assert "pictures without captions: they can be indexed" in text_of(report)
    (tmp_path / "broken.jpg").write_bytes(b"")
    assert "1 picture cannot be read" in " ".join(check_dataset(load_dataset(tmp_path)).errors)
