"""Make a data set from anything in memory, and one from a folder with captions.jsonl."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from PIL import Image

import counterfoil as cf
from counterfoil.data.dataset import DatasetEntry, build_dataset
from counterfoil.data.images import PictureFiles

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="the same; this example is always tiny")
parser.parse_args()
folder = Path(tempfile.mkdtemp())
colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
paths = [folder / f"{name}.png" for name in colours]
for path, colour in zip(paths, colours.values(), strict=True):
    Image.new("RGB", (32, 32), colour).save(path)

# in memory: any number of captions per image; images without a split are divided by their id
entries = [
    DatasetEntry(id=name, split="test", texts=(f"a {name} picture", f"all {name}"))
    for name in colours
]
data = build_dataset("colours", entries, where="memory", pictures=PictureFiles(paths))
print(data)
assert torch.equal(data.text_to_image, torch.tensor([0, 0, 1, 1, 2, 2]))

# on disk: one JSON object per picture
with (folder / "captions.jsonl").open("w") as file:
    for name in colours:
        line = {"image": f"{name}.png", "captions": [f"a {name} picture"], "split": "test"}
        file.write(json.dumps(line) + "\n")
print(cf.load_dataset(folder)["test"].texts)
