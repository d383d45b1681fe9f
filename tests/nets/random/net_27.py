"""NNSmith 0.1.0, seed 27: Ceil, CastF32, Constant, ReplicatePad, ArgMax, ReduceMax, ExpandLast3, Constant, Constant, And, ReduceMax, Where, Max, GELU, GELU, TrilinearInterp, Less, Sqrt."""

import torch
from torch import device, inf, nan, nn

SEED = 27
INPUTS = ('x0:float32[1]', 'x1:float32[36,2,2,2]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c2 = nn.Parameter(torch.randn((1, 1, 1, 62)).to(torch.float32), requires_grad=True)
        self.c7 = nn.Parameter(torch.randn((1, 36, 1, 1, 1)).to(torch.bool), requires_grad=False)
        self.c8 = nn.Parameter(torch.randn((1,)).to(torch.bool), requires_grad=False)

    def forward(self, x0, x1):
        ceil = torch.ceil(x0)
        to = ceil.to(dtype = torch.float32)
        c2 = self.c2
        pad = torch.nn.functional.pad(c2, (0, -61, 0, 0, 0, 0), mode = 'replicate', value = None)
        argmax = pad.argmax(1)
        max_1 = argmax.max(1)
        expand = argmax.expand(1, 1, 1)
        c7 = self.c7
        c8 = self.c8
        logical_and = torch.logical_and(c8, c7)
        max_2 = to.max(0)
        getattr_1 = max_2.values
        where = torch.where(logical_and, pad, getattr_1)
        max_3 = torch.max(where, x1)
        gelu = torch._C._nn.gelu(max_3)
        gelu_1 = torch._C._nn.gelu(gelu)
        interpolate = torch.nn.functional.interpolate(gelu, size = [1, 1, 62], scale_factor = None, mode = 'trilinear', align_corners = None, recompute_scale_factor = None, antialias = False)
        lt = torch.lt(c2, interpolate)
        sqrt = torch.sqrt(interpolate)
        getattr_2 = max_1.values
        return (getattr_2, expand, gelu_1, lt, sqrt)
