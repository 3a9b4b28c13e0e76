"""Sharing models and negatives on the hub, model cards, and weights between two models."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.artifact import MANIFEST
from counterfoil.core.config import Config
from counterfoil.core.console import output
from counterfoil.core.io import (
    atomic_folder,
    check_file,
    ensure_absent,
    ensure_writable_folder,
    read_json,
    write_json,
    write_text,
)
from counterfoil.core.optional import first_line, optional_import
from counterfoil.data.corrections import CORRECTIONS_FILE, judged_pairs, write_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.results import headline, result_table, results
from counterfoil.model import (
    HUB_NAME,
    Model,
    SavedModelCard,
    check_model_reopens,
    load_model,
    read_card,
    save_model,
)
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import read_config_json
from counterfoil.models.open_clip import OpenClipModel, hub_name
from counterfoil.negatives.mining import HardNegatives
from counterfoil.negatives.store import (
    MINED,
    HardNegativeLists,
    NegativeManifest,
    NegativeStore,
    list_parts,
)
from counterfoil.pipelines.plan import console
from counterfoil.pipelines.run import DataSource
from counterfoil.report.page import TableBlock, template
from counterfoil.report.tables import terminal_table
from counterfoil.training.config import TrainConfig
from counterfoil.training.interpolation import (
    ALPHAS,
    best_alpha,
    interpolate_models,
    load_original,
    rsum_by_alpha,
    save_interpolated,
)

T = TypeVar("T")
Evaluation = Mapping[str, Any]  # as `counterfoil evaluate --json` writes it
EVALUATIONS, README = "evaluations.json", "README.md"


# A shared model: a folder that opens without other files, with its evaluations and a card.


def save_shared(
    model: Model, folder: Path, *, evaluations: Sequence[Path] = (), name: str = ""
) -> None:
    """Write a self-contained model folder with its card, atomically.

    The card has the `evaluations` given, files of ``counterfoil evaluate --json``, and those of the
    model's own run; `name` is by which others open it, the folder by default.
    """
    if model.processor is None or model.spec is None:
        raise ValueError("ready-made vectors are no model; save the folder that holds them")
    check_model_reopens(model)
    if not folder.is_dir() or any(folder.iterdir()):
        ensure_absent(folder)
    ensure_writable_folder(folder)
    measured = [*_own_evaluations(model.name), *map(_read_evaluation, evaluations)]
    spec, card = portable_config(model.spec), model.card
    with atomic_folder(folder) as temporary:
        save_model(
            temporary,
            spec=spec,
            model=model.model,
            processor=model.processor,
            provenance=card.provenance if card else {"pretrained": _public_name(model.name)},
            metrics=card.metrics if card else {},
        )
        text = model_card(read_card(temporary), model.processor, measured, name or str(folder))
        write_text(temporary / README, text)
        if measured:
            write_json(temporary / EVALUATIONS, measured)


def push_shared(
    model: Model, name: str, *, evaluations: Sequence[Path], private: bool, message: str
) -> str:
    """Upload a model to the Hugging Face hub and return its address."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save_shared(model, folder, evaluations=evaluations, name=name)
        return _upload(folder, name, private=private, message=message)


def _upload(
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


def portable_config(spec: Config[T]) -> Config[T]:
    """The call with the configurations of pretrained parts in it, in place of their names.

    It builds the model with fresh weights, without reading a folder or the hub.
    """
    arguments = {name: _portable(value) for name, value in spec.arguments.items()}
    known = inspect.signature(spec.make).parameters
    if "config" in known and "pretrained" in known:
        name = str(arguments["name"])
        config = json.loads(arguments.get("config") or read_config_json(name))
        config.pop("_name_or_path", None)
        written = json.dumps(config, sort_keys=True)
        arguments |= {"pretrained": False, "config": written, "name": _public_name(name)}
    elif "pretrained" in known:
        arguments["pretrained"] = False
    return Config(spec.make, arguments)


def _portable(value: Any) -> Any:
    match value:
        case Config():
            return portable_config(value)
        case tuple():
            return tuple(map(_portable, value))
    return value


def _public_name(name: str) -> str:
    """A model's name without the folders above it, which mean nothing on another machine."""
    return Path(name).resolve().name if Path(name).is_dir() else name


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
    "best_epoch": "best epoch, on dev",
    "system": "authors' system",
    "converted_from": "authors' checkpoint",
    "pretrained": "pretrained model, not trained further",
}


def model_card(
    card: SavedModelCard, processor: Processor, measured: Sequence[Evaluation], name: str
) -> str:
    """The text of ``README.md``, with the YAML head that the hub reads."""
    kind = card.model.make.__qualname__
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
        measured=[{**each, "numbers": _numbers(each)} for each in measured],
        training=_training(card),
        origin=[*facts, *([("began from", base)] if base else [])],
        call=json.dumps(_without_configs(card.model.to_dict()), indent=2, ensure_ascii=False),
    )


def _hub_result(evaluation: Evaluation) -> dict[str, Any]:
    setting = evaluation["setting"]
    data = {"name": setting["dataset"], "type": setting["dataset"], "split": setting["split"]}
    metrics = [
        {"type": f"{side}_r{k}", "name": f"{words} R@{k}", "value": evaluation[side][f"r{k}"]}
        for side, words in _DIRECTIONS.items()
        for k in (1, 5, 10)
    ]
    task = {"type": "image-text-retrieval", "name": "Image-text retrieval"}
    return {"task": task, "dataset": data, "metrics": metrics}


def _numbers(evaluation: Evaluation) -> list[str]:
    """Recalls in both directions and their sum."""
    cells = [f"{evaluation[side][f'r{k}']:.1f}" for side in _DIRECTIONS for k in (1, 5, 10)]
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
    usual = {field.name: field.default for field in fields(TrainConfig)}
    settings = record["settings"]
    return {
        "splits": [
            (name, f"{split['images']:,}", f"{split['captions']:,}")
            for name, split in sorted(record["splits"].items(), reverse=True)  # train first
        ],
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
        "changed": {
            k: v for k, v in settings.items() if v not in (usual.get(k), repr(usual.get(k)))
        },
        "versions": record["versions"],
        "papers": {_number(paper): paper for paper in papers},
    }


def _number(paper: str) -> str:
    """The number on arXiv of a paper's address."""
    return paper.rpartition("/")[2]


def _base_model(card: SavedModelCard) -> str | None:
    """The name on the hub of the pretrained pair of encoders that a model began from."""
    spec: Config[Any] = card.model
    if spec.make is FrozenWithAdapters:
        spec = spec.arguments["body"]
    name: str | None = str(spec.arguments.get("name", ""))
    if spec.make is OpenClipModel:
        name = hub_name(str(name))
    elif spec.make is not DualEncoder:
        return None
    return name if name and HUB_NAME.fullmatch(name) else None


def _without_configs(value: Any) -> Any:
    """A call without the configurations of its pretrained parts, which are long."""
    if isinstance(value, dict):
        return {k: _without_configs(v) for k, v in value.items() if not (k == "config" and v)}
    return list(map(_without_configs, value)) if isinstance(value, list) else value


# Mined negatives as a data set of the hub: a table of ids and scores for each direction, the
# manifest, and the pairs that a judge or people found true or ambiguous, as corrections.


NEGATIVES = {"image-to-text": ("image_id", "text_ids"), "text-to-image": ("text_id", "image_ids")}
JUDGED = "judged.parquet"
_LEAST_TIED = 3  # items of a list from which one score for all is no chance
_NEEDS_ARROW = 'negatives on the hub need pyarrow: pip install "counterfoil[hf]"'


def push_negatives(
    negatives: HardNegatives,
    name: str,
    *,
    judge: str = "",
    private: bool = True,
    message: str = "Hard negatives of counterfoil",
) -> str:
    """Upload mined negatives to the Hugging Face hub as a data set and return its address.

    It has no images, and no captions but those of judged pairs, in ``corrections.jsonl``.

    Args:
        negatives: mined lists with their data set.
        name: as in "user/negatives"; an existing data set gets a new version.
        judge: who judged the extra positives and the ambiguous pairs of the data set, for the card.
        private: whether a new repository is private.
        message: of the commit.

    Raises:
        ValueError: the hub refuses it, or pyarrow is not installed.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "negatives"
        folder.mkdir()
        _write_negatives(negatives, folder, name, judge)
        return _upload(folder, name, private=private, message=message, repo_type="dataset")


def load_negatives(
    name: str | Path, dataset: ImageTextDataset, *, revision: str | None = None
) -> HardNegatives:
    """Load what `push_negatives` uploaded, for the same data.

    Args:
        name: on the hub, or a folder with its files.
        dataset: the split that was mined, with the same corrections: ``corrections.jsonl`` of the
            hub has those that concern pairs.
        revision: of the hub; None for the newest.

    Raises:
        ValueError: there are no such negatives, they are damaged, or were mined from other data.
    """
    folder = _negatives_folder(str(name), revision)
    manifest = MINED.read_manifest(folder, fingerprint=dataset.fingerprint)
    lengths = manifest.texts_per_image, manifest.images_per_text
    ids = dataset.image_ids, dataset.text_ids
    texts, text_scores = _read_lists(folder / "image-to-text.parquet", *ids, lengths[0])
    images, image_scores = _read_lists(folder / "text-to-image.parquet", *ids[::-1], lengths[1])
    lists = HardNegativeLists(texts, images)
    if text_scores is not None and image_scores is not None:
        lists = HardNegativeLists(texts, images, text_scores, image_scores)
    try:
        lists = lists.checked(dataset.relation)
        lists.check_order()
        _check_ties(lists, dataset)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return HardNegatives(NegativeStore(manifest, lists), dataset)


def _check_ties(lists: HardNegativeLists, dataset: ImageTextDataset) -> None:
    """Refuse lists whose scores give no order, though their items differ.

    Scores in float16 of a list may tie; those of more than one list in a hundred do not, unless all
    its captions are the same, as class names are.
    """
    same = {text: row for row, text in enumerate(dataset.texts)}
    content = torch.tensor([same[text] for text in dataset.texts], dtype=torch.int32)
    tied = longer = 0
    for rows, scores, kind in (
        (lists.texts, lists.text_scores, content),
        (lists.images, lists.image_scores, torch.arange(len(dataset), dtype=torch.int32)),
    ):
        if scores is None:
            return
        for part in list_parts(len(rows)):
            beyond = rows[part] < 0
            items = kind[rows[part].long()]
            differ = ((items != items[:, :1]) & ~beyond).any(1)
            long = ((~beyond).sum(1) >= _LEAST_TIED) & differ
            equal = ((scores[part] == scores[part][:, :1]) | beyond).all(1)
            longer, tied = longer + int(long.sum()), tied + int((long & equal).sum())
    if 100 * tied > longer:
        raise ValueError(
            f"{tied:,} of {longer:,} lists have one score for all their items, which puts them in "
            f"no order; {MINED.remedy}"
        )


def _read_lists(
    path: Path, queries: Sequence[str], answers: Sequence[str], length: int
) -> tuple[Tensor, Tensor | None]:
    """Rows and scores of a table; None for scores that are not known."""
    parquet = optional_import("pyarrow.parquet", _NEEDS_ARROW)
    query, answer = NEGATIVES[path.stem]
    if length > len(answers):
        raise ValueError(f"{path.parent} promises lists of {length:,} of {len(answers):,} {answer}")
    known = {id_: row for row, id_ in enumerate(answers)}
    rows = np.full((len(queries), length), -1, np.int32)
    scores = np.full(rows.shape, -np.inf, np.float16)
    try:
        check_file(path)
        table = parquet.read_table(path).to_pydict()
        if table[query] != list(queries):
            raise ValueError(f"its {query} are others")
        for row, listed in enumerate(table[answer]):
            rows[row, : len(listed)] = [known[id_] for id_ in listed]
            if "scores" in table:
                with np.errstate(over="ignore"):  # infinite ones are refused
                    scores[row, : len(listed)] = table["scores"][row]
    except Exception as error:  # a file may be anybody's
        raise ValueError(
            f"{path} is no table of negatives of these data: {first_line(error)}; load it again "
            "from the hub, or mine again"
        ) from error
    return torch.from_numpy(rows), torch.from_numpy(scores) if "scores" in table else None


def _negatives_folder(name: str, revision: str | None) -> Path:
    """The local folder, or the downloaded files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    if Path(name).is_dir():
        return Path(name)
    tables = [f"{direction}.parquet" for direction in NEGATIVES]
    files = [*tables, JUDGED, MANIFEST, CORRECTIONS_FILE, README]
    try:
        return Path(
            snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=files)
        )
    except (OSError, HFValidationError) as error:
        raise ValueError(
            f"{name} is no folder here and cannot be downloaded: {first_line(error)}; give the "
            "USER/NAME of a data set on the hub"
        ) from error


def _write_negatives(negatives: HardNegatives, folder: Path, name: str, judge: str) -> None:
    store, dataset = negatives.store, negatives.dataset
    lists, ids = store.lists, (dataset.image_ids, dataset.text_ids)
    _write_lists(folder / "image-to-text.parquet", *ids, lists.texts, lists.text_scores)
    _write_lists(folder / "text-to-image.parquet", *ids[::-1], lists.images, lists.image_scores)
    sources, proposing = (
        tuple(model.shared() for model in models)
        for models in (store.manifest.sources, store.manifest.proposing)
    )
    manifest = store.manifest.model_copy(update={"sources": sources, "proposing": proposing})
    MINED.write_manifest(folder, manifest)
    judged = judged_pairs(dataset)
    if judged:
        write_corrections(folder / CORRECTIONS_FILE, judged)
        columns = {
            "image_id": [pair.image for pair in judged],
            "text_id": [pair.caption for pair in judged],
            "verdict": ["true" if pair.do == "true" else "ambiguous" for pair in judged],
            "weight": [pair.weight if pair.do == "true" else 0.0 for pair in judged],
        }
        _write_table(folder / JUDGED, columns)
    write_text(folder / README, _negatives_card(manifest, dataset, len(judged), name, judge))


def _write_lists(
    path: Path, queries: Sequence[str], answers: Sequence[str], rows: Tensor, scores: Tensor | None
) -> None:
    arrow = optional_import("pyarrow", _NEEDS_ARROW)
    query, answer = NEGATIVES[path.stem]
    counts = (rows >= 0).sum(1).tolist()
    listed = [
        [answers[row] for row in part[:count]]
        for part, count in zip(rows.tolist(), counts, strict=True)
    ]
    columns = {
        query: arrow.array(list(queries), arrow.string()),
        answer: arrow.array(listed, arrow.list_(arrow.string())),
    }
    if scores is not None:
        kept = [part[:n] for part, n in zip(scores.float().tolist(), counts, strict=True)]
        columns["scores"] = arrow.array(kept, arrow.list_(arrow.float32()))
    _write_table(path, columns)


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    parquet = optional_import("pyarrow.parquet", _NEEDS_ARROW)
    parquet.write_table(optional_import("pyarrow", _NEEDS_ARROW).table(dict(columns)), path)


def _negatives_card(
    manifest: NegativeManifest, dataset: ImageTextDataset, judged: int, name: str, judge: str
) -> str:
    """The text of the data set's ``README.md``, with the YAML head that the hub reads."""
    files = {direction: f"{direction}.parquet" for direction in NEGATIVES}
    if judged:
        files["judged"] = JUDGED
    configs = [{"config_name": key, "data_files": file} for key, file in files.items()]
    facts = {
        "data": f"{dataset.name}, {manifest.split}",
        "fingerprint of the data": manifest.corpus,
        "corrections of the data": dataset.corrections,
        "images and texts": f"{manifest.image_count:,} and {manifest.text_count:,}",
        "negatives": f"{manifest.texts_per_image:,} texts of an image and "
        f"{manifest.images_per_text:,} images of a text at most, hardest first",
        "scored by": "; ".join(f"`{m.matcher}` (weights {m.checkpoint})" for m in manifest.sources),
        "proposed by": "; ".join(f"`{m.matcher}`" for m in manifest.proposing)
        or ("FAISS IVF" if manifest.proposals else ""),
        "filters": "; ".join(manifest.filters),
        "pairs judged true or ambiguous": f"{judged:,}" if judged else "",
        "judge": judge,
        "precision": manifest.precision,
        "counterfoil": manifest.version,
    }
    return template("negatives_card.md.j2").render(
        name=name,
        dataset=dataset,
        split=manifest.split,
        configs=configs,
        facts=[fact for fact in facts.items() if fact[1]],
    )


# Interpolated weights, saved and compared with both ends.


def interpolate(
    original: str,
    tuned: str,
    folder: Path,
    *,
    alphas: Sequence[float] = (),
    source: DataSource | None = None,
    other: DataSource | None = None,
) -> float:
    """Save the interpolated weights that are best on dev, and print how much each model forgets.

    Returns the share of the tuned weights, alpha; the saved card has the RSum on dev of each.

    Args:
        original: model before fine-tuning, as `load_model` opens it.
        tuned: the saved model after fine-tuning.
        folder: to write; must not exist yet.
        alphas: to choose from by RSum on dev; none for 0, 0.1, ..., 1.
        source: the photos, whose dev split chooses and whose test split measures all three models;
            needed for more than one alpha.
        other: other data to measure all three models on, its test split or all of it.
    """
    ensure_absent(folder, "a new folder with --output")
    ensure_writable_folder(folder)
    if len(alphas) != 1 and source is None:
        raise ValueError("the best alpha is chosen on dev; name the photos with --data, or --alpha")
    distributed.init()
    last = load_model(tuned)
    models = load_original(original, last), last
    candidates = tuple(sorted(set(alphas))) or ALPHAS
    first = interpolate_models(*models, candidates[0])  # refuses before anything is encoded
    sums: dict[float, float] = {}
    if len(candidates) > 1 and source is not None:
        sums = rsum_by_alpha(*models, source.split("dev"), candidates)
        rows = tuple((f"{alpha:g}", f"{rsum:.1f}") for alpha, rsum in sums.items())
        note = "0 is the original, 1 the tuned model"
        console.print(terminal_table(TableBlock("RSum on dev", ("alpha", "RSum"), rows, note)))
    alpha = best_alpha(sums) if sums else candidates[0]
    model = first if alpha == candidates[0] else interpolate_models(*models, alpha)
    for data in (source, other):
        if data is not None:
            dataset = data.open()
            _compare(
                {"original": models[0], "tuned": models[1], model.name: model},
                dataset.split("test") if "test" in dataset.split_names else dataset,
            )
    origin = {"original": original, "tuned": tuned, "alpha": alpha}
    save_interpolated(model, folder, origin, sums)
    output(f"alpha {alpha:g}: {folder}")
    return alpha


def _compare(models: Mapping[str, Model], dataset: ImageTextDataset) -> None:
    """Print each model's results beside the first's, with intervals of the differences."""
    reports = {
        name: evaluate_protocol([model.embed(dataset)], dataset) for name, model in models.items()
    }
    first, *others = reports
    for name in others if distributed.rank() == 0 else ():
        runs = results({first: reports[first], name: reports[name]})
        console.print(terminal_table(result_table(runs), reports[name].setting.line()))
        output(f"{dataset.name}: {headline(runs)}")
