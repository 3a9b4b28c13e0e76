"""Index photos once, then search them by sentence and by picture.

python examples/search.py --data my-photos/ --query "a dog in the snow"
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--index", type=Path, default=Path("my-index"))
parser.add_argument("--query", default="a dog in the snow")
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.model, args.data, args.index = tiny_clip(place / "clip"), "scenes:images=60", place / "my"

if args.index.exists():
    index = cf.open_index(args.index)
else:
    index = cf.build_index(cf.load_model(args.model), cf.load_dataset(args.data), args.index)
for hit in index.search(args.query, top_k=5):
    print(f"{hit.rank}. {hit.score:.3f}  {hit.id}  {hit.captions[0]}")

first = index.search(args.query, top_k=1)[0]
print(f"\nmost like {first.id}:")
for hit in index.search_id(first.id, top_k=3, find="images"):
    print(f"{hit.rank}. {hit.score:.3f}  {hit.id}")
