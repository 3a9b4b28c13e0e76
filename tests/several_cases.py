"""Two data sets of rendered pictures as people have them: of other kinds, with equal names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch

from counterfoil.data.scenes import scenes

COCO, MINE = {"train": 40, "val": 9}, {"train": 14, "test": 6}  # images; mine has no dev


def write_coco(folder: Path, **more: int) -> Path:
    """Scenes as COCO has them, called 0.png, 1.png, …, three captions each; `more` are splits."""
    sizes = {**COCO, **more}
    shown = scenes(images=sum(sizes.values()), seed=1, dev=0, test=0, size=32)
    (folder / "annotations").mkdir(parents=True)
    first = 0
    for split, count in sizes.items():
        images, notes = [], []
        (folder / f"{split}2017").mkdir()
        for row in range(first, first + count):
            shown.pictures.open(row).save(folder / f"{split}2017" / f"{row}.png")
            images.append({"id": row, "file_name": f"{row}.png"})
            notes += [
                {"id": text, "image_id": row, "caption": shown.texts[text]}
                for text in shown.relation.captions(torch.tensor([row]))[0][:3].tolist()
            ]
        content = {"images": images, "annotations": notes}
        (folder / "annotations" / f"captions_{split}2017.json").write_text(json.dumps(content))
        first += count
    return folder


def write_table(folder: Path) -> Path:
    """Other scenes as a table, in files of the same names, with two captions each."""
    shown = scenes(images=sum(MINE.values()), seed=2, dev=0, test=0, size=32)
    folder.mkdir()
    splits = [split for split, count in MINE.items() for _ in range(count)]
    with (folder / "mine.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split", "album"])
        for row, split in enumerate(splits):
            shown.pictures.open(row).save(folder / f"{row}.png")
            for text in shown.relation.captions(torch.tensor([row]))[0][:2].tolist():
                rows.writerow([f"{row}.png", shown.texts[text], split, "holiday"])
    return folder / "mine.csv"
