"""Small sets of foils in every published form, with their pictures."""

from __future__ import annotations

import json
from pathlib import Path

from corpus_cases import write_picture

COCO = ("000000000009.jpg", "000000000025.jpg", "000000000030.jpg")
CATEGORIES = ("replace_obj", "swap_att", "add_obj", "add_att")


def pictures(folder: Path, names=COCO) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        write_picture(folder / name, seed=seed)
    return folder


def dump(path: Path, plain: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain))
    return path


def lines(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sugarcrepe(folder: Path) -> Path:
    for place, category in enumerate(CATEGORIES):
        rows = {
            str(2 * n): {
                "filename": COCO[n],
                "caption": f"a red dog {n} in the snow",
                "negative_caption": f"a blue dog {n} of {category} {place}",
            }
            for n in range(3)
        }
        dump(folder / f"{category}.json", rows)
    pictures(folder / "images")
    return folder


def aro(folder: Path, kind: str = "relation", many: int = 3, relation: str = "on") -> Path:
    extra = {"relation_name": relation} if kind == "relation" else {"attributes": ["red", "big"]}
    rows = [
        {
            "image_id": n,
            "image_path": COCO[n % 3],
            "true_caption": "the dog is in the snow",
            "false_caption": "the snow is in the dog",
            "bbox_x": n,
            "bbox_y": 1,
            "bbox_w": 4,
            "bbox_h": 5,
            **extra,
        }
        for n in range(many)
    ]
    pictures(folder / "images")
    name = "relation" if kind == "relation" else "attribution"
    return dump(folder / f"visual_genome_{name}.json", rows)


def order(folder: Path) -> Path:
    told = ["a dog in the snow", "a snow in the dog", "in a the snow dog", "dog a in the snow"]
    pictures(folder / "images")
    return dump(folder / "order.json", [{"image": COCO[0], "caption_options": told}])


def valse(folder: Path) -> Path:
    for piece in ("plurals", "foil-it"):
        rows = {
            f"{piece}_{n}": {
                "image_file": COCO[n],
                "caption": f"a dog {piece} {n}",
                "foil": f"a red circle {piece} {n}",
                "mturk": {"caption": 3 - n, "foil": n, "other": 0},
            }
            for n in range(3)
        }
        dump(folder / f"{piece}.json", rows)
    pictures(folder / "images")
    return folder


def vsr(folder: Path) -> Path:
    pictures(folder / "images")
    rows = [
        {"image": COCO[n % 3], "caption": f"a dog {n} in", "label": n % 2, "relation": "in"}
        for n in range(6)
    ]
    return lines(folder / "test.jsonl", rows)


def winoground(folder: Path, many: int = 3) -> Path:
    rows = [
        {
            "id": n,
            "image_0": f"ex_{n}_img_0",
            "image_1": f"ex_{n}_img_1",
            "caption_0": f"a dog in the snow {n}",
            "caption_1": f"the snow in a dog {n}",
            "collapsed_tag": "Object" if n else "Relation",
        }
        for n in range(many)
    ]
    names = [f"ex_{n}_img_{side}.png" for n in range(many) for side in range(2)]
    pictures(folder / "images", names)
    return lines(folder / "examples.jsonl", rows)


def negclip(folder: Path) -> Path:
    pictures(folder / "images")
    path = folder / "valid_neg_clip.tsv"
    path.write_text(
        "\ttitle\tfilepath\tneg_caption\tneg_image\n"
        f"0\tA dog in the snow.\tcoco/{COCO[0]}\t['A snow in the dog .', \"The dog's\"]\t[1]\n"
        f"1\tA circle.\tcoco/{COCO[1]}\t[]\t[0]\n"
    )
    return path


WRITERS = {
    "sugarcrepe": sugarcrepe,
    "aro-relation": aro,
    "aro-attribution": lambda folder: aro(folder, "attribution", 26),
    "order": order,
    "valse": valse,
    "vsr": vsr,
    "winoground": winoground,
    "pairs": negclip,
}
