"""The card of a shared model: what it is, how good, where from, and what not to use it for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from counterfoil.corpus.lens import FeatureEye, Lens
from counterfoil.models.adapted import Adapted
from counterfoil.models.blocks.open_clip import hub_name
from counterfoil.models.clip import DualEncoder
from counterfoil.models.open_clip import OpenClip
from counterfoil.spec import Spec
from counterfoil.train.saved import Card

_SIDES = {"i2t": "image to text", "t2i": "text to image"}
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_PROVENANCE = {
    "recipe": "recipe",
    "stage": "stage",
    "digest": "digest of the recipe",
    "data": "trained on",
    "data_fingerprint": "fingerprint of the data",
    "seed": "seed",
    "epochs": "epochs",
    "best_epoch": "best epoch, on dev",
    "system": "authors' system",
    "converted_from": "authors' checkpoint",
    "pretrained": "pretrained model, as it is",
}
LIMITS = """\
- A score orders captions and pictures; it is no probability, and scores of two models are not
  comparable.
- The figures hold for the data and the protocol they name, and for captions like those.
- What was learnt has the faults of the data it was learnt from, people's prejudices among them. It
  is not made for decisions about people.
- Like most models of its kind it may miss who does what to whom, how many there are, and what is
  denied: `counterfoil foils` measures that.
"""


def card(known: Card, lens: Lens, measured: Sequence[Mapping[str, Any]], name: str) -> str:
    """The text of ``README.md``, with the head that the hub reads.

    Args:
        known: what is known about the model.
        lens: what it sees.
        measured: evaluations, as they are written.
        name: what others open it by.
    """
    kind = known.model.make.__qualname__
    title = name.rstrip("/").rpartition("/")[2]
    parts = (
        _head(known, kind, measured, title),
        f"# {title}\n\n{kind}: scores how well captions describe images. Saved with "
        f"counterfoil {known.version}.\n",
        _use(lens, name),
        _results(known, measured),
        _origin(known),
        f"## Limits\n\n{LIMITS}",
        _licence(known),
    )
    return "\n".join(parts)


def _head(known: Card, kind: str, measured: Sequence[Mapping[str, Any]], title: str) -> str:
    """YAML, each value in its JSON form, which YAML reads."""
    lines = ["library_name: counterfoil", f"tags: {json.dumps(['image-text-retrieval', kind])}"]
    if base := _base(known):
        lines.append(f"base_model: {json.dumps(base)}")
    if measured:
        index = [{"name": title, "results": [_result(found) for found in measured]}]
        lines.append(f"model-index: {json.dumps(index)}")
    return "\n".join(["---", *lines, "---", ""])


def _result(found: Mapping[str, Any]) -> dict[str, Any]:
    setting = found["setting"]
    data = {"name": setting["dataset"], "type": setting["dataset"], "split": setting["split"]}
    metrics = [
        {"type": f"{side}_r{k}", "name": f"{words} R@{k}", "value": found[side][f"r{k}"]}
        for side, words in _SIDES.items()
        for k in (1, 5, 10)
    ]
    task = {"type": "image-text-retrieval", "name": "Image-text retrieval"}
    return {"task": task, "dataset": data, "metrics": metrics}


def _use(lens: Lens, name: str) -> str:
    if isinstance(lens.eye, FeatureEye):
        said = (
            "model.encode(['a dog in the snow'])  # pictures: features "
            f"{lens.eye.width} wide, as from `counterfoil features`"
        )
        first = "from counterfoil import Model\n"
    else:
        first = "from pathlib import Path\n\nfrom counterfoil import Model\n"
        said = (
            "model.encode(['a dog in the snow'])  # also paths, or pictures of PIL\n"
            "model.score(Path('photo.jpg'), ['a dog in the snow', 'a cat in the snow'])"
        )
    opened = f"model = Model.from_pretrained({name!r})"
    return f"## Use\n\n```python\n{first}\n{opened}\n{said}\n```\n"


def _results(known: Card, measured: Sequence[Mapping[str, Any]]) -> str:
    lines = ["## Results", ""]
    for found in measured:
        cells = [f"{found[side][f'r{k}']:.1f}" for side in _SIDES for k in (1, 5, 10)]
        row = [found["setting"]["dataset"], found["setting"]["split"], *cells]
        lines += [*_COLUMNS, f"| {' | '.join([*row, format(found['rsum'], '.1f')])} |", ""]
        lines += [f"Protocol: {found['protocol']}.", ""]
    if known.metrics:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(known.metrics.items()))
        lines += [f"On dev, when the best epoch was chosen: {figures}.", ""]
    if len(lines) == 2:
        lines += ["None were measured.", ""]
    return "\n".join(lines)


_COLUMNS = (
    "| data | split | i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|",
)


def _origin(known: Card) -> str:
    facts = [
        f"- {words}: {known.provenance[key]}"
        for key, words in _PROVENANCE.items()
        if key in known.provenance
    ]
    if base := _base(known):
        facts.append(f"- began from: {base}")
    call = json.dumps(_short(known.model.plain()), indent=2, ensure_ascii=False)
    head = "\n".join(["## Where it comes from", "", *(facts or ["Nothing was noted."]), ""])
    return f"{head}\nThe call that builds it:\n\n```json\n{call}\n```\n"


def _licence(known: Card) -> str:
    base = _base(known)
    began = f" It began from `{base}`, whose licence holds for it, too." if base else ""
    return (
        "## Licence\n\nNone is stated: whoever shares the model states one here and as `license:` "
        f"in the head of this file.{began} The data it was trained on may set terms of their own.\n"
    )


def _base(known: Card) -> str | None:
    """The name on the hub of the pair of encoders that a model began from."""
    spec: Spec[Any] = known.model
    if spec.make is Adapted:
        spec = spec.arguments["body"]
    name: str | None = str(spec.arguments.get("name", ""))
    if spec.make is OpenClip:
        name = hub_name(str(name))
    elif spec.make is not DualEncoder:
        return None
    return name if name and _HUB.fullmatch(name) else None


def _short(value: Any) -> Any:
    """A call without the configurations of its pretrained parts, which are long."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items() if not (k == "config" and v)}
    return [_short(part) for part in value] if isinstance(value, list) else value
