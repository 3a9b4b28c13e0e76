"""TAGS-DC: a small UNITER rewrites captions itself, learns from them and finds the wrong words.

It starts from random weights, or from a UNITER that `counterfoil papers convert uniter` saved.
"""

import argparse
import tempfile
from pathlib import Path

import counterfoil as cf
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.losses import MarginRankingLoss
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.papers.tags.losses import WordLoss

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", help="a UNITER folder; a small random one if it is left out")
parser.add_argument("--data", default="scenes:images=300,features=regions", help="with regions")
parser.add_argument("--output", type=Path, default=Path("runs/tags"))
parser.add_argument("--smoke", action="store_true", help="a few rendered scenes")
args = parser.parse_args()
offered, few = CandidateConfig(texts=399, images=399), {"epochs": 5, "batch_size": 64}
if args.smoke:
    args.data, args.output = "scenes:images=40,features=regions", Path(tempfile.mkdtemp()) / "run"
    offered, few = CandidateConfig(texts=9, images=9), {"epochs": 1, "batch_size": 16}

data = cf.load_dataset(args.data)
processor = cf.ProcessorConfig(images="features").fit(data["train"])
sizes = {"vocabulary": processor.tokenizer.size, "features": processor.image_processor.width}
tasks = ("masked", "doubt", "correct")
spec = cf.config(UNITER, layers=2, width=32, heads=2, inner=64, positions=40, **sizes)
spec = spec.replace(outputs=("rank", "fill", "doubt", "correct"))
model = cf.load_model(args.model) if args.model else cf.Model(spec.build(), processor, "own", spec)

terms = {task: (0.1, WordLoss(task=task, reduction="mean")) for task in tasks}
for role in ("hard text", "hard image", "written"):
    terms[role.replace(" ", "_")] = 1.0, MarginRankingLoss(role=role, reduction="mean")
sources = [
    cf.TopScoringMiner(keep=5, candidates=offered),  # the hardest of random pairs
    TagsGenerator(parser=RulePhraseParser(), masks=4, refills=4, keep=5, words=tasks),  # its own
]
given = {"train": data["train"], "dev": data["dev"], "sources": sources, "output": args.output}
tuned = cf.Trainer(model, loss=cf.WeightedSum(terms=terms), **given, **few).train()
print(cf.evaluate(tuned, data["test"]))
