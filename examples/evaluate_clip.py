"""Evaluate a CLIP on your photos: recalls in both directions, with intervals and protocol.

python examples/evaluate_clip.py --data my-photos/
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    args.model, args.data = tiny_clip(Path(tempfile.mkdtemp())), "scenes:images=60"

model = cf.load_model(args.model)
data = cf.load_dataset(args.data)
print(model)
result = cf.evaluate(model, data["test"])
print(result)
print("as JSON:", sorted(result.to_dict()))
