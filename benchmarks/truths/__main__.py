"""``python -m benchmarks.truths bed | run | table``: uses of negatives, by several truths.

``run`` explores every arm's grid on seeds 0 and 1, chooses its point by RSum on dev, writes the
chosen points and the declared comparisons into ``declared.json``, and only then trains the
confirming seeds. It goes on where it was stopped: every training is a line of ``ledger.jsonl``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.truths.arms import ARMS, BASE, CCA, Cost, Point, fit
from benchmarks.truths.bed import Bed, write_bed
from benchmarks.truths.page import write_pages
from benchmarks.truths.table import CONTRASTS, SEEDS, summary, table
from counterfoil import __version__
from counterfoil.core.io import parse_json, read_json, write_json, write_text
from counterfoil.core.tensors import write_tensors
from counterfoil.data.readers import load_dataset
from counterfoil.losses.contrastive import InfoNCELoss

EXPLORED, CONFIRMING = (0, 1), SEEDS
LEDGER, DECLARED = "ledger.jsonl", "declared.json"
STOPPED = 3  # exit code of a run that goes on when it is called again

Line = dict[str, Any]


def read_ledger(folder: Path) -> list[Line]:
    """The lines of a run; none before the first."""
    path = folder / LEDGER
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines()
    return [parse_json(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def key(phase: str, arm: str, point: Point, seed: int) -> str:
    """What a training is known by; also names its file of points."""
    plain = json.dumps([phase, arm, dict(point), seed], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def train(bed: Bed, phase: str, arm: str, point: Point, seed: int, folder: Path) -> None:
    """One training, measured; a line of the ledger and, where it confirms, a file of points."""
    cost, start = Cost(), time.process_time()
    if arm == CCA:  # adapters begin as the identity, and this rate moves nothing
        loss = InfoNCELoss(temperature=0.05, reduction="mean")
        model = fit(bed, loss, seed, cost, rate=1e-12, epochs=1)
        cost = Cost()
    else:
        model = ARMS[arm].train(bed, point, seed, cost)
    points = bed.measure(model)
    name = key(phase, arm, point, seed)
    if phase == "confirm":
        (folder / "points").mkdir(parents=True, exist_ok=True)
        plain = {measure.replace(" ", "_"): table.float() for measure, table in points.items()}
        write_tensors(folder / "points" / f"{name}.safetensors", plain, {"arm": arm})
    line = {
        "phase": phase,
        "arm": arm,
        "point": dict(point),
        "seed": seed,
        "key": name,
        "numbers": {
            measure: round((table[:, 0].sum() / table[:, 1].sum()).item(), 4)
            for measure, table in points.items()
        },
        "steps": cost.steps,
        "pairs": cost.pairs,
        "cpu_seconds": round(time.process_time() - start, 1),
        "data": bed.data.fingerprint,
        "versions": {"counterfoil": __version__, "torch": torch.__version__},
    }
    lines = [*read_ledger(folder), line]
    write_text(folder / LEDGER, "".join(f"{json.dumps(one, sort_keys=True)}\n" for one in lines))


def dev_rsum(line: Line) -> float:
    """What points are chosen by."""
    numbers = line["numbers"]
    return float(numbers["dev i2t RSum"] + numbers["dev t2i RSum"])


def chosen(lines: Iterable[Line]) -> dict[str, Point]:
    """The point of each arm with the best mean RSum on dev over the explored seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if line["phase"] == "explore":
            place = json.dumps(line["point"], sort_keys=True)
            found.setdefault(line["arm"], {}).setdefault(place, []).append(dev_rsum(line))
    best = {arm: max(points, key=lambda p: sum(points[p])) for arm, points in found.items()}
    return {arm: json.loads(point) for arm, point in best.items()}


def todo(folder: Path, arms: Sequence[str]) -> Iterator[tuple[str, str, Point, int]]:
    """Trainings that the ledger lacks, in order; the ledger is read again as it grows."""
    have = {line["key"] for line in read_ledger(folder)}
    for seed in EXPLORED:
        for arm in arms:
            for point in ARMS[arm].grid:
                if key("explore", arm, point, seed) not in have:
                    yield "explore", arm, point, seed
    points = declare(folder, arms)
    for seed in CONFIRMING:
        for arm in (CCA, *arms) if seed == CONFIRMING[0] else arms:
            point = points.get(arm, {})
            if key("confirm", arm, point, seed) not in have:
                yield "confirm", arm, point, seed


def declare(folder: Path, arms: Sequence[str]) -> Mapping[str, Point]:
    """Write points and comparisons before the first confirming seed; later, read them.

    Raises:
        ValueError: the comparisons were changed since.
    """
    path, plain = folder / DECLARED, [contrast.to_dict() for contrast in CONTRASTS]
    if not path.exists():
        points = chosen(line for line in read_ledger(folder) if line["arm"] in arms)
        facts = {"points": points, "contrasts": plain, "seeds": [*CONFIRMING]}
        write_json(path, facts)
    known = read_json(path, "what was declared")
    if known["contrasts"] != plain:
        raise ValueError(f"{path} declares other comparisons than this code; use a new folder")
    points = known["points"]
    if missing := [arm for arm in arms if arm not in points]:
        raise ValueError(f"{path} has no point of {missing[0]}; use a new folder for other arms")
    return dict(points)


def run(bed: Bed, folder: Path, arms: Sequence[str], minutes: float | None) -> bool:
    """Train what is missing; False where the time was up."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for phase, arm, point, seed in todo(folder, arms):
        if end is not None and time.monotonic() > end:
            return False
        train(bed, phase, arm, point, seed, folder)
        print(f"{phase}: {arm}, seed {seed}, {dict(point)}", flush=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when all went well, 2 when the input was at fault, 3 when stopped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truths", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    bed = verbs.add_parser("bed", help="write the vectors that all arms train on")
    bed.add_argument("towers", type=Path, help="folder of images.npy and texts.npy")
    bed.add_argument("--data", required=True, help="the captions, as flickr8k/")
    bed.add_argument("--output", type=Path, required=True, help="folder to write")
    go = verbs.add_parser("run", help="explore, declare, confirm")
    go.add_argument("bed", type=Path, help="as `bed` wrote it")
    go.add_argument("--judgements", type=Path, required=True, help="as flickr8k/annotations/")
    go.add_argument("--folder", type=Path, required=True, help="of the ledger")
    go.add_argument("--arm", action="append", choices=[*ARMS], help="only these; repeatable")
    go.add_argument("--minutes", type=float, help="stop after this long; call again to go on")
    show = verbs.add_parser("table", help="print the table of a run")
    show.add_argument("folder", type=Path)
    show.add_argument("--docs", type=Path, help="write ledger, figure and page here, as docs/")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "bed":
            write_bed(given.towers, load_dataset(given.data), given.output)
        elif given.verb == "table":
            lines = read_ledger(given.folder)
            found = summary(given.folder, lines)
            print(table(found))
            if given.docs is not None:
                write_pages(given.docs, found, lines)
        else:
            torch.set_num_threads(1)
            arms = list(dict.fromkeys((BASE, *(given.arm or ARMS))))
            if not run(Bed(given.bed, given.judgements), given.folder, arms, given.minutes):
                return STOPPED
    except (ValueError, OSError) as error:
        print(f"benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
