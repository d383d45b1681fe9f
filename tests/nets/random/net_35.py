"""NNSmith 0.1.0, seed 35: Constant, Sin, PTMatMul, Min, Sigmoid, Abs, Clip, ExpandLast3, ExpandLast3, LeakyReLU, BilinearInterp, CastF64, Softmax, Sub."""

import torch
from torch import device, inf, nan, nn

SEED = 35
INPUTS = ('x0:float64[1,1]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m9 = nn.LeakyReLU(negative_slope=0.01)
        self.m12 = nn.Softmax(dim=0)
        self.c0 = nn.Parameter(torch.randn((43, 1, 17, 1)).to(torch.float64), requires_grad=True)

    def forward(self, x0):
        c0 = self.c0
        sin = torch.sin(c0)
        matmul = torch.matmul(x0, x0)
        min_1 = torch.min(x0, sin)
        sigmoid = torch.sigmoid(min_1)
        abs_1 = torch.abs(min_1)
        clip = torch.clip(abs_1, -1.5, 1.5)
        expand = abs_1.expand(43, 1, 17, 1)
        expand_1 = expand.expand(43, 1, 17, 1)
        m9 = self.m9(min_1)
        interpolate = torch.nn.functional.interpolate(min_1, size = [1, 1], scale_factor = None, mode = 'bilinear', align_corners = None, recompute_scale_factor = None, antialias = False)
        to = min_1.to(dtype = torch.float64)
        m12 = self.m12(to)
        sub = torch.sub(min_1, to)
        return (matmul, sigmoid, clip, expand_1, m9, interpolate, m12, sub)
