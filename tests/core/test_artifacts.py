"""Every kind of folder that is written: killed, by two processes, on a full disk, and damaged."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import index_cases
import negatives_cases
import processes
import train_cases
from counterfoil.core.artifact import MANIFEST
from counterfoil.core.io import NoRoom
from counterfoil.core.resumable import WORK, PartsFolder
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.core.types import Embeddings
from counterfoil.data import extract
from counterfoil.data.extract import convert_features
from counterfoil.data.features import open_features
from counterfoil.evaluation.protocols import WHOLE
from counterfoil.negatives.generated import GeneratedCaption, GeneratedStore
from counterfoil.negatives.similarity import CaptionSpace, LatentSpaceConfig
from counterfoil.negatives.store import NegativeStore
from counterfoil.negatives.teachers import TargetStore, TeacherModel, write_targets
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.scoring.embedding_store import (
    VECTORS,
    EmbeddingStore,
    EmbeddingWriter,
    ModelSource,
    write_vectors,
)
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts
from counterfoil.search.vector_index import VectorIndex, is_index
from counterfoil.training.checkpoint import (
    BestEpoch,
    CheckpointFolder,
    TrainProgress,
    TrainState,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a killed process is a forked one")
SIZE = 12  # images
SENTENCE = 3  # exit code of a process whose write was refused in a sentence


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Attributes:
        write: puts the contents of number 0 or 1 there; goes on where it was killed.
        read: opens it with every check, and returns what can be compared.
        replaces: whether contents 1 may be written over contents 0.
        torn: whether a kill may leave what is refused, until it is written again.
        alone: whether it is written within a lock of its callers only.
    """

    write: Callable[[Path, int], object]
    read: Callable[[Path], object]
    replaces: bool = True
    torn: bool = False
    alone: bool = False


@cache
def inputs(seed: int) -> Any:
    return train_cases.processor(SIZE, seed=seed)


@cache
def model(seed: int) -> Any:
    return train_cases.host("global", inputs(0), seed=seed)


def corpus(seed: int = 0) -> Any:
    return inputs(seed).dataset


def write_lists(folder: Path, number: int) -> None:
    lists = negatives_cases.random_lists(corpus().relation, 5, 3, seed=number)
    NegativeStore.of(lists, dataset=corpus().fingerprint, split="train", sources=()).save(folder)


def read_lists(folder: Path) -> object:
    lists = NegativeStore.open(folder, fingerprint=corpus().fingerprint).lists
    return lists.texts.tolist(), lists.images.tolist()


def write_space(folder: Path, number: int) -> None:
    CaptionSpace.of(corpus(), LatentSpaceConfig(components=2 + number)).save(folder)


def read_space(folder: Path) -> object:
    return CaptionSpace.open(folder, fingerprint=corpus().fingerprint).points.tolist()


def write_targets_of(folder: Path, number: int) -> None:
    source = ModelSource(matcher="global", checkpoint=f"{number:016d}")
    write_targets(folder, [TeacherModel(model(number), inputs(0), source)])


def read_targets(folder: Path) -> object:
    store = TargetStore.open(folder, fingerprint=corpus().fingerprint)
    rows = torch.arange(SIZE)
    return [part.vectors(rows).tolist() for pair in store.encodings for part in pair]


def write_captions(folder: Path, number: int) -> None:
    if folder.exists():  # as `counterfoil write` refuses it
        return
    data = corpus()
    foils = (
        GeneratedCaption("i", name, text, f"{text} {number}", "noun", ())
        for name, text in zip(data.text_ids, data.texts, strict=True)
    )
    GeneratedStore.write(folder, foils, data, writer="rules", settings={}, seed=number)


def read_captions(folder: Path) -> object:
    return list(GeneratedStore.open(folder, fingerprint=corpus().fingerprint).foils())


def write_features(folder: Path, number: int) -> None:
    source = folder.parent.parent / f"source-{number}"
    if not source.exists():
        made = source.with_name(f"{source.name}-{os.getpid()}")  # two processes may make it
        made.mkdir(exist_ok=True)
        values = np.random.default_rng(number).standard_normal((SIZE, 3, 4)).astype(np.float32)
        np.save(made / "features.npy", values)
        (made / "features.json").write_text(json.dumps({"ids": list(corpus().image_ids)}))
        with contextlib.suppress(OSError):  # the other one was first
            made.rename(source)
    convert_features(source, folder, kind="float32", shard=5)


def read_features(folder: Path) -> object:
    table = open_features(folder)
    return list(table.ids or ()), table.features.take(torch.arange(SIZE)).values.tolist()


def write_encodings(folder: Path, number: int) -> None:
    rng = torch.Generator().manual_seed(number)
    tokens = torch.randn(SIZE, 2, 3, generator=rng)
    writer = EmbeddingWriter(folder, "fp32")
    for start in range(4 * writer.manifest.batches, SIZE, 4):
        rows = torch.arange(start, start + 4)
        writer.put(rows, Embeddings(tokens[rows], torch.ones(4, 2, dtype=torch.bool)))
        writer.save()
    writer.close()


def read_encodings(folder: Path) -> object:
    return EmbeddingStore(folder, SIZE).rows(torch.arange(SIZE)).tokens.tolist()


def write_vectors_of(folder: Path, number: int) -> None:
    write_vectors(folder, model(number), inputs(0), {"model": number})


def read_vectors(folder: Path) -> object:
    VECTORS.open(folder).check("images.npy", "texts.npy", every=True)
    return [np.load(folder / f"{name}.npy").tolist() for name in ("images", "texts")]


@cache
def evaluation(number: int) -> RetrievalEvaluation:
    one, data = model(number), inputs(0)
    images = encode_images(one, data.images, SIZE)
    texts = encode_texts(one, data.texts, len(corpus().texts))
    return RetrievalEvaluation.of([EmbeddedDataset(one, images, texts)], corpus(), WHOLE)


def write_evaluation(folder: Path, number: int) -> None:
    evaluation(number).save(folder)


def read_evaluation(folder: Path) -> object:
    opened = RetrievalEvaluation.open(folder)
    return opened.report.to_dict(), opened.texts.tolist(), opened.image_scores.tolist()


def write_index(folder: Path, number: int) -> None:
    index = VectorIndex(folder) if is_index(folder) else index_cases.empty(folder)
    stored = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(number))
    named = index_cases.names(SIZE, SIZE * number)
    if named[0] not in index.images.rows:
        gone = list(index.images.rows.values())
        index.change(images=index_cases.images(named, stored), remove_images=gone)


def read_index(folder: Path) -> object:
    index = VectorIndex(folder)
    index.verify()
    # an empty one, as its first write leaves it when it is killed, is none
    return index_cases.found(index, torch.eye(8)[:2], 5) if len(index.images) else None


def write_checkpoints(folder: Path, number: int) -> None:
    """A checkpoint and the best weights, as a training writes them."""
    checkpoints = CheckpointFolder(folder, "run")
    best = BestEpoch(step=number, epoch=1, value=0.5, dev={})
    weights = {"weight": torch.full((64,), float(number))}
    checkpoints.save_best(best, weights)
    step = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(step.weight, number)
    torch.nn.init.zeros_(step.bias)
    torch.manual_seed(number)
    random.seed(number)
    moving = TrainState(step, torch.optim.SGD(step.parameters(), lr=0.1))
    checkpoints.save(moving, TrainProgress(step=number, best=best))


def read_checkpoints(folder: Path) -> object:
    step = torch.nn.Linear(8, 8)
    checkpoints = CheckpointFolder(folder, "run")
    moving = TrainState(step, torch.optim.SGD(step.parameters(), lr=0.1))
    if (progress := checkpoints.restore(moving)) is None:
        raise ValueError(f"{folder} has no checkpoint")
    assert progress.best is not None
    best = checkpoints.load_best(progress.best)
    return progress.step, step.weight.tolist(), best["weight"].tolist()


def write_work(folder: Path, number: int) -> None:
    """Work in parts, gone on with after a kill; a part is a file that tells damage."""
    parts = PartsFolder(folder, suffix=".safetensors")
    for missing in parts.begin({"number": number}, 3):
        tensors = {"part": torch.full((64,), float(number + missing))}
        write_tensors(parts.path(missing), tensors, {})


def read_work(folder: Path) -> object:
    facts = WORK.open(folder).manifest.facts
    paths = (PartsFolder(folder, suffix=".safetensors").path(number) for number in range(3))
    return facts, [read_tensors(path, "a part")[0]["part"].tolist() for path in paths]


KINDS = {
    "lists": Kind(write_lists, read_lists),
    "space": Kind(write_space, read_space),
    "targets": Kind(write_targets_of, read_targets),
    "captions": Kind(write_captions, read_captions, replaces=False),
    "features": Kind(write_features, read_features, replaces=False),
    "encodings": Kind(write_encodings, read_encodings, replaces=False, torn=True, alone=True),
    "vectors": Kind(write_vectors_of, read_vectors, replaces=False),
    "evaluation": Kind(write_evaluation, read_evaluation, torn=True, alone=True),
    "index": Kind(write_index, read_index),
    "checkpoints": Kind(write_checkpoints, read_checkpoints, alone=True),
    "work": Kind(write_work, read_work, replaces=False, torn=True, alone=True),
}


@pytest.fixture(params=KINDS)
def kind(request: Any) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def folder(kind: Kind, tmp_path: Path) -> Path:
    """A name in a folder of its own, after all that is slow has been done once."""
    (tmp_path / "work").mkdir()
    for number in (0, 1):
        kind.write(tmp_path / "work" / f"warm-{number}", number)
        shutil.rmtree(tmp_path / "work" / f"warm-{number}")
    return tmp_path / "work" / "x"


def expected(kind: Kind, folder: Path, number: int) -> object:
    """What is read after an undisturbed write."""
    other = folder.parent.parent / f"whole-{number}" / "x"
    if not other.exists():
        other.parent.mkdir()
        kind.write(other, number)
    return kind.read(other)


def written(kind: Kind, folder: Path, number: int) -> int:
    """Exit code of a write in a process of its own."""
    try:
        kind.write(folder, number)
    except (ValueError, NoRoom) as error:
        return SENTENCE if "\n" not in str(error) else 1
    return 0


def dying(act: Callable[[], object], after: int) -> int:
    """The exit code of a process that is killed before its nth change of a name."""
    left = after

    def counting(change: Callable[..., object]) -> Callable[..., object]:
        def counted(*words: Any, **more: Any) -> object:
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return change(*words, **more)

        return counted

    def run() -> object:
        for name in ("replace", "rename", "unlink", "mkdir"):
            setattr(Path, name, counting(getattr(Path, name)))
        shutil.rmtree = counting(shutil.rmtree)  # type: ignore[assignment]
        return act()

    return processes.ended(processes.forked(run))


def beside(folder: Path) -> list[str]:
    """Names of what is beside a folder, but for locks that a killed process held."""
    return [
        path.name for path in folder.parent.iterdir() if path.name not in ("x", ".x.lock", "x.lock")
    ]


def found(kind: Kind, folder: Path) -> object:
    """What is read; None for nothing."""
    if not folder.exists():
        return None
    try:
        return kind.read(folder)
    except ValueError:
        assert kind.torn or not (folder / MANIFEST).exists()
        return None


def test_what_is_written_is_read_and_nothing_else_is_left(kind: Kind, folder: Path) -> None:
    kind.write(folder, 0)
    first = kind.read(folder)
    assert first == expected(kind, folder, 0)
    kind.write(folder, 0)
    assert kind.read(folder) == first != expected(kind, folder, 1)
    assert [path.name for path in folder.parent.iterdir()] == ["x"]
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("replaced", [False, True])
def test_killed_anywhere_it_is_as_before_or_as_after(
    kind: Kind, folder: Path, replaced: bool, every: int
) -> None:
    """And the same write, begun again, ends as alone."""
    if replaced and not kind.replaces:
        return
    before = expected(kind, folder, 0) if replaced else None
    after = expected(kind, folder, 1)
    for place in range(0, 200, every):
        if replaced:
            kind.write(folder, 0)
        code = dying(lambda: kind.write(folder, 1), place)
        assert code in (0, -signal.SIGKILL)
        assert found(kind, folder) in ((None, before, after) if code else (after,))
        kind.write(folder, 1)
        assert kind.read(folder) == after
        assert not beside(folder)
        shutil.rmtree(folder)
        if not code:
            break
    assert place > 1
    assert not code, "the write never came to its end"


def test_of_two_processes_one_waits_wins_or_hears_a_sentence(kind: Kind, folder: Path) -> None:
    if kind.alone:
        return
    numbers = (0, 1) if kind.replaces else (0, 0)
    for _ in range(4):
        jobs = [processes.forked(lambda n=n: written(kind, folder, n)) for n in numbers]
        codes = [processes.ended(job) for job in jobs]
        assert 0 in codes
        assert {*codes} <= {0, SENTENCE}
        assert kind.read(folder) in [expected(kind, folder, number) for number in numbers]
        assert not beside(folder)
        shutil.rmtree(folder)


def test_features_may_be_there_when_the_lock_is_free(tmp_path: Path, monkeypatch) -> None:
    lock, folder = extract.write_lock, tmp_path / "work" / "x"
    folder.parent.mkdir()

    def late(*words: Path) -> object:
        monkeypatch.setattr(extract, "write_lock", lock)
        write_features(folder, 0)  # by another process, after the first one looked
        return lock(*words)

    monkeypatch.setattr(extract, "write_lock", late)
    write_features(folder, 0)
    assert read_features(folder)[0] == list(corpus().image_ids)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_full_disk_is_a_sentence_and_with_room_it_goes_on(
    kind: Kind, folder: Path, replaced: bool, share: float
) -> None:
    """Files may have at most a share of the largest one's bytes."""
    if replaced and not kind.replaces:
        return
    before, after = expected(kind, folder, 0) if replaced else None, expected(kind, folder, 1)
    whole = folder.parent.parent / "whole-1"
    most = int(share * max(path.stat().st_size for path in whole.rglob("*") if path.is_file()))
    if replaced:
        kind.write(folder, 0)

    def full() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        return written(kind, folder, 1)

    assert processes.ended(processes.forked(full)) == SENTENCE
    assert found(kind, folder) in (None, before)
    kind.write(folder, 1)
    assert kind.read(folder) == after


def damages(folder: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Files, and what is done to each."""

    def flipped(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def changed(**values: object) -> Callable[[Path], object]:
        return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))

    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        yield path, Path.unlink
        yield path, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        yield path, lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        yield path, lambda path: path.write_bytes(b"")
        if path.name in (MANIFEST, "features.json", WORK.file):
            yield path, changed(format=99)
            yield path, changed(artifact="lists of something")
            if json.loads(path.read_text())["files"]:
                yield path, changed(files={})
            yield path, changed(files=None)
            if path.name != "features.json":  # which other programs do not write
                yield path, changed(version="9.9.9")
            yield path, lambda path: path.write_text("[]")
        else:
            yield path, flipped


def test_damage_is_a_sentence_that_names_the_folder(kind: Kind, folder: Path) -> None:
    kind.write(folder, 0)
    before = kind.read(folder)
    seen = 0
    for path, damage in list(damages(folder)):
        content = path.read_bytes()
        damage(path)
        if path.exists() and path.read_bytes() == content:
            continue
        with pytest.raises(ValueError, match=r"x") as caught:
            kind.read(folder)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
        path.unlink(missing_ok=True)  # what is mapped keeps its old content
        path.write_bytes(content)
        seen += 1
    assert seen >= 10
    assert kind.read(folder) == before
