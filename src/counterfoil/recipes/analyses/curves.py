"""Learning curves of several trainings in one picture (AOQ, Fig. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.figures import Curve, learning
from counterfoil.files import read_json
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import short_names
from counterfoil.recipes.comparison import curve
from counterfoil.recipes.provenance import made_now

METRICS = "metrics.jsonl"


@final
@dataclass(frozen=True, slots=True)
class Trained:
    """A training that left a log.

    Attributes:
        curve: what it measured, epoch by epoch.
        folder: where.
        losses: what it minimised, in words.
        seed: of the training, where it was noted.
        data: name of the data, where it was noted.
        fingerprint: of the data, where it was noted.
    """

    curve: Curve
    folder: str
    losses: str = ""
    seed: int | None = None
    data: str = ""
    fingerprint: str = ""


def curves(folders: Sequence[Path], out: Path) -> tuple[Trained, ...]:
    """Draw development RSum and training loss of trainings by epoch.

    Args:
        folders: of training stages, or of runs, all of whose trainings are meant.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, or a folder holds no log of a training.
    """
    check_out(out)
    places = tuple(dict.fromkeys(place for folder in folders for place in logs(folder)))
    names = short_names([str(place) for place in places])
    found = tuple(_read(name, place) for name, place in zip(names, places))
    drawn = learning([one.curve for one in found])
    page = AnalysisPage(
        title="Learning curves",
        headline=_headline(found),
        protocol=_protocol(found),
        provenance=made_now(),
        figures=drawn,
        tables=(_rows(found),),
    )
    publish(page, {"trainings": [asdict(one) for one in found]}, out)
    return found


def logs(folder: Path) -> list[Path]:
    """Folders with a log: this one, or all below it.

    Raises:
        ValueError: there is none.
    """
    if (folder / METRICS).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.rglob(METRICS)) if folder.is_dir() else []
    if not found:
        raise ValueError(
            f"{folder} holds no {METRICS}; name the folder of a training stage or of a run"
        )
    return found


def _read(short: str, folder: Path) -> Trained:
    found = curve(short, folder / METRICS)
    if not found.epochs:
        raise ValueError(f"{folder / METRICS} holds no epoch; was the training stopped at once?")
    note = folder.with_name(f"{folder.name}.json")
    noted = read_json(note, "the note of a stage") if note.is_file() else {}
    try:
        stage = noted.get("stage", {})
        losses = ", ".join(dict.fromkeys(_called(stage.get("objective", {}).get("terms", {}))))
        seed, data = stage.get("plan", {}).get("seed"), noted.get("data", {})
        name, fingerprint = data.get("name", ""), data.get("fingerprint", "")
    except AttributeError as error:
        raise ValueError(f"{note} is no note of a stage: {error}") from error
    return Trained(found, str(folder), losses, seed, name, fingerprint)


def _called(written: Any) -> Iterator[str]:
    """Names of the losses in a written call; one after the other where they follow each other."""
    if isinstance(written, dict):
        call = str(written.get("call", ""))
        if call.endswith(":Then"):
            yield " then ".join(
                name for key in ("first", "second") for name in _called(written.get(key))
            )
            return
        if call:
            yield call.rpartition(":")[2]
        for value in written.values():
            yield from _called(value)
    elif isinstance(written, list):
        for value in written:
            yield from _called(value)


def _protocol(found: Sequence[Trained]) -> str:
    data = ", ".join(dict.fromkeys(one.data for one in found if one.data))
    noted = dict.fromkeys(str(one.seed) for one in found if one.seed is not None)
    seeds = f"; seed {', '.join(noted)}" if noted else ""
    return (
        f"{f'{data} ' if data else ''}dev, whole split: RSum after each epoch, sum of R@1, R@5 and "
        f"R@10 both ways, any hit; single models{seeds}"
    )


def _rows(found: Sequence[Trained]) -> Rows:
    cells = []
    for one in found:
        rsum = one.curve.dev_rsum
        best = max(rsum, default=0.0)
        at = one.curve.epochs[rsum.index(best)] if rsum else 0
        measured = (f"{best:.1f}", f"{at:g}", f"{rsum[-1]:.1f}") if rsum else ("–", "–", "–")
        seed = "–" if one.seed is None else str(one.seed)
        cells.append((one.curve.name, one.losses or "–", seed, *measured))
    head = "training", "loss", "seed", "best dev RSum", "at epoch", "last"
    return Rows("Trainings", head, tuple(cells))


def _headline(found: Sequence[Trained]) -> str:
    measured = [one.curve for one in found if one.curve.dev_rsum]
    if not measured:
        return f"Training loss of {len(found)} trainings; none was measured on dev."
    top = max(measured, key=lambda one: max(one.dev_rsum))
    best = max(top.dev_rsum)
    if len(measured) == 1:
        return f"{top.name} reaches dev RSum {best:.1f} in {len(top.epochs)} epochs."
    if len({one.fingerprint for one in found if one.fingerprint}) > 1:
        return f"{len(found)} trainings on different data, whose figures do not compare."
    others = ", ".join(f"{max(o.dev_rsum):.1f} by {o.name}" for o in measured if o is not top)
    return f"The best dev RSum is {best:.1f} by {top.name}; {others}."
