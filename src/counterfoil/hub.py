"""Saving a model so that it opens anywhere, with a card that says what it is."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.config import Config
from counterfoil.core.console import output
from counterfoil.core.io import (
    atomic_folder,
    ensure_absent,
    ensure_writable_folder,
    read_json,
    write_json,
    write_text,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.evaluation.metrics import EvaluationReport
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.results import headline, result_table, results
from counterfoil.model import (
    Model,
    SavedModelCard,
    load_model,
    read_card,
    save_model,
    starts_untrained,
    upload_model,
)
from counterfoil.models.base import SupportsLoRA
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import written_config
from counterfoil.models.open_clip import OpenClipModel, hub_name
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.state import DEV
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

# The card of a shared model: what it is, how good, where from, and what not to use it for.


_SIDES = {"i2t": "image to text", "t2i": "text to image"}
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_PROVENANCE = {
    "recipe": "recipe",
    "stage": "stage",
    "digest": "digest of the recipe",
    "data": "trained on",
    "data_fingerprint": "fingerprint of the data",
    "seed": "seed",
    "epochs": "epochs",
    "best_epoch": "best epoch, on dev",
    "system": "authors' system",
    "converted_from": "authors' checkpoint",
    "pretrained": "pretrained model, as it is",
}
LIMITS = """\
- A score orders captions and pictures; it is no probability, and scores of two models are not
  comparable.
- The figures hold for the data and the protocol they name, and for captions like those.
- What was learnt has the faults of the data it was learnt from, people's prejudices among them. It
  is not made for decisions about people.
- Like most models of its kind it may miss who does what to whom, how many there are, and what is
  denied: `counterfoil foils` measures that.
"""


def model_card(
    known: SavedModelCard, processor: Processor, measured: Sequence[Mapping[str, Any]], name: str
) -> str:
    """The text of ``README.md``, with the head that the hub reads.

    Args:
        known: what is known about the model.
        processor: what it sees.
        measured: evaluations, as they are written.
        name: what others open it by.
    """
    kind = known.model.make.__qualname__
    title = name.rstrip("/").rpartition("/")[2]
    parts = (
        _head(known, kind, measured, title),
        f"# {title}\n\n{kind}: scores how well captions describe images. Saved with "
        f"counterfoil {known.version}.\n",
        _use(processor, name),
        _results(known, measured),
        _origin(known),
        f"## Limits\n\n{LIMITS}",
        _licence(known),
    )
    return "\n".join(parts)


def _head(
    known: SavedModelCard, kind: str, measured: Sequence[Mapping[str, Any]], title: str
) -> str:
    """YAML, each value in its JSON form, which YAML reads."""
    lines = ["library_name: counterfoil", f"tags: {json.dumps(['image-text-retrieval', kind])}"]
    if base := _base(known):
        lines.append(f"base_model: {json.dumps(base)}")
    if measured:
        index = [{"name": title, "results": [_result(found) for found in measured]}]
        lines.append(f"model-index: {json.dumps(index)}")
    return "\n".join(["---", *lines, "---", ""])


def _result(found: Mapping[str, Any]) -> dict[str, Any]:
    setting = found["setting"]
    data = {"name": setting["dataset"], "type": setting["dataset"], "split": setting["split"]}
    metrics = [
        {"type": f"{side}_r{k}", "name": f"{words} R@{k}", "value": found[side][f"r{k}"]}
        for side, words in _SIDES.items()
        for k in (1, 5, 10)
    ]
    task = {"type": "image-text-retrieval", "name": "Image-text retrieval"}
    return {"task": task, "dataset": data, "metrics": metrics}


def _use(processor: Processor, name: str) -> str:
    if isinstance(processor.image_processor, FeatureProcessor):
        said = (
            "model.encode(['a dog in the snow'])  # pictures: features "
            f"{processor.image_processor.width} wide, as from `counterfoil features`"
        )
        first = "from counterfoil import Model\n"
    else:
        first = "from pathlib import Path\n\nfrom counterfoil import Model\n"
        said = (
            "model.encode(['a dog in the snow'])  # also paths, or pictures of PIL\n"
            "model.score(Path('photo.jpg'), ['a dog in the snow', 'a cat in the snow'])"
        )
    opened = f"model = Model.from_pretrained({name!r})"
    return f"## Use\n\n```python\n{first}\n{opened}\n{said}\n```\n"


def _results(known: SavedModelCard, measured: Sequence[Mapping[str, Any]]) -> str:
    lines = ["## Results", ""]
    for found in measured:
        cells = [f"{found[side][f'r{k}']:.1f}" for side in _SIDES for k in (1, 5, 10)]
        row = [found["setting"]["dataset"], found["setting"]["split"], *cells]
        lines += [*_COLUMNS, f"| {' | '.join([*row, format(found['rsum'], '.1f')])} |", ""]
        lines += [f"Protocol: {found['protocol']}.", ""]
    if known.metrics:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(known.metrics.items()))
        lines += [f"On dev, when the best epoch was chosen: {figures}.", ""]
    if len(lines) == 2:
        lines += ["None were measured.", ""]
    return "\n".join(lines)


_COLUMNS = (
    "| data | split | i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|",
)


def _origin(known: SavedModelCard) -> str:
    facts = [
        f"- {words}: {known.provenance[key]}"
        for key, words in _PROVENANCE.items()
        if key in known.provenance
    ]
    if base := _base(known):
        facts.append(f"- began from: {base}")
    call = json.dumps(_short(known.model.to_dict()), indent=2, ensure_ascii=False)
    head = "\n".join(["## Where it comes from", "", *(facts or ["Nothing was noted."]), ""])
    return f"{head}\nThe call that builds it:\n\n```json\n{call}\n```\n"


def _licence(known: SavedModelCard) -> str:
    base = _base(known)
    began = f" It began from `{base}`, whose licence holds for it, too." if base else ""
    return (
        "## Licence\n\nNone is stated: whoever shares the model states one here and as `license:` "
        f"in the head of this file.{began} The data it was trained on may set terms of their own.\n"
    )


def _base(known: SavedModelCard) -> str | None:
    """The name on the hub of the pair of encoders that a model began from."""
    spec: Config[Any] = known.model
    if spec.make is FrozenWithAdapters:
        spec = spec.arguments["body"]
    name: str | None = str(spec.arguments.get("name", ""))
    if spec.make is OpenClipModel:
        name = hub_name(str(name))
    elif spec.make is not DualEncoder:
        return None
    return name if name and _HUB.fullmatch(name) else None


def _short(value: Any) -> Any:
    """A call without the configurations of its pretrained parts, which are long."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items() if not (k == "config" and v)}
    return [_short(part) for part in value] if isinstance(value, list) else value


EVALUATIONS, README = "evaluations.json", "README.md"
Evaluation = Mapping[str, Any]

T = TypeVar("T")


def save_shared(
    model: Model, folder: Path, *, evaluations: Sequence[Path] = (), name: str = ""
) -> None:
    """Write a model's folder and its card, whole or not at all.

    Args:
        model: what to save.
        folder: where; must not exist yet, or be empty.
        evaluations: files that ``counterfoil evaluate --out`` wrote; those of the run that the
            model comes from are found by themselves.
        name: what others open it by, for the card; the folder where none is given.

    Raises:
        ValueError: something is there, ready-made vectors, or a file that is no evaluation.
    """
    if model.processor is None or model.spec is None:
        raise ValueError("ready-made vectors are no model; save the folder that holds them")
    if not folder.is_dir() or any(folder.iterdir()):  # which may have been made empty before
        ensure_absent(folder)
    ensure_writable_folder(folder)
    measured = [*_found(model.name), *(_read(path) for path in evaluations)]
    spec, known = portable_config(model.spec), model.card
    with atomic_folder(folder) as temporary:
        save_model(
            temporary,
            spec=spec,
            model=model.model,
            processor=model.processor,
            provenance=known.provenance if known else {"pretrained": _elsewhere(model.name)},
            metrics=known.metrics if known else {},
        )
        text = model_card(read_card(temporary), model.processor, measured, name or str(folder))
        write_text(temporary / README, text)
        if measured:
            write_json(temporary / EVALUATIONS, measured)


def push_shared(
    model: Model, name: str, *, evaluations: Sequence[Path], private: bool, message: str
) -> str:
    """Save a model on the hub; its address.

    Raises:
        ValueError: as `save`, or the hub does not take it.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save_shared(model, folder, evaluations=evaluations, name=name)
        return upload_model(folder, name, private=private, message=message)


def portable_config(spec: Config[T]) -> Config[T]:
    """The written call with the configurations of pretrained parts in it, in place of their names.

    What it builds begins from fresh weights and asks neither a folder nor the hub.

    Raises:
        ValueError: such a part is no longer there.
    """
    inner = {name: _inner(value) for name, value in spec.arguments.items()}
    known = inspect.signature(spec.make).parameters
    if "config" in known and "pretrained" in known:
        name = str(inner["name"])
        config = json.loads(inner.get("config") or written_config(name))
        config.pop("_name_or_path", None)
        written = json.dumps(config, sort_keys=True)
        inner |= {"pretrained": False, "config": written, "name": _elsewhere(name)}
    elif "pretrained" in known:
        inner["pretrained"] = False
    return Config(spec.make, inner)


def _elsewhere(name: str) -> str:
    """A name without the folders above it, which mean nothing elsewhere."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def _inner(value: Any) -> Any:
    match value:
        case Config():
            return portable_config(value)
        case tuple():
            return tuple(_inner(part) for part in value)
    return value


def _found(name: str) -> list[Evaluation]:
    """What is known beside a model: saved with it, or measured by the run that trained it."""
    folder = Path(name)
    if (folder / EVALUATIONS).is_file():
        return list(read_json(folder / EVALUATIONS, "evaluations"))
    stage = folder.parent if folder.name == "model" else folder
    notes = sorted(stage.parent.glob("*.json")) if folder.is_dir() else []
    return [_read(note.with_suffix("") / "evaluation.json") for note in notes if _of(note, stage)]


def _of(note: Path, stage: Path) -> bool:
    """Whether a note in a run is of a finished evaluation of this stage alone."""
    try:
        plain = read_json(note, "a note")
    except ValueError:  # it may be anything where the folder is no run
        return False
    match plain:
        case {"kind": "evaluate", "state": "done", "stage": {"using": [only], **more}}:
            return bool(only == stage.resolve().name and not more.get("models"))
    return False


def _read(path: Path) -> Evaluation:
    plain = read_json(path, "an evaluation")
    match plain:
        case {"protocol": str(), "setting": {"dataset": str()}, "i2t": {}, "t2i": {}, "rsum": _}:
            keys = ("protocol", "setting", "i2t", "t2i", "rsum")
            return {key: plain[key] for key in keys}
    raise ValueError(
        f"{path} holds no evaluation; give a file that `counterfoil evaluate --out` wrote"
    )


# Between the weights of a model and what it was trained further to (WiSE-FT, arXiv:2109.01903).
#
# What is tuned to some photos forgets a part of what it knew; weights in between often keep more of
# both. How much is forgotten is told by the same test and by other data, query by query.


ALPHAS = tuple(step / 10 for step in range(11))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InterpolationPoint:
    """What was saved.

    Attributes:
        alpha: share of the tuned weights.
        rsum: on dev of each alpha that was tried; empty where none was chosen.
    """

    alpha: float
    rsum: Mapping[float, float]


def interpolate_models(original: Model, tuned: Model, alpha: float) -> Model:
    """A model with the weights (1 - alpha) original + alpha tuned.

    Args:
        original: what the training began with.
        tuned: a saved model that it came to; low-rank adapters are merged first.
        alpha: from 0, the original, to 1.

    Raises:
        ValueError: an alpha out of range, or weights that are not of one model.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is not between the two; give 0 (original) to 1 (tuned)")
    _check(original, tuned)
    assert tuned.spec is not None
    spec, model = tuned.spec, deepcopy(tuned.model)
    for one in (model, before := deepcopy(original.model)):
        if isinstance(one, SupportsLoRA) and one.lora:
            one.merge()
    if isinstance(model, SupportsLoRA):
        spec = spec.replace(lora=0) if "lora" in spec.arguments else spec
    own, other = model.state_dict(), before.state_dict()
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in other.items()}:
        raise ValueError(
            f"{tuned.name} does not have the weights of {original.name}: one has to come from the "
            "other by training; name the model that its training began with"
        )
    model.load_state_dict({name: _between(other[name], t, alpha) for name, t in own.items()})
    return replace(tuned, model=model.eval(), name=f"alpha {alpha:g}", spec=spec)


def interpolate(
    original: str,
    tuned: str,
    out: Path,
    *,
    alphas: Sequence[float] = (),
    source: DataSource | None = None,
    other: DataSource | None = None,
) -> InterpolationPoint:
    """Save the weights in between that are best on dev, and say what all of them forget.

    Args:
        original: model that the training began with, as `load_model` opens it.
        tuned: the saved model that it came to.
        out: the new folder.
        alphas: to choose from by RSum on dev; none for 0, 0.1, ..., 1.
        source: the photos; needed where there is a choice. All three are measured on its test.
        other: other data that all three are measured on, its test split or all of it.

    Raises:
        ValueError: `out` exists, nothing to choose by, or models and data do not fit.
    """
    ensure_absent(out, "a new folder with --out")
    ensure_writable_folder(out)
    if len(alphas) != 1 and source is None:
        raise ValueError("the best alpha is chosen on dev; name the photos with --data, or --alpha")
    distributed.init()
    models = load_model(original), load_model(tuned)
    many = tuple(sorted(set(alphas))) or ALPHAS
    first = interpolate_models(*models, many[0])  # refuses before anything is encoded
    sums: dict[float, float] = {}
    if len(many) > 1 and source is not None:
        sums = _on_dev(models, many, _dev(source.open()))
        show = [(f"{alpha:g}", f"{rsum:.1f}") for alpha, rsum in sums.items()]
        note = "0 is the original, 1 the tuned model"
        console.print(
            terminal_table(TableBlock("RSum on dev", ("alpha", "RSum"), tuple(show), note))
        )
    alpha = max(sums, key=lambda one: (sums[one], -one)) if sums else many[0]
    made = first if alpha == many[0] else interpolate_models(*models, alpha)
    for data in (source, other):
        if data is not None:
            named = {"original": models[0], "tuned": models[1], made.name: made}
            compare_points(named, _tested(data.open()))
    _save(made, out, original=original, tuned=tuned, alpha=alpha, sums=sums)
    return InterpolationPoint(alpha=alpha, rsum=sums)


def compare_points(
    models: Mapping[str, Model], dataset: ImageTextDataset
) -> dict[str, EvaluationReport]:
    """Measure models on a split and print each beside the first, with intervals of the differences.

    Args:
        models: by the names that they have in the tables; the first is what the others came from.
        dataset: the split.
    """
    reports = {}
    for name, model in models.items():
        member = model.embed(dataset)
        reports[name] = evaluate_protocol(
            [member],
            dataset.text_to_image,
            len(dataset),
            dataset=dataset.name,
            split=dataset.split_name,
            besides=dataset.extra_positives,
            decided=dataset.corrections,
        )
    first, *others = reports
    for name in others if distributed.rank() == 0 else ():
        runs = results({first: reports[first], name: reports[name]})
        console.print(terminal_table(result_table(runs), reports[name].setting.line()))
        output(f"{dataset.name}: {headline(runs)}")
    return reports


def _check(original: Model, tuned: Model) -> None:
    if tuned.spec is None or tuned.processor is None or tuned.card is None:
        raise ValueError(f"{tuned.name} is no saved model; name what a training has written")
    if isinstance(tuned.model, FrozenWithAdapters):
        raise ValueError(
            f"{tuned.name} has frozen towers, whose weights are those of the original: there is "
            "nothing in between; tune all of a model, or with lora"
        )
    if starts_untrained(original.name):
        raise ValueError(
            f"{original.name} begins with weights at random, so there is nothing between it and "
            f"{tuned.name}; name a pretrained model that training began with"
        )
    if (
        original.processor is None
        or original.processor.image_processor != tuned.processor.image_processor
    ):
        raise ValueError(
            f"{tuned.name} sees pictures in another way than {original.name}; name the model that "
            "its training began with"
        )


def _between(before: Tensor, after: Tensor, alpha: float) -> Tensor:
    if not after.is_floating_point():
        return after
    return before.to(after).lerp(after, alpha)


def _on_dev(
    models: tuple[Model, Model], alphas: Sequence[float], dev: ImageTextDataset
) -> dict[float, float]:
    found = {}
    for alpha in alphas:
        member = interpolate_models(*models, alpha).embed(dev)
        found[alpha] = evaluate_protocol(
            [member], dev.text_to_image, len(dev), besides=dev.extra_positives
        ).rsum
    return found


def _dev(dataset: ImageTextDataset) -> ImageTextDataset:
    found = [name for name in DEV if name in dataset.split_names]
    if not found:
        raise ValueError(
            f"{dataset.name} has no dev split, which the best alpha is chosen on; it has: "
            f"{', '.join(dataset.split_names)}; give one alpha"
        )
    return dataset.split(found[0])


def _tested(dataset: ImageTextDataset) -> ImageTextDataset:
    return dataset.split("test") if "test" in dataset.split_names else dataset


def _save(
    made: Model, out: Path, *, original: str, tuned: str, alpha: float, sums: Mapping[float, float]
) -> None:
    assert made.spec is not None
    assert made.processor is not None
    assert made.card is not None
    if distributed.rank() == 0:
        between = {"original": original, "tuned": tuned, "alpha": alpha}
        tried = {f"{one:g}": rsum for one, rsum in sums.items()}
        save_model(
            out,
            spec=made.spec,
            model=made.model,
            processor=made.processor,
            provenance={**made.card.provenance, "interpolated": {**between, "dev_rsum": tried}},
            metrics={"rsum": sums[alpha]} if sums else {},
        )
    distributed.barrier()
    output(f"alpha {alpha:g}: {out}")
