"""Kinds of bad input: what is prepared, what is typed, and what the answer has to name.

A case prepares files in an empty folder, which is also where the command runs, and returns the
command line. `models` has the model folders and the finished run of tests/cli/conftest.py.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import hub_cases
import recipes_cases
from analysis_cases import REGIONS, reader, taught, write_run
from corpus_cases import karpathy_image, random_array, write_karpathy, write_picture, write_split
from counterfoil.core.config import config_from_dict
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.negatives.generation.store import GeneratedCaption, GeneratedStore

Case = Callable[[Path, Path], Sequence[object]]
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {}
SCENES = "scenes:images=36"


def case(*fragments: str) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        CASES[function.__name__] = (function, fragments)
        return function

    return keep


def typed(name: str, line: str, *fragments: str) -> None:
    """A command line that needs no files."""
    CASES[name] = (lambda here, models: line.split(), fragments)


typed("unknown verb", "runn demo", "No such command 'runn'", "Did you mean 'run'")
typed(
    "unknown option",
    "run aoq/vsepp-scenes --outputt x",
    "--outputt",
    "--output",
    "counterfoil run --help",
)
typed("missing argument", "run", "Missing argument 'recipe'", "counterfoil run --help")
typed("no model and no features", "features a b", "no image features", "features --model MODEL")
typed("batch of a conversion", "features a b --batch 3", "--batch is read only with --model")
typed("grid of regions", "features a b --model c --regions 3 --grid 2", "only without --regions")
typed("no number", "run aoq/vsepp-scenes --minutes soon", "'--minutes'", "valid number")
typed("negative minutes", "run aoq/vsepp-scenes --minutes -1", "'--minutes'", "greater than")
typed(
    "lists of nothing",
    "mine vectors --output x --texts 0",
    "'--texts'",
    "greater than or equal to 1",
)
typed("zero batch", "features a b --model c --batch 0", "'--batch'", "greater than or equal to 1")
typed("serve no index", "serve nowhere", "nowhere is no index", "counterfoil index")
typed("serve at no port", "serve nowhere --port 70000", "'--port'", "70000")
typed("serve a depth of nothing", "serve nowhere --depth 0", "'--depth'", "0")
typed("serve without time", "serve nowhere --seconds 0", "'--seconds'", "greater than")
typed("unknown recipe", "plan demoo", "'demoo' is not a recipe", "did you mean 'demo'")
typed("unknown host", "train scan-t2l --data scenes", "'scan-t2l'", "did you mean 'scan-t2i'")
typed(
    "unknown stage", "plan aoq/vsepp-scenes --set onlin.seed=1", "'onlin'", "did you mean 'online'"
)
typed(
    "unknown key", "plan aoq/vsepp-scenes --set online.epoks=1", "'epoks'", "did you mean 'epochs'"
)
typed(
    "unknown inner key",
    "plan aoq/vsepp-scenes --set online.model.image.widht=1",
    "did you mean 'width'",
)
typed("unknown key of all", "plan aoq/vsepp-scenes --set *.sead=1", "'sead'", "did you mean 'seed'")
typed(
    "no setting", "plan aoq/vsepp-scenes --set epochs", "'epochs' is no setting", "stage.key=value"
)
typed(
    "wrong kind of value",
    "plan aoq/vsepp-scenes --set online.epochs=many",
    "'many' is text",
    "whole number",
)
typed(
    "float for int",
    "plan aoq/vsepp-scenes --set online.epochs=1.5",
    "1.5 is a number",
    "a whole number",
)
typed("key below a number", "plan aoq/vsepp-scenes --set online.seed.x=1", "'x' is not a key")
typed(
    "negative batch", "run aoq/vsepp-scenes --set online.batch=-1", "batch=-1", "may not be below 0"
)
typed(
    "all at once", "run aoq/vsepp-scenes --set online.batch=0", "SwitchAfter", "HardestTripletLoss"
)
typed("all and few", "train vsepp --data scenes --batch-size few", "'few'", "all")
typed("a batch of nothing", "train vsepp --data scenes --batch-size 0", "'0'", "all")
typed("unknown lens", "run aoq/vsepp-scenes --set online.processor.images=pixles", "mean 'pixels'")
typed(
    "unknown protocol of a stage", "plan aoq/vsepp-scenes --set *.protocol=coco-1", "mean 'coco-1k'"
)
typed(
    "no number at all",
    "plan aoq/vsepp-scenes --set online.epochs=none",
    "None is none",
    "whole number",
)
typed("replaced whole", "plan aoq/vsepp-scenes --set online.model=3", "set one of", "image_pool")
typed("rate of nothing", "run aoq/vsepp-scenes --set online.rate=0.0", "rate=0.0", "above 0")
typed(
    "unknown precision",
    "run aoq/vsepp-scenes --set online.precision=fp61",
    "'fp61' is not a value of 'precision'",
)
typed("report of nothing", "report", "Missing argument 'runs")
typed("report of no run", "report nowhere", "nowhere holds no note of a stage", "folder of a run")
typed("audit nowhere", "audit scenes", "Missing option '--output'")
typed("audit of no data", "audit phots --output x", "phots does not exist")
typed("near nothing", "audit scenes --output x --near 0", "near=0", "above 0 and up to 1")
typed(
    "alike too much",
    "audit scenes --output x --negatives y --alike 2",
    "alike=2",
    "above 0 and up to 1",
)
typed("audit of no split", f"audit {SCENES} --output x --model vectors --split tst", "'tst'")
typed("audit no lists", f"audit {SCENES} --output x --negatives y", "y", "does not exist")
typed("no decisions", f"audit {SCENES} --output x --corrections d.jsonl", "d.jsonl does not exist")
typed("tuning of nothing", "train vsepp --tune lora --data scenes:images=12", "with --model")
typed(
    "forgetting of nothing", "train vsepp --other scenes --data scenes:images=12", "--other are for"
)
typed(
    "unknown loss of a pretrained model",
    "train tripelt --model a --data scenes:images=12",
    "did you mean 'triplet'",
)
typed(
    "unknown way to tune",
    "train triplet --model a --tune frozn --data scenes:images=12",
    "did you mean 'frozen'",
)
typed("choice of no dev", "interpolate a b --output c", "chosen on dev", "--data")
typed("alpha out of range", "interpolate a b --output c --alpha 2", "'--alpha'")
typed("no such data", "train vsepp --data phots", "phots does not exist", "captions.jsonl")
typed("hub name without hf:", "data check some/set", 'write "hf:some/set"')
typed("unknown setting of scenes", "data check scenes:image=9", "did you mean 'images'")
typed("scenes of no number", "data check scenes:images=x", "'images=x' needs a whole number")
typed("too few scenes", "data check scenes:images=0", "0 scenes", "give more images")
typed("unknown features of scenes", "data check scenes:features=region", "did you mean 'regions'")
typed("no such model", "evaluate no/model --data scenes:images=12", "no/model", "config.json")
typed("no such model folder", "evaluate ./nothing --data scenes:images=12", "./nothing")
typed("unknown split", "evaluate vectors --data scenes:images=12 --split tset", "mean 'test'")
typed("unknown protocol", "evaluate vectors --protocol coco-1", "'coco-1'", "mean 'coco-1k'")
typed(
    "depth of no shortlist", "evaluate vectors --depth 20", "--depth", "name a model with --first"
)
typed("full beside nothing", "evaluate vectors --full", "--full", "name a model with --first")
typed(
    "shortlists of nothing",
    "evaluate vectors --first vectors --depth 0",
    "'--depth'",
    "greater than or equal to 1",
)
typed("shortlists of extended", "evaluate vectors --first vectors --cxc x", "leave out --eccv")
typed(
    "stage of no depth", "plan aoq/vsepp-scenes --set test-online.depth=0", "depth=0", "at least 1"
)
typed("unknown tie rule", "evaluate vectors --ties optimist", "mean 'optimistic'")
typed("query for vectors", "search vectors dog --data scenes:images=12", "ready-made vectors")
typed("missing picture query", "search vectors dog.jpg --data scenes", "dog.jpg does not exist")
typed("unknown system", "convert scam a b c", "'scam'", "did you mean 'scan'")
typed("nothing to sweep", "sweep demo", "demo varies nothing", "add --over")
typed(
    "sweep over no key",
    "sweep aoq/vsepp-scenes --over online.rate",
    "no axis of a sweep",
    "key=value,value",
)
typed(
    "sweep over an unknown key",
    "sweep aoq/vsepp-scenes --over online.rte=1,2",
    "did you mean 'rate'",
)
typed(
    "sweep over wrong kinds", "sweep aoq/vsepp-scenes --over online.batch=8,many", "'many' is text"
)
typed("sweep over one value twice", "sweep aoq/vsepp-scenes --over online.batch=8,8", "8 twice")
typed(
    "sweep of no training", "sweep aoq/vsepp-scenes --over *.seed=1,2 --stage test", "'test' is not"
)
typed("sweep drawn too long", "sweep aoq/vsepp-scenes --over *.seed=1,2 --draw 3", "the grid has 2")
typed(
    "sweep of no seeds", "sweep aoq/vsepp-scenes --over *.batch=8,9 --seeds 0,one", "--seeds 0,one"
)
typed(
    "sweep of equals",
    "sweep aoq/vsepp-scenes --data scenes:images=36 --over online.minutes=1,2",
    "train the same 'adaptive'",
)
typed("unknown sweep", "sweep sweeps/tags-scene", "did you mean 'sweeps/tags-scenes'")
typed("sweep with a grid of its own", "sweep sweeps/tags-scenes --over a.b=1", "go with a recipe")
typed("no recipe file", "run mine.py", "mine.py does not exist", "sets `recipe`")


@case("mine.py does not set `recipe`")
def recipe_file_without_recipe(here, models):
    (here / "mine.py").write_text("x = 1\n")
    return "run", "mine.py"


@case("mine.py, line 2", "NameError", "oops")
def recipe_file_that_breaks(here, models):
    (here / "mine.py").write_text("x = 1\noops\n")
    return "plan", "mine.py"


@case("mine.py, line 1", "SyntaxError")
def recipe_file_that_is_no_python(here, models):
    (here / "mine.py").write_text("recipe = (\n")
    return "plan", "mine.py"


@case("reads 'lists', which no earlier stage writes")
def recipe_with_a_loose_end(here, models):
    (here / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from counterfoil.recipes.catalogue import find_recipe\n"
        "whole = find_recipe('aoq/vsepp-scenes')\n"
        "recipe = replace(whole, stages=whole.stages[:1] + whole.stages[2:])\n"
    )
    return "plan", "mine.py"


# data


def photos(here: Path, count: int = 12) -> Path:
    """A Karpathy data set of pictures with two captions each."""
    split = ["train", "train", "dev", "test"]
    images = [
        karpathy_image(f"{n}.png", split[n % 4], [f"a dog {n}", "the snow"], first=2 * n)
        for n in range(count)
    ]
    write_karpathy(here / "photos", images)
    return here / "photos"


TRAIN = ("train", "vsepp", "--data", "photos", *recipes_cases.SMALL)


@case("photos/images/4.png", "missing")
def missing_picture(here, models):
    (photos(here) / "images" / "4.png").unlink()
    return TRAIN


@case("photos/images/4.png cannot be read as a picture")
def truncated_picture(here, models):
    path = photos(here) / "images" / "4.png"
    path.write_bytes(path.read_bytes()[:150])
    return TRAIN


@case("photos/images/0.png cannot be read as a picture")
def text_named_picture(here, models):
    (photos(here) / "images" / "0.png").write_text("no picture")
    return TRAIN


@case("holds none of the first 12 pictures", "give the folder of the pictures")
def wrong_picture_folder(here, models):
    photos(here)
    (here / "other").mkdir()
    return (*TRAIN, "--images", "other")


@case("dataset_toy.json cannot be read")
def broken_json(here, models):
    path = photos(here) / "dataset_toy.json"
    path.write_text(path.read_text()[:-40])
    return TRAIN


@case("images[1].split")
def karpathy_without_split(here, models):
    path = photos(here) / "dataset_toy.json"
    plain = json.loads(path.read_text())
    del plain["images"][1]["split"]
    path.write_text(json.dumps(plain))
    return TRAIN


@case("'0.png'", "twice")
def duplicated_ids(here, models):
    images = [karpathy_image("0.png", "train", ["a dog"], n) for n in range(2)]
    write_karpathy(here / "photos", images)
    return TRAIN


@case("has no image features", "counterfoil features")
def no_features(here, models):
    photos(here)
    return (
        "run",
        "vsepp-flickr8k",
        "--data",
        "photos",
        *recipes_cases.SMALL,
        "--set",
        "test.protocol=whole",
    )


@case("this split has 3", "1,000")
def protocol_that_does_not_fit(here, models):
    photos(here)
    return "run", "vsepp-flickr8k", "--data", "photos"


@case("'train' is not a split")
def no_train_split(here, models):
    images = [karpathy_image(f"{n}.png", "test", ["a dog"], n) for n in range(3)]
    write_karpathy(here / "photos", images)
    return TRAIN


@case("'test' is not a split")
def no_test_split(here, models):
    images = [karpathy_image(f"{n}.png", "train", ["a dog"], n) for n in range(3)]
    write_karpathy(here / "photos", images)
    return TRAIN


def listed(here: Path, name: str, text: str | bytes) -> tuple[object, ...]:
    folder = here / "photos"
    for n in range(3):
        write_picture(folder / f"{n}.png", n)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return TRAIN


@case("is no data set")
def empty_folder(here, models):
    (here / "photos").mkdir()
    return TRAIN


@case("photos/9.txt has no picture of that name")
def caption_without_image(here, models):
    listed(here, "0.txt", "a dog")
    return listed(here, "9.txt", "a cat")


@case("is no data set", "captions.jsonl")
def images_without_captions(here, models):
    listed(here, "0.txt", "")
    (here / "photos" / "0.txt").unlink()
    return TRAIN


@case("the first line is 'image,title of it'; it needs the names of the columns")
def wrong_columns(here, models):
    return listed(here, "captions.csv", "image,title of it\n0.png,a dog\n")


@case("line 2", "number of columns")
def unquoted_comma(here, models):
    return listed(here, "captions.csv", "image,caption\n0.png,a dog, in snow\n")


@case("captions.jsonl, line 2 is not JSON")
def broken_line(here, models):
    return listed(here, "captions.jsonl", '{"image": "0.png", "caption": "a"}\n{"image": \n')


@case("captions.jsonl", "UTF-8")
def captions_not_utf8(here, models):
    return listed(here, "captions.jsonl", b'{"image": "0.png", "caption": "caf\xe9"}\n')


@case("captions.jsonl holds no image")
def empty_list(here, models):
    return listed(here, "captions.jsonl", "\n")


@case("captions.jsonl and captions.csv", "give the path of the one")
def two_lists(here, models):
    listed(here, "captions.csv", "image,caption\n0.png,a dog\n")
    return listed(here, "captions.jsonl", "{}\n")


# features


def precomp(here: Path, values: np.ndarray | None = None) -> tuple[object, ...]:
    captions = [f"a dog {n}" for n in range(10)]
    for split in ("train", "dev", "test"):
        write_split(here / "pre", split, random_array(5, 3, 4), captions)
    if values is not None:
        np.save(here / "pre" / "train_ims.npy", values)
    whole = ("--set", "test.protocol=whole", "--set", "online.min_count=1")
    processor = (
        "--set",
        "online.processor.min_count=1",
        "--set",
        "online.processor.standardise=False",
    )
    return "run", "vsepp-flickr8k", "--data", "pre", *recipes_cases.SMALL, *whole[:2], *processor


@case("row 2 holds NaN", "counterfoil data check")
def nan_feature(here, models):
    values = random_array(5, 3, 4)
    values[2, 1, 1] = np.nan
    return precomp(here, values)


@case("has shape (5, 3, 2, 4)")
def features_of_four_axes(here, models):
    return precomp(here, random_array(5, 3, 2, 4))


@case("int64", "float16, float32, int8")
def features_of_whole_numbers(here, models):
    args = precomp(here)
    for split in ("train", "dev", "test"):
        np.save(here / "pre" / f"{split}_ims.npy", np.ones((5, 3, 4), np.int64))
    return args


@case("7 images and 10 captions", "train_owner.txt")
def numbers_that_do_not_divide(here, models):
    return precomp(here, random_array(7, 3, 4))


@case("cannot be read as one", "same regions, width")
def splits_of_other_widths(here, models):
    return precomp(here, random_array(5, 3, 6))


@case("train_ims.npy cannot be read as features")
def truncated_features(here, models):
    args = precomp(here)
    path = here / "pre" / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-7])
    return args


@case("images.npy cannot be read")
def pickle_in_place_of_npy(here, models):
    args = vectors(here)
    np.save(here / "vec" / "images.npy", np.array([{"a": 1}], object), allow_pickle=True)
    return args


@case("4 wide", "reads features of width 9")
def features_of_another_width_than_the_model(here, models):
    precomp(here)
    recipes_cases.feature_model(here / "wide", 9)
    return "evaluate", "wide", "--data", "pre"


@case("has no pictures", "reads pixels")
def pixels_where_there_are_none(here, models):
    precomp(here)
    return "evaluate", models / "pixels", "--data", "pre"


@case("pre (train) has no pictures", "reads pixels", "--images")
def photos_where_there_are_features_alone(here, models):
    precomp(here)
    return "train", "mobilenet", "--data", "pre"


@case("12 of 12 images have no features", "'0.png'")
def features_of_other_images(here, models):
    photos(here)
    (here / "feat").mkdir()
    np.save(here / "feat" / "features.npy", random_array(2, 3, 4))
    (here / "feat" / "features.json").write_text('{"ids": ["x", "y"]}')
    return "evaluate", models / "regions", "--data", "photos", "--features", "feat"


@case("3 rows for 12 images")
def features_of_other_number(here, models):
    photos(here)
    np.save(here / "f.npy", random_array(3, 4))
    return "evaluate", models / "regions", "--data", "photos", "--features", "f.npy"


# embeddings


def vectors(here: Path) -> tuple[object, ...]:
    (here / "vec").mkdir()
    np.save(here / "vec" / "images.npy", random_array(4, 6))
    np.save(here / "vec" / "texts.npy", random_array(8, 6, seed=1))
    return "evaluate", "vectors", "--data", "vec", "--split", "all"


@case("owner.npy has shape (7,)", "8 whole numbers")
def owner_of_wrong_length(here, models):
    args = vectors(here)
    np.save(here / "vec" / "owner.npy", np.zeros(7, np.int64))
    return args


@case("6 wide", "5")
def embeddings_of_different_widths(here, models):
    args = vectors(here)
    np.save(here / "vec" / "texts.npy", random_array(8, 5))
    return args


@case("texts.npy does not exist")
def embeddings_of_one_side(here, models):
    args = vectors(here)
    (here / "vec" / "texts.npy").unlink()
    return args


@case("'train' is not a split", "test")
def training_on_embeddings(here, models):
    vectors(here)
    return "mine", "vectors", "--data", "vec", "--output", "lists"


# models


def damaged(here: Path, models: Path, kind: str = "pixels") -> tuple[Path, tuple[object, ...]]:
    shutil.copytree(models / kind, here / "model")
    return here / "model", ("evaluate", "model", "--data", "scenes:images=12")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@case("model.safetensors is damaged")
def truncated_model(here, models):
    folder, args = damaged(here, models)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    return args


@case("model.safetensors", "checksum does not fit")
def flipped_bit_in_model(here, models):
    folder, args = damaged(here, models)
    path = folder / "model.safetensors"
    plain = bytearray(path.read_bytes())
    plain[-9] ^= 1
    path.write_bytes(plain)
    return args


@case("is not the card of a counterfoil model")
def card_of_another_kind(here, models):
    folder, args = damaged(here, models)
    edit(folder / "model.json", kind="something")
    return args


@case("'os:system' is not something this file may call")
def card_that_calls_the_system(here, models):
    folder, args = damaged(here, models)
    edit(folder / "model.json", model={"call": "os:system", "command": "touch owned"})
    return args


@case("write_text, which is no retrieval model")
def card_that_calls_our_own_functions(here, models):
    folder, args = damaged(here, models)
    call = {"call": "counterfoil.core.io:write_text", "path": "owned", "text": "x"}
    edit(folder / "model.json", model=call)
    return args


@case("format 99", "reads formats 1 and 2")
def model_of_a_newer_version(here, models):
    folder, args = damaged(here, models)
    edit(folder / "model.json", format=99)
    return args


@case("Vanished", "does not exist in this version of counterfoil")
def model_of_a_class_that_is_gone(here, models):
    folder, args = damaged(here, models)
    edit(folder / "model.json", model={"call": "counterfoil.models.vsepp:Vanished"})
    return args


@case("model.json", "'depht'", "does not fit this version")
def card_with_an_unknown_argument(here, models):
    folder, args = damaged(here, models)
    plain = json.loads((folder / "model.json").read_text())
    plain["model"]["depht"] = 3
    (folder / "model.json").write_text(json.dumps(plain))
    tensors, _ = read_tensors(folder / "model.safetensors", "weights")
    about = {"model": config_from_dict(plain["model"]).digest()}
    write_tensors(folder / "model.safetensors", tensors, about)
    return args


@case("tokenizer.json does not exist")
def model_without_tokenizer(here, models):
    folder, args = damaged(here, models)
    (folder / "tokenizer.json").unlink()
    return args


@case("lens.json")
def model_without_lens(here, models):
    folder, args = damaged(here, models)
    (folder / "lens.json").unlink()
    return args


@case("another one than the model was saved with")
def tokenizer_of_another_model(here, models):
    folder, args = damaged(here, models)
    words = [*SPECIAL, *(f"word{n}" for n in range(500))]
    edit(folder / "tokenizer.json", words=words)
    return args


@case("was its training finished")
def folder_without_model(here, models):
    (here / "model").mkdir()
    return "evaluate", "model", "--data", "scenes:images=12"


@case("'model' has no tokenizer files")
def clip_without_tokenizer(here, models):
    folder, args = damaged(here, models, "clip")
    for path in folder.glob("token*"):
        path.unlink()
    return args


@case("caption", "empty")
def empty_query(here, models):
    return "search", models / "pixels", " ", "--data", "scenes:images=12"


@case("reads stored features, not pictures", "counterfoil features")
def picture_for_a_model_of_features(here, models):
    precomp(here)
    write_picture(here / "dog.png")
    return "search", models / "regions", "dog.png", "--data", "pre"


@case("dog.png cannot be read as a picture")
def broken_picture_query(here, models):
    (here / "dog.png").write_text("x")
    return "search", models / "pixels", "dog.png", "--data", "scenes:images=12"


@case("i2t.json does not exist")
def missing_annotations(here, models):
    (here / "eccv").mkdir()
    return "evaluate", models / "pixels", "--data", "scenes:images=12", "--eccv", "eccv"


@case("i2t.json")
def broken_annotations(here, models):
    (here / "eccv").mkdir()
    for name in ("i2t", "t2i"):
        (here / "eccv" / f"{name}.json").write_text("[1, 2]")
    return "evaluate", models / "pixels", "--data", "scenes:images=12", "--eccv", "eccv"


# folders that are there already, and runs


@case("lists exists and is left alone")
def lists_that_exist(here, models):
    (here / "lists").mkdir()
    return "mine", models / "pixels", "--data", "scenes:images=12", "--output", "lists"


@case("file/lists cannot be written", "is a file")
def file_where_a_folder_should_be(here, models):
    (here / "file").write_text("x")
    return "mine", models / "pixels", "--data", "scenes:images=12", "--output", "file/lists"


@case("lists.partial holds a mining that was stopped", "--resume")
def lists_that_were_stopped(here, models):
    (here / "lists.partial").mkdir()
    return mining(models)


def mining(models: Path, *more: object) -> tuple[object, ...]:
    return "mine", models / "pixels", "--data", "scenes:images=12", "--output", "lists", *more


@case("'caption=0.8'", "did you mean 'captions'?")
def filter_of_another_name(here, models):
    return mining(models, "--filter", "caption=0.8")


@case("'captions' is no setting", "write key=value")
def filter_without_a_value(here, models):
    return mining(models, "--filter", "captions")


@case("captions=1.5")
def filter_out_of_range(here, models):
    return mining(models, "--filter", "captions=1.5")


@case("guided=0.0 needs a guide model, and none was named")
def guided_by_nobody(here, models):
    return mining(models, "--filter", "guided=0.0")


@case("a guide model was named, but no filter asks it")
def guide_that_is_not_asked(here, models):
    return mining(models, "--guide", models / "pixels")


@case("file is a file", "name a folder with --")
def run_in_a_file(here, models):
    (here / "file").write_text("x")
    return "run", "aoq/vsepp-scenes", "--data", SCENES, "--output", "file", "--smoke"


def finished(here: Path, models: Path, *more: object) -> tuple[object, ...]:
    shutil.copytree(models / "run", here / "run")
    small = (*recipes_cases.SMALL, *recipes_cases.SMALL_LISTS, *recipes_cases.SMALL_DRAW)
    return "run", "aoq/vsepp-scenes", "--data", SCENES, "--output", "run", "--smoke", *small, *more


@case("run/online was made with other settings or other data", "choose another --")
def run_of_other_settings(here, models):
    return finished(here, models, "--set", "online.seed=4")


@case("run/online was made with other settings or other data", "choose another --")
def run_on_other_data(here, models):
    return finished(here, models, "--data", "scenes:images=37")


@case("run/online was made with other settings or other data")
def folder_of_somebody_else(here, models):
    (here / "run" / "online").mkdir(parents=True)
    (here / "run" / "online" / "thesis.tex").write_text("x")
    return "run", "aoq/vsepp-scenes", "--data", SCENES, "--output", "run"


def unfinished(here: Path, models: Path) -> tuple[object, ...]:
    """A run whose second training has not begun."""
    args = finished(here, models)
    for stage in ("adaptive", "test-adaptive", "report"):
        shutil.rmtree(here / "run" / stage)
        (here / "run" / f"{stage}.json").unlink()
    return args


@case("run/adaptive holds a run that was stopped", "--resume")
def unfinished_stage_without_resume(here, models):
    args = unfinished(here, models)
    note = (models / "run" / "adaptive.json").read_text()
    (here / "run" / "adaptive.json").write_text(note.replace('"done"', '"running"'))
    return args


@case("online.json cannot be read as the note of a stage")
def broken_note(here, models):
    args = finished(here, models)
    (here / "run" / "online.json").write_text("{")
    return args


@case("was mined from corpus 0123456789abcdef", "mine again")
def store_of_another_corpus(here, models):
    args = unfinished(here, models)
    edit(here / "run" / "lists" / "manifest.json", corpus="0123456789abcdef")
    return args


@case("has format 99", "upgrade counterfoil")
def store_of_a_newer_version(here, models):
    args = unfinished(here, models)
    edit(here / "run" / "lists" / "manifest.json", format=99)
    return args


@case("texts.npy cannot be read")
def truncated_store(here, models):
    args = unfinished(here, models)
    path = here / "run" / "lists" / "texts.npy"
    path.write_bytes(path.read_bytes()[:-5])
    return args


@case("texts.npy holds", "its manifest promises")
def store_with_short_lists(here, models):
    args = unfinished(here, models)
    path = here / "run" / "lists" / "texts.npy"
    np.save(path, np.load(path)[:, :3])
    return args


@case("last.safetensors is damaged")
def truncated_checkpoint(here, models):
    args = unfinished(here, models)
    note = (models / "run" / "adaptive.json").read_text()
    (here / "run" / "adaptive.json").write_text(note.replace('"done"', '"running"'))
    (here / "run" / "adaptive" / "checkpoints").mkdir(parents=True)
    path = here / "run" / "adaptive" / "checkpoints" / "last.safetensors"
    path.write_bytes((models / "run" / "online" / "model" / "model.safetensors").read_bytes()[:99])
    return (*args, "--resume")


# features and convert


@case("exists and does not hold these features")
def features_over_something_else(here, models):
    (here / "feat").mkdir()
    (here / "feat" / "a.txt").write_text("x")
    return "features", "scenes:images=12", "feat", "--model", models / "clip"


@case("nothing", "no vision model")
def features_of_no_model(here, models):
    return "features", "scenes:images=12", "feat", "--model", "no/nothing"


@case("a grid of 4 cells cannot be averaged to 9 x 9")
def grid_too_fine(here, models):
    return "features", "scenes:images=12", "feat", "--model", models / "clip", "--grid", "9"


@case("has no pictures")
def features_without_pictures(here, models):
    precomp(here)
    return "features", "pre", "feat", "--model", models / "clip"


@case("no detector that can be read")
def regions_of_no_detector(here, models):
    hub_cases.vit(here / "vit")
    hub_cases.processor(here / "vit", image_processor_type="ViTImageProcessor")
    return "features", "scenes:images=12", "feat", "--model", "vit", "--regions", "9"


@case("holds features of images and no captions", "counterfoil features trainval.tsv")
def a_table_of_regions_as_data(here, models):
    (here / "trainval.tsv").write_text("7\t100\t50\t1\tAAAA\tAAAA\n")
    return "train", "vsepp", "--data", "trainval.tsv"


@case("is read only with --model")
def images_of_a_conversion(here, models):
    (here / "trainval.tsv").write_text("7\t100\t50\t1\tAAAA\tAAAA\n")
    return "features", "trainval.tsv", "feat", "--images", "photos"


@case("has no captions with a tree")
def phrases_of_a_folder_without_trees(here, models):
    model = reader(here / "reader")
    return "write", "tags", model, REGIONS, "--output", "x", "--phrases", here


def authors(here: Path, words: int = 9) -> tuple[object, ...]:
    """A checkpoint and vocabulary in the authors' layout."""
    gru = torch.nn.GRU(5, 6, batch_first=True)
    text = {"embed.weight": torch.randn(words, 5)}
    text |= {f"rnn.{name}": value for name, value in gru.state_dict().items()}
    image = {"fc.weight": torch.randn(6, 4), "fc.bias": torch.randn(6)}
    torch.save({"model": [OrderedDict(image), OrderedDict(text)]}, here / "best.pth.tar")
    index = {word: n for n, word in enumerate([*SPECIAL, "a", "b", "c", "d", "e"])}
    (here / "vocab.json").write_text(json.dumps({"word2idx": index}))
    return "convert", "vsepp", "best.pth.tar", "vocab.json", "out"


@case("vocab.json has 9 words", "trained with 11")
def vocabulary_of_another_size(here, models):
    return authors(here, words=11)


@case("out exists and is left alone")
def converted_over_something_else(here, models):
    args = authors(here)
    (here / "out").mkdir()
    return args


@case("'directoin'", "did you mean 'direction'")
def converted_with_unknown_setting(here, models):
    authors(here)
    return "convert", "scan", "best.pth.tar", "vocab.json", "out", "--set", "directoin=i2t"


@case("these weights do not fit", "rnn.weight_ih_l0_reverse", "the settings that it was trained")
def converted_with_a_setting_of_another_shape(here, models):
    return (*authors(here), "--set", "text.bidirectional=true")


class Owned:
    def __reduce__(self):
        return (open, ("owned", "w"))


@case("best.pth.tar cannot be read without running code")
def checkpoint_with_forbidden_pickle(here, models):
    args = authors(here)
    torch.save({"model": Owned()}, here / "best.pth.tar")
    return args


@case("best.pth.tar cannot be read")
def truncated_authors_checkpoint(here, models):
    args = authors(here)
    path = here / "best.pth.tar"
    path.write_bytes(path.read_bytes()[:300])
    return args


@case("has no 'text.embed.weight'")
def checkpoint_without_text(here, models):
    args = authors(here)
    torch.save(
        {
            "model": [
                {"fc.weight": torch.ones(6, 4), "fc.bias": torch.ones(6)},
                {"rnn.weight_ih_l0": torch.ones(18, 4)},
            ]
        },
        here / "best.pth.tar",
    )
    return args


@case("vocab.pkl cannot be read as a vocabulary", "only a Vocabulary")
def vocabulary_with_forbidden_pickle(here, models):
    args = authors(here)
    (here / "vocab.pkl").write_bytes(pickle.dumps(Owned()))
    return (*args[:3], "vocab.pkl", "out")


@case("best.pth.tar does not exist")
def no_authors_checkpoint(here, models):
    args = authors(here)
    (here / "best.pth.tar").unlink()
    return args


@case("64,000,000")
def picture_too_large(here, models):
    Image.new("1", (9000, 9000)).save(here / "dog.png")
    return "search", models / "pixels", "dog.png", "--data", "scenes:images=12"


@case("page is a folder; name a file")
def page_that_is_a_folder(here, models):
    (here / "page").mkdir()
    return "search", models / "pixels", "a dog", "--data", "scenes:images=12", "--output", "page"


@case("'adaptive' starts from 'online', which is another model", "size mismatch")
def start_of_another_model(here, models):
    (here / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from counterfoil.recipes.catalogue import find_recipe\n"
        "whole = find_recipe('aoq/vsepp-scenes')\n"
        "first = whole.stages[0]\n"
        "again = replace(first, name='adaptive', start='online')\n"
        "recipe = replace(whole, name='two', stages=(first, again))\n"
    )
    small = [word.replace("*", "online") for word in recipes_cases.SMALL]
    shutil.copytree(models / "run" / "online", here / "run" / "online")
    shutil.copy(models / "run" / "online.json", here / "run")
    return "run", "mine.py", "--data", SCENES, "--output", "run", "--smoke", *small


# write


typed(
    "no such kind", f"write rules {SCENES} --output w --kind nuon", "'nuon'", "did you mean 'noun'"
)
typed(
    "no such synonyms", f"write rules {SCENES} --output w --synonyms net", "'net'", "list, wordnet"
)
typed("foils of no split", f"write rules {SCENES} --output w --split trian", "'trian'")
typed(
    "nouns too rare", f"write rules {SCENES} --output w --frequency 999", "999 times", "lower the"
)
typed(
    "no foils at all",
    f"write rules {SCENES} --output w --most 0",
    "'--most'",
    "greater than or equal",
)


@case("written exists and is left alone", "--output")
def foils_over_a_folder(here, models):
    (here / "written").mkdir()
    return "write", "rules", SCENES, "--output", "written"


TAGS = f"write tags vectors {SCENES} --output w"
typed("no such rule", f"{TAGS} --rule lemas", "'lemas' is not a rule", "did you mean 'lemmas'")
typed("no such parser", f"{TAGS} --phrases spicy", "'spicy'", "did you mean 'spacy'")
typed("no such singles", f"{TAGS} --singles alone", "'alone'", "always, only")
typed("no such temperature", f"{TAGS} --temperature 0", "temperature=0.0", "above 0")
typed(
    "an encoder that is none",
    f"analyse true-rate w --data {SCENES} --output p.html --encoder .",
    "no modules.json",
    "sentence-transformers",
)
typed(
    "judge of no lists",
    "judge vectors --data scenes --negatives x --output y",
    "x/manifest.json does not",
)
typed("judge of nothing", "judge vectors --output y", "Missing option '--negatives'")
typed(
    "meanings by nobody",
    "mine vectors --data scenes --output x --filter meanings=0.7",
    "encoder to a folder",
)
typed("no maskings", f"{TAGS} --masks 0", "'--masks'", "greater than or equal to 1")
typed("tags of no split", f"{TAGS} --split trian", "'trian'")
typed("tags of no such model", f"write tags nowhere/at/all {SCENES} --output w", "nowhere/at/all")
typed(
    "no phrases in no file",
    f"write tags vectors {SCENES},features=regions --output w --phrases no.json",
    "no.json",
)


@case("the generator VSEPP does not read words", "name a model that does")
def a_writer_that_cannot_read(here, models):
    return "write", "tags", models / "pixels", SCENES, "--output", "w"


@case("holds a writing that was stopped", "--resume")
def a_writing_that_was_stopped(here, models):
    (here / "w.partial").mkdir()
    return "write", "tags", models / "pixels", SCENES, "--output", "w"


@case("exists and is left alone", "--output")
def tags_over_a_folder(here, models):
    (here / "w").mkdir()
    return "write", "tags", models / "pixels", SCENES, "--output", "w"


# negatives import and export


def aoq_files(here: Path, models: Path, *names: str) -> Path:
    """Files of AOQ's mining scripts that hold the lists of the run."""
    for name in names:
        for kind, rows in (("i2t", "texts"), ("t2i", "images")):
            array = np.load(models / "run" / "lists" / f"{rows}.npy")
            np.save(here / f"{kind}_{name}.npy", array)
    return here


def aoq_import(*more: str) -> Sequence[str]:
    return "negatives", "import", ".", "--output", "lists", "--data", SCENES, *more


@case("should hold one pair of files i2t_NAME.npy and t2i_NAME.npy", "neither")
def import_of_nothing(here, models):
    return aoq_import()


@case("those of coco, f30k", "--name")
def import_of_two(here, models):
    aoq_files(here, models, "coco", "f30k")
    return aoq_import()


@case("t2i_f30k.npy does not exist")
def import_of_a_half(here, models):
    (aoq_files(here, models, "f30k") / "t2i_f30k.npy").unlink()
    return aoq_import()


@case("i2t_f30k.npy holds int32 of shape (24, 20)", "(4, any)")
def import_for_other_data(here, models):
    aoq_files(here, models, "f30k")
    return aoq_import("--split", "dev", "--data", "scenes:images=24,dev=4,test=4")


@case("lists exists and is left alone", "--output")
def import_over_something(here, models):
    (aoq_files(here, models, "f30k") / "lists").mkdir()
    return aoq_import()


@case("captions 5i to 5i+4")
def import_for_other_captions(here, models):
    photos(here)
    arrays = {"texts": np.array([[11]]), "images": np.array([[0]])}
    return (
        "negatives",
        "import",
        str(aoq_small(here, arrays)),
        "--output",
        "x",
        "--data",
        "photos",
    )


def aoq_small(here: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.save(here / "i2t_toy.npy", arrays["texts"])
    np.save(here / "t2i_toy.npy", arrays["images"])
    return here


def aoq_export(models: Path, *more: str) -> Sequence[str]:
    store = str(models / "run" / "lists")
    return "negatives", "export", store, "--output", "aoq", "--data", SCENES, *more


@case("i2t_scenes.npy exists and is left alone", "--output")
def export_over_something(here, models):
    (here / "aoq").mkdir()
    (here / "aoq" / "i2t_scenes.npy").write_bytes(b"x")
    return aoq_export(models)


@case("'a/b' cannot be part of a file's name", "--name")
def export_with_a_path_for_a_name(here, models):
    return aoq_export(models, "--name", "a/b")


@case("was mined from corpus", "counterfoil mine")
def export_of_another_corpus(here, models):
    return aoq_export(models, "--split", "dev")


typed("export of no store", f"negatives export no --output x --data {SCENES}", "no/manifest.json")
typed(
    "export of nothing",
    f"negatives export x --output y --texts 0 --data {SCENES}",
    "'--texts'",
    "greater than or equal to 1",
)


# diagnose


typed("diagnosis of no store", f"diagnose no --data {SCENES}", "no/manifest.json")
typed("diagnosis of nothing", "diagnose x --samples 0", "'--samples'", "greater than or equal to 1")


@case("was mined from corpus", "counterfoil mine")
def diagnosis_against_other_data(here, models):
    return "diagnose", str(models / "run" / "lists"), "--data", "scenes:images=40"


@case("alike=1.5", "above 0 and up to 1")
def diagnosis_with_an_impossible_cosine(here, models):
    return "diagnose", str(models / "run" / "lists"), "--data", SCENES, "--alike", "1.5"


@case("page.html is a folder; name a file")
def diagnosis_page_that_is_a_folder(here, models):
    (here / "page.html").mkdir()
    store = str(models / "run" / "lists")
    return "diagnose", store, "--data", SCENES, "--output", "page.html"


@case("nowhere/at-all", "config.json")
def diagnosis_with_no_such_model(here, models):
    store = str(models / "run" / "lists")
    return "diagnose", store, "--data", SCENES, "--model", "nowhere/at-all"


# analyse


ANALYSE = ("--data", SCENES, "--output", "page.html")

typed("unknown analysis", "analyse online-rnk vectors", "'online-rnk'", "'online-rank'")
typed("analysis without a page", "analyse curves .", "Missing option '--output'")
typed("page of another kind", "analyse curves . --output page.pdf", "page.pdf", "ends in .html")
typed("no log below", "analyse curves . --output page.html", "holds no metrics.jsonl")
typed("no such log", "analyse curves nowhere --output page.html", "nowhere holds no metrics.jsonl")
typed(
    "batch of one",
    "analyse online-rank vectors --output a.html --batch 1",
    "'--batch'",
    "equal to 2",
)
typed(
    "no anchors",
    "analyse negatives vectors --output a.html --anchors 0",
    "'--anchors'",
    "equal to 1",
)
typed(
    "half an ensemble",
    "analyse cross-rank runs/a+ --output a.html --data scenes:images=12",
    "'runs/a+' is no ensemble",
)


@case("page.html exists and is left alone")
def page_that_exists(here, models):
    (here / "page.html").write_text("mine")
    return "analyse", "cross-rank", models / "pixels", *ANALYSE


@case("page.json exists and is left alone")
def numbers_that_exist(here, models):
    (here / "page.json").write_text("mine")
    return "analyse", "negatives", models / "pixels", *ANALYSE


@case("pixels is given twice")
def the_same_model_twice(here, models):
    return "analyse", "cross-rank", models / "pixels", models / "pixels", *ANALYSE


@case("batches of 7, 121 cannot be drawn from 120 captions", "2 to 120")
def batch_of_more_than_there_is(here, models):
    sizes = ("--batch", "121", "--batch", "7")
    return "analyse", "online-rank", models / "pixels", *sizes, *ANALYSE


@case("manifest.json does not exist")
def lists_that_are_not_there(here, models):
    return "analyse", "negatives", models / "pixels", "--lists", "nowhere", *ANALYSE


@case("run/lists", "corpus")
def lists_of_another_split(here, models):
    other = ("--lists", models / "run/lists", "--split", "test")
    return "analyse", "negatives", models / "pixels", *other, *ANALYSE


@case("metrics.jsonl holds no epoch")
def log_without_an_epoch(here, models):
    (here / "metrics.jsonl").write_text('{"step": 1}\n')
    return "analyse", "curves", ".", "--output", "page.html"


@case("stage.json is no note of a stage")
def note_of_something_else(here, models):
    (here / "stage").mkdir()
    (here / "stage" / "metrics.jsonl").write_text('{"epoch": 1.0, "loss": 1.0}\n')
    (here / "stage.json").write_text('{"stage": 3}')
    return "analyse", "curves", "stage", "--output", "page.html"


typed(
    "against nothing known",
    "analyse against batches . --output page.html",
    "'batches'",
    "did you mean 'batch'",
)
typed("no run", "analyse student nowhere --output page.html", "nowhere holds no note of a stage")
typed(
    "a run twice", "analyse against batch runs/a runs/a --output page.html", "runs/a is given twice"
)
typed(
    "unknown map",
    "analyse map vectors --data scenes --method tsn --output page.html",
    "'tsn'",
    "did you mean 'tsne'",
)
typed("no negatives on a map", "analyse map vectors --negatives 0 --output a.html", "'--negatives'")


@case("run has measured no student beside a teacher of its own", "ndgl/gpo-scenes")
def run_without_a_student(here, models):
    return "analyse", "student", models / "run", "--output", "page.html"


@case("has only the batch size 16, and a curve needs at least two", "ndgl/batches/")
def run_of_one_batch_size(here, models):
    return "analyse", "against", "batch", models / "run", "--output", "page.html"


@case("has no number of teachers, and a curve needs at least two")
def run_without_teachers(here, models):
    return "analyse", "against", "teachers", models / "run", "--output", "page.html"


@case("stage.json is no note of a stage", "state", "field required")
def note_without_a_state(here, models):
    (here / "stage.json").write_text('{"kind": "evaluate", "stage": {"name": "stage"}}')
    return "analyse", "student", ".", "--output", "page.html"


@case("holds no finished evaluation", "name the folder of a run")
def run_that_was_stopped(here, models):
    shutil.copytree(models / "run", here / "run", ignore=shutil.ignore_patterns("test-*"))
    return "analyse", "student", "run", "--output", "page.html"


@case("figures of different data or protocols do not stand in one picture")
def runs_on_different_data(here, models):
    for name, images in (("first", 36), ("second", 48)):
        write_run(here / name, taught(), f"scenes:images={images}")
    return "analyse", "student", "first", "second", "--output", "page.html"


@case("'a blue dog' is neither a caption nor an image id of scenes test", "--query")
def map_of_another_split(here, models):
    return "analyse", "map", models / "pixels", "--query", "a blue dog", *ANALYSE


# foils


FOIL_MODEL = ("foils", "blind", "set.json", "--blind", "captions.txt")

typed("foils without a set", "foils vectors", "Missing argument 'SET'")
typed(
    "no such set of foils", "foils blind nowhere.json --blind a.txt", "nowhere.json does not exist"
)
typed("blind without captions", f"foils blind {SCENES}", "--blind")
typed("foils for vectors", f"foils vectors {SCENES}", "ready-made vectors", "model folder")
typed("unknown form of foils", "foils vectors sugarcrap:x.json", "did you mean 'sugarcrepe'")
typed("foils of no split", f"foils vectors {SCENES} --split tset", "did you mean 'test'")


def foil_set(here: Path, *entries: object, name: str = "set.json") -> Path:
    (here / "captions.txt").write_text("a dog in the snow\n")
    (here / name).write_text(json.dumps(list(entries)))
    return here / name


@case("set.json: entry 1.foils: field required")
def foils_without_a_foil(here, models):
    foil_set(here, {"image": "a", "caption": "b", "foil": "c"}, {"image": "a", "caption": "b"})
    return FOIL_MODEL


@case("set.json: entry 0: input should be a valid dictionary")
def foils_that_are_no_objects(here, models):
    foil_set(here, 3)
    return "foils", "blind", "pairs:set.json", "--blind", "captions.txt"


@case("set.json: entry 0.label: input should be 0 or 1")
def label_that_is_neither(here, models):
    foil_set(here, {"image": "a", "caption": "b", "label": 2, "relation": "on"})
    return FOIL_MODEL


@case("set.json cannot be read as a set of foils")
def foils_that_are_no_json(here, models):
    foil_set(here)
    (here / "set.json").write_text("{")
    return FOIL_MODEL


@case("set.jsonl, line 2 is no JSON")
def foils_with_a_broken_line(here, models):
    foil_set(here)
    (here / "set.jsonl").write_text('{"image": "a", "caption": "b", "foil": "c"}\n{\n')
    return "foils", "blind", "set.jsonl", "--blind", "captions.txt"


@case("set.json is in no form of foils", "image, text")
def foils_of_no_form(here, models):
    foil_set(here, {"image": "a", "text": "b"})
    return FOIL_MODEL


@case("entry '0' has an empty caption")
def foils_that_say_nothing(here, models):
    foil_set(here, {"image": "a", "caption": "b", "foil": " "})
    return FOIL_MODEL


@case("1 of 1 pictures of set are not in pictures, such as 'a.jpg'", "give the folder")
def foils_without_their_picture(here, models):
    foil_set(here, {"image": "a.jpg", "caption": "b", "foil": "c"})
    (here / "pictures").mkdir()
    return "foils", models / "pixels", "set.json", "--images", "pictures"


@case("set comes without pictures, such as 'a.jpg'", "--images")
def foils_without_a_folder(here, models):
    foil_set(here, {"image": "a.jpg", "caption": "b", "foil": "c"})
    return "foils", models / "pixels", "set.json"


@case("reads stored features", "--features", "'a.jpg'")
def foils_for_a_model_of_features(here, models):
    foil_set(here, {"image": "a.jpg", "caption": "b", "foil": "c"})
    return "foils", models / "regions", "set.json"


@case("captions.txt holds no caption that is not in set")
def blind_model_that_knows_nothing_else(here, models):
    foil_set(here, {"image": "a", "caption": "a dog in the snow", "foil": "c"})
    return FOIL_MODEL


@case("captions.txt does not exist")
def blind_model_without_its_captions(here, models):
    foil_set(here, {"image": "a", "caption": "b", "foil": "c"})
    (here / "captions.txt").unlink()
    return FOIL_MODEL


@case("page is a folder; name a file")
def page_of_foils_that_is_a_folder(here, models):
    foil_set(here, {"image": "a", "caption": "b", "foil": "c"})
    (here / "page").mkdir()
    return *FOIL_MODEL, "--output", "page"


# explain


EXPLAINED = "scenes:images=36,features=regions"

typed("nothing to explain", "explain vectors", "an image and a caption", "--data")
typed("no caption to explain", "explain vectors a.png", "an image and a caption")
typed("explain vectors", f"explain vectors --data {EXPLAINED}", "ready-made vectors")
typed("no picture to explain", "explain vectors a.png dog", "a.png does not exist")
typed("no image to explain", "explain vectors photo dog", "'photo' is no picture", "--data")
typed(
    "no image of the data",
    f"explain vectors scene-0-tset-00000 dog --data {EXPLAINED}",
    "'scene-0-tset-00000' is not an image of scenes",
    "did you mean 'scene-0-",
    "36 in all",
)
typed(
    "doubt above one",
    "explain vectors a.png dog --threshold 1.5",
    "'--threshold'",
    "less than or equal to 1, not '1.5'",
)
typed("no suspicious captions", "explain vectors --data x --top 0", "'--top'", "equal to 1")
typed("explain no split", f"explain vectors --data {EXPLAINED} --split tset", "mean 'test'")


def lines_to_explain(here: Path, *lines: str) -> None:
    write_picture(here / "a.png")
    (here / "captions.jsonl").write_text("".join(line + "\n" for line in lines))


@case("captions.jsonl, line 2 is not JSON")
def explained_line_that_is_no_json(here, models):
    lines_to_explain(here, '{"image": "a.png", "caption": "a dog"}', "{")
    return "explain", models / "pixels", "--data", "captions.jsonl", "--split", "all"


@case("captions.jsonl, line 1: there is no 'caption'")
def explained_line_without_a_caption(here, models):
    lines_to_explain(here, '{"image": "a.png"}')
    return "explain", models / "pixels", "--data", "captions.jsonl", "--split", "all"


@case("caption 'a.png#1' is empty")
def explained_line_with_an_empty_caption(here, models):
    lines_to_explain(here, '{"image": "a.png", "captions": ["a dog", " "]}')
    return "explain", models / "pixels", "--data", "captions.jsonl", "--split", "all"


@case("b.png does not exist")
def explained_line_without_its_picture(here, models):
    lines_to_explain(here, '{"image": "b.png", "caption": "a dog"}')
    return "explain", models / "pixels", "--data", "captions.jsonl", "--split", "all"


@case("the caption is empty")
def explained_caption_that_is_empty(here, models):
    write_picture(here / "a.png")
    return "explain", models / "pixels", "a.png", " "


@case("the caption is too long", "leave out what follows")
def explained_caption_that_is_too_long(here, models):
    write_picture(here / "a.png")
    return "explain", models / "pixels", "a.png", "dog " * 70


@case("reads stored features", "counterfoil features")
def explained_picture_for_a_model_of_features(here, models):
    write_picture(here / "a.png")
    return "explain", models / "regions", "a.png", "a dog"


@case("page is a folder; name a file")
def page_of_an_explanation_that_is_a_folder(here, models):
    write_picture(here / "a.png")
    (here / "page").mkdir()
    return "explain", models / "pixels", "a.png", "a dog", "--output", "page"


@case("photos/features.npy", "NaN or infinite")
def explained_features_that_are_no_numbers(here, models):
    photos(here)
    values = np.full((12, 3, 4), np.nan, np.float32)
    np.save(here / "photos" / "features.npy", values)
    found = ("--data", "photos", "--features", "photos/features.npy")
    return "explain", models / "regions", "0.png", "a dog", *found


typed(
    "truth of nothing",
    "analyse true-rate --data scenes --output p.html",
    "nothing is to be judged",
    "--crowd",
)
typed(
    "judgements that are not there",
    f"analyse true-rate --crowd c.txt --data {SCENES} --output p.html",
    "c.txt does not exist",
)
typed(
    "fluency of no store", f"analyse fluency w --data {SCENES} --output p.html", "w/manifest.json"
)
typed("sheet of no store", f"analyse sheet w --data {SCENES} --output s.csv", "w/manifest.json")


def stored_foil(here: Path, image: str = "1.jpg") -> None:
    """Two photos of a training split, and a foil of the first."""
    write_karpathy(here, [karpathy_image(f"{n}.jpg", "train", ["A dog."], n) for n in (1, 2)])
    dataset = load_dataset(str(here)).split("train")
    foil = GeneratedCaption(image, dataset.text_ids[0], "A dog.", "A cat.", "noun", ())
    GeneratedStore.write(here / "w", [foil], dataset, writer="hand", settings={}, seed=0)


@case("w was written for", "only of scenes", "counterfoil analyse sheet")
def truth_of_photos(here, models):
    stored_foil(here)
    return "analyse", "true-rate", "w", "--data", ".", "--output", "p.html"


@case("w has a foil of caption", "of '3.jpg'", "write again")
def foils_of_an_unknown_picture(here, models):
    stored_foil(here, "3.jpg")
    return "analyse", "fluency", "w", "--data", ".", "--output", "p.html"


@case("w was written for corpus", "write again")
def fluency_of_foils_of_other_data(here, models):
    stored_foil(here)
    return "analyse", "fluency", "w", "--data", SCENES, "--output", "p.html"


@case("w is given twice")
def sheet_of_a_store_twice(here, models):
    stored_foil(here)
    return "analyse", "sheet", "w", "w", "--data", ".", "--output", "s.csv"


@case("w has only 1 pictures left for 2 sentences", "--count")
def sheet_of_too_few_pictures(here, models):
    stored_foil(here)
    return "analyse", "sheet", "w", "--data", ".", "--count", "2", "--output", "s.csv"


@case("a.csv has no columns item and answer", "counterfoil analyse sheet")
def answers_of_another_table(here, models):
    stored_foil(here)
    (here / "a.csv").write_text("image,true\n1.jpg,yes\n")
    return "analyse", "true-rate", "w", "--answers", "a.csv", "--data", ".", "--output", "p.html"


@case("answers 'maybe' to s1", "true, false, unsure")
def an_unknown_answer(here, models):
    stored_foil(here)
    (here / "a.csv").write_text("item,answer\ns1,maybe\n")
    return "analyse", "true-rate", "w", "--answers", "a.csv", "--data", ".", "--output", "p.html"


@case("no answer is about w", "a filled sheet")
def answers_about_other_captions(here, models):
    stored_foil(here)
    (here / "a.csv").write_text("item,answer\ns1,true\n")
    return "analyse", "true-rate", "w", "--answers", "a.csv", "--data", ".", "--output", "p.html"


@case("cannot be read as a causal language model", "--lm")
def fluency_by_no_language_model(here, models):
    stored_foil(here)
    (here / "lm").mkdir()
    return "analyse", "fluency", "w", "--data", ".", "--lm", "./lm", "--output", "p.html"


@case("has no head that doubts or corrects words", "--corrector")
def fluency_corrected_by_a_model_without_words(here, models):
    stored_foil(here)
    more = "--corrector", models / "pixels", "--output", "p.html"
    return "analyse", "fluency", "w", "--data", ".", *more


@case("is given twice; name each folder once")
def fluency_of_a_store_twice(here, models):
    stored_foil(here)
    return "analyse", "fluency", "w", "w", "--data", ".", "--output", "p.html"


@case("compares ready-made vectors and cannot read written captions")
def guide_of_vectors(here, models):
    assert (
        recipes_cases.run("write", "rules", SCENES, "--split", "test", "--output", here / "w") == 0
    )
    return "analyse", "true-rate", "w", "--data", SCENES, "--guide", "vectors", "--output", "p.html"


# written negatives

TELL = ("--data", REGIONS, "--anchors", "2", "--output", "p.html")

typed("no anchors at all", "analyse triples vectors --anchors 0 --output p.html", "'--anchors'")
typed(
    "triples of vectors",
    "analyse triples vectors --data scenes --output p.html",
    "cannot read written captions",
)
typed(
    "words of vectors",
    "analyse words vectors --data scenes:images=12 --output p.html",
    "cannot read written captions",
)
typed(
    "duels of vectors",
    "analyse discrimination vectors --data scenes:images=12 --output p.html",
    "cannot read written captions",
)
typed(
    "difficulty of nothing", "analyse difficulty nowhere --output p.html", "holds no metrics.jsonl"
)


@case("no log below", "tells how hard written captions are", "tags/uniter-scenes")
def difficulty_of_a_training_without_written_captions(here, models):
    return "analyse", "difficulty", models / "run", "--output", "p.html"


@case("metrics.jsonl tells only a part", "'written_gap' is missing")
def difficulty_of_half_a_log(here, models):
    (here / "metrics.jsonl").write_text('{"step": 1, "written_above": 1.0}\n')
    return "analyse", "difficulty", ".", "--output", "p.html"


@case("pixels writes no captions", "--writer", "--written")
def triples_by_a_model_that_cannot_write(here, models):
    return "analyse", "triples", models / "pixels", "--batch", "4", *TELL


@case("writes no captions", "name one model")
def triples_by_an_ensemble(here, models):
    both = f"{models / 'pixels'}+{models / 'run/online'}"
    return "analyse", "triples", both, "--batch", "4", *TELL


@case("--written", "--writer", "drop one")
def triples_of_two_sources_of_written_captions(here, models):
    both = ("--written", "w", "--writer", models / "pixels")
    return "analyse", "triples", models / "pixels", *both, *TELL


@case("batches of 128 cannot be drawn from 30 captions", "--batch")
def triples_of_large_batches(here, models):
    return "analyse", "triples", models / "pixels", *TELL


@case("was written for split 'train'", "'test'", "--split")
def triples_of_foils_of_another_split(here, models):
    assert recipes_cases.run("write", "rules", REGIONS, "--output", here / "w") == 0
    return "analyse", "triples", models / "pixels", "--written", "w", "--batch", "4", *TELL


@case("was written for split 'train'", "'test'", "--split")
def duels_with_foils_of_another_split(here, models):
    assert recipes_cases.run("write", "rules", REGIONS, "--output", here / "w") == 0
    return "analyse", "discrimination", models / "pixels", "--foils", "w", *TELL


@case("there is nothing to tell apart", "--foils", "--writer")
def duels_with_nobody(here, models):
    none = ("--no-rules", "--others", "0")
    return "analyse", "discrimination", models / "pixels", *none, *TELL


@case("VSEPP does not read words", "tags-dc/uniter-scenes")
def words_of_a_model_without_heads(here, models):
    return "analyse", "words", models / "pixels", *TELL


@case("is an ensemble", "name one model")
def words_of_an_ensemble(here, models):
    return "analyse", "words", f"{models / 'pixels'}+{models / 'run/online'}", *TELL


@case("has no heads for correct, doubt")
def words_of_a_model_that_only_fills(here, models):
    reader(here / "mute", outputs=("rank", "fill"))
    return "analyse", "words", "mute", *TELL


@case("temperature=0.0", "above 0")
def words_written_at_no_temperature(here, models):
    reader(here / "first")
    return "analyse", "words", "first", "--temperature", "0", *TELL


# export


def exported(models: Path, *words: object) -> Sequence[object]:
    return "export", models / "run/lists", "--data", SCENES, "--output", "out", *words


typed("no model to export", "export nothing/here/at/all --to hf --output out", "nothing/here")
typed("no form of models", "export x --to trec --output out", "'trec'", "a form of models", "hf")
typed("data of a model", "export x --to hf --output out --data scenes", "--data", "x holds none")


@case("'open_clip' is not a form of negatives", "did you mean 'open-clip'")
def unknown_form_of_negatives(here, models):
    return exported(models, "--to", "open_clip")


@case("out exists and is left alone")
def exported_negatives_that_are_there(here, models):
    (here / "out").mkdir()
    return exported(models, "--to", "trec")


@case("out exists and is left alone")
def exported_model_that_is_there(here, models):
    (here / "out").write_text("notes")
    return "export", models / "clip", "--to", "hf", "--output", "out"


@case("was mined from corpus", "split 'train'")
def exported_for_another_split(here, models):
    return exported(models, "--to", "trec", "--split", "test")


@case("--evaluation is for the card of a model", "holds negatives")
def card_of_negatives(here, models):
    return exported(models, "--to", "trec", "--evaluation", "test.json")


@case("--evaluation is for a card", "--to counterfoil")
def card_for_another_library(here, models):
    more = ("--to", "hf", "--output", "out", "--evaluation", "test.json")
    return "export", models / "clip", *more


@case("test.json holds no evaluation", "counterfoil evaluate --")
def card_with_no_evaluation(here, models):
    (here / "test.json").write_text("{}")
    more = ("--to", "counterfoil", "--output", "out", "--evaluation", "test.json")
    return "export", models / "clip", *more


@case("is a VSE", "CLIP or SigLIP", "--to counterfoil")
def exported_model_of_regions(here, models):
    return "export", models / "regions", "--to", "hf", "--output", "out"


@case("st is a model of sentence-transformers", "module Dense")
def sentence_transformer_of_several_layers(here, models):
    (here / "st").mkdir()
    kinds = ("CLIPModel", "Dense")
    modules = [{"path": kind, "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (here / "st/modules.json").write_text(json.dumps(modules))
    return "evaluate", "st", "--data", SCENES


# indices


def _indexed(here: Path, models: Path) -> Path:
    """An index of some photos, one of which has its own name on disk."""
    from counterfoil.data.readers.folder import read_image_folder
    from counterfoil.model import load_model
    from counterfoil.search.index import build_index

    (here / "my-photos").mkdir()
    for n in range(3):
        write_picture(here / "my-photos" / f"{n}.png")
    return build_index(
        load_model(models / "clip"), read_image_folder(here / "my-photos"), here / "my-index"
    ).folder


@case("is no index", "counterfoil index")
def no_index(here: Path, models: Path) -> Sequence[object]:
    return ("index", "--output", here)


@case("exists and holds an index", "--add adds to it")
def index_that_is_there(here: Path, models: Path) -> Sequence[object]:
    return ("index", models / "clip", here / "my-photos", "--output", _indexed(here, models))


@case("'fais' is not one of", "faiss-hnsw")
def unknown_backend(here: Path, models: Path) -> Sequence[object]:
    photos = _indexed(here, models).with_name("my-photos")
    return ("index", models / "clip", photos, "--output", here / "x", "--backend", "fais")


@case("leave it out, or choose milvus")
def address_of_no_server(here: Path, models: Path) -> Sequence[object]:
    photos = _indexed(here, models).with_name("my-photos")
    return ("index", models / "clip", photos, "--output", here / "x", "--address", "http://a")


@case("was chosen when it was made")
def backend_of_more(here: Path, models: Path) -> Sequence[object]:
    more = ("--output", _indexed(here, models), "--add", "--backend", "exact")
    return ("index", models / "clip", here / "my-photos", *more)


@case("is another picture", "--prefix", "--exchange")
def add_another_picture_of_the_same_name(here: Path, models: Path) -> Sequence[object]:
    more = ("--output", _indexed(here, models), "--add")
    (here / "trip").mkdir()
    write_picture(here / "trip" / "1.png", 7)
    return ("index", models / "clip", here / "trip", *more)


@case("--exchange is read only with --add")
def exchange_in_a_new_index(here: Path, models: Path) -> Sequence[object]:
    photos = _indexed(here, models).with_name("my-photos")
    return ("index", models / "clip", photos, "--output", here / "x", "--exchange")


@case("is another model", "cannot be compared")
def add_with_another_model(here: Path, models: Path) -> Sequence[object]:
    more = ("--output", _indexed(here, models), "--add")
    return ("index", models / "pixels", here / "my-photos", *more)


@case("is another model", "cannot be compared")
def ask_with_another_model(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--model", models / "pixels")


@case("'9.png' is not an id of", "3 images and 0 captions")
def delete_what_is_not_there(here: Path, models: Path) -> Sequence[object]:
    return ("index", "--output", _indexed(here, models), "--delete", "0.png", "--delete", "9.png")


@case("deleting needs no model and no data")
def delete_with_a_model(here: Path, models: Path) -> Sequence[object]:
    more = ("--output", _indexed(here, models), "--delete", "0.png")
    return ("index", models / "clip", here / "my-photos", *more)


typed("index of no data", "index runs/mine --output x", "name both")


@case("no captions to find", "3 images and 0 captions")
def captions_of_bare_pictures(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--find", "captions")


@case("'pictures' is not one of", "'images', 'captions'")
def find_something_else(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--find", "pictures")


@case("'word' is not one of", "picture")
def query_of_no_kind(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--as", "word")


@case("nope.jpg does not exist", "no image of", "has this id")
def picture_that_is_nowhere(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "nope.jpg")


@case("caption 0 of 1 is empty")
def empty_query_of_an_index(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), " ")


@case("--depth says how much is re-ranked", "--rerank")
def depth_of_nothing(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--depth", "9")


@case("reads stored features", "--features")
def rerank_without_features(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--rerank", models / "regions")


@case("10 results are wanted", "only the first 5")
def depth_below_top(here: Path, models: Path) -> Sequence[object]:
    return ("search", _indexed(here, models), "a dog", "--rerank", models / "clip", "--depth", "5")


@case("--json goes with an index")
def json_of_a_model(here: Path, models: Path) -> Sequence[object]:
    return ("search", models / "clip", "a dog", "--json")


@case("000000-images.npy", "cannot be read")
def truncated_index(here: Path, models: Path) -> Sequence[object]:
    path = _indexed(here, models) / "000000-images.npy"
    path.write_bytes(path.read_bytes()[:-9])
    return ("search", path.parent, "a dog")


@case("index.json", "has format 99")
def index_of_another_version(here: Path, models: Path) -> Sequence[object]:
    path = _indexed(here, models) / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    return ("search", path.parent, "a dog")


@case("the model of", "cannot be opened", "--model")
def index_without_its_model(here: Path, models: Path) -> Sequence[object]:
    path = _indexed(here, models) / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": str(here / "gone")}))
    return ("search", path.parent, "a dog")
