"""A model to be shared: a folder that opens without other files, with evaluations and a card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfoil.core.io import (
    atomic_folder,
    ensure_absent,
    ensure_writable_folder,
    read_json,
    write_json,
    write_text,
)
from counterfoil.core.optional import first_line
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.loading import HUB_NAME
from counterfoil.report.page import template
from counterfoil.saved import (
    OpenedModel,
    SavedModelCard,
    public_name,
    read_card,
    reopening_call,
    save_model,
)

Evaluation = Mapping[str, Any]  # as `counterfoil evaluate --json` writes it
EVALUATIONS, README = "evaluations.json", "README.md"


# A shared model: a folder that opens without other files, with its evaluations and a card.


def save_shared(
    model: OpenedModel, folder: Path, *, evaluations: Sequence[Path] = (), name: str = ""
) -> None:
    """Write a self-contained model folder with its card, atomically.

    The card has the `evaluations` given, files of ``counterfoil evaluate --json``, and those of the
    model's own run; `name` is by which others open it, the folder by default.
    """
    if model.processor is None:
        raise ValueError("ready-made vectors are no model; save the folder that holds them")
    (spec, _), card = reopening_call(model), model.card
    if not folder.is_dir() or any(folder.iterdir()):
        ensure_absent(folder)
    ensure_writable_folder(folder)
    measured = [*_own_evaluations(model.name), *map(_read_evaluation, evaluations)]
    with atomic_folder(folder) as temporary:
        save_model(
            temporary,
            spec=spec,
            model=model.model,
            processor=model.processor,
            provenance=card.provenance if card else {"pretrained": public_name(model.name)},
            metrics=card.metrics if card else {},
        )
        text = model_card(read_card(temporary), model.processor, measured, name or str(folder))
        write_text(temporary / README, text)
        if measured:
            write_json(temporary / EVALUATIONS, measured)


def push_shared(
    model: OpenedModel, name: str, *, evaluations: Sequence[Path], private: bool, message: str
) -> str:
    """Upload a model to the Hugging Face hub and return its address."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save_shared(model, folder, evaluations=evaluations, name=name)
        return upload(folder, name, private=private, message=message)


def upload(
    folder: Path, name: str, *, private: bool, message: str, repo_type: str = "model"
) -> str:
    """Upload a folder to the hub and return its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True, repo_type=repo_type)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, repo_type=repo_type
        )
    except (OSError, HFValidationError) as error:
        raise ValueError(
            f"{name} cannot be pushed to the hub: {first_line(error)}; give USER/NAME, and log in "
            "with `hf auth login`"
        ) from error
    return str(address)


def _own_evaluations(name: str) -> list[Evaluation]:
    """Evaluations saved with a model, or made by the run that trained it."""
    folder = Path(name)
    if (folder / EVALUATIONS).is_file():
        stored = read_json(folder / EVALUATIONS, "evaluations")
        if not isinstance(stored, list):
            raise ValueError(f"{folder / EVALUATIONS} holds no list of evaluations")
        return [_evaluation(content, folder / EVALUATIONS) for content in stored]
    stage = folder.parent if folder.name == "model" else folder
    notes = sorted(stage.parent.glob("*.json")) if folder.is_dir() else []
    return [
        _read_evaluation(note.with_suffix("") / "evaluation.json")
        for note in notes
        if _evaluates(note, stage)
    ]


def _evaluates(note: Path, stage: Path) -> bool:
    """Return True if a stage's note in a run is of a finished evaluation of this model alone."""
    try:
        content = read_json(note, "a note")
    except ValueError:  # any JSON file, where the folder is no run
        return False
    match content:
        case {"kind": "evaluate", "state": "done", "stage": {"using": [only], **others}}:
            return bool(only == stage.resolve().name and not others.get("models"))
    return False


def _read_evaluation(path: Path) -> Evaluation:
    return _evaluation(read_json(path, "an evaluation"), path)


def _evaluation(content: Any, path: Path) -> Evaluation:
    match content:
        case {"protocol": str(), "setting": {"dataset": str()}, "i2t": {}, "t2i": {}, "rsum": _}:
            keys = ("protocol", "setting", "i2t", "t2i", "rsum")
            return {key: content[key] for key in keys}
    raise ValueError(
        f"{path} holds no evaluation; give a file that `counterfoil evaluate --json` wrote"
    )


# The model card, ``README.md``: use, results, provenance and limits of a model.


_DIRECTIONS = {"i2t": "image to text", "t2i": "text to image"}
_PROVENANCE = {
    "recipe": "recipe",
    "stage": "stage",
    "digest": "digest of the recipe",
    "data": "trained on",
    "data_fingerprint": "fingerprint of the data",
    "seed": "seed",
    "epochs": "epochs",
    "kept": "weights of",
    "system": "authors' system",
    "converted_from": "authors' checkpoint",
    "pretrained": "pretrained model, not trained further",
}


def model_card(
    card: SavedModelCard, processor: Processor, measured: Sequence[Evaluation], name: str
) -> str:
    """The text of ``README.md``, with the YAML head that the hub reads."""
    kind = card.model.make.__qualname__ if card.model else card.module.rpartition(":")[2]
    images, base = processor.image_processor, _base_model(card)
    facts = [
        (words, card.provenance[key])
        for key, words in _PROVENANCE.items()
        if key in card.provenance
    ]
    return template("model_card.md.j2").render(
        title=name.rstrip("/").rpartition("/")[2],
        name=repr(name),
        kind=kind,
        base=base,
        card=card,
        features=images.width if isinstance(images, FeatureProcessor) else 0,
        results=list(map(_hub_result, measured)),
        measured=[
            {**each, "columns": _columns(each), "numbers": _numbers(each)} for each in measured
        ],
        training=_training(card),
        origin=[*facts, *([("began from", base)] if base else [])],
        call=card.model
        and json.dumps(_without_configs(card.model.to_dict()), indent=2, ensure_ascii=False),
    )


def _hub_result(evaluation: Evaluation) -> dict[str, Any]:
    setting = evaluation["setting"]
    data = {"name": setting["dataset"], "type": setting["dataset"], "split": setting["split"]}
    metrics = [
        {"type": f"{side}_r{k}", "name": f"{words} R@{k}", "value": evaluation[side][f"r{k}"]}
        for side, words in _DIRECTIONS.items()
        for k in _cutoffs(evaluation)
    ]
    task = {"type": "image-text-retrieval", "name": "Image-text retrieval"}
    return {"task": task, "dataset": data, "metrics": metrics}


def _cutoffs(evaluation: Evaluation) -> list[int]:
    """Each k of the recalls that the evaluation holds, in order; a file has its keys sorted."""
    keys = [key[1:] for key in evaluation["i2t"] if key[:1] == "r"]
    return sorted(int(key) for key in keys if key.isdecimal())


def _columns(evaluation: Evaluation) -> list[str]:
    """The heads of `_numbers`; the first recall of each direction names it."""
    names = [f"R@{k}" for k in _cutoffs(evaluation)]
    first = [f"{side} {name}" for side in _DIRECTIONS for name in names[:1]]
    return [*(head for one in first for head in (one, *names[1:])), "rsum"]


def _numbers(evaluation: Evaluation) -> list[str]:
    """Recalls in both directions and their sum."""
    cutoffs = _cutoffs(evaluation)
    cells = [f"{evaluation[side][f'r{k}']:.1f}" for side in _DIRECTIONS for k in cutoffs]
    return [*cells, f"{evaluation['rsum']:.1f}"]


def _training(card: SavedModelCard) -> dict[str, Any]:
    """Data, losses, negatives, settings and versions of the training; {} where none are known."""
    record = card.provenance.get("training")
    if not isinstance(record, dict):
        return {}
    papers = dict.fromkeys(paper for loss in record["losses"] for paper in loss["papers"])
    negatives: dict[str, str] = {}
    if mined := record.get("negatives"):
        negatives = {
            "mined with": "; ".join(f"`{model}`" for model in mined["models"]),
            "texts of an image, at most": f"{mined['texts_per_image']:,}",
            "images of a text, at most": f"{mined['images_per_text']:,}",
            "filters against true pairs": "; ".join(mined["filters"]) or "none but the true pairs",
            "drawn by": f"`{mined['sampling']}`" if "sampling" in mined else "",
            "fingerprint of their data": f"`{mined['fingerprint']}`",
        }
    settings = record["settings"]
    return {
        "splits": [
            (name, f"{split['images']:,}", f"{split['captions']:,}")
            for name, split in sorted(record["splits"].items(), reverse=True)  # train first
        ],
        "weights": record.get("weights"),
        "corrections": record.get("corrections"),
        "losses": [
            (
                loss["name"],
                loss["loss"],
                f"{loss['weight']:g}",
                ", ".join(f"{key} {value}" for key, value in loss["settings"].items()),
                ", ".join(f"[arXiv:{_number(paper)}]({paper})" for paper in loss["papers"]),
            )
            for loss in record["losses"]
        ],
        "negatives": [row for row in negatives.items() if row[1]],
        "steps": f"{record['steps']:,}",
        "settings": settings,
        "changed": {key: value for key, value in settings.items() if key in record["changed"]},
        "versions": record["versions"],
        "papers": {_number(paper): paper for paper in papers},
    }


def _number(paper: str) -> str:
    """The number on arXiv of a paper's address."""
    return paper.rpartition("/")[2]


def began_from(card: SavedModelCard) -> str | None:
    """The name or folder of the pretrained pair of encoders that a model began from."""
    make: Any = card.model and card.model.make
    if card.model is None or not hasattr(make, "pretrained_name"):  # a factory of the user
        return None
    name: str | None = make.pretrained_name(card.model.arguments)
    return name


def _base_model(card: SavedModelCard) -> str | None:
    """Its name on the hub."""
    name = began_from(card)
    return name if name and HUB_NAME.fullmatch(name) else None


def _without_configs(value: Any) -> Any:
    """A call without the configurations of its pretrained parts, which are long."""
    if isinstance(value, dict):
        return {k: _without_configs(v) for k, v in value.items() if not (k == "config" and v)}
    return list(map(_without_configs, value)) if isinstance(value, list) else value
