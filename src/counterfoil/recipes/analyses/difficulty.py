"""Difficulty of written captions over training, static and dynamic writers (TAGS, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.course import Course, Stretch, fans, lines, stretches
from counterfoil.evaluate.distribution_figures import minus
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluation.bootstrap import Share
from counterfoil.files import read_json
from counterfoil.recipes.analyses.curves import METRICS, logs
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import short_names
from counterfoil.recipes.provenance import made_now
from counterfoil.train.log import read_metrics

HEAD = "training", "writer", "seed", "steps", "above, %", "score − the original's"
DYNAMIC, STATIC = "dynamic", "static"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A training that was given written captions.

    Attributes:
        course: how hard they were.
        folder: of the training.
        writer: "dynamic", the model in training, or "static", a frozen one; "" where not noted.
        seed: of the training, where it was noted.
        data: name of the data, where it was noted.
    """

    course: Course
    folder: str
    writer: str
    seed: int | None
    data: str

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        course = self.course
        first, last = stretches(course)
        return {
            **course.plain(),
            "folder": self.folder,
            "writer": self.writer,
            "seed": self.seed,
            "first": _plain(first),
            "last": _plain(last),
        }


def difficulty(folders: Sequence[Path], out: Path) -> tuple[Trained, ...]:
    """Draw how hard written captions were for the models that were trained on them.

    Args:
        folders: of training stages, or of runs, whose trainings without written captions are left
            out.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, a folder holds no log of a training, or no log tells of written
            captions.
    """
    check_out(out)
    places = tuple(dict.fromkeys(place for folder in folders for place in logs(folder)))
    found = tuple(_found(places))
    if not found:
        raise ValueError(
            f"no log below {', '.join(map(str, folders))} tells how hard written captions are; "
            "name trainings on negatives that are written, as by tags/uniter-scenes"
        )
    page = AnalysisPage(
        title="Difficulty of written captions",
        headline=_headline(found),
        protocol=_protocol(found),
        provenance=made_now(),
        figures=tuple(_figures([one.course for one in found])),
        tables=(_rows(found),),
    )
    publish(page, {"trainings": [one.plain() for one in found]}, out)
    return found


def _found(places: Sequence[Path]) -> Iterator[Trained]:
    told = {place: read_metrics(place / METRICS) for place in places}
    courses = {place: _course(place, found) for place, found in told.items()}
    kept = [place for place, course in courses.items() if course is not None]
    for name, place in zip(short_names([str(place) for place in kept]), kept, strict=True):
        course = Course.of(name, told[place])
        assert course is not None
        yield Trained(course, str(place), *_noted(place.with_name(f"{place.name}.json")))


def _course(place: Path, found: Sequence[dict[str, Any]]) -> Course | None:
    try:
        return Course.of("", found)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{place / METRICS} tells only a part of how hard written captions are: {error} is "
            "missing or no number"
        ) from error


def _noted(note: Path) -> tuple[str, int | None, str]:
    """Writer, seed and data of a training, as far as its note has them."""
    if not note.is_file():
        return "", None, ""
    noted = read_json(note, "the note of a stage")
    try:
        stage = noted.get("stage", {})
        writer = DYNAMIC if stage.get("filler") is None else f"{STATIC}: {stage['filler']}"
        return writer, stage.get("plan", {}).get("seed"), noted.get("data", {}).get("name", "")
    except AttributeError as error:
        raise ValueError(f"{note} is no note of a stage: {error}") from error


def _figures(courses: Sequence[Course]) -> Iterator[Figure]:
    yield fans(courses)
    above = [(one.name, one.steps, one.above) for one in courses]
    yield lines(above, "above the original, %", "above")
    loss = [(one.name, one.steps, one.loss) for one in courses if len(one.loss)]
    if loss:
        yield lines(loss, "weighted loss of written captions", "loss")


def _protocol(found: Sequence[Trained]) -> str:
    data = ", ".join(dict.fromkeys(one.data for one in found if one.data))
    seeds = ", ".join(dict.fromkeys(str(one.seed) for one in found if one.seed is not None))
    return (
        f"{f'{data} ' if data else ''}train: captions written for the last batch before each line "
        "of the log, as the model in training scores them, dropout included; a tie is not above; "
        f"single models{f', seed {seeds}' if seeds else ''}; 95 % intervals: logged steps drawn "
        "anew, 1,000 times, seed 0"
    )


def _rows(found: Sequence[Trained]) -> Rows:
    cells = tuple(
        (
            one.course.name,
            one.writer or "–",
            "–" if one.seed is None else str(one.seed),
            f"{stretch.first:,} to {stretch.last:,}",
            _cell(stretch.above, ".1f"),
            _cell(stretch.gap, "+.4f"),
        )
        for one in found
        for stretch in stretches(one.course)
    )
    note = (
        "The first and the last fifth of the logged steps. Neighbouring steps are alike, so these "
        "intervals are rather too narrow."
    )
    return Rows("First and last steps", HEAD, cells, note)


def _cell(share: Share, form: str) -> str:
    low, high = minus(share.interval.low, form), minus(share.interval.high, form)
    return f"{minus(share.value, form)} ({low} to {high})"


def _headline(found: Sequence[Trained]) -> str:
    words = []
    for one in found:
        first, last = stretches(one.course)
        words.append(
            f"{one.course.name} from {first.above.value:.1f} % to {last.above.value:.1f} %"
        )
    return f"Written captions above their original: {'; '.join(words)}."


def _plain(stretch: Stretch) -> dict[str, Any]:
    return {
        "from": stretch.first,
        "to": stretch.last,
        "percent_above": stretch.above.plain(),
        "gap": stretch.gap.plain(),
    }
