"""NNSmith 0.1.0, seed 14: Constant, Sub, ExpandLast1, Flatten, Concat5, CastF64, Max."""

import torch
from torch import device, inf, nan, nn

SEED = 14
INPUTS = ('x0:float64[]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn(()).to(torch.float64), requires_grad=True)

    def forward(self, x0):
        c0 = self.c0
        sub = torch.sub(x0, c0)
        expand = sub.expand(1)
        flatten = expand.flatten()
        cat = torch.cat((flatten, flatten, expand, expand, expand), dim = 0)
        to = sub.to(dtype = torch.float64)
        max_1 = torch.max(to, to)
        return (cat, max_1)
