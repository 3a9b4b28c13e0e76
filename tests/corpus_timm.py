"""Stands in for timm, which needs torchvision."""

import types

import torch
from torch import nn


class FakeTimm(nn.Module):
    """Gives what timm's models give: a map, a map with the width last, or tokens."""

    num_features = 6

    def __init__(self, kind):
        super().__init__()
        self.kind, self.num_prefix_tokens = kind, 1

    def forward_features(self, values):
        grid = values.mean(1, keepdim=True).repeat(1, 6, 1, 1)[:, :, :3, :3]
        if self.kind == "last":
            return grid.permute(0, 2, 3, 1)
        if self.kind == "tokens":
            tokens = grid.flatten(2).transpose(1, 2)
            return torch.cat([torch.full_like(tokens[:, :1], 9), tokens], 1)
        return grid


def fake_timm(kind="map"):
    def create_model(name, *, pretrained, num_classes):
        assert pretrained
        assert num_classes == 0
        if name == "none":
            raise RuntimeError("Unknown model (none)")
        return FakeTimm(kind)

    def resolve_model_data_config(model):
        return {"input_size": (3, 4, 4), "mean": (0.5, 0.25, 0.0), "std": (0.5, 1.0, 2.0)}

    data = types.SimpleNamespace(resolve_model_data_config=resolve_model_data_config)
    return types.SimpleNamespace(create_model=create_model, data=data)
