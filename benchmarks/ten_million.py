"""Rehearse a million images by two processes, and compute what ten million cost.

    python -m benchmarks.ten_million data FOLDER        write random vectors, 2.3 GB
    python -m benchmarks.ten_million rehearse FOLDER    run every part that the JSON lacks
    python -m benchmarks.ten_million page               write the tables of docs/ten-million.md

The parts are commands of the command line. Mining and evaluation run by ``torchrun`` with two
processes of one thread on the loopback; each process tells its processor seconds and what it held
at most beside mapped files. Images are unit vectors around 1,000 centres, in float32; a text lies
near its image. Proposals by IVF are of a tenth of the images; mining and indexes are of both sizes,
as what a process holds anyway does not grow with the images. The rows are in ``ten-million.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import put_table
from benchmarks.speed.memory import AnonymousPeak
from counterfoil.core.io import parse_json, write_json

ROOT = Path(__file__).parents[1]
ROWS, GPU_ROWS = ROOT / "benchmarks/ten-million.json", ROOT / "benchmarks/gpu-h100-2026-11-27.json"
PAGE, START, END = ROOT / "docs/ten-million.md", "<!-- ten million -->", "<!-- end -->"
Row = Mapping[str, Any]
Rows = Mapping[str, Row]

# The data.

IMAGES, TEXTS, WIDTH = 1_000_000, 10_000, 512
CENTRES, PART, NOISE = 1_000, 50_000, 2.5


def write_data(folder: Path, images: int, texts: int, width: int) -> None:
    """Write vectors of images around centres, and of texts near some of the images."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)

    def unit(vectors: Any) -> Any:
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def noise(count: int) -> Any:
        return rng.standard_normal((count, width), dtype=np.float32) / np.float32(width**0.5)

    centres = noise(CENTRES)
    file = np.lib.format.open_memmap(folder / "images.npy", "w+", np.float32, (images, width))
    for start in range(0, images, PART):
        size = min(PART, images - start)
        file[start : start + size] = unit(centres[rng.integers(CENTRES, size=size)] + noise(size))
    file.flush()
    owner = np.sort(rng.permutation(images)[:texts])
    np.save(folder / "owner.npy", owner)
    np.save(folder / "texts.npy", unit(file[owner] + NOISE * noise(texts)))


# The parts.

LISTS = 100  # texts an image and images a text
MODEL = "vectors:inner-product"  # of unit vectors, which need not be brought to length 1 again
PROPOSED = "--propose", "ivf"
PROCESSES, QUERIES = 2, 20


def mine_words(data: Path, place: Path, *more: str) -> list[str]:
    """The command that mines."""
    lengths = ["--texts-per-image", str(LISTS), "--images-per-text", str(LISTS)]
    where = ["--data", str(data), "--split", "all", "--output", str(place)]
    return ["mine", MODEL, *where, *lengths, *more]


def by_torchrun(words: Sequence[str], place: Path) -> dict[str, Any]:
    """Run a command of counterfoil by processes on the loopback; what each of them spent."""
    place.mkdir(parents=True, exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    worker = ["-m", "benchmarks.ten_million", "worker", str(place), "--", *words]
    before = time.monotonic()
    subprocess.run(
        [*torchrun, *worker], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT
    )
    wall = time.monotonic() - before
    parts = [
        parse_json((place / f"{rank}.json").read_text("utf-8"), "a worker's row")
        for rank in range(PROCESSES)
    ]
    return {
        "processes": PROCESSES,
        "wall_seconds": wall,
        **{f"{name}s": [part[name] for part in parts] for name in parts[0]},
    }


def worker(place: Path, words: Sequence[str]) -> None:
    """Run a command of counterfoil in this process and write what it spent."""
    from counterfoil.cli import main as counterfoil

    rank = int(os.environ.get("RANK", "0"))
    before = time.process_time()
    with AnonymousPeak() as peak:
        code = counterfoil(list(words))
    assert code == 0, code
    row = {"processor_second": time.process_time() - before, "held_byte": peak.bytes}
    write_json(place / f"{rank}.json", row)


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _rehearsed(data: Path, words: Sequence[str]) -> dict[str, Any]:
    row = by_torchrun(words, data.with_name("runs"))
    images, texts = (np.load(data / f"{side}.npy", "r") for side in ("images", "texts"))
    return row | {"images": len(images), "texts": len(texts), "width": images.shape[1]}


def _mine(data: Path, *more: str) -> dict[str, Any]:
    lists = data.with_name(f"{data.name}-lists{'-'.join(more)}")
    shutil.rmtree(lists, ignore_errors=True)
    row = _rehearsed(data, mine_words(data, lists, *more))
    return row | {"list": LISTS, "disk_bytes": size_of(lists)}


def _ivf(data: Path) -> dict[str, Any]:
    row = _mine(data, *PROPOSED)
    return row | {f"recall_{side}": _recall(data, side) for side in ("texts", "images")}


def _recall(data: Path, side: str) -> float:
    """Share of the exact lists of a side that IVF's lists hold."""
    import torch

    from counterfoil.negatives.proposals import recall_of_lists

    found, exact = (
        torch.from_numpy(np.load(data.with_name(f"{data.name}-lists{more}") / f"{side}.npy"))
        for more in ("-".join(PROPOSED), "")
    )
    parts = [
        recall_of_lists(*some) * len(some[0])
        for some in zip(torch.split(found, 1024), torch.split(exact, 1024), strict=True)
    ]
    return sum(parts) / len(found)


def _evaluate(data: Path) -> dict[str, Any]:
    return _rehearsed(data, ["evaluate", MODEL, "--data", str(data), "--split", "all"])


def _index(data: Path, backend: str) -> dict[str, Any]:
    """An index built by one process, and the seconds of a query by an image of it."""
    from counterfoil import open_index
    from counterfoil.cli import main as counterfoil

    place = data.with_name(f"index-{backend}")
    shutil.rmtree(place, ignore_errors=True)
    before = time.process_time()
    with AnonymousPeak() as built:
        words = [str(data), "--output", str(place), "--backend", backend]
        assert not counterfoil(["index", MODEL, *words])
    row: dict[str, Any] = {
        "build_seconds": time.process_time() - before,
        "build_bytes": built.bytes,
        "disk_bytes": size_of(place),
    }
    before = time.process_time()
    with AnonymousPeak() as opened:
        index = open_index(place)
        index.search_id("image/0", find="images", top_k=10)
        row["open_seconds"] = time.process_time() - before
        seconds = []
        for number in range(1, QUERIES + 1):
            before = time.process_time()
            index.search_id(f"image/{number}", find="images", top_k=10)
            seconds.append(time.process_time() - before)
    row |= {"held_bytes": opened.bytes, "query_seconds": float(np.median(seconds))}
    row["images"] = len(np.load(data / "images.npy", "r"))
    shutil.rmtree(place)
    return row


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "mine": lambda folder: _mine(folder / "data"),
    "evaluate": lambda folder: _evaluate(folder / "data"),
    "mine a tenth": lambda folder: _mine(folder / "tenth"),
    "mine a tenth by IVF": lambda folder: _ivf(folder / "tenth"),
    "index exact": lambda folder: _index(folder / "data", "exact"),
    "index exact, a tenth": lambda folder: _index(folder / "tenth", "exact"),
    "index faiss-ivf-pq": lambda folder: _index(folder / "data", "faiss-ivf-pq"),
    "index faiss-ivf-pq, a tenth": lambda folder: _index(folder / "tenth", "faiss-ivf-pq"),
}


def rehearse(folder: Path, names: Sequence[str], rows: Path) -> int:
    """Run the parts that the rows lack, each in processes of its own."""
    failed = 0
    for name in names or PARTS:
        done = parse_json(rows.read_text("utf-8"), rows.name) if rows.exists() else {}
        if name in done:
            continue
        print(f"{name} …", flush=True)
        words = [sys.executable, "-m", "benchmarks.ten_million", "part", str(folder)]
        made = subprocess.run([*words, "--only", name], stdout=subprocess.PIPE, text=True)
        if made.returncode:
            print(f"{name}: failed with {made.returncode}", flush=True)
            failed += 1
            continue
        write_json(rows, {**done, name: parse_json(made.stdout.splitlines()[-1], name)})
    return int(failed > 0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ten_million")
    parser.add_argument("what", choices=("data", "rehearse", "part", "worker", "page"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("command", nargs="*")
    parser.add_argument("--only", nargs="*", default=(), choices=PARTS)
    parser.add_argument("--rows", type=Path, default=ROWS)
    for name, size in (("images", IMAGES), ("texts", TEXTS), ("width", WIDTH)):
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args(words)
    if given.what == "page":
        write_page(parse_json(given.rows.read_text("utf-8"), given.rows.name))
        return 0
    if given.folder is None:
        parser.error(f"{given.what} needs a folder")
    folder = given.folder.resolve()
    if given.what == "data":
        write_data(folder / "data", given.images, given.texts, given.width)
        write_data(folder / "tenth", given.images // 10, given.texts, given.width)
    elif given.what == "worker":
        worker(folder, given.command)
    elif given.what == "rehearse":
        return rehearse(folder, given.only, given.rows)
    else:
        print(json.dumps(PARTS[given.only[0]](folder)))
    return 0


# The cost model.

COUNTS, KEPT = (10_000_000, 50_000_000), (5, 50)  # images and texts; texts an image, images a text
H100 = "mining 29,000 x 145,000 x 512, float32, tiles of 8192 x 16384"
SCORES = 29_000 * 145_000  # of that row
DAY, SHARDS = 24 * 3600, 10


def scores(row: Row) -> int:
    """Scores of all pairs of a row."""
    return int(row["images"]) * int(row["texts"])


def each(row: Row) -> float:
    """Processor seconds of a score, of all processes together."""
    return float(sum(row["processor_seconds"])) / scores(row)


def ivf_operations(queries: int, items: int, width: int, kept: int, *, built: int = 1) -> float:
    """Sums and products of proposing and re-scoring for one direction; `built` indexes are made.

    k-means sees 64 vectors for each of sqrt(N) centres, ten times; then N vectors and Q queries
    meet all centres, and a query the vectors of 32 of them and, exactly, 4 times what is kept.
    """
    from counterfoil.negatives.proposals import PROBES, ROUNDS, SAMPLE

    cells = items**0.5
    building = ROUNDS * SAMPLE * cells * cells + items * cells
    asking = queries * (cells + min(PROBES, cells) * items / cells + PROPOSALS * kept)
    return 2 * width * (built * building + asking)


PROPOSALS = 4  # for each that is kept


def ivf_seconds(rows: Rows, images: int, texts: int, width: int, kept: tuple[int, int]) -> float:
    """Processor seconds of both directions in one process, by the rate that was measured."""
    row = rows["mine a tenth by IVF"]

    def operations(images: int, texts: int, kept: tuple[int, int], width: int, built: int) -> float:
        return ivf_operations(images, texts, width, kept[0], built=built) + ivf_operations(
            texts, images, width, kept[1], built=built
        )

    long = row["list"], row["list"]
    made = operations(row["images"], row["texts"], long, row["width"], row["processes"])
    rate = made / sum(row["processor_seconds"])
    return operations(images, texts, kept, width, 1) / rate


def extrapolated(few: tuple[float, float], many: tuple[float, float], size: float) -> float:
    """What a size costs, on the line through the sizes and costs of two measurements."""
    (a, cost), (b, more) = few, many
    return more + (more - cost) / (b - a) * (size - b)


def _besides_lists(row: Row) -> tuple[float, float]:
    """Images and texts of a mining, and what a process held of them beside its lists."""
    lists = held_by_lists(row["images"], row["texts"], (row["list"], row["list"]))
    return row["images"] + row["texts"], max(row["held_bytes"]) - lists


def held_by_lists(images: int, texts: int, kept: tuple[int, int]) -> float:
    """Bytes of the lists of a process: a key of 8 bytes for k and for max(k, 64) more."""
    places = [count * (max(k, 64) + k) for count, k in zip((images, texts), kept, strict=True)]
    return 8.0 * sum(places)


def h100_seconds() -> float:
    """Seconds of a score in the fastest mining from embeddings on the H100."""
    for row in parse_json(GPU_ROWS.read_text("utf-8"), GPU_ROWS.name):
        if row["name"] == H100:
            return float(row["note"].split(" s,")[0]) / SCORES
    raise ValueError(f"{GPU_ROWS} has no row {H100!r}")


def write_page(rows: Rows, page: Path = PAGE) -> None:
    """Put the tables between the marks of the page."""
    put_table(page, START, END, tables(rows))


def tables(rows: Rows) -> str:
    """The tables of the page."""
    return "\n\n".join([_measured(rows), _indexes(rows), _model(rows)])


def _measured(rows: Rows) -> str:
    lines = [
        "| by two processes | images × texts × width | processor s, each | ns a score, all | "
        "held by each, MiB | wall s, machine busy |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "processes" in row:
            seconds = " and ".join(f"{one:,.0f}" for one in row["processor_seconds"])
            held = " and ".join(f"{one / 2**20:,.0f}" for one in row["held_bytes"])
            lines.append(
                f"| {name} | {row['images']:,} × {row['texts']:,} × {row['width']} | {seconds} | "
                f"{1e9 * each(row):.1f} | {held} | {row['wall_seconds']:,.0f} |"
            )
    return "\n".join(lines)


def _indexes(rows: Rows) -> str:
    lines = [
        "| index of one process | images | built in, processor s | memory to build, GiB | "
        "disk, GiB | opened in, s | held, GiB | s a query |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "query_seconds" in row:
            built, disk, held = (
                f"{row[f'{key}_bytes'] / 2**30:.1f}" for key in ("build", "disk", "held")
            )
            lines.append(
                f"| {name.removeprefix('index ')} | {row['images']:,} | "
                f"{row['build_seconds']:,.0f} | {built} | {disk} | "
                f"{row['open_seconds']:.1f} | {held} | "
                f"{row['query_seconds']:.3f} |"
            )
    return "\n".join(lines)


def _model(rows: Rows) -> str:
    (images, texts), width = COUNTS, WIDTH
    pairs, items = images * texts, images + texts
    entries = images * KEPT[0] + texts * KEPT[1]
    days = pairs * each(rows["mine"]) / DAY
    evaluated = pairs * each(rows["evaluate"]) / DAY
    hours = pairs * h100_seconds() / 3600
    proposed = ivf_seconds(rows, images, texts, width, KEPT) / DAY
    held = held_by_lists(images, texts, KEPT)
    few, many = (_besides_lists(rows[name]) for name in ("mine a tenth", "mine"))
    rest = extrapolated(few, many, items)
    recall = rows["mine a tenth by IVF"]
    lines = [
        f"| {images:,} images, {texts:,} texts, width {width} | computed |",
        "|---|---|",
        f"| vectors in float32: 4 bytes × {width} × {items / 1e6:,.0f} million | "
        f"{4 * width * items / 1e9:,.0f} GB of disk, mapped by every process |",
        f"| all scores | {pairs:.0e} pairs, {2 * width * pairs:.1e} operations |",
        f"| lists of {KEPT[0]} texts and {KEPT[1]} images: 6 bytes an entry | "
        f"{6 * entries / 1e9:,.0f} GB of disk |",
        "| – while they are mined: 8 bytes for each of k + max(k, 64) places | "
        f"{held / 1e9:,.0f} GB in every process |",
        "| – ids, truth and all else, by what a tenth and all items held | "
        f"{rest / 1e9:,.0f} GB in every process |",
        f"| mining, exact, by cores as measured | {days:,.0f} core-days |",
        f"| – by H100s | {hours:,.0f} hours of one |",
        f"| – in {SHARDS} parts, each image among those of its part | {days / SHARDS:,.0f} "
        f"core-days; lists of {held / SHARDS / 1e9:,.1f} GB in every process |",
        f"| mining by IVF, exact scores of {PROPOSALS} × as many proposals | "
        f"{proposed:,.1f} core-days; of the exact lists of a tenth it had "
        f"{recall['recall_texts']:.1%} of the texts and {recall['recall_images']:.1%} of the "
        "images |",
        "| – proposals and a copy, 8 bytes each | "
        f"{8 * PROPOSALS * entries / 1e9:,.0f} GB in every process |",
        f"| evaluation with ranks and intervals | {evaluated:,.0f} core-days |",
    ]
    for name in ("exact", "faiss-ivf-pq"):
        sizes = rows[f"index {name}, a tenth"], rows[f"index {name}"]
        query, disk, held, built = (
            extrapolated(*((float(row["images"]), row[key]) for row in sizes), images)
            for key in ("query_seconds", "disk_bytes", "held_bytes", "build_bytes")
        )
        lines.append(
            f"| a query of {images:,} images, `{name}` | {query:.2f} s; disk {disk / 1e9:,.0f} GB, "
            f"held {held / 1e9:,.1f} GB, while it is built {built / 1e9:,.0f} GB |"
        )
    lines.append(
        f"| the same by `milvus`: HNSW of 32 links, (4 × {width} + 4 × 2 × 32) bytes | "
        f"{(4 * width + 4 * 2 * 32) * images / 1e9:,.0f} GB of memory of the server |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
