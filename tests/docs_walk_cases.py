"""What the commands of the documentation read: photos, public models, foil sets and runs, small."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import explain_cases
import foil_cases
import hub_cases
import recipes_cases
import sentence_cases
import sentence_transformer_cases
from counterfoil.data.readers import load_dataset

DATA = os.environ.get("COUNTERFOIL_DATA")
PHOTOS, KARPATHY = 160, {"train": 60, "val": 20, "test": 20}
FOLDERS = {"my-photos": PHOTOS, "photos": 30, "more-photos": 80, "trip": 10, "new": 3}
NAMED = ("beach.jpg", "snow.jpg", "photo.jpg")
CLIP = "openai/clip-vit-base-patch32"
# what other pages leave behind, in this order: path, and the command that makes it
MADE = {
    "flickr8k_regions": "features flickr8k/ flickr8k_regions/ --model google/vit-base-patch16-224",
    "features": "features my-photos/ features/ --model google/vit-base-patch16-224",
    "runs/demo": "run demo --smoke --output runs/demo",
    "runs/mine": f"train contrastive --model {CLIP} --tune frozen --data my-photos/ --epochs 1 "
    "--output runs/mine",
    "runs/scan": "train scan-t2i --data flickr8k/:features=flickr8k_regions/ --epochs 1 "
    "--output runs/scan",
    "runs/vsepp": "train vsepp --data flickr8k/:features=flickr8k_regions/ --epochs 1 "
    "--output runs/vsepp",
    "lists": f"mine {CLIP} --data my-photos/ --output lists/ --texts-per-image 100 "
    "--images-per-text 20",
    "generated": "papers write rules my-photos/ --output generated/",
    "my-index": "index runs/mine/tuned my-photos/ --output my-index/",
}
# and what only one page needs
RUNS = {
    "ndgl": 60,
    "ndgl --model vsrn": 60,
    "ndgl --model chan --compare teachers": 60,
    "ndgl --model chan --compare batches": 60,
    "cascade": 150,
    "tags --way static": 60,
}
BEFORE = {
    "docs/analyses.md": [
        f"run {recipe} --data scenes:images={images},features=regions --smoke"
        for recipe, images in RUNS.items()
    ]
}


def write_all(folder: Path) -> None:
    """Write photos (Flickr8k's, or rendered ones), data sets and models; of `MADE` nothing."""
    pairs = _pictures(sum(FOLDERS.values()) + sum(KARPATHY.values()))
    for name, count in FOLDERS.items():
        (folder / name).mkdir()
        lines = []
        for row in range(count):
            file, captions, picture = next(pairs)
            if name == "my-photos" and row < len(NAMED):
                file = NAMED[row]
            picture.save(folder / name / file)
            line = {"image": file, "captions": captions}
            if name == "my-photos":
                line |= {"album": ("holiday", "work")[row % 2], "year": 2018 + row % 5}
                line |= {"camera": f"canon {row % 3}"}
            lines.append(json.dumps(line) + "\n")
        (folder / name / "captions.jsonl").write_text("".join(lines))
    for new, name in zip(sorted((folder / "new").glob("*.jpg")), NAMED):
        new.rename(folder / name)
    _write_karpathy(folder / "flickr8k", pairs)
    for name in ("f30k_precomp", "flickr8k_precomp"):
        _write_precomp(folder / name, folder / "flickr8k" / "dataset_flickr8k.json")
    _write_models(folder)
    _write_foils(folder)
    (folder / "embeddings").mkdir()
    draw = np.random.default_rng(0)
    np.save(folder / "embeddings" / "images.npy", draw.normal(size=(5000, 8)).astype("f4"))
    np.save(folder / "embeddings" / "texts.npy", draw.normal(size=(25000, 8)).astype("f4"))
    (folder / "captions.txt").write_text("a dog in the snow\na red circle\n" * 20)


def _pictures(count: int) -> Iterator[tuple[str, list[str], Image.Image]]:
    """Yield name, captions and picture of so many photos."""
    if DATA:
        root = Path(DATA) / "flickr8k"
        images = json.loads((root / "dataset_flickr8k.json").read_text())["images"]
        for image in random.Random(0).sample(images, count):
            with Image.open(root / "images" / image["filename"]) as picture:
                yield image["filename"], [s["raw"] for s in image["sentences"]], picture
        return
    dataset = load_dataset(f"scenes:images={count}")
    for row in range(count):
        own = [t for t, image in zip(dataset.texts, dataset.text_to_image.tolist()) if image == row]
        yield f"{row}.jpg", own, dataset.pictures.open(row).resize((96, 96))


def _write_karpathy(folder: Path, pairs: Iterator[tuple[str, list[str], Image.Image]]) -> None:
    (folder / "images").mkdir(parents=True)
    images = []
    for split, count in KARPATHY.items():
        for file, captions, picture in (next(pairs) for _ in range(count)):
            picture.save(folder / "images" / file)
            sentences = [{"raw": text, "tokens": text.split()} for text in captions]
            images.append({"filename": file, "split": split, "sentences": sentences})
    (folder / "dataset_flickr8k.json").write_text(
        json.dumps({"images": images, "dataset": "flickr8k"})
    )


def _write_precomp(folder: Path, dataset: Path) -> None:
    """Random regions of the images of a data set."""
    folder.mkdir()
    images = json.loads(dataset.read_text())["images"]
    for split, count in KARPATHY.items():
        regions = np.random.default_rng(0).normal(size=(count, 36, 8))
        np.save(folder / f"{split.replace('val', 'dev')}_ims.npy", regions.astype("f4"))
        captions = [
            s["raw"] for image in images if image["split"] == split for s in image["sentences"]
        ]
        (folder / f"{split.replace('val', 'dev')}_caps.txt").write_text("\n".join(captions) + "\n")


def _write_models(folder: Path) -> None:
    """Tiny random models where the public names lead offline."""
    for name in (
        "openai",
        "google",
        "PekingU",
        "Salesforce",
        "dandelin",
        "runs/tags",
        "runs/tags-dc",
    ):
        (folder / name).mkdir(parents=True)
    recipes_cases.clip_like(folder / CLIP)
    recipes_cases.clip_like(folder / "google" / "siglip2-base-patch16-224", "siglip")
    recipes_cases.blip_like(folder / "Salesforce" / "blip-itm-base-coco")
    recipes_cases.blip_like(folder / "runs" / "tags" / "vilt")
    for vilt in ("my-vilt", "dandelin/vilt-b32-mlm"):
        recipes_cases.vilt_like(folder / vilt)
    words = ["a", "dog", "in", "the", "snow"]
    hub_cases.rt_detr(folder / "PekingU" / "rtdetr_r50vd", queries=36)
    sentence_cases.encoder(folder / "all-MiniLM-L6-v2", words)
    hub_cases.gpt2(folder / "gpt2", words, positions=48)
    embedder = sentence_transformer_cases.dense(folder / "made", words, "llava")
    embedder.rename(folder / "my-embedder")
    judge = sentence_transformer_cases.judge(folder / "made", words)
    judge.rename(folder / "my-cross-encoder")
    vit = folder / "google" / "vit-base-patch16-224"
    hub_cases.vit(vit)
    size = {"height": 16, "width": 16}
    hub_cases.processor(
        vit, size=size, image_processor_type="ViTImageProcessor", **recipes_cases.CLIP_MEAN
    )
    hub_cases.mobilenet(folder / "google" / "mobilenet_v2_1.0_224")
    for uniter in ("tags-dc/uniter-scenes/tags-dc", "uniter/tags", "uniter/hard"):
        explain_cases.saved(folder / "runs" / uniter)


def _write_foils(folder: Path) -> None:
    foil_cases.sugarcrepe(folder / "sugarcrepe" / "data")
    foil_cases.pictures(folder / "coco" / "val2017")
    foil_cases.aro(folder / "aro").rename(folder / "visual_genome_relation.json")
    foil_cases.pictures(folder / "aro" / "images")
    foil_cases.winoground(folder / "winoground")
