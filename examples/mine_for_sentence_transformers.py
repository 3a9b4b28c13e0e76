"""Mine hard negatives of a whole training set and hand them to somebody else's trainer.

Every row has an image id, a true caption, and the hardest wrong captions of that image with their
scores. `counterfoil export` writes the columns that sentence-transformers' losses expect.
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--output", type=Path, default=Path("negatives"))
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.model, args.data, args.output = (
        tiny_clip(place / "clip"),
        "scenes:images=60",
        place / "out",
    )

model = cf.load_model(args.model)
train = cf.load_dataset(args.data)["train"]
negatives = cf.mine_hard_negatives(model, train, texts_per_image=20)
print(negatives)

rows = negatives.to_dataset()
print(rows)
rows.save_to_disk(str(args.output))
