import json
from pathlib import Path

import numpy as np
import pytest
import torch

from corpus_cases import (
    captions_by_image,
    features_of_all,
    random_array,
    splits_by_image,
    write_split,
)
from counterfoil.data.features import RowStack, open_feature_table
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.papers.readers import precomp
from counterfoil.papers.readers.precomp import is_precomp, read_precomp

TEN = [f"caption {n}" for n in range(10)]


def test_first_token_is_the_first_word(tmp_path):
    write_split(tmp_path, "train", random_array(2, 3, 4), ["A man runs", "Ein Hünd"])
    assert read_precomp(tmp_path).texts == ["A man runs", "Ein Hünd"]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 4)])
def test_images_once(tmp_path, shape):
    values = random_array(*shape)
    write_split(tmp_path, "train", values, TEN)
    dataset = read_precomp(tmp_path)
    assert dataset.text_to_image.tolist() == [0] * 5 + [1] * 5
    assert dataset.image_ids == ["train/0", "train/1"]
    np.testing.assert_array_equal(features_of_all(dataset).reshape(shape), values)


def test_images_repeated_for_each_caption(tmp_path):
    once = random_array(2, 3, 4)
    write_split(tmp_path, "train", once.repeat(5, axis=0), TEN)
    dataset = read_precomp(tmp_path)
    assert dataset.text_to_image.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_array_equal(features_of_all(dataset), once)


def test_images_repeated_and_named_once_an_image(tmp_path):
    once = random_array(2, 3, 4)
    write_split(tmp_path, "train", once.repeat(5, axis=0), TEN, ["x", "y"])
    dataset = read_precomp(tmp_path)
    assert captions_by_image(dataset) == {"x": TEN[:5], "y": TEN[5:]}
    np.testing.assert_array_equal(features_of_all(dataset), once)


def test_one_caption_an_image(tmp_path):
    values = random_array(10, 4)
    write_split(tmp_path, "train", values, TEN)
    assert read_precomp(tmp_path).text_to_image.tolist() == list(range(10))
    values[1] = values[0]  # twins, but the others are not repeated
    write_split(tmp_path, "train", values, TEN)
    assert read_precomp(tmp_path).text_to_image.tolist() == list(range(10))


@pytest.mark.parametrize("stored", ["once", "repeated"])
def test_ids_a_caption_give_any_number_of_captions(tmp_path, stored):
    ids = ["x", "y", "y", "x", "z", "y"]
    once = random_array(3, 2, 4)
    values = once if stored == "once" else once[[0, 1, 1, 0, 2, 1]]
    write_split(tmp_path, "train", values, TEN[:6], ids)
    dataset = read_precomp(tmp_path)
    assert captions_by_image(dataset) == {
        "x": [TEN[0], TEN[3]],
        "y": [TEN[1], TEN[2], TEN[5]],
        "z": [TEN[4]],
    }
    np.testing.assert_array_equal(features_of_all(dataset), once)


def test_splits_are_read_as_one_and_stay_on_disk(tmp_path):
    parts = {name: random_array(2, 3, 4, seed=n) for n, name in enumerate(("train", "dev", "test"))}
    for name, values in parts.items():
        write_split(tmp_path, name, values, TEN, [f"{name} x", f"{name} y"])
        np.save(tmp_path / f"{name}_boxes.npy", random_array(2, 3, 4))
    dataset = read_precomp(tmp_path)
    assert dataset.splits == ["train"] * 2 + ["dev"] * 2 + ["test"] * 2
    assert isinstance(dataset.features.values, RowStack)
    assert all(isinstance(part, np.memmap) for part in dataset.features.values.parts)
    for name, values in parts.items():
        np.testing.assert_array_equal(features_of_all(dataset.split(name)), values)
    assert dataset.features.take(torch.tensor([5])).boxes.shape == (1, 3, 4)


def test_testall_goes_before_test(tmp_path):
    write_split(tmp_path, "test", random_array(1, 4), TEN[:5], ["x"])
    write_split(tmp_path, "testall", random_array(2, 4), TEN, ["x", "y"])
    assert splits_by_image(read_precomp(tmp_path)) == {"x": "test", "y": "test"}
    assert read_precomp(tmp_path, splits=["test"]).image_ids == ["x"]
    with pytest.raises(ValueError, match=r"'tset' is not a split of .*did you mean 'test'"):
        read_precomp(tmp_path, splits=["tset"])


def test_packed_features(tmp_path):
    write_split(tmp_path, "train", random_array(2, 3), TEN)
    (tmp_path / "train_ims.npy").unlink()
    np.save(tmp_path / "train_ims_int8.npy", np.array([[[2, -4]], [[6, 8]]], np.int8))
    with pytest.raises(ValueError, match=r"int8_scale\.npy does not exist"):
        read_precomp(tmp_path)
    np.save(tmp_path / "int8_scale.npy", np.array([0.5, 0.25], np.float32))
    assert features_of_all(read_precomp(tmp_path)).tolist() == [[[1, -1]], [[3, 2]]]


def test_owner_file_gives_any_number_of_captions_with_lengths_and_boxes(tmp_path):
    values, boxes = random_array(4, 3, 2), random_array(4, 3, 4)
    write_split(tmp_path, "train", values, TEN[:5], list("wxyz"))
    (tmp_path / "train_owner.txt").write_text("2\n0\n2\n3\n2\n")
    np.save(tmp_path / "train_lengths.npy", np.array([1, 3, 2, 0]))
    np.save(tmp_path / "train_boxes.npy", boxes)
    write_split(tmp_path, "dev", random_array(1, 3, 2), TEN[:1])
    np.save(tmp_path / "dev_boxes.npy", boxes[:1])
    dataset = read_precomp(tmp_path)
    captions = {"w": [TEN[1]], "x": [], "y": [TEN[0], TEN[2], TEN[4]], "z": [TEN[3]]}
    assert captions_by_image(dataset) == captions | {"dev/0": [TEN[0]]}
    items = dataset.features.take(torch.arange(5))
    assert items.mask.sum(1).tolist() == [1, 3, 2, 0, 3]
    np.testing.assert_array_equal(items.values[1], values[1])
    np.testing.assert_array_equal(items.boxes[:4], boxes)


@pytest.mark.parametrize(
    "ids, captions, text_to_image, words",
    [
        ([], TEN[:7], None, "train has 2 images and 7 captions, which do not divide"),
        ([], [], None, r"train_caps\.txt is empty"),
        (["x"], TEN, None, r"train_ids\.txt names 1 images, but there are 2"),
        (["x", "x"], TEN, None, "image id 'x' occurs twice"),
        (list("xyzxyzxyzx"), TEN, None, "names 3 images for 10 captions.* features of 2"),
        ([], TEN, "0\n1\n", r"train_owner\.txt has 2 lines for 10 captions"),
        ([], TEN[:2], "0\n2\n", "names rows 0 to 2, but images are 0 to 1"),
        ([], TEN[:2], "0\nx\n", "needs a whole number on every line"),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, ids, captions, text_to_image, words):
    write_split(tmp_path, "train", random_array(2, 4), captions, ids)
    if text_to_image:
        (tmp_path / "train_owner.txt").write_text(text_to_image)
    with pytest.raises(ValueError, match=words):
        read_precomp(tmp_path)


def test_damaged_files(tmp_path):
    assert not is_precomp(tmp_path)
    with pytest.raises(ValueError, match="holds no split"):
        read_precomp(tmp_path)
    write_split(tmp_path, "train", random_array(2, 4), TEN)
    whole = (tmp_path / "train_ims.npy").read_bytes()
    (tmp_path / "train_ims.npy").write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"train_ims\.npy cannot be read as features"):
        read_precomp(tmp_path)
    (tmp_path / "train_ims.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train_ims\.npy cannot be read as features"):
        read_precomp(tmp_path)
    np.save(tmp_path / "train_ims.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"train_ims\.npy cannot be read as features"):
        read_precomp(tmp_path)
    np.save(tmp_path / "train_ims.npy", np.float32(3))
    with pytest.raises(ValueError, match=r"has shape \(\)"):
        read_precomp(tmp_path)
    (tmp_path / "train_ims.npy").unlink()
    with pytest.raises(ValueError, match=r"train_ims\.npy does not exist; features"):
        read_precomp(tmp_path)


def test_same_image_in_two_splits_is_refused(tmp_path):
    for split in ("train", "test"):
        write_split(tmp_path, split, random_array(2, 4), TEN, ["x", "y"])
    with pytest.raises(ValueError, match="image id 'x' occurs twice"):
        read_precomp(tmp_path)


@pytest.mark.parametrize("place", ["inside", "itself"])
def test_a_root_with_precomp_inside(tmp_path, place):
    """GPO, CHAN, ESA and HREM have pictures and ids beside it."""
    root = tmp_path / "f30k"
    write_split(root / "precomp", "train", random_array(2, 3, 4), TEN)
    (root / "flickr30k-images").mkdir()
    (root / "id_mapping.json").write_text("{}")
    given = root if place == "inside" else root / "precomp"
    dataset = load_dataset(given)
    assert (len(dataset.texts), dataset.features.values.shape) == (10, (2, 3, 4))
    assert dataset.name == given.name
    assert len(open_feature_table(given).features) == 2


SPLIT = ["<pad>", "<start>", "<end>", "<unk>", "can", "not", "it's"]
WORDS = ["<pad>", "<start>", "<end>", "<unk>", "a", "dog", "n't", "is", ",", "t-shirt"]


def write_ids(folder, lines, vocabulary):
    np.save(folder / "train_ims.npy", random_array(1, 3, 4))
    (folder / "train_precaps.txt").write_text("".join(f"{line}\n" for line in lines))
    vocabulary.parent.mkdir(exist_ok=True)
    vocabulary.write_text(json.dumps({"word2idx": {word: n for n, word in enumerate(WORDS)}}))


@pytest.mark.parametrize("beside", ["f30k_precomp/vocab.json", "vocab/f30k_precomp_vocab.json"])
def test_captions_of_bfan_are_word_ids(tmp_path, beside, capsys):
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    write_ids(folder, ["1,4,5,3,2", "1,4,9,8,7,6,2"], tmp_path / beside)
    dataset = load_dataset(folder)
    assert dataset.texts == ["a dog <unk>", "a t-shirt , is n't"]
    assert WordTokenizer(WORDS).encode(dataset.texts) == [[1, 4, 5, 3, 2], [1, 4, 9, 8, 7, 6, 2]]
    assert not capsys.readouterr().err


def test_word_ids_that_read_otherwise_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(precomp, "read_vocabulary", lambda path, longest: WordTokenizer(SPLIT))
    write_ids(tmp_path, ["1,4,5,2", "1,4,2"], tmp_path / "vocab.json")
    assert load_dataset(tmp_path).texts == ["can not", "can"]
    assert not capsys.readouterr().err
    write_ids(tmp_path, ["1,6,2", "1,4,2"], tmp_path / "vocab.json")
    assert load_dataset(tmp_path).texts == ["it's", "can"]
    assert "1 captions have other word ids when" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("line", "message"),
    [("1,4,x,2", "line 1: '1,4,x,2' are no word ids"), ("1,44,2", "ids are 0 to 9")],
)
def test_word_ids_that_are_none(tmp_path, line, message):
    write_ids(tmp_path, [line], tmp_path / "vocab.json")
    with pytest.raises(ValueError, match=message):
        read_precomp(tmp_path)


def test_word_ids_need_their_vocabulary(tmp_path):
    write_ids(tmp_path, ["1,4,2"], tmp_path / "vocab.json")
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(ValueError, match="holds word ids and no captions; put the vocabulary"):
        load_dataset(tmp_path)


OTHER = ["<pad>", "<start>", "<end>", "<unk>", "the", "cat"]
HERE, BESIDE = "f30k_precomp/f30k_precomp_vocab.json", "vocab/f30k_precomp_vocab.json"


def write_vocabularies(tmp_path, names):
    """The first has the words of the captions, the others have other words."""
    folder = tmp_path / "f30k_precomp"
    folder.mkdir()
    write_ids(folder, ["1,4,5,2"], tmp_path / names[0])
    for name in names[1:]:
        words = {"word2idx": {word: n for n, word in enumerate(OTHER)}}
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(words))
    return folder


@pytest.mark.parametrize(
    "names",
    [
        [HERE, "f30k_precomp/coco_precomp_vocab.json", "f30k_precomp/vocab.json"],
        [HERE, BESIDE],
        [BESIDE, "f30k_precomp/coco_precomp_vocab.json", "vocab/coco_precomp_vocab.json"],
        [BESIDE, "f30k_precomp/vocab.json"],
        ["f30k_precomp/vocab.json", "f30k_precomp/a_vocab.json", "f30k_precomp/b_vocab.json"],
        ["f30k_precomp/my_vocab.json"],
    ],
)
def test_word_ids_have_the_vocabulary_of_their_folder(tmp_path, names, monkeypatch):
    folder = write_vocabularies(tmp_path, names)
    assert read_precomp(folder).texts == ["a dog"]
    monkeypatch.chdir(folder)
    assert read_precomp(Path()).texts == ["a dog"]


def test_a_linked_folder_has_two_names(tmp_path):
    folder = write_vocabularies(tmp_path, [BESIDE])
    for link in (tmp_path / "mine", tmp_path / "apart" / "f30k_precomp"):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder)
        assert read_precomp(link).texts == ["a dog"]
    folder.rename(tmp_path / "stored")
    folder.symlink_to(tmp_path / "stored")
    assert read_precomp(folder).texts == ["a dog"]


def test_several_vocabularies_are_named(tmp_path):
    names = [f"f30k_precomp/{name}_vocab.json" for name in ("coco_precomp", "mine")]
    folder = write_vocabularies(tmp_path, names)
    said = "several vocabularies: coco_precomp_vocab.json, mine_vocab.json; name the one .* to f30k"
    with pytest.raises(ValueError, match=said):
        read_precomp(folder)


def test_an_empty_file_of_word_ids_is_named(tmp_path):
    write_ids(tmp_path, [], tmp_path / "vocab.json")
    with pytest.raises(ValueError, match=r"train_precaps\.txt is empty; captions are needed there"):
        read_precomp(tmp_path)


# The dependency pairs of CGMN.


def write_pairs(folder, split, pairs):
    (folder / f"{split}_caps.json").write_text(json.dumps(pairs))


def one_line(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_dependency_pairs_follow_their_captions(tmp_path, capsys):
    pairs = [[[0, 1]], [[0, 2], [2, 1]], [], [[0, 1], [1, 2], [2, 3]]]
    ids = ["x", "y", "x", "y"]  # so the captions of y come last
    write_split(tmp_path, "train", random_array(2, 4), ["a dog"] * 3 + ["a dog runs"], ids)
    write_pairs(tmp_path, "train", pairs)
    write_split(tmp_path, "dev", random_array(1, 4), ["a"], ["z"])
    write_pairs(tmp_path, "dev", [[[0, 1]]])
    data = load_dataset(tmp_path)
    own = [pairs[0], pairs[2], pairs[1], pairs[3], [[0, 1]]]
    assert data.dependencies.tolist() == [given + [[-1, -1]] * (3 - len(given)) for given in own]
    assert data["dev"].dependencies.tolist() == [[[0, 1], [-1, -1], [-1, -1]]]
    assert not capsys.readouterr().err


def test_a_split_without_dependency_pairs_is_named(tmp_path, capsys):
    for split in ("train", "dev"):
        write_split(tmp_path, split, random_array(2, 4), TEN)
    assert load_dataset(tmp_path).dependencies is None
    write_pairs(tmp_path, "dev", [[[0, 1]]] * 10)
    data = load_dataset(tmp_path)
    assert (data["train"].dependencies == -1).all()
    assert "has no train_caps.json, and dependency pairs of other" in one_line(capsys)


@pytest.mark.parametrize("pair, told", [([3, 1], 0), ([1, 4], 1)])
def test_pairs_behind_a_caption_are_told(tmp_path, capsys, pair, told):
    """TEN have two words, so 3 is the place of their end; the root's pair is never read."""
    write_split(tmp_path, "train", random_array(2, 4), TEN)
    write_pairs(tmp_path, "train", [[[0, 99], pair]] + [[[0, 1]]] * 9)
    load_dataset(tmp_path)
    said = one_line(capsys)
    assert ("1 of 10 captions (10.0 %) have pairs of words behind their end" in said) == bool(told)


@pytest.mark.parametrize(
    "pairs, message",
    [
        ({"0": [[0, 1]]}, r"train_caps\.json holds no list with the dependency pairs"),
        ([[[0, 1]]] * 9, r"pairs of 9 captions, and there are 10 captions beside it"),
        ([[[0, 1]]] * 9 + [[0, 1]], r"'\[0, 1\]' of caption 10 are no dependency pairs"),
        ([[[0, 1, 2]]] + [[]] * 9, r"of caption 1 are no dependency pairs; a list of \[head"),
        ([[[0, 1], [2]]] + [[]] * 9, r"of caption 1 are no dependency pairs"),
        ([[["nsubj", 1]]] + [[]] * 9, r"of caption 1 are no dependency pairs"),
        ([[[0, 1.5]]] + [[]] * 9, r"of caption 1 are no dependency pairs"),
        ([None] + [[]] * 9, r"of caption 1 are no dependency pairs"),
        ([5] + [[]] * 9, r"'5' of caption 1 are no dependency pairs"),
        ([[[0, 1], [-2, 1]]] + [[]] * 9, r"caption 1 name words -2 to 1; 1 is its first word"),
        ([[[0, 10**9]]] + [[]] * 9, r"caption 1 name words 0 to 1000000000"),
        ([[[0, 10**30]]] + [[]] * 9, r"of caption 1 are no dependency pairs"),
    ],
)
def test_dependency_pairs_that_are_none(tmp_path, pairs, message):
    write_split(tmp_path, "train", random_array(2, 4), TEN)
    write_pairs(tmp_path, "train", pairs)
    with pytest.raises(ValueError, match=message) as refused:
        load_dataset(tmp_path)
    assert "\n" not in str(refused.value)
