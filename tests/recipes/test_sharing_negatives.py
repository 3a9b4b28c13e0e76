"""Mined negatives on a stand-in of the hub, as a data set."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import export_cases
import hub_cases
import negatives_cases
from artifact_cases import resealed
from counterfoil.core.types import Pairs
from counterfoil.data.corrections import apply_corrections, read_corrections
from counterfoil.data.scenes import scenes
from counterfoil.hub import load_negatives, push_negatives
from counterfoil.negatives.mining import HardNegatives
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.embedding_store import ModelSource
from recipes_cases import run

NAME = "me/negatives"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> hub_cases.FakeHub:
    return hub_cases.fake_hub(tmp_path / "hub", monkeypatch, "dataset")


def mined(folder, dataset, **more) -> HardNegatives:
    store = export_cases.mined(folder, dataset, **more)
    return HardNegatives(NegativeStore.open(store, fingerprint=dataset.fingerprint), dataset)


def judged(dataset):
    """A pair that a judge called true, with a weight, and one that it called ambiguous."""
    return replace(
        dataset,
        extra_positives=Pairs(torch.tensor([2]), torch.tensor([1])),
        extra_weights=torch.tensor([0.7]),
        ambiguous=Pairs(torch.tensor([3]), torch.tensor([2])),
        corrections="2 pairs judged",
    )


def same_lists(one: HardNegativeLists, other: HardNegativeLists) -> bool:
    names = ("texts", "images", "text_scores", "image_scores", "true_scores")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(
        (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b)) for a, b in pairs
    )


@pytest.mark.parametrize("scored", [True, False])
def test_what_is_pushed_is_loaded(scored, hub, tmp_path):
    data = export_cases.dataset()
    negatives = mined(tmp_path / "lists", data, scored=scored)
    assert push_negatives(negatives, NAME) == f"https://hub.test/{NAME}"
    assert hub.calls[0] == (NAME, True)
    found = load_negatives(NAME, data)
    assert same_lists(found.lists, negatives.lists)
    assert found.store.manifest == negatives.store.manifest
    assert found.dataset is data
    assert sorted(path.name for path in (hub.root / NAME).iterdir()) == [
        "README.md",
        "image-to-text.parquet",
        "manifest.json",
        "text-to-image.parquet",
    ]
    assert same_lists(load_negatives(hub.root / NAME, data).lists, negatives.lists)


def with_true(negatives: HardNegatives) -> HardNegatives:
    """With scores of true pairs, and none for a text that has no image."""
    true = torch.arange(len(negatives.dataset.texts)).half() / 8
    true = true.masked_fill(negatives.dataset.text_to_image < 0, -torch.inf)
    lists = replace(negatives.lists, true_scores=true)
    return replace(negatives, store=replace(negatives.store, lists=lists))


def test_scores_of_true_pairs_are_loaded_too(hub, tmp_path):
    """Or lists of the hub could not be drawn from by ambiguity."""
    data = export_cases.dataset()
    negatives = with_true(mined(tmp_path / "lists", data))
    push_negatives(negatives, NAME)
    found = load_negatives(NAME, data)
    assert same_lists(found.lists, negatives.lists)
    parquet = pytest.importorskip("pyarrow.parquet")
    path = hub.root / NAME / "text-to-image.parquet"
    table = parquet.read_table(path).to_pydict()
    assert table["true_score"][:3] == [0, 0.125, 0.25]
    arrow = pytest.importorskip("pyarrow")
    table["true_score"][1] = 1e6
    parquet.write_table(arrow.table(table), path)
    with pytest.raises(ValueError, match="true_score holds what are no numbers of float16"):
        load_negatives(NAME, data)


def test_datasets_reads_ids_and_scores(hub, tmp_path):
    datasets = pytest.importorskip("datasets")
    data = judged(export_cases.dataset())
    push_negatives(mined(tmp_path / "lists", data), NAME, judge="BLIP-ITM")
    folder, cache = str(hub.root / NAME), str(tmp_path / "cache")
    rows = datasets.load_dataset(folder, "image-to-text", split="train", cache_dir=cache)
    assert dict(rows[0]) == {
        "image_id": "a 0%",
        "text_ids": ["a3#0", "a3#2"],
        "scores": [0, -0.5],
    }
    assert rows[1]["text_ids"] == ["a0#0"]
    back = datasets.load_dataset(folder, "text-to-image", split="train", cache_dir=cache)
    assert back.column_names == ["text_id", "image_ids", "scores"]
    pairs = datasets.load_dataset(folder, "judged", split="train", cache_dir=cache)
    assert [tuple(row.values()) for row in pairs] == [
        ("a2", "a0#1", "true", pytest.approx(0.7)),
        ("a3", "a2#0", "ambiguous", 0),
    ]


def test_the_corrections_make_the_data_those_that_were_mined(hub, tmp_path):
    data = judged(export_cases.dataset())
    negatives = mined(tmp_path / "lists", data)
    push_negatives(negatives, NAME, judge="BLIP-ITM")
    with pytest.raises(ValueError, match="was mined from corpus"):
        load_negatives(NAME, export_cases.dataset())
    corrections = read_corrections(hub.root / NAME / "corrections.jsonl")
    corrected = apply_corrections(export_cases.dataset(), corrections)
    wanted = negatives.lists.checked(corrected.relation)  # the judged pairs are no negatives
    assert same_lists(load_negatives(NAME, corrected).lists, wanted)


def test_the_card_has_the_judge_the_fingerprint_and_no_folders(hub, tmp_path):
    data = judged(export_cases.dataset())
    negatives = mined(tmp_path / "lists", data)
    source = ModelSource(matcher="DualEncoder(name='/home/me/clip')", checkpoint="0123456789abcdef")
    manifest = negatives.store.manifest.model_copy(
        update={"sources": (source,), "filters": ("caption similarity below 0.9",)}
    )
    negatives = replace(negatives, store=replace(negatives.store, manifest=manifest))
    push_negatives(negatives, NAME, judge="BLIP-ITM base")
    text = (hub.root / NAME / "README.md").read_text()
    for part in (
        "| judge | BLIP-ITM base |",
        f"| fingerprint of the data | {data.fingerprint} |",
        "| corrections of the data | 2 pairs judged |",
        "| pairs judged true or ambiguous | 2 |",
        "| scored by | `DualEncoder(name='clip')` (weights 0123456789abcdef) |",
        "| filters | caption similarity below 0.9 |",
        "load_dataset('path/to/small').split('train')  # with the same corrections.jsonl",
        f"load_negatives('{NAME}', data)",
    ):
        assert part in text
    assert "/home/me" not in text + (hub.root / NAME / "manifest.json").read_text()
    assert "/home/me" in str(negatives.store.manifest)


@pytest.mark.parametrize(
    "damage", ["another id", "no file", "no table", "other queries", "too many"]
)
def test_damaged_tables_are_refused(damage, hub, tmp_path):
    import pyarrow
    from pyarrow import parquet

    data = export_cases.dataset()
    push_negatives(mined(tmp_path / "lists", data), NAME)
    path = hub.root / NAME / "image-to-text.parquet"
    columns = parquet.read_table(path).to_pydict()
    if damage == "no file":
        path.unlink()
    elif damage == "no table":
        path.write_bytes(b"PAR1")
    else:
        if damage == "another id":
            columns["text_ids"][0] = ["nobody"]
        elif damage == "other queries":
            columns["image_id"].reverse()
        else:
            columns["text_ids"][0] = columns["scores"][0] = None
        parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(ValueError, match="parquet is no table of negatives"):
        load_negatives(NAME, data)


def rewritten(path, change) -> None:
    """Change the columns of a table of the hub."""
    import pyarrow
    from pyarrow import parquet

    columns = parquet.read_table(path).to_pydict()
    change(columns)
    parquet.write_table(pyarrow.table(columns), path)


def put(column, values, row=0):
    return lambda columns: columns[column].__setitem__(row, values)


def one_score(columns):
    columns["scores"] = [[0.5] * len(listed) for listed in columns["scores"]]


CANNOT_BE = {
    "true": (
        put("text_ids", ["{own}", "{1}", "{2}", "{3}"]),
        "the lists hold 1 pairs that are true",
    ),
    "nan": (
        put("scores", [float("nan"), 0.3, 0.2, 0.1]),
        "1 lists hold scores that are no numbers",
    ),
    "infinite": (put("scores", [float("inf"), 0.3, 0.2, 0.1]), "1 lists hold scores"),
    "-inf": (put("scores", [0.3, 0.2, 0.1, -float("inf")]), "1 lists hold scores"),
    "huge": (put("scores", [1e30, 0.3, 0.2, 0.1]), "1 lists hold scores that are no numbers, or"),
    "all huge": (put("scores", [1e30] * 4), "1 lists hold scores that are no numbers, or larger"),
    "ascending": (put("scores", [0.1, 0.2, 0.3, 0.4]), "the scores of 1 lists ascend"),
    "twice": (put("text_ids", ["{0}", "{1}", "{0}", "{3}"]), "1 lists hold an item twice"),
    "repeated": (put("text_ids", ["{0}"] * 4), "1 lists hold an item twice"),
    "one score": (put("scores", [0.5] * 4), "1 of 48 lists have one score for all their items"),
    "always": (one_score, "of 48 lists have one score for all their items"),
    "more scores": (put("scores", [0.5] * 5), "no table of negatives"),
    "no score": (put("scores", [0.5, 0.4, 0.3, None]), "no table of negatives|no numbers"),
    "words": (put("text_ids", ["{0}", None, "{2}", "{3}"]), "no table of negatives"),
}


@pytest.mark.parametrize("fault", CANNOT_BE)
def test_lists_that_cannot_be_are_refused(fault, hub, tmp_path):
    """Ids stand in braces: of the list, by place, and of a caption of the image itself."""
    data = scenes(images=12).split("train")
    lists = negatives_cases.random_lists(data.relation, h=4, k=4)
    scores = [
        torch.rand(rows.shape, generator=negatives_cases.rng()).half().sort(descending=True).values
        for rows in (lists.texts, lists.images)
    ]
    lists = HardNegativeLists(lists.texts, lists.images, *scores)
    store = NegativeStore.of(lists, dataset=data.fingerprint, split="train", sources=())
    push_negatives(HardNegatives(store, data), NAME)
    assert same_lists(load_negatives(NAME, data).lists, lists)
    own = data.text_ids[int((data.text_to_image == 0).nonzero()[0])]
    change, told = CANNOT_BE[fault]

    def fill(columns):
        before = list(columns["text_ids"][0])
        change(columns)
        columns["text_ids"][0] = [
            name and name.format(*before, own=own) for name in columns["text_ids"][0]
        ]

    rewritten(hub.root / NAME / "image-to-text.parquet", fill)
    with pytest.raises(ValueError, match=told) as refusal:
        load_negatives(NAME, data)
    assert NAME in str(refusal.value)
    assert "mine again" in str(refusal.value) or fault == "true"


def test_equal_captions_may_have_equal_scores(hub, tmp_path):
    data = scenes(images=12).split("train")
    data = replace(data, texts=["a cat"] * len(data.texts), positives="id")
    lists = negatives_cases.random_lists(data.relation, h=4, k=2)
    scores = [torch.full(rows.shape, 0.5).half() for rows in (lists.texts, lists.images)]
    lists = HardNegativeLists(lists.texts, lists.images, *scores)
    store = NegativeStore.of(lists, dataset=data.fingerprint, split="train", sources=())
    push_negatives(HardNegatives(store, data), NAME)
    assert same_lists(load_negatives(NAME, data).lists, lists)


def test_a_manifest_of_endless_lists(hub, tmp_path):
    data = export_cases.dataset()
    push_negatives(mined(tmp_path / "lists", data), NAME)
    path = hub.root / NAME / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"texts_per_image": 10**12}))
    resealed(path.parent)
    with pytest.raises(ValueError, match=r"promises lists of 1,000,000,000,000 of"):
        load_negatives(NAME, data)


def test_names_that_are_not_there(hub):
    with pytest.raises(ValueError, match="me/none is no folder here and cannot be downloaded: 404"):
        load_negatives("me/none", export_cases.dataset())


def test_on_the_command_line(hub, tmp_path, capsys):
    data = scenes(images=12).split("train")
    lists = negatives_cases.random_lists(data.relation, h=6, k=3)
    store = NegativeStore.of(lists, dataset=data.fingerprint, split="train", sources=())
    store.save(tmp_path / "lists")
    asked = ("--data", "scenes:images=12")
    assert run("negatives", "push", tmp_path / "lists", NAME, *asked, "--public") == 0
    assert capsys.readouterr().out.strip() == f"https://hub.test/{NAME}"
    assert hub.calls[0] == (NAME, False)
    out = tmp_path / "out"
    assert run("negatives", "pull", NAME, *asked, "--output", out) == 0
    found = NegativeStore.open(out, fingerprint=data.fingerprint)
    assert same_lists(found.lists, lists)
    assert json.loads((out / "manifest.json").read_text())["corpus"] == data.fingerprint
    assert run("negatives", "pull", "me/none", *asked, "--output", tmp_path / "other") == 2
    assert "me/none is no folder here" in capsys.readouterr().err
