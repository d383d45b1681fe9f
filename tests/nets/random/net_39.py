"""NNSmith 0.1.0, seed 39: Constant, Xor, Constant, Where, PReLU, GELU, CastF64, CastI32, ArgMax, Where."""

import torch
from torch import device, inf, nan, nn

SEED = 39
INPUTS = ('x0:bool[]', 'x1:float32[34]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m4 = nn.PReLU(num_parameters=1)
        self.c0 = nn.Parameter(torch.randn(()).to(torch.bool), requires_grad=False)
        self.c2 = nn.Parameter(torch.randn((34,)).to(torch.float32), requires_grad=True)

    def forward(self, x0, x1):
        c0 = self.c0
        logical_xor = torch.logical_xor(c0, x0)
        c2 = self.c2
        where = torch.where(logical_xor, x1, c2)
        m4 = self.m4(where)
        gelu = torch._C._nn.gelu(m4)
        to = where.to(dtype = torch.float64)
        to_1 = to.to(dtype = torch.int32)
        argmax = to_1.argmax(0)
        where_1 = torch.where(logical_xor, argmax, argmax)
        return (gelu, where_1)
