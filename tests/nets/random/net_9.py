"""NNSmith 0.1.0, seed 9: Constant, Abs, Constant, LeakyReLU, GELU, Pow, Pow, Add, Linear, Greater, ReduceMean, Floor, Max, Flatten."""

import torch
from torch import device, inf, nan, nn

SEED = 9
INPUTS = ('x0:float32[]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m3 = nn.LeakyReLU(negative_slope=0.01)
        self.m8 = nn.Linear(in_features=2, out_features=48, bias=True)
        self.c0 = nn.Parameter(torch.randn((35, 1, 1)).to(torch.float32), requires_grad=True)
        self.c2 = nn.Parameter(torch.randn((1, 1, 1, 2)).to(torch.float32), requires_grad=True)

    def forward(self, x0):
        c0 = self.c0
        abs_1 = torch.abs(c0)
        c2 = self.c2
        m3 = self.m3(c2)
        gelu = torch._C._nn.gelu(m3)
        pow_1 = torch.pow(x0, gelu)
        pow_2 = torch.pow(abs_1, c2)
        add = torch.add(abs_1, pow_1)
        m8 = self.m8(add)
        gt = torch.gt(m8, m8)
        mean = m8.mean(0)
        floor = torch.floor(mean)
        max_1 = torch.max(abs_1, floor)
        flatten = mean.flatten()
        return (pow_2, gt, max_1, flatten)
