"""``python -m benchmarks.net COMMIT``: compare a commit with the working tree, case by case."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.net.bounds import BOUNDS, SLOWER
from benchmarks.net.compare import ERROR, compare_folders

ROOT = Path(__file__).parents[2]
CASES = Path("benchmarks", "net", "cases.py")
FIXED = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "COUNTERFOIL_DEVICE": "cpu",
}
SHOWN = 3  # differences of a case that are printed


def main(words: Sequence[str] | None = None) -> int:
    """Run both sides and compare; answer 1 if anything differs."""
    arguments = _arguments(words)
    commit = _git("rev-parse", "--verify", f"{arguments.old}^{{commit}}")
    with TemporaryDirectory() as scratch, _checkout(commit, Path(scratch) / "commit") as old:
        if arguments.bench is not None:
            return _compare_speed(old, ROOT, arguments.bench, Path(scratch))
        kept = arguments.keep.absolute() if arguments.keep else Path(scratch) / "results"
        script = old / CASES if (old / CASES).is_file() else ROOT / CASES
        seen = sha256(f"{script.read_text()}{sys.version}{torch.__version__}".encode())
        results = {
            "old": kept / f"{commit[:12]}-{seen.hexdigest()[:8]}",
            "new": kept / "new",
        }
        shutil.rmtree(results["new"], ignore_errors=True)
        for failed in results["old"].glob(f"*/{ERROR}"):
            shutil.rmtree(failed.parent)
        sides = {"old": (old, script), "new": (ROOT, ROOT / CASES)}
        running = []
        try:
            for side, (tree, file) in sides.items():
                print(f"{side}: {commit[:12] if side == 'old' else tree}", flush=True)
                process = _start(tree, file, results[side], Path(scratch) / side, arguments.cases)
                running.append(process)
                if not arguments.together:
                    process.wait()
            ended = [process.wait() for process in running]
        finally:
            for process in running:
                process.kill()
        same = _compare(results["old"], results["new"], arguments.cases)
        return int(not same or any(ended))


def _compare(old: Path, new: Path, chosen: Sequence[str]) -> bool:
    """Print a line for each case; return whether none differs."""
    all_same = True
    made = {path.name for side in (old, new) for path in side.glob("[!.]*") if path.is_dir()}
    for name in chosen or sorted(made):
        bound = BOUNDS.get(name)
        found = compare_folders(old / name, new / name, bound.most if bound else 0.0)
        if found.different:
            said = f"different: {'; '.join(found.different[:SHOWN])}"
            if (more := len(found.different) - SHOWN) > 0:
                said += f"; and {more:,} more"
            all_same = False
        elif found.worst and bound:
            said = f"within {bound.most:g}, {found.worst:.2g} apart at most: {bound.reason}"
        else:
            said = "equal"
        print(f"{name}: {said}")
    return all_same


def _start(
    tree: Path, script: Path, results: Path, work: Path, names: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Begin the cases with the package of a tree; what it says goes into a log beside `results`."""
    work.mkdir()
    results.mkdir(parents=True, exist_ok=True)
    with (results / "log.txt").open("wb") as log:
        command = [sys.executable, "-P", str(script), str(results), *names]
        return subprocess.Popen(command, cwd=work, env=_environment(tree, work), stderr=log)


def _environment(tree: Path, work: Path) -> dict[str, str]:
    """The environment of a side: nothing of the user's settings, a cache of its own.

    Raises:
        SystemExit: Python would import the package from elsewhere.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("COUNTERFOIL_")}
    path = os.pathsep.join(map(str, (tree / "src", tree)))
    found = {**inherited, **FIXED, "PYTHONPATH": path, "COUNTERFOIL_CACHE": str(work / "cache")}
    ask = [sys.executable, "-P", "-c", "import counterfoil; print(counterfoil.__file__)"]
    place = subprocess.run(ask, cwd=work, env=found, text=True, capture_output=True, check=True)
    if tree.resolve() not in Path(place.stdout.strip()).resolve().parents:
        raise SystemExit(f"{tree} is not what Python imports, but {place.stdout.strip()}")
    return found


def _compare_speed(old: Path, new: Path, names: Sequence[str], scratch: Path) -> int:
    """Measure both sides in turn, twice; answer 1 if a figure is worse.

    On one thread, whose figures are of processor time, which other work on the machine moves least.
    """
    figures: dict[Path, dict[str, float]] = {old: {}, new: {}}
    for _ in range(2):
        for tree, lowest in figures.items():
            table, work = scratch / "table.md", scratch / f"speed-{tree.name}"
            work.mkdir(exist_ok=True)
            options = ("--threads", "1", "--markdown", str(table))
            command = [sys.executable, "-m", "benchmarks", *names, *options]
            # exit code 1 says that a target is missed, which is not asked here
            subprocess.run(command, cwd=tree, env=_environment(tree, work), check=False)
            for name, figure in read_figures(table.read_text()):
                lowest[name] = min(figure, lowest.get(name, figure))
            table.unlink()
    worse = 0
    for name in {**figures[old], **figures[new]}:
        before, after = figures[old].get(name), figures[new].get(name)
        slower = before is None or after is None or after > before * (1 + SLOWER)
        worse += slower
        print(f"{name}: {before} became {after}{', worse' if slower else ''}")
    return int(worse > 0)


def read_figures(markdown: str) -> Iterator[tuple[str, float]]:
    """Yield the name, with the number of threads before it, and the figure of each row."""
    title = ""
    for line in markdown.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "figure":
            yield f"{title}: {cells[0]}", float(cells[1].split()[0])


@contextmanager
def _checkout(commit: str, folder: Path) -> Iterator[Path]:
    """A commit in a worktree of its own, removed afterwards."""
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return done.stdout.strip()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.net", description=__doc__)
    parser.add_argument("old", metavar="COMMIT", help="what the working tree is compared with")
    parser.add_argument("--cases", nargs="+", default=[], metavar="NAME", help="default all")
    parser.add_argument(
        "--keep", type=Path, help="folder of the results; the commit's are used again from there"
    )
    parser.add_argument("--together", action="store_true", help="both sides at the same time")
    parser.add_argument(
        "--bench",
        nargs="*",
        metavar="NAME",
        help="compare speed on one thread (python -m benchmarks) instead",
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the worktree, too
    raise SystemExit(main())
