"""Bad input: what is prepared, what is typed, and what the answer has to name.

A case of `TABLE` is the command line, ``=>``, and fragments of the answer between bars. Before it
may stand steps, each ended by ``::``, that prepare files in the folder where the command runs; they
are functions of this module. Indented lines continue a case, and `$NAME` is one of `words`.
"""

from __future__ import annotations

import inspect
import json
import pickle
import re
import shlex
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from string import Template

import numpy as np
import torch
from PIL import Image

import hub_cases
import recipes_cases
from analysis_cases import REGIONS, SCENES, reader, taught, write_run
from artifact_cases import resealed
from corpus_cases import karpathy_image, random_array, write_karpathy, write_picture, write_split
from counterfoil.core.artifact import FILES
from counterfoil.core.config import config_from_dict
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.model import load_model
from counterfoil.negatives.generated import GeneratedCaption, GeneratedStore
from counterfoil.search.index import build_index


def words(models: Path) -> dict[str, object]:
    """What the names stand for; `models` is of tests/cli/conftest.py."""
    small = " ".join(recipes_cases.SMALL)
    judge = f"judge {models / 'run/online'} --negatives {models / 'run/lists'} --output c.jsonl"
    both = " ".join(recipes_cases.SMALL_AOQ)  # as the fixture `run` was made
    few, setting = "scenes:images=12", "--set online.processor"
    return {
        **{name: models / name for name in ("pixels", "regions", "clip", "run")},
        "models": models,
        "SCENES": SCENES,
        "REGIONS": REGIONS,
        "FEW": few,
        "LONG": "dog " * 70,
        "SMALL": small,
        "ONLINE": " ".join((*recipes_cases.SMALL, *recipes_cases.FEW_CHANNELS)).replace(
            "*", "online"
        ),
        "TRAIN": f"train vsepp --data photos {small}",
        "BOTH": both,
        "RUN": f"run aoq --data {SCENES} --output run --smoke {both}",
        "PRECOMP": f"run online --like flickr8k --data pre {small} --set test.protocol=whole "
        f"{setting}.min_count=1 {setting}.standardise=False",
        "MINE": f"mine {models / 'pixels'} --data {few} --output lists",
        "CONVERT": "papers convert vsepp best.pth.tar vocab.json out",
        "PAGE": f"--data {SCENES} --output page.html",
        "ASKED": f"--data {REGIONS} --anchors 2 --output p.html",
        "FOILS": "foils blind set.json --blind captions.txt",
        "EXPORT": f"export {models / 'run/lists'} --data {SCENES} --output out",
        "IMPORT": f"papers import-lists . --output lists --data {SCENES}",
        "JUDGE": f"{judge} --data {SCENES}",
        "JUDGE_OF": f"{judge} --data",
        "AOQ": f"papers export-lists {models / 'run/lists'} --output aoq --data {SCENES}",
    }


def prepare(case: str, models: Path) -> list[str]:
    """Prepare the files of a case in the working directory; its command line."""
    *steps, command = Template(case).substitute(words(models)).split(" :: ")
    for step in steps:
        name, *arguments = shlex.split(step)
        STEPS[name](*arguments)
    return shlex.split(command)


# files of any kind


def write(path: str, *lines: str, encoding: str = "utf-8") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(line + "\n" for line in lines), encoding)


def latin(path: str, *lines: str) -> None:
    write(path, *lines, encoding="latin-1")


def mkdir(path: str) -> None:
    Path(path).mkdir(parents=True)


def rm(pattern: str) -> None:
    for path in list(Path().glob(pattern)):
        path.unlink()


def copy(source: str, target: str) -> None:
    if Path(source).is_dir():
        shutil.copytree(source, target)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def cut(path: str, count: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[: -int(count)])


def keep(path: str, count: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[: int(count)])


def flip(path: str, place: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[-int(place)] ^= 1
    Path(path).write_bytes(content)


def edit(path: str, changes: str) -> None:
    content = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps(content | json.loads(changes)))
    if FILES in content:  # what is behind the checksum of an artifact is tried
        resealed(Path(path).parent)


def picture(path: str, seed: str = "0") -> None:
    write_picture(Path(path), int(seed))


def huge_picture(path: str) -> None:
    Image.new("1", (9000, 9000)).save(path)


def array(shape: str, path: str) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    np.save(path, random_array(*map(int, shape.split(","))))


def integers(shape: str, *paths: str) -> None:
    for path in paths:
        np.save(path, np.zeros(tuple(map(int, shape.split(","))), np.int64))


def short(path: str) -> None:
    np.save(path, np.load(path)[:, :3])


def nan(path: str) -> None:
    values = np.load(path)
    values[2, 1, 1] = np.nan
    np.save(path, values)


class Owned:
    def __reduce__(self):
        return (open, ("owned", "w"))


def pickled(path: str) -> None:
    """A file that runs code where it is unpickled."""
    match Path(path).suffix:
        case ".npy":
            np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
        case ".tar":
            torch.save({"model": Owned()}, path)
        case _:
            Path(path).write_bytes(pickle.dumps(Owned()))


# data


def photos() -> None:
    """A Karpathy data set of twelve pictures with two captions each."""
    split = ["train", "train", "dev", "test"]
    images = [
        karpathy_image(f"{n}.png", split[n % 4], [f"a dog {n}", "the snow"], first=2 * n)
        for n in range(12)
    ]
    write_karpathy(Path("photos"), images)


def photos_of(split: str, *names: str) -> None:
    images = [karpathy_image(name, split, ["a dog"], n) for n, name in enumerate(names)]
    write_karpathy(Path("photos"), images)


def changed_photos(change: Callable[[list[dict[str, object]]], object]) -> None:
    photos()
    path = Path("photos/dataset_toy.json")
    content = json.loads(path.read_text())
    change(content["images"])
    path.write_text(json.dumps(content))


def photo_without_split() -> None:
    changed_photos(lambda images: images[1].pop("split"))


def split_in_a_list() -> None:
    changed_photos(lambda images: images[1].update(split=["train"]))


def dev_without_captions() -> None:
    changed_photos(lambda images: [one.update(sentences=[], sentids=[]) for one in images[2::4]])


def pictures(folder: str = "photos") -> None:
    for n in range(3):
        write_picture(Path(folder) / f"{n}.png", n)


def one_photo() -> None:
    load_dataset("scenes:images=1").pictures.open(0).save("1.png")
    write("1.txt", "a red square")


def precomp() -> None:
    for split in ("train", "dev", "test"):
        write_split(Path("pre"), split, random_array(5, 3, 4), [f"a dog {n}" for n in range(10)])


def vectors() -> None:
    mkdir("vec")
    np.save("vec/images.npy", random_array(4, 6))
    np.save("vec/texts.npy", random_array(8, 6, seed=1))


def nan_features() -> None:
    photos()
    np.save("photos/features.npy", np.full((12, 3, 4), np.nan, np.float32))


def region_table(path: str) -> None:
    write(path, "7\t100\t50\t1\tAAAA\tAAAA")


def stored_foil(image: str = "1.jpg") -> None:
    """Two photos of a training split, and a foil of the first."""
    images = [karpathy_image(f"{n}.jpg", "train", ["A dog."], n) for n in (1, 2)]
    write_karpathy(Path.cwd(), images)
    dataset = load_dataset(str(Path.cwd())).split("train")
    foil = GeneratedCaption(image, dataset.text_ids[0], "A dog.", "A cat.", "noun", ())
    GeneratedStore.write(Path("w"), [foil], dataset, writer="hand", settings={}, seed=0)


def foil_set(*entries: str) -> None:
    write("captions.txt", "a dog in the snow")
    write("set.json", f"[{', '.join(entries)}]")


def aoq_lists(run: str, *names: str) -> None:
    """Files of AOQ's mining scripts that hold the lists of the run."""
    for name in names:
        for kind, rows in (("i2t", "texts"), ("t2i", "images")):
            copy(f"{run}/lists/{rows}.npy", f"{kind}_{name}.npy")


def aoq_toy() -> None:
    np.save("i2t_toy.npy", [[11]])
    np.save("t2i_toy.npy", [[0]])


# models and runs


def feature_model(folder: str, width: str) -> None:
    recipes_cases.feature_model(Path(folder), int(width))


def reading_model(folder: str, *outputs: str) -> None:
    if outputs:
        reader(Path(folder), outputs=outputs)
    else:
        reader(Path(folder))


def vit() -> None:
    hub_cases.vit(Path("vit"))
    hub_cases.processor(Path("vit"), image_processor_type="ViTImageProcessor")


def unknown_argument(folder: str) -> None:
    path = Path(folder) / "model.json"
    content = json.loads(path.read_text())
    content["model"]["depht"] = 3
    path.write_text(json.dumps(content))
    tensors, _ = read_tensors(path.with_name("model.safetensors"), "weights")
    about = {"model": config_from_dict(content["model"]).digest()}
    write_tensors(path.with_name("model.safetensors"), tensors, about)


def other_words(path: str) -> None:
    edit(path, json.dumps({"words": [*SPECIAL, *(f"word{n}" for n in range(500))]}))


def authors(words: str = "9") -> None:
    """A checkpoint and vocabulary in the authors' layout."""
    gru = torch.nn.GRU(5, 6, batch_first=True)
    text = {"embed.weight": torch.randn(int(words), 5)}
    text |= {f"rnn.{name}": value for name, value in gru.state_dict().items()}
    image = {"fc.weight": torch.randn(6, 4), "fc.bias": torch.randn(6)}
    torch.save({"model": [OrderedDict(image), OrderedDict(text)]}, "best.pth.tar")
    index = {word: n for n, word in enumerate([*SPECIAL, "a", "b", "c", "d", "e"])}
    write("vocab.json", json.dumps({"word2idx": index}))


def checkpoint_without_text() -> None:
    authors()
    image = {"fc.weight": torch.ones(6, 4), "fc.bias": torch.ones(6)}
    torch.save({"model": [image, {"rnn.weight_ih_l0": torch.ones(18, 4)}]}, "best.pth.tar")


def recipe_file(expression: str) -> None:
    write(
        "mine.py",
        "from dataclasses import replace",
        "from counterfoil.recipes.catalogue import find_recipe",
        "whole = find_recipe('aoq')",
        f"recipe = {expression}",
    )


def unfinished(run: str, state: str = "absent") -> None:
    """A run whose second training has not begun, or was stopped."""
    copy(run, "run")
    for stage in ("adaptive", "test-adaptive", "report"):
        shutil.rmtree(f"run/{stage}")
        rm(f"run/{stage}.json")
    if state == "running":
        note = Path(run, "adaptive.json").read_text()
        Path("run/adaptive.json").write_text(note.replace('"done"', '"running"'))


def untested(run: str) -> None:
    shutil.copytree(run, "run", ignore=shutil.ignore_patterns("test-*"))


def two_runs() -> None:
    for name, images in (("first", 36), ("second", 48)):
        write_run(Path(name), taught(), f"scenes:images={images}")


def verb(*words: str) -> None:
    assert recipes_cases.run(*words) == 0


def indexed(model: str) -> None:
    """An index of some photos."""
    pictures("my-photos")
    build_index(load_model(model), load_dataset(Path("my-photos")), "my-index").close()


STEPS: dict[str, Callable[..., None]] = {
    name: step for name, step in list(globals().items()) if inspect.isfunction(step)
}

TABLE = """
# the command line alone
runn demo => No such command 'runn' | Did you mean 'run'
run aoq --outputt x => --outputt | --output | counterfoil run --help
run => Missing argument 'recipe' | counterfoil run --help
features a b => no image features | features --model MODEL
features a b --batch-size 3 => --batch-size is read only with --model
features a b --model c --regions 3 --grid 2 => only without --regions
run aoq --minutes soon => '--minutes' | valid number
run aoq --minutes -1 => '--minutes' | greater than
mine vectors --output x --texts-per-image 0 => '--texts-per-image' | greater than or equal to 1
features a b --model c --batch-size 0 => '--batch-size' | greater than or equal to 1
serve nowhere => nowhere is no index | counterfoil index
serve model index other => 3 places are given | a model and the folder
serve nowhere --port 70000 => '--port' | 70000
serve nowhere --depth 0 => '--depth' | 0
serve nowhere --seconds 0 => '--seconds' | greater than
plan demoo => 'demoo' is not a recipe | did you mean 'demo'
plan vsepp => 'vsepp' is not a recipe | `counterfoil train vsepp --data DATA --plan`
plan aoq/mobilenet => `counterfoil train aoq/mobilenet --data DATA --plan`
plan contrastive => `counterfoil train contrastive --model MODEL --data DATA --plan`
train scan-t2l --data $FEW => 'scan-t2l' | did you mean 'scan-t2i'
plan aoq --set onlin.seed=1 => 'onlin' | did you mean 'online'
plan aoq --set online.epoks=1 => 'epoks' | did you mean 'epochs'
plan aoq --set online.model.image.widht=1 => did you mean 'width'
plan aoq --set *.sead=1 => 'sead' | did you mean 'seed'
plan aoq --set epochs => 'epochs' is no setting | stage.key=value
plan aoq --set online.epochs=many => 'many' is text | whole number
plan aoq --set online.epochs=1.5 => 1.5 is a number | a whole number
plan aoq --set online.seed.x=1 => 'x' is not a key
run aoq --set online.batch=-1 => batch=-1 | may not be below 0
run aoq --set online.batch=0 => SwitchAfter | HardestTripletLoss
train vsepp --data $FEW --batch-size few => 'few' | all
train vsepp --data $FEW --batch-size 0 => '0' | all
run aoq --set online.processor.images=pixles => mean 'pixels'
plan aoq --set *.protocol=coco-1 => mean 'coco-1k'
plan aoq --set online.epochs=none => None is none | whole number
plan aoq --set online.model=3 => set one of | image_pool
run aoq --set online.rate=0.0 => rate=0.0 | above 0
run aoq --set online.precision=fp61 => 'fp61' is not a value of 'precision'
report => Missing argument 'runs
report nowhere => nowhere does not exist | folder of a run
audit scenes => Missing option '--output'
audit phots --output x => phots does not exist
audit scenes --output x --set near=0.0 => near=0.0 | above 0 and up to 1
audit scenes --output x --negatives y --set alike=2.0 => alike=2.0 | above 0 and up to 1
audit $SCENES --output x --model vectors --split tst => 'tst'
audit $SCENES --output x --negatives y => y | does not exist
audit $SCENES,corrections=d.jsonl --output x => d.jsonl does not exist
train vsepp --tune lora --data $FEW => with --model
train vsepp --other scenes --data $FEW => --other are for
train tripelt --model a --data $FEW => did you mean 'triplet'
train triplet --model a --tune frozn --data $FEW => did you mean 'frozen'
interpolate a b --output c => chosen on dev | --data
interpolate a b --output c --alpha 2 => '--alpha'
train vsepp --data phots => phots does not exist | captions.jsonl
data check some/set => write "hf:some/set"
data check scenes:image=9 => did you mean 'images'
data check scenes:images=x => 'images=x' needs a whole number
data check scenes:images=0 => 0 scenes | give more images
data check scenes:features=region => did you mean 'regions'
evaluate no/model --data $FEW => no/model | config.json
evaluate ./nothing --data $FEW => ./nothing
evaluate vectors --data $FEW --split tset => mean 'test'
evaluate vectors --protocol coco-1 => 'coco-1' | mean 'coco-1k'
evaluate vectors --depth 20 => --depth | name a model with --first
evaluate vectors --full => --full | name a model with --first
evaluate vectors --first vectors --depth 0 => '--depth' | greater than or equal to 1
evaluate vectors --first vectors --truth complete => leave out --truth
plan aoq --set test-online.depth=0 => depth=0 | at least 1
evaluate vectors --ties optimist => mean 'optimistic'
search vectors dog --data $FEW => ready-made vectors
search vectors dog.jpg --data $FEW => dog.jpg does not exist
papers convert scam a b c => 'scam' | did you mean 'scan'
run mine.py => mine.py does not exist | sets `recipe`
papers write rules $SCENES --output w --kind nuon => 'nuon' | did you mean 'noun'
papers write rules $SCENES --output w --set synonyms=net => 'net' | list, wordnet
papers write rules $SCENES --output w --split trian => 'trian'
papers write rules $SCENES --output w --set frequency=999 => 999 times | lower the
papers write rules $SCENES --output w --set most=0 => most=0 | at least one
papers write tags vectors $SCENES --output w --rule lemas
    => 'lemas' is not a rule | did you mean 'lemmas'
papers write tags vectors $SCENES --output w --phrases spicy => 'spicy' | did you mean 'spacy'
papers write tags vectors $SCENES --output w --set singles=alone => 'alone' | always, only
papers write tags vectors $SCENES --output w --set temperature=0.0 => temperature=0.0 | above 0
papers analyse true-rate w --data $SCENES --output p.html --encoder .
    => no modules.json | sentence-transformers
judge vectors --data $FEW --negatives x --output y => x/manifest.json does not
judge vectors --output y => Missing option '--negatives'
mine vectors --data $FEW --output x --filter meanings=0.7 => encoder to a folder
papers write tags vectors $SCENES --output w --set masks=0 => masks=0
papers write tags vectors $SCENES --output w --split trian => 'trian'
papers write tags nowhere/at/all $SCENES --output w => nowhere/at/all
papers write tags vectors $REGIONS --output w --phrases no.json => no.json
papers export-lists no --output x --data $SCENES => no/manifest.json
papers export-lists x --output y --texts-per-image 0 --data $SCENES => '--texts-per-image'
diagnose no --data $SCENES => no/manifest.json
papers analyse online-rnk vectors => 'online-rnk' | 'online-rank'
papers analyse curves . => Missing option '--output'
papers analyse curves . --output page.pdf => page.pdf | ends in .html
papers analyse curves . --output page.html => holds no metrics.jsonl
papers analyse curves nowhere --output page.html => nowhere holds no metrics.jsonl
papers analyse online-rank vectors --output a.html --batch 1 => '--batch' | equal to 2
papers analyse negatives vectors --output a.html --anchors 0 => '--anchors' | equal to 1
papers analyse cross-rank runs/a+ --output a.html --data $FEW => 'runs/a+' is no ensemble
papers analyse against batches . --output page.html => 'batches' | did you mean 'batch'
papers analyse student nowhere --output page.html => nowhere does not exist
papers analyse against batch runs/a runs/a --output page.html => runs/a is given twice
papers analyse map vectors --data $FEW --method tsn --output page.html
    => 'tsn' | did you mean 'tsne'
papers analyse map vectors --negatives 0 --output a.html => '--negatives'
foils vectors => Missing argument 'SET'
foils blind nowhere.json --blind a.txt => nowhere.json does not exist
foils blind $SCENES => --blind
foils vectors $SCENES => ready-made vectors | model folder
foils vectors sugarcrap:x.json => did you mean 'sugarcrepe'
foils vectors $SCENES --split tset => did you mean 'test'
explain vectors => an image and a caption | --data
explain vectors a.png => an image and a caption
explain vectors --data $REGIONS => ready-made vectors
explain vectors a.png dog => a.png does not exist
explain vectors photo dog => 'photo' is no picture | --data
explain vectors scene-0-tset-00000 dog --data $REGIONS
    => 'scene-0-tset-00000' is not an image of scenes | did you mean 'scene-0- | 36 in all
explain vectors a.png dog --threshold 1.5 => '--threshold' | less than or equal to 1, not '1.5'
explain vectors --data x --top 0 => '--top' | equal to 1
explain vectors --data $REGIONS --split tset => mean 'test'
papers analyse true-rate --data $FEW --output p.html => nothing is to be judged | --crowd
papers analyse true-rate --crowd c.txt --data $SCENES --output p.html => c.txt does not exist
papers analyse fluency w --data $SCENES --output p.html => w/manifest.json
papers analyse sheet w --data $SCENES --output s.csv => w/manifest.json
papers analyse triples vectors --anchors 0 --output p.html => '--anchors'
papers analyse triples vectors --data scenes --output p.html => cannot read written captions
papers analyse words vectors --data $FEW --output p.html => cannot read written captions
papers analyse discrimination vectors --data $FEW --output p.html => cannot read written captions
papers analyse difficulty nowhere --output p.html => holds no metrics.jsonl
export nothing/here/at/all --to hf --output out => nothing/here
export x --to tevatron --output out => 'tevatron' | a form of models | onnx
export x --to trec --output out => no data set is given | --data
export x --to hf --output out --data $FEW => --data | x holds none
index runs/mine --output x => name both

# options that nothing would read
plan --set online.seed=1 => --set is | with a recipe
export a --to hf --output b --data $FEW => --data is | with negatives | a holds none
export a --to hf --output b --split dev --most 2 => --split and --most are | them out
train vsepp --tune full --written w => --tune and --written are | with --model
mine vectors --data scenes --output b --set proposals=3 => proposals=… is | with --propose
audit scenes --output a --split dev => --split is | with --model or --explainer
audit scenes --output a --set alike=0.5 => alike=… is | with --negatives
audit $SCENES --output a --set order=random => order=random | --negatives
audit $SCENES --output a --set order=bounds => order=bounds | --model
audit scenes --output a --judgements j => --set order=bounds
evaluate vectors --data $SCENES --bounds => truth 'judged' | leave bounds out
audit scenes --output x --negatives y --set order=hard => 'hard' | random
negatives filter y --data $SCENES --judgements j => Missing option '--output'
negatives filter y --data $SCENES --judgements j --output x --by marign => did you mean 'margin'
negatives filter y --data $SCENES --judgements j --output x --confidence 95 => 95.0 | 0.95
negatives filter y --data $SCENES --judgements j --output x => y | does not exist
negatives filter $run/lists --data $SCENES --judgements j --output x => j does not exist
papers write rules scenes --output a --kind numeral --set synonyms=wordnet
    => synonyms=… is | nouns
papers write tags a scenes --output b --set slack=0.1 => slack=… is | with --guide
explain a b c --resume --top 3 => --top and --resume are | with --data alone
explain a b c --data $FEW --split dev => --split is | with --data alone
explain a b c --split dev => --split is | with --data
index --half --backend milvus => --backend and --half are | with a model
index --output a --delete b --split dev => --split is | with a model and data
foils a b.json --split dev => --split is | with foils of scenes
foils a set.json:corrections=d => a foil set has images and features, and no corrections

# settings of data
audit phots --images p => no option --images; it is said with the data | :images=VALUE
audit phots --near 0.9 => there is no option --near; it is a setting: --set near=VALUE
audit phots --folder a => there is no option --folder; audit has --explainer
mine a --out b => there is no option --out; did you mean --output?
evaluate vectors --data phots:image=p => 'image' is not a setting | did you mean 'images'
evaluate vectors --data phots:images=p,images=q => images twice
evaluate vectors --data phots:images= => images of a data set has no value
evaluate vectors --data phots:unreadable=drop => 'drop' | skip, stop
evaluate vectors --data a.csv:image-column=b --image-column c => image-column is said in a.csv
photos :: evaluate vectors --data photos:image-column=b => has no columns | image-column
papers analyse map a --output c.html --query d --count 2 --seed 1
    => --count and --seed are | --query
papers analyse triples a --output c.html --written w --masks 3 => --masks is | without --written
papers analyse discrimination a --output c.html --foils w --no-rules --keep 3
    => --keep is | --writer
papers analyse discrimination a --output c.html --foils w --masks 3 => --masks is | --writer
papers analyse true-rate a --output c.html --slack 0.1 => --slack is | with --guide
export a --to hf --output b --split train => --split is read only with negatives
export $pixels --to trec --data $FEW --output out --batch-size 8
    => --batch-size is read only with mined negatives
$EXPORT --to sentence-transformers --batch-size 8 --most 3
    => --most is read only without --batch-size
$EXPORT --to sentence-transformers --epochs 3 => --epochs is read only with --batch-size
encode $clip $FEW vectors --tokens 9 => tokens: these are for a model of sentence-transformers

# what is missing
evaluate $run --data $SCENES => run is a folder of several models; name one of them:
evaluate $run/online $run/online --data $SCENES => run/online is given twice
report $run/online => run/online is a model, which the report has to evaluate first
evaluate $run/online => no data set is given; add --data with a folder
search $run/online 'a dog' => no data set is given; add --data with a folder
mine $run/online --output lists => no data set is given; add --data
train vsepp => no data set is given; add --data with a folder
one_photo :: train vsepp --data . --output run => image; a model learns from the other images
evaluate vectors --data $SCENES --device gpu => 'gpu' is not a device
audit phots --output a => phots does not exist
cache --clear pixel => 'pixel' is not a kind of cached files; did you mean 'pixels'

# recipes
write mine.py 'x = 1' :: run mine.py => mine.py does not set `recipe`
write mine.py 'x = 1' oops :: plan mine.py => mine.py, line 2 | NameError | oops
write mine.py 'recipe = (' :: plan mine.py => mine.py, line 1 | SyntaxError
recipe_file 'replace(whole, stages=whole.stages[:1] + whole.stages[2:])' :: plan mine.py
    => reads 'lists', which no earlier stage writes
recipe_file "replace(whole, name='two', stages=(whole.stages[0], replace(whole.stages[0],
    name='adaptive', start='online')))" ::
    copy $run/online run/online :: copy $run/online.json run/online.json ::
    run mine.py --data $SCENES --output run --smoke $ONLINE
    => 'adaptive' starts from 'online', which is another model | size mismatch

# data
photos :: rm photos/images/4.png :: $TRAIN => photos/images/4.png | missing
photos :: keep photos/images/4.png 150 :: $TRAIN => photos/images/4.png cannot be read as a picture
photos :: write photos/images/0.png 'no picture' :: $TRAIN
    => photos/images/0.png cannot be read as a picture
photos :: mkdir other :: $TRAIN --data photos:images=other
    => holds none of the first 12 pictures | give the folder of the pictures
photos :: cut photos/dataset_toy.json 40 :: $TRAIN => dataset_toy.json cannot be read
photo_without_split :: $TRAIN => images[1].split
split_in_a_list :: $TRAIN => images[1].split | string
dev_without_captions :: $TRAIN => (dev) holds no captions
photos_of train 0.png 0.png :: $TRAIN => '0.png' | twice
photos :: run online --like flickr8k --data photos $SMALL --set test.protocol=whole
    => has no image features | counterfoil features
photos :: run online --like flickr8k --data photos => this split has 3 | 1,000
photos_of test 0.png 1.png 2.png :: $TRAIN => 'train' is not a split
photos_of train 0.png 1.png 2.png :: $TRAIN => holds no wrong pair: 3 images and 3 captions
mkdir photos :: $TRAIN => is no data set
pictures :: write photos/9.txt 'a cat' :: $TRAIN => holds no captions to train on | 9.txt
pictures :: $TRAIN => holds no captions to train on | captions.csv
pictures :: write photos/captions.csv 'image,title of it' '0.png,a dog' :: $TRAIN
    => among its headings 'image', 'title of it' is none for the captions | caption-column=title
pictures :: write photos/captions.csv image,n,caption '0.png,1' :: $TRAIN
    => line 2 | number of columns
pictures :: write photos/captions.jsonl '{"image": "0.png", "caption": "a"}' '{"image": ' ::
    $TRAIN
    => captions.jsonl, line 2 is not JSON
pictures :: latin photos/captions.jsonl '{"image": "0.png", "caption": "café"}' :: $TRAIN
    => captions.jsonl | UTF-8
pictures :: write photos/captions.jsonl '' :: $TRAIN => captions.jsonl holds no image
pictures :: write photos/captions.csv image,caption '0.png,a dog' ::
    write photos/captions.jsonl {} :: $TRAIN
    => captions.csv and captions.jsonl | give the path of the one

# features
precomp :: nan pre/train_ims.npy :: $PRECOMP => row 2 holds NaN | counterfoil data check
precomp :: array 5,3,2,4 pre/train_ims.npy :: $PRECOMP => has shape (5, 3, 2, 4)
precomp :: integers 5,3,4 pre/train_ims.npy pre/dev_ims.npy pre/test_ims.npy :: $PRECOMP
    => int64 | float16, float32, int8
precomp :: array 7,3,4 pre/train_ims.npy :: $PRECOMP => 7 images and 10 captions | train_owner.txt
precomp :: array 5,3,6 pre/train_ims.npy :: $PRECOMP => cannot be read as one | same regions, width
precomp :: cut pre/train_ims.npy 7 :: $PRECOMP => train_ims.npy cannot be read as features
vectors :: pickled vec/images.npy :: evaluate vectors --data vec --split all
    => images.npy cannot be read
precomp :: feature_model wide 9 :: evaluate wide --data pre => 4 wide | reads features of width 9
precomp :: evaluate $pixels --data pre => has no pictures | reads pixels
precomp :: train mobilenet --data pre => pre (train) has no pictures
    | reads pixels | :images=pictures/
photos :: array 2,3,4 feat/features.npy :: write feat/features.json '{"ids": ["x", "y"]}' ::
    evaluate $regions --data photos:features=feat => 12 of 12 images have no features | '0.png'
photos :: array 3,4 f.npy :: evaluate $regions --data photos:features=f.npy
    => 3 rows for 12 images
vectors :: integers 7 vec/owner.npy :: evaluate vectors --data vec --split all
    => owner.npy has shape (7,) | 8 whole numbers
vectors :: array 8,5 vec/texts.npy :: evaluate vectors --data vec --split all => 6 wide | 5
vectors :: rm vec/texts.npy :: evaluate vectors --data vec --split all => texts.npy does not exist
vectors :: mine vectors --data vec --output lists => 'train' is not a split | test

# models
copy $pixels model :: cut model/model.safetensors 9 :: evaluate model --data $FEW
    => model.safetensors is damaged
copy $pixels model :: flip model/model.safetensors 9 :: evaluate model --data $FEW
    => model.safetensors | checksum does not fit
copy $pixels model :: edit model/model.json '{"kind": "something"}' :: evaluate model --data
    $FEW
    => is not the card of a counterfoil model
copy $pixels model ::
    edit model/model.json '{"model": {"call": "os:system", "command": "touch owned"}}' ::
    evaluate model --data $FEW => 'os:system' is not something this file may call
copy $pixels model ::
    edit model/model.json '{"model": {"call": "counterfoil.core.io:write_text", "path": "owned",
    "text": "x"}}' ::
    evaluate model --data $FEW => write_text | is not something this file may call
copy $pixels model :: edit model/model.json '{"format": 99}' :: evaluate model --data $FEW
    => format 99 | reads format 1;
copy $pixels model ::
    edit model/model.json '{"model": {"call": "Vanished"}}' ::
    evaluate model --data $FEW => Vanished | does not exist in this version of counterfoil
copy $pixels model :: unknown_argument model :: evaluate model --data $FEW
    => model.json | 'depht' | does not fit this version
copy $pixels model :: rm model/tokenizer.json :: evaluate model --data $FEW
    => tokenizer.json does not exist
copy $pixels model :: rm model/processor.json :: evaluate model --data $FEW => processor.json
copy $pixels model :: other_words model/tokenizer.json :: evaluate model --data $FEW
    => another one than the model was saved with
mkdir model :: evaluate model --data $FEW => was its training finished
copy $clip model :: rm model/token* :: evaluate model --data $FEW => 'model' has no tokenizer files
write st/modules.json '[{"path": "CLIPModel", "type": "sentence_transformers.models.CLIPModel"},
    {"path": "Dense", "type": "sentence_transformers.models.Dense"}]' ::
    evaluate st --data $SCENES => st cannot be loaded as a SentenceTransformer
search $pixels ' ' --data $FEW => caption | empty
precomp :: picture dog.png :: search $regions dog.png --data pre
    => reads stored features, not pictures | counterfoil features
write dog.png x :: search $pixels dog.png --data $FEW => dog.png cannot be read as a picture
huge_picture dog.png :: search $pixels dog.png --data $FEW => 64,000,000
mkdir page :: search $pixels 'a dog' --data $FEW --output page => page is a folder; name a file
evaluate vectors --data $FEW --truth judged => needs judgements
evaluate vectors --data $FEW --truth everything => 'everything' is not a truth
evaluate vectors --data $FEW --judgements ./nothing => nothing does not exist
mkdir eccv ::
    evaluate $pixels --data $FEW --truth complete --judgements eccv => i2t.json does not exist
write eccv/i2t.json '[1, 2]' :: write eccv/t2i.json '[1, 2]' ::
    evaluate $pixels --data $FEW --truth complete --judgements eccv => i2t.json

# folders that are there already, and runs
mkdir lists :: $MINE => lists exists and is left alone
write file x :: mine $pixels --data $FEW --output file/lists
    => file/lists cannot be written | is a file
mkdir lists.partial :: $MINE => lists.partial holds a mining that was stopped | --resume
$MINE --filter caption=0.8 => 'caption=0.8' | did you mean 'captions'?
$MINE --filter captions => 'captions' is no setting | write key=value
$MINE --filter captions=1.5 => captions=1.5
$MINE --filter guided=0.0 => guided=0.0 needs a guide model, and none was named
$MINE --guide $pixels => a guide model was named, but no filter asks it
write file x :: run aoq --data $SCENES --output file --smoke
    => file is a file | name a folder with --
copy $run run :: $RUN --set online.seed=4
    => run/online was made with other settings: online.plan.seed is 0 there and 4 here | choose
copy $run run :: run aoq --data scenes:images=37 --output run --smoke $BOTH
    => run/online was made from other data: fingerprint is | choose another --
write run/online/thesis.tex x :: run aoq --data $SCENES --output run
    => run/online was made by something else
unfinished $run running :: $RUN => run/adaptive holds a run that was stopped | --resume
copy $run run :: write run/online.json { :: $RUN
    => online.json cannot be read as the note of a stage
unfinished $run :: edit run/lists/manifest.json '{"corpus": "0123456789abcdef"}' :: $RUN
    => was mined from corpus 0123456789abcdef | mine again
unfinished $run :: edit run/lists/manifest.json '{"format": 99}' :: $RUN
    => has format 99 | upgrade counterfoil
unfinished $run :: cut run/lists/texts.npy 5 :: $RUN => texts.npy cannot be read
unfinished $run :: short run/lists/texts.npy :: $RUN => texts.npy holds | its manifest promises
unfinished $run running ::
    copy $run/online/model/model.safetensors run/adaptive/checkpoints/last.safetensors ::
    keep run/adaptive/checkpoints/last.safetensors 99 :: $RUN --resume
    => last.safetensors is damaged

# features and convert
write feat/a.txt x :: features $FEW feat --model $clip => exists and does not hold these features
features $FEW feat --model no/nothing => nothing | no vision model
features $FEW feat --model $clip --grid 9 => a grid of 4 cells cannot be averaged to 9 x 9
precomp :: features pre feat --model $clip => has no pictures
vit :: features $FEW feat --model vit --regions 9 => no detector that can be read
region_table trainval.tsv :: train vsepp --data trainval.tsv
    => holds features of images and no captions | counterfoil features trainval.tsv
region_table trainval.tsv :: features trainval.tsv feat --grid 2 => is read only with --model
authors 11 :: $CONVERT => vocab.json has 9 words | trained with 11
authors :: mkdir out :: $CONVERT => out exists and is left alone
authors :: pickled best.pth.tar :: $CONVERT => best.pth.tar cannot be read without running code
authors :: keep best.pth.tar 300 :: $CONVERT => best.pth.tar is damaged | as the authors
checkpoint_without_text :: $CONVERT => has no 'text.embed.weight'
authors :: pickled vocab.pkl :: papers convert vsepp best.pth.tar vocab.pkl out
    => vocab.pkl cannot be read as a vocabulary | only a Vocabulary
authors :: rm best.pth.tar :: $CONVERT => best.pth.tar does not exist

# write
mkdir written :: papers write rules $SCENES --output written
    => written exists and is left alone | --output
reading_model reader :: papers write tags reader $REGIONS --output x --phrases .
    => is no folder with phrases of captions | give a JSON file
papers write tags $pixels $SCENES --output w
    => the generator VSEPP does not read words | name a model that does
mkdir w.partial :: papers write tags $pixels $SCENES --output w
    => holds a writing that was stopped | --resume
mkdir w :: papers write tags $pixels $SCENES --output w => exists and is left alone | --output

# lists of the code of AOQ
$IMPORT => should hold one pair of files i2t_NAME.npy and t2i_NAME.npy | neither
aoq_lists $run coco f30k :: $IMPORT => those of coco, f30k | --name
aoq_lists $run f30k :: rm t2i_f30k.npy :: $IMPORT => t2i_f30k.npy does not exist
aoq_lists $run f30k :: papers import-lists . --output lists --split dev
    --data scenes:images=24,dev=4,test=4
    => i2t_f30k.npy holds int32 of shape (24, 20) | (4, any)
aoq_lists $run f30k :: mkdir lists :: $IMPORT => lists exists and is left alone | --output
photos :: aoq_toy :: papers import-lists . --output x --data photos => captions 5i to 5i+4
write aoq/i2t_scenes.npy x :: $AOQ => i2t_scenes.npy exists and is left alone | --output
$AOQ --name a/b => 'a/b' cannot be part of a file's name | --name
$AOQ --split dev => was mined from corpus | counterfoil mine

# diagnose
diagnose $run/lists --data scenes:images=40 => was mined from corpus | counterfoil mine
diagnose $run/lists --data $SCENES --set alike=1.5 => alike=1.5 | above 0 and up to 1
mkdir page.html :: diagnose $run/lists $PAGE => page.html is a folder; name a file
diagnose $run/lists --data $SCENES --model nowhere/at-all => nowhere/at-all | config.json

# judge
write c.jsonl mine :: $JUDGE => c.jsonl exists and is left alone; name another file with --output
mkdir c.jsonl :: $JUDGE => c.jsonl exists and is left alone
$JUDGE --set promote_at=1.5 => promote_at=1.5
$JUDGE --set drop_at=0.99 => drop_at may not be above promote_at
$JUDGE --set weight=0.0 => weight=0.0
$JUDGE --set wait=1 => 'wait' is not a setting; did you mean 'weight'
$JUDGE --set weight=heavy => weight | a number
diagnose $run/lists --data $SCENES --set samples=0 => samples=0
$JUDGE_OF $SCENES,corrections=none => none does not exist

# audit
write audit/audit.html mine :: audit $FEW --output audit => audit.html exists and is left alone

# report
write page.html mine :: two_runs :: report first --output page.html => page.html exists
two_runs :: report first first => first is given twice
two_runs :: report first --foils first/test-student.json => cannot be read as accuracies of foils
two_runs :: report first --data scenes:images=60
    => other data than scenes test as they are now; name the data of the run with --data

# analyse
write page.html mine :: papers analyse cross-rank $pixels $PAGE
    => page.html exists and is left alone
write page.json mine :: papers analyse negatives $pixels $PAGE => page.json exists and is left alone
papers analyse cross-rank $pixels $pixels $PAGE => pixels is given twice
papers analyse online-rank $pixels --batch 121 --batch 7 $PAGE
    => batches of 7, 121 cannot be drawn from 120 captions | 2 to 120
papers analyse negatives $pixels --lists nowhere $PAGE => manifest.json does not exist
papers analyse negatives $pixels --lists $run/lists --split test $PAGE => run/lists | corpus
write metrics.jsonl '{"step": 1}' :: papers analyse curves . --output page.html
    => metrics.jsonl holds no epoch
write stage/metrics.jsonl '{"epoch": 1.0, "loss": 1.0}' :: write stage.json '{"stage": 3}' ::
    papers analyse curves stage --output page.html => stage.json is no note of a stage
papers analyse student $run --output page.html
    => run has measured no student beside a teacher of its own | recipe ndgl
papers analyse against batch $run --output page.html
    => has only the batch size 16, and a curve needs at least two | ndgl --compare batches
papers analyse against teachers $run --output page.html
    => has no number of teachers, and a curve needs at least two
write stage.json '{"kind": "evaluate", "stage": {"name": "stage"}}' ::
    papers analyse student . --output page.html
    => stage.json is no note of a stage | state | field required
untested $run :: papers analyse student run --output page.html
    => holds no finished evaluation | name the folder of a run
two_runs :: papers analyse student first second --output page.html
    => figures of different data, protocols or truths cannot share a page
papers analyse map $pixels --query 'a blue dog' $PAGE
    => 'a blue dog' is neither a caption nor an image id of scenes test | --query

# foils
foil_set '{"image": "a", "caption": "b", "foil": "c"}' '{"image": "a", "caption": "b"}' ::
    $FOILS
    => set.json: entry 1.foils: field required
foil_set 3 :: foils blind pairs:set.json --blind captions.txt
    => set.json: entry 0: input should be a valid dictionary
foil_set '{"image": "a", "caption": "b", "label": 2, "relation": "on"}' :: $FOILS
    => set.json: entry 0.label: input should be 0 or 1
foil_set :: write set.json { :: $FOILS => set.json cannot be read as a set of foils
foil_set :: write set.jsonl '{"image": "a", "caption": "b", "foil": "c"}' { ::
    foils blind set.jsonl --blind captions.txt => set.jsonl, line 2 is not JSON
foil_set '{"image": "a", "text": "b"}' :: $FOILS => set.json is in no form of foils | image, text
foil_set '{"image": "a", "caption": "b", "foil": " "}' :: $FOILS => entry '0' has an empty caption
foil_set '{"image": "a.jpg", "caption": "b", "foil": "c"}' :: mkdir pictures ::
    foils $pixels set.json:images=pictures
    => 1 of 1 pictures of set are not in pictures, such as 'a.jpg' | give the folder
foil_set '{"image": "a.jpg", "caption": "b", "foil": "c"}' :: foils $pixels set.json
    => set comes without pictures, such as 'a.jpg' | :images=pictures/
foil_set '{"image": "a.jpg", "caption": "b", "foil": "c"}' :: foils $regions set.json
    => reads stored features | :features=folder/ | 'a.jpg'
foil_set '{"image": "a", "caption": "a dog in the snow", "foil": "c"}' :: $FOILS
    => captions.txt holds no caption that is not in set
foil_set '{"image": "a", "caption": "b", "foil": "c"}' :: rm captions.txt :: $FOILS
    => captions.txt does not exist
foil_set '{"image": "a", "caption": "b", "foil": "c"}' :: mkdir page :: $FOILS --output page
    => page is a folder; name a file

# explain
picture a.png :: write captions.jsonl '{"image": "a.png", "caption": "a dog"}' { ::
    explain $pixels --data captions.jsonl --split all => captions.jsonl, line 2 is not JSON
picture a.png :: write captions.jsonl '{"image": "a.png"}' ::
    explain $pixels --data captions.jsonl --split all
    => captions.jsonl, line 1: there is no 'caption'
picture a.png :: write captions.jsonl '{"image": "a.png", "captions": ["a dog", " "]}' ::
    explain $pixels --data captions.jsonl --split all => caption 'a.png#1' is empty
picture a.png :: write captions.jsonl '{"image": "b.png", "caption": "a dog"}' ::
    explain $pixels --data captions.jsonl --split all => b.png does not exist
picture a.png :: explain $pixels a.png ' ' => the caption is empty
picture a.png :: explain $pixels a.png '$LONG' => the caption is too long | leave out what follows
picture a.png :: explain $regions a.png 'a dog' => reads stored features | counterfoil features
picture a.png :: mkdir page :: explain $pixels a.png 'a dog' --output page
    => page is a folder; name a file
nan_features :: explain $regions 0.png 'a dog' --data photos:features=photos/features.npy
    => photos/features.npy | NaN or infinite

# generated negatives
stored_foil :: papers analyse true-rate w --data . --output p.html
    => w was written for | only of scenes | counterfoil papers analyse sheet
stored_foil 3.jpg :: papers analyse fluency w --data . --output p.html
    => w has a foil of caption | of '3.jpg' | write again
stored_foil :: papers analyse fluency w --data $SCENES --output p.html
    => w was written for corpus | write again
stored_foil :: papers analyse sheet w w --data . --output s.csv => w is given twice
stored_foil :: papers analyse sheet w --data . --count 2 --output s.csv
    => w has only 1 pictures left for 2 sentences | --count
stored_foil :: write a.csv image,true 1.jpg,yes ::
    papers analyse true-rate w --answers a.csv --data . --output p.html
    => a.csv has no columns item and answer | counterfoil papers analyse sheet
stored_foil :: write a.csv item,answer s1,maybe ::
    papers analyse true-rate w --answers a.csv --data . --output p.html
    => answers 'maybe' to s1 | true, false, unsure
stored_foil :: write a.csv item,answer s1,true ::
    papers analyse true-rate w --answers a.csv --data . --output p.html
    => no answer is about w | a filled sheet
stored_foil :: mkdir lm :: papers analyse fluency w --data . --lm ./lm --output p.html
    => cannot be read as a causal language model | --lm
stored_foil :: papers analyse fluency w --data . --corrector $pixels --output p.html
    => has no head that doubts or corrects words | --corrector
stored_foil :: papers analyse fluency w w --data . --output p.html
    => is given twice; name each folder once
verb papers write rules $SCENES --split test --output w ::
    papers analyse true-rate w --data $SCENES --guide vectors --output p.html
    => compares ready-made vectors and cannot read written captions
papers analyse difficulty $run --output p.html
    => no log below | tells how hard written captions are | recipe tags
write metrics.jsonl '{"step": 1, "written_above": 1.0}' ::
    papers analyse difficulty . --output p.html
    => metrics.jsonl cannot be read as the difficulty of written captions | no 'written_gap'
papers analyse triples $pixels --batch 4 $ASKED => pixels writes no captions | --writer | --written
papers analyse triples $pixels+$run/online --batch 4 $ASKED => writes no captions | name one model
papers analyse triples $pixels --written w --writer $pixels $ASKED
    => --written | --writer | drop one
papers analyse triples $pixels $ASKED => batches of 128 cannot be drawn from 30 captions | --batch
verb papers write rules $REGIONS --output w ::
    papers analyse triples $pixels --written w --batch 4 $ASKED
    => was written for split 'train' | 'test' | --split
verb papers write rules $REGIONS --output w ::
    papers analyse discrimination $pixels --foils w $ASKED
    => was written for split 'train' | 'test' | --split
papers analyse discrimination $pixels --no-rules --others 0 $ASKED
    => there is nothing to tell apart | --foils | --writer
papers analyse words $pixels $ASKED => VSEPP does not read words | recipe tags-dc
papers analyse words $pixels+$run/online $ASKED => is an ensemble | name one model
reading_model mute rank fill :: papers analyse words mute $ASKED => has no heads for correct, doubt
reading_model first :: papers analyse words first --temperature 0 $ASKED
    => temperature=0.0 | above 0

# export
$EXPORT --to open_clip => 'open_clip' is not a form of negatives | did you mean 'open-clip'
mkdir out :: $EXPORT --to trec => out exists and is left alone
write out notes :: export $clip --to hf --output out => out exists and is left alone
$EXPORT --to trec --split test => was mined from corpus | split 'train'
$EXPORT --to trec --evaluation test.json
    => --evaluation is for the card of a model | holds negatives
export $clip --to hf --output out --evaluation test.json
    => --evaluation is for a card | --to counterfoil
write test.json {} :: export $clip --to counterfoil --output out --evaluation test.json
    => test.json holds no evaluation | counterfoil evaluate --
export $regions --to hf --output out => is a VSE | CLIP or SigLIP | --to counterfoil

# index and search
index --output . => is no index | counterfoil index
indexed $clip :: index $clip my-photos --output my-index
    => exists and holds an index | --add adds to it
indexed $clip :: index $clip my-photos --output x --backend fais
    => 'fais' is not a search backend | faiss-hnsw
indexed $clip :: index $clip my-photos --output x --address http://a
    => leave it out, or choose milvus
indexed $clip :: index $clip my-photos --output my-index --add --backend exact
    => was chosen when it was made
indexed $clip :: picture trip/1.png 7 :: index $clip trip --output my-index --add
    => is another picture | --prefix | --exchange
indexed $clip :: index $clip my-photos --output x --exchange => --exchange is read only with --add
indexed $clip :: index $pixels my-photos --output my-index --add
    => is another model | cannot be compared
indexed $clip :: search my-index 'a dog' --model $pixels => is another model | cannot be compared
indexed $clip :: index --output my-index --delete 0.png --delete 9.png
    => '9.png' is not an id of | 3 images and 0 captions
indexed $clip :: index $clip my-photos --output my-index --delete 0.png
    => deleting needs no model and no data
indexed $clip :: search my-index 'a dog' --find captions
    => no captions to find | 3 images and 0 captions
indexed $clip :: search my-index 'a dog' --find pictures
    => 'pictures' is not one of | 'images', 'captions'
indexed $clip :: search my-index 'a dog' --as word => 'word' is not one of | picture
indexed $clip :: search my-index nope.jpg => nope.jpg does not exist | no image of | has this id
indexed $clip :: search my-index ' ' => caption 0 of 1 is empty
indexed $clip :: search my-index 'a dog' --depth 9 => --depth is the number of re-ranked | --rerank
indexed $clip :: search my-index 'a dog' --rerank $regions => reads stored features
    | :features=features/
indexed $clip :: search my-index 'a dog' --rerank $clip --depth 5
    => 10 results are wanted | only the first 5
search $clip 'a dog' --json => --json is read only with an index
indexed $clip :: cut my-index/000000-images.npy 9 :: search my-index 'a dog'
    => 000000-images.npy is damaged | its checksum does not fit
indexed $clip :: edit my-index/manifest.json '{"format": 99}' :: search my-index 'a dog'
    => my-index | has format 99
indexed $clip :: edit my-index/manifest.json '{"model": "$models/gone"}' :: search my-index 'a dog'
    => the model of | cannot be opened | --model
"""


def table() -> dict[str, tuple[str, ...]]:
    """The fragments of the answer to each case."""
    lines = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\n +", " ", "\n".join(lines)).splitlines()
    cases = [line.split(" => ") for line in joined]
    assert len({case for case, _ in cases}) == len(cases)
    return {case: tuple(fragments.split(" | ")) for case, fragments in cases}


CASES = table()
