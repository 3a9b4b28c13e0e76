"""Small sets of foils in every published form, with their pictures."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path

import torch

from corpus_cases import write_picture
from counterfoil.data.scenes import scene, scenes
from counterfoil.data.scenes.truth import foils, is_true

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


@cache
def scene_items(many: int = 12) -> list[dict]:
    """Scenes with two captions, a foil, and another scene of which only the foil is true.

    Each has "picture", "other" (pictures), their names, "captions" (two), "foil" and "kind".
    """
    dataset = scenes(images=240).split("train")
    worlds = [scene(name) for name in dataset.image_ids]
    owners = dataset.text_to_image.tolist()
    rng = torch.Generator().manual_seed(0)
    found = []
    for row, world in enumerate(worlds):
        first, second = [t for t, own in zip(dataset.texts, owners) if own == row][:2]
        foil = foils(first, world, rng)[0]
        fits = (
            n
            for n, other in enumerate(worlds)
            if is_true(foil.caption, other) and not is_true(first, other)
        )
        other = next(fits, None)
        if other is None or first == second:
            continue
        found.append(
            {
                "picture": dataset.pictures.open(row),
                "other": dataset.pictures.open(other),
                "name": f"{row:012d}.jpg",
                "other_name": f"{other:012d}.jpg",
                "captions": [first, second],
                "foil": foil.caption,
                "kind": foil.kind,
            }
        )
        if len(found) == many:
            break
    return found


def saved(folder: Path, items) -> None:
    """The pictures of scenes in a folder, called as COCO's are."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for item in items:
        item["picture"].save(folder / "images" / item["name"], quality=95)
        item["other"].save(folder / "images" / item["other_name"], quality=95)


TWICE = ("replace_att", "swap_obj")  # of the five files of SugarCrepe++


def sugarcrepe_twice(folder: Path) -> Path:
    """SugarCrepe++ as its authors publish it: files with the names of SugarCrepe's."""
    items = scene_items()
    saved(folder, items)
    for place, category in enumerate(TWICE):
        rows = [
            {
                "id": n,
                "filename": item["name"],
                "caption": item["captions"][0],
                "caption2": item["captions"][1],
                "negative_caption": item["foil"],
            }
            for n, item in enumerate(items[place::2])
        ]
        dump(folder / f"{category}.json", rows)
    return folder


def both_ways_rows(picture: str, other: str) -> list[dict]:
    """BiVLC's rows, with what the items of scenes have under these names for pictures."""
    return [
        {
            "image": item[picture],
            "caption": item["captions"][0],
            "negative_caption": item["foil"],
            "negative_image": item[other],
            "type": ("replace", "swap", "add")[n % 3],
            "subtype": ("obj", "att")[n % 2],
        }
        for n, item in enumerate(scene_items())
    ]


def both_ways(folder: Path) -> Path:
    """BiVLC's fields, with pictures as files."""
    saved(folder, scene_items())
    return lines(folder / "test.jsonl", both_ways_rows("name", "other_name"))


def stored(path: Path, rows, *pictures: str) -> Path:
    """A parquet file of the hub, which holds the pictures."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_list(rows)
    for column in pictures:
        table = table.cast_column(column, datasets.Image())
    table.to_parquet(path)
    return path


def colour_swap(folder: Path) -> Path:
    items = scene_items()
    saved(folder, items)
    rows = [
        {
            "id": n,
            "caption_1": item["captions"][0],
            "caption_2": item["foil"],
            "image_1": f"images/{item['name']}",
            "image_2": f"images/{item['other_name']}",
            "image_source": "midjourney",
            "caption_source": "human",
        }
        for n, item in enumerate(items)
    ]
    return dump(folder / "test.json", rows)


def cola(folder: Path) -> Path:
    """Its pictures are called by their addresses."""
    items = scene_items()
    saved(folder, items)
    address = "https://example.org/array/data/vg_gqa_images/"
    rows = [
        [address + item["name"], item["captions"][0], address + item["other_name"], item["foil"]]
        for item in items
    ]
    return dump(folder / "COLA_multiobjects_matching_benchmark.json", rows)


def table(path: Path, rows) -> Path:
    """A table that pandas wrote, with a column of numbers that has no name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["", *rows[0]])
        writer.writeheader()
        writer.writerows({"": n, **row} for n, row in enumerate(rows))
    return path


NEGATED = "This image shows no {}."


def negbench(folder: Path) -> Path:
    items = scene_items()
    saved(folder, items)
    rows = []
    for n, item in enumerate(items):
        captions = [item["foil"], NEGATED.format(n), NEGATED.format("dog")]
        captions.insert(n % 4, item["captions"][0])
        rows.append(
            {"image_path": f"data/coco/{item['name']}"}
            | {f"caption_{place}": caption for place, caption in enumerate(captions)}
            | {"correct_answer": n % 4}
            | {"correct_answer_template": ("positive", "negative", "hybrid")[n % 3]}
        )
    return table(folder / "COCO_val_mcq_llama3.1_rephrased.csv", rows)


def crepe(folder: Path) -> Path:
    items = scene_items()
    saved(folder, items)
    rows = [
        {"image_id": int(item["name"][:12]), "caption": item["captions"][0]}
        | {"x": 1, "y": 2, "width": 20, "height": 30 + n}
        | {"valid_hard_negs_atom": str([item["foil"], "it's another"])}
        | {"valid_hard_negs_comp": str([item["foil"]] if n else [])}
        for n, item in enumerate(items)
    ]
    return table(folder / "syst_vg_hard_negs_seen_compounds_in_cc12m.csv", rows)


def checklist(folder: Path) -> Path:
    items = scene_items()
    saved(folder, items)
    rows = [
        [f"VG_100K/{item['name']}", {"POS": item["captions"][:1], "NEG": [item["foil"]]}]
        for item in items
    ]
    return dump(folder / "vg" / "color.json", rows)


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
    "sugarcrepe++": sugarcrepe_twice,
    "bivlc": both_ways,
    "colorswap": colour_swap,
    "cola": cola,
    "negbench": negbench,
    "crepe": crepe,
    "vl-checklist": checklist,
    "aro-relation": aro,
    "aro-attribution": lambda folder: aro(folder, "attribution", 26),
    "order": order,
    "valse": valse,
    "vsr": vsr,
    "winoground": winoground,
    "pairs": negclip,
}
