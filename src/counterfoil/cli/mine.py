"""``counterfoil mine`` and ``counterfoil judge``: hard negatives, and true pairs among them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    CaptionColumn,
    Data,
    DataSets,
    Device,
    ImageColumn,
    Minutes,
    NewFolder,
    Resume,
    Split,
    check_new_folder,
    command_line,
    data_source,
    earlier_corrections,
    open_negatives,
    record_settings,
    resumable_work,
    verb,
    with_settings,
)
from counterfoil.core.console import output

Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        help="Remove likely false negatives: key=value, repeatable. captions or pictures: "
        "similarity from which an item is too close; lowest, highest: score limits; "
        "below_positive, below_share: margin to the true pair's score; guided: margin by the "
        "--guide models; skip: the hardest N.",
    ),
]
Guide = Annotated[
    list[str] | None,
    typer.Option(help="Guide model for filtering false negatives (GISTEmbed); repeatable."),
]
Propose = Annotated[
    list[str] | None,
    typer.Option(
        help="Fast model that proposes the pairs to score; repeatable. Or `ivf`: FAISS IVF over "
        "the model's own vectors, which misses some pairs."
    ),
]

MINING = "positives", "proposals"  # of a `Mine`
JUDGING = "promote_at", "drop_at", "weight"  # of a `JudgeConfig`

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil mine runs/mine --data my-photos/ --output lists/ --texts-per-image 300 "
    "--images-per-text 60",
    "counterfoil mine runs/scan/online --data flickr8k/ --output lists/ --filter captions=0.8 "
    "--filter guided=0 --guide runs/vsrn/online --minutes 60 --resume",
)
def mine(
    model: Annotated[list[str], typer.Argument(help="Model folder, HF name, or `vectors`.")],
    folder: NewFolder,
    data: DataSets = None,
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
    split: Split = "train",
    texts: Annotated[
        int | None,
        typer.Option(
            "--texts-per-image",
            min=1,
            help="Hardest texts kept for each image; default 1 % of them, 20 to 300.",
        ),
    ] = None,
    hard_images: Annotated[
        int | None,
        typer.Option(
            "--images-per-text",
            min=1,
            help="Hardest images kept for each text; default 1 % of them, 5 to 60.",
        ),
    ] = None,
    filters: Filter = None,
    guide: Guide = None,
    propose: Propose = None,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16 with fp32 rescoring of candidates.")
    ] = "fp32",
    settings: Annotated[list[str] | None, record_settings(*MINING)] = None,
    device: Device = None,
    resume: Resume = False,
    minutes: Minutes = None,
) -> None:
    """Mine the hardest negatives of every image and every caption from a whole split."""
    from counterfoil.negatives.advice import advise_mining
    from counterfoil.pipelines.stages.mine import mining_request, remove_partial, run_mining

    source = data_source(data, caption_column=caption_column, image_column=image_column)
    dataset = source.split(split)
    dataset.check_captions("to mine")
    advice = advise_mining(len(dataset.texts), len(dataset))
    if texts is None or hard_images is None:
        output(advice.reasons[0])
    stage = mining_request(
        model,
        split,
        texts=texts or advice.texts,
        images=hard_images or advice.images,
        filters=filters or (),
        guides=guide or (),
        proposing=propose or (),
        precision=precision,
    )
    unread = {} if propose else {"proposals": "with --propose"}
    stage = with_settings(stage, settings, MINING, **unread)
    with resumable_work(folder, "mining", resume=resume, minutes=minutes) as minutes_left:
        store, _ = run_mining(stage, dataset, folder, left=minutes_left)
    remove_partial(folder)
    for line in store.manifest.summary():
        output(line)
    output(f"{store.lists.describe()}, {dataset.name} {dataset.split_name}: {folder}")
    diagnose = command_line("diagnose", folder, "--data", source.typed)
    output(f"next: {diagnose}, or train on them with {shlex.join(['--negatives', str(folder)])}")


@verb(
    app,
    "counterfoil judge runs/mine --negatives lists/ --data my-photos/ --output corrections.jsonl",
    "counterfoil judge Salesforce/blip-itm-base-coco --negatives lists/ --data my-photos/ "
    "--scores scored-lists/",
)
def judge(
    model: Annotated[list[str], typer.Argument(help="Model folder or HF name that judges.")],
    negatives: Annotated[Path, typer.Option(help="Folder of mined negatives.")],
    file: Annotated[
        Path | None,
        typer.Option("--output", help="Corrections to write; the file must not exist yet."),
    ] = None,
    scored: Annotated[
        Path | None,
        typer.Option(
            "--scores",
            help="Folder to write the lists into with the judge's scores, which `train listwise` "
            "learns from.",
        ),
    ] = None,
    data: Data = None,
    settings: Annotated[list[str] | None, record_settings(*JUDGING)] = None,
) -> None:
    """Score mined negatives by a model, and find true pairs among them, as corrections."""
    from counterfoil.core import distributed
    from counterfoil.core.io import ensure_absent, ensure_writable_file
    from counterfoil.data.corrections import write_corrections
    from counterfoil.model import load_model
    from counterfoil.negatives.judging import JudgeConfig, judge_negatives

    config = with_settings(JudgeConfig(), settings, JUDGING)
    if file is None and scored is None:
        raise ValueError(
            "nothing is to be written; name a file of corrections with --output, a folder for "
            "the scores with --scores, or both"
        )
    if file is not None:
        ensure_absent(file, "another file with --output")
        ensure_writable_file(file)
    if scored is not None:
        check_new_folder(scored, "--scores")
    distributed.init()
    source = data_source(data)
    earlier = earlier_corrections(source) if file is not None else ()
    store, dataset = open_negatives(negatives, source)
    models = [load_model(name) for name in model]
    members = [judge.embed(dataset) for judge in models]
    judged = judge_negatives(members, dataset.relation, store.lists)
    if distributed.rank():
        return
    if scored is not None:
        store.judged(judged.lists, tuple(judge.source() for judge in models)).save(scored)
        output(f"{len(judged.scores):,} pairs scored by {' + '.join(model)}: {scored}")
    if file is None:
        return
    write_corrections(file, (*earlier, *judged.corrections(dataset, config)))
    promoted, dropped = int(judged.promoted(config).sum()), int(judged.dropped(config).sum())
    output(
        f"{len(judged.scores):,} pairs judged by {' + '.join(model)}: {promoted:,} promoted to "
        f"extra positives, {dropped:,} left out of the negatives"
    )
    output(f"{file}" + (f", with {len(earlier):,} earlier corrections" if earlier else ""))
