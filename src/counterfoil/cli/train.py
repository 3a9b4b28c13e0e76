"""``counterfoil train``: train a model from scratch, or fine-tune a pretrained one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    CaptionColumn,
    DataSets,
    Device,
    ImageColumn,
    Minutes,
    Resume,
    RunFolder,
    Settings,
    data_source,
    refuse_without,
    say_convergence,
    tell_model,
    verb,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe

app = typer.Typer(rich_markup_mode="markdown")

LossOrModel = Annotated[
    str,
    typer.Argument(
        metavar="LOSS_OR_MODEL",
        help="Model to train from scratch: vsepp, scan-t2i, gpo, chan, ndgl/gpo, …; with --model, "
        "loss to fine-tune with: contrastive, triplet, aoq, ndgl, negclip, listwise (a re-ranker "
        "as --teacher), a loss that --import registers, or reranker for a model that reads image "
        "and text together.",
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="CLIP or SigLIP model to fine-tune: HF name, folder, open_clip:NAME, or "
        "timm:IMAGE+TEXT; or a run to train on.",
    ),
]
Tower = Annotated[
    str | None,
    typer.Option(
        help="Frozen HF vision model whose patches stand for region features: name or folder of a "
        "ViT, SigLIP, CLIP, DINOv2, CNN, …; it encodes each picture once."
    ),
]
Tune = Annotated[
    str,
    typer.Option(
        help="Fine-tuning mode: full, lora, or frozen (train a head on cached embeddings)."
    ),
]
Written = Annotated[
    Path | None,
    typer.Option(
        help="Generated captions of the training split, as `counterfoil papers write` makes; or a "
        "file with `negative_caption`, and `negative_image` for foils in both directions."
    ),
]
Other = Annotated[
    str | None,
    typer.Option(help="Other data, as --data: measure how much --model forgets there."),
]
Distill = Annotated[
    float | None,
    typer.Option(
        help="Weight of distillation towards the original --model, against forgetting; 1 is usual."
    ),
]
Remedies = Annotated[
    bool,
    typer.Option(
        "--remedies",
        help="Compare remedies against forgetting: also average the weights with the original's "
        "(WiSE-FT), and train once more with --distill, 1 by default.",
    ),
]
LongCaptions = Annotated[
    bool,
    typer.Option(
        "--long-captions",
        help="Stretch the text positions of a CLIP, from 77 tokens to 248 (Long-CLIP).",
    ),
]
First = Annotated[
    str | None,
    typer.Option(
        help="Retriever whose first results a reranker re-ranks; without --negatives it mines too."
    ),
]
Guide = Annotated[
    str | None,
    typer.Option(
        help="Trained model that judges every batch: negatives that it scores above the true pair "
        "are left out, with `--set *.mask.margin=M` from M below it."
    ),
]
Negatives = Annotated[
    Path | None,
    typer.Option(
        help="Mined lists of the training split: a folder of `counterfoil mine`, or one with AOQ's "
        "files. A second training reads them, and the better one on dev is copied to `best/`."
    ),
]
BatchSize = Annotated[
    str | None,
    typer.Option(
        help="Captions in a batch of every training; default that of the "
        "recipe, 64, 128 or 512 (`--plan` shows it). `all` makes the training split one batch and "
        "an epoch one step, for contrastive and triplet with --tune frozen."
    ),
]
GradCache = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Items encoded at a time by gradient caching: batches as large as you like in the "
        "memory of so many items, with the same gradient, for one more pass.",
    ),
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing",
        help="Compute the activations of transformer layers again in the backward pass: less "
        "memory, a fifth to a third more time, the same gradient.",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of every training.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate of every training.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of every training; default 0.")]
Computation = Annotated[
    str | None, typer.Option("--precision", help="fp32, or bf16 for autocast, in every training.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="Send metrics to wandb or tensorboard too; repeatable."),
]
ShowPlan = Annotated[
    bool,
    typer.Option(
        "--plan", help="Show the stages with all settings and their length, and train nothing."
    ),
]
Teacher = Annotated[
    list[str] | None,
    typer.Option(help="Teacher of ndgl, or re-ranker of listwise; repeatable."),
]


@verb(
    app,
    "counterfoil train vsepp --data my-photos/ --output runs/mine",
    "counterfoil train vsepp --data my-photos/ --negatives lists/ --output runs/lists",
    "counterfoil train gpo --data my-photos/ --epochs 10 --precision bf16 --plan",
    "counterfoil train gpo --data my-photos/ --tower google/siglip2-base-patch16-224",
    "counterfoil train ndgl/gpo --data my-photos/ --teacher runs/a --teacher runs/b",
    "counterfoil train aoq --model openai/clip-vit-base-patch32 --tune frozen "
    "--data my-photos/ --output runs/clip",
    "counterfoil train listwise --model openai/clip-vit-base-patch32 "
    "--teacher Salesforce/blip-itm-base-coco --data my-photos/ --output runs/taught",
    "counterfoil train reranker --model Salesforce/blip-itm-base-coco --negatives lists/ "
    "--first runs/clip --data my-photos/ --output runs/reranker",
)
def train(
    context: typer.Context,
    loss_or_model: LossOrModel,
    data: DataSets = None,
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
    model: Pretrained = None,
    tower: Tower = None,
    tune: Tune = "full",
    written: Written = None,
    teacher: Teacher = None,
    negatives: Negatives = None,
    guide: Guide = None,
    other: Other = None,
    distill: Distill = None,
    remedies: Remedies = False,
    long_captions: LongCaptions = False,
    first: First = None,
    epochs: Epochs = None,
    rate: Rate = None,
    batch_size: BatchSize = None,
    grad_cache: GradCache = None,
    gradient_checkpointing: Checkpointing = False,
    seed: Seed = None,
    precision: Computation = None,
    track: Track = None,
    device: Device = None,
    folder: RunFolder = None,
    settings: Settings = None,
    resume: Resume = False,
    minutes: Minutes = None,
    show_plan: ShowPlan = False,
) -> None:
    """Train a model, or fine-tune a public one, and evaluate it."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.plan import print_plan
    from counterfoil.pipelines.run import run_pipeline
    from counterfoil.recipes import clip

    refuse_without(context, "model", ("tune", "written"))
    source = data_source(data, caption_column=caption_column, image_column=image_column)
    dataset = source.open()
    dataset.check_captions("to train on")
    recipe = clip.train_recipe(
        loss_or_model,
        dataset,
        model=model,
        way=tune,
        written=written,
        teachers=teacher or (),
        other=other,
        guide=guide,
        negatives=negatives,
        distill=distill,
        remedies=remedies,
        tower=tower,
        long_captions=long_captions,
        first=first,
    )
    batch = None if batch_size is None else _batch(batch_size)
    everyday = {
        "epochs": epochs,
        "rate": rate,
        "batch": batch,
        "grad_cache": grad_cache,
        "gradient_checkpointing": gradient_checkpointing or None,
        "seed": seed,
        "precision": precision,
        "track": tuple(track) if track else None,
    }
    overrides = [f"*.{key}={value}" for key, value in everyday.items() if value is not None]
    recipe = apply_overrides(recipe, (*overrides, *(settings or ())))
    for reason in clip.mining_reasons(recipe, dataset):
        output(reason)
    if show_plan:
        print_plan(recipe, dataset)
        return
    folder = folder or Path("runs") / recipe.name
    _check_apart(model, folder)
    if not run_pipeline(recipe, source, folder, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
    _link_model(folder, recipe)
    tell_model(folder, source)
    say_convergence(context, folder, recipe)


def _check_apart(model: str | None, folder: Path) -> None:
    """Refuse to train a run on in its own folder."""
    from counterfoil.model import MODEL, is_model_folder
    from counterfoil.pipelines.run import next_folder

    places = [folder.absolute(), (folder / MODEL).absolute()]
    if model is not None and Path(model).absolute() in places and is_model_folder(folder):
        another = shlex.join(["--output", str(next_folder(folder))])
        raise ValueError(
            f"{folder} is the run that --model names, and it is kept as it is; name another folder "
            f"for the training that goes on from it, as in {another}"
        )


def _link_model(folder: Path, recipe: Recipe) -> None:
    """Make ``OUTPUT/model`` the model of the run, by a link."""
    from counterfoil.core import distributed
    from counterfoil.model import MODEL

    trained = [stage.name for stage in recipe.stages if stage.kind in ("train", "select")]
    # of remedies against forgetting the training itself, else the selected or last one
    name = "tuned" if "tuned" in trained and "best" not in trained else trained[-1]
    link, place = folder / MODEL, Path(name, MODEL)
    if distributed.rank() or not (folder / place).is_dir():
        return
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(place)


def _batch(text: str) -> int:
    """The batch of a plan, in which 0 stands for all.

    Raises:
        ValueError: neither a number from 1 nor "all".
    """
    if text == "all":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--batch-size is {text!r}; give a number of captions, at least 1, or all")
    return int(text)
