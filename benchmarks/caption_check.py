"""Is this caption right? The verdicts of `counterfoil.evaluation.caption_check` against people.

``python -m benchmarks.caption_check TOWERS FLICKR8K [--ledger docs/evidence/caption-check.json]``
trains adapters on frozen towers with Flickr8k's training split, calibrates on photos of dev, and
judges the pairs of test that experts and a crowd judged. ``--page docs/results/caption-check.md``
writes the tables of a ledger into the page.

TOWERS holds ``images.npy`` and ``texts.npy``, vectors of Flickr8k's photos and of their captions in
the order of ``dataset_flickr8k.json``; FLICKR8K that file, and ``annotations/``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.experiments.cca import RIDGE, _inverse_root, _unit
from benchmarks.pages import put_table
from counterfoil.core.config import config
from counterfoil.core.io import read_json, write_json
from counterfoil.data.corrections import read_crowd_votes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.data.readers.embeddings import dataset_of_vectors
from counterfoil.evaluation.caption_check import CaptionCheck, fit_caption_check
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.scoring.pairs import score_index_pairs
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.trainer import Trainer

WIDTH = 256
SEEDS = 5
SIZES = (50, 100, 300, 1000)
DRAWS = 8  # subsets of dev of each size, but of the whole
RESAMPLES = 2000
LEVELS = (70, 75, 80, 85, 90, 95)  # per cent right of the curve
PHOTOS = 300  # calibration of the table of rules
START, END = "<!-- tables -->", "<!-- end of tables -->"

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Judged:
    """Pairs of photos and captions that people judged: rows, and whether they say it is right."""

    images: Tensor
    texts: Tensor
    right: Tensor


def main() -> None:
    """Measure, write the ledger, and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("towers", type=Path, nargs="?")
    parser.add_argument("flickr8k", type=Path, nargs="?")
    parser.add_argument("--ledger", type=Path, default=Path("docs/evidence/caption-check.json"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    if given.towers:
        write_json(given.ledger, measure(given.towers, given.flickr8k, given.seeds))
    ledger = read_json(given.ledger, "a ledger")
    print(tables(ledger))
    if given.page:
        put_table(given.page, START, END, tables(ledger))


def measure(towers: Path, flickr8k: Path, seeds: int = SEEDS) -> dict[str, Any]:
    """All numbers of the page.

    Rules of what is right are tried on every second photo of test, the odd ones; the even ones
    served to choose how hard the wrong captions of the calibration are.
    """
    data = vectors(towers, flickr8k)
    dev, test = data.split("dev"), data.split("test")
    rules = judgements(flickr8k / "annotations", test)
    odd = {name: _kept(pairs, pairs.images % 2 == 1) for name, pairs in rules.items()}
    chosen = {name: _kept(pairs, pairs.images % 2 == 0) for name, pairs in rules.items()}
    cells: dict[int, list[CaptionCheck]] = {size: [] for size in SIZES}
    counts: dict[tuple[int, str], list[Array]] = {}
    chosen_on: list[Array] = []
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in rules}
    levels = []
    for seed in range(seeds):
        model = adapters(data, seed)
        embedded = model.embed(test)
        scored = {n: _scores(model, embedded, pairs) for n, pairs in odd.items()}
        even = _scores(model, embedded, chosen["experts, 3 or more"])
        for name, pairs in odd.items():
            curves[name].append(curve(scored[name], pairs.right.numpy()))
        levels.append(_rsum(model, test))
        for size, part in subsets(dev, seed):
            check = fit_caption_check(model, part, seed=seed)
            cells[size].append(check)
            for name, pairs in odd.items():
                made = photo_counts(check, scored[name], pairs)
                counts.setdefault((size, name), []).append(made)
            if size == PHOTOS:
                pairs = chosen["experts, 3 or more"]
                chosen_on.append(photo_counts(check, even, pairs))
    rows = [
        {"photos": size, "rule": name, **summary(np.stack(found))}
        for (size, name), found in counts.items()
    ]
    return {
        "data": test.fingerprint,
        "rsum": levels,
        "rules": {n: {"right": int(p.right.sum()), "pairs": len(p.right)} for n, p in odd.items()},
        "rows": rows,
        "even": summary(np.stack(chosen_on)),
        "curves": {name: _mean(found) for name, found in curves.items()},
        "checks": [
            {"photos": size, **{key: asdict(check)[key] for key in ("low", "high")}}
            for size, checks in cells.items()
            for check in checks
        ],
    }


def vectors(towers: Path, flickr8k: Path) -> ImageTextDataset:
    """Flickr8k as vectors: towers, projected by the CCA of the training split."""
    known = read_json(flickr8k / "dataset_flickr8k.json", "captions")["images"]
    splits = ["dev" if one["split"] == "val" else one["split"] for one in known]
    train = np.array([split == "train" for split in splits])
    images = np.load(towers / "images.npy").astype(np.float64)
    texts = np.load(towers / "texts.npy").astype(np.float64)
    owner = np.repeat(np.arange(len(images)), len(texts) // len(images))
    images = _standard(images, train)
    texts = _standard(texts, train[owner])
    ours = train[owner]
    left = _inverse_root(images[owner[ours]].T @ images[owner[ours]] / ours.sum(), RIDGE[0])
    right = _inverse_root(texts[ours].T @ texts[ours] / ours.sum(), RIDGE[1])
    u, scale, v = np.linalg.svd(left @ (images[owner[ours]].T @ texts[ours] / ours.sum()) @ right)
    parts = {
        "images": _unit([images @ (left @ u[:, :WIDTH] * scale[:WIDTH])]),
        "texts": _unit([texts @ (right @ v[:WIDTH].T * scale[:WIDTH])]),
        "image_ids": [one["filename"] for one in known],
        "captions": [sentence["raw"] for one in known for sentence in one["sentences"]],
        "splits": splits,
    }
    return dataset_of_vectors(parts, "flickr8k", str(towers))


def _standard(values: Array, train: Array) -> Array:
    mean, deviation = values[train].mean(0), values[train].std(0) + 1e-6
    made: Array = (values - mean) / deviation
    return made


def adapters(data: ImageTextDataset, seed: int) -> Model:
    """Adapters behind the vectors, trained on the training split; the last epoch counts."""
    spec = config(FrozenAdapters, width=WIDTH, hidden=512, dropout=0.5)
    torch.manual_seed(seed)
    model = Model(spec.build(), Processor(FeatureProcessor(WIDTH), None), f"adapters {seed}", spec)
    plan = TrainConfig(
        epochs=2,
        batch=512,
        seed=seed,
        optimiser=OptimizerConfig(rule="adamw", rate=3e-3),
        all_captions=True,
        keep_last=True,
        log_every=10_000,
    )
    with tempfile.TemporaryDirectory() as folder:
        loss = InfoNCELoss(temperature=0.05)
        return Trainer(
            model, loss=loss, train=data.split("train"), output=folder, config=plan
        ).train()


def judgements(folder: Path, test: ImageTextDataset) -> dict[str, Judged]:
    """Pairs of test with what people say of them, by the rule that makes it right or wrong.

    Pairs between the two bounds of a rule are left out.
    """
    rows = {name: row for row, name in enumerate(test.image_ids)}
    places = torch.arange(len(test.texts)).reshape(len(test), -1)
    lines = (folder / "ExpertAnnotations.txt").read_text("utf-8").split("\n")
    read = []
    for line in filter(None, lines):
        image, caption, *marks = line.split("\t")
        owner, place = caption.split("#")
        mean = sum(map(int, marks)) / len(marks)
        read.append((rows[image], int(places[rows[owner], int(place)]), mean))
    images, texts = (torch.tensor([line[at] for line in read]) for at in (0, 1))
    mean = torch.tensor([line[2] for line in read])
    votes = read_crowd_votes(folder / "CrowdFlowerAnnotations.txt", test)
    share = votes.yes / (votes.yes + votes.no)
    own = torch.arange(len(test.texts))

    def rule(images: Tensor, texts: Tensor, value: Tensor, low: float, high: float) -> Judged:
        known = (value >= high) | (value < low)
        return Judged(images[known], texts[known], value[known] >= high)

    wrong = mean < 3
    return {
        "experts, 3 or more": rule(images, texts, mean, 3, 3),
        "experts, 2 or more": rule(images, texts, mean, 2, 2),
        "experts, 2.5 or more": rule(images, texts, mean, 2.5, 2.5),
        "experts, 3.5 or more": rule(images, texts, mean, 3.5, 3.5),
        "experts, 3.5 or more against less than 2": rule(images, texts, mean, 2, 3.5),
        "own captions against experts' less than 3": Judged(
            torch.cat([test.text_to_image, images[wrong]]),
            torch.cat([own, texts[wrong]]),
            torch.cat([torch.ones(len(own)), torch.zeros(int(wrong.sum()))]).bool(),
        ),
        "crowd, most say yes": rule(votes.images, votes.texts, share, 0.5001, 0.5001),
        "crowd, all say yes against all say no": rule(votes.images, votes.texts, share, 1e-6, 1),
    }


def subsets(dev: ImageTextDataset, seed: int) -> Iterator[tuple[int, ImageTextDataset]]:
    """Photos of dev to calibrate on."""
    rng = torch.Generator().manual_seed(seed)
    for size in SIZES:
        for _ in range(1 if size >= len(dev) else DRAWS):
            yield size, dev.subset(torch.randperm(len(dev), generator=rng)[:size].sort().values)


def photo_counts(check: CaptionCheck, scores: Array, pairs: Judged) -> Array:
    """(I, 2, 3) pairs of each photo, wrong and right, that fit, do not, or cannot be told."""
    answers = {"fits": 0, "does not fit": 1, "cannot tell": 2}
    said = np.array([answers[check.verdict(float(score))] for score in scores])
    counts = np.zeros((int(pairs.images.max()) + 1, 2, 3))
    np.add.at(counts, (pairs.images.numpy(), pairs.right.long().numpy(), said), 1)
    return counts


def summary(counts: Array) -> dict[str, Any]:
    """Per cent, with 95 % intervals, of (C, I, 2, 3) counts of C calibrations.

    Photos and calibrations are drawn anew. `fits` and `does not fit` are the shares that are right
    where every second pair is; `… as judged` with the right pairs as rare as they are.
    """
    counts = counts[:, counts.sum((0, 2, 3)) > 0]
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        weights = np.bincount(rng.integers(0, counts.shape[1], counts.shape[1]),
                              minlength=counts.shape[1])  # fmt: skip
        chosen = rng.integers(0, len(counts), len(counts))
        drawn.append(_shares(np.einsum("cirv,i->rv", counts[chosen], weights)))
    mean = _shares(counts.sum((0, 1)))
    made: dict[str, Any] = {}
    for name, value in mean.items():
        found = np.array([one[name] for one in drawn])
        bounds = np.nanquantile(found, [0.025, 0.975]) if np.isfinite(found).any() else (0, 100)
        known = None if not np.isfinite(value) else round(value, 1)
        made[name] = [known, *(round(float(bound), 1) for bound in bounds)]
    each = [_shares(one.sum(0)) for one in counts]
    made["calibrations"] = len(each)
    made["never fits"] = sum(not np.isfinite(one["fits"]) for one in each)
    made["never does not fit"] = sum(not np.isfinite(one["does not fit"]) for one in each)
    return made


def _shares(counts: Array) -> dict[str, float]:
    """Per cent, of (2, 3) counts."""
    even = counts / counts.sum(1, keepdims=True).clip(1e-9)

    def share(of: Array, right: int, said: int) -> float:
        whole = of[:, said].sum()
        return float(100 * of[right, said] / whole) if whole else float("nan")

    return {
        "fits": share(even, 1, 0),
        "does not fit": share(even, 0, 1),
        "cannot tell": float(50 * even[:, 2].sum()),
        "fits as judged": share(counts, 1, 0),
        "does not fit as judged": share(counts, 0, 1),
        "cannot tell as judged": float(100 * counts[:, 2].sum() / counts.sum()),
    }


def curve(scores: Array, right: Array) -> dict[str, float]:
    """The least share that cannot be told, by how many of both answers are to be right.

    The best two thresholds are chosen on the pairs themselves: no calibration can do better.
    """
    tried = np.quantile(scores, np.linspace(0, 1, 401))
    yes = (scores[right, None] >= tried).mean(0)
    no = (scores[~right, None] >= tried).mean(0)
    made = {}
    for level in LEVELS:
        fits = yes / (yes + no).clip(1e-9) >= level / 100
        fails = (1 - no) / (2 - yes - no).clip(1e-9) >= level / 100
        fits, fails = fits & (yes > 0), fails & (no < 1)
        if not fits.any() or not fails.any():
            made[str(level)] = 100.0
            continue
        high, low = int(np.argmax(fits)), len(tried) - 1 - int(np.argmax(fails[::-1]))
        told = yes[high] + no[high] + 2 - yes[low] - no[low]
        made[str(level)] = float(100 * max(0.0, 1 - told / 2)) if high >= low else 0.0
    return made


def _scores(model: Model, embedded: Any, pairs: Judged) -> Array:
    """(P,) as in `Explanation.score`."""
    plain = score_index_pairs([embedded], pairs.images, pairs.texts)
    scores: Array = model.model.loss_scores(plain.double()).numpy()
    return scores


def _rsum(model: Model, test: ImageTextDataset) -> float:
    return round(float(evaluate_protocol([model.embed(test)], test).rsum), 1)


def _kept(pairs: Judged, keep: Tensor) -> Judged:
    return Judged(pairs.images[keep], pairs.texts[keep], pairs.right[keep])


def _mean(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([one[key] for one in found])), 1) for key in found[0]}


def tables(ledger: dict[str, Any]) -> str:
    """The tables of the page."""
    by_size = [row for row in ledger["rows"] if row["rule"] == "experts, 3 or more"]
    by_rule = [row for row in ledger["rows"] if row["photos"] == PHOTOS]
    parts = [
        _table("photos of the calibration", by_size, lambda row: f"{row['photos']:,}"),
        _table("what is right", by_rule, lambda row: _ruled(row["rule"], ledger)),
        "\n".join(
            [
                f"| of both answers right | {' | '.join(f'{level} %' for level in LEVELS)} |",
                f"|---|{'---|' * len(LEVELS)}",
                *(
                    f"| {name} | {' | '.join(f'{found[str(at)]:.0f} %' for at in LEVELS)} |"
                    for name, found in ledger["curves"].items()
                ),
            ]
        ),
    ]
    return "\n\n".join(parts)


def _table(first: str, rows: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> str:
    names = ("fits", "does not fit", "cannot tell", "fits as judged", "does not fit as judged")
    lines = [
        f"| {first} | right of *fits* | right of *does not fit* | *cannot tell* | right of *fits*, "
        "as judged | right of *does not fit*, as judged | calibrations without *fits* |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row[key]) for key in names]
        lines.append(
            f"| {name(row)} | {' | '.join(cells)} | {row['never fits']} of {row['calibrations']} |"
        )
    return "\n".join(lines)


def _ruled(rule: str, ledger: dict[str, Any]) -> str:
    known = ledger["rules"][rule]
    return f"{rule} ({known['right']:,} of {known['pairs']:,} pairs)"


def _cell(value: list[float | None]) -> str:
    mean, low, high = value
    return "–" if mean is None else f"{mean:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
