"""What the verbs print and write about saved models, and how today's answers are compared with it.

``tests/saved/`` holds small models and the snapshots; `python tests/saved_cases.py json|numbers`
writes one anew, for changes that are meant.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import smoke_recipe
from counterfoil.search.index import build_index
from recipes_cases import SMALL, SMALL_DRAW, SMALL_LISTS, recipe_of

SAVED = Path(__file__).parent / "saved"
OUTPUTS = SAVED / "outputs.json.gz"
NUMBERS = SAVED / "numbers.json"
MODELS = SAVED / "models"
SCENES = "scenes:images=36"
PHOTOS = "scenes:images=18,dev=3,test=6"
REGIONS = f"{SCENES},features=regions"
RENAMED = {  # fields of JSON: names of the snapshots, and those of today
    "desk": "inputs",
    "lens": "processor",
    "reader": "model_inputs",
    "sieve": "candidate_filter",
}
CIRCUMSTANCES = frozenset(
    {"provenance", "version", "spec", "matcher", "path", "artifact", "files", "checksum"}
)


def read(path: Path) -> Any:
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)


# JSON with floats


def differences(before: Any, now: Any, where: str = "", tolerance: float = 1e-5) -> Iterator[str]:
    """Where two JSON values differ; floats may differ by the tolerance, relative above 1."""
    if isinstance(before, bool) or isinstance(now, bool) or before is None or now is None:
        if before is not now:
            yield f"{where}: {now!r}, not {before!r}"
    elif isinstance(before, int | float) and isinstance(now, int | float):
        if not math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {now!r}, not {before!r}"
    elif isinstance(before, dict) and isinstance(now, dict):
        names = {RENAMED.get(key, key): key for key in before}
        for key in [*names, *(key for key in now if key not in names)]:
            if key not in names and "median_rank" in now and isinstance(now[key], float):
                continue  # one more metric, which the table of metrics has
            if key not in now or key not in names:
                yield f"{where}.{key}: {'missing' if key not in now else 'new'}"
            else:
                yield from differences(before[names[key]], now[key], f"{where}.{key}", tolerance)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}[{place}]", tolerance)
    elif before != now:
        yield f"{where}: {now!r}, not {before!r}"


# numbers of smoke recipes


def numbers(folder: Path) -> dict[str, Any]:
    """What short trainings of recipes measure on scenes, by recipe and stage."""
    uniter = ("*.model.layers=1", "*.model.width=16", "*.model.heads=2", "*.batch=8")
    made = {
        "aoq": (SCENES, [*SMALL[1::2], *SMALL_LISTS[1::2], *SMALL_DRAW[1::2]]),
        "online --model scan-t2i": (SCENES, SMALL[1::2]),
        "ndgl": (SCENES, SMALL[1::2]),
        "tags-dc": (REGIONS, uniter),
    }
    found: dict[str, Any] = {}
    for name, (data, settings) in made.items():
        place = folder / name.replace(" ", "-")
        recipe = smoke_recipe(apply_overrides(recipe_of(name), settings))
        assert run_pipeline(recipe, DataSource(data), place)
        found[name] = {
            path.parent.name: read(path) for path in sorted(place.rglob("evaluation.json"))
        }
    return found


def write_photos(folder: Path) -> None:
    """Scenes as a folder of pictures with captions."""
    scenes = load_dataset(PHOTOS)
    owners, splits = scenes.text_to_image.tolist(), scenes.splits
    assert scenes.pictures is not None
    assert splits is not None
    (folder / "images").mkdir(parents=True)
    with (folder / "captions.jsonl").open("w") as file:
        for row, name in enumerate(scenes.image_ids):
            place = f"images/{row:02}.png"
            scenes.pictures.open(row).save(folder / place)
            captions = [text for text, owner in zip(scenes.texts, owners) if owner == row]
            line = {"image": place, "id": name, "split": splits[row], "captions": captions}
            file.write(json.dumps(line) + "\n")


# what verbs write as JSON


def outputs(here: Path) -> dict[str, Any]:
    """JSON of the verbs, asked of saved models about scenes; `here` is an empty folder.

    Called in that folder, as paths of models are part of what is written.
    """
    shutil.copytree(MODELS, here, dirs_exist_ok=True)
    write_photos(here / "data")
    for model, name in (("vse", "index"), ("clip", "clip-index")):
        build_index(load_model(model), load_dataset(here / "data"), here / name).close()
    found: dict[str, Any] = {}

    def run(name: str, *words: object, out: str | None = None) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main([str(word) for word in words])
        assert code == 0, (name, words)
        if out is None:
            found[name] = json.loads(printed.getvalue())
            return
        text = (here / out).read_text(encoding="utf-8")
        whole = not out.endswith(".jsonl")
        found[name] = json.loads(text) if whole else [json.loads(one) for one in text.splitlines()]

    def asked(name: str, *words: object) -> None:
        run(name, *words, "--json", f"{name}.json", out=f"{name}.json")

    def analysed(name: str, *words: object) -> None:
        page = ("--output", f"{name}.html")
        run(name, "papers", "analyse", *words, "--data", REGIONS, *page, out=f"{name}.json")

    asked("evaluate-vse", "evaluate", "vse", "--data", SCENES)
    asked("evaluate-scan", "evaluate", "scan", "--data", REGIONS, "--split", "dev")
    asked("evaluate-ensemble", "evaluate", "vse+scan", "--data", REGIONS)
    first = ("--first", "vse", "--depth", 3, "--full")
    asked("evaluate-first", "evaluate", "scan", "--data", REGIONS, *first)
    few = ("--texts-per-image", 8, "--images-per-text", 4)
    manifest = "lists/manifest.json"
    run("mine", "mine", "scan", "--data", REGIONS, "--output", "lists", *few, out=manifest)
    for name in ("texts", "images", "text_scores", "image_scores"):
        found[f"mine-{name}"] = np.load(here / "lists" / f"{name}.npy").tolist()
    by_scan = ("--model", "scan", "--data", REGIONS)
    asked("diagnose", "diagnose", "lists", *by_scan, "--output", "diagnose.html")
    for name, query in (("search", "a red circle"), ("search-picture", "data/images/04.png")):
        run(name, "search", "index", query, "--top", 4, "--json")
    run("search-clip", "search", "clip-index", "a red circle and a square", "--top", 4, "--json")
    picture = "data/images/04.png"
    asked("explain-picture", "explain", "vse", picture, "a red circle above a square")
    image = ("scene-0-test-00000", "A red circle above a square.", "--data", REGIONS)
    asked("explain", "explain", "uniter", *image)
    lines = ("--json", "explain.jsonl")
    run("explain-all", "explain", "uniter", "--data", REGIONS, *lines, out="explain.jsonl")
    asked("foils", "foils", "vse", SCENES, "--split", "dev")
    suspects = ("--model", "scan", "--explainer", "uniter", "--negatives", "lists")
    run("audit", "audit", REGIONS, *suspects, "--output", "audit", out="audit/audit.json")
    analysed("online-rank", "online-rank", "scan")
    analysed("cross-rank", "cross-rank", "scan", "vse")
    analysed("margins", "margins", "scan", "vse")
    analysed("quantiles", "quantiles", "scan")
    written = (
        "papers",
        "write",
        "rules",
        SCENES,
        "--split",
        "test",
        "--output",
        "foils",
        "--set",
        "most=1",
    )
    run("write", *written, out="foils/manifest.json")
    foils = (here / "foils" / "foils.jsonl").read_text(encoding="utf-8").splitlines()
    found["write-foils"] = [json.loads(line) for line in foils]
    analysed("true-rate", "true-rate", "foils")
    analysed("words", "words", "uniter", "--anchors", 6, "--masks", 2, "--refills", 2)
    return _without_circumstances(found)


def _without_circumstances(value: Any) -> Any:
    """JSON without what says only who wrote it, when, where, and by which version."""
    if isinstance(value, list):
        return [_without_circumstances(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {key: inner for key, inner in value.items() if key not in CIRCUMSTANCES}
    return {key: _without_circumstances(inner) for key, inner in kept.items()}


def write(path: Path, value: Any) -> None:
    text = (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


if __name__ == "__main__":
    import os
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.environ["COUNTERFOIL_CACHE"] = f"{folder}/cache"
        torch.set_num_threads(1)
        match sys.argv[1]:
            case "json":
                here = Path(folder) / "here"
                here.mkdir()
                os.chdir(here)
                write(OUTPUTS, outputs(here))
            case "numbers":
                write(NUMBERS, numbers(Path(folder)))
