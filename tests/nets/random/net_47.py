"""NNSmith 0.1.0, seed 47: Constant, Where, Sub, Clip, Floor, Reshape, CastBool, ReLU, Reshape, Round, Sin."""

import torch
from torch import device, inf, nan, nn

SEED = 47
INPUTS = ('x0:float64[]', 'x1:bool[9,56]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((1, 56)).to(torch.float64), requires_grad=True)

    def forward(self, x0, x1):
        c0 = self.c0
        where = torch.where(x1, c0, x0)
        sub = torch.sub(where, c0)
        clip = torch.clip(where, -1.5, 1.5)
        floor = torch.floor(clip)
        reshape = clip.reshape(56, 9)
        to = where.to(dtype = torch.bool)
        relu = torch.relu(where)
        reshape_1 = relu.reshape(504)
        round_1 = torch.round(reshape_1)
        sin = torch.sin(where)
        return (sub, floor, reshape, to, round_1, sin)
