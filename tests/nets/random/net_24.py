"""NNSmith 0.1.0, seed 24: Constant, PTMatMul, Sub, Sub, Clip, Max, ExpandLast4, Neg, Concat1, Abs, Neg, ExpandLast4, Slice, TorchReduceSum, ReduceMax, Reshape, Sub."""

import torch
from torch import device, inf, nan, nn

SEED = 24
INPUTS = ('x0:int64[1]', 'x1:int64[1,1,1,99,24]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((1,)).to(torch.int64), requires_grad=False)

    def forward(self, x0, x1):
        c0 = self.c0
        matmul = torch.matmul(x0, c0)
        sub = torch.sub(x1, matmul)
        sub_1 = torch.sub(matmul, x1)
        clip = torch.clip(sub_1, -1, 1)
        max_1 = torch.max(sub, sub_1)
        expand = sub_1.expand(1, 1, 1, 99, 24)
        neg = torch.neg(sub_1)
        cat = torch.cat((neg,), dim = 1)
        abs_1 = torch.abs(cat)
        neg_1 = torch.neg(abs_1)
        expand_1 = neg_1.expand(1, 1, 1, 99, 24)
        getitem = neg_1[(slice(None, None, None), slice(None, None, None), slice(None, None, None), slice(0, 99, 2), slice(None, None, None))]
        sum_1 = getitem.sum(0)
        max_2 = sum_1.max(1)
        reshape = sum_1.reshape(1, 24, 50)
        sub_2 = torch.sub(getitem, getitem)
        getattr_1 = max_2.values
        return (clip, max_1, expand, expand_1, getattr_1, reshape, sub_2)
