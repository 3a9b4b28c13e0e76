"""Fine-tune a CLIP on your photos, taught by the similarities of a larger one (NDGL).

The recipe trains the student with NDGL's margin distillation, evaluates it, and sets the original
beside it. Weights are updated by LoRA; teachers are read once and never held as a matrix.
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf
from counterfoil.recipes.clip import train_recipe

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--student", default="openai/clip-vit-base-patch32")
parser.add_argument("--teacher", default="openai/clip-vit-large-patch14")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--output", type=Path, default=Path("runs/ndgl-clip"))
parser.add_argument("--smoke", action="store_true", help="tiny random CLIPs on rendered scenes")
args = parser.parse_args()
tune = "lora"
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.student = args.teacher = tiny_clip(place / "clip")
    args.data, args.output, tune = "scenes:images=60", place / "run", "full"

recipe = train_recipe(
    "ndgl",
    cf.load_dataset(args.data),
    model=args.student,
    way=tune,
    written=None,  # negatives that `counterfoil papers write` generated
    teachers=[args.teacher],
)
print("stages:", ", ".join(f"{stage.name} ({stage.kind})" for stage in recipe.stages))
run = cf.run(recipe, data=args.data, output=args.output, smoke=args.smoke)
print(run)
