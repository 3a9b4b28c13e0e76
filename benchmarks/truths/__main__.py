"""``python -m benchmarks.truths bed | world | run | table``: negatives, by several truths.

``--table cost`` runs and shows another table on the same bed: equal cost at four sizes of batch;
``--table exact`` one on a bed of scenes: lists of negatives where every true pair is known, and
``--table towers`` the same with towers that are trained;
``--table methods`` one of options of losses, draws and filters that came later;
``--table replacing`` one of mined negatives that are replaced once they are learnt;
``--table listwise`` one of a re-ranker, ``--reranker``, that teaches over mined lists.

``run`` explores every arm's grid on seeds 0 and 1, chooses its point by RSum on dev, writes the
chosen points and the declared comparisons into ``declared.json``, and only then trains the
confirming seeds. It goes on where it was stopped: every training is a line of ``ledger.jsonl``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks import refused
from benchmarks.truths import cost as equal_cost
from benchmarks.truths import cost_page, exact, exact_page, methods, methods_page
from benchmarks.truths.arms import ARMS, BASE, CCA, Cost, Point, closed_form
from benchmarks.truths.bed import Bed, write_bed
from benchmarks.truths.ledger import read_ledger, todo, write_line
from benchmarks.truths.page import write_pages
from benchmarks.truths.table import CONTRASTS, SEEDS, summary, table
from benchmarks.truths.world import write_world
from counterfoil.data.readers import load_dataset

CONFIRMING = SEEDS
PAGES = (
    {
        "truths": (summary, table, write_pages),
        "cost": (cost_page.summary, cost_page.table, cost_page.write_pages),
    }
    | {
        name: (
            partial(methods_page.summary, name),
            methods_page.table,
            partial(methods_page.write_pages, name),
        )
        for name in methods.STUDIES
    }
    | {
        name: (
            partial(exact_page.summary, study),
            exact_page.table,
            partial(exact_page.write_pages, study),
        )
        for name, study in exact.STUDIES.items()
    }
)
STOPPED = 3  # exit code of a run that goes on when it is called again


def train(bed: Bed, phase: str, arm: str, point: Point, seed: int, folder: Path) -> None:
    """One training, measured; a line of the ledger and, where it confirms, a file of points."""
    cost, start = Cost(), time.process_time()
    model = closed_form(bed) if arm == CCA else ARMS[arm].train(bed, point, seed, cost)
    seconds = time.process_time() - start
    write_line(folder, bed, (phase, arm, point, seed), bed.measure(model), cost, seconds)


def run(bed: Bed, folder: Path, arms: Sequence[str], minutes: float | None) -> bool:
    """Train what is missing; False where the time was up."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    plain = [contrast.to_dict() for contrast in CONTRASTS]
    grids = {arm: ARMS[arm].grid for arm in arms}
    for phase, arm, point, seed in todo(folder, grids, plain, CONFIRMING):
        if end is not None and time.monotonic() > end:
            return False
        train(bed, phase, arm, point, seed, folder)
        print(f"{phase}: {arm}, seed {seed}, {dict(point)}", flush=True)
    return True


def _run(given: argparse.Namespace) -> bool:
    """Run the table that is asked for; False where it stopped before the end.

    Raises:
        ValueError: an option that this table does not have.
    """
    if given.arm and given.table != "truths":
        raise ValueError("--arm is for --table truths: arms of the others share their models")
    if study := exact.STUDIES.get(given.table):
        if given.judgements is not None:
            raise ValueError(
                f"--table {given.table} reads no judgements: every pair of scenes is known"
            )
        claims = [claim.to_dict() for claim in exact_page.CLAIMS[study.name]]
        return exact.run(
            study, given.bed, given.folder, claims, given.minutes, explored=given.explored
        )
    if given.judgements is None:
        raise ValueError(f"--table {given.table} needs --judgements, as flickr8k/annotations/")
    if given.table == "listwise" and not (given.reranker and given.regions):
        raise ValueError("--table listwise needs a model and what it reads: --reranker, --regions")
    reranker = (given.reranker, given.regions) if given.reranker and given.regions else None
    bed = Bed(given.bed, given.judgements, reranker)
    if given.table == "cost":
        claims = [claim.to_dict() for claim in cost_page.CLAIMS]
        return equal_cost.run(bed, given.folder, claims, given.minutes, explored=given.explored)
    if given.table in methods.STUDIES:
        claims = [claim.to_dict() for claim in methods_page.CLAIMS[given.table]]
        settings = {"study": given.table, "explored": given.explored}
        return methods.run(bed, given.folder, claims, given.minutes, **settings)
    if given.explored:
        raise ValueError("--explored is for other tables; stop a run of truths with --minutes")
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
    world = verbs.add_parser("world", help="write a bed of scenes, whose truth is complete")
    world.add_argument("data", help="as scenes:images=6000,dev=1000,test=1000,features=regions")
    world.add_argument("--output", type=Path, required=True, help="folder to write")
    go = verbs.add_parser("run", help="explore, declare, confirm")
    go.add_argument(
        "bed", type=Path, help="as `bed` wrote it, or `world` for --table exact, towers"
    )
    go.add_argument("--judgements", type=Path, help="as flickr8k/annotations/")
    go.add_argument("--folder", type=Path, required=True, help="of the ledger")
    go.add_argument("--reranker", help="model that teaches, as runs/scan/online")
    go.add_argument("--regions", help="the bed's images and captions as it reads them")
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
        elif given.verb == "world":
            write_world(load_dataset(given.data), given.output)
        elif given.verb == "table":
            lines = read_ledger(given.folder)
            sum_up, show_table, write = PAGES[given.table]
            found = sum_up(given.folder, lines)
            print(show_table(found))
            if given.docs is not None:
                write(given.docs, found, lines)
        else:
            torch.set_num_threads(1)
            if not _run(given):
                return STOPPED
    except (ValueError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
