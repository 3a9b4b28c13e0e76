"""Every reader on damaged files: an answer or a sentence, never a traceback or a hang.

A case is a folder that is written once and a function that reads it. Each of its files is damaged
in the ways that fit it, one at a time in a copy, from a fixed seed. Reading then ends in time, and
either raises what the command line prints as one sentence (`ValueError`, `OSError`) or returns
what it returned before. Of files that are people's own data (captions, vectors) another answer is
right too, if it is a whole one: `well_formed` says what that is.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import os
import pickle
import random
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import corpus_cases
import foil_cases
from counterfoil.analysis.runs import caption_difficulty, foil_accuracies, training_cost
from counterfoil.core.io import write_array, write_json
from counterfoil.core.resumable import write_facts
from counterfoil.data.corrections import read_crowd_votes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FEATURES, FeaturesManifest, open_feature_table
from counterfoil.data.phrases import PhraseFile
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import read_vocabulary
from counterfoil.data.word_vectors import word_vectors
from counterfoil.evaluation.cxc import _rated
from counterfoil.evaluation.exchanges import WordExchanges
from counterfoil.evaluation.explain import Explanation, ExplanationCheckpoint
from counterfoil.evaluation.foils.files import read_rows
from counterfoil.evaluation.foils.readers import detect_format, parse_entries
from counterfoil.evaluation.protocols import protocol_by_name
from counterfoil.evaluation.truth import read_true_lists
from counterfoil.model import load_model
from counterfoil.models.checkpoints import read_checkpoint
from counterfoil.negatives.aoq_format import open_lists
from counterfoil.negatives.generated import ChangedSpan, GeneratedCaption, GeneratedStore
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.similarity import CaptionSpace, LatentSpaceConfig
from counterfoil.negatives.store import NegativeStore
from counterfoil.negatives.teachers import TargetStore, TeacherModel, write_targets
from counterfoil.papers.tags.true_rate import _read_sheet
from counterfoil.pipelines.run import stage_records
from counterfoil.pipelines.stages.compare import learning_curve
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.search.calibrate import Calibration
from counterfoil.search.index import build_index, open_index
from saved_cases import MODELS, PHOTOS

pytestmark = pytest.mark.slow

SECONDS = 20  # of one reading; the slowest takes about one
LONGEST = 10_000  # characters of a sentence, which may quote a caption or an id


class Hang(BaseException):
    """A reading took longer than `SECONDS`."""


@contextmanager
def time_limit() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    # a library that waits in C, as for a pipe, is not interrupted: end the process with a report
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


# Answers, as values that can be compared.


def plain(value: Any) -> Any:
    """A value of lists, dictionaries and numbers that is equal where the answers are."""
    match value:
        case Tensor():
            return plain(value.numpy())
        case np.ndarray():
            return value.dtype.name, value.shape, value.tobytes()
        case ImageTextDataset():
            return plain(well_formed(value))
        case dict():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _ if is_dataclass(value):
            return plain(asdict(value))
    return value


def well_formed(dataset: ImageTextDataset) -> dict[str, Any]:
    """The parts of a data set, after a check of what every reader promises."""
    strings = [*dataset.image_ids, *dataset.text_ids, *dataset.texts, *dataset.splits]
    assert all(isinstance(text, str) for text in strings)
    assert all(dataset.splits)
    parts: dict[str, Any] = {
        "ids": list(dataset.image_ids),
        "texts": list(dataset.texts),
        "relation": dataset.text_to_image,
        "fingerprint": dataset.fingerprint,
        "splits": list(dataset.splits),
    }
    for name, values in (("images", dataset.features), ("vectors", dataset.text_features)):
        if values is not None:
            taken = values.take(torch.arange(len(values)))
            assert taken.values.isfinite().all()
            parts[name] = taken.values
            if taken.boxes is not None:
                parts[f"{name} boxes"] = taken.boxes
    return parts


# Cases.


@dataclass(frozen=True)
class Case:
    """A folder, how it is read, and whether any other answer is wrong."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    sealed: bool = False  # its files carry checksums, or are only ours to write
    rounds: int = 1  # of all damages of every file
    only: tuple[str, ...] = ()  # endings of the files to damage; () for all


def saved(*names: str) -> Callable[[Path], object]:
    """Saved models, by the names of the folders."""

    def write(folder: Path) -> None:
        for name in names:
            shutil.copytree(MODELS / name, folder / name)

    return write


def data(name: str = "") -> Callable[[Path], Any]:
    return lambda folder: load_dataset(folder / name)


def photos() -> ImageTextDataset:
    return load_dataset(PHOTOS)


def new_index(folder: Path) -> None:
    build_index(load_model(MODELS / "vse"), photos(), folder / "index").close()


def index(folder: Path) -> Any:
    with open_index(folder / "index") as opened:
        hits = opened.search("A red circle next to a square.", 5)
        hits += opened.search_id(hits[0].id, 5, find="captions")
    return [(hit.id, hit.score, hit.captions, hit.image_id) for hit in hits]


def read_table(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        gc.collect()  # closes LMDB environments, whose inodes are given to the next copy
        opened = open_feature_table(folder / name)
        taken = opened.features.take(torch.arange(len(opened.features)))
        return list(opened.ids or ()), taken.values, taken.mask, taken.boxes

    return read


def new_targets(folder: Path) -> None:
    opened = load_model(MODELS / "vse")
    inputs = opened.processor.process(photos().split("train"))
    write_targets(folder / "taught", [TeacherModel(opened.model, inputs, opened.source())])


def taught(folder: Path) -> Any:
    store = TargetStore.open(folder / "taught", fingerprint=train_fingerprint())
    rows = torch.arange(4)
    return [part.rows(rows).tokens.shape for pair in store.encodings for part in pair]


def new_captions(folder: Path) -> None:
    train = photos().split("train")
    foils = (
        GeneratedCaption(
            image=train.image_ids[owner],
            text=name,
            caption=text,
            foil=f"Never{text[len(first) :]}",
            kind="noun",
            changed=(ChangedSpan(first, "Never", 0, 5),),
        )
        for name, text, owner in zip(train.text_ids, train.texts, train.text_to_image.tolist())
        for first in text.split()[:1]
    )
    GeneratedStore.write(folder / "written", foils, train, writer="rules", settings={}, seed=0)


def written(folder: Path) -> Any:
    return list(GeneratedStore.open(folder / "written", fingerprint=train_fingerprint()).foils())


_TRAIN: list[str] = []


def train_fingerprint() -> str:
    if not _TRAIN:
        _TRAIN.append(photos().split("train").fingerprint)
    return _TRAIN[0]


def pictures(folder: Path, count: int = 4) -> list[str]:
    return [path.name for path in corpus_cases.write_pictures(folder, range(count))]


def write_lines(path: Path, rows: Iterable[object]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(ending: str, folder: Path) -> None:
    separator = "\t" if ending == ".tsv" else ","
    rows = [["image", "caption", "split"]]
    rows += [[name, f"a dog by {name}", "train"] for name in pictures(folder) * 2]
    text = "".join(separator.join(row) + "\n" for row in rows)
    (folder / f"captions{ending}").write_text(text)


def jsonl(folder: Path) -> None:
    rows = [
        {"image": name, "captions": ["a dog", f"a cat on {name}"], "id": name, "split": "train"}
        for name in pictures(folder)
    ]
    write_lines(folder / "captions.jsonl", rows)


def precomp(folder: Path) -> None:
    for split in ("train", "dev", "test"):
        texts, ids = [f"a dog {n} of {split}" for n in range(8)], [f"{split}{n}" for n in range(4)]
        corpus_cases.write_split(folder, split, corpus_cases.random_array(4, 3, 5), texts, ids)
        np.save(folder / f"{split}_boxes.npy", np.abs(corpus_cases.random_array(4, 3, 4)))
        np.save(folder / f"{split}_lengths.npy", np.array([1, 2, 3, 3]))
    (folder / "test_owner.txt").write_text("".join(f"{n // 2}\n" for n in range(8)))


def embeddings(folder: Path) -> None:
    np.save(folder / "images.npy", corpus_cases.random_array(4, 6))
    np.save(folder / "texts.npy", corpus_cases.random_array(8, 6, seed=1))
    np.save(folder / "owner.npy", np.arange(8) // 2)
    write_json(folder / "image_ids.json", ["a", "b", "c", "d"])
    write_json(folder / "splits.json", ["train", "train", "dev", "test"])
    (folder / "captions.txt").write_text("".join(f"a dog {n}\n" for n in range(8)))


def opened_pictures(name: str) -> Callable[[Path], Any]:
    """A data set and what its pictures look like."""

    def read(folder: Path) -> Any:
        dataset = load_dataset(folder / name)
        assert dataset.pictures is not None
        opened = [np.asarray(dataset.pictures.open(row)) for row in range(len(dataset))]
        return plain(dataset), opened

    return read


def of_format(name: str) -> Callable[[Path], object]:
    """A small data set as files of a format."""

    def write(folder: Path) -> None:
        import format_cases  # it needs datasets

        with tempfile.TemporaryDirectory() as scratch:
            contents = format_cases.contents_of(Path(scratch), None)
            place = getattr(format_cases, name)(Path(scratch), contents)
            shutil.copytree(place, folder / place.name)

    return write


def corrections(folder: Path) -> None:
    jsonl(folder)
    rows = [
        {"do": "drop", "image": "0.png", "was": "a dog"},
        {"do": "fix", "caption": "1.png#1", "was": "a cat on 1.png", "text": "a cow"},
        {"do": "true", "caption": "1.png#0", "was": "a dog", "image": "2.png", "weight": 0.5},
        {"do": "keep", "caption": "2.png#0", "was": "a dog"},
    ]
    write_lines(folder / "corrections.jsonl", rows)


def votes(folder: Path) -> None:
    (folder / "votes.txt").write_text(
        "".join(f"a{n}\ta{n}#0\t0.6\t{n + 2}\t1\n" for n in (0, 2, 3))
    )


def aoq(folder: Path) -> None:
    write_array(folder / "i2t_x.npy", (np.arange(4)[:, None] * 5 + 5 + np.arange(3)) % 20)
    write_array(folder / "t2i_x.npy", (np.arange(20)[:, None] // 5 + 1 + np.arange(2)) % 4)


FOILS = (
    foil_cases.sugarcrepe, foil_cases.aro, foil_cases.order, foil_cases.valse,
    foil_cases.vsr, foil_cases.winoground, foil_cases.negclip,
)  # fmt: skip


def foils(folder: Path) -> None:
    for number, write in enumerate(FOILS):
        (folder / str(number)).mkdir()
        write(folder / str(number))
    (folder / "7").mkdir()
    text = "image,caption,foils\n1.png,a dog,\"['a cat', 'a cow']\"\n2.png,a hen,\"['a pig']\"\n"
    (folder / "7" / "own.csv").write_text(text)


def read_foils(folder: Path) -> Any:
    found = []
    for path in sorted(folder.glob("*/*")):
        if path.suffix in (".json", ".jsonl", ".csv", ".tsv"):
            rows = read_rows(path)
            found.append(parse_entries(detect_format(path, rows), path, rows))
    return found


def ground_truth(folder: Path) -> None:
    write_json(folder / "i2t.json", {str(n): [n, n + 10] for n in range(3)})
    write_json(folder / "cxc.json", {str(n): [[n, 4.5], [n + 1, 2]] for n in range(3)})


def read_ground_truth(folder: Path) -> Any:
    lists, rated = read_true_lists(folder / "i2t.json")
    return (
        {query: sorted(items) for query, items in lists.items()},
        rated,
        _rated(folder / "cxc.json"),
    )


TEXTS = ["a tall man rides a horse", "a dog"]


def phrases(folder: Path) -> None:
    graphs = {
        "0": [{"kind": "object", "spans": [[2, 10]]}, {"kind": "relation", "spans": [[11, 16]]}],
        "1": [["dog"], ["dog", "old"], {"tuple": ["dog", "chase", "cat"]}],
    }
    write_json(folder / "phrases.json", graphs)


def read_phrases(folder: Path) -> Any:
    return PhraseFile(path=str(folder / "phrases.json")).phrases(TEXTS, ["0", "1"])


def calibration(folder: Path) -> None:
    Calibration((1.0, 2.0, 3.0), -4.0, 50).write(folder)


def metrics(folder: Path) -> None:
    lines: list[dict[str, Any]] = []
    for step in range(1, 9):
        written_log = {"written_above": 50.0, "written_gap": 0.1, "loss_written": 0.5}
        written_log |= {f"written_gap_p{level}": 0.1 for level in (10, 25, 50, 75, 90)}
        lines.append({"step": step, "epoch": step / 4, "loss": 1 / step, "seconds": 2.0 * step})
        lines[-1] |= written_log | {"pairs_per_second": 100.0, "memory_mb": 12.5}
        if step % 4 == 0:
            dev = {"dev_rsum": 100.0 + step, "dev_i2t_r1": 1.0, "dev_t2i_r1": 2.0}
            lines.append({"step": step, "epoch": step / 4, **dev})
    write_lines(folder / "metrics.jsonl", lines)


def read_log(folder: Path) -> Any:
    curve = learning_curve("a", folder / "metrics.jsonl")
    numbers = [*curve.epochs, *curve.dev, *curve.loss] if hasattr(curve, "dev") else []
    assert all(isinstance(number, float | int) for number in numbers)
    return curve, training_cost("a", folder), caption_difficulty("a", folder)


def evaluation(folder: Path) -> None:
    test = photos().split("train")
    member = load_model(MODELS / "vse").embed(test)
    made = RetrievalEvaluation.of([member], test, protocol_by_name("whole"))
    made.save(folder / "test", models=("vse",))


def read_evaluation(folder: Path) -> Any:
    made = RetrievalEvaluation.open(folder / "test")
    return made.to_dict(), made.report.numbers, made.texts, made.images


def stage(folder: Path) -> None:
    (folder / "train").mkdir()
    note = {"recipe": "a", "kind": "train", "state": "done", "digest": "0", "counterfoil": "0.2",
            "stage": {"kind": "train"}, "data": {"name": "a", "fingerprint": "b"}}  # fmt: skip
    write_json(folder / "train.json", note)


def explanations(folder: Path) -> None:
    made = Explanation("a dog", 0.5, ())
    write_facts(folder / "out.jsonl.partial", {"a": 1})
    write_json(folder / "out.jsonl.partial" / "000000.json", [made.to_dict()])


def read_explanations(folder: Path) -> Any:
    return ExplanationCheckpoint(folder / "out.jsonl", {"a": 1}, resume=True).load(0)


def sheet(folder: Path) -> None:
    rows = "".join(f"s{n},a.jpg,a dog,{answer}\n" for n, answer in enumerate(["true", "false", ""]))
    (folder / "sheet.csv").write_text(f"item,image,sentence,answer\n{rows}")


def vocabulary(folder: Path) -> None:
    words = ["<pad>", "<start>", "<end>", "<unk>", "a", "dog"]
    plain_words = {"word2idx": {word: n for n, word in enumerate(words)}, "idx": len(words)}
    write_json(folder / "vocab.json", plain_words)


def glove(folder: Path) -> None:
    (folder / "glove.txt").write_text("".join(f"{w} 0.5 {n} 1\n" for n, w in enumerate("abcdef")))


def read_glove(folder: Path) -> Any:
    found = word_vectors(folder / "glove.txt", ["a", "c", "z"])
    assert found.vectors.isfinite().all()
    return found.rows, found.vectors


def checkpoint(folder: Path) -> None:
    state = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    torch.save({"model": [state, state], "epoch": 3}, folder / "model.pth.tar")


def there(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Refuse a file that is missing, as it may be."""

    def reading(folder: Path) -> Any:
        value = read(folder)
        if value is None:
            raise ValueError(f"{folder} has none")
        return value

    return reading


def exchanges(folder: Path) -> None:
    similar = {"red": ("blue", "green"), "dog": ("cat",)}
    WordExchanges(similar, 0.25, 12.5, 0.125, 99, "a model").write(folder)


def lists(folder: Path) -> None:
    train = photos().split("train")
    mined = mine_hard_negatives(str(MODELS / "vse"), train, texts_per_image=8, images_per_text=4)
    mined.save(folder / "lists")


def lists_of(name: str) -> Callable[[Path], Any]:
    return lambda folder: NegativeStore.open(folder / name, fingerprint=train_fingerprint()).lists


def feature_folder(folder: Path) -> None:
    values = np.random.default_rng(0).random((6, 3, 4), np.float32)
    np.save(folder / "features.npy", values)
    manifest = FeaturesManifest(ids=list("abcdef"), kind="float32", model="", settings={})
    FEATURES.write_manifest(folder, manifest, ["features.npy"])


def accuracies(folder: Path) -> None:
    line = {"of": "all", "measure": "text", "value": 50.0, "chance": 25.0,
            "interval": {"low": 40.0, "high": 60.0}}  # fmt: skip
    write_json(folder / "foils.json", {"set": "a", "model": "b", "lines": [line, line]})


def space(folder: Path) -> None:
    config = LatentSpaceConfig(components=2, passes=1, stem=False)
    CaptionSpace.of(photos().split("train"), config).save(folder / "space")


def read_space(folder: Path) -> Any:
    return CaptionSpace.open(folder / "space", fingerprint=train_fingerprint()).points


def model(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        opened = load_model(folder / name)
        if name != "vse":  # several vectors of an item, or pairs only
            return opened.processor.process_texts(["a red circle"]).values
        return opened.encode_texts(["a red circle", "a blue square"])

    return read


def uniter_texts(folder: Path) -> None:
    import uniter_files

    uniter_files.text_database(folder / "itm_train.db")


def uniter_images(folder: Path) -> None:
    import uniter_files

    uniter_files.image_database(folder, "feat_th0.2_max100_min10", compressed=True)


def detector(folder: Path) -> None:
    import uniter_files

    uniter_files.tsv(folder / "boxes.tsv", [(7, 3), (8, 2), (9, 4)])


CASES = {
    "vse": Case(saved("vse"), model("vse"), sealed=True),
    "scan": Case(saved("scan"), model("scan"), sealed=True),
    "uniter": Case(saved("uniter"), model("uniter"), sealed=True),
    "index": Case(new_index, index),
    "taught": Case(new_targets, taught, sealed=True),
    "written": Case(new_captions, written, sealed=True),
    "karpathy": Case(of_format("karpathy"), data("karpathy"), rounds=3, only=(".json",)),
    "jsonl": Case(jsonl, data(), rounds=3, only=(".jsonl",)),
    "csv": Case(partial(table, ".csv"), data(), rounds=3, only=(".csv",)),
    "tsv": Case(partial(table, ".tsv"), data(), rounds=2, only=(".tsv",)),
    "txt beside": Case(of_format("texts_beside_pictures"), data("beside"), only=(".txt",)),
    "pictures": Case(of_format("texts_beside_pictures"), opened_pictures("beside"), only=(".png",)),
    "precomp": Case(precomp, data()),
    "embeddings": Case(embeddings, data(), rounds=2),
    "webdataset": Case(of_format("webdataset"), opened_pictures("shards"), rounds=2),
    "parquet": Case(of_format("parquet"), data("parquet")),
    "hugging face": Case(of_format("saved_to_disk"), data("saved")),
    "corrections": Case(corrections, data(), rounds=3, only=("corrections.jsonl",)),
    "votes": Case(
        votes,
        lambda folder: read_crowd_votes(folder / "votes.txt", corpus_cases.small_corpus()),
        rounds=2,
    ),
    "aoq": Case(
        aoq, lambda folder: open_lists(folder, corpus_cases.small_corpus((5, 5, 5, 5))), rounds=2
    ),
    "foils": Case(foils, read_foils, only=(".json", ".jsonl", ".csv", ".tsv")),
    "ground truth": Case(ground_truth, read_ground_truth, rounds=2),
    "phrases": Case(phrases, read_phrases, rounds=3),
    "calibration": Case(calibration, there(Calibration.read), rounds=2, sealed=True),
    "exchanges": Case(exchanges, there(WordExchanges.read), rounds=2, sealed=True),
    "lists": Case(lists, lists_of("lists"), rounds=2, only=(".npy",), sealed=True),
    "feature folder": Case(feature_folder, read_table("."), rounds=2, only=(".npy",), sealed=True),
    "metrics": Case(metrics, read_log, rounds=3),
    "evaluation": Case(evaluation, read_evaluation, rounds=3),
    "stage": Case(stage, stage_records),
    "explanations": Case(explanations, read_explanations, rounds=2),
    "sheet": Case(sheet, lambda folder: _read_sheet(folder / "sheet.csv"), rounds=2),
    "vocabulary": Case(
        vocabulary, lambda folder: read_vocabulary(folder / "vocab.json").words, rounds=2
    ),
    "word vectors": Case(glove, read_glove, rounds=2),
    "checkpoint": Case(
        checkpoint, lambda folder: sorted(read_checkpoint(folder / "model.pth.tar").state), rounds=3
    ),
    "accuracies": Case(accuracies, lambda folder: foil_accuracies([folder / "foils.json"])),
    "caption space": Case(space, read_space),
    "txt_db": Case(uniter_texts, data(), rounds=2),
    "img_db": Case(uniter_images, read_table("."), rounds=2),
    "detector table": Case(detector, read_table("boxes.tsv"), rounds=3),
}


# Damages. Each takes a file and random numbers, and replaces the file.

Damage = Callable[[Path, random.Random], None]


def put(path: Path, content: bytes) -> None:
    """Replace a file by a new one: others may hold the old one mapped, or be a link to it."""
    path.unlink()
    path.write_bytes(content)


def truncate(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    put(path, content[: rng.randrange(max(len(content), 1))])


def empty(path: Path, rng: random.Random) -> None:
    put(path, b"")


def flip(path: Path, rng: random.Random) -> None:
    """Flip bits, half of the time in the first bytes, where headers are."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 8)) if content else 0):
        end = min(len(content), rng.choice((200, len(content))))
        content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    put(path, bytes(content))


def noise(path: Path, rng: random.Random) -> None:
    put(path, rng.randbytes(300))


def insert(path: Path, rng: random.Random) -> None:
    content, extra = (
        path.read_bytes(),
        rng.choice((b"\x00", b"\xff\xfe", b"\r\n", b"\xe9", b'"', b"]")),
    )
    at = rng.randrange(len(content) + 1)
    put(path, content[:at] + extra + content[at:])


def repeat(path: Path, rng: random.Random) -> None:
    put(path, path.read_bytes() * 2)


def pipe(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def folder_instead(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def device(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def swap(path: Path, rng: random.Random) -> None:
    """Another file of the folder in its place."""
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file()]
    put(path, rng.choice(others).read_bytes())


def utf16(path: Path, rng: random.Random) -> None:
    put(path, path.read_bytes().decode().encode("utf-16"))


def lines(path: Path, rng: random.Random) -> None:
    """One line less, twice, or an empty one."""
    rows = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(max(len(rows), 1))
    put(
        path,
        b"".join(rows[:at] + rng.choice(([], rows[at : at + 1] * 2, [b"\n"])) + rows[at + 1 :]),
    )


def nest(path: Path, rng: random.Random) -> None:
    deep = rng.choice((b"[" * 100_000, b'{"a":' * 100_000, b"[" * 300 + b"]" * 300))
    put(path, rng.choice((deep + b"\n", path.read_bytes() + deep + b"\n")))


WRONG = (
    None, True, -1, 0, 10**9, 10**30, 1.5, float("nan"), float("inf"), 1e308, "x", "", [], {}, [[]],
    {"a": 1}, [None], ["train"], "\ud800", "a\x00b", "1" * 5000, [0] * 3,
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for key in range(min(len(value), 4)):
            yield from places(value[key], (*at, key))


def other_type(value: Any, rng: random.Random) -> Any:
    """A value with one part left out, or of another type."""
    at = rng.choice(list(places(value)))
    if not at:
        return rng.choice(WRONG)
    changed = json.loads(json.dumps(value))
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    if rng.random() < 0.3:
        del inner[at[-1]]
    else:
        inner[at[-1]] = rng.choice(WRONG)
    return changed


def retype(path: Path, rng: random.Random) -> None:
    if path.suffix == ".json":
        put(path, json.dumps(other_type(json.loads(path.read_bytes()), rng)).encode())
        return
    rows = path.read_bytes().splitlines()
    at = rng.randrange(len(rows))
    rows[at] = json.dumps(other_type(json.loads(rows[at]), rng)).encode()
    put(path, b"\n".join(rows) + b"\n")


def extra_key(path: Path, rng: random.Random) -> None:
    text, added = path.read_text(), rng.choice(('"unknown": [1]', '"a": "b"'))
    put(path, text.replace("{", "{" + added + ", ", 1).encode())


SHAPES = (
    "(-1, 4)", f"({-(2**40)},)", f"({2**40},)", f"({2**40}, 7)", "(0, 4611686018427387904)",
    "(8589934592, 8589934592)", "()", "(True,)", "(4.0,)", "4", "(4, 4", "(" * 300, "('4',)",
    "(0,)",
)  # fmt: skip
TYPES = ("<f4", "<f8", "<i8", "<i4", "|O", "|S0", "|V8", "<U4", "nonsense", "<f16", ">f4")


def header(path: Path, rng: random.Random) -> None:
    """Another shape or type in the header of a `.npy` file."""
    content, array = path.read_bytes(), np.load(path)
    shape, kind = str(array.shape), array.dtype.str
    if rng.random() < 0.6:
        shape = rng.choice(SHAPES)
    else:
        kind = rng.choice(TYPES)
    text = f"{{'descr': '{kind}', 'fortran_order': {rng.random() < 0.2}, 'shape': {shape}, }}"
    start = 10 + int.from_bytes(content[8:10], "little")
    filled = text.encode().ljust(start - 11) + b"\n"
    put(path, content[:8] + len(filled).to_bytes(2, "little") + filled + content[start:])


def another_array(path: Path, rng: random.Random) -> None:
    """An array of another type, shape, order or with other numbers, written by numpy."""
    array = np.load(path)
    first = array[:1]
    choices: list[Callable[[], Any]] = [
        lambda: np.array(1.0, array.dtype),
        lambda: array.astype(
            rng.choice(["complex64", "U3", "bool", "f2", "f8", "i2", "u8", ">f4"])
        ),
        lambda: array[: len(array) // 2],
        lambda: array[:0],
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: np.asfortranarray(array),
        lambda: np.concatenate([array, first]),
        lambda: array[..., :-1],
        lambda: np.full_like(array, np.nan if array.dtype.kind == "f" else -7),
        lambda: np.full_like(array, np.inf if array.dtype.kind == "f" else 10**4),
        lambda: np.zeros_like(array),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = io.BytesIO()
        np.save(made, rng.choice(choices)())
    put(path, made.getvalue())


def forged_pickle(path: Path, rng: random.Random) -> None:
    put(path, pickle.dumps({"a": [1, 2]}))


ANY: tuple[Damage, ...] = (
    truncate, truncate, empty, flip, flip, noise, insert, repeat, pipe, folder_instead, loop,
    device, missing, swap, forged_pickle,
)  # fmt: skip
TEXT: tuple[Damage, ...] = (utf16, lines, lines)
JSON: tuple[Damage, ...] = (nest, retype, retype, retype, retype, extra_key)
ARRAY: tuple[Damage, ...] = (header, header, header, another_array, another_array, another_array)


def damages(path: Path) -> tuple[Damage, ...]:
    """The damages that fit a file, by its ending."""
    match path.suffix:
        case ".json" | ".jsonl":
            return (*ANY, *TEXT, *JSON)
        case ".txt" | ".csv" | ".tsv":
            return (*ANY, *TEXT)
        case ".npy":
            return (*ANY, *ARRAY)
    return ANY


def files(case: Case, base: Path) -> list[Path]:
    """The files of a case that are damaged, relative to its folder."""
    found = sorted(path for path in base.rglob("*") if path.is_file())
    chosen = [path for path in found if not case.only or path.name.endswith(case.only)]
    return [p.relative_to(base) for p in chosen if p.name not in ("README.md", "lock.mdb")]


def copied(base: Path, place: Path) -> Path:
    """A copy of a folder; LMDB knows environments by their inode, so that links would not do."""
    return Path(shutil.copytree(base, place))


def outcome(case: Case, folder: Path) -> tuple[str, Any]:
    """What became of a reading: an answer, a sentence, or what must not happen."""
    try:
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "answer", plain(case.read(folder))
    except (ValueError, OSError) as error:  # what `counterfoil.cli` prints as one sentence
        text = str(error).strip()
        one = text and "\n" not in text and len(text) <= LONGEST
        return ("sentence" if one else "no sentence"), f"{type(error).__name__}: {text[:300]}"
    except Hang:
        return "hang", ""
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error!s:.300}"


@pytest.fixture(autouse=True)
def _only_new_garbage() -> Iterator[None]:
    """Keep `gc.collect` from visiting what is alive already: half a second for each reading."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_end_in_an_answer_or_a_sentence(name, tmp_path):
    case, base = CASES[name], tmp_path / "base"
    base.mkdir()
    case.write(base)
    kind, whole = outcome(case, copied(base, tmp_path / "whole"))
    assert kind == "answer", whole
    wrong, count = [], 0
    for file in files(case, base):
        for damage in damages(file) * case.rounds:
            # a seed of its own for each, so that a new case or damage leaves the others alone
            label = f"{name} {file} {damage.__name__} {count}"
            count += 1
            folder = copied(base, tmp_path / f"work{count}")
            damage(folder / file, random.Random(label))
            kind, answer = outcome(case, folder)
            if kind not in ("answer", "sentence") or (
                kind == "answer" and case.sealed and answer != whole
            ):
                wrong.append(f"{label}: {kind} {str(answer)[:300]}")
            shutil.rmtree(folder)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)


def test_there_are_enough_damages(tmp_path):
    count = 0
    for number, case in enumerate(CASES.values()):
        (tmp_path / str(number)).mkdir()
        case.write(tmp_path / str(number))
        own = files(case, tmp_path / str(number))
        count += case.rounds * sum(len(damages(file)) for file in own)
    assert count > 4_000
