"""NNSmith 0.1.0, seed 15: CastF64, Asin, Softmax, ReduceMin, Pow, Sqrt, LeakyReLU, Sigmoid."""

import torch
from torch import device, inf, nan, nn

SEED = 15
INPUTS = ('x0:float64[2]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m2 = nn.Softmax(dim=0)
        self.m6 = nn.LeakyReLU(negative_slope=0.01)

    def forward(self, x0):
        to = x0.to(dtype = torch.float64)
        asin = torch.asin(to)
        m2 = self.m2(asin)
        min_1 = m2.min(0)
        getattr_1 = min_1.values
        pow_1 = torch.pow(x0, getattr_1)
        sqrt = torch.sqrt(asin)
        m6 = self.m6(sqrt)
        sigmoid = torch.sigmoid(asin)
        return (pow_1, m6, sigmoid)
