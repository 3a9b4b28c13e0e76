"""What foils in both directions teach: TripletCLIP on rendered scenes, whose truth is exact.

``python -m benchmarks.both_ways run FOLDER`` tunes four arms of equal cost on seeds 0 and 1,
writes down what is claimed, and trains eight fresh seeds; ``--table margins`` does so for margins
of false captions; ``page docs/`` publishes both.

Every arm encodes as many items, images and captions together. *False captions* is NegCLIP's loss,
*false captions and their pictures* TripletCLIP's, on the same foils. *The same pairs, not opposed*
encodes what TripletCLIP does: InfoNCE of the pairs, and InfoNCE of the foils with their pictures.

Margins are those of a hinge between a caption and its own foil, beside NegCLIP's loss, as in
CE-CLIP and FG-CLIP 2: fixed, or the mean lead in the batch.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from benchmarks import refused
from benchmarks.experiments import macro
from benchmarks.experiments.cca import _caption_vectors, _projections, _standardise, _unit
from benchmarks.experiments.macro import KINDS, NUMBER, RSUM, digits, recalls
from benchmarks.pages import put_table
from benchmarks.truths.table import RESAMPLES, Claim, claim_sentence, markdown, span_text
from benchmarks.truths.world import WIDTH, WORDS, _region_features
from counterfoil.core.config import config
from counterfoil.core.io import atomic_folder, parse_json, read_json, write_json, write_text
from counterfoil.core.types import Role, Scores
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.shown import foil_scene
from counterfoil.data.scenes.truth import foils_by_kind, truths
from counterfoil.data.scenes.world import Scene, region_features
from counterfoil.evaluation.foils.measures import measure_foils, score_foils
from counterfoil.evaluation.foils.readers import FoilEntry
from counterfoil.evaluation.foils.sets import FoilSet, build_foil_set
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.losses.base import Loss
from counterfoil.losses.contrastive import (
    InfoNCELoss,
    InfoNCEWithCandidatesLoss,
    TripletCLIPLoss,
)
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.model import Model
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.foils import Foils
from counterfoil.training.trainer import Trainer

SCENES = "scenes:images=850,dev=150,test=250,features=regions"
EXPLORED = (0, 1)
SPLITS = ("dev", "test")
MOST = 2  # foils of a caption, of different kinds
BATCH, ITEMS = 256, 240_000
BASE, CAPTIONS, BOTH, APART = (
    "InfoNCE",
    "false captions",
    "false captions and their pictures",
    "the same pairs, not opposed",
)
FIXED, ADAPTIVE = "false captions, fixed margin", "false captions, adaptive margin"
GROUP = "group, mean of kinds"
MEASURES: Mapping[str, Mapping[str, float]] = {
    # number has a few foils in a hundred; its mean would be theirs
    GROUP: {kind: 100 / (len(KINDS) - 1) for kind in KINDS if kind != NUMBER},
    "group, all foils": {"all": 100.0},
    **{kind: {kind: 100.0} for kind in KINDS if kind != NUMBER},
    RSUM: macro.MEASURES[RSUM],
}


class ApartLoss(Loss):
    """InfoNCE of the batch, and InfoNCE of its foils with their pictures."""

    needs = TripletCLIPLoss.needs

    def __init__(self, *, temperature: float) -> None:
        super().__init__(reduction="mean")
        self.loss = TripletCLIPLoss(temperature=temperature, reduction="mean")

    def forward(self, scores: Scores) -> Tensor:
        none = {role: torch.full_like(x, -torch.inf) for role, x in scores.pairs.items()}
        pair = {Role.WRITTEN_PAIR: scores.pairs[Role.WRITTEN_PAIR]}
        found: Tensor = self.loss(replace(scores, pairs={**none, **pair}))
        return found


class RankedLoss(Loss):
    """NegCLIP's loss of a batch and its foils, and a hinge of each caption's own foil (CE-CLIP)."""

    def __init__(self, *, temperature: float, margin: float, weight: float, adaptive: bool) -> None:
        super().__init__(reduction="mean")
        self.contrast = InfoNCEWithCandidatesLoss(temperature=temperature, reduction="mean")
        self.below = MarginRankingLoss(
            role="written", margin=margin, adaptive=adaptive, reduction="mean"
        )
        self.weight, self.needs = weight, self.contrast.needs

    def forward(self, scores: Scores) -> Tensor:
        own = {Role.WRITTEN: scores.pairs[Role.WRITTEN].diagonal().unsqueeze(1)}
        found: Tensor = self.contrast(scores)
        return found + self.weight * self.below(replace(scores, pairs=own))


Point = Mapping[str, float]


def grid(**values: Sequence[float]) -> tuple[Point, ...]:
    """All points of some axes."""
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


@final
@dataclass(frozen=True)
class Arm:
    """One use of foils.

    Attributes:
        loss: of a point, without its rate.
        items: that an anchor encodes.
        grid: points to try.
    """

    loss: Callable[..., Loss]
    items: int
    grid: Sequence[Point]


@final
@dataclass(frozen=True)
class Study:
    """Arms that are compared, the base first.

    Attributes:
        arms: by name.
        claims: about them.
        seeds: that confirm.
    """

    arms: Mapping[str, Arm]
    claims: Sequence[Claim]
    seeds: Sequence[int]

    @property
    def base(self) -> str:
        """What rows are differences from."""
        return next(iter(self.arms))


_FEW = grid(rate=(1e-3, 4e-3), temperature=(0.03, 0.08))
_RANKED = {"rate": (1e-3,), "weight": (2.5, 10.0), "temperature": (0.08, 0.12)}
_NEGCLIP = partial(InfoNCEWithCandidatesLoss, reduction="mean")
STUDIES: Mapping[str, Study] = {
    "both-ways": Study(
        {
            BASE: Arm(partial(InfoNCELoss, reduction="mean"), 2, _FEW),
            CAPTIONS: Arm(_NEGCLIP, 3, _FEW),
            BOTH: Arm(partial(TripletCLIPLoss, reduction="mean"), 4, _FEW),
            APART: Arm(ApartLoss, 4, _FEW),
        },
        (
            Claim("False captions raise the group score.", CAPTIONS, BASE, GROUP),
            Claim("False captions and their pictures raise the group score.", BOTH, BASE, GROUP),
            Claim("Pictures of foils raise it above false captions alone.", BOTH, CAPTIONS, GROUP),
            Claim(
                "That foils are opposed to pairs raises it above the same pairs.",
                BOTH,
                APART,
                GROUP,
            ),
            Claim("False captions and their pictures cost recall.", BOTH, BASE, RSUM, "less"),
        ),
        range(10, 18),
    ),
    "margins": Study(
        {
            CAPTIONS: Arm(
                _NEGCLIP, 3, grid(rate=(1e-3, 2e-3, 4e-3), temperature=(0.03, 0.05, 0.08, 0.12))
            ),
            FIXED: Arm(
                partial(RankedLoss, adaptive=False),
                3,
                grid(margin=(0.1, 0.2, 0.3), **_RANKED),
            ),
            # leads are between 0.2 and 0.3 at every step: up to 0.2 it would be a fixed margin
            ADAPTIVE: Arm(
                partial(RankedLoss, adaptive=True),
                3,
                grid(margin=(0.25, 0.3, 1.0), **_RANKED),
            ),
        },
        (
            Claim(
                "An adaptive margin raises the group score above a fixed one.",
                ADAPTIVE,
                FIXED,
                GROUP,
            ),
            Claim(
                "An adaptive margin raises the group score above false captions without a hinge.",
                ADAPTIVE,
                CAPTIONS,
                GROUP,
            ),
            Claim("An adaptive margin keeps more recall than a fixed one.", ADAPTIVE, FIXED, RSUM),
        ),
        range(20, 28),
    ),
}


def shown_foils(
    data: ImageTextDataset, shown: dict[str, Scene], *, most: int = MOST
) -> tuple[list[FoilEntry], int]:
    """Foils of captions of scenes, added to `shown` with their scenes; how many were left out."""
    rng, scenes = torch.Generator().manual_seed(0), graphs(data)
    entries, left_out = list[FoilEntry](), 0
    for row, (caption, owner) in enumerate(zip(data.texts, data.text_to_image.tolist())):
        scene = scenes[owner]
        kinds = list(foils_by_kind(caption, scene, rng))
        for place in torch.randperm(len(kinds), generator=rng)[:most].tolist():
            foil, kind = kinds[place].caption, kinds[place].kind
            other = foil_scene(caption, foil, scene)
            if other is None:
                left_out += 1
                continue
            shown.update({scene.id: scene, other.id: other})
            ids = (scene.id, other.id)
            entries.append(FoilEntry(f"{row} {kind}", kind, ids, (caption, foil)))
    return entries, left_out


def write_bed(source: str, folder: Path) -> None:
    """Write vectors of scenes, of their foils and of the pictures of these: closed-form CCA."""
    data, facts = load_dataset(source), dict[str, Any]()
    parts = {split: data.split(split) for split in ("train", *SPLITS)}
    for split, part in list(parts.items()):
        shown: dict[str, Scene] = {}
        entries, left_out = shown_foils(part, shown)
        foils = _foil_set(split, entries)
        regions = region_features([shown[name] for name in foils.dataset.image_ids])
        parts[f"foils {split}"] = replace(foils.dataset, features=regions)
        facts[split] = {"entries": [asdict(entry) for entry in entries], "left out": left_out}
        if split == "train":
            facts["true of negatives"] = _false_rates(entries, shown)
        print(foils, left_out, flush=True)
    images = _standardise(_region_features(parts))
    texts = _caption_vectors({n: list(part.texts) for n, part in parts.items()}, WIDTH, WORDS)
    own = images["train"][parts["train"].text_to_image.numpy()]
    by_image, by_text = _projections(own, texts["train"], WIDTH)
    with atomic_folder(folder) as made:
        for name in parts:
            np.save(made / f"{name} images.npy", _unit([images[name] @ by_image]))
            np.save(made / f"{name} texts.npy", _unit([texts[name] @ by_text]))
        write_json(made / "facts.json", {"source": source, **facts})


def _foil_set(split: str, entries: Sequence[FoilEntry]) -> FoilSet:
    return build_foil_set("bivlc", entries, {}, "scenes", name=f"foils {split}")


def _false_rates(entries: Sequence[FoilEntry], shown: Mapping[str, Scene]) -> dict[str, float]:
    """Percent of the pairs of different entries that are true, of 300 drawn ones."""
    rng = torch.Generator().manual_seed(0)
    some = [entries[row] for row in torch.randperm(len(entries), generator=rng)[:300].tolist()]
    off = ~torch.eye(len(some), dtype=torch.bool)
    found = {}
    for images, place in (("pictures", 0), ("pictures of foils", 1)):
        scenes = [shown[entry.images[place]] for entry in some]
        for texts, column in (("captions", 0), ("foils", 1)):
            true = truths(scenes, [entry.captions[column] for entry in some]) == 1
            rate = 100 * true[off].double().mean().item()
            found[f"{images} and {texts} of others"] = round(rate, 2)
    return found


class Bed:
    """Vectors of scenes, with their foils in both directions."""

    def __init__(self, folder: Path) -> None:
        self.facts = read_json(folder / "facts.json", "a bed of foils")
        data = load_dataset(self.facts["source"])
        self.splits = {s: _vectors(folder, s, data.split(s)) for s in ("train", *SPLITS)}
        self.train, self.foils = self.splits.pop("train"), dict[str, FoilSet]()
        for split in ("train", *SPLITS):
            entries = [
                FoilEntry(e["id"], e["category"], tuple(e["images"]), tuple(e["captions"]))
                for e in self.facts[split]["entries"]
            ]
            foils = _foil_set(split, entries)
            vectors = _vectors(folder, f"foils {split}", foils.dataset)
            self.foils[split] = replace(foils, dataset=vectors)

    def untrained(self, seed: int) -> Model:
        """Adapters, which begin as the identity; their hidden weights are random."""
        torch.manual_seed(seed)
        spec = config(FrozenAdapters, width=WIDTH, hidden=256, dropout=0.3)
        processor = ProcessorConfig(texts="vectors", images="features").fit(self.train)
        return Model(spec.build(), processor, "adapters", spec)

    def fit(self, arm: Arm, point: Point, seed: int) -> tuple[Model, int]:
        """Train an arm; the model and its steps."""
        steps = ITEMS // (arm.items * BATCH)
        plan = TrainConfig(
            epochs=1 + steps * BATCH // len(self.train.texts),
            steps=steps,
            batch=BATCH,
            drop_last=True,
            seed=seed,
            optimiser=OptimizerConfig(rate=point["rate"]),
            schedule=CosineLR(warmup=0.1),
            keep_last=True,
            log_every=1000,
        )
        loss = arm.loss(**{name: value for name, value in point.items() if name != "rate"})
        pictures = Role.WRITTEN_PAIR in loss.needs.roles
        sources = [Foils(self.foils["train"], pictures=pictures)] if loss.needs.roles else []
        with TemporaryDirectory() as folder:
            trainer = Trainer(
                self.untrained(seed),
                loss=loss,
                train=self.train,
                sources=sources,
                output=folder,
                config=plan,
            )
            return trainer.train(), steps

    def points(self, model: Model, splits: Sequence[str]) -> tuple[dict[str, Tensor], Any]:
        """(I, 2) points and items of each image by "dev colour", and percents of I2T, T2I, group.

        Points are of the group score by kind, and recalls by direction.
        """
        found: dict[str, Tensor] = {}
        percents: dict[str, float] = {}
        for split in splits:
            foils, data = self.foils[split], self.splits[split]
            scores = score_foils([model.embed(foils.dataset)], foils)
            lines = measure_foils(foils, scores, resamples=1)
            percents |= {
                f"{split} {line.measure}": round(line.value, 3)
                for line in lines
                if line.of == "all items"
            }
            table = scores.view(-1, 4)  # both captions of the picture, then of the foil's
            right = (table[:, 0] > table[:, 1:3].amax(1)) & (table[:, 3] > table[:, 1:3].amax(1))
            rows = {name: row for row, name in enumerate(data.image_ids)}
            names = foils.dataset.image_ids
            images = torch.tensor([rows[names[item.images[0]]] for item in foils.items])
            one = torch.stack([right.double(), torch.ones(len(right)).double()], 1)
            for kind in KINDS:
                here = torch.tensor([item.category == kind for item in foils.items])
                blank = torch.zeros(len(data), 2, dtype=torch.float64)
                found[f"{split} {kind}"] = blank.index_add(0, images[here], one[here])
            report = evaluate_protocol([model.embed(data)], data)
            found |= {f"{split} {name}": table for name, table in recalls(report).items()}
        return found, percents


def _vectors(folder: Path, name: str, data: ImageTextDataset) -> ImageTextDataset:
    """A data set with the vectors of its images and texts."""
    images, texts = (np.load(folder / f"{name} {side}.npy") for side in ("images", "texts"))
    features = {"features": FeatureArray.of(images), "text_features": FeatureArray.of(texts)}
    return replace(data, pictures=None, **features)


# --- a run --------------------------------------------------------------------------------------


def run(folder: Path, bed: Bed, study: Study) -> None:
    """Train what the folder lacks: the grids, then, once all is declared, the fresh seeds."""
    for name, arm in study.arms.items():
        for point, seed in product(arm.grid, EXPLORED):
            _train(folder / "explored.jsonl", bed, (name, arm), point, seed, SPLITS[:1])
    for seed, (name, point) in product(study.seeds, declare(folder, bed, study).items()):
        _train(folder / "ledger.jsonl", bed, (name, study.arms[name]), point, seed, SPLITS)


def declare(folder: Path, bed: Bed, study: Study) -> Mapping[str, Point]:
    """The point of each arm, written down with the claims before the first fresh seed."""
    path = folder / "declared.json"
    if not path.exists():
        lines = _lines(folder / "explored.jsonl")
        items = {s: dict(Counter(i.category for i in f.items)) for s, f in bed.foils.items()}
        grids = {name: [*arm.grid] for name, arm in study.arms.items()}
        facts = {"source": bed.facts["source"], "grids": grids, "explored": EXPLORED}
        facts |= {"points": {name: _best(lines, name) for name in grids}, "seeds": [*study.seeds]}
        facts |= {"claims": [claim.to_dict() for claim in study.claims], "foils": items}
        facts |= {"left out": {split: bed.facts[split]["left out"] for split in bed.foils}}
        facts |= {"true of negatives, %": bed.facts["true of negatives"]}
        write_json(path, facts)
    found: Mapping[str, Point] = read_json(path, "what was declared")["points"]
    return found


def _train(
    ledger: Path,
    bed: Bed,
    named: tuple[str, Arm],
    point: Point,
    seed: int,
    splits: Sequence[str],
) -> None:
    """Add a training and its points to a ledger that does not have it."""
    (name, arm), lines = named, _lines(ledger)
    if any((one["method"], one.get("point"), one["seed"]) == (name, point, seed) for one in lines):
        return
    started = process_time()
    model, steps = bed.fit(arm, point, seed)
    points, percents = bed.points(model, splits)
    facts = {"point": dict(point), "steps": steps, "items": steps * BATCH * arm.items}
    facts |= {"percent": percents, "cpu_seconds": round(process_time() - started, 1)}
    facts |= {"dev": macro.mean_of({seed: with_all(points)}, "dev", GROUP, MEASURES)}
    if not lines:
        lines.append(_line(macro.ITEMS, 0, points, 1))
    lines.append(_line(name, seed, points, 0) | facts)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    write_text(ledger, "".join(f"{json.dumps(line)}\n" for line in lines))
    print(ledger.stem, name, point, seed, facts["dev"], facts["cpu_seconds"], flush=True)


def _lines(ledger: Path) -> list[dict[str, Any]]:
    text = ledger.read_text("utf-8") if ledger.exists() else ""
    return [parse_json(line, f"{ledger}") for line in text.splitlines()]


def _line(method: str, seed: int, points: Mapping[str, Tensor], column: int) -> dict[str, Any]:
    found = {name: digits(table[:, column]) for name, table in points.items()}
    return {"model": "", "method": method, "seed": seed, "points": found}


def with_all(points: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Points with those of all kinds together."""
    splits = {name.split()[0] for name in points}
    alls = {f"{s} all": torch.stack([points[f"{s} {k}"] for k in KINDS]).sum(0) for s in splits}
    return {**points, **alls}


def _best(lines: Sequence[Mapping[str, Any]], arm: str) -> Point:
    """The point with the best mean group score on dev over the explored seeds."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["method"] == arm:
            found.setdefault(json.dumps(line["point"]), []).append(line["dev"])
    best: Point = json.loads(max(found, key=lambda point: sum(found[point])))
    return best


# --- the page -----------------------------------------------------------------------------------

PAGE = Path("results/methods.md")


def marks(name: str) -> tuple[str, str]:
    """Lines of the page around the tables of a study."""
    return f"<!-- {name} -->", f"<!-- {name} end -->"


def as_markdown(ledger: Path, study: Study) -> str:
    """The declared claims with their verdicts, then a table of each split."""
    trained = {arm: seeds for (_, arm), seeds in macro.read(ledger).items()}
    facts = {line["method"]: line for line in _lines(ledger)}
    parts = []
    for claim in study.claims:
        arm, base = trained.get(claim.arm, {}), trained.get(claim.base, {})
        told: dict[str, Any] = claim.to_dict() | {"state": "Not run yet"}
        if both := len(set(arm) & set(base)):
            spans = [macro.difference(arm, base, s, claim.measure, MEASURES) for s in SPLITS]
            whole = both == len(study.seeds)
            state = claim.state(spans) if whole else f"Open, {both} of {len(study.seeds)} seeds"
            told |= {"state": state, "found": spans, "seeds": both}
        parts.append(f"- {claim_sentence(told, (f'{claim.measure}, dev', 'test'))}")
    for split in SPLITS:
        rows = []
        for arm in (arm for arm in study.arms if arm in trained):
            seeds, base = trained[arm], trained[study.base]
            row = [arm, str(len(seeds)), f"{facts[arm]['steps']:,}", f"{facts[arm]['items']:,}"]
            for measure in MEASURES:
                mean = macro.mean_of(seeds, split, measure, MEASURES)
                change = macro.difference(seeds, base, split, measure, MEASURES)
                row.append(f"{mean:.2f}" if arm == study.base else span_text(change))
            rows.append(row)
        head = ["arm, " + split, "seeds", "steps", "items encoded", *MEASURES]
        parts += ["", *markdown(head, rows)]
    note = (
        f"Differences are from “{study.base}” on equal seeds, with 95 % intervals over seeds and "
        f"images ({RESAMPLES:,} resamples of both), not corrected for the number of columns. Kinds "
        "are group scores in percent, whose chance is 16.7; RSum is of own captions."
    )
    return "\n".join([*parts, "", note])


def write_page(docs: Path) -> None:
    """Write the tables of the published ledgers into their page.

    Raises:
        ValueError: there is no ledger, or the page has no place for a table.
    """
    for name, study in STUDIES.items():
        table = as_markdown(docs / f"evidence/{name}.jsonl", study)
        put_table(docs / PAGE, *marks(name), table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or publish; 0 when all went well, 2 when the input was at fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.both_ways", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    go = verbs.add_parser("run", help="train what the folder lacks")
    go.add_argument("folder", type=Path)
    go.add_argument("--data", default=SCENES)
    go.add_argument("--table", choices=[*STUDIES], default="both-ways")
    page = verbs.add_parser("page", help="write the tables of published ledgers into their page")
    page.add_argument("docs", type=Path, nargs="?", default=Path("docs"))
    given = parser.parse_args(arguments)
    try:
        if given.verb == "run":
            if not (given.folder / "bed").exists():
                write_bed(given.data, given.folder / "bed")
            run(given.folder, Bed(given.folder / "bed"), STUDIES[given.table])
        else:
            write_page(given.docs)
    except (ValueError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
