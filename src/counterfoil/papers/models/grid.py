"""The convolutional networks of GPO's checkpoints on pixels (Chen et al., CVPR 2021, section 4.1).

Their ResNets are those of the detector that found the regions of others: the first layer of a block
strides, and pooling adds no border. Their ResNeXt is torchvision's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, final, get_args

from torch import Tensor, nn

from counterfoil.core.config import lazy
from counterfoil.data.processor import PixelProcessor
from counterfoil.models.checkpoints import State, option_value
from counterfoil.models.layers.pooling import ImageTower, check_choice, check_positive
from counterfoil.models.layers.pretrained import GridTower

EXPANSION = 4  # of a block's width
Strides = Literal["first", "middle"]


@final
class Bottleneck(nn.Module):
    """x + three convolutions with batch norms: 1 x 1, 3 x 3 in groups, and 1 x 1."""

    def __init__(
        self, *, before: int, middle: int, after: int, stride: int, groups: int, strides: Strides
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if strides == "first" else (1, stride)
        self.conv1 = nn.Conv2d(before, middle, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, second, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu()
        out = self.bn2(self.conv2(out)).relu()
        shortcut = x if self.downsample is None else self.downsample(x)
        added: Tensor = self.bn3(self.conv3(out)) + shortcut
        return added.relu()


@final
class ResnetGridTower(GridTower):
    """Grid features of a ResNet or ResNeXt of a checkpoint, which is fine-tuned, projected.

    See `counterfoil.models.layers.pretrained.GridTower` for training.
    """

    def __init__(
        self,
        *,
        depths: tuple[int, ...] = (3, 4, 23, 3),
        stem: int = 64,
        middle: int = 64,
        groups: int = 1,
        strides: Strides = "first",
        width: int = 1024,
        trained: bool = True,
        smallest: float = 1.0,
        mirror: float = 0.0,
        cell_drop: float = 0.0,
    ) -> None:
        """Initialise the module; the default sizes are those of a ResNet-101.

        Args:
            depths: blocks of each of the stages; each stage but the first halves the grid.
            stem: channels before the first stage.
            middle: channels inside of the first stage's blocks, 256 in a ResNeXt-101 32x8d; each
                later stage has twice as many.
            groups: of the 3 x 3 convolutions, 32 in that ResNeXt.
            strides: "first": the first layer of a block strides and pooling has no border, as in
                the detector's ResNet; "middle": the second strides, as torchvision's.
            width: of the joint space.
            trained: train the network too.
            smallest: smallest share of both sides left by the crop; 0.6 in the authors' code.
            mirror: probability of mirroring a picture; 0.5 in the authors' code.
            cell_drop: see `drop_cells`; 0.2 in the authors' code.

        Raises:
            ValueError: a size below 1, an unknown form, or a share that is not possible.
        """
        check_positive(stem=stem, middle=middle, groups=groups)
        check_choice("strides", strides, get_args(Strides))
        border = 0 if strides == "first" else 1
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(3, stem, 7, 2, 3, bias=False),
            bn1=nn.BatchNorm2d(stem),
            relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, 2, border, ceil_mode=not border),
        )
        before = stem
        for stage, depth in enumerate(depths):
            after, blocks = EXPANSION * stem * 2**stage, []
            for block in range(depth):
                blocks.append(
                    Bottleneck(
                        before=before,
                        middle=middle * 2**stage,
                        after=after,
                        stride=2 if stage and not block else 1,
                        groups=groups,
                        strides=strides,
                    )
                )
                before = after
            parts[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        super().__init__(
            nn.Sequential(parts),
            before,
            width=width,
            trained=trained,
            smallest=smallest,
            mirror=mirror,
            cell_drop=cell_drop,
        )

    def feature_map(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.body(pixels)
        return features


# The authors' checkpoints.


BACKBONE = "img_enc.backbone."
BODY = {  # their parts by number: both halves of the network are sequences
    f"{BACKBONE}base.0.": "image.body.conv1.",
    f"{BACKBONE}base.1.": "image.body.bn1.",
    f"{BACKBONE}base.4.": "image.body.layer1.",
    f"{BACKBONE}base.5.": "image.body.layer2.",
    f"{BACKBONE}base.6.": "image.body.layer3.",
    f"{BACKBONE}top.0.": "image.body.layer4.",
}
FIRST = "image.body.conv1.weight"
BODY_NEEDED = (FIRST, *(f"image.body.layer{stage}.0.conv2.weight" for stage in range(1, 5)))
WHOLE = f"{BACKBONE}resnet."  # the same tensors once more
SIDE = 256  # of a picture, times the option `input_scale_factor`
DETECTOR = ((122.7717 / 255, 115.9465 / 255, 102.9801 / 255), (1 / 255,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def resnet_config(state: State) -> ImageTower:
    """Return the config of the tower that fits renamed tensors."""
    blocks = {
        (parts[2], parts[3])
        for parts in (name.split(".") for name in state if name.startswith("image.body.layer"))
    }
    inside = state["image.body.layer1.0.conv2.weight"]
    groups = inside.shape[0] // inside.shape[1]
    return lazy(
        ResnetGridTower,
        depths=tuple(
            sum(stage == f"layer{number}" for stage, _ in blocks) for number in range(1, 5)
        ),
        stem=len(state[FIRST]),
        middle=len(inside),
        groups=groups,
        strides="first" if groups == 1 else "middle",
        width=len(state["image.fc.weight"]),
    )


def reads_detector(options: Mapping[str, Any]) -> bool:
    """Return whether the network is the detector's, which reads blue first and undivided.

    Raises:
        ValueError: the options do not say which network it is.
    """
    source = options.get("backbone_source")
    if source is None:
        raise ValueError(
            "this GPO checkpoint was trained on pixels and has no option backbone_source, which "
            "says how pictures are prepared; give the whole checkpoint, with its options"
        )
    return "detector" in str(source)


def picture_processor(options: Mapping[str, Any]) -> PixelProcessor:
    """Return how pictures are prepared for a checkpoint trained with these options."""
    mean, deviation = DETECTOR if reads_detector(options) else IMAGENET
    size = int(SIDE * (option_value(options, "input_scale_factor", 1.0) or 1))
    return PixelProcessor(size, mean, deviation, frame="squash bilinear")
