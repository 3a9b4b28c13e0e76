"""NDGL: the similarities of two CLIP teachers, for all negatives of a batch, guide a student."""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--student", default="openai/clip-vit-base-patch32")
parser.add_argument(
    "--teachers",
    nargs="+",
    default=["openai/clip-vit-large-patch14", "openai/clip-vit-base-patch16"],
)
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--output", type=Path, default=Path("runs/ndgl"))
parser.add_argument("--smoke", action="store_true", help="tiny random CLIPs on rendered scenes")
args = parser.parse_args()
few = {}
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.student, args.teachers = tiny_clip(place / "student"), [tiny_clip(place / "teacher")] * 2
    args.data, args.output, few = "scenes:images=60", place / "run", {"epochs": 1, "batch_size": 32}

data = cf.load_dataset(args.data)
loss = cf.WeightedSum(
    terms={
        "triplet": (1.0, cf.losses.HardestTripletLoss()),  # the hardest negative
        "margins": (100.0, cf.losses.MarginDistillationLoss()),  # all of them, as teachers see them
        "rectified": (0.5, cf.losses.HardNegativeRectificationLoss()),
    }
)
# each photo and caption is encoded once by each teacher, into the folder
teachers = cf.Teachers(*map(cf.load_model, args.teachers), store=args.output / "teachers")
student = cf.load_model(args.student)
given = {"train": data["train"], "dev": data["dev"], "sources": [teachers]}
tuned = cf.Trainer(student, loss=loss, output=args.output / "student", **given, **few).train()
print(cf.evaluate(tuned, data["test"]))
