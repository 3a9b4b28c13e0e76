"""What `counterfoil train` does on few photos, against the best of a grid of rates and lengths.

``python -m benchmarks.small_data run WAY --data flickr8k/ ...`` trains on 50, 150, 300 and 1,000
photos of Flickr8k what ``counterfoil train mobilenet`` trains (WAY photos, with ``--network``, the
folder of a MobileNetV2) or ``counterfoil train contrastive --tune frozen`` (WAY frozen, with
``--towers``, stored vectors), by default, as before, and on a grid of 5 rates x 5 lengths; a line
of JSON for each training is appended to the ledger, and what is there is not run again. ``table``
makes the table of the ledger, as the page has it.

Each seed has photos of its own, drawn from 4,000 training photos, and a tenth as many for dev; the
other 2,000 make the closed-form projection that stands for the pretraining of the frozen towers.
Images are encoded once. All is measured on the 1,000 test photos.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.experiments.cca import _projections
from benchmarks.experiments.summary import of_changes
from benchmarks.pages import put_table
from counterfoil.core.config import config, lazy
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.losses.base import weighted_sum
from counterfoil.model import Model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.models.layers.towers import Regions
from counterfoil.papers.photos import photo_recipe
from counterfoil.pipelines.pipeline import Train
from counterfoil.pipelines.stages.fitting import build_for_training
from counterfoil.recipes.clip import TEMPERATURE, WAYS, contrastive_terms
from counterfoil.training.config import CosineLR, TrainConfig, adapter_config
from counterfoil.training.trainer import train_network

LEDGER = Path("docs/evidence/small-data.jsonl")
SETTINGS = ("epochs", "steps", "least_steps", "evaluate_every", "patience")
PAGE = Path("docs/results/defaults.md")
METHODS = ("default", "before", "grid")
Way = Literal["photos", "frozen"]
SIZES = (50, 150, 300, 1000)
SEEDS = (0, 1, 2, 3, 4)
RATES = {  # of the recipe, and two on either side
    "photos": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "frozen": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
}
LENGTHS = {"photos": (40, 80, 160, 320, 640), "frozen": (25, 75, 150, 300, 600)}  # steps
POOL, OTHERS = 4000, 2000  # training photos that subsets are drawn from, and those apart
HELD_OUT = 200  # of these, for the temperature of the towers
DRAW = 35  # of the pool and the subsets
WIDTH = 256  # of the projected towers
FINALISTS = 1  # cells of the first seed's grid, the best on test, that other seeds need
CAPTIONS = 5  # of a photo
GRID, CELLS = 9, 1280  # cells of a picture, and numbers of each


@dataclass
class Data:
    """Subsets of Flickr8k."""

    whole: ImageTextDataset

    def __post_init__(self) -> None:
        rows = torch.tensor([s == "train" for s in self.whole.splits]).nonzero().squeeze(1)
        rows = rows[torch.from_numpy(np.random.default_rng(DRAW).permutation(len(rows)))]
        self.pool, self.others = rows[:POOL], rows[POOL:]

    def rows(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows of the training photos and of dev."""
        order = self.pool[
            torch.from_numpy(np.random.default_rng([DRAW, seed]).permutation(len(self.pool)))
        ]
        largest = max(SIZES)
        return order[:size], order[largest : largest + size // 10]

    def subset(self, rows: Tensor, name: str) -> ImageTextDataset:
        part = self.whole.subset(rows)
        return replace(part, splits=[name] * len(part), split_name=name)

    def test(self) -> ImageTextDataset:
        return self.whole.split("test")

    def needed(self) -> Tensor:
        """Rows of all images that are trained on or measured."""
        test = torch.tensor([s == "test" for s in self.whole.splits]).nonzero().squeeze(1)
        used = [part for seed in SEEDS for part in self.rows(max(SIZES), seed)]
        return torch.cat([test, *used]).unique()


Measure = Mapping[str, float]


@final
class Runner:
    """Trains and measures one way, on data that are encoded once."""

    def __init__(self, way: Way, data: Path, towers: Path, network: str, cache: Path) -> None:
        self.way = way
        whole = load_dataset(data)
        self.data = (
            _on_towers(whole, towers) if way == "frozen" else _on_cells(whole, network, cache)
        )
        self.test = self.data.whole.split("test")

    @cached_property
    def stage(self) -> Train:
        """The training as a user runs it, but for towers, whose outputs are stored."""
        if self.way == "photos":
            stage = photo_recipe("mobilenet", None).stages[0]
            assert isinstance(stage, Train)
            image = lazy(Regions, features=CELLS, width=WIDTH)  # of the stored outputs
            processor = replace(stage.processor, images="features")
            return replace(stage, model=stage.model.replace(image=image), processor=processor)
        return Train(
            name="tuned",
            model=config(FrozenAdapters, width=WIDTH),
            objective=weighted_sum(**contrastive_terms(TEMPERATURE, candidates=False)),
            processor=ProcessorConfig(texts="vectors"),
            plan=WAYS["frozen"][1],
        )

    @property
    def before(self) -> TrainConfig:
        """The settings until November 2026, the same passes for any number of photos."""
        plan = self.stage.plan
        optimiser = replace(plan.optimiser, rate=1e-3)
        return replace(plan.of_epochs(plan.epochs), optimiser=optimiser)

    def run(self, size: int, seed: int, plan: TrainConfig) -> dict[str, float]:
        """Train to the end, and read off what early stopping would have kept."""
        rows = self.data.rows(size, seed)
        train, dev = (self.data.subset(part, n) for part, n in zip(rows, ("train", "dev")))
        plan = plan.on_dev(len(dev))
        stage = replace(self.stage, plan=plan)
        context: Any = SimpleNamespace(train=train, dataset=train)
        model = build_for_training(context, stage)
        history: list[float] = []
        kept: dict[str, float] = {}
        best, waited = -math.inf, 0

        def measure(network: RetrievalModel) -> Measure:
            nonlocal best, waited
            figure = self.rsum(replace(model, model=network), dev)
            history.append(figure)
            if "stopped" in kept:
                return {"rsum": figure}
            better = figure > best or plan.keep_last
            waited = 0 if better else waited + 1
            if better:
                best = figure
                kept["dev"] = figure
                weights.update({n: t.clone() for n, t in network.state_dict().items()})
                kept["best"] = len(history)
            if plan.patience and waited >= plan.patience:
                kept["stopped"] = len(history)
            return {"rsum": figure}

        weights: dict[str, Tensor] = {}
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            fitted = train_network(
                replace(plan, patience=0, keep_last=True, log_every=1000),
                model.model,
                stage.objective.build(),
                model.process(train),
                folder=Path(folder),
                evaluate=measure,
            )
        seconds = time.process_time() - began
        last = self.rsum(model, self.test)
        numbers = {
            "steps": float(fitted.steps),
            "dev_last": history[-1],
            "test_last": last,
            "dev_best": kept["dev"],
            "best": kept["best"] / len(history),
            "stopped": kept.get("stopped", len(history)) / len(history),
            "seconds": round(seconds, 1),
        }
        if kept["best"] < len(history):
            model.model.load_state_dict(weights)
            last = self.rsum(model, self.test)
        return numbers | {"test_best": last}

    def grid(self, seed: int, rate: float, length: int) -> TrainConfig:
        """The settings of a cell of the grid: the last step counts."""
        plan = self.stage.plan
        return replace(
            plan.of_epochs(length),
            seed=seed,
            steps=length,
            evaluate_every=length,
            optimiser=replace(plan.optimiser, rate=rate),
            schedule=CosineLR(warmup=0.1),
        )

    def original(self) -> float:
        """Test RSum of the frozen towers before training."""
        model = Model(FrozenAdapters(width=WIDTH).eval(), self.stage.processor.fit(self.test), "o")
        return self.rsum(model, self.test)

    @staticmethod
    def rsum(model: Model, dataset: ImageTextDataset) -> float:
        """RSum of the whole split."""
        model.model.eval()
        with torch.no_grad():
            return evaluate_protocol([model.embed(dataset)], dataset).rsum


def _on_cells(whole: ImageTextDataset, network: str, cache: Path) -> Data:
    """The data with the outputs of the frozen network, computed once for the images needed."""
    data = Data(whole)
    if not cache.is_file():
        stage = photo_recipe("mobilenet", None).stages[0]
        assert isinstance(stage, Train)
        rows = data.needed()
        part = whole.subset(rows)
        tower = stage.model.arguments["image"].replace(name=network, pretrained=True, config=None)
        body = tower.build().eval()
        pixels = stage.processor.fit(whole.subset(rows[:5])).image_processor
        cells = np.zeros((len(whole), GRID, CELLS), np.float16)
        with torch.inference_mode():
            for chunk in torch.arange(len(rows)).split(64):
                states = body.states(pixels.from_dataset(part, chunk))
                cells[rows[chunk].numpy()] = states.half().numpy()
        partial = cache.with_name(f".{cache.name}")
        np.save(partial, cells)
        partial.with_name(f"{partial.name}.npy").replace(cache)
    features = FeatureArray.of(np.load(cache, mmap_mode="r"))
    return Data(replace(whole, features=features, pictures=None))


def _on_towers(whole: ImageTextDataset, towers: Path) -> Data:
    """The data with vectors of one space: towers projected by CCA of photos of no subset."""
    names = {
        name: row for row, name in enumerate(json.loads((towers / "image_names.json").read_text()))
    }
    rows = np.array([names[Path(i).name] for i in whole.image_ids])
    images = np.load(towers / "images.npy").astype(np.float64)[rows]
    own = whole.text_to_image.numpy()
    texts = np.load(towers / "texts.npy").astype(np.float64)[5 * rows[own] + _places(own)]
    fitted, held_out = Data(whole).others.split([OTHERS - HELD_OUT, HELD_OUT])
    inside = np.isin(own, fitted.numpy())
    centred = []
    for vectors, known in ((images, fitted.numpy()), (texts, inside)):
        mean, deviation = vectors[known].mean(0), vectors[known].std(0) + 1e-6
        centred.append((vectors - mean) / deviation)
    by_image, by_text = _projections(centred[0][own[inside]], centred[1][inside], WIDTH - 1)
    image, text = (_unit(v @ by) for v, by in zip(centred, (by_image, by_text)))
    firsts = torch.tensor([int(np.flatnonzero(own == row)[0]) for row in held_out.tolist()])
    share = TEMPERATURE / _natural_temperature(image[held_out.numpy()] @ text[firsts.numpy()].T)
    image, text = (_in_cone(vectors, share) for vectors in (image, text))
    return Data(
        replace(
            whole,
            features=FeatureArray.of(image),
            text_features=FeatureArray.of(text),
            pictures=None,
        )
    )


def _natural_temperature(scores: Any) -> float:
    """The temperature at which InfoNCE of true pairs, on the diagonal, is least."""
    given, rows = torch.from_numpy(scores), torch.arange(len(scores))
    losses = {t: float(cross_entropy(given / t, rows)) for t in np.geomspace(0.005, 1, 60)}
    return min(losses, key=lambda t: losses[t])


def _in_cone(vectors: Any, share: float) -> Any:
    """Unit vectors with a constant added, so that differences of cosines shrink to a share.

    Vectors of CLIP lie in a cone, and its temperature fits them; so does the recipe's.
    """
    rest = np.full((len(vectors), 1), math.sqrt(1 - share), np.float32)
    return np.concatenate([vectors * np.float32(math.sqrt(share)), rest], 1)


def _unit(vectors: Any) -> Any:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def _places(own: Any) -> Any:
    """Number of each text among those of its image."""
    counts: dict[int, int] = {}
    places = []
    for image in own.tolist():
        places.append(counts.get(image, 0))
        counts[image] = places[-1] + 1
    return np.array(places)


# The ledger


def read(ledger: Path) -> list[dict[str, Any]]:
    """The rows of a ledger, the newest of each training."""
    lines = ledger.read_text("utf-8").splitlines() if ledger.is_file() else []
    rows = (json.loads(line) for line in lines)
    return list({_key(row): row for row in rows}.values())


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(k) for k in ("way", "size", "seed", "method", "rate", "length"))


def _wanted(
    runner: Runner,
    methods: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    finalists: Callable[[int], Container[tuple[float, int]]],
) -> Iterator[tuple[dict[str, Any], TrainConfig]]:
    """Rows to be made, without their numbers, and the settings of each.

    Args:
        runner: of one way.
        methods: before, default, grid.
        sizes: numbers of photos.
        seeds: the first one has the whole grid.
        finalists: the cells that the other seeds have, by number of photos; asked when the first
            seed has its grid.
    """
    for method in methods:
        for seed in seeds:
            for size in sizes:
                row = {"way": runner.way, "size": size, "seed": seed, "method": method}
                if method == "default":
                    plan = runner.stage.plan
                    if runner.way == "frozen":
                        plan = adapter_config(CAPTIONS * size)
                    yield row, replace(plan, seed=seed)
                elif method == "before":
                    yield row, replace(runner.before, seed=seed)
                else:
                    for length, rate in product(LENGTHS[runner.way], RATES[runner.way]):
                        if seed == seeds[0] or (rate, length) in finalists(size):
                            cell = {"rate": rate, "length": length}
                            yield row | cell, runner.grid(seed, rate, length)


def run(
    runner: Runner,
    ledger: Path,
    methods: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    finalists: bool = False,
) -> None:
    """Make the missing rows of a ledger.

    Args:
        runner: of one way.
        ledger: lines of JSON.
        methods: before, default, grid.
        sizes: numbers of photos.
        seeds: of photos and training.
        finalists: only the first seed has the whole grid, the others its best cells on test.
    """
    if runner.way == "frozen":
        start = {"way": runner.way, "size": 0, "seed": 0, "method": "original"}
        if not any(_key(row) == _key(start) for row in read(ledger)):
            _add(ledger, start | {"test_last": runner.original(), "settings": {}})
    have = {_key(row): row["settings"] for row in read(ledger)}

    def cells(size: int) -> Container[tuple[float, int]]:
        if not finalists:
            return list(product(RATES[runner.way], LENGTHS[runner.way]))
        return best_cells(_grids(read(ledger), runner.way, size)[seeds[0]])

    for row, plan in _wanted(runner, methods, sizes, seeds, cells):
        settings = {key: getattr(plan, key) for key in SETTINGS} | {"rate": plan.optimiser.rate}
        if have.get(_key(row)) == settings:
            continue
        made = row | runner.run(row["size"], row["seed"], plan) | {"settings": settings}
        _add(ledger, made)


def _add(ledger: Path, row: Mapping[str, Any]) -> None:
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


# The table


BEGIN, END = "<!-- few photos -->", "<!-- end of few photos -->"
TITLES = {"photos": "`train mobilenet`", "frozen": "`train contrastive --tune frozen`"}
WITHIN = 5.0  # RSum
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """A way and a number of photos, on the seeds that have the default and the best cells.

    Attributes:
        seeds: these.
        cells: of the grid, that one of them has.
        common: of these, that all of them have.
        before: test RSum by seed, with the length in epochs; of those seeds that have it.
        default: with what a user has now.
        alone: without a dev split.
        on_dev: of the cell that is best on the seed's own dev split.
        oracle: of the cell that is best on test, in the mean over seeds.
        best: that cell, rate and steps.
    """

    way: str
    size: int
    seeds: tuple[int, ...]
    cells: int
    common: int
    before: tuple[float, ...]
    default: tuple[float, ...]
    alone: tuple[float, ...]
    on_dev: tuple[float, ...]
    oracle: tuple[float, ...]
    best: tuple[float, int]

    @property
    def differences(self) -> tuple[float, ...]:
        """Default from the oracle, by seed."""
        return tuple(a - b for a, b in zip(self.default, self.oracle, strict=True))


Cells = dict[tuple[float, int], Mapping[str, Any]]


def _grids(rows: Rows, way: str, size: int) -> dict[int, Cells]:
    """The cells of the grid that each seed has, by rate and length."""
    found: dict[int, Cells] = {}
    for row in rows:
        if (row["way"], row["size"], row["method"]) == (way, size, "grid"):
            found.setdefault(row["seed"], {})[row["rate"], row["length"]] = row
    return found


def best_cells(cells: Cells) -> list[tuple[float, int]]:
    """Those that are best on test."""
    return sorted(cells, key=lambda c: -cells[c]["test_last"])[:FINALISTS]


def line(rows: Rows, way: str, size: int) -> Line | None:
    """The line of the table; None where no seed has a default and a grid."""
    own = [row for row in rows if (row["way"], row["size"]) == (way, size)]
    by_method = {
        m: {row["seed"]: row for row in own if row["method"] == m} for m in ("default", "before")
    }
    grids = _grids(rows, way, size)
    whole = max(grids.values(), key=len, default={})
    needed = set(best_cells(whole))
    seeds = [s for s in sorted(by_method["default"]) if needed and needed <= set(grids.get(s, ()))]
    if not seeds:
        return None
    cells = sorted(set.intersection(*(set(grids[s]) for s in seeds)))
    best = max(cells, key=lambda c: statistics.fmean(grids[s][c]["test_last"] for s in seeds))
    chosen = [max(cells, key=lambda c, s=s: grids[s][c]["dev_last"]) for s in seeds]  # type: ignore[misc]
    return Line(
        way=way,
        size=size,
        seeds=tuple(seeds),
        cells=max(len(grids[s]) for s in seeds),
        common=len(cells),
        before=tuple(
            by_method["before"][s]["test_best"] for s in seeds if s in by_method["before"]
        ),
        default=tuple(by_method["default"][s]["test_best"] for s in seeds),
        alone=tuple(by_method["default"][s]["test_last"] for s in seeds),
        on_dev=tuple(grids[s][c]["test_last"] for s, c in zip(seeds, chosen, strict=True)),
        oracle=tuple(grids[s][best]["test_last"] for s in seeds),
        best=best,
    )


def as_markdown(rows: Rows) -> str:
    """The table of a ledger, as the page has it."""
    head = (
        "photos",
        "seeds",
        "cells of 25",
        "before",
        "default",
        "without dev",
        "grid, on dev",
        "grid, on test",
        "its cell",
        "default from it",
    )
    parts = []
    for way, title in TITLES.items():
        found = [found for size in SIZES if (found := line(rows, way, size))]
        if not found:
            continue
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for each in found:
            shown = (each.default, each.alone, each.on_dev, each.oracle)
            before = _mean(each.before) if each.before else "–"
            if 0 < len(each.before) < len(each.seeds):
                before += f" ({len(each.before)} of the seeds)"
            cells = (
                f"{each.size:,}",
                str(len(each.seeds)),
                str(each.cells) if each.common == each.cells else f"{each.cells}; {each.common}",
                before,
                *map(_mean, shown),
                f"{each.best[0]:g} × {each.best[1]}",
                _difference(each.differences),
            )
            lines.append(f"| {' | '.join(cells)} |")
        parts.append(f"{title}, test RSum:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _difference(values: Sequence[float]) -> str:
    """Mean with Student's 95 % interval over seeds."""
    found = of_changes(values)
    if found.count < 2:
        return f"{found.mean:+.1f} (one seed)"
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def write_page(page: Path, rows: Rows) -> None:
    """Put the table of a ledger in its place in a page."""
    put_table(page, BEGIN, END, as_markdown(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_data", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    go = verbs.add_parser("run", help="add the missing trainings to the ledger")
    go.add_argument("way", choices=("photos", "frozen"))
    go.add_argument("--data", type=Path, required=True, help="folder of Flickr8k")
    go.add_argument("--towers", type=Path, help="folder of stored vectors, for frozen")
    go.add_argument("--network", help="folder of a MobileNetV2, for photos")
    go.add_argument(
        "--cache", type=Path, default=Path("runs/small-data.npy"), help="of its outputs"
    )
    go.add_argument("--ledger", type=Path, default=LEDGER)
    go.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    go.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    go.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    table = verbs.add_parser("table", help="write the table of the ledger into the page")
    table.add_argument("--ledger", type=Path, default=LEDGER)
    table.add_argument("--page", type=Path, default=PAGE)
    go.add_argument(
        "--finalists",
        action="store_true",
        help=f"all seeds but the first have only its {FINALISTS} best cells on test",
    )
    given = parser.parse_args(arguments)
    if given.verb == "table":
        write_page(given.page, read(given.ledger))
        return 0
    torch.set_num_threads(1)
    runner = Runner(given.way, given.data, given.towers, given.network, given.cache)
    run(runner, given.ledger, given.methods, given.sizes, given.seeds, given.finalists)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
