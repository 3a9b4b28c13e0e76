from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corpus_cases import captions_by_image, features_of_all, small_corpus, write_picture
from counterfoil.core.types import Pairs
from counterfoil.data.corrections import (
    CORRECTIONS_FILE,
    Correction,
    CrowdVotes,
    apply_corrections,
    read_corrections,
    read_crowd_votes,
)
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers import load_dataset


def correction_of(dataset, do, *, image="", caption="", text="", was=None):
    """A decision about what the corpus says."""
    first = dict(zip(reversed(dataset.text_ids), reversed(dataset.texts)))
    known = first.get(caption) if caption else first.get(f"{image}#0", "")
    return Correction(do, image, caption, known if was is None else was, text, "d.jsonl, line 1")


def write(path: Path, *lines: dict) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def photos(folder: Path) -> Path:
    lines = []
    for number in range(4):
        write_picture(folder / f"{number}.png", seed=number)
        captions = [f"picture {number}", f"again {number}"]
        lines.append({"image": f"{number}.png", "captions": captions})
    return write(folder / "captions.jsonl", *lines).parent


def test_an_image_goes_with_its_captions_and_features():
    dataset = small_corpus((2, 0, 1, 3))
    drops = [correction_of(dataset, "drop", image=name) for name in ("a2", "a1")]
    left = apply_corrections(dataset, drops)
    expected = captions_by_image(dataset)
    assert captions_by_image(left) == {name: expected[name] for name in ("a0", "a3")}
    torch.testing.assert_close(features_of_all(left), features_of_all(dataset)[[0, 3]])
    assert left.corrections == "2 images left out, 1 caption left out"


def test_captions_are_dropped_and_rewritten_and_keep_their_ids():
    dataset = small_corpus((2, 1))
    fix = correction_of(dataset, "fix", caption="a0#1", text="A cat.")
    left = apply_corrections(dataset, [correction_of(dataset, "drop", caption="a0#0"), fix])
    assert captions_by_image(left) == {"a0": ["A cat."], "a1": captions_by_image(dataset)["a1"]}
    assert left.text_ids == ["a0#1", "a1#0"]
    assert left.corrections == "1 caption left out, 1 caption rewritten"
    assert left.fingerprint != dataset.fingerprint


def test_texts_of_no_image_stay():
    dataset = replace(small_corpus((1, 1, 1)), text_to_image=torch.tensor([-1, 1, 2]))
    left = apply_corrections(
        dataset, [correction_of(dataset, "drop", image="a1", was=dataset.texts[1])]
    )
    assert left.text_to_image.tolist() == [-1, 1]


@given(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 6)))
def test_what_is_left_is_what_a_loop_leaves(images, texts):
    dataset = small_corpus((2, 1, 1, 3))
    decisions = [correction_of(dataset, "drop", image=dataset.image_ids[row]) for row in images]
    decisions += [correction_of(dataset, "drop", caption=dataset.text_ids[row]) for row in texts]
    expected = {
        name: [
            text
            for row, text in enumerate(dataset.texts)
            if int(dataset.text_to_image[row]) == place and row not in texts
        ]
        for place, name in enumerate(dataset.image_ids)
        if place not in images
    }
    if not any(expected.values()):
        with pytest.raises(ValueError, match="nothing is left after all corrections"):
            apply_corrections(dataset, decisions)
    else:
        assert captions_by_image(apply_corrections(dataset, decisions)) == expected


def test_pairs_that_are_true_follow_their_rows_and_change_the_fingerprint():
    dataset = small_corpus((1, 1, 1), ["train", "dev", "train"])
    true = [correction_of(dataset, "true", caption=name, image="a2") for name in ("a0#0", "a1#0")]
    left = apply_corrections(dataset, true)
    assert left.fingerprint != dataset.fingerprint
    assert left.corrections == "2 pairs true besides the captions' own"
    part = left.split("train")
    assert isinstance(part.extra_positives, Pairs)
    assert (part.extra_positives.image.tolist(), part.extra_positives.text.tolist()) == ([1], [0])
    assert left.split("dev").extra_positives is None


def judged_pairs(dataset):
    """A pair of weight 0.5, one of weight 1 that was dropped first, and one that is neither."""
    return apply_corrections(
        dataset,
        [
            correction_of(dataset, "drop", caption="a0#0", image="a1"),
            correction_of(dataset, "true", caption="a0#0", image="a1"),
            replace(correction_of(dataset, "true", caption="a2#0", image="a0"), weight=0.5),
            correction_of(dataset, "drop", caption="a2#0", image="a1"),
        ],
    )


def test_weights_and_pairs_that_are_neither_follow_their_rows():
    dataset = small_corpus((1, 1, 2), ["dev", "train", "train"])
    left = judged_pairs(dataset)
    assert left.extra_positives.image.tolist() == [0, 1]
    assert left.extra_positives.text.tolist() == [2, 0]
    assert left.extra_weights.tolist() == [0.5, 1]
    assert (left.ambiguous.image.tolist(), left.ambiguous.text.tolist()) == ([1], [2])
    assert left.corrections == (
        "2 pairs true besides the captions' own, 1 pair left out of the negatives"
    )
    train = left.split("train")
    assert (train.extra_positives, train.extra_weights) == (None, None)
    assert (train.ambiguous.image.tolist(), train.ambiguous.text.tolist()) == ([0], [1])
    turned = left.subset(torch.tensor([2, 0]))
    assert (turned.extra_positives.image.tolist(), turned.extra_weights.tolist()) == ([1], [0.5])
    assert turned.extra_positives.text.tolist() == [0]
    assert turned.ambiguous is None
    assert left.text_to_image.tolist() == dataset.text_to_image.tolist()


def test_weights_and_pairs_that_are_neither_change_the_fingerprint_and_weights_of_1_do_not():
    dataset = small_corpus((1, 1, 2))
    true = correction_of(dataset, "true", caption="a0#0", image="a1")
    marked = {
        apply_corrections(dataset, [some]).fingerprint
        for some in (
            true,
            replace(true, weight=0.5),
            replace(true, weight=0.25),
            correction_of(dataset, "drop", caption="a0#0", image="a1"),
        )
    }
    assert len(marked | {dataset.fingerprint}) == 5
    plain = replace(dataset, extra_positives=Pairs(torch.tensor([1]), torch.tensor([0])))
    assert plain.fingerprint == apply_corrections(dataset, [true]).fingerprint


def test_a_pair_of_a_caption_with_its_own_image_cannot_be_dropped():
    dataset = small_corpus((1, 1))
    own = correction_of(dataset, "drop", caption="a0#0", image="a0")
    with pytest.raises(ValueError, match=r"a0#0 is a caption of a0 itself; drop the caption alone"):
        apply_corrections(dataset, [own])


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.0], [0.5, 1.5], [0.5, float("nan")]])
def test_weights_that_do_not_fit_are_refused(weights):
    pairs = Pairs(torch.tensor([1, 1]), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="2 extra positives; give one above 0 and at most 1"):
        replace(small_corpus((1, 1, 1)), extra_positives=pairs, extra_weights=torch.tensor(weights))


def test_what_is_only_looked_at_changes_nothing():
    dataset = small_corpus((1, 1))
    looked_at = ({"caption": "a0#0"}, {"image": "a1"})
    left = apply_corrections(dataset, [correction_of(dataset, "keep", **one) for one in looked_at])
    assert left.fingerprint == dataset.fingerprint
    assert left.corrections == "nothing left out"


def test_the_second_fix_is_of_what_the_first_wrote_or_of_the_data():
    dataset = small_corpus((1, 1))
    first = correction_of(dataset, "fix", caption="a0#0", text="one")
    for was in ("one", dataset.texts[0]):
        second = correction_of(dataset, "fix", caption="a0#0", text="two", was=was)
        assert apply_corrections(dataset, [first, second]).texts[0] == "two"


def test_an_image_is_known_by_any_of_its_captions_as_they_were_or_are():
    dataset = small_corpus((2, 1))
    earlier = (
        correction_of(dataset, "drop", caption="a0#0"),
        correction_of(dataset, "fix", caption="a0#1", text="new"),
    )
    for was in (*dataset.texts[:2], "new"):
        left = apply_corrections(
            dataset, [*earlier, correction_of(dataset, "drop", image="a0", was=was)]
        )
        assert left.image_ids == ["a1"]


def test_what_is_read_is_what_was_written(tmp_path):
    lines = [
        {"do": "fix", "caption": "a#0", "was": "", "text": "x"},
        {"do": "true", "image": "b", "caption": "a#0", "was": "y"},
        {"do": "true", "image": "b", "caption": "a#0", "was": "y", "weight": 0.25},
        {"do": "drop", "image": "b", "caption": "a#0", "was": "y"},
    ]
    assert [
        one.to_dict() for one in read_corrections(write(tmp_path / CORRECTIONS_FILE, *lines))
    ] == lines


@pytest.mark.parametrize(
    ("decision", "complaint"),
    [
        ({"image": "b.jpg"}, r"small has no image 'b\.jpg'; the corrections are of other data"),
        ({"caption": "a9#0", "was": ""}, r"small has no caption 'a9#0'; the corrections"),
        ({"caption": "a0#0", "was": "x"}, r"a0#0 was 'x' when it was corrected and is 'a 0 dog"),
        ({"image": "a0", "was": "x"}, r"a caption of a0 was 'x' when it was corrected"),
    ],
)
def test_decisions_about_other_data_are_refused(decision, complaint):
    dataset = small_corpus((1, 1))
    with pytest.raises(ValueError, match=complaint):
        apply_corrections(dataset, [correction_of(dataset, "drop", **decision)])


def test_ready_made_vectors_cannot_be_rewritten():
    dataset = small_corpus((1, 1))
    dataset = replace(dataset, text_features=FeatureArray.of(torch.ones(2, 3).numpy()))
    with pytest.raises(ValueError, match="ready-made vectors and cannot be fixed; drop"):
        apply_corrections(dataset, [correction_of(dataset, "fix", caption="a0#0", text="x")])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 is no correction"),
        ('{"do": "drop", "image": 3}', "line 2 is no correction"),
        ('{"do": "drp", "image": "a"}', "'drp' is not a correction; did you mean 'drop'"),
        (
            '{"do": "drop", "imag": "a"}',
            "'imag' is not a key of a correction; did you mean",
        ),
        ('{"do": "drop"}', "'drop' needs an image, a caption, or both for the pair"),
        ('{"do": "true", "image": "a", "caption": "b", "weight": 0}', "a weight of 0 was given"),
        ('{"do": "true", "image": "a", "caption": "b", "weight": 1.5}', "above 0 and at most 1"),
        ('{"do": "true", "image": "a", "caption": "b", "weight": NaN}', "a weight of nan"),
        ('{"do": "true", "image": "a", "caption": "b", "weight": true}', "a weight of True"),
        ('{"do": "true", "image": "a", "caption": "b", "weight": "1"}', "a weight of '1'"),
        (
            '{"do": "keep", "image": "a", "caption": "b", "weight": 0.5}',
            "a weight belongs to 'true'",
        ),
        ('{"do": "true", "image": "a"}', "'true' needs an image and a caption"),
        ('{"do": "fix", "image": "a", "text": "x"}', "'fix' needs a caption"),
        ('{"do": "fix", "caption": "a", "text": " "}', "'fix' needs the new text"),
    ],
)
def test_lines_that_are_no_decision_are_refused(tmp_path, line, complaint):
    path = tmp_path / CORRECTIONS_FILE
    path.write_text('{"do": "keep", "image": "a", "was": ""}\n' + line + "\n")
    with pytest.raises(ValueError, match=complaint):
        read_corrections(path)


def test_decisions_beside_the_data_are_honoured(tmp_path):
    folder = photos(tmp_path)
    whole = load_dataset(folder)
    write(folder / CORRECTIONS_FILE, {"do": "drop", "caption": "1.png#0", "was": "picture 1"})
    for source in (folder, folder / "captions.jsonl"):
        left = load_dataset(source)
        assert captions_by_image(left)["1.png"] == ["again 1"]
        assert left.splits == whole.splits
        assert left.fingerprint != whole.fingerprint


def test_decisions_that_are_named_come_before_those_beside_the_data(tmp_path):
    folder = photos(tmp_path / "photos")
    write(folder / CORRECTIONS_FILE, {"do": "drop", "image": "0.png", "was": "picture 0"})
    path = write(tmp_path / "mine.jsonl", {"do": "drop", "image": "2.png", "was": "picture 2"})
    assert load_dataset(folder, corrections=path).image_ids == ["0.png", "1.png", "3.png"]


def test_features_of_a_dropped_image_need_not_be_there_and_may(tmp_path):
    folder = photos(tmp_path / "photos")
    values = torch.arange(8.0).view(4, 1, 2).numpy()
    rows = tmp_path / "rows.npy"
    with rows.open("wb") as file:
        np.save(file, values)
    write(folder / CORRECTIONS_FILE, {"do": "drop", "image": "1.png", "was": "picture 1"})
    left = load_dataset(folder, features=rows)
    assert features_of_all(left).flatten().tolist() == [0, 1, 4, 5, 6, 7]


def test_a_file_of_that_name_where_one_stands_is_not_of_scenes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / CORRECTIONS_FILE, {"do": "drop", "image": "x", "was": ""})
    assert len(load_dataset("scenes:images=12")) == 12


def test_pictures_without_captions_are_dropped(tmp_path):
    for name in ("a.png", "b.png"):
        write_picture(tmp_path / name)
    dataset = load_dataset(tmp_path)
    drops = [Correction("drop", f"{name}.png", "", "") for name in "ab"]
    left = apply_corrections(dataset, drops[:1])
    assert left.image_ids == ["b.png"]
    assert left.corrections == "1 image left out"
    with pytest.raises(ValueError, match="nothing is left"):
        apply_corrections(dataset, drops)


DATA = os.environ.get("COUNTERFOIL_DATA")


def test_captions_are_known_by_id_and_by_picture_and_place(tmp_path):
    dataset = small_corpus()
    image = dataset.image_ids[0]
    other = int(dataset.text_to_image[-1])
    own = (dataset.text_to_image == other).nonzero().flatten().tolist()
    named = dataset.text_ids[own[0]]
    path = tmp_path / "crowd.txt"
    path.write_text(
        f"{image}\t{named}\t0.5\t2\t2\n\n{image}\t{dataset.image_ids[other]}#0\t0\t1\t2\r\n"
    )
    crowd = read_crowd_votes(path, dataset)
    assert len(crowd) == 2
    assert crowd.images.tolist() == [0, 0]
    assert crowd.texts.tolist() == [own[0], own[0]]
    assert crowd.true.tolist() == [True, False]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "holds no judgements"),
        ("a\tb\t1\t2\n", "line 1 is no judgement"),
        ("a\tb\t1\ttwo\t0\n", "line 1 is no judgement"),
        ("a\tb\t0\t0\t0\n", "line 1 has no votes"),
        ("nobody\tb\t1\t3\t0\n", "the picture 'nobody'"),
    ],
)
def test_what_is_no_judgement_is_refused(tmp_path, text, message):
    path = tmp_path / "crowd.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_crowd_votes(path, small_corpus())


def test_rows_keep_columns_together():
    columns = [torch.arange(4) + 10 * n for n in range(4)]
    some = CrowdVotes(*columns).rows(torch.tensor([False, True, False, True]))
    assert [t.tolist() for t in (some.images, some.texts, some.yes, some.no)] == [
        [1, 3], [11, 13], [21, 23], [31, 33],
    ]  # fmt: skip


@pytest.mark.skipif(DATA is None, reason="needs COUNTERFOIL_DATA")
def test_flickr8k():
    folder = Path(str(DATA)) / "flickr8k"
    dataset = load_dataset(str(folder))
    path = folder / "annotations" / "CrowdFlowerAnnotations.txt"
    crowd = read_crowd_votes(path, dataset)
    other = crowd.rows(dataset.text_to_image[crowd.texts] != crowd.images)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    slow = [line for line in lines if line[1].split("#")[0] != line[0]]
    assert len(other) == len(slow)
    assert int(other.true.sum()) == sum(float(line[2]) >= 0.5 for line in slow)
    assert len(crowd) == len(lines)


def test_a_rewritten_caption_has_no_dependencies():
    pairs = torch.tensor([[[0, 1], [1, 2]]] * 3, dtype=torch.int16)
    dataset = replace(small_corpus((2, 1)), dependencies=pairs)
    fix = correction_of(dataset, "fix", caption="a0#1", text="A cat.")
    left = apply_corrections(dataset, [correction_of(dataset, "drop", caption="a0#0"), fix])
    assert left.dependencies.tolist() == [[[-1, -1]] * 2, [[0, 1], [1, 2]]]
