"""Do the maps of words lie on what the words name? The pointing rate on scenes, against chance.

``python -m benchmarks.pointing run FOLDER`` trains a small FILIP on pixels and a SCAN on regions
for each seed and measures their maps on dev and test; a line of JSON for each is appended to the
ledger, and what is there is not run again. ``python -m benchmarks.pointing table`` writes the table
of the ledger into its page.

A noun counts where its phrase describes exactly one thing of the scene. It points rightly if the
middle of its best place lies in the box of that thing. *Chance* is the share of all places whose
middles lie there; *another noun* is where the other nouns of the same caption point, which name
other things: a map that finds things, but not words, is as good for them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pages import put_table
from counterfoil.core.config import Config, config, lazy
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import Box
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.grammar import parse
from counterfoil.data.scenes.world import Scene, Thing
from counterfoil.data.tokenizers import word_spans
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.read_image import read_image
from counterfoil.evaluation.similarity_maps import SimilarityMaps, maps_of
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model, load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.filip import FILIP
from counterfoil.models.layers.towers import GRU, PatchTower, Regions
from counterfoil.papers.models.scan import SCAN
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.trainer import Trainer

LEDGER = Path("docs/evidence/pointing.jsonl")
PAGE, START, END = Path("docs/results/explain.md"), "<!-- pointing -->", "<!-- end of pointing -->"
SCENES = "scenes:images=2200,dev=300,test=700,features=regions"
SPLITS = ("dev", "test")
SEEDS = (2, 3, 4, 5, 6)  # confirm; 0 chose the lengths of training by dev RSum
CAPTIONS = 3  # of a picture, the shortest
WIDTH, SIZE, PATCH = 128, 64, 8
EPOCHS = {"FILIP": 6, "SCAN": 3}
TITLES = {
    "FILIP": "FILIP, 8 × 8 patches: similarity",
    "SCAN": "SCAN t-i, regions: attention",
    "SCAN similarity": "SCAN t-i, regions: similarity",
}
CLAIMS = tuple(  # declared before the seeds were trained
    (model, base, f"Nouns of {model} point to what they name more often than {title}.")
    for model in ("FILIP", "SCAN")
    for base, title in (("chance", "a random place does"), ("other", "another noun does"))
)
RESAMPLES = 2000
HEAD = ("points to it", "chance", "another noun", "reachable")
RATES = (("chance", "nouns"), ("other", "pairs"), ("reachable", "nouns"))
FOUND = ("hits", "paired", "other")
Kind = Literal["FILIP", "SCAN"]
Array = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Noun:
    """A noun that names one thing."""

    start: int  # its first character in the caption
    box: Box


def nouns(caption: str, scene: Scene) -> list[Noun]:
    """The nouns of a caption whose phrase describes exactly one thing of the scene.

    >>> from counterfoil.data.scenes.world import Thing
    >>> one = Thing("circle", "red", "big", "plain", 300, 800, 160)
    >>> nouns("A circle and a thing.", Scene("an example", (one, one)))
    []
    >>> nouns("A circle.", Scene("an example", (one,)))
    [Noun(start=2, box=(0.14, 0.64, 0.46, 0.96))]
    """
    parsed, found, spans = parse(caption), list[Noun](), word_spans(caption)
    assert parsed is not None
    for span in parsed.of("object"):
        phrase = parsed.form.phrases[span.place]
        fitting = [thing for thing in scene.things if phrase.fits(thing)]
        if phrase.shape is not None and phrase.count is None and len(fitting) == 1:
            found.append(Noun(spans[span.start][0], box_of(fitting[0])))
    return found


def box_of(thing: Thing) -> Box:
    """The box of a thing as fractions of the picture."""
    x, y, r = thing.x, thing.y, thing.radius
    left, top, right, bottom = (side / 1000 for side in (x - r, y - r, x + r, y + r))
    return left, top, right, bottom


def within(place: Box, box: Box) -> bool:
    """Whether the middle of a place lies in a box."""
    x, y = (place[0] + place[2]) / 2, (place[1] + place[3]) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


COUNTS = ("nouns", "hits", "chance", "reachable", "pairs", "paired", "other")
FIXED = ("nouns", "chance", "reachable", "pairs")  # equal for all models on the same places
Counts = dict[str, Array]  # of each picture, by name


def pointed(maps: SimilarityMaps, named: Sequence[Noun]) -> Mapping[str, float]:
    """Of the nouns of a caption: how many, their hits, and what the controls would hit.

    ``reachable`` are nouns whose box holds the middle of any place; ``pairs`` those beside a noun
    of another thing, of which ``paired`` hit, and in whose box ``other`` of those nouns point.
    """
    assert maps.boxes is not None
    boxes, best = maps.boxes, {word.start: word.best for word in maps.words}
    counts = dict.fromkeys(COUNTS, 0.0)
    for place, noun in enumerate(named):
        inside = [within(box, noun.box) for box in boxes]
        hit = float(inside[best[noun.start]])
        counts["nouns"] += 1
        counts["hits"] += hit
        counts["chance"] += sum(inside) / len(inside)
        counts["reachable"] += any(inside)
        after = [*named[place + 1 :], *named[:place]]
        other = next((one for one in after if one.box != noun.box), None)
        if other is not None:
            counts["pairs"] += 1
            counts["paired"] += hit
            counts["other"] += inside[best[other.start]]
    return counts


def measure(model: Model, part: ImageTextDataset) -> Counts:
    """The counts of each picture."""
    scenes, found = graphs(part), {name: np.zeros(len(part)) for name in COUNTS}
    for row, image in enumerate(part.image_ids):
        texts = (part.text_to_image == row).nonzero().squeeze(1)[:CAPTIONS].tolist()
        captions = [part.texts[text] for text in texts]
        mapped = maps_of(model, read_image(model, image, part), captions)
        for caption, maps in zip(captions, mapped, strict=True):
            for name, count in pointed(maps, nouns(caption, scenes[row])).items():
                found[name][row] += count
    return found


def similarity_of(model: Model) -> Model:
    """The towers of a SCAN, whose maps are then the similarities below the attention."""
    network = model.model
    assert isinstance(network, SCAN)
    return Model(FILIP(image=network.image, text=network.text), model.processor, "similarity")


def train(kind: Kind, data: ImageTextDataset, folder: Path, seed: int) -> Model:
    """Train a small model on scenes, the last epoch kept."""
    torch.manual_seed(seed)
    images: Literal["pixels", "features"] = "pixels" if kind == "FILIP" else "features"
    processor = ProcessorConfig(images=images, size=SIZE).fit(data["train"])
    assert processor.tokenizer is not None
    text = lazy(GRU, words=processor.tokenizer.size, word_width=WIDTH, width=WIDTH)
    spec: Config[RetrievalModel]
    if kind == "FILIP":
        tower = lazy(PatchTower, size=SIZE, patch=PATCH, width=WIDTH, channels=16, depth=1)
        spec = config(FILIP, image=tower, text=text, direction="t2i")
    else:
        assert data["train"].features is not None
        regions = lazy(Regions, features=data["train"].features.width, width=WIDTH)
        spec = config(SCAN, image=regions, text=text)
    return Trainer(
        Model(spec.build(), processor, kind, spec),
        loss=InfoNCELoss(temperature=0.07),
        train=data["train"],
        output=folder,
        config=TrainConfig(
            epochs=EPOCHS[kind],
            batch=64,
            seed=seed,
            optimiser=OptimizerConfig(rule="adamw", rate=2e-3),
            schedule=CosineLR(warmup=50),
        ),
    ).train()


# The ledger.


def run(folder: Path, ledger: Path, seeds: Sequence[int] = SEEDS, scenes: str = SCENES) -> None:
    """Train and measure what the ledger lacks."""
    data = load_dataset(scenes)
    done = {(line["model"], line["seed"]) for line in read(ledger)}
    for seed in seeds:
        for kind in ("SCAN", "FILIP"):
            if (kind, seed) in done:
                continue
            trained = folder / f"{kind}-{seed}"
            stored = (trained / "model").exists()
            model = load_model(str(trained)) if stored else train(kind, data, trained, seed)
            maps: dict[str, Model] = {kind: model}
            if kind == "SCAN":
                maps["SCAN similarity"] = similarity_of(model)
            lines = []
            for name, mapped in maps.items():
                counts = {split: measure(mapped, data[split]) for split in SPLITS}
                if name == kind and (name, -1) not in done:
                    lines.append(line_of(name, -1, counts, FIXED))
                    done.add((name, -1))
                lines.append(line_of(name, seed, counts, FOUND))
                if name == kind:
                    lines[-1]["rsum"] = {split: rsum(model, data[split]) for split in SPLITS}
            with ledger.open("a", encoding="utf-8") as stream:
                stream.writelines(f"{json.dumps(line)}\n" for line in lines)


def rsum(model: Model, part: ImageTextDataset) -> float:
    """RSum of a model on a split."""
    return round(float(evaluate_protocol([model.embed(part)], part).rsum), 1)


def line_of(
    name: str, seed: int, counts: Mapping[str, Counts], columns: Sequence[str]
) -> dict[str, object]:
    """A line of the ledger: digits of each picture, and chance as thousandths."""
    stored = {
        f"{split} {column}": [round(1000 * value) for value in found[column]]
        if column == "chance"
        else "".join(str(int(value)) for value in found[column])
        for split, found in counts.items()
        for column in columns
    }
    return {"model": name, "seed": seed, **stored}


def read(ledger: Path) -> list[dict[str, Any]]:
    """The lines of a ledger; none where there is none. Those of seed -1 hold for all seeds."""
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]


def shares(lines: Sequence[Mapping[str, Any]], name: str, split: str) -> dict[str, Array]:
    """(S, I) counts of a model by seed and picture; those of all seeds are repeated."""
    own = [line for line in lines if line["model"] == name and line["seed"] >= 0]
    places = name.partition(" ")[0]  # of which it shares the places
    (fixed,) = (line for line in lines if line["model"] == places and line["seed"] < 0)
    found = {column: _digits([line[f"{split} {column}"] for line in own]) for column in FOUND}
    for column in FIXED:
        value = fixed[f"{split} {column}"]
        row = np.array(value) / 1000 if column == "chance" else _digits([value])[0]
        found[column] = np.broadcast_to(row, (len(own), len(row)))
    return found


def _digits(rows: Sequence[str]) -> Array:
    return np.array([[int(digit) for digit in row] for row in rows], float)


Interval = tuple[float, float, float]  # percent, and the ends of its 95 % interval


def interval(gain: Array, of: Array) -> Interval:
    """The ratio of sums of (S, I) counts in percent, over resampled seeds and pictures."""
    rng = np.random.default_rng(0)
    # how often each seed, and each picture, is drawn: (D, S) and (D, I)
    seeds, pictures = (
        rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(float)
        for size in gain.shape
    )
    above, below = (((seeds @ counts) * pictures).sum(1) for counts in (gain, of))
    low, high = np.quantile(100 * above / below, (0.025, 0.975))
    return share(gain, of), float(low), float(high)


def share(gain: Array, of: Array) -> float:
    """The ratio of sums in percent."""
    return float(100 * gain.sum() / of.sum())


def contrast(found: Mapping[str, Array], base: str) -> Interval:
    """The pointing rate less that of a control, of the same nouns."""
    if base == "chance":
        return interval(found["hits"] - found["chance"], found["nouns"])
    return interval(found["paired"] - found["other"], found["pairs"])


def verdict(*differences: Interval) -> str:
    """Confirmed or refuted where the intervals of all splits lie on one side of 0; else open."""
    if all(low > 0 for _, low, _ in differences):
        return "Confirmed"
    return "Refuted" if all(high < 0 for *_, high in differences) else "Open"


def table(ledger: Path = LEDGER) -> str:
    """The claims with their verdicts, and the rates."""
    lines, said = read(ledger), list[str]()
    for name, base, claim in CLAIMS:
        found = {split: contrast(shares(lines, name, split), base) for split in SPLITS}
        told = ", ".join(f"{split} {_signed(found[split])}" for split in SPLITS)
        said.append(f"- **{verdict(*found.values())}**: {claim} {told} points.")
    columns = [f"{split}: {what}" for split in SPLITS for what in HEAD]
    rows = ["| maps | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name, title in TITLES.items():
        cells = []
        for split in SPLITS:
            counts = shares(lines, name, split)
            rate, low, high = interval(counts["hits"], counts["nouns"])
            cells.append(f"{rate:.1f} ({low:.1f} to {high:.1f})")
            cells += [f"{share(counts[one], counts[of]):.1f}" for one, of in RATES]
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join([*said, "", *rows])


def _signed(difference: Interval) -> str:
    mean, low, high = difference
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Run the trainings, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--ledger", type=Path, default=LEDGER)
    verbs.add_parser("table")
    given = parser.parse_args()
    if given.verb == "run":
        run(given.folder, given.ledger)
    else:
        put_table(PAGE, START, END, table())


if __name__ == "__main__":
    main()
