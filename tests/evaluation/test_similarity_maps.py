"""Maps of words: on the right part of the picture, of the right words, what the score pools."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw
from torch import nn

import counterfoil as cf
import explain_cases
from counterfoil.core.types import Embeddings
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import PictureFiles, ResizeCrop
from counterfoil.data.processor import FeatureProcessor, PixelProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.evaluation.similarity_maps import part_of_picture, similarity_maps
from counterfoil.model import Model
from counterfoil.models.filip import FILIP
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.layers.pooling import ImageTower, PatchGrid, TextTower, full_mask
from counterfoil.models.layers.towers import GRU, PatchTower, Regions

SIZE, PATCH = 32, 4
COLOURS = ("red", "green", "blue")
WORDS = ("<pad>", "<start>", "<end>", "<unk>", *COLOURS, "a", "square", ".", ",")
FRAMES = ("", "crop", "shortest bicubic", "shortest-floor bilinear 40", "longest nearest",
          "squash bicubic", "squash bicubic 40")  # fmt: skip


class Colours(ImageTower):
    """The mean colour of each patch, less grey; perhaps behind a class token."""

    width = 3

    def __init__(self, before: int = 0) -> None:
        super().__init__()
        self.before = before

    def forward(self, items):
        colours = nn.functional.avg_pool2d(items.values, PATCH).flatten(2).mT
        first = colours.new_full((len(colours), self.before, 3), 5.0)  # above all patches
        tokens = torch.cat([first, colours - colours.mean(2, keepdim=True)], 1)
        return Embeddings(tokens, full_mask(tokens))

    def patch_grid(self, vectors, pixels):
        return PatchGrid.square(vectors, pixels, patch=PATCH)


class Names(TextTower):
    """The colour that a token names."""

    width = 3

    def __init__(self, ids) -> None:
        super().__init__()
        self.ids = torch.tensor(ids)

    def forward(self, items):
        return Embeddings((items.values[..., None] == self.ids).float(), items.mask)


def model(frame="", tokenizer=None, ids=(4, 5, 6), before=0, direction="t2i"):
    network = FILIP(image=Colours(before), text=Names(ids), direction=direction)
    network.normalise = (False, False)
    pixels = PixelProcessor(
        SIZE, (0.0,) * 3, (1.0,) * 3, frame == "crop", frame="" if frame == "crop" else frame
    )
    return Model(network, Processor(pixels, tokenizer or WordTokenizer(WORDS)), "seen")


def picture(size, at, colour="red"):
    """A grey picture with a square of a colour, whose middle is at these fractions."""
    made = Image.new("RGB", size, "grey")
    x, y, r = at[0] * size[0], at[1] * size[1], min(size) / 10
    ImageDraw.Draw(made).rectangle((x - r, y - r, x + r, y + r), fill=colour)
    return made


def is_at(maps, word, at, size):
    """Whether the best place of a word is where the square is, to a pixel of the model."""
    x1, y1, x2, y2 = maps.boxes[word.best]
    reach = [min(size) / 10 / side for side in size]
    return x1 - reach[0] <= at[0] <= x2 + reach[0] and y1 - reach[1] <= at[1] <= y2 + reach[1]


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("size", "at"),
    [
        ((300, 200), (0.25, 0.2)),
        ((200, 330), (0.7, 0.68)),
        ((41, 43), (0.8, 0.5)),
        ((900, 300), (0.4, 0.8)),
    ],
)
def test_the_map_lies_on_the_picture_as_it_is(frame, size, at):
    opened = model(frame)
    maps = similarity_maps(opened, picture(size, at), "a red square")
    assert maps.grid == (SIZE // PATCH, SIZE // PATCH)
    (red,) = [word for word in maps.words if word.text == "red"]
    assert is_at(maps, red, at, size), (maps.boxes[red.best], frame)
    assert maps.array().shape == (3, *maps.grid)
    # the whole input is covered, and nothing of the picture is twice
    area = sum((x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in maps.boxes)
    whole = frame in ("", "longest nearest", "squash bicubic")
    assert area == pytest.approx(1) if whole else area < 1


@pytest.mark.parametrize("frame", FRAMES[1:])
@pytest.mark.parametrize("size", [(300, 200), (123, 456), (3000, 20)])
def test_the_place_of_the_input_is_that_of_its_pixels(frame, size):
    """A picture whose colour tells its place: what the input shows is where it is said to be."""
    across, down = (255 * (torch.arange(side) + 0.5) / side for side in size)
    across = across.round().byte().expand(size[1], -1)
    down = down.round().byte()[:, None].expand(-1, size[0])
    made = Image.fromarray(torch.stack([across, down, torch.full_like(across, 255)], 2).numpy())
    transform = ResizeCrop(SIZE, "center") if frame == "crop" else ResizeCrop.named(SIZE, frame)
    pixels = torch.from_numpy(transform.resize(made)).float()
    x1, y1, x2, y2 = transform.seen(*size)
    middles = (torch.arange(SIZE) + 0.5) / SIZE
    shown = pixels[2] > 250
    for values, first, last, axis in ((pixels[0], x1, x2, 1), (pixels[1], y1, y2, 0)):
        told = (first + (last - first) * middles).clamp(0, 1) * 255
        told = told.expand(SIZE, SIZE) if axis else told[:, None].expand(SIZE, SIZE)
        step = 255 * (last - first) / SIZE  # of a pixel; of the picture below
        source = 255 / size[1 - axis]
        assert float((values - told).abs()[shown].max()) <= 0.5 * max(step, source) + 2, frame


def test_a_picture_turned_by_its_camera_lies_upright(tmp_path):
    size, at = (300, 200), (0.8, 0.2)
    upright = picture(size, at)
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    turned.save(tmp_path / "a.png", exif=exif)
    opened = model("crop")
    by_path = similarity_maps(opened, tmp_path / "a.png", "red")
    as_opened = similarity_maps(opened, Image.open(tmp_path / "a.png"), "red")
    assert by_path == as_opened == similarity_maps(opened, upright, "red")
    assert is_at(by_path, by_path.words[0], at, size)
    data = load_dataset("scenes:images=3,dev=0,test=0")
    held = replace(data, pictures=PictureFiles([tmp_path / "a.png"] * len(data)), features=None)
    assert similarity_maps(opened, held.image_ids[0], "red", dataset=held) == by_path


def test_pictures_of_two_sizes_have_their_own_places():
    opened = model("shortest bicubic")
    for size, at in (((300, 200), (0.3, 0.2)), ((200, 300), (0.3, 0.6))):
        maps = cf.explain(opened, picture(size, at), "a red square").maps
        assert is_at(maps, maps.words[1], at, size)


@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
def test_the_numbers_are_those_that_the_score_pools(direction):
    torch.manual_seed(0)
    words = WordTokenizer(WORDS)
    network = FILIP(
        image=PatchTower(size=SIZE, patch=8, width=8, channels=8, depth=0),
        text=GRU(words=len(WORDS), word_width=8, width=8),
        direction=direction,
    )
    opened = Model(network, Processor(PixelProcessor(SIZE), words), "filip")
    caption, seen = "A red square, a blue square.", picture((60, 90), (0.5, 0.5))
    maps = similarity_maps(opened, seen, caption)
    assert maps.shows == "similarity"
    with torch.inference_mode():
        images = opened.encode([seen])
        texts = opened.encode([caption])
        tokens = network.word_region_maps(images, texts)[0]
        score = float(network.score_matrix(images, texts))
    assert tokens.shape == (9 + 1, 16)  # with both special tokens and the punctuation
    pooled = {"t2i": tokens.amax(1).mean(), "i2t": tokens.amax(0).mean()}
    pooled["both"] = (pooled["t2i"] + pooled["i2t"]) / 2
    assert score == pytest.approx(float(pooled[direction]), abs=1e-5)
    assert [word.text for word in maps.words] == ["A", "red", "square", "a", "blue", "square"]
    rows = [1, 2, 3, 5, 6, 7]
    assert torch.allclose(torch.from_numpy(maps.array()).flatten(1), tokens[rows], atol=1e-6)


def test_pieces_are_joined_into_words_as_typed(tmp_path):
    read = explain_cases.pieces(tmp_path)
    ids = [explain_cases.VOCABULARY.index(piece) for piece in ("surf", "##board", "red")]
    opened = model(tokenizer=read, ids=ids)
    seen = picture((100, 100), (0.2, 0.2), "red")
    maps = similarity_maps(opened, seen, " An orange surfboard,  Red cats")
    texts = [word.text for word in maps.words]
    assert texts == ["An", "orange", "surfboard", "Red", "cats"]
    assert all(" An orange surfboard,  Red cats"[w.start : w.stop] == w.text for w in maps.words)
    with torch.inference_mode():
        tokens = opened.model.word_region_maps(
            opened.encode([seen]), opened.encode([" An orange surfboard,  Red cats"])
        )[0]
    board = torch.tensor(maps.words[2].values)
    assert torch.allclose(board, tokens[3:5].mean(0))  # behind [CLS], An, orange
    assert float(board.abs().max()) > 0
    assert similarity_maps(opened, seen, "surf").words[0].text == "surf"  # a single word has one


def test_a_class_token_is_no_place():
    plain, classed = model(), model(before=1)
    seen = picture((64, 64), (0.9, 0.1))
    assert similarity_maps(plain, seen, "red") == similarity_maps(classed, seen, "red")
    with torch.inference_mode():
        tokens = classed.model.word_region_maps(classed.encode([seen]), classed.encode(["red"]))
    assert int(tokens[0, 1].argmax()) == 0  # it would be the best


def test_padding_beside_a_picture_is_outside():
    maps = similarity_maps(model("longest nearest"), picture((300, 100), (0.5, 0.5)), "red")
    parts = {part_of_picture(box) for box in maps.boxes}
    assert "outside" in parts
    assert part_of_picture(maps.boxes[maps.words[0].best]) == "middle"


def features(boxes, lengths=None, count=3):
    """A data set of one-hot regions, and a model that reads a colour from each."""
    data = load_dataset("scenes:images=3,dev=0,test=0")
    values = torch.eye(len(boxes))[None].expand(len(data), -1, -1).numpy()
    given = None if boxes[0] is None else torch.tensor([boxes] * len(data)).numpy()
    held = replace(
        data, features=FeatureArray.of(values, boxes=given, lengths=lengths), pictures=None
    )
    tower = Regions(features=len(boxes), width=3)
    nn.init.zeros_(tower.fc.weight)
    nn.init.zeros_(tower.fc.bias)
    with torch.no_grad():
        tower.fc.weight[:, :count] = torch.eye(3)[:, :count]
    network = FILIP(image=tower, text=Names((4, 5, 6)))
    network.normalise = (False, False)
    reads = Processor(FeatureProcessor(len(boxes)), WordTokenizer(WORDS))
    return held, Model(network, reads, "regions")


BOXES = [[0.0, 0.0, 0.5, 0.5], [0.6, 0.1, 0.9, 0.3], [0.2, 0.7, 0.8, 1.0]]


def test_regions_with_boxes_and_padding():
    held, opened = features([*BOXES, [0.0] * 4], lengths=torch.tensor([3] * 3).numpy())
    maps = similarity_maps(opened, held.image_ids[1], "A blue square", dataset=held)
    assert maps.grid is None
    assert len(maps.boxes) == 3
    assert maps.boxes[2] == pytest.approx(BOXES[2])
    blue = maps.words[1]
    assert (blue.text, blue.best, blue.values) == ("blue", 2, (0.0, 0.0, 1.0))
    assert maps.place(blue) == "bottom, region 3"


def test_cells_of_stored_features_are_a_grid_of_any_shape():
    cells = [[c / 3, r / 2, (c + 1) / 3, (r + 1) / 2] for r in range(2) for c in range(3)]
    held, opened = features(cells)
    maps = similarity_maps(opened, held.image_ids[0], "a green square", dataset=held)
    assert maps.grid == (2, 3)
    assert maps.place(maps.words[1]) == "top, row 1, column 2"
    assert maps.array().shape == (3, 2, 3)
    held, opened = features(cells[::-1])
    assert similarity_maps(opened, held.image_ids[0], "red", dataset=held).grid is None


def test_regions_without_boxes_are_numbered():
    held, opened = features([None] * 3)
    found = cf.explain(opened, held.image_ids[0], "a green square", dataset=held)
    assert found.maps.boxes is None
    assert found.maps.place(found.maps.words[1]) == "region 2"
    assert "the data have no boxes" in found.maps.note


def test_a_word_that_points_nowhere_has_no_best_place():
    maps = similarity_maps(model(), picture((64, 64), (0.5, 0.5)), "a red square")
    assert maps.place(maps.words[0]) == "everywhere alike"
    assert "'a' 0.000: everywhere alike" in repr(maps)


def test_boxes_in_pixels_are_not_taken_for_fractions():
    held, opened = features([[0.0, 0.0, 300.0, 200.0], [9.0, 9.0, 50.0, 40.0]], count=2)
    maps = similarity_maps(opened, held.image_ids[0], "a red square", dataset=held)
    assert maps.boxes is None
    assert maps.place(maps.words[1]) == "region 1"


def test_explain_gives_the_maps_of_each_caption():
    opened, seen = model(), picture((64, 64), (0.2, 0.8))
    captions = ["a red square", "blue"] * 40
    found = cf.explain(opened, seen, captions)
    assert [one.maps for one in found] == [similarity_maps(opened, seen, c) for c in captions]
    told = found[0].to_dict()["maps"]
    assert told["shows"] == "similarity"
    assert told["words"][1]["text"] == "red"
    assert "maps" not in cf.explain(opened, seen, "red", maps=False).to_dict()


def test_a_model_of_one_vector_has_none(tmp_path):
    class Pooled(nn.Module):
        def encode_image(self, pixels):
            return pixels.mean((2, 3))

        def encode_text(self, ids):
            return torch.ones(len(ids), 3)

    opened = cf.Model(
        Pooled(),
        preprocess=lambda seen: torch.ones(3, 4, 4),
        tokenize=lambda texts: [[1]] * len(texts),
        name="pooled",
    )
    with pytest.raises(ValueError, match=r"no maps of words of pooled, .*cosine.*SCAN, BFAN"):
        similarity_maps(opened, picture((9, 9), (0.5, 0.5)), "red")
    assert cf.explain(opened, picture((9, 9), (0.5, 0.5)), "red square").maps is None


def test_what_cannot_be_placed_is_said():
    network = model().model
    cut = cf.Model(
        network,
        preprocess=lambda seen: torch.ones(3, SIZE, SIZE),
        tokenize=lambda texts: [[4]] * len(texts),
        name="mine",
    )
    seen = picture((9, 9), (0.5, 0.5))
    with pytest.raises(ValueError, match="cannot be joined into words; word_region_maps"):
        similarity_maps(cut, seen, "red")
    words = WordTokenizer(WORDS)
    own = Model(network, Processor(cut.processor.image_processor, words), "own")
    maps = similarity_maps(own, seen, "red")
    assert maps.boxes is None
    assert maps.grid == (8, 8)
    assert "nothing says how it is cut" in maps.note
    with pytest.raises(ValueError, match="the caption is empty"):
        similarity_maps(own, seen, " ")


def test_a_model_of_late_interaction_of_ones_own():
    class Mine(MaxSimModel):
        def encode_images(self, items):
            return Colours().forward(items)

        def encode_texts(self, items):
            return Names((4, 5, 6)).forward(items)

    reads = Processor(PixelProcessor(SIZE, (0.0,) * 3, (1.0,) * 3), WordTokenizer(WORDS))
    maps = similarity_maps(Model(Mine(), reads, "mine"), picture((9, 9), (0.5, 0.5)), "red")
    assert maps.grid is None  # nothing says which of its vectors are patches
    assert len(maps.words[0].values) == 64
