"""Mine hard negatives of a whole training set and train on them with sentence-transformers.

`negatives.to_dataset` gives captions and pictures, in either direction or both; the trainer takes
it as it is. Needs: pip install "counterfoil[hf,st]"
"""

import argparse
import tempfile
from pathlib import Path

from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import counterfoil as cf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="openai/clip-vit-base-patch32")
parser.add_argument("--data", default="my-photos/")
parser.add_argument("--output", type=Path, default=Path("tuned"))
parser.add_argument("--epochs", type=float, default=1)
parser.add_argument("--smoke", action="store_true", help="tiny random CLIP on rendered scenes")
args = parser.parse_args()
if args.smoke:
    from _tiny import tiny_clip

    place = Path(tempfile.mkdtemp())
    args.model, args.data = tiny_clip(place / "clip"), "scenes:images=60"
    args.output = place / "out"

data = cf.load_dataset(args.data)
negatives = cf.mine_hard_negatives(cf.load_model(args.model), data["train"], texts_per_image=20)
print(negatives)
rows = negatives.to_dataset("n-tuple", "both", most=3)
print(rows)

student = SentenceTransformer(args.model)
trainer = SentenceTransformerTrainer(
    model=student,
    args=SentenceTransformerTrainingArguments(
        output_dir=str(args.output / "run"),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-5,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=rows,
    loss=MultipleNegativesRankingLoss(student),
)
trainer.train()
student.save(str(args.output / "model"))
print(cf.evaluate(cf.load_model(args.output / "model"), data["dev"]))
