"""Rehearse recipes at the size of Flickr30K on random data: ``python -m benchmarks.full_run``.

    data FOLDER        write features, captions and a BERT of the real shapes, all random: 9.6 GB
    rehearse FOLDER    run every part that ``full-run.json`` lacks; killed, it goes on
    page               write the tables of ``docs/full-run.md`` from ``full-run.json``

A part runs in a process of its own, on one thread, and measures processor seconds, what it held at
most beside mapped files, and the operations of its matrix products. Hours on a GPU are estimated
from these and from the products and kernels in ``gpu-h100-2026-11-27.json``; no part runs on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.pages import put_table
from benchmarks.speed.memory import AnonymousPeak
from counterfoil import evaluate, load_dataset, load_model, mine_hard_negatives
from counterfoil.core.io import parse_json, write_json, write_text
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.model import MODEL, Model
from counterfoil.negatives.sources import with_asked
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.papers.pretraining import pretrain
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Recipe, data_contents, stage_digests
from counterfoil.pipelines.stages.fitting import ModelStage, build_for_training
from counterfoil.pipelines.stages.teach import ComputeTargets
from counterfoil.pipelines.stages.train import Train
from counterfoil.pipelines.state import RunContext
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.saved import save_model
from counterfoil.scoring.encode import tile_shape
from counterfoil.training.batches import BatchStream
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import TrainConfig
from counterfoil.training.trainer import TrainingLoop, sampler_of, train_network

ROOT = Path(__file__).parents[1]
ROWS, GPU_ROWS = ROOT / "benchmarks/full-run.json", ROOT / "benchmarks/gpu-h100-2026-11-27.json"
PAGE, START, END = ROOT / "docs/full-run.md", "<!-- full run -->", "<!-- end -->"

# The data: the shapes of Flickr30K, and captions as long and as often repeated as its own.

SPLITS = {"train": 29_000, "dev": 1_014, "test": 1_000}
CAPTIONS, REGIONS, FEATURES = 5, 36, 2048
WORDS, LONGEST = 20_000, 82  # different words, and words of the longest caption
PART = 250  # images written at once
BERTS = {"bert-base-uncased": 30_522, "bert-base-cased": 28_996}  # and their vocabularies
NOUNS = ("man", "woman", "dog", "boy", "girl", "street", "shirt", "ball", "beach", "bike", "child")
SHADES = ("red", "blue", "young", "old", "small", "large", "white", "black", "wooden", "bright")
VERBS = ("walking", "running", "sitting", "standing", "jumping", "playing", "holding", "riding")
PLACES = ("on", "in", "near", "behind", "under", "beside", "with", "through")


def write_data(folder: Path, splits: Mapping[str, int] = SPLITS) -> None:
    """Write a precomp folder of random features and captions, with boxes."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, images in splits.items():
        shape = images, REGIONS, FEATURES
        file = np.lib.format.open_memmap(folder / f"{split}_ims.npy", "w+", np.float32, shape)
        for start in range(0, images, PART):
            part = file[start : start + PART]
            part[...] = rng.random(part.shape, dtype=np.float32)
        file.flush()
        corners = np.sort(rng.random((images, REGIONS, 2, 2), dtype=np.float32), axis=2)
        np.save(folder / f"{split}_boxes.npy", corners.reshape(images, REGIONS, 4))
        lines = [caption(rng) for _ in range(CAPTIONS * images)]
        long = " and ".join(caption(rng) for _ in range(LONGEST))
        lines[0] = " ".join(long.split()[:LONGEST])
        write_text(folder / f"{split}_caps.txt", "".join(f"{line}\n" for line in lines))


def caption(rng: np.random.Generator) -> str:
    """A caption of 7 words or more, 12 on average, some of them rare."""
    words: list[str] = []
    for _ in range(int(rng.geometric(0.62))):
        rare = f"thing{int(rng.zipf(1.15)) % WORDS}"
        first, second = (str(rng.choice(NOUNS)) if rng.random() < 0.6 else rare for _ in range(2))
        words += ["a", str(rng.choice(SHADES)), first, str(rng.choice(VERBS))]
        words += [str(rng.choice(PLACES)), "the", second, "and"]
    return " ".join(words[:-1])


def write_berts(folder: Path, **sizes: int) -> None:
    """Write the tokenizers of BERT's sizes, over the words above, and one BERT's random weights.

    `sizes` are those of its layers, where they are not those of the base model.
    """
    from transformers import BertConfig, BertModel, BertTokenizerFast

    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "and", "thing"]
    known += [*NOUNS, *SHADES, *VERBS, *PLACES, *(f"##{n}" for n in range(10))]
    known += [f"##{n}" for n in range(10, 100)]
    for name, size in BERTS.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        words = [*known, *(f"word{n}" for n in range(size - len(known)))]
        write_text(place / "vocab.txt", "".join(f"{word}\n" for word in words))
        BertTokenizerFast(vocab=str(place / "vocab.txt")).save_pretrained(place)
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=BERTS["bert-base-uncased"], **sizes))
    model.save_pretrained(folder / "bert-base-uncased")


# The parts.

_limit = 0.0  # minutes of a training, after which its steps so far are what was measured


@final
class Clock(Callback):
    """Processor seconds at the end of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, loop: TrainingLoop[Any]) -> None:
        self.ends.append(time.process_time())

    def on_step_end(
        self, loop: TrainingLoop[Any], group: Sequence[Any], losses: Mapping[str, Tensor]
    ) -> None:
        self.ends.append(time.process_time())

    @property
    def step(self) -> float:
        """Median seconds of a step, without the first if there are more."""
        steps = [b - a for a, b in zip(self.ends, self.ends[1:])]
        return statistics.median(steps[1:] or steps)


@contextmanager
def spent(row: dict[str, Any], name: str) -> Iterator[None]:
    """Add the processor seconds of a block to a row, and the most memory that it held."""
    before = time.process_time()
    with AnonymousPeak() as peak:
        yield
    row[f"{name}_seconds"] = time.process_time() - before
    row[f"{name}_bytes"] = peak.bytes


@final
class Operations(TorchDispatchMode):
    """Counts operations of matrix products as `FlopCounterMode` does.

    That keeps something of every module at every step: of 200 steps of CHAN with BERT, three
    gigabytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:  # without gradients a layer arrives whole
                parts = func.decompose(*args, **named)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **named)
        if formula is not None:
            self.count += formula(*args, **named, out_val=result)
        return result


@final
@dataclass(frozen=True)
class Rehearsal:
    """A recipe on the random data, in a folder of its own."""

    recipe: Recipe
    dataset: ImageTextDataset
    folder: Path

    @staticmethod
    def of(folder: Path, words: str, part: str = "", **arguments: Any) -> Rehearsal:
        """The recipe `words` of Flickr30K; `part` names a folder of a run of fewer images."""
        names = {f"*.processor.texts={folder}/{BERT_OF[words]}"} if words in BERT_OF else set()
        if words == "ndgl":
            names |= {f"*.model.text.name={folder}/bert-base-uncased"}
        if words == "tags-dc":  # all that is scored costs the same, so a tenth of it is enough
            names |= {f"{stage}.{setting}" for stage in ("tags", "tags-dc") for setting in FEWER}
        recipe = apply_overrides(find_recipe(words, like="flickr30k", **arguments), sorted(names))
        dataset = load_dataset(folder / "data")
        return Rehearsal(recipe, dataset, folder / "runs" / f"{words}{part}")

    @property
    def context(self) -> RunContext:
        digests = stage_digests(self.recipe, data_contents(self.dataset))
        return RunContext(self.recipe, self.dataset, self.folder, digests)

    def of_images(self, images: int) -> Rehearsal:
        """The same with fewer images to train on, and those of the other splits."""
        kept = [n for n, split in enumerate(self.dataset.splits) if split != "train"]
        rows = [n for n, split in enumerate(self.dataset.splits) if split == "train"][:images]
        return replace(self, dataset=self.dataset.subset(torch.tensor(sorted(rows + kept))))

    def train(self, name: str, steps: int, *, batch: int = 0) -> dict[str, Any]:
        """So many steps of a stage; what a step costs and holds."""
        row: dict[str, Any] = {"steps": steps}
        stage, context = self.recipe.stage(name), self.context
        assert isinstance(stage, ModelStage)
        own = stage.plan
        size = batch or own.batch
        plan = replace(own, steps=steps, log_every=1, batch=size, accumulate=1, save_minutes=1e4)
        plan = replace(plan, minutes=_limit)
        row |= {"batch": size, "whole_batch": own.batch * own.accumulate}
        row["whole_steps"] = own.total(len(sampler_of(own, context.train)))
        with spent(row, "check"):
            stage.check(context)
        with spent(row, "build"):
            model = build_for_training(context, stage)
        clock = Clock()
        with Operations() as flops, spent(row, "train"):
            self._steps(stage, model, plan, f"{name}-steps", clock)
        if clock.ends:
            row["steps"] = steps = len(clock.ends) - 1  # fewer, where the time was up
        row["step_seconds"] = clock.step if clock.ends else row["train_seconds"] / steps
        row["step_flops"] = flops.count / steps
        row["read_seconds"] = self._read_seconds(stage, model, plan)
        row["checkpoint_bytes"] = 3 * sum(4 * p.numel() for p in model.model.parameters())
        assert model.spec is not None
        assert model.processor is not None
        save_model(
            context.place(name) / MODEL,
            spec=model.spec,
            model=model.model,
            processor=model.processor,
            provenance={},
            metrics={},
        )
        return row

    def _steps(
        self, stage: ModelStage, model: Model, plan: TrainConfig, folder: str, clock: Clock
    ) -> None:
        context, place = self.context, self.folder / folder
        assert model.processor is not None
        if isinstance(stage, Pretrain):
            pretrain.pretrain(
                plan,
                model.model,
                stage.tasks.without_classes(),
                model.processor.process(context.train),
                folder=place,
            )
            return
        assert isinstance(stage, Train)
        train = context.train.with_positives(stage.positives)
        sources = stage.built_sources(context, model.model.loss_scale)
        for source in with_asked(sources):
            source.check(model.model, train)
        train_network(
            plan,
            model.model,
            stage.objective.build(),
            model.process(train),
            folder=place,
            sources=sources,
            callbacks=(clock,),
        )

    def _read_seconds(self, stage: ModelStage, model: Model, plan: TrainConfig) -> float:
        """Median processor seconds in which a batch is read and its negatives are drawn."""
        context = self.context
        sources = stage.built_sources(context, 1.0) if isinstance(stage, Train) else ()
        data = model.process(context.train)
        if isinstance(stage, Train):
            for source in with_asked(sources):
                source.begin(model.model, data, stage.objective.build(), batches=1)
        stream = BatchStream(
            processor=data,
            sampler=sampler_of(plan, context.train),
            epochs=1,
            seed=0,
            sources=sources,
        )
        ends = [time.process_time()]
        ends += [time.process_time() for _ in itertools.islice(stream.batches(0), 6)]
        seconds = [after - before for before, after in itertools.pairwise(ends)]
        return statistics.median(seconds[1:] or seconds)  # few images have one batch

    def model(self, name: str) -> Model:
        """The model of a stage that was trained."""
        return load_model(self.context.place(name))

    def test(self, name: str, images: int = 0) -> dict[str, Any]:
        """Evaluate a stage's model on test, or on some of its images."""
        test, model = self.dataset.split("test"), self.model(name)
        test = test.subset(torch.arange(images)) if images else test
        row: dict[str, Any] = {"images": len(test), "texts": len(test.texts)}
        row["tile"] = tile_shape([model.embed(test)], torch.device("cpu"))
        with Operations() as flops, spent(row, "test"):
            evaluate(model, test)
        row["flops"] = flops.count
        return row

    def mine(self, name: str, images: int) -> dict[str, Any]:
        """Encode and mine some images with a stage's model."""
        train, model = self.dataset.split("train"), self.model(name)
        train = train.subset(torch.arange(images)).with_positives("id")
        row: dict[str, Any] = {"images": len(train), "texts": len(train.texts)}
        with Operations() as flops, spent(row, "encode"):
            encoded = model.embed(train)
        row["encode_flops"] = flops.count
        row["longest"] = encoded.texts.mask.shape[1]
        row["mean_length"] = float(encoded.texts.mask.sum(1).double().mean())
        with spent(row, "mine"):
            mine_hard_negatives(model, train, texts_per_image=300, images_per_text=60)
        return row

    def some_lists(self) -> None:
        """Lists of the whole training split, of the recipe's lengths, of what follows each item."""
        context = self.context
        train = context.train

        def following(first: Tensor, count: int, most: int) -> Tensor:
            return (first[:, None] + torch.arange(min(most, count // 2))) % count

        texts = following(CAPTIONS * torch.arange(1, len(train) + 1), len(train.texts), 300)
        images = following(1 + train.text_to_image, len(train), 60)
        lists = HardNegativeLists(texts.int(), images.int())
        store = NegativeStore.of(lists, dataset=train.fingerprint, split="train", sources=())
        store.save(context.place("lists"))

    def teach(self, name: str = "targets") -> dict[str, Any]:
        """Store the teachers' encodings of the images that there are to train on."""
        context, stage = self.context, self.recipe.stage(name)
        assert isinstance(stage, ComputeTargets)
        train = context.train
        row: dict[str, Any] = {"images": len(train), "texts": len(train.texts)}
        with Operations() as flops, spent(row, "encode"):
            stage.run(context, resume=False)
        row["encode_flops"] = flops.count
        files = [file for file in context.place(name).rglob("*") if file.is_file()]
        row["stored_bytes"] = sum(file.stat().st_size for file in files)
        return row


SCORED, OF_THEM = 40, (399, 399, 400)  # texts, images and generated captions of a pair in TAGS
FEWER = (
    f"topscoringminer.candidates.texts={SCORED}",
    f"topscoringminer.candidates.images={SCORED}",
    "tagsgenerator.masks=4",
    "tagsgenerator.refills=10",
)
BERT_OF = {"ndgl": "bert-base-uncased", "tags-dc": "bert-base-cased"}


def read_all(folder: Path) -> dict[str, Any]:
    """Open the data, and build SCAN's vocabulary."""
    row: dict[str, Any] = {}
    with spent(row, "open"):
        dataset = load_dataset(folder / "data")
    stage = find_recipe("aoq", model="scan-t2i", like="flickr30k").stage("online")
    assert isinstance(stage, ModelStage)
    with spent(row, "vocabulary"):
        processor = stage.processor.fit(dataset.split("train"))
    assert processor.tokenizer is not None
    files = [file for file in (folder / "data").iterdir() if file.is_file()]
    row["words"], row["data_bytes"] = processor.tokenizer.size, sum(f.stat().st_size for f in files)
    row["images"], row["texts"] = len(dataset), len(dataset.texts)
    return row


def _aoq(folder: Path) -> Rehearsal:
    return Rehearsal.of(folder, "aoq", model="scan-t2i")


def _adaptive(folder: Path, steps: int) -> dict[str, Any]:
    run = _aoq(folder)
    run.some_lists()
    return run.train("adaptive", steps)


def _ndgl(folder: Path, images: int = 0) -> Rehearsal:
    run = Rehearsal.of(folder, "ndgl", "-part" if images else "", model="chan-bert")
    return run.of_images(images) if images else run


def _student(folder: Path, steps: int, images: int = 40, batch: int = 128) -> dict[str, Any]:
    run = _ndgl(folder, images)
    for name in ("teacher-1", "teacher-2"):  # random weights
        if not run.context.place(name).is_dir():
            run.train(name, 1, batch=8)
    return {"taught": run.teach(), **run.train("student", steps, batch=batch)}


def _tags(folder: Path) -> Rehearsal:
    return Rehearsal.of(folder, "tags-dc", model="uniter")


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "data": read_all,
    "aoq online": lambda folder: _aoq(folder).train("online", 200),
    "aoq mine": lambda folder: _aoq(folder).mine("online", 300),
    "aoq adaptive": lambda folder: _adaptive(folder, 3),
    "aoq test": lambda folder: _aoq(folder).test("online", 100),
    "ndgl teacher": lambda folder: _ndgl(folder).train("teacher-1", 200),
    "ndgl student": lambda folder: _student(folder, 5),
    "tags pretrained": lambda folder: _tags(folder).train("pretrained", 1, batch=8),
    "tags 1": lambda folder: _tags(folder).train("tags", 10, batch=1),
    "tags test": lambda folder: _tags(folder).test("tags", 3),
    "tags 2": lambda folder: _tags(folder).train("tags-dc", 3, batch=1),
}


# Hours on a GPU, from what was measured here and on an H100.

SHARE = 0.4  # of the measured peak of a product that a training reaches; assumed, not measured
A100 = {"fp32": 19.5 / 67.0, "bf16": 312 / 989}  # of an H100, by NVIDIA's data sheets
SIZES = {"flickr30k": (29_000, 1_014, 1_000), "coco": (113_287, 5_000, 5_000)}
TEXTS = {"flickr30k": 145_000, "coco": 566_435}
TRAININGS = {  # stage: its part
    "aoq": {"online": "aoq online", "adaptive": "aoq adaptive"},
    "ndgl": {
        "teacher-1": "ndgl teacher",
        "teacher-2": "ndgl teacher",
        "student": "ndgl student",
    },
    "tags-dc": {"pretrained": "tags pretrained", "tags": "tags 1", "tags-dc": "tags 2"},
}
MODELS = {"aoq": "scan-t2i", "ndgl": "chan-bert", "tags-dc": "uniter"}
TESTS = {"aoq": "aoq test", "tags-dc": "tags test"}
Rows = Mapping[str, Mapping[str, Any]]


@final
@dataclass(frozen=True)
class Estimate:
    """Hours of a stage on an H100 by precision, estimated, and what they are made of."""

    stage: str
    steps: int
    flops: float  # of a step of the whole batch
    read: float  # seconds in which the whole batch is read on one core
    hours: Mapping[str, float]  # of the steps
    dev: Mapping[str, float]  # of the evaluations on dev


def peaks() -> dict[str, float]:
    """Operations a second of a product on the H100, in which a sum and a product are two."""
    rows = parse_json(GPU_ROWS.read_text("utf-8"), GPU_ROWS.name)
    found = {row["name"]: row["value"] for row in rows if "value" in row}
    return {
        "fp32": 1e12 * found["product, torch.float32"],
        "bf16": 1e12 * found["product, torch.bfloat16"],
    }


def mining_seconds() -> dict[str, float]:
    """Seconds in which SCAN mines Flickr30K on the H100, its items encoded."""
    rows = parse_json(GPU_ROWS.read_text("utf-8"), GPU_ROWS.name)
    start = "SCAN t2i mines itself, 29,000 x 145,000, "
    found = {row["name"]: row["value"] for row in rows if row.get("unit") == "s"}
    return {
        "fp32": found[f"{start}float32"], "bf16": found[f"{start}bfloat16, then float32"]
    }  # fmt: skip


def scoring(rows: Rows, recipe: str) -> tuple[float, float]:
    """Operations of an image with its five captions, and of a pair."""
    if recipe == "ndgl":  # a third of a step's is forward; an inner product of regions and words
        row, words = rows["ndgl teacher"], rows["aoq mine"]["mean_length"]
        return CAPTIONS * row["step_flops"] / 3 / row["batch"], 2 * REGIONS * words * 1024
    test = rows[TESTS[recipe]]
    # the border of a score matrix is computed on repeated items
    pairs = math.prod(
        -(-test[side] // size) * size for side, size in zip(("images", "texts"), test["tile"])
    )
    encoded = rows["aoq mine"]["encode_flops"] / rows["aoq mine"]["images"]
    each = encoded if recipe == "aoq" else 0.0
    return each, max(0.0, test["flops"] - each * test["images"]) / pairs


def step_flops(rows: Rows, part: str) -> float:
    """Operations of a step of the whole batch."""
    row = rows[part]
    flops = float(row["step_flops"])
    if part in ("tags 1", "tags 2"):  # what was left out is scored once, without a gradient
        flops += row["batch"] * (sum(OF_THEM) - 3 * SCORED) * scoring(rows, "tags-dc")[1]
    return flops * row["whole_batch"] / row["batch"]


def estimates(rows: Rows, recipe: str, like: str) -> list[Estimate]:
    """The trainings of a recipe."""
    made, (_, dev, _) = find_recipe(recipe, model=MODELS[recipe], like=like), SIZES[like]
    each, pair = scoring(rows, recipe)
    found = []
    for name, part in TRAININGS[recipe].items():
        stage, row = made.stage(name), rows[part]
        assert isinstance(stage, ModelStage)
        plan = stage.plan
        batches = TEXTS[like] / plan.batch
        steps = plan.total(math.floor(batches) if plan.drop_last else math.ceil(batches))
        flops = step_flops(rows, part)
        read = row["read_seconds"] * row["whole_batch"] / row["batch"]
        images = min(dev, plan.dev_images or dev)
        times = math.ceil(steps / plan.steps_per_epoch(math.ceil(batches)))
        tested = 0.0 if isinstance(stage, Pretrain) else each * images + pair * 5 * images**2
        hours, measured = {}, {}
        for precision, peak in peaks().items():
            hours[precision] = steps * max(flops / (SHARE * peak), read) / 3600
            measured[precision] = times * tested / (SHARE * peaks()["fp32"]) / 3600
        found.append(Estimate(name, steps, flops, read, hours, measured))
    return found


def other_hours(rows: Rows, recipe: str, like: str) -> dict[str, float]:
    """Hours on an H100 of what a recipe does beside training: mining, encoding, tests; in fp32."""
    images, _, tested = SIZES[like]
    each, pair = scoring(rows, recipe)
    rate = SHARE * peaks()["fp32"]
    tests = {"aoq": 2, "ndgl": 3, "tags-dc": 2}[recipe]
    pairs = 5 * tested**2 if like == "flickr30k" else 5 * tested**2 * 1.2  # 5K and five folds of 1K
    hours = {"tests": tests * (each * tested + pair * pairs) / rate / 3600}
    if recipe == "aoq":
        whole, here = SIZES["flickr30k"][0] * TEXTS["flickr30k"], images * TEXTS[like]
        seconds = each * images / rate + mining_seconds()["fp32"] * here / whole
        hours["lists"] = seconds / 3600
    if recipe == "ndgl":
        hours["targets"] = 2 * each * images / rate / 3600
    return hours


def tables(rows: Rows) -> str:
    """The tables of the page."""
    return "\n\n".join([_measured(rows), _stages(rows), _totals(rows), _sizes(rows)])


def _measured(rows: Rows) -> str:
    lines = [
        "| part | steps | pairs a step | processor s a step | reading it | held, GB | "
        "TFLOP a step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "step_seconds" in row:
            lines.append(
                f"| {name} | {row['steps']} | {row['batch']} | {row['step_seconds']:.1f} | "
                f"{row['read_seconds']:.3f} | {row['train_bytes'] / 1e9:.1f} | "
                f"{row['step_flops'] / 1e12:.2f} |"
            )
    return "\n".join(lines)


def _stages(rows: Rows) -> str:
    lines = [
        "| recipe, stage, Flickr30K | steps | TFLOP a step | reading a step, s | "
        "hours, estimated: fp32 | bf16 | all evaluations on dev, h |",
        "|---|---|---|---|---|---|---|",
    ]
    for recipe in TRAININGS:
        lines += [
            f"| `{recipe}` {one.stage} | {one.steps:,} | {one.flops / 1e12:,.2f} | "
            f"{one.read:.3f} | {one.hours['fp32']:.1f} | {one.hours['bf16']:.1f} | "
            f"{one.dev['fp32']:.1f} |"
            for one in estimates(rows, recipe, "flickr30k")
        ]
    return "\n".join(lines)


def totals(rows: Rows, recipe: str, like: str) -> dict[str, float]:
    """Hours of a whole recipe by device and precision of the training."""
    stages = estimates(rows, recipe, like)
    found = {}
    for device, slower in (("H100", {"fp32": 1.0, "bf16": 1.0}), ("A100", A100)):
        rest = sum(one.dev["fp32"] for one in stages)
        rest += sum(other_hours(rows, recipe, like).values())
        for precision, peak in peaks().items():
            rate = SHARE * peak * slower[precision]
            steps = sum(one.steps * max(one.flops / rate, one.read) for one in stages) / 3600
            found[f"{device} {precision}"] = steps + rest / slower["fp32"]
    return found


def _totals(rows: Rows) -> str:
    names = ("H100 fp32", "H100 bf16", "A100 fp32", "A100 bf16")
    lines = [
        f"| whole recipe, hours, estimated | data | {' | '.join(names)} |",
        "|---|---|" + "---|" * len(names),
    ]
    for recipe in TRAININGS:
        for like in SIZES:
            hours = totals(rows, recipe, like)
            shown = " | ".join(f"{hours[name]:,.{int(hours[name] < 10)}f}" for name in names)
            lines.append(f"| `{recipe} --model {MODELS[recipe]}` | {like} | {shown} |")
    return "\n".join(lines)


def _sizes(rows: Rows) -> str:
    data, mine = rows["data"], rows["aoq mine"]
    lines = ["| disk or memory, GB | Flickr30K | MS-COCO |", "|---|---|---|"]

    def line(noun: str, size: Callable[[str], float]) -> None:
        lines.append(f"| {noun} | {size('flickr30k') / 1e9:,.1f} | {size('coco') / 1e9:,.1f} |")

    def images(like: str) -> int:
        return SIZES[like][0]

    token = 4 * 1024
    line("features of all splits", lambda like: data["data_bytes"] * sum(SIZES[like]) / 31_014)
    line(
        "SCAN's lists, 300 and 60 long, with scores",
        lambda like: 6 * (300 * images(like) + 60 * TEXTS[like]),
    )
    line(
        "memory of mining: vectors of SCAN's regions and words",
        lambda like: token * (REGIONS * images(like) + mine["mean_length"] * TEXTS[like]),
    )
    line(
        "the same with padding, as before",
        lambda like: token * (REGIONS * images(like) + mine["longest"] * TEXTS[like]),
    )
    line(
        "two teachers' vectors, CHAN (fp16: half)",
        lambda like: 2 * token * (REGIONS * images(like) + mine["mean_length"] * TEXTS[like]),
    )
    for name, part in (
        ("SCAN", "aoq online"),
        ("CHAN with BERT", "ndgl teacher"),
        ("UNITER", "tags 1"),
    ):
        size = rows[part]["checkpoint_bytes"]
        lines.append(f"| a checkpoint of {name} | {size / 1e9:.1f} | {size / 1e9:.1f} |")
    return "\n".join(lines)


def write_page(rows: Rows, page: Path = PAGE) -> None:
    """Put the tables between the marks of the page."""
    put_table(page, START, END, tables(rows))


def rehearse(folder: Path, names: Sequence[str], rows: Path, minutes: float = 0.0) -> int:
    """Run the parts that the rows lack, each in a process of its own."""
    failed = 0
    for name in names or PARTS:
        done = parse_json(rows.read_text("utf-8"), rows.name) if rows.exists() else {}
        if name in done:
            continue
        print(f"{name} …", flush=True)
        words = [sys.executable, "-m", "benchmarks.full_run", "part", str(folder), "--only", name]
        words += ["--minutes", str(minutes)]
        made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        if made.returncode:
            print(f"{name}: failed with {made.returncode}", flush=True)
            failed += 1
            continue
        write_json(rows, {**done, name: parse_json(made.stdout.splitlines()[-1], name)})
    return int(failed > 0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_run")
    parser.add_argument("what", choices=("data", "rehearse", "part", "page"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=(), choices=PARTS)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--minutes", type=float, default=0.0, help="of a training; 0 for no limit")
    given = parser.parse_args(words)
    if given.what == "page":
        write_page(parse_json(given.rows.read_text("utf-8"), given.rows.name))
        return 0
    if given.folder is None:
        parser.error(f"{given.what} needs a folder")
    folder = given.folder.resolve()
    if given.what == "data":
        write_data(folder / "data")
        write_berts(folder)
        return 0
    if given.what == "rehearse":
        return rehearse(folder, given.only, given.rows, given.minutes)
    global _limit
    _limit = given.minutes
    torch.set_num_threads(1)
    print(json.dumps(PARTS[given.only[0]](folder)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
