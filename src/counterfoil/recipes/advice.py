"""What to train by default, and why, by what was measured (docs/results/index.md)."""

from __future__ import annotations

import shlex

from counterfoil.training.config import WIDE, adapter_config

FEW_PHOTOS = 300  # below which no training was better than the towers that it began with
_RESULTS = "docs/results"
_CLIP = "openai/clip-vit-base-patch32"


def advise_training(
    data: str = "my-photos/", photos: int | None = None, captions: int | None = None
) -> tuple[str, ...]:
    """The default training with its reasons, in ten lines; each number is on the page it names.

    Args:
        data: as it is typed.
        photos: of its training split; None where the data are not known.
        captions: of these.
    """
    few = photos is not None and photos < FEW_PHOTOS
    first = ["train", "contrastive", "--model", _CLIP, "--tune", "frozen"]
    first += ["--data", data, "--output", "runs/mine"]
    then, last = "on yours:", ["evaluate", _CLIP, "runs/mine", "--data", data]
    if few:  # the model as it is
        then, last = f"once you have {FEW_PHOTOS} photos:", first
        first = ["evaluate", _CLIP, "--data", data, "--split", "all"]
    if photos is None or captions is None:
        batch, there = f"{WIDE} captions (128 where there are fewer than {WIDE})", ""
    else:
        batch = f"{adapter_config(captions).batch} captions"
        there = f" {data} has {photos:,} photos with {captions:,} captions to train on."
    return (
        shlex.join(["counterfoil", *first]),
        f"The default is InfoNCE, on adapters behind frozen towers, in batches of {batch}.{there}",
        "Why InfoNCE: by a rule that was written down first, none of eleven uses of negatives took "
        f"its place at that batch, with 20 seeds ({_RESULTS}/truths.md).",
        "Why a large batch: at 128, RSum is 4.9 lower on dev and 4.0 on test, at equal captions "
        f"seen ({_RESULTS}/truths.md).",
        f"Fewer than {FEW_PHOTOS} photos{', as here' if few else ''}: take a public model as it "
        f"is; no training was better beyond chance ({_RESULTS}/defaults.md).",
        "Memory for batches of 8 alone: `train aoq`, whose mined negatives gained 4.6 RSum on dev "
        "and 3.4 on test there, for four times the pairs; at equal pairs a gain is open "
        f"({_RESULTS}/aoq.md).",
        "To search where other photos' captions are true, too: a mask of likely true pairs, 0.24 "
        f"mAP of others for 1.3 RSum ({_RESULTS}/truths.md).",
        "Generated foils: for telling foils apart, and not for recall, which fell "
        f"({_RESULTS}/tags.md).",
        "All of this was measured on Flickr8k and rendered scenes, with small or frozen models; "
        f"{then}",
        shlex.join(["counterfoil", *last]),
    )
