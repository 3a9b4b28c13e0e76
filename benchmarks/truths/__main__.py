"""``python -m benchmarks.truths bed | run | table``: uses of negatives, by several truths.

``--table cost`` runs and shows another table on the same bed: equal cost at four sizes of batch.

``run`` explores every arm's grid on seeds 0 and 1, chooses its point by RSum on dev, writes the
chosen points and the declared comparisons into ``declared.json``, and only then trains the
confirming seeds. It goes on where it was stopped: every training is a line of ``ledger.jsonl``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.truths import cost as equal_cost
from benchmarks.truths import cost_page
from benchmarks.truths.arms import ARMS, BASE, CCA, Cost, Point, fit
from benchmarks.truths.bed import Bed, write_bed
from benchmarks.truths.ledger import EXPLORED, declare, key, read_ledger, write_line
from benchmarks.truths.page import write_pages
from benchmarks.truths.table import CONTRASTS, SEEDS, summary, table
from counterfoil.data.readers import load_dataset
from counterfoil.losses.contrastive import InfoNCELoss

CONFIRMING = SEEDS
PAGES = {
    "truths": (summary, table, write_pages),
    "cost": (cost_page.summary, cost_page.table, cost_page.write_pages),
}
STOPPED = 3  # exit code of a run that goes on when it is called again


def train(bed: Bed, phase: str, arm: str, point: Point, seed: int, folder: Path) -> None:
    """One training, measured; a line of the ledger and, where it confirms, a file of points."""
    cost, start = Cost(), time.process_time()
    if arm == CCA:  # adapters begin as the identity, and this rate moves nothing
        loss = InfoNCELoss(temperature=0.05, reduction="mean")
        model = fit(bed, loss, seed, cost, rate=1e-12, epochs=1)
        cost = Cost()
    else:
        model = ARMS[arm].train(bed, point, seed, cost)
    seconds = time.process_time() - start
    write_line(folder, bed, (phase, arm, point, seed), bed.measure(model), cost, seconds)


def todo(folder: Path, arms: Sequence[str]) -> Iterator[tuple[str, str, Point, int]]:
    """Trainings that the ledger lacks, in order; the ledger is read again as it grows."""
    have = {line["key"] for line in read_ledger(folder)}
    for seed in EXPLORED:
        for arm in arms:
            for point in ARMS[arm].grid:
                if key("explore", arm, point, seed) not in have:
                    yield "explore", arm, point, seed
    plain = [contrast.to_dict() for contrast in CONTRASTS]
    points = declare(folder, arms, plain, CONFIRMING)
    for seed in CONFIRMING:
        for arm in (CCA, *arms) if seed == CONFIRMING[0] else arms:
            point = points.get(arm, {})
            if key("confirm", arm, point, seed) not in have:
                yield "confirm", arm, point, seed


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


def _run(bed: Bed, given: argparse.Namespace) -> bool:
    """Run the table that is asked for; False where it stopped before the end.

    Raises:
        ValueError: an option that this table does not have.
    """
    if given.table == "cost":
        if given.arm:
            raise ValueError("--arm is for --table truths: arms of equal cost share their models")
        claims = [claim.to_dict() for claim in cost_page.CLAIMS]
        return equal_cost.run(bed, given.folder, claims, given.minutes, explored=given.explored)
    if given.explored:
        raise ValueError("--explored is for --table cost; stop a run of truths with --minutes")
    arms = list(dict.fromkeys((BASE, *(given.arm or ARMS))))
    return run(bed, given.folder, arms, given.minutes)


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
    go.add_argument("--explored", action="store_true", help="stop before the confirming seeds")
    show = verbs.add_parser("table", help="print the table of a run")
    show.add_argument("folder", type=Path)
    show.add_argument("--docs", type=Path, help="write ledger, figure and page here, as docs/")
    for verb in (go, show):
        verb.add_argument("--table", choices=[*PAGES], default="truths")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "bed":
            write_bed(given.towers, load_dataset(given.data), given.output)
        elif given.verb == "table":
            lines = read_ledger(given.folder)
            sum_up, show_table, write = PAGES[given.table]
            found = sum_up(given.folder, lines)
            print(show_table(found))
            if given.docs is not None:
                write(given.docs, found, lines)
        else:
            torch.set_num_threads(1)
            if not _run(Bed(given.bed, given.judgements), given):
                return STOPPED
    except (ValueError, OSError) as error:
        print(f"benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
