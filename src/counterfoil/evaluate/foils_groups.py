"""What a set of foils averages over: its categories, and its own aggregates of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from counterfoil.corpus.foil_forms import SUGARCREPE, Form

PAIRS_AT_LEAST = 25  # cases of a pair of attributes; the others are left out of ARO's average
NO_ORDER = frozenset(
    relation.strip()
    for relation in """
    adjusting, around, attached to, beside, between, bigger than, biting, boarding, brushing, by,
    chewing, cleaning, climbing, close to, coming from, coming out of, contain, crossing, dragging,
    draped over, drinking, drinking from, driving, driving down, driving on, eating from, eating in,
    enclosing, exiting, facing, filled with, floating in, floating on, flying, flying above, flying
    in, flying over, flying through, full of, going down, going into, going through, grazing in,
    growing in, growing on, guiding, hanging from, hanging in, hanging off, hanging over, higher
    than, holding onto, hugging, in between, jumping off, jumping on, jumping over, kept in, larger
    than, leading, leaning over, leaving, licking, longer than, looking in, looking into, looking
    out, looking over, looking through, lying next to, lying on top of, making, mixed with, mounted
    on, moving, near, next to, of, on the back of, on the edge of, on the front of, on the other
    side of, on the side of, opening, painted on, parked at, parked beside, parked by, parked in,
    parked in front of, parked near, parked next to, perched on, petting, piled on, playing, playing
    in, playing on, playing with, pouring, reaching for, reading, reflected on, riding on, running
    in, running on, running through, seen through, sitting behind, sitting beside, sitting by,
    sitting in front of, sitting near, sitting next to, sitting under, skiing down, skiing on,
    sleeping in, sleeping on, smiling at, sniffing, splashing, sprinkled on, stacked on, standing
    against, standing around, standing behind, standing beside, standing in front of, standing near,
    standing next to, staring at, stuck in, surrounding, swimming in, swinging, talking to, topped
    with, touching, traveling down, traveling on, tying, typing on, underneath, wading in, waiting
    for, walking across, walking by, walking down, walking next to, walking through, with, working
    in, working on, worn on, wrapped around, wrapped in
    """.replace("\n    ", " ").split(",")
)


@final
@dataclass(frozen=True, slots=True)
class Aggregate:
    """Categories that one number is an average over.

    Attributes:
        title: in tables.
        categories: whose items count.
        macro: every category counts alike, not every item.
        own: the set's authors report it.
    """

    title: str
    categories: tuple[str, ...]
    macro: bool = False
    own: bool = False


def aggregates(form: Form, counts: Mapping[str, int]) -> tuple[Aggregate, ...]:
    """Every category, all items, and what the set's authors report.

    SugarCrepe: averages over the items of "replace", "swap" and "add". ARO: the mean over
    relations less those of `NO_ORDER`, where exchanging the two says nearly the same or which are
    rare, and over pairs of attributes with at least 25 cases. VALSE: the mean over its pieces.
    Elsewhere: all items.

    Args:
        form: of the set.
        counts: items of each category.
    """
    every = tuple(counts)
    named = [name for name in SUGARCREPE if name in counts] if form == "sugarcrepe" else None
    shown = named or sorted(name for name in counts if name)
    macro = _kept(form, counts)
    if form == "aro-attribution":
        shown = list(macro)
    single = tuple(Aggregate(name, (name,)) for name in shown) if len(every) > 1 else ()
    if form == "sugarcrepe":
        return (*single, Aggregate("all items", every), *_coarse(shown))
    if form in ("aro-relation", "aro-attribution", "valse"):
        what = {"aro-relation": "relations", "aro-attribution": "pairs of attributes"}
        title = f"mean of {len(macro)} {what.get(form, 'pieces')}"
        mean = (Aggregate(title, macro, macro=True, own=True),) if macro else ()
        return (*single, Aggregate("all items", every), *mean)
    return (*single, Aggregate("all items", every, own=True))


def _kept(form: Form, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Categories that the mean over categories counts."""
    least = PAIRS_AT_LEAST if form == "aro-attribution" else 1
    dropped = NO_ORDER if form == "aro-relation" else frozenset()
    return tuple(sorted(c for c, many in counts.items() if many >= least and c not in dropped))


def _coarse(names: list[str]) -> tuple[Aggregate, ...]:
    groups = dict.fromkeys(name.partition("_")[0] for name in names)
    return tuple(
        Aggregate(group, tuple(n for n in names if n.startswith(group)), own=True)
        for group in groups
    )
