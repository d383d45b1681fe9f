"""NNSmith 0.1.0, seed 23: Constant, Mul, Triu, Constant, Xor, Tril, ArgMin, Reshape, Where, ArgMax, CastF64."""

import torch
from torch import device, inf, nan, nn

SEED = 23
INPUTS = ('x0:float64[3]', 'x1:bool[]', 'x2:float64[11,1]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((1, 1)).to(torch.float64), requires_grad=True)
        self.c3 = nn.Parameter(torch.randn(()).to(torch.bool), requires_grad=False)

    def forward(self, x0, x1, x2):
        c0 = self.c0
        mul = torch.mul(c0, x0)
        triu = mul.triu(0)
        c3 = self.c3
        logical_xor = torch.logical_xor(c3, x1)
        tril = x2.tril(0)
        argmin = tril.argmin(0)
        reshape = argmin.reshape(1)
        where = torch.where(logical_xor, tril, triu)
        argmax = where.argmax(0)
        to = where.to(dtype = torch.float64)
        return (reshape, argmax, to)
