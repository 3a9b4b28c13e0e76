from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact_cases import resealed
from counterfoil.core import checksums
from counterfoil.core.artifact import Artifact
from counterfoil.core.io import write_array, write_lock, write_text
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores
from counterfoil.search import vector_index
from counterfoil.search.vector_index import IndexEntry, NewVectors, VectorIndex
from engine_cases import Dot, vectors
from index_cases import brute, empty, found, images, names, texts, whole


def test_ranks_as_the_engine_does_with_ties(tmp_path):
    stored, asked = whole((5000, 6)), whole((20, 6), seed=1)
    index = empty(tmp_path / "x", 6)
    index.change(images=images(names(3000), stored[:3000]))
    index.change(images=images(names(2000, 3000), stored[3000:]))
    best = TopK("text", 20, 50)
    stream_scores([EmbeddedDataset(Dot(), vectors(stored), vectors(asked))], [best])
    rows, scores = index.images.search(asked, 50)
    assert torch.equal(rows, best.rows.long())
    assert torch.equal(scores, best.scores)
    assert len(scores[0].unique()) < 50  # there were ties


def test_equals_sorting_everything(tmp_path):
    stored, asked = torch.randn(200, 8), torch.randn(5, 8)
    index = empty(tmp_path / "x")
    index.change(images=images(names(200), stored))
    for got, wanted in zip(found(index, asked, 7), brute(asked, stored, names(200), 7)):
        assert [name for name, _ in got] == [name for name, _ in wanted]
        np.testing.assert_allclose([s for _, s in got], [s for _, s in wanted], atol=1e-5)


def test_a_query_does_not_depend_on_its_neighbours(tmp_path):
    index, asked = empty(tmp_path / "x"), torch.randn(40, 8)
    index.change(images=images(names(100), torch.randn(100, 8)))
    together = index.images.search(asked, 10)
    for row in (0, 17, 39):
        alone = index.images.search(asked[row : row + 1], 10)
        assert torch.equal(alone[0][0], together[0][row])
        assert torch.equal(alone[1][0], together[1][row])


@pytest.mark.parametrize("half", [False, True])
def test_scores_that_differ_by_rounding_alone_are_ranked_by_their_own_sums(tmp_path, half):
    """A product proposes, and it rounds otherwise than the sum that decides."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(1, 384, generator=generator).expand(700, -1).clone()
    for row in mixed:  # the same numbers in another order, as the queries are constant
        row.copy_(row[torch.randperm(384, generator=generator)])
    index, asked = empty(tmp_path / "x", 384, half=half), torch.full((5, 384), 0.7)
    offsets = 1e-6 * torch.randn(700, generator=generator)
    index.change(images=images(names(300), mixed[:300]))
    index.change(images=images(names(400, 300), mixed[300:]))
    sums = (index.images.vectors(torch.arange(700)) * asked[0]).sum(1)
    assert len(sums.unique()) > 5
    for own, added in ((sums, None), (sums + offsets, offsets)):
        rows, scores = index.images.search(asked, 40, offsets=added)
        order = sorted(range(700), key=lambda row: (-float(own[row]), row))[:40]
        assert rows.tolist() == [order] * 5
        assert torch.equal(scores[0], own[order])
        alone = index.images.search(asked[:1], 40, offsets=added)
        assert torch.equal(alone[0][0], rows[0])
        assert torch.equal(alone[1][0], scores[0])


def test_fewer_than_asked(tmp_path):
    index = empty(tmp_path / "x")
    rows, scores = index.images.search(torch.randn(2, 8), 3)
    assert rows.tolist() == [[-1] * 3] * 2
    assert bool(scores.isneginf().all())
    index.change(images=images(names(2), torch.eye(8)[:2]))
    rows, scores = index.images.search(torch.eye(8)[:1], 4)
    assert rows.tolist() == [[0, 1, -1, -1]]
    assert scores.tolist()[0][:2] == [1, 0]


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.integers(1, 60).map(lambda n: ("add", n)),
            st.lists(st.integers(0, 200), max_size=40).map(lambda rows: ("delete", rows)),
        ),
        min_size=1,
        max_size=24,
    ),
    half=st.booleans(),
)
def test_changed_equals_rebuilt(tmp_path_factory, steps, half):
    """Whatever comes and goes, the index is the one that would be made of what is left."""
    folder = tmp_path_factory.mktemp("x")
    index, left, next_ = empty(folder / "a", 4, half=half), {}, 0
    for what, value in steps:
        if what == "add":
            new = whole((value, 4), seed=next_)
            index.change(
                images=images(names(value, next_), new), texts=texts(names(value, next_), new)
            )
            left |= dict(zip(names(value, next_), new))
            next_ += value
        else:
            gone = [name for n, name in enumerate(left) if n in value]
            rows = [index.images.rows.get(name) for name in gone]
            index.change(
                remove_images=rows, remove_texts=[index.texts.rows.get(name) for name in gone]
            )
            for name in gone:
                del left[name]
    again = empty(folder / "b", 4, half=half)
    if left:
        again.change(images=images(left, torch.stack(list(left.values()))))
    asked = whole((3, 4), seed=99)
    assert len(index.images) == len(index.texts) == len(again.images) == len(left)
    for one in (index, VectorIndex(folder / "a")):
        assert found(one, asked, 20) == found(again, asked, 20)
        assert set(one.images.rows) == set(left)
        assert set(one.texts.rows_by_image) == set(left)


def test_parts_are_joined_and_dead_rows_dropped(tmp_path):
    index = empty(tmp_path / "x")
    for n in range(40):
        index.change(images=images(names(3, 3 * n), torch.randn(3, 8)))
    assert len(index.images.parts) <= 17
    index.change(remove_images=list(range(0, 110)))
    assert len(index.images.numbers) == len(index.images) == 10
    stored = [p.name for p in (tmp_path / "x").iterdir() if p.suffix in (".npy", ".jsonl")]
    assert len(stored) == 3 * len(index.images.parts)
    assert index.images.entry(0) == IndexEntry("i110", place="/i110.png")


def test_all_may_go_and_numbers_are_not_given_twice(tmp_path):
    index = empty(tmp_path / "x")
    index.change(images=images(names(70), torch.randn(70, 8)))
    index.change(remove_images=list(range(70)))
    assert len(VectorIndex(tmp_path / "x").images) == 0
    index.change(images=images(names(2), torch.randn(2, 8)))
    assert index.images.numbers[index.images.alive].tolist() == [70, 71]


def test_half_precision(tmp_path):
    index = empty(tmp_path / "x", half=True)
    stored = torch.randn(30, 8)
    index.change(images=images(names(30), stored))
    assert index.images.parts[0].vectors.dtype == np.float16
    torch.testing.assert_close(index.images.vectors(torch.arange(30)), stored.half().float())


def test_numbers_beyond_half_precision_are_refused(tmp_path):
    half, whole = empty(tmp_path / "x", half=True), empty(tmp_path / "y")
    stored = torch.ones(3, 8)
    stored[1, 2] = -70_000
    with pytest.raises(ValueError, match=r"'i1' has numbers that 16 bits do not hold.*--half"):
        half.change(images=images(names(3), stored))
    whole.change(images=images(names(3), stored))
    assert (len(half.images), len(whole.images)) == (0, 3)


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("verb", ["add", "delete"])
def test_killed_anywhere_it_is_as_before_or_as_after(tmp_path, monkeypatch, place, verb):
    """A process dies before its nth write of a file: the index is what it was, or what it was
    to be, and can be written to again."""
    before = empty(tmp_path / "x")
    stored = torch.randn(100, 8)
    before.change(images=images(names(90), stored[:90]), texts=texts(names(90), stored[:90]))
    asked, old = torch.randn(3, 8), None
    old = found(before, asked, 8)

    def change(index):
        if verb == "add":
            new = stored[90:]
            index.change(images=images(names(10, 90), new), texts=texts(names(10, 90), new))
        else:  # most of it, so that the parts are joined
            index.change(remove_images=list(range(80)), remove_texts=list(range(80)))

    shutil.copytree(tmp_path / "x", tmp_path / "y")
    after = VectorIndex(tmp_path / "y")
    change(after)
    child = os.fork()
    if not child:
        left = place

        def counting(function):
            def counted(*words, **more):
                nonlocal left
                if not left:
                    os._exit(9)
                left -= 1
                return function(*words, **more)

            return counted

        monkeypatch.setattr(vector_index, "write_array", counting(write_array))
        monkeypatch.setattr(vector_index, "write_text", counting(write_text))
        for step in ("changed", "remove_unused"):
            monkeypatch.setattr(Artifact, step, counting(getattr(Artifact, step)))
        change(VectorIndex(tmp_path / "x"))
        os._exit(0)
    os.waitpid(child, 0)
    left = VectorIndex(tmp_path / "x")
    now = found(left, asked, 8)
    assert now in (old, found(after, asked, 8))
    assert len(left.images) == len(left.texts)
    if len(left.images) == len(before.images):
        change(left)
    assert found(left, asked, 8) == found(after, asked, 8)
    assert len(left.images) == len(left.texts) == len(after.texts)


def test_left_files_are_cleared_away(tmp_path):
    index = empty(tmp_path / "x")
    (tmp_path / "x" / "000007-images.npy").write_bytes(b"x")
    (tmp_path / "x" / ".manifest.json.abc.part").write_bytes(b"x")
    foreign = ["my-notes.jsonl", "my-vectors.npy", "notes.md", "other.part"]
    for name in foreign:
        (tmp_path / "x" / name).write_bytes(b"x")
    index.change(images=images(names(2), torch.randn(2, 8)))
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == [
        *("000000-images.jsonl", "000000-images.npy", "000000-images.numbers.npy"),
        *("manifest.json", *foreign),
    ]


def test_the_order_of_a_stored_array_does_not_matter(tmp_path):
    index = empty(tmp_path / "x")
    stored, asked = whole((5000, 8)), whole((3, 8), seed=1)
    index.change(images=images(names(5000), stored))
    before = found(index, asked, 10)
    path = tmp_path / "x" / "000000-images.npy"
    np.save(path, np.asfortranarray(np.load(path)))
    resealed(tmp_path / "x")
    assert found(VectorIndex(tmp_path / "x"), asked, 10) == before


def test_large_parts_are_sampled_when_opened_and_read_whole_when_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 64)
    index = empty(tmp_path / "x")
    index.change(images=images(names(999), torch.randn(999, 8)))
    path = tmp_path / "x" / "000000-images.npy"
    content = bytearray(path.read_bytes())
    content[10 * 64] ^= 1  # of 500 blocks every 33rd is read
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"images\.npy is damaged: its checksum does not fit"):
        VectorIndex(tmp_path / "x").verify()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="images"):
        VectorIndex(tmp_path / "x")


def test_one_writer_at_a_time(tmp_path):
    index = empty(tmp_path / "x")
    lock = write_lock(tmp_path / "x" / ".lock", "x")
    with lock, pytest.raises(ValueError, match=r"x is being written by process \d+ on .* since"):
        index.change(images=images(names(2), torch.randn(2, 8)))


def test_a_stale_index_is_not_written_over(tmp_path):
    empty(tmp_path / "x")
    one, two = VectorIndex(tmp_path / "x"), VectorIndex(tmp_path / "x")
    one.change(images=images(names(2), torch.randn(2, 8)))
    with pytest.raises(ValueError, match="changed by another process; open the index again"):
        two.change(images=images(names(2, 5), torch.randn(2, 8)))
    assert len(VectorIndex(tmp_path / "x").images) == 2


def test_opened_while_another_process_writes(tmp_path, monkeypatch):
    """What the state named was joined and cleared away before it could be read."""
    writer = empty(tmp_path / "x")
    for n in range(16):
        writer.change(images=images(names(1, n), torch.eye(8)[:1]))
    read, before = vector_index.open_state, vector_index.open_state(tmp_path / "x")

    def late(folder):
        monkeypatch.setattr(vector_index, "open_state", read)
        writer.change(images=images(names(1, 16), torch.eye(8)[:1]))
        return before

    monkeypatch.setattr(vector_index, "open_state", late)
    reader = VectorIndex(tmp_path / "x")
    assert [part.name for part in reader.images.parts] == ["000016-images-joined"]
    assert len(reader.images) == 17
    assert reader.state == writer.state


def test_bad_vectors_and_queries(tmp_path):
    index = empty(tmp_path / "x")
    bad = torch.randn(3, 8)
    bad[1, 2] = torch.nan
    with pytest.raises(ValueError, match="'i1' is not a number"):
        index.change(images=images(names(3), bad))
    with pytest.raises(ValueError, match=r"\(3, 9\) were given to an index of width 8"):
        index.change(images=images(names(3), torch.randn(3, 9)))
    with pytest.raises(ValueError, match="k is 0"):
        index.images.search(torch.randn(1, 8), 0)
    with pytest.raises(ValueError, match=r"queries of shape \(1, 3\)"):
        index.images.search(torch.randn(1, 3), 1)
    assert len(index.images) == 0


def damaged(folder, name):
    (path,) = folder.glob(name)
    path.write_bytes(path.read_bytes()[:-9])
    return folder


@pytest.mark.parametrize(
    "name", ["*-images.npy", "*.numbers.npy", "*-images.jsonl", "manifest.json"]
)
def test_damage_is_a_sentence(tmp_path, name):
    index = empty(tmp_path / "x")
    index.change(images=images(names(5), torch.randn(5, 8)))
    with pytest.raises(ValueError, match=r"make the index again|cannot be read"):
        _ = VectorIndex(damaged(tmp_path / "x", name)).images.rows


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_vectors_that_give_no_score_are_no_empty_answer(tmp_path, value):
    index = empty(tmp_path / "x")
    index.change(images=images(names(5), torch.randn(5, 8)))
    np.save(tmp_path / "x" / "000000-images.npy", np.full((5, 8), value, np.float32))
    resealed(tmp_path / "x")
    with pytest.raises(ValueError, match="holds vectors of NaN or of huge numbers"):
        VectorIndex(tmp_path / "x").images.search(torch.full((1, 8), 9.0), 2)
    with pytest.raises(ValueError, match="the vector of a query holds NaN"):
        index.images.search(torch.full((1, 8), torch.nan), 2)


@pytest.mark.parametrize(
    "line",
    ['{"id": 3}', '{"id": "a", "text": null}', "[]", '"a"', "{}", '{"id": "a", "x": "b"}', "["],
)
def test_entries_are_texts(tmp_path, line):
    index = empty(tmp_path / "x")
    index.change(images=images(names(1), torch.randn(1, 8)))
    (tmp_path / "x" / "000000-images.jsonl").write_text(line + "\n")
    resealed(tmp_path / "x")
    with pytest.raises(ValueError, match="cannot be read as entries of an index"):
        _ = VectorIndex(tmp_path / "x").images.rows


def test_entries_of_a_part_are_parsed_at_once(tmp_path, monkeypatch):
    ids = ["b\u2028", 'a"', "\ud800", "c,d", "e"]
    empty(tmp_path / "x").change(images=images(ids, torch.randn(5, 8)))
    monkeypatch.setattr(vector_index, "parse_json", None)  # reads one line
    opened = VectorIndex(tmp_path / "x").images
    assert opened.rows == {name: row for row, name in enumerate(ids)}
    assert [opened.entry(row).id for row in range(5)] == ids


@pytest.mark.parametrize("numbers", [np.zeros((5, 1), np.int64), np.arange(5.0), np.arange(4)])
def test_numbers_fit_the_vectors(tmp_path, numbers):
    index = empty(tmp_path / "x")
    index.change(images=images(names(5), torch.randn(5, 8)))
    np.save(tmp_path / "x" / "000000-images.numbers.npy", numbers)
    resealed(tmp_path / "x")
    with pytest.raises(ValueError, match="make the index again"):
        VectorIndex(tmp_path / "x")


def test_states_of_others_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is no index"):
        VectorIndex(tmp_path)
    empty(tmp_path / "x")
    path = tmp_path / "x" / "manifest.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "format": 7}))
    with pytest.raises(ValueError, match="has format 7"):
        VectorIndex(tmp_path / "x")
    path.write_text(json.dumps({**plain, "width": 0}))
    with pytest.raises(ValueError, match="is damaged"):
        VectorIndex(tmp_path / "x")
    path.write_text("[]")
    with pytest.raises(ValueError, match="is damaged"):
        VectorIndex(tmp_path / "x")


def test_captions_keep_every_sign(tmp_path):
    index, said = empty(tmp_path / "x"), 'two\u2028lines "and" \x85 more ünïcode 犬'
    index.change(texts=NewVectors([IndexEntry("t", text=said, image="i")], torch.randn(1, 8)))
    assert VectorIndex(tmp_path / "x").texts.entry(0).text == said


def test_names_keys_and_types_on_disk_are_a_promise(tmp_path):
    """The files are written literally."""
    part = {"images": "000001-images-joined", "texts": "000000-texts"}
    entries = {
        "images": '{"id": "a.jpg", "place": "/a.jpg", "content": "c0", "stamp": "9 17"}\n'
        '{"id": "b.jpg"}\n',
        "texts": '{"id": "t0", "text": "a dog", "image": "a.jpg"}\n{"id": "t1", "text": "snow"}\n',
    }
    for side, name in part.items():
        np.save(tmp_path / f"{name}.npy", np.eye(2, 4, dtype=np.float16))
        np.save(tmp_path / f"{name}.numbers.npy", np.array([3, 7]))
        (tmp_path / f"{name}.jsonl").write_text(entries[side])
    ends = (".npy", ".numbers.npy", ".jsonl")
    collection = {"dead": [], "finder": "", "next": 8}
    state = {
        **{"address": "", "artifact": "an index", "backend": "exact", "format": 1, "half": True},
        **{"identity": "me", "model": "model", "score": "", "tokens": 0, "version": "0.1.0"},
        **{"width": 4, "writes": 2},
        "files": {name + end: {} for name in part.values() for end in ends},
        "images": {**collection, "parts": [part["images"]]},
        "texts": {**collection, "parts": [part["texts"]], "dead": [3]},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(state))
    index = VectorIndex(resealed(tmp_path))
    assert index.images.entry(0) == IndexEntry("a.jpg", "", "", "/a.jpg", "c0", "9 17")
    assert index.texts.rows == {"t1": 1}
    index.change(images=images(["c.jpg"], torch.eye(4)[2:3]))
    assert found(VectorIndex(tmp_path), torch.eye(4)[2:3], 1) == [[("c.jpg", 1.0)]]
    after = json.loads((tmp_path / "manifest.json").read_text())
    assert after["images"] == {**collection, "next": 9, "parts": [part["images"], "000002-images"]}
    assert after.keys() == {*state, "checksum"}
    assert after["files"].keys() == {*state["files"], *(f"000002-images{end}" for end in ends)}
    assert {*after["files"]["000002-images.npy"]} == {"size", "sums"}
