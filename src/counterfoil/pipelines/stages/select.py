"""Selection of one model of a run: a later one only where it is better beyond chance on dev."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from counterfoil.core import distributed
from counterfoil.core.console import output
from counterfoil.core.io import atomic_folder, parsing, read_json, write_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Interval, compare
from counterfoil.evaluation.metrics import RSUM, EvaluationReport
from counterfoil.evaluation.protocols import protocol_by_name
from counterfoil.evaluation.results import signed
from counterfoil.model import MODEL, load_model
from counterfoil.pipelines.stages.base import Stage
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import RunContext

SELECTION = "selection.json"


@final
@dataclass(frozen=True, kw_only=True)
class Select(Stage):
    """Select the model of a run. Writes a copy of it, and why it is that one.

    The first model stands unless another one has a higher RSum on dev and the 95 % interval of the
    difference (images drawn anew with all their captions) lies above zero. Test is never looked at.

    Attributes:
        using: trainings, the base first.
    """

    kind: ClassVar[str] = "select"
    takes: ClassVar[Mapping[str, str]] = {"using": "train"}
    using: tuple[str, ...]

    @property
    def lacks_inputs(self) -> bool:
        return len(self.using) < 2

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Compare the models on dev, and copy the selected one."""
        dev = context.dev
        selection = _without_dev(self.using) if dev is None else _selected(self.using, dev, context)
        if distributed.rank() == 0:
            place, chosen = context.place(self.name), context.place(selection["selected"])
            with atomic_folder(place) as made:
                shutil.copytree(chosen / MODEL, made / MODEL)
                write_json(made / SELECTION, selection)
            output(selection["sentence"])
        distributed.barrier()


def both_ends(interval: Interval) -> str:
    """The ends of the interval of a difference, with their signs."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def selection_sentence(folder: Path) -> str:
    """The sentence of a selection: which model to use, and why."""
    selection = read_json(folder / SELECTION, "a selection")
    with parsing(folder / SELECTION, "a selection"):
        return str(selection["sentence"])


def _without_dev(using: Sequence[str]) -> dict[str, Any]:
    sentence = f"Use {using[0]}: without a dev split nothing shows that {using[-1]} is better."
    return {"selected": using[0], "sentence": sentence, "comparisons": {}}


def _selected(using: Sequence[str], dev: ImageTextDataset, context: RunContext) -> dict[str, Any]:
    """The selected model, the sentence, and each comparison with the base."""
    reports = {name: _evaluated(name, dev, context) for name in using}
    base, *others = using
    changes = {name: compare(reports[base], reports[name])[RSUM] for name in others}
    better = [name for name, change in changes.items() if change.interval.low > 0]
    selected = max(better, key=lambda name: changes[name].difference, default=base)
    shown = selected if better else max(others, key=lambda name: changes[name].difference)
    change = changes[shown]
    word = "higher" if change.difference >= 0 else "lower"
    worse = change.interval.high < 0
    why = "" if better else ", so it is worse" if worse else ", so nothing shows that it is better"
    span = both_ends(change.interval)
    rsum, distance = reports[shown].rsum, abs(change.difference)
    sentence = (
        f"Use {selected}: on dev ({len(dev):,} images, ranked whole) {shown} has RSum "
        f"{rsum:.1f}, {distance:.1f} {word} than {base} (95 % interval of the difference {span})"
        f"{why}."
    )
    return {
        "selected": selected,
        "sentence": sentence,
        "images": len(dev),
        "rsum": {name: report.rsum for name, report in reports.items()},
        "comparisons": {name: change.to_dict() for name, change in changes.items()},
    }


def _evaluated(name: str, dev: ImageTextDataset, context: RunContext) -> EvaluationReport:
    members = [load_model(str(context.place(name))).embed(dev)]
    return RetrievalEvaluation.of(members, dev, protocol_by_name("whole")).report
