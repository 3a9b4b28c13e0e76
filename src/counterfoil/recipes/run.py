"""Run a recipe by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from counterfoil.evaluation.evaluate import EvaluationResult
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe


@final
@dataclass(frozen=True, eq=False, repr=False)
class PipelineRun:
    """A run of a recipe.

    Attributes:
        recipe: the recipe, with all overrides applied.
        folder: holds one folder per stage.
        finished: False where the time limit or a signal stopped it; call again to continue.
    """

    recipe: Recipe
    folder: Path
    finished: bool

    @cached_property
    def evaluations(self) -> dict[str, EvaluationResult]:
        """Results of the finished evaluation stages, by stage name."""
        stages = [stage.name for stage in self.recipe.stages if stage.kind == "evaluate"]
        return {
            name: EvaluationResult(RetrievalEvaluation.open(self.folder / name).report)
            for name in stages
            if (self.folder / name / "evaluation.json").is_file()
        }

    def __repr__(self) -> str:
        state = "finished" if self.finished else "stopped"
        results = (f"{name}:\n{result!r}" for name, result in self.evaluations.items())
        return "\n".join([f"{self.recipe.name} ({state}) in {self.folder}", *results])


def run(
    recipe: str | Recipe,
    *,
    data: str | Path | None = None,
    features: str | Path | None = None,
    images: str | Path | None = None,
    caption_column: str | None = None,
    image_column: str | None = None,
    output: str | Path | None = None,
    settings: Sequence[str] = (),
    resume: bool = True,
    smoke: bool = False,
    minutes: float | None = None,
    **arguments: Any,
) -> PipelineRun:
    """Run every stage of a recipe whose result is not there yet, as ``counterfoil run`` does.

    For example ``run("aoq", model="scan-t2i", like="flickr30k", data="f30k_precomp/")``.

    Args:
        recipe: a name that ``counterfoil plan`` lists, a Python file, or a `Recipe`.
        data: path or name that `load_dataset` opens; the recipe's own by default.
        features: folder of image features, if not beside the data.
        images: folder of pictures, if not beside the data.
        caption_column: column of the captions in a table, if it has no usual name.
        image_column: column of the images in a table, if it has no usual name.
        output: folder of the run; by default ``runs/`` and the recipe's name.
        settings: overrides, as in "online.epochs=5".
        resume: continue a stage that was stopped.
        smoke: at most 20 training steps per stage.
        minutes: stop with a checkpoint after this long.
        arguments: of a recipe that is named, as ``counterfoil plan NAME --help`` tells them.

    Raises:
        ValueError: an unknown recipe, argument or setting, data that do not fit, or a folder that
            holds results of other settings or data.
    """
    if isinstance(recipe, str):
        chosen = find_recipe(recipe, **arguments)
    elif arguments:
        raise ValueError(
            f"{recipe.name} is a recipe already; leave {', '.join(arguments)} out, or name a recipe"
        )
    else:
        chosen = recipe
    chosen = apply_overrides(chosen, settings)
    if smoke:
        chosen = smoke_recipe(chosen)
    source = DataSource(
        str(data or chosen.data),
        Path(features) if features else None,
        Path(images) if images else None,
        caption_column=caption_column,
        image_column=image_column,
    )
    folder = Path(output) if output else Path("runs") / chosen.name
    finished = run_pipeline(chosen, source, folder, resume=resume, minutes=minutes)
    return PipelineRun(chosen, folder, finished)
