"""NNSmith 0.1.0, seed 50: Constant, Sub, CastF32, CastI32, CastI32, Clip, Min, Max, Reshape, CastF32, ReLU, ReflectPad, Where."""

import torch
from torch import device, inf, nan, nn

SEED = 50
INPUTS = ('x0:int32[1]', 'x1:int32[1]', 'x2:bool[35,1,1]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((47, 1)).to(torch.int32), requires_grad=False)

    def forward(self, x0, x1, x2):
        c0 = self.c0
        sub = torch.sub(c0, x0)
        to = sub.to(dtype = torch.float32)
        to_1 = sub.to(dtype = torch.int32)
        to_2 = x1.to(dtype = torch.int32)
        clip = torch.clip(to_2, -1, 1)
        min_1 = torch.min(clip, clip)
        max_1 = torch.max(min_1, clip)
        reshape = clip.reshape(1, 1, 1, 1)
        to_3 = reshape.to(dtype = torch.float32)
        relu = torch.relu(to_3)
        pad = torch.nn.functional.pad(relu, (0, 0, 0, 0, 0, 0), mode = 'reflect', value = None)
        where = torch.where(x2, to_1, clip)
        return (to, max_1, pad, where)
