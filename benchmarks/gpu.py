"""All checks and figures that need a GPU, in nine minutes: ``python -m benchmarks.gpu``.

It needs counterfoil with its dependencies, Python 3.12 and PyTorch 2.11 for CUDA, and no network.
Beside a machine without one, ``pip download --python-version 3.12 --only-binary=:all: -d wheels``
fetches the dependencies, and ``pip install --no-index --find-links wheels`` installs them there.

Sections run one after another, the most important first, each in a process of its own, so that a
kernel that ends its CUDA context ends one section. Every row is in the JSON file as soon as it is
known, and when the time is over the section is killed. ``--device cpu --tiny`` tries it all
without a GPU. A row has a section, a name, and

- of a check, `value`, the largest difference relative to the largest value, and `target`;
- of a figure, `value` in `unit`, "x" for a ratio to the plain product of the same call, and
  `target`, its least value where `unit` is "of peak", its largest elsewhere;
- of what failed, `error`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed import gpu_mining
from benchmarks.speed.bags import bfan, chan, scan
from benchmarks.speed.pools import CAPTIONS, member, pool
from counterfoil import gpu, kernels
from counterfoil.core.io import write_json
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Embeddings
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.models.layers.fused import prepare_context
from counterfoil.negatives.mining import mine_lists
from counterfoil.scoring.encode import EmbeddedDataset

NO_NUMBER = 1e30  # stands for NaN, which JSON does not have
Row = dict[str, Any]
Inputs = tuple[Tensor, ...]


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    device: torch.device
    product: int = 8192  # side of the square product that gives the peak
    block: tuple[int, int] = (512, 1024)  # images and texts of a block of scores
    width: int = 1024
    late: int = 128  # width of late interaction
    vectors: tuple[int, int, int] = (29_000, 145_000, 512)  # mined as one vector per item
    bags: tuple[int, int] = (29_000, 145_000)  # mined by SCAN
    pairs: tuple[int, int] = (16_384, 512)  # of the contrastive loss, and their width
    # queries, their vectors, documents and theirs, of MaxSim beside packages: (512 pictures, 1,024
    # captions of 2 to 20 words), text retrieval, and pages of documents
    late_shapes: tuple[tuple[int, int, int, int], ...] = (
        (1024, 20, 512, 36),
        (1, 32, 1000, 300),
        (1, 1024, 1000, 1024),
    )
    checked: tuple[int, int, int] = (37, 53, 96)
    repeats: int = 5
    limit: float = 216.0  # seconds of a section

    def small(self) -> Sizes:
        """Sizes that a CPU passes in seconds."""
        return replace(
            self,
            product=64,
            block=(4, 6),
            width=32,
            late=32,
            vectors=(40, 80, 16),
            bags=(16, 32),
            pairs=(32, 16),
            late_shapes=((6, 4, 4, 5), (1, 3, 4, 7)),
            checked=(3, 5, 16),
            repeats=1,
        )


# Stopwatch and rows.


def seconds(work: Callable[[], object], sizes: Sizes) -> float:
    """Median seconds of some calls, after one."""
    work()
    times = []
    for _ in range(sizes.repeats):
        _wait(sizes.device)
        start = time.perf_counter()
        work()
        _wait(sizes.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def figure(name: str, value: float, unit: str, target: float | None = None, note: str = "") -> Row:
    """A row of something measured."""
    least = unit == "of peak"
    met = None if target is None else (value >= target if least else value <= target)
    return {
        "name": name, "value": value, "unit": unit, "target": target, "met": met, "note": note
    }  # fmt: skip


def check(name: str, found: Sequence[Tensor], wanted: Sequence[Tensor], bound: float) -> Row:
    """A row of the largest difference, relative to the largest value of each tensor."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        one, other = one.detach().cpu().double(), other.detach().cpu().double()
        scale = max(1e-30, float(other.abs().max()))
        difference = float((one - other).abs().max()) / scale
        worst = max(worst, difference if math.isfinite(difference) else NO_NUMBER)
    return figure(name, worst, "difference", bound)


# Kernels: each name of `counterfoil.kernels` with its cases.


def bags(images: int, texts: int, width: int, sizes: Sizes, *, ragged: bool) -> Inputs:
    """Float32 unit vectors and masks of images and texts."""
    regions = 36 if images > 8 else 5
    left = gpu_mining.bag(
        images, regions, regions - 3 if ragged else regions, width, sizes.device, 0
    )
    right = gpu_mining.bag(texts, 20 if images > 8 else 4, 2, width, sizes.device, 1)
    return left.tokens, right.tokens, left.mask, right.mask


Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _attention(**settings: Any) -> Function:
    return lambda a, b, m, n: kernels.attention_scores(a, b, m, n, **settings)


def _max_sim(**settings: Any) -> Function:
    return lambda a, b, m, n: kernels.max_sim(a, b, m, n, **settings)


SCORES: dict[str, tuple[tuple[str, Function], ...]] = {
    "max_sim": (
        ("MaxSim t2i", _max_sim(pooling="Sum")),
        ("MaxSim i2t", _max_sim(direction="i2t")),
        ("CHAN VHA", _max_sim(pooling="LogSumExp", sharpness=10.0)),
    ),
    "attention_scores": (
        ("SCAN t2i", _attention(sharpness=9.0, pooling="LogSumExp")),
        ("SCAN i2t", _attention(direction="i2t", sharpness=4.0, pooling="LogSumExp")),
        ("BFAN equal", _attention(sharpness=20.0, focus="equal")),
        ("BFAN prob", _attention(direction="i2t", sharpness=20.0, focus="prob")),
    ),
}
OTHERS = {"tiled_info_nce", "top_k"}  # kernels with sections of their own
GOALS = {"max_sim": 2.0, "attention_scores": 4.0}  # × the plain product in bfloat16


def existing() -> Iterator[tuple[str, Function]]:
    """The cases of the kernels that this version has."""
    for name, cases in SCORES.items():
        if name in kernels.__all__:
            yield from cases


def with_gradient(work: Function, inputs: Inputs, dtype: torch.dtype) -> list[Tensor]:
    """Scores and the gradients of both sides."""
    a, b, *masks = inputs
    a, b = (x.detach().to(dtype).requires_grad_() for x in (a, b))
    scores = work(a, b, *masks)
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
    scores.backward(weights.to(scores))
    return [scores, *_gradients(a, b)]


def _gradients(*leaves: Tensor) -> list[Tensor]:
    grads = [leaf.grad for leaf in leaves]
    return [grad for grad in grads if grad is not None]


def missing_kernels(sizes: Sizes) -> Iterator[Row]:
    """An error where a GPU runs no kernel: the torch form would be compared with itself."""
    if sizes.device.type == "cuda" and not (gpu.installed() and gpu.launches(sizes.device)):
        yield {"name": "kernels", "error": "none runs on this device; rows are of the torch form"}


def kernel_checks(sizes: Sizes) -> Iterator[Row]:
    """Every kernel against the torch form in float64, with ragged bags."""
    yield from missing_kernels(sizes)
    unknown = {*kernels.__all__} - {*SCORES} - OTHERS - {"use"}
    for name in sorted(unknown):
        yield {"name": name, "error": "benchmarks.gpu has no case of this kernel"}
    inputs = bags(*sizes.checked, sizes, ragged=True)
    for name, work in existing():
        for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
            rounded = (*(x.to(dtype) for x in inputs[:2]), *inputs[2:])
            # BFAN drops context below a threshold, and in half precision on either side of it
            if dtype == torch.bfloat16 and name.startswith("BFAN"):
                continue
            try:
                found = with_gradient(work, rounded, dtype)
                wanted = with_gradient(work, rounded, torch.float64)
                yield check(f"{name}, {dtype}", found, wanted, bound)
            except RuntimeError as error:
                yield {"name": f"{name}, {dtype}", "error": _sentence(error)}
    yield from _contrastive_check(sizes)
    yield from _top_k_check(sizes)


def _contrastive_check(sizes: Sizes) -> Iterator[Row]:
    images, texts, own = _pairs(sizes, sizes.checked[0], sizes.checked[2])
    both = []
    for dtype in (torch.float32, torch.float64):
        a, b = (x.detach().to(dtype).requires_grad_() for x in (images, texts))
        loss = kernels.tiled_info_nce(a, b, own)
        loss.backward()  # type: ignore[no-untyped-call]
        both.append([loss, *_gradients(a, b)])
    yield check("contrastive loss, torch.float32", both[0], both[1], 1e-4)


def _top_k_check(sizes: Sizes) -> Iterator[Row]:
    top_k = getattr(kernels, "top_k", None)
    if top_k is not None:
        images, texts, _ = _pairs(sizes, 4 * sizes.checked[0], sizes.checked[2])
        scores, rows = top_k(images, texts, 5)
        product = images.double() @ texts.double().T
        best = product.topk(5).values
        yield check("top-k scores, torch.float32", [scores], [best], 1e-5)
        yield check("scores of its rows", [product.gather(1, rows)], [best], 1e-5)


def _pairs(sizes: Sizes, count: int, width: int) -> Inputs:
    rng = torch.Generator(sizes.device).manual_seed(0)
    images = normalize(torch.randn(count, width, generator=rng, device=sizes.device), dim=1)
    noise = torch.randn(count, width, generator=rng, device=sizes.device) / width**0.5
    return images, normalize(images + noise, dim=1), torch.arange(count, device=sizes.device)


def kernel_speed(sizes: Sizes) -> Iterator[Row]:
    """Blocks of scores in bfloat16 against the product of regions and real words."""
    yield from missing_kernels(sizes)
    for name, work in existing():
        width = sizes.late if name.startswith("MaxSim") else sizes.width
        a, b, m, n = bags(*sizes.block, width, sizes, ragged=False)
        a, b = a.bfloat16(), b.bfloat16()
        words = gpu_mining.whole(b[n])
        plain = _product(a.flatten(0, 1), words, sizes) * int(n.sum()) / len(words)
        operations = 2 * a.shape[0] * a.shape[1] * int(n.sum()) * width
        with torch.no_grad():
            forward = seconds(lambda w=work, x=(a, b, m, n): w(*x), sizes)  # type: ignore[misc]
        note = f"{forward * 1e3:.2f} ms, plain {plain * 1e3:.2f} ms"
        goal = GOALS[next(kernel for kernel, cases in SCORES.items() if (name, work) in cases)]
        late = name.startswith("MaxSim")  # whose goal is `late_interaction`'s
        target = None if late else goal
        yield figure(f"{name}, forward, bf16, width {width}", forward / plain, "x", target, note)
        if late:
            share = operations / forward / peak(sizes)
            yield figure(f"{name}, forward, bf16, width {width}", share, "of peak", None, note)
        inputs = (a, b, m, n)
        trained = seconds(
            lambda w=work, x=inputs: with_gradient(w, x, torch.bfloat16),  # type: ignore[misc]
            sizes,
        )
        yield figure(f"{name}, forward + backward, bf16", trained / plain, "x")
        with kernels.use("never"), torch.no_grad():
            torch_form = seconds(lambda w=work, x=inputs: w(*x), sizes)  # type: ignore[misc]
        yield figure(f"{name}, forward in torch, bf16", torch_form / plain, "x")


def _product(left: Tensor, right: Tensor, sizes: Sizes) -> float:
    return seconds(lambda: left @ right.T, sizes)


def peak(sizes: Sizes, dtype: torch.dtype = torch.bfloat16) -> float:
    """Operations a second of a large square product."""
    square = torch.randn(sizes.product, sizes.product, device=sizes.device).to(dtype)
    return 2 * sizes.product**3 / _product(square, square, sizes)


# MaxSim beside packages that people use, each installed by ``pip install`` of its name.


def _flash_maxsim(a: Tensor, b: Tensor, m: Tensor, n: Tensor) -> Tensor:
    package: Any = import_module("flash_maxsim")
    lengths = {"doc_lengths": n.sum(1)}
    if a.shape[1] <= 128:  # longer queries are cut into parts of 128, without their lengths
        lengths["query_lengths"] = m.sum(1)
    scores: Tensor = package.flash_maxsim_batched(a, b, **lengths)
    return scores


def _late_interaction_kernels(a: Tensor, b: Tensor, m: Tensor, n: Tensor) -> Tensor:
    package: Any = import_module("late_interaction_kernels")
    scores: Tensor = package.maxsim(a, b, q_mask=m, d_mask=n)
    return scores


PACKAGES: dict[str, Function] = {
    "flash-maxsim": _flash_maxsim,
    "late-interaction-kernels": _late_interaction_kernels,
}


def late_interaction(sizes: Sizes) -> Iterator[Row]:
    """MaxSim of float16 vectors, beside each package that is installed, by length."""
    yield from missing_kernels(sizes)
    ways: dict[str, Function] = {"counterfoil": _max_sim(pooling="Sum", direction="i2t")}
    for name, way in PACKAGES.items():
        if find_spec(name.replace("-", "_")) is None:
            yield {"name": name, "note": f"not measured: `pip install {name}` first"}
        elif sizes.device.type != "cuda" and not gpu.interpreted():
            yield {"name": name, "note": "not measured: it needs a GPU"}
        else:
            ways[name] = way
    for queries, words, documents, vectors in sizes.late_shapes:
        shape = f"MaxSim {queries} x {words} with {documents:,} x {vectors}, float16"
        sides = (
            gpu_mining.bag(
                queries, words, 2 if queries > 1 else words, sizes.late, sizes.device, 0
            ),
            gpu_mining.bag(documents, vectors, vectors, sizes.late, sizes.device, 1),
        )
        # flash-maxsim 0.3 overlooks the queries' lengths below 500 pairs: padding is zero
        vectors_of = (x.tokens.half() * x.mask.unsqueeze(-1) for x in sides)
        inputs = (*vectors_of, *(x.mask for x in sides))
        found = {name: way(*inputs) for name, way in ways.items()}
        for name in [*ways][1:]:
            yield check(f"{shape}, {name}", [found[name]], [found["counterfoil"]], 1e-2)
        times = _in_turn(ways, inputs, sizes)
        real = int(inputs[2].sum()) * int(inputs[3].sum())
        for name, spent in times.items():
            share = 2 * real * sizes.late / spent / 1e12
            yield figure(f"{shape}, {name}", spent * 1e3, "ms", None, f"{share:.1f} TFLOPS")
        if len(times) > 1:
            best = min(spent for name, spent in times.items() if name != "counterfoil")
            yield figure(f"{shape}, to the faster package", times["counterfoil"] / best, "x", 1.0)


def _in_turn(ways: dict[str, Function], inputs: Inputs, sizes: Sizes) -> dict[str, float]:
    """Median seconds of each way, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(4 * sizes.repeats):
        for name, way in ways.items():
            _wait(sizes.device)
            start = time.perf_counter()
            way(*inputs)
            _wait(sizes.device)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}


# Sections.


def machine(sizes: Sizes) -> Iterator[Row]:
    """The device, its products, and its memory."""
    cuda = sizes.device.type == "cuda"
    name = torch.cuda.get_device_name(sizes.device) if cuda else platform.machine()
    triton = "none" if find_spec("triton") is None else __import__("triton").__version__
    note = f"torch {torch.__version__}, CUDA {torch.version.cuda}, triton {triton}"
    yield {"name": name, "note": f"{note}, Python {platform.python_version()}"}
    for dtype in (torch.bfloat16, torch.float32):
        yield figure(f"product, {dtype}", peak(sizes, dtype) / 1e12, "TFLOPS")
    numbers = torch.zeros(sizes.product, sizes.product, device=sizes.device)
    moved = 2 * numbers.numel() * 4 / seconds(lambda: numbers.clone(), sizes)
    yield figure("copy", moved / 1e9, "GB/s")


def model_checks(sizes: Sizes) -> Iterator[Row]:
    """Models with and without kernels on the device, against the CPU in float32."""
    images, texts, width = sizes.checked
    a, b, m, n = (x.cpu() for x in bags(images, texts, width, sizes, ragged=True))
    models = {
        "SCAN t2i": scan("t2i", width),
        "SCAN i2t": scan("i2t", width),
        "BFAN equal": bfan("equal", width),
        "CHAN VHA": chan("VHA", "LSE", width),
        "CHAN VSA": chan("VSA", "LSE", width),
    }
    for name, model in models.items():

        def score(a: Tensor, b: Tensor, m: Tensor, n: Tensor, model: Any = model) -> Tensor:
            scores: Tensor = model.score_matrix(Embeddings(a, m), Embeddings(b, n))
            return scores

        wanted = with_gradient(score, (a, b, m, n), torch.float32)
        model.to(sizes.device)
        there = tuple(x.to(sizes.device) for x in (a, b, m, n))
        for mode in ("auto", "never"):
            with kernels.use(mode):
                found = with_gradient(score, there, torch.float32)
            yield check(f"{name}, kernels {mode}", found, wanted, 1e-4)


def verbs(sizes: Sizes) -> Iterator[Row]:
    """A smoke recipe with mining and two rounds of training, evaluation, an index and a search."""
    from counterfoil.cli import main as command

    data = ["--data", f"scenes:images={60 if sizes.repeats == 1 else 600}"]
    with tempfile.TemporaryDirectory() as folder:
        run, model, index = (f"{folder}/{name}" for name in ("run", "run/adaptive", "index"))
        half = ["--set", "online.precision=bf16", "--set", "adaptive.precision=bf16"]
        for words in (
            ["run", "aoq", "--smoke", *data, "--output", run],
            ["run", "aoq", "--smoke", *data, "--output", f"{run}-half", *half],
            ["evaluate", model, *data],
            ["mine", model, *data, "--output", f"{folder}/lists", "--precision", "bf16"],
            ["index", model, data[1], "--output", index],
            ["search", index, "a red circle", "--json"],
        ):
            start = time.perf_counter()
            with redirect_stdout(StringIO()):
                code = command([*words, "--device", sizes.device.type])
            row = figure(f"counterfoil {words[0]}", time.perf_counter() - start, "s")
            yield row if code == 0 else {"name": row["name"], "error": f"exit code {code}"}
            if code:
                return


def processes(sizes: Sizes) -> Iterator[Row]:
    """One process of NCCL (gloo without a GPU): a sum, which needs the library to start."""
    from torch import distributed

    backend = "nccl" if sizes.device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(
            backend, init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            values = torch.arange(8.0, device=sizes.device)
            distributed.all_reduce(values)
            yield check(f"{backend} all_reduce", [values], [torch.arange(8.0)], 0.0)
        finally:
            distributed.destroy_process_group()


def contrastive(sizes: Sizes) -> Iterator[Row]:
    """The tiled contrastive loss against the dense one: time and memory."""
    images, texts, own = _pairs(sizes, *sizes.pairs)
    a, b = (x.bfloat16().requires_grad_() for x in (images, texts))
    loss = InfoNCELoss(temperature=0.07)

    def tiled() -> None:
        kernels.tiled_info_nce(a, b, own).backward()  # type: ignore[no-untyped-call]

    def dense() -> None:
        loss((a @ b.T).float()).sum().backward()

    times = [(seconds(work, sizes), _peak_memory(work, sizes)) for work in (tiled, dense)]
    note = ", ".join(f"{s * 1e3:.1f} ms {m / 2**20:,.0f} MiB" for s, m in times)
    yield figure(
        f"contrastive loss of {sizes.pairs[0]:,}, forward + backward, tiled to dense",
        times[0][0] / times[1][0],
        "x",
        1.4,
        note,
    )


def _peak_memory(work: Callable[[], object], sizes: Sizes) -> int:
    if sizes.device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(sizes.device)
    before = torch.cuda.memory_allocated(sizes.device)
    work()
    return torch.cuda.max_memory_allocated(sizes.device) - before


def embeddings(sizes: Sizes) -> Iterator[Row]:
    """Mining from one vector per item, in both directions, against the product of all pairs."""
    images, texts, _ = pool(*sizes.vectors, signal=0.5)
    images, texts = images.to(sizes.device), texts.to(sizes.device)
    text_to_image = torch.arange(len(texts)) // CAPTIONS % len(images)
    kept = min(100, len(images) // 2)

    plain = seconds(lambda: _multiply(images, texts), sizes)
    mined = seconds(
        lambda: mine_lists(
            [member(images, texts)], text_to_image, texts_per_image=kept, images_per_text=kept
        ),
        replace(sizes, repeats=1),
    )
    size = " x ".join(f"{value:,}" for value in sizes.vectors)
    note = f"{mined:.2f} s, plain {plain:.2f} s"
    yield figure(f"mining {size}, float32", mined / plain, "x", 2.0, note)
    if (top_k := getattr(kernels, "top_k", None)) is not None:
        left, right = images.bfloat16(), texts.bfloat16()
        half = seconds(lambda: _multiply(left, right), sizes)
        best = seconds(lambda: top_k(left, right, kept), sizes)
        note = f"{best:.3f} s, plain {half:.3f} s"
        yield figure(f"top-k of {size}, bf16, one direction", best / half, "x", 2.0, note)

        def both_ways() -> None:  # what mining would be with thresholds in the epilogue
            own = torch.arange(len(images), device=images.device)
            owners = text_to_image.to(images.device)
            top_k(images, texts, kept, own, owners)
            top_k(texts, images, kept, owners, own)

        best = seconds(both_ways, sizes)
        note = f"{best:.3f} s, plain {plain:.3f} s"
        yield figure(f"top-k of {size}, float32, both ways", best / plain, "x", 2.0, note)


def _multiply(images: Tensor, texts: Tensor) -> None:
    for part in torch.split(images, 2048):
        torch.mm(part, texts.T)


def self_mining(sizes: Sizes) -> Iterator[Row]:
    """SCAN mines a training set of the size of Flickr30K, by way of bfloat16 and in float32."""
    images, texts = sizes.bags
    regions = gpu_mining.bag(images, 36, 36, sizes.width, sizes.device, 0)
    words = gpu_mining.bag(texts, 20, 8, sizes.width, sizes.device, 1)
    plain = gpu_mining.plain(regions, words)
    model = gpu_mining.Counting(scan("t2i", sizes.width).to(sizes.device))
    data = EmbeddedDataset(model, prepare_context(regions, gram=True), words)
    for half in (True, False):  # so that what is timed compiles nothing
        with torch.no_grad(), torch.autocast(sizes.device.type, torch.bfloat16, enabled=half):
            model.score_matrix(data.images.rows(slice(1024)), data.texts.rows(slice(4096)))
    longest = 0.32 * sizes.limit  # of each way; the rest is for what came before
    until = [0.0]
    for name, way in gpu_mining.ways(data, lambda: time.perf_counter() > until[0]):
        model.scored, start = 0, time.perf_counter()
        until[0] = start + longest
        try:
            said = way()
        except WorkStopped:
            said = f"stopped after {longest:.0f} s, and the rest is extrapolated"
        done = min(1.0, model.scored / (images * texts))
        spent = (time.perf_counter() - start) / max(done, 1e-9)
        what = f"SCAN t2i mines itself, {images:,} x {texts:,}, {name}"
        yield figure(what, spent, "s", 30.0, said)
        ratio = spent / (plain.half * images * texts)
        yield figure(f"{what}, to the bf16 product", ratio, "x")


def compiled_ahead(sizes: Sizes) -> Iterator[Row]:
    """Launch what checks and figures will launch, each kernel in a process of its own.

    Triton compiles at the first launch, on one core, and keeps the result on disk.
    """
    names = [name for name, _ in existing()]
    if sizes.device.type != "cuda":
        yield {"name": ", ".join(names), "note": "nothing to compile"}
        return
    start = time.perf_counter()
    with ProcessPoolExecutor(len(names), get_context("spawn")) as pool:
        list(pool.map(_launch_once, names, repeat(sizes)))
    yield figure("all kernels compiled", time.perf_counter() - start, "s")


def _launch_once(name: str, sizes: Sizes) -> None:
    work = dict(existing())[name]
    late = name.startswith("MaxSim")
    small = bags(*sizes.checked, sizes, ragged=True)
    large = bags(*sizes.block, sizes.late if late else sizes.width, sizes, ragged=False)
    calls = (small, torch.float32), (small, torch.bfloat16), (large, torch.bfloat16)
    for inputs, dtype in calls:
        with suppress(RuntimeError):  # which the checks will say
            work(*(x.to(dtype) for x in inputs[:2]), *inputs[2:])
            with_gradient(work, inputs, dtype)


SECTIONS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "machine": machine,
    "compilation": compiled_ahead,
    "kernel checks": kernel_checks,
    "kernel speed": kernel_speed,
    "late interaction": late_interaction,
    "self-mining": self_mining,
    "models": model_checks,
    "embeddings": embeddings,
    "contrastive": contrastive,
    "processes": processes,
    "verbs": verbs,
}
MOST = 0.4  # share of the time left that one section may take


def run_section(name: str, sizes: Sizes, output: Path) -> None:
    """Run a section and add each row to the file."""
    try:
        for row in SECTIONS[name](sizes):
            add(output, {"section": name, **row})
    except Exception as error:  # the next section is as important
        add(output, {"section": name, "name": name, "error": _sentence(error)})


def add(output: Path, row: Row) -> None:
    """Add a row to the JSON file, and print it."""
    rows = json.loads(output.read_text("utf-8")) if output.exists() else []
    write_json(output, [*rows, row])
    shown = ("section", "name", "value", "unit", "target", "met", "note", "error")
    print(" | ".join(str(row[key]) for key in shown if row.get(key) not in (None, "")), flush=True)


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def run_all(minutes: float, output: Path, child: Sequence[str]) -> None:
    """Run every section in a process of its own, until the time is over.

    Args:
        minutes: for all sections.
        output: JSON file of the rows.
        child: command that runs the section whose name it is given.
    """
    until = time.monotonic() + 60 * minutes
    for name in SECTIONS:
        left = until - time.monotonic()
        try:
            if left <= 0:
                raise subprocess.TimeoutExpired(name, 0)
            limit = max(MOST * left, min(left, 60))
            words = ["--section", name, "--seconds", f"{limit:.0f}"]
            done = subprocess.run([*child, *words], timeout=limit, check=False)
            if done.returncode:
                error = f"its process ended with {done.returncode}"
                add(output, {"section": name, "name": name, "error": error})
        except subprocess.TimeoutExpired as late:
            error = f"stopped after {late.timeout:.0f} s" if late.timeout else "no time was left"
            add(output, {"section": name, "name": name, "error": error})


def main(given: Sequence[str] | None = None) -> int:
    """Run all sections, or one of them in this process; 1 where a row failed or missed."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything together")
    parser.add_argument("--output", type=Path, default=Path("gpu.json"), help="a new JSON file")
    parser.add_argument("--device", default=default)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--section", choices=SECTIONS, help="only this one, in this process")
    parser.add_argument("--seconds", type=float, default=216.0, help="for this section")
    asked = parser.parse_args(given)
    sizes = Sizes(torch.device(asked.device), limit=asked.seconds)
    if asked.tiny:
        sizes = sizes.small()
    if asked.section:
        mode: Any = "always" if gpu.interpreted() else "auto"
        with kernels.use(mode):
            run_section(asked.section, sizes, asked.output)
        return 0
    if asked.output.exists():
        parser.error(f"{asked.output} exists; name another file with --output")
    words = ["--output", str(asked.output), "--device", asked.device]
    child = [sys.executable, "-m", "benchmarks.gpu", *words, *(["--tiny"] if asked.tiny else [])]
    run_all(asked.minutes, asked.output, child)
    rows = json.loads(asked.output.read_text("utf-8"))
    return int(any("error" in row or row.get("met") is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
