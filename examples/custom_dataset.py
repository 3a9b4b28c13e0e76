"""Make a data set from what is in memory: pairs, a table, arrays; and from a folder."""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--smoke", action="store_true", help="the same; this example is always tiny")
parser.parse_args()
folder = Path(tempfile.mkdtemp())
colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
paths = {name: folder / f"{name}.png" for name in colours}
for name, path in paths.items():
    Image.new("RGB", (32, 32), colours[name]).save(path)

# pairs: any number of captions a picture, which is a path, a PIL image, bytes or an array; images
# are divided by a hash of their ids, or at random with a seed
pairs = [(path, text) for name, path in paths.items() for text in (f"a {name} card", f"all {name}")]
data = cf.load_dataset(pairs, fractions={"train": 2 / 3, "test": 1 / 3}, seed=1)
print(data)
assert data.text_to_image.tolist() == [0, 0, 1, 1, 2, 2]

# a table: a dict of columns, rows, or a table of pandas, polars, pyarrow or datasets
table = {
    "path": [str(path) for path in paths.values()],
    "caption": [f"a {name} card" for name in colours],
    "fold": ["train", "train", "test"],
    "price": [3, 2, 5],  # further columns are kept, and searches filter by them
}
print(cf.load_dataset(table, split_column="fold")["test"].texts)

# arrays: features or embeddings, captions, and the image of each caption
vectors = np.eye(3, dtype=np.float32)
texts = {"captions": [f"a {name} card" for name in colours], "owner": [0, 1, 2]}
embedded = cf.load_dataset({"images": vectors, "texts": vectors, **texts})
print(cf.evaluate(cf.load_model("vectors"), embedded["test"]).rsum)

# on disk: one JSON object a picture
with (folder / "captions.jsonl").open("w") as file:
    for name in colours:
        line = {"image": f"{name}.png", "captions": [f"a {name} card"], "split": "test"}
        file.write(json.dumps(line) + "\n")
print(cf.load_dataset(folder)["test"].texts)
