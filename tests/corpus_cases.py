"""Small data sets for the tests of the corpus."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small_corpus(
    counts: Sequence[int] = (2, 0, 1, 3),
    splits: Sequence[str] | None = None,
    *,
    regions: int = 3,
    width: int = 4,
) -> ImageTextDataset:
    """Images "a0", "a1", ... with so many captions each, and random features."""
    images = len(counts)
    text_to_image = torch.arange(images).repeat_interleave(torch.tensor(counts))
    places = [n for count in counts for n in range(count)]
    return ImageTextDataset(
        name="small",
        image_ids=[f"a{row}" for row in range(images)],
        text_ids=[f"a{image}#{n}" for image, n in zip(text_to_image.tolist(), places)],
        texts=[f"a {n} dog of picture {image}" for image, n in zip(text_to_image.tolist(), places)],
        text_to_image=text_to_image,
        splits=list(splits or ["train"] * images),
        features=FeatureArray.of(random_array(images, regions, width)),
    )


def captions_by_image(dataset: ImageTextDataset) -> dict[str, list[str]]:
    """What a reader promises: captions of each image, in order."""
    found: dict[str, list[str]] = {name: [] for name in dataset.image_ids}
    for text, image in zip(dataset.texts, dataset.text_to_image.tolist()):
        if image >= 0:
            found[dataset.image_ids[image]].append(text)
    return found


def splits_by_image(dataset: ImageTextDataset) -> dict[str, str]:
    return dict(zip(dataset.image_ids, dataset.splits))


def features_of_all(dataset: ImageTextDataset) -> torch.Tensor:
    return dataset.features.take(torch.arange(len(dataset))).values


def write_picture(path: Path, seed: int = 0, size: tuple[int, int] = (12, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def write_pictures(folder: Path, seeds: Sequence[int]) -> list[Path]:
    """Files "0.png", "1.png", ... with the noise of each seed."""
    paths = [folder / f"{row}.png" for row in range(len(seeds))]
    for path, seed in zip(paths, seeds, strict=True):
        write_picture(path, seed)
    return paths


def karpathy_image(name: str, split: str, captions: Sequence[str], first: int = 0, **more) -> dict:
    sentences = [
        {"raw": text, "tokens": text.split(), "imgid": 0, "sentid": first + n}
        for n, text in enumerate(captions)
    ]
    return {"filename": name, "split": split, "sentences": sentences, "imgid": 0, **more}


def write_karpathy(folder: Path, images: Sequence[dict], *, pictures: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dataset_toy.json"
    path.write_text(json.dumps({"images": list(images), "dataset": "toy"}), encoding="utf-8")
    if pictures:
        for row, image in enumerate(images):
            write_picture(folder / "images" / image.get("filepath", "") / image["filename"], row)
    return path


def write_split(
    folder: Path, split: str, values: np.ndarray, captions: Sequence[str], ids: Sequence[str] = ()
) -> None:
    """A split of a precomp folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{split}_ims.npy", values)
    (folder / f"{split}_caps.txt").write_text("".join(f"{c}\n" for c in captions), "utf-8")
    if ids:
        (folder / f"{split}_ids.txt").write_text("".join(f"{i}\n" for i in ids), "utf-8")


def write_features(folder: Path, ids: Sequence[str], features: FeatureArray) -> None:
    """A feature folder, in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "features.npy", features.take(torch.arange(len(features))).values.numpy())
    for name in ("lengths", "boxes", "classes"):
        if (part := getattr(features, name)) is not None:
            np.save(folder / f"{name}.npy", part[features.rows.numpy()])
    (folder / "features.json").write_text(json.dumps({"ids": list(ids)}))


def write_folder(dataset: ImageTextDataset, folder: Path) -> None:
    """Images as PNG files and captions as ``captions.jsonl``."""
    (folder / "images").mkdir(parents=True)
    lines, width = [], len(str(len(dataset)))
    for row, name in enumerate(dataset.image_ids):
        file = f"images/{row:0{width}}.png"
        dataset.pictures.open(row).save(folder / file)
        texts, _ = dataset.relation.captions(torch.tensor([row]))
        captions = [dataset.texts[text] for text in texts.tolist()]
        plain = {"image": file, "id": name, "split": dataset.splits[row], "captions": captions}
        lines.append(json.dumps(plain) + "\n")
    (folder / "captions.jsonl").write_text("".join(lines))


def write_shard(path, members, *, mode="w"):
    """A tar file of text, bytes, or pictures, given by their number, by name or as pairs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in members.items() if isinstance(members, dict) else members:
            if isinstance(content, int):
                write_picture(path.parent / "picture.jpg", content)
                content = (path.parent / "picture.jpg").read_bytes()
                (path.parent / "picture.jpg").unlink()
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
