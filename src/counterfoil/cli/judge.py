"""``counterfoil judge``: corrections from a judge of mined negatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import DataOptions, data_options, example

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil judge runs/mine/online --negatives lists/ --data my-photos/ "
        "--output corrections.jsonl",
        "counterfoil judge Salesforce/blip-itm-base-coco --negatives lists/ --data my-photos/ "
        "--output my-photos/corrections.jsonl",
    )
)
@data_options
def judge(
    model: Annotated[list[str], typer.Argument(help="Model folder or HF name that judges.")],
    negatives: Annotated[Path, typer.Option(help="Folder of mined negatives.")],
    output: Annotated[
        Path, typer.Option("--output", help="Corrections to write; the file must not exist yet.")
    ],
    data: DataOptions,
    promote_at: Annotated[
        float, typer.Option(help="Quantile of true pairs from which a pair is an extra positive.")
    ] = 0.95,
    drop_at: Annotated[
        float, typer.Option(help="Quantile from which another pair is no negative.")
    ] = 0.5,
    weight: Annotated[float, typer.Option(help="Weight of extra positives in training.")] = 0.5,
) -> None:
    """Find true pairs among mined negatives by a model, as corrections of the data."""
    from counterfoil.core import distributed
    from counterfoil.core.console import output as print_line
    from counterfoil.core.io import ensure_absent, ensure_writable_file, write_text
    from counterfoil.data.corrections import corrections_beside, read_corrections
    from counterfoil.model import load_model
    from counterfoil.negatives.judging import JudgeConfig, judge_negatives
    from counterfoil.negatives.store import MINED, NegativeStore

    config = JudgeConfig(promote_at=promote_at, drop_at=drop_at, weight=weight)
    ensure_absent(output, "another file with --output")
    ensure_writable_file(output)
    distributed.init()
    source = data.source()
    dataset = source.split(MINED.read_manifest(negatives).split)
    lists = NegativeStore.open(negatives, fingerprint=dataset.fingerprint).lists
    before = source.decisions or corrections_beside(source.data)
    earlier = read_corrections(before) if before is not None else ()
    members = [load_model(name).embed(dataset) for name in model]
    judged = judge_negatives(members, dataset.relation, lists)
    if distributed.rank():
        return
    corrections = judged.corrections(dataset, config)
    lines = [
        json.dumps(correction.to_dict(), ensure_ascii=False) + "\n"
        for correction in (*earlier, *corrections)
    ]
    write_text(output, "".join(lines))
    promoted, dropped = int(judged.promoted(config).sum()), int(judged.dropped(config).sum())
    print_line(
        f"{len(judged.scores):,} pairs judged by {' + '.join(model)}: {promoted:,} promoted to "
        f"extra positives, {dropped:,} left out of the negatives"
    )
    print_line(f"{output}" + (f", with {len(earlier):,} earlier corrections" if earlier else ""))
