"""NNSmith 0.1.0, seed 11: Constant, Clip, Round, LeakyReLU, ReduceMin, ReLU, Clip, Mul, CastF64, Add, Add, Sub, Floor."""

import torch
from torch import device, inf, nan, nn

SEED = 11
INPUTS = ('x0:float64[1,1]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m3 = nn.LeakyReLU(negative_slope=0.01)
        self.c0 = nn.Parameter(torch.randn((1, 58, 60)).to(torch.float64), requires_grad=True)

    def forward(self, x0):
        c0 = self.c0
        clip = torch.clip(c0, -1.5, 1.5)
        round_1 = torch.round(clip)
        m3 = self.m3(round_1)
        min_1 = x0.min(1)
        getattr_1 = min_1.values
        relu = torch.relu(getattr_1)
        clip_1 = torch.clip(relu, -1.5, 1.5)
        mul = torch.mul(x0, m3)
        to = m3.to(dtype = torch.float64)
        add = torch.add(m3, clip_1)
        add_1 = torch.add(getattr_1, add)
        sub = torch.sub(add_1, mul)
        floor = torch.floor(add)
        return (to, sub, floor)
