"""NNSmith 0.1.0, seed 30: Constant, ExpandLast4, Mul, Squeeze, Neg, Flatten, Add, Concat4, Mul, ExpandLast3, Sub, Concat1, Sub, Concat2."""

import torch
from torch import device, inf, nan, nn

SEED = 30
INPUTS = ('x0:int8[1,1,1,38]', 'x1:int8[1,1,1,38]', 'x2:int8[1,38]')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c0 = nn.Parameter(torch.randn((1, 1, 4, 1, 38)).to(torch.int8), requires_grad=False)

    def forward(self, x0, x1, x2):
        c0 = self.c0
        expand = c0.expand(1, 1, 4, 1, 38)
        mul = torch.mul(x0, c0)
        squeeze = mul.squeeze(3)
        neg = torch.neg(squeeze)
        flatten = neg.flatten()
        add = torch.add(x1, neg)
        cat = torch.cat((x1, x0, neg, add), dim = 2)
        mul_1 = torch.mul(x1, neg)
        expand_1 = mul_1.expand(1, 1, 4, 38)
        sub = torch.sub(x2, neg)
        cat_1 = torch.cat((x2,), dim = 1)
        sub_1 = torch.sub(x2, mul_1)
        cat_2 = torch.cat((squeeze, sub_1), dim = 1)
        return (expand, flatten, cat, expand_1, sub, cat_1, cat_2)
