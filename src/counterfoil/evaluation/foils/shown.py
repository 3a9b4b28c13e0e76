"""Foils of rendered scenes in both directions: each has a picture of its own.

``write_shown_foils(data, Path("foils"))`` writes a set in the form of BiVLC, which
``counterfoil foils`` measures.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from counterfoil.core.console import progress
from counterfoil.core.io import atomic_folder, ensure_absent, ensure_writable_folder
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FEATURES, FeaturesManifest
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.render import draw
from counterfoil.data.scenes.shown import foil_scene
from counterfoil.data.scenes.truth import foils_by_kind
from counterfoil.data.scenes.world import Scene, region_features

ROWS, PICTURES, REGIONS = "foils.jsonl", "images", "features"  # of the folder


def write_shown_foils(
    dataset: ImageTextDataset, folder: Path, *, seed: int = 0, most: int | None = None
) -> tuple[Counter[str], Counter[str]]:
    """Write foils of captions of rendered scenes, each with a picture of which it alone is true.

    The first foil of each kind of a caption, as in `counterfoil.evaluation.foils.sets`; the folder
    holds a line for each in ``foils.jsonl``, with "image", "caption", "negative_image",
    "negative_caption" and "type", and the pictures in ``images/``, as large as those of the scenes.
    Region features, if the scenes have them, are in ``features/``. The same on every machine.

    Args:
        dataset: a split of scenes.
        folder: a new folder.
        seed: of the choice of foils.
        most: foils of a caption, of kinds drawn at random; None for one of each kind.

    Returns:
        Foils by kind, those written and those left out since no such picture was found.

    Raises:
        ValueError: the folder exists, an image is no rendered scene, or no foil is written.
    """
    ensure_absent(folder, "a new folder with --output")
    ensure_writable_folder(folder)
    scenes, owners = graphs(dataset), dataset.text_to_image.tolist()
    assert dataset.pictures is not None, "scenes are drawn"
    size = dataset.pictures.open(0).size[0]
    rng = torch.Generator().manual_seed(seed)
    written, left_out = Counter[str](), Counter[str]()
    shown: dict[str, Scene] = {}
    with (
        atomic_folder(folder) as temporary,
        progress("captions shown", len(dataset.texts)) as advance,
    ):
        (temporary / PICTURES).mkdir()

        def picture(scene: Scene) -> str:
            name = f"{scene.id}.png"
            if scene.id not in shown:
                shown[scene.id] = scene
                draw(scene, size).save(temporary / PICTURES / name)
            return name

        with (temporary / ROWS).open("w", encoding="utf-8") as file:
            for caption, owner in zip(dataset.texts, owners, strict=True):
                kinds = list(foils_by_kind(caption, scenes[owner], rng))
                for place in torch.randperm(len(kinds), generator=rng)[:most].tolist():
                    foil = kinds[place]
                    other = foil_scene(caption, foil.caption, scenes[owner])
                    (left_out if other is None else written)[foil.kind] += 1
                    if other is not None:
                        line = {
                            "image": picture(scenes[owner]),
                            "caption": caption,
                            "negative_image": picture(other),
                            "negative_caption": foil.caption,
                            "type": foil.kind,
                        }
                        file.write(json.dumps(line) + "\n")
                advance(1)
        if not written:
            raise ValueError(
                f"no caption of {dataset.name} {dataset.split_name} has a foil that can be shown"
            )
        if dataset.features is not None:
            _write_regions(temporary / REGIONS, list(shown.values()))
    return written, left_out


def _write_regions(folder: Path, scenes: list[Scene]) -> None:
    """Write region features of scenes, by the names of their pictures."""
    features = region_features(scenes)
    parts = {"features": features.values, "lengths": features.lengths, "boxes": features.boxes}
    arrays = {f"{name}.npy": np.asarray(part) for name, part in parts.items()}
    ids = [f"{scene.id}.png" for scene in scenes]
    FEATURES.save(folder, FeaturesManifest(ids=ids, kind="float32", model="scenes"), arrays)
