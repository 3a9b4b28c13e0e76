"""Explain a score word by word: which words of a caption a model doubts.

python examples/explain.py beach.jpg "a dog in the snow"
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("image", nargs="?", default="beach.jpg")
parser.add_argument("caption", nargs="?", default="a red circle above a green star")
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on a rendered scene")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.model, args.image = tiny_clip(place / "clip"), str(place / "scene.png")
    cf.load_dataset("scenes:images=10").pictures.open(0).save(args.image)

explanation = cf.explain(cf.load_model(args.model), args.image, args.caption)
print(f"score {explanation.score:.3f}")
for word in explanation.words:
    # a model with word heads says its doubt; any other gains or loses score without the word
    number = word.doubt if word.doubt is not None else word.gain
    print(f"{word.text:>12}  {number:+.3f}")
