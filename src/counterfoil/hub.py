"""Sharing models and negatives on the hub, model cards, and weights between two models."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.card import README, upload
from counterfoil.core import distributed
from counterfoil.core.artifact import MANIFEST
from counterfoil.core.console import output
from counterfoil.core.io import (
    check_file,
    ensure_absent,
    ensure_writable_folder,
    write_text,
)
from counterfoil.core.optional import first_line, optional_import
from counterfoil.data.corrections import CORRECTIONS_FILE, judged_pairs, write_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.results import headline, result_table, results
from counterfoil.model import Model, load_model
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
from counterfoil.report.tables import TerminalTable
from counterfoil.training.interpolation import (
    ALPHAS,
    best_alpha,
    interpolate_models,
    load_original,
    rsum_by_alpha,
    save_interpolated,
)

# Mined negatives as a data set of the hub: a table of ids and scores for each direction, the
# manifest, and the pairs that a judge or people found true or ambiguous, as corrections.


NEGATIVES = {"image-to-text": ("image_id", "text_ids"), "text-to-image": ("text_id", "image_ids")}
TRUE = "true_score"  # column of the texts' table: each with its own image
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
        return upload(folder, name, private=private, message=message, repo_type="dataset")


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
    texts, text_scores, _ = _read_lists(folder / "image-to-text.parquet", *ids, lengths[0])
    of_texts = folder / "text-to-image.parquet"
    images, image_scores, true_scores = _read_lists(of_texts, *ids[::-1], lengths[1])
    lists = HardNegativeLists(texts, images)
    if text_scores is not None and image_scores is not None:
        lists = HardNegativeLists(texts, images, text_scores, image_scores, true_scores)
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
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rows and scores of a table, and scores of true pairs; None for what is not known."""
    parquet = optional_import("pyarrow.parquet", _NEEDS_ARROW)
    query, answer = NEGATIVES[path.stem]
    if length > len(answers):
        raise ValueError(f"{path.parent} promises lists of {length:,} of {len(answers):,} {answer}")
    places = {id_: row for row, id_ in enumerate(answers)}
    rows = np.full((len(queries), length), -1, np.int32)
    scores = np.full(rows.shape, -np.inf, np.float16)
    true: Tensor | None = None
    try:
        check_file(path)
        table = parquet.read_table(path).to_pydict()
        if table[query] != list(queries):
            raise ValueError(f"its {query} are others")
        for row, listed in enumerate(table[answer]):
            rows[row, : len(listed)] = [places[id_] for id_ in listed]
            if "scores" in table:
                with np.errstate(over="ignore"):  # infinite ones are refused
                    scores[row, : len(listed)] = table["scores"][row]
        if TRUE in table:
            known = [-np.inf if score is None else score for score in table[TRUE]]
            with np.errstate(over="ignore"):
                true = torch.from_numpy(np.array(known, np.float16))
            if bool((true.isnan() | true.isposinf()).any()):
                raise ValueError(f"{TRUE} holds what are no numbers of float16")
    except Exception as error:  # a file may be anybody's
        raise ValueError(
            f"{path} is no table of negatives of these data: {first_line(error)}; load it again "
            "from the hub, or mine again"
        ) from error
    return torch.from_numpy(rows), torch.from_numpy(scores) if "scores" in table else None, true


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
    of_texts = folder / "text-to-image.parquet"
    _write_lists(of_texts, *ids[::-1], lists.images, lists.image_scores, lists.true_scores)
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
    path: Path,
    queries: Sequence[str],
    answers: Sequence[str],
    rows: Tensor,
    scores: Tensor | None,
    true: Tensor | None = None,
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
    if true is not None:  # of a text without an image there is none
        scored = [score if math.isfinite(score) else None for score in true.float().tolist()]
        columns[TRUE] = arrow.array(scored, arrow.float32())
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
        console.print(TerminalTable(TableBlock("RSum on dev", ("alpha", "RSum"), rows, note)))
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
        console.print(TerminalTable(result_table(runs), reports[name].setting.line()))
        output(f"{dataset.name}: {headline(runs)}")
