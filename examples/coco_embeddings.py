"""Evaluate embeddings that any library made, by the protocol of COCO 1K (five folds) or 5K.

The folder holds images.npy (I, D), texts.npy (T, D) and, unless every image has the same number
of captions in order, what docs/data.md says.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--embeddings", type=Path, default=Path("coco-embeddings"))
parser.add_argument("--protocol", default="coco-5k", help="coco-1k, coco-5k, flickr-1k or whole")
parser.add_argument("--smoke", action="store_true", help="random embeddings, 5,000 images")
args = parser.parse_args()
if args.smoke:
    args.embeddings, args.protocol = Path(tempfile.mkdtemp()), "coco-1k"
    draw = np.random.default_rng(0)
    images = draw.standard_normal((5000, 16)).astype("float32")
    texts = images.repeat(5, axis=0) + 2 * draw.standard_normal((25000, 16)).astype("float32")
    for name, vectors in (("images", images), ("texts", texts)):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(args.embeddings / f"{name}.npy", unit)

data = cf.load_dataset(args.embeddings)
print(cf.evaluate(cf.load_model("vectors"), data, protocol=args.protocol))
