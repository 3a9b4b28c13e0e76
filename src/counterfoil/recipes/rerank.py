"""Training of a re-ranker on mined lists: BLIP with a matching head, ViLT, UNITER, SCAN, ….

A retriever lists the hardest negatives of the training split; a model that reads image and text
together learns to tell each true pair from some of its listed ones, as in localized contrastive
estimation (Gao et al., ECIR 2021, https://arxiv.org/abs/2101.08751). Unlike there, the pairs of a
batch are negatives too: on listed ones alone a model learns which captions are listed often. It is
measured on the retriever's shortlists, beside the re-ranker as it was. Rates, epochs and numbers of
negatives are ours.
"""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.config import config, from_stage, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss
from counterfoil.model import load_model
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.layers.joint_encoder import PairModel
from counterfoil.models.sentence_transformers import CrossEncoderModel, SentenceTransformersModel
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Recipe, Stage, Train
from counterfoil.recipes.base import RERANKER as NAME
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined

COSINE_TEMPERATURE = 0.05
NEGATIVES = 7  # texts, and images, of an anchor
BATCH, EPOCHS, RATE = 8, 3, 1e-5
DEV_IMAGES = 100  # every pair of dev costs a pass
DEPTH = 20  # counterparts of a query that are scored again
PLAN = TrainConfig(
    epochs=EPOCHS,
    batch=BATCH,
    optimiser=OptimizerConfig(rule="adamw", rate=RATE, decay=0.05),
    schedule=CosineLR(warmup=0.1),
    dev_images=DEV_IMAGES,
)


def reranker_recipe(
    model: str,
    *,
    lengths: tuple[int, int],
    negatives: Path | None = None,
    first: str | None = None,
) -> Recipe:
    """Train a re-ranker on mined lists; evaluate it on shortlists beside its original.

    Args:
        model: folder or name of a model that reads image and text together.
        lengths: of the lists that `first` mines, of texts and of images.
        negatives: folder of mined lists of the training split; None lets `first` mine them.
        first: folder or name of the retriever whose first results are re-ranked in the evaluation;
            None ranks everything.

    Raises:
        ValueError: neither lists nor a retriever, or a model that compares vectors.
    """
    if negatives is None and first is None:
        raise ValueError(
            "a re-ranker learns from mined lists; give them with --negatives, or name the model "
            "that mines them and shortlists with --first"
        )
    place, retriever = _place(model), (_place(first),) if first else ()
    opened = load_model(place)
    if isinstance(opened.model, SingleVectorModel) or opened.spec is None or not opened.processor:
        raise ValueError(
            f"{model} compares one vector of each item, and a re-ranker looks at image and text "
            "together; name a BLIP with a matching head, a ViLT, a UNITER, or a model of regions"
        )
    joint = isinstance(opened.model, PairModel)
    # a logit has no bounds, as a softmax needs it; other scores are cosines
    spec = opened.spec.replace(score="logit") if joint else opened.spec
    if isinstance(opened.model, SentenceTransformersModel):
        spec = spec.replace(weights="fp32")  # small steps vanish in half precision
    logits = joint or isinstance(opened.model, CrossEncoderModel)
    temperature = 1.0 if logits else COSINE_TEMPERATURE * opened.model.loss_scale
    mining: list[Stage] = []
    if negatives is None:
        texts, images = lengths
        mining.append(Mine(name="lists", using=(), models=retriever, texts=texts, images=images))
    training = Train(
        name=NAME,
        model=spec,
        start=place,
        objective=weighted_sum(
            mined=lazy(
                InfoNCEWithCandidatesLoss,
                texts=("hard text",),
                images=("hard image",),
                temperature=temperature,
                reduction="mean",
            )
        ),
        processor=ProcessorConfig(images="features" if opened.reads_features else "pixels"),
        sources=(
            config(
                Mined,
                negatives=from_stage("lists") if negatives is None else str(negatives.absolute()),
                sampling=lazy(SamplingConfig, count=NEGATIVES, resample=False),
            ),
        ),
        plan=PLAN,
    )
    tests = [
        Evaluate(name="test-original", using=(), models=(place,), first=retriever, depth=DEPTH),
        Evaluate(name=f"test-{NAME}", using=(NAME,), first=retriever, depth=DEPTH),
    ]
    report = Compare(
        name="report",
        results=tuple(test.name for test in tests),
        negatives="lists" if negatives is None else None,
    )
    return Recipe(
        name=f"{NAME}-own",
        stages=(*mining, training, *tests, report),
        about=f"{model} as a re-ranker; mined lists, own photos",
    )


def _place(name: str) -> str:
    """The name, or the path of a folder, which is then never taken for a stage."""
    return str(Path(name).absolute()) if Path(name).is_dir() else name
