"""``python -m benchmarks.peers``: beside what people use instead, with random models and vectors.

Every arm of a contest does the same work in a process of its own, on one thread; the arms take
turns, three times (two where a round takes minutes). The figure is the median of their processor
seconds, without imports and without what is prepared beforehand; memory is the peak above what was
held before. Nothing is downloaded. ``--markdown FILE`` also writes the table; names choose
contests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.speed.memory import peak
from benchmarks.truths.table import markdown

WIDTH = 512
PHOTOS, PAIRS, BATCH = 256, 128, 32  # photos encoded; photos and captions trained on
EVALUATED, MINED, INDEXED = (5_000, 25_000), (2_000, 10_000), (30_000, 30_000)
TEXTS, IMAGES, FOUND = 100, 20, 10  # of each image, of each text; of a query
SLACK = 1.1
Work = Callable[[], object]
Arm = Callable[[Path], Work]  # prepares in a folder, and returns what is measured


@dataclass(frozen=True, slots=True)
class Contest:
    """Work that several arms do alike.

    Attributes:
        name: of the work, with its size.
        arms: what does it, by name; the names of ours begin with "counterfoil".
        most: what ours may take at most, as a multiple of the best of the others.
        seconds: what ours may take at most, where that is the target.
        rounds: how often each arm runs.
        reasons: why an arm of ours takes longer, where it may.
    """

    name: str
    arms: dict[str, Arm]
    most: float = SLACK
    seconds: float | None = None
    rounds: int = 3
    reasons: dict[str, str] = field(default_factory=dict)


# Data, made once.


def unit(rows: int, seed: int) -> torch.Tensor:
    """(rows, WIDTH) random unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, WIDTH, generator=generator), dim=1)


def write_vectors(folder: Path, images: int, texts: int) -> None:
    """Vectors of images, and of captions near the image that each describes."""
    folder.mkdir()
    stored, owners = unit(images, 0), torch.arange(texts) * images // texts
    captions = torch.nn.functional.normalize(stored[owners] + 4 * unit(texts, 1), dim=1)
    np.save(folder / "images.npy", stored.numpy())
    np.save(folder / "texts.npy", captions.numpy())
    written = [f"caption {row} of image {owner}" for row, owner in enumerate(owners.tolist())]
    (folder / "captions.json").write_text(json.dumps(written), encoding="utf-8")


def read_vectors(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and captions of `write_vectors`."""
    images, texts = (torch.from_numpy(np.load(folder / f"{s}.npy")) for s in ("images", "texts"))
    return images, texts


def write_photos(folder: Path) -> None:
    """JPEG photos of 500 × 375, as large as Flickr's, and a caption of each."""
    from PIL import Image

    folder.mkdir()
    rng, captions = np.random.default_rng(0), []
    for row in range(PHOTOS):
        small = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{row:03d}.jpg")
        words = " ".join(f"w{word}" for word in rng.integers(0, 49_000, 11))
        captions.append(f"{row:03d}.jpg,{words}\n")
    (folder / "captions.csv").write_text("image,caption\n" + "".join(captions), encoding="utf-8")


def write_clip(folder: Path) -> None:
    """A CLIP with random weights: 6 layers of width 384 and 256, patches of 32, 49,408 words."""
    import tokenizers
    import transformers

    words = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{row}" for row in range(49_404))]
    level = tokenizers.models.WordLevel({w: row for row, w in enumerate(words)}, "<unk>")
    inner = tokenizers.Tokenizer(level)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    marks = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=77, **marks
    )
    layers = {"num_hidden_layers": 6, "num_attention_heads": 8}
    text = {**layers, "hidden_size": 256, "intermediate_size": 1024}
    text |= {"vocab_size": len(words), "eos_token_id": 3, "pad_token_id": 0}
    vision = {**layers, "hidden_size": 384, "intermediate_size": 1536}
    vision |= {"image_size": 224, "patch_size": 32}
    torch.manual_seed(0)
    settings = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    transformers.CLIPModel(settings).save_pretrained(folder)
    pictures = transformers.CLIPImageProcessorPil()
    transformers.CLIPProcessor(pictures, fast).save_pretrained(folder)


def write_data(folder: Path) -> None:
    """All that the arms read."""
    write_clip(folder / "clip")
    write_photos(folder / "photos")
    for name, sizes in (("ev", EVALUATED), ("mine", MINED), ("index", INDEXED)):
        write_vectors(folder / name, *sizes)


def captions_of(folder: Path) -> list[tuple[Path, str]]:
    """Photos with their captions."""
    lines = (folder / "photos/captions.csv").read_text(encoding="utf-8").splitlines()[1:]
    pairs = (line.split(",") for line in lines)
    return [(folder / "photos" / name, caption) for name, caption in pairs]


# Fine-tuning: 8 steps of 32 pairs, AdamW, float32, the same temperature.


def step_seconds(vision: torch.nn.Module, work: Work) -> float:
    """Median processor seconds from one step's first module to the next one's."""
    starts: list[float] = []
    vision.register_forward_pre_hook(lambda *_: starts.append(time.process_time()))
    work()
    return median(np.diff(starts).tolist())


def tune_plainly(folder: Path) -> Work:
    from PIL import Image
    from transformers import CLIPModel, CLIPProcessor

    model, processor = (k.from_pretrained(folder / "clip") for k in (CLIPModel, CLIPProcessor))
    pairs = captions_of(folder)[:PAIRS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()
    images = [Image.open(path).convert("RGB") for path, _ in pairs]

    def work() -> float:
        def train() -> None:
            for start in range(0, 2 * PAIRS, BATCH):
                part = slice(start % PAIRS, start % PAIRS + BATCH)
                texts = [caption for _, caption in pairs[part]]
                given = {"return_tensors": "pt", "padding": True}
                out = model(**processor(text=texts, images=images[part], **given))
                left, right = out.image_embeds, out.text_embeds
                scores, own = left @ right.T / 0.07, torch.arange(len(left))
                nce = torch.nn.functional.cross_entropy
                loss = (nce(scores, own) + nce(scores.T, own)) / 2
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()

        return step_seconds(model.vision_model, train)

    return work


def tune_ours(folder: Path) -> Work:
    import counterfoil as cf

    model = cf.load_model(str(folder / "clip"))
    data = cf.load_dataset(folder / "photos")
    data = data if not hasattr(data, "keys") else data["train"]
    trainer = cf.Trainer(
        model,
        loss=cf.losses.InfoNCELoss(reduction="mean"),
        train=data.subset(torch.arange(PAIRS)),
        output=folder / f"tuned-{os.getpid()}",
        epochs=2,
        batch_size=BATCH,
        lr=1e-5,
    )
    vision = next(m for n, m in model.model.named_modules() if n.endswith("vision_model"))
    return lambda: step_seconds(vision, trainer.train)


def tune_by_sentence_transformers(folder: Path) -> Work:
    from datasets import Dataset, Image
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model, pairs = SentenceTransformer(str(folder / "clip"), device="cpu"), captions_of(folder)
    columns = {"image": [str(p) for p, _ in pairs[:PAIRS]], "text": [t for _, t in pairs[:PAIRS]]}
    rows = Dataset.from_dict(columns).cast_column("image", Image())
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / f"st-{os.getpid()}"),
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-5,
        report_to="none",
        save_strategy="epoch",
        disable_tqdm=True,
        use_cpu=True,
    )
    both = ("query_to_doc", "doc_to_query")
    loss = MultipleNegativesRankingLoss(model, scale=1 / 0.07, directions=both)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss)
    vision = next(m for n, m in model.named_modules() if n.endswith("vision_model"))
    return lambda: step_seconds(vision, trainer.train)


# Evaluation of vectors: recalls both ways.


def evaluate_plainly(folder: Path) -> Work:
    images, texts = read_vectors(folder / "ev")
    owners = torch.arange(len(texts)) * len(images) // len(texts)

    def work() -> None:
        scores = images @ texts.T
        found = owners[scores.topk(FOUND, 1).indices] == torch.arange(len(images)).unsqueeze(1)
        back = owners.unsqueeze(1) == scores.topk(FOUND, 0).indices.T
        for k in (1, 5, 10):
            float(found[:, :k].any(1).float().mean() + back[:, :k].any(1).float().mean())

    return work


def evaluate_by_torchmetrics(folder: Path) -> Work:
    """Fifty times the seconds of a fiftieth of the queries: the whole takes a minute."""
    from torchmetrics.functional.retrieval import retrieval_hit_rate

    images, texts = read_vectors(folder / "ev")
    owners = torch.arange(len(texts)) * len(images) // len(texts)
    rows, columns = (torch.arange(0, len(side), FIFTIETH) for side in (images, texts))

    def work() -> float:
        start = time.process_time()
        for scores, true in (
            (images[rows] @ texts.T, owners == rows.unsqueeze(1)),
            (texts[columns] @ images.T, torch.arange(len(images)) == owners[columns].unsqueeze(1)),
        ):
            for k in (1, 5, 10):
                [retrieval_hit_rate(one, own, top_k=k) for one, own in zip(scores, true)]
        return FIFTIETH * (time.process_time() - start)

    return work


FIFTIETH = 50


def evaluate_ours(folder: Path, *, intervals: bool = False) -> Work:
    import counterfoil as cf

    model, data = cf.load_model("vectors"), cf.load_dataset(folder / "ev")

    evaluate = cf.evaluate

    def work() -> None:
        result = evaluate(model, data)
        if intervals:
            str(result)

    return work


# Mining: 100 texts an image, 20 images a text.


def mine_ours(folder: Path) -> Work:
    import counterfoil as cf

    model, data = cf.load_model("vectors"), cf.load_dataset(folder / "mine")
    given, mine = {"texts_per_image": TEXTS, "images_per_text": IMAGES}, cf.mine_hard_negatives
    return lambda: mine(model, data, **given)


def mine_by_faiss(folder: Path) -> Work:
    import faiss

    faiss.omp_set_num_threads(1)
    images, texts = (side.numpy() for side in read_vectors(folder / "mine"))
    owners = np.arange(len(texts)) * len(images) // len(texts)
    own = len(texts) // len(images)

    def work() -> None:
        for stored, asked, count in ((texts, images, TEXTS + own), (images, texts, IMAGES + 1)):
            index = faiss.IndexFlatIP(WIDTH)
            index.add(stored)
            scores, rows = index.search(asked, count)
            if stored is texts:
                true = owners[rows] == np.arange(len(images))[:, None]
            else:
                true = rows == owners[:, None]
            np.where(true, -np.inf, scores).argsort(axis=1)

    return work


def mine_by_sentence_transformers(folder: Path) -> Work:
    """With a model that looks its vectors up."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    images, texts = read_vectors(folder / "mine")
    owners = (np.arange(len(texts)) * len(images) // len(texts)).tolist()
    known = {f"image {row}": vector for row, vector in enumerate(images.numpy())}
    known |= {f"text {row}": vector for row, vector in enumerate(texts.numpy())}

    class Known(SentenceTransformer):
        def __init__(self) -> None:
            super().__init__(modules=[torch.nn.Identity()], device="cpu")

        def encode(self, sentences: Any, **_: Any) -> Any:
            return np.stack([known[one] for one in sentences])

        encode_query = encode_document = encode

    pairs = Dataset.from_dict(
        {
            "image": [f"image {row}" for row in owners],
            "text": [f"text {n}" for n in range(len(texts))],
        }
    )
    model = Known()

    def work() -> None:
        for anchor, positive, count in (("image", "text", TEXTS), ("text", "image", IMAGES)):
            mine_hard_negatives(
                pairs,
                model,
                anchor_column_name=anchor,
                positive_column_name=positive,
                num_negatives=count,
                output_format="n-tuple",
                verbose=False,
            )

    return work


# An index of 60,000 vectors.


def build_ours(folder: Path) -> Work:
    import counterfoil as cf

    model, data = cf.load_model("vectors"), cf.load_dataset(folder / "index")
    build = cf.build_index
    return lambda: build(model, data, folder / f"index-{os.getpid()}")


def faiss_indexes(folder: Path) -> list[Any]:
    import faiss

    faiss.omp_set_num_threads(1)
    indexes = []
    for side in read_vectors(folder / "index"):
        indexes.append(faiss.IndexFlatIP(WIDTH))
        indexes[-1].add(side.numpy())
    return indexes


def build_by_faiss(folder: Path) -> Work:
    import faiss

    images, texts = (side.numpy() for side in read_vectors(folder / "index"))

    def work() -> None:
        for side, vectors in (("images", images), ("texts", texts)):
            index = faiss.IndexFlatIP(WIDTH)
            index.add(vectors)
            faiss.write_index(index, str(folder / f"{side}-{os.getpid()}.faiss"))

    return work


def our_index(folder: Path) -> Path:
    """The index of the vectors, made by whoever comes first."""
    import counterfoil as cf

    made = folder / "made"
    if not made.exists():
        cf.build_index(cf.load_model("vectors"), cf.load_dataset(folder / "index"), made)
    return made


def open_ours(folder: Path) -> Work:
    import counterfoil as cf

    made, model, opened = our_index(folder), cf.load_model("vectors"), cf.open_index
    return lambda: opened(made, model=model)


def open_by_faiss(folder: Path) -> Work:
    import faiss

    for side, index in zip(("images", "texts"), faiss_indexes(folder)):
        faiss.write_index(index, str(folder / f"{side}.faiss"))
    return lambda: [faiss.read_index(str(folder / f"{s}.faiss")) for s in ("images", "texts")]


def one_by_one(search: Callable[[int], object]) -> float:
    """Median processor seconds of a query, over 100 of them."""
    search(0)
    times = []
    for row in range(100):
        start = time.process_time()
        search(row)
        times.append(time.process_time() - start)
    return median(times)


def query_ours(folder: Path) -> Work:
    import counterfoil as cf

    images = cf.open_index(our_index(folder)).vectors.images
    _, asked = read_vectors(folder / "index")
    return lambda: one_by_one(lambda row: images.search(asked[row : row + 1], FOUND))


def query_faiss(folder: Path) -> Work:
    index, (_, asked) = faiss_indexes(folder)[0], read_vectors(folder / "index")
    queries = asked.numpy()
    return lambda: one_by_one(lambda row: index.search(queries[row : row + 1], FOUND))


def query_torch(folder: Path) -> Work:
    images, asked = read_vectors(folder / "index")
    return lambda: one_by_one(lambda row: (asked[row : row + 1] @ images.T).topk(FOUND))


def queries_ours(folder: Path) -> Work:
    import counterfoil as cf

    images = cf.open_index(our_index(folder)).vectors.images
    _, asked = read_vectors(folder / "index")
    images.search(asked[:1], FOUND)
    return lambda: images.search(asked[:100], FOUND)


def queries_faiss(folder: Path) -> Work:
    index, (_, asked) = faiss_indexes(folder)[0], read_vectors(folder / "index")
    return lambda: index.search(asked[:100].numpy(), FOUND)


def queries_torch(folder: Path) -> Work:
    images, asked = read_vectors(folder / "index")
    return lambda: (asked[:100] @ images.T).topk(FOUND)


# Photos from files.


def encode_plainly(folder: Path) -> Work:
    from PIL import Image
    from transformers import CLIPModel, CLIPProcessor

    model, processor = (k.from_pretrained(folder / "clip") for k in (CLIPModel, CLIPProcessor))
    paths = [path for path, _ in captions_of(folder)]

    @torch.inference_mode()
    def work() -> None:
        for start in range(0, len(paths), BATCH):
            images = [Image.open(path).convert("RGB") for path in paths[start : start + BATCH]]
            model.get_image_features(**processor(images=images, return_tensors="pt"))

    return work


def encode_ours(folder: Path) -> Work:
    import counterfoil as cf

    model, paths = cf.load_model(str(folder / "clip")), [path for path, _ in captions_of(folder)]
    return lambda: model.encode(paths)


def index_photos(folder: Path, workers: int = 0) -> Work:
    import counterfoil as cf

    model = cf.load_model(str(folder / "clip"))
    bare = folder / f"bare-{os.getpid()}"
    bare.mkdir()
    for path, _ in captions_of(folder):
        (bare / path.name).symlink_to(path)
    data, build = cf.load_dataset(bare), cf.build_index
    return lambda: build(model, data, folder / f"i-{os.getpid()}", workers=workers)


CONTESTS = {
    "tune": Contest(
        "a step of fine-tuning a CLIP of 29 M parameters, 32 photos (median of 8)",
        {
            "bare loop": tune_plainly,
            "counterfoil, Trainer": tune_ours,
            "sentence-transformers, MNRL both ways": tune_by_sentence_transformers,
        },
        rounds=2,
    ),
    "evaluate": Contest(
        "recalls of 5,000 × 25,000",
        {
            "torch, topk": evaluate_plainly,
            "torchmetrics, from a fiftieth of the queries": evaluate_by_torchmetrics,
            "counterfoil": evaluate_ours,
            "counterfoil, with intervals": lambda folder: evaluate_ours(folder, intervals=True),
        },
        reasons={"counterfoil, with intervals": "the bootstrap, which the others lack"},
    ),
    "mine": Contest(
        "mining 2,000 × 10,000, 100 texts and 20 images",
        {
            "faiss, both ways": mine_by_faiss,
            "sentence-transformers, both ways": mine_by_sentence_transformers,
            "counterfoil": mine_ours,
        },
    ),
    "build": Contest(
        "an index of 30,000 images and 30,000 captions",
        {"faiss, vectors alone": build_by_faiss, "counterfoil": build_ours},
        seconds=2.0,
    ),
    "open": Contest(
        "opening it",
        {"faiss, vectors alone": open_by_faiss, "counterfoil": open_ours},
    ),
    "query": Contest(
        "one query of it (median of 100)",
        {"faiss": query_faiss, "torch": query_torch, "counterfoil": query_ours},
        most=1.5,
    ),
    "queries": Contest(
        "100 queries at once",
        {"faiss": queries_faiss, "torch": queries_torch, "counterfoil": queries_ours},
    ),
    "photos": Contest(
        f"{PHOTOS} photos from files",
        {
            "bare loop, 32 at a time": encode_plainly,
            "counterfoil, Model.encode": encode_ours,
            "counterfoil, build_index": index_photos,
            "counterfoil, build_index, 2 workers": lambda folder: index_photos(folder, 2),
        },
        most=1 / 0.95,
        rounds=2,
        reasons=dict.fromkeys(
            ("counterfoil, build_index", "counterfoil, build_index, 2 workers"),
            "also files' digests, checksums, the model's identity and copy, and the index",
        ),
    ),
}


def measured(work: Work) -> dict[str, float]:
    """Processor and wall seconds of work, or those that it measures itself, and its peak."""
    found: dict[str, float] = {}

    def timed() -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        own = work()
        found["wall"] = time.perf_counter() - wall
        found["cpu"] = own if isinstance(own, float) else time.process_time() - cpu

    memory = peak(timed)
    return found | {"peak": float("nan") if memory is None else memory / 2**20}


def run_arm(contest: str, arm: str, folder: Path) -> dict[str, float]:
    """Measure an arm in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.peers", "--arm", contest, arm, str(folder))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["COUNTERFOIL_CACHE"] = str(folder / "cache")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{contest}, {arm}:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows_of(name: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """The rows of a contest: work, arm, seconds, range, to the best other, memory, target."""
    contest = CONTESTS[name]
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in contest.arms}
    for _ in range(contest.rounds):
        for arm, found in runs.items():
            found.append(run_arm(name, arm, folder))
    times = {arm: median(run["cpu"] for run in found) for arm, found in runs.items()}
    others = [cpu for arm, cpu in times.items() if not _ours(arm)]
    for arm, found in runs.items():
        all_times = sorted(run["cpu"] for run in found)
        ratio, target = times[arm] / min(others), ""
        if _ours(arm):
            limit = contest.most * min(others) if contest.seconds is None else contest.seconds
            wanted = f"{contest.most:.2f} ×" if contest.seconds is None else f"{limit:g} s"
            reason = f": {contest.reasons[arm]}" if arm in contest.reasons else ""
            target = wanted if times[arm] <= limit else f"{wanted} **missed**{reason}"
        yield (
            contest.name if arm == next(iter(runs)) else "–",
            arm,
            _seconds(times[arm]),
            f"{_seconds(all_times[0])} to {_seconds(all_times[-1])}",
            f"{ratio:.2f}",
            target,
            f"{median(run['peak'] for run in found):,.0f}",
            f"{median(run['wall'] for run in found):.2f}",
        )


def _ours(arm: str) -> bool:
    return arm.startswith("counterfoil")


def _seconds(value: float) -> str:
    return f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"


HEAD = ("work", "by", "CPU", "range", "to the best other", "target", "peak, MiB", "wall, s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and answer 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--arm", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.arm:
        contest, arm, folder = given.arm
        torch.set_num_threads(1)
        print(json.dumps(measured(CONTESTS[contest].arms[arm](Path(folder)))))
        return 0
    if unknown := sorted(set(given.names) - set(CONTESTS)):
        parser.error(f"unknown contest {unknown[0]!r}; choose from {', '.join(CONTESTS)}")
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, one thread, float32")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for name in given.names or CONTESTS:
            for row in rows_of(name, Path(folder)):
                print(" | ".join(row), flush=True)
                rows.append(row)
    if given.markdown:
        given.markdown.write_text("\n".join(markdown(HEAD, rows)) + "\n", encoding="utf-8")
    missed = sum("missed" in row[5] for row in rows)
    print(f"{sum(bool(row[5]) for row in rows) - missed} targets met, {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
