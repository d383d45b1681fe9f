"""NNSmith 0.1.0, seed 41: ReduceMin, Sin, Constant, GELU, Constant, TorchReduceSum, Concat4, LeakyReLU, Max, Tan, Floor, Neg, TorchReduceSum."""

import torch
from torch import device, inf, nan, nn

SEED = 41
INPUTS = ('x0:float64[1,1,1,30]', 'x1:float64[1,1,30]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m7 = nn.LeakyReLU(negative_slope=0.01)
        self.c2 = nn.Parameter(torch.randn((1, 1, 30)).to(torch.float64), requires_grad=True)
        self.c4 = nn.Parameter(torch.randn((40, 1, 30)).to(torch.float64), requires_grad=True)

    def forward(self, x0, x1):
        min_1 = x0.min(0)
        getattr_1 = min_1.values
        sin = torch.sin(getattr_1)
        c2 = self.c2
        gelu = torch._C._nn.gelu(c2)
        c4 = self.c4
        sum_1 = sin.sum(0)
        cat = torch.cat((x1, gelu, sin, c4), dim = 0)
        m7 = self.m7(cat)
        max_1 = torch.max(m7, cat)
        tan = torch.tan(m7)
        floor = torch.floor(tan)
        neg = torch.neg(tan)
        sum_2 = neg.sum(0)
        return (sum_1, max_1, floor, sum_2)
