"""NNSmith 0.1.0, seed 21: Tril, ExpandLast4, Transpose, Abs, Squeeze, CastI64, Slice."""

import torch
from torch import device, inf, nan, nn

SEED = 21
INPUTS = ('x0:int16[1,54]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        tril = x0.tril(0)
        expand = x0.expand(1, 1, 1, 54)
        transpose = expand.transpose(3, 1)
        abs_1 = torch.abs(x0)
        squeeze = x0.squeeze(0)
        to = squeeze.to(dtype = torch.int64)
        getitem = squeeze[(slice(0, 1, 1),)]
        return (tril, transpose, abs_1, to, getitem)
