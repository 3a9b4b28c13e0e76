"""Every format that we write is read back equal, whatever captions, ids and names say."""

from __future__ import annotations

import csv
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import counterfoil
import recipes_cases
from counterfoil.core.io import read_json, write_json
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Pairs
from counterfoil.data import feature_cache
from counterfoil.data.corrections import judged_pairs, read_corrections, write_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FEATURES, FeaturesManifest, open_features
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.webdataset import write_webdataset
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer, open_tokenizer
from counterfoil.evaluation.caption_check import CaptionCheck
from counterfoil.evaluation.exchanges import WordExchanges
from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    ExplanationCheckpoint,
    WordCorrection,
)
from counterfoil.evaluation.foils.files import read_rows
from counterfoil.export.negatives import FORMATS, export_negatives
from counterfoil.hub import _write_negatives, load_negatives
from counterfoil.model import Model, load_model
from counterfoil.negatives.aoq_format import read_aoq, write_aoq
from counterfoil.negatives.generated import ChangedSpan, GeneratedCaption, GeneratedStore
from counterfoil.negatives.mining import HardNegatives
from counterfoil.negatives.similarity import CaptionSpace, CaptionSpaceManifest
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.negatives.teachers import TARGETS, TargetManifest, TargetStore, TeacherTargets
from counterfoil.papers.tags.true_rate import sheet_cell
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.search.calibrate import Calibration
from counterfoil.search.vector_index import (
    IndexEntry,
    IndexState,
    NewVectors,
    VectorIndex,
)
from counterfoil.training.logging import MetricsLog, read_metrics
from negatives_cases import random_lists

ODD = (
    "\"quoted\", and 'so'",
    "a\ttab;a|bar, a comma",
    "two\nlines\r\nand a return\rhere",
    "=1+1",
    "@SUM(A1)",
    "-1",
    "+49",
    "\x1b[2Ja\x07\x9b\x7f",
    "a\x85b\u2028c\u2029d\x1cd\x0be",
    "\ufeffmark\u200b\u202e",
    "犬 🐕 é e\u0301",
    "[red]a[/red] {{ b }} %s %(a)s \\n \\u0041 ${c}",
    "</script><!-- <b>",
    "null",
    "  blanks  on   both sides ",
    "..",
    "../../a#b?c%20d",
    "a\0b",
)
texts = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec="utf-8"), min_size=1)).filter(
    str.strip
)


@st.composite
def datasets(draw: Callable[..., object]) -> ImageTextDataset:
    """Six pictures with five captions each."""
    whole = load_dataset("scenes:images=6")
    ids = draw(st.lists(texts, min_size=6, max_size=6, unique=True))
    captions = draw(st.lists(texts, min_size=4, max_size=4))
    return replace(
        whole,
        name=draw(texts),
        image_ids=ids,
        text_ids=[f"{ids[row // 5]}#{row % 5}" for row in range(30)],
        texts=[captions[row % 4] for row in range(30)],
        splits=["train"] * 6,
    )


def same(one: HardNegativeLists, other: HardNegativeLists) -> bool:
    names = ("texts", "images", "text_scores", "image_scores")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in pairs)


def distinct(data: ImageTextDataset) -> ImageTextDataset:
    """The data without captions that say the same, which would be no negatives."""
    return replace(
        data, texts=[f"{text} {row}" if row else text for row, text in enumerate(data.texts)]
    )


def mined(data: ImageTextDataset) -> NegativeStore:
    lists = random_lists(data.relation, h=4, k=3)
    scores = [
        torch.linspace(1, 0, rows.shape[1]).half().expand_as(rows).contiguous()
        for rows in (lists.texts, lists.images)
    ]
    return NegativeStore.of(
        HardNegativeLists(lists.texts, lists.images, *scores),
        dataset=data.fingerprint,
        split=data.texts[0],
        sources=(ModelSource(matcher=data.texts[1], checkpoint="aa"),),
        filters=tuple(data.texts[:4]),
    )


def mined_lists(data: ImageTextDataset, folder: Path) -> None:
    store = mined(data)
    store.save(folder / "lists")
    found = NegativeStore.open(folder / "lists", fingerprint=data.fingerprint)
    assert same(found.lists, store.lists)
    assert found.manifest == store.manifest


def lists_of_the_hub(data: ImageTextDataset, folder: Path) -> None:
    data = distinct(data)
    store = mined(data)
    _write_negatives(HardNegatives(store, data), folder, "me/lists", data.texts[2])
    found = load_negatives(folder, data).store
    assert same(found.lists, store.lists)
    assert (found.manifest.split, found.manifest.filters) == (
        store.manifest.split,
        store.manifest.filters,
    )


def lists_of_aoq(data: ImageTextDataset, folder: Path) -> None:
    data = distinct(data)
    lists = mined(data).lists
    write_aoq(lists, folder, "odd", data.relation)
    found = read_aoq(folder, "odd", data.relation)
    assert torch.equal(found.texts, lists.texts)
    assert torch.equal(found.images, lists.images)


def foils(data: ImageTextDataset) -> list[GeneratedCaption]:
    return [
        GeneratedCaption(
            data.image_ids[row // 5],
            data.text_ids[row],
            data.texts[row],
            data.texts[(row + 1) % 4] + data.texts[row],
            data.texts[2],
            (ChangedSpan(data.texts[1], data.texts[0], 0, 1),),
            {data.texts[3]: 0.5},
        )
        for row in range(0, 30, 5)
    ]


def generated_captions(data: ImageTextDataset, folder: Path) -> None:
    told = {data.texts[1]: data.texts[2]}
    out = folder / "written"
    GeneratedStore.write(out, foils(data), data, writer=data.texts[3], settings=told, seed=0)
    found = GeneratedStore.open(out, fingerprint=data.fingerprint)
    assert list(found.foils()) == foils(data)
    assert (found.manifest.settings, found.manifest.writer) == (told, data.texts[3])
    rows = [plain for _, plain in read_rows(out / "foils.jsonl")]  # as a set of foils
    assert [row["foil"] for row in rows] == [foil.foil for foil in foils(data)]


def corrections(data: ImageTextDataset, folder: Path) -> None:
    judged = replace(
        data,
        extra_positives=Pairs(torch.tensor([2, 3]), torch.tensor([1, 2])),
        extra_weights=torch.tensor([0.5, 1.0]),
        ambiguous=Pairs(torch.tensor([1]), torch.tensor([29])),
    )
    told = judged_pairs(judged)
    write_corrections(folder / "corrections.jsonl", told)
    found = read_corrections(folder / "corrections.jsonl")
    assert [replace(each, where="") for each in found] == list(told)


def shards(data: ImageTextDataset, folder: Path) -> None:
    """A caption of a shard is a line."""
    write_webdataset(data, folder / "shards")
    found = load_dataset(folder / "shards")
    assert list(found.image_ids) == list(data.image_ids)
    assert list(found.texts) == [" ".join(text.split()) for text in data.texts]
    assert torch.equal(found.text_to_image, data.text_to_image)
    assert found.pictures.open(5).tobytes() == data.pictures.open(5).tobytes()


@cache
def model() -> Model:
    folder = Path(tempfile.mkdtemp())
    try:
        return load_model(recipes_cases.pixel_model(folder / "pixels"))
    finally:
        shutil.rmtree(folder)


def vectors(data: ImageTextDataset, folder: Path) -> None:
    model().write_vectors(data, folder / "vectors")
    found = load_dataset(folder / "vectors")
    assert list(found.image_ids) == list(data.image_ids)
    assert list(found.text_ids) == list(data.text_ids)
    assert list(found.texts) == list(data.texts)
    assert torch.equal(found.text_to_image, data.text_to_image)


def features(data: ImageTextDataset, folder: Path) -> None:
    values = np.arange(48, dtype=np.float32).reshape(6, 2, 4)
    told = FeaturesManifest(
        ids=list(data.image_ids), model=data.texts[0], settings={data.texts[1]: data.texts[2]}
    )
    FEATURES.save(folder / "features", told, {"features.npy": values})
    found = open_features(folder / "features")
    assert list(found.ids) == list(data.image_ids)
    assert FEATURES.read_manifest(folder / "features") == told
    assert np.array_equal(found.features.take(torch.arange(6)).values.numpy(), values)


def cached_states(data: ImageTextDataset, folder: Path) -> None:
    states = np.arange(48, dtype=np.float16).reshape(6, 2, 4)
    feature_cache._write(folder, list(data.image_ids), states)
    ((names, found),) = feature_cache._parts(folder)
    assert names == list(data.image_ids)
    assert np.array_equal(found, states)


def index(data: ImageTextDataset, folder: Path) -> None:
    columns = {data.texts[0]: data.texts[1], "year": 2026, data.texts[2]: 0.5}
    images = [
        IndexEntry(name, place=name, content=name, stamp=name, columns=columns)
        for name in data.image_ids
    ]
    captions = [
        IndexEntry(name, text=text, image=data.image_ids[row // 5])
        for row, (name, text) in enumerate(zip(data.text_ids, data.texts))
    ]
    state = IndexState(identity=data.texts[0], model=data.texts[1], width=2)
    rng = torch.Generator().manual_seed(0)
    both = [torch.randn(len(entries), 2, generator=rng) for entries in (images, captions)]
    made = VectorIndex.create(folder / "index", state)
    made.change(images=NewVectors(images, both[0]), texts=NewVectors(captions, both[1]))
    made.close()
    found = VectorIndex(folder / "index")
    assert [found.images.entry(row) for row in range(6)] == images
    assert [found.texts.entry(row) for row in range(30)] == captions
    assert torch.equal(found.images.vectors(torch.arange(6)), both[0])
    assert (found.state.identity, found.state.model) == (data.texts[0], data.texts[1])
    found.verify()
    found.close()


def points_of_captions(data: ImageTextDataset, folder: Path) -> None:
    told = CaptionSpaceManifest(
        corpus=data.fingerprint,
        split=data.texts[0],
        text_count=30,
        width=2,
        components=2,
        passes=1,
        seed=0,
        stem=False,
        version=data.texts[1],
    )
    points = np.arange(60, dtype=np.float32).reshape(30, 2)
    CaptionSpace(told, points).save(folder / "points")
    found = CaptionSpace.open(folder / "points", fingerprint=data.fingerprint)
    assert np.array_equal(found.points, points)
    assert found.manifest == told


def targets(data: ImageTextDataset, folder: Path) -> None:
    source = ModelSource(matcher=data.texts[0], spec=data.texts[1], checkpoint="aa")
    told = TargetManifest(
        corpus=data.fingerprint,
        form="models",
        precision="fp32",
        image_count=6,
        text_count=30,
        teachers=(TeacherTargets(source=source, scale=1, mean=0, deviation=1, plain=True),),
        version=data.texts[2],
    )
    TARGETS.save(folder / "targets", told)
    assert TargetStore.open(folder / "targets", fingerprint=data.fingerprint).manifest == told


def exchanges(data: ImageTextDataset, folder: Path) -> None:
    told = WordExchanges({t: tuple(data.texts[:3]) for t in data.texts}, 0.1, 2.0, 0.5, 9, "m")
    told.write(folder)
    assert WordExchanges.read(folder) == told


def calibration(data: ImageTextDataset, folder: Path) -> None:
    told = Calibration((0.1, 0.2, 1e-300), -0.25, 30)
    told.write(folder)
    assert Calibration.read(folder) == told


def caption_check(data: ImageTextDataset, folder: Path) -> None:
    for low, high in ((-0.25, 1e-300), (None, 2.0), (None, None)):
        told = CaptionCheck(low, high, (0.1, 0.25), 50, 99, data.texts[0], "m")
        told.write(folder)
        assert CaptionCheck.read(folder) == told


def tokenizer(data: ImageTextDataset, folder: Path) -> None:
    own = WordTokenizer([*SPECIAL, *dict.fromkeys([*data.texts, *data.image_ids])], longest=9)
    own.save(folder)
    found = open_tokenizer(folder)
    assert (found.words, found.longest, found.digest) == (own.words, own.longest, own.digest)


def metrics(data: ImageTextDataset, folder: Path) -> None:
    lines = [{"loss": 0.5, text: text} for text in data.texts[:4]]
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step, line in enumerate(lines):
            log.write(step, line)
    told = [{"step": step, **line} for step, line in enumerate(lines)]
    assert read_metrics(folder / "metrics.jsonl") == told


def tensors(data: ImageTextDataset, folder: Path) -> None:
    about = {"texts": list(data.texts), data.texts[0]: {"id": data.image_ids[0]}}
    write_tensors(folder / "a.safetensors", {"a": torch.arange(3)}, about)
    found, told = read_tensors(folder / "a.safetensors", "numbers")
    assert told == about
    assert torch.equal(found["a"], torch.arange(3))


def json_files(data: ImageTextDataset, folder: Path) -> None:
    """Evaluations, ids of vectors, facts of runs."""
    told = {"corpus": data.name, **{text: [text, {"id": text}] for text in data.texts}}
    write_json(folder / "evaluation.json", told)
    assert read_json(folder / "evaluation.json", "numbers") == told


def sheets(data: ImageTextDataset, folder: Path) -> None:
    """A cell comes back but for the apostrophe that keeps it from being a formula."""
    with (folder / "sheet.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([sheet_cell(text)] for text in data.texts)
    with (folder / "sheet.csv").open(encoding="utf-8", newline="") as file:
        found = [row[0] for row in csv.reader(file)]
    assert [sheet_cell(text.removeprefix("'")) for text in found] == found
    assert [text in (told, f"'{told}") for text, told in zip(found, data.texts)] == [True] * 30


def explanations(data: ImageTextDataset, folder: Path) -> None:
    told = [
        Explanation(
            text,
            0.5,
            (ExplainedWord(text, 0, 1, 0.5, corrections=(WordCorrection(text, 0.25),)),),
            CorrectedCaption(text, 0.75, ((0, 1),)),
        )
        for text in data.texts[:4]
    ]
    facts = {"model": data.texts[0], "data": data.name}
    ExplanationCheckpoint(folder / "a.jsonl", facts, resume=False).save(0, told)
    assert ExplanationCheckpoint(folder / "a.jsonl", facts, resume=True).load(0) == told


def strings(value: object) -> Iterator[str]:
    """All strings of plain JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def exported(data: ImageTextDataset, folder: Path) -> None:
    """Every caption and id of the lists, in each format for other programs, by its own reader."""
    data = distinct(data)
    mined(data).save(folder / "lists")
    known = set(data.texts)
    for form in FORMATS:
        out = folder / form
        export_negatives(folder / "lists", form, out, data, most=2)
        lines = [
            json.loads(line)
            for file in out.glob("*.jsonl")
            for line in file.read_text("utf-8").split("\n")[:-1]
        ]
        if lines:
            assert known <= set(strings(lines))
        if form == "open-clip":
            with (out / "train.tsv").open(encoding="utf-8", newline="") as file:
                table = list(csv.DictReader(file, delimiter="\t"))
            assert [row["title"] for row in table] == [" ".join(t.split()) for t in data.texts]
            plain = [row for _, row in read_rows(out / "train.tsv")]
            assert all(set(row["neg_caption"]) <= known for row in plain)
        if form == "trec":
            for direction, queries in (
                ("image-to-text", data.image_ids),
                ("text-to-image", data.text_ids),
            ):
                lines = (out / f"{direction}.run").read_text("utf-8").splitlines()
                fields = [line.split() for line in lines]
                assert {len(row) for row in fields} == {6}
                assert {unquote(row[0]) for row in fields} == set(queries)
        if form == "webdataset":
            found = load_dataset(out)
            assert list(found.texts) == [" ".join(text.split()) for text in data.texts]


WRITTEN = (
    mined_lists,
    lists_of_the_hub,
    lists_of_aoq,
    generated_captions,
    corrections,
    shards,
    vectors,
    features,
    cached_states,
    index,
    points_of_captions,
    targets,
    exchanges,
    calibration,
    caption_check,
    tokenizer,
    metrics,
    tensors,
    json_files,
    sheets,
    explanations,
    exported,
)


@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_written_is_read(written, tmp_path_factory):
    @settings(
        max_examples=2 if written is exported else 6,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=datasets())
    def comes_back(data):
        written(data, tmp_path_factory.mktemp(written.__name__))

    comes_back()


def test_every_kind_of_folder_is_tried():
    """A new one is added above."""
    source = Path(counterfoil.__file__).parent
    found = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"^(\w+) = ArtifactFormat\(", path.read_text("utf-8"), re.MULTILINE)
    }
    here = {"FEATURES", "GENERATED", "MINED", "SPACE", "TARGETS"}
    # written and read back in tests/core/test_artifacts.py, and in the tests of what they belong to
    artifacts = {"ENCODINGS", "EVALUATION", "INDEX", "VECTORS"}
    assert found == here | artifacts | {"CALIBRATED", "CHECKED", "EXCHANGED", "STATES", "WORK"}
