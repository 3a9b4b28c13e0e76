"""What ``counterfoil index`` and ``counterfoil search INDEX`` do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

from counterfoil import world
from counterfoil.core.console import output
from counterfoil.corpus.bare import is_bare, read_bare
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.decisions import beside, decide, read_decisions
from counterfoil.corpus.findings import counted
from counterfoil.corpus.pictures import is_picture_name
from counterfoil.engine.index_state import Backend
from counterfoil.files import check_file
from counterfoil.recipes import hits_shown
from counterfoil.recipes.arriving import prefixed
from counterfoil.recipes.indexing import Changed, IndexPlan, add, build_index, delete
from counterfoil.recipes.model import open_model
from counterfoil.recipes.reranking import open_reranker
from counterfoil.recipes.run import Source
from counterfoil.recipes.searching import SIDES, Find, Hit, SearchIndex, open_index
from counterfoil.spec import unknown

Kind: TypeAlias = Literal["caption", "picture", "id"]
SHORT = {"faiss": "faiss-hnsw"}  # names of backends that stand for one of them


@final
@dataclass(frozen=True, slots=True)
class Asking:
    """How an index is asked.

    Attributes:
        kind: what the query is; "" for what it looks like.
        find: images or captions; "" for the other than the query.
        top: how many.
        model: the model's name, where it is no longer where it was; "" for what the index says.
        rerank: name of a model that puts the first results in order; "" for none.
        depth: how many results that model looks at; None for `DEPTH`.
        page: where a page of thumbnails goes; None for nowhere.
        plain: print JSON.
    """

    kind: str = ""
    find: str = ""
    top: int = 10
    model: str = ""
    rerank: str = ""
    depth: int | None = None
    page: Path | None = None
    plain: bool = False


def index_with(
    model: str,
    source: Source,
    split: str,
    folder: Path,
    *,
    backend: str | None = None,
    address: str = "",
    half: bool = False,
    more: bool = False,
    prefix: str = "",
    exchange: bool = False,
) -> None:
    """Make an index, or add to one, and say what became of it.

    Args:
        model: its name.
        source: the data; a folder of pictures needs no captions.
        split: which of them.
        folder: of the index.
        backend: what finds candidates; None for comparing with everything.
        address: of a Milvus server.
        half: keep vectors in float16.
        more: add to an index that is there.
        prefix: goes before every id.
        exchange: other pictures that have the ids of some take their place.

    Raises:
        ValueError: options, model and data do not go together.
    """
    world.join()
    if not more:
        plan = IndexPlan(backend=_backend(backend or "exact"), address=address, half=half)
        build_index(open_model(model), _corpus(source, split, prefix), folder, plan=plan).close()
        show_index(folder)
        return
    if backend is not None or address or half:
        raise ValueError(
            f"how {folder} is kept was settled when it was made; leave out --backend, --address "
            "and --half, or make another index"
        )
    with open_index(folder, model=model) as found:
        changed = add(found, _corpus(source, split, prefix), exchange=exchange)
    other = f", {changed.exchanged:,} exchanged" if changed.exchanged else ""
    known = f"; {counted(changed.known, 'image')} known before" if changed.known else ""
    output(f"added {_many(changed)}{other}{known}")
    show_index(folder)


def delete_with(folder: Path, names: Sequence[str]) -> None:
    """Forget images with their captions, or captions, by id.

    Raises:
        ValueError: an id is not there; then nothing is forgotten.
    """
    with open_index(folder) as found:
        output(f"deleted {_many(delete(found, names))}")
    show_index(folder)


def show_index(folder: Path) -> None:
    """Say what is in an index."""
    with open_index(folder) as found:
        state = found.index.state
        where = f" at {state.address}" if state.address else ""
        output(f"{folder}: {found.told}, by {found.model_name}; {state.backend}{where}")


def search_index_with(folder: Path, query: str, source: Source | None, asking: Asking) -> list[Hit]:
    """Ask an index and show what it finds.

    Args:
        folder: of the index.
        query: a caption, the path of a picture, or an id of the index.
        source: data with features for the model that re-ranks.
        asking: how to ask.

    Raises:
        ValueError: the query is none of these, or the index cannot answer it.
    """
    if asking.page is not None:
        check_file(asking.page)
    corpus = source.open() if source is not None and asking.rerank else None
    reranker = open_reranker(asking.rerank, asking.depth, corpus)
    with open_index(folder, model=asking.model or None, rerank=reranker) as index:
        kind = _kind(index, query, asking.kind)
        find = _find(index, query, kind, asking.find)
        if kind == "id":
            hits = index.search_id(query, asking.top, find=find)
        else:
            (hits,) = index.search(
                [Path(query) if kind == "picture" else query], asking.top, find=find
            )
        told, name = index.told, index.model_name
    if asking.plain:
        results = [hit.plain() for hit in hits]
        about = {"index": str(folder), "model": name, "query": query, "as": kind, "find": find}
        print(json.dumps({**about, "results": results}, ensure_ascii=False, indent=2))
    else:
        hits_shown.table(query, hits, find)
    if asking.page is not None:
        hits_shown.write(query, hits, find, f"{folder}: {told}", asking.page)
        if not asking.plain:
            output(f"{asking.page}")
    return hits


def _corpus(source: Source, split: str, prefix: str) -> Corpus:
    bare = split == "all" and is_bare(Path(source.data))
    found = _bare(source) if bare else source.split(split)
    return prefixed(found, prefix) if prefix else found


def _bare(source: Source) -> Corpus:
    """Pictures alone, without those that somebody decided to drop."""
    folder, decided = Path(source.data), source.decisions or beside(source.data)
    if source.features is not None or source.images is not None:
        raise ValueError(
            f"{folder} holds pictures alone; --features and --images are read only with captions, "
            "leave them out"
        )
    corpus = read_bare(folder)
    if decided is None:
        return corpus
    corpus = decide(corpus, read_decisions(Path(decided)))
    output(f"{corpus.name}, as decided: {corpus.decided}")
    return corpus


def _backend(name: str) -> Backend:
    known: tuple[Backend, ...] = get_args(Backend)
    for backend in known:
        if backend == SHORT.get(name, name):
            return backend
    raise ValueError(unknown(name, list(known), "a backend"))


def _kind(index: SearchIndex, query: str, given: str) -> Kind:
    """What a query is."""
    known: tuple[Kind, ...] = get_args(Kind)
    if given:
        for kind in known:
            if kind == given:
                return kind
        raise ValueError(unknown(given, list(known), "a kind of query"))
    path = Path(query)
    if is_picture_name(path) and path.is_file():
        return "picture"
    if query in index.index.images.rows or query in index.index.texts.rows:
        return "id"
    if is_picture_name(path):
        raise ValueError(
            f"{query} does not exist, and no image of {index.folder} has this id; give a caption "
            "in quotes, an existing picture or an id"
        )
    return "caption"


def _find(index: SearchIndex, query: str, kind: Kind, given: str) -> Find:
    """What is to be found: by default the other than the query, where there is any."""
    for find in SIDES:
        if find == given:
            return find
    if given:
        raise ValueError(unknown(given, list(SIDES), "something to find"))
    if kind == "caption" or (kind == "id" and index.named(query)[0] == "text"):
        return "images"
    return "captions" if len(index.index.texts) else "images"


def _many(changed: Changed) -> str:
    return f"{counted(changed.images, 'image')} and {counted(changed.texts, 'caption')}"
