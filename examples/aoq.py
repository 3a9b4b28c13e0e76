"""AOQ: train online, mine the whole training split, train again on the mined negatives."""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--output", type=Path, default=Path("runs/aoq"))
parser.add_argument("--resume", action="store_true", help="continue a training that was stopped")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
epochs, batch_size = 5, 64
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.model, args.data, args.output = (
        tiny_clip(place / "clip"),
        "scenes:images=60",
        place / "run",
    )
    epochs, batch_size = 1, 32

data = cf.load_dataset(args.data)
given = {"train": data["train"], "dev": data["dev"], "resume": args.resume}
given |= {"epochs": epochs, "batch_size": batch_size}

loss = cf.losses.HardestTripletLoss()
model = cf.Trainer(cf.load_model(args.model), loss=loss, output=args.output / "1", **given).train()

# the hardest wrong captions of every image, and wrong images of every caption, in all of `train`
negatives = cf.mine_hard_negatives(model, data["train"], texts_per_image=50, images_per_text=10)

loss, sources = cf.losses.AdaptiveQuintuplet(), [cf.Mined(negatives)]
trainer = cf.Trainer(model, loss=loss, sources=sources, output=args.output / "2", **given)
print(cf.evaluate(trainer.train(), data["test"]))
print(f"saved in {args.output / '2'}; open it with cf.load_model({str(args.output / '2')!r})")
