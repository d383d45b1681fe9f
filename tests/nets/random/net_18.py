"""NNSmith 0.1.0, seed 18: Triu, Greater, ReduceMax, Concat1, ExpandLast3, Min, Concat3."""

import torch
from torch import device, inf, nan, nn

SEED = 18
INPUTS = ('x0:int8[2,16]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        triu = x0.triu(0)
        gt = torch.gt(x0, triu)
        max_1 = x0.max(0)
        getattr_1 = max_1.values
        cat = torch.cat((getattr_1,), dim = 0)
        expand = getattr_1.expand(1, 1, 16)
        min_1 = torch.min(expand, x0)
        cat_1 = torch.cat((expand, expand, expand), dim = 2)
        return (gt, cat, min_1, cat_1)
