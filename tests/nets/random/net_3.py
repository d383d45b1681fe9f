"""NNSmith 0.1.0, seed 3: Constant, Concat4, PReLU, Acos, CastI32, Round, Acos, CastBool, Where."""

import torch
from torch import device, inf, nan, nn

SEED = 3
INPUTS = ('x0:float32[1]', 'x1:float32[1]', 'x2:float32[1]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m2 = nn.PReLU(num_parameters=1)
        self.c0 = nn.Parameter(torch.randn((14,)).to(torch.float32), requires_grad=True)

    def forward(self, x0, x1, x2):
        c0 = self.c0
        cat = torch.cat((x2, x1, c0, x0), dim = 0)
        m2 = self.m2(cat)
        acos = torch.acos(m2)
        to = acos.to(dtype = torch.int32)
        round_1 = torch.round(m2)
        acos_1 = torch.acos(round_1)
        to_1 = acos_1.to(dtype = torch.bool)
        where = torch.where(to_1, to, to)
        return (where,)
