"""NNSmith 0.1.0, seed 36: Constant, Triu, Triu, Neg, Max, Less, ReduceMin, Mul, CastBool, And, Squeeze."""

import torch
from torch import device, inf, nan, nn

SEED = 36
INPUTS = ('x0:uint8[8,1,1]', 'x1:uint8[3]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((1, 1)).to(torch.uint8), requires_grad=False)

    def forward(self, x0, x1):
        c0 = self.c0
        triu = c0.triu(0)
        triu_1 = c0.triu(0)
        neg = torch.neg(x0)
        max_1 = torch.max(triu_1, neg)
        lt = torch.lt(neg, max_1)
        min_1 = x1.min(0)
        mul = torch.mul(x1, max_1)
        to = mul.to(dtype = torch.bool)
        logical_and = torch.logical_and(to, to)
        squeeze = mul.squeeze(1)
        getattr_1 = min_1.values
        return (triu, lt, getattr_1, logical_and, squeeze)
