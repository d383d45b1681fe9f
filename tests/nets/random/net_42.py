"""NNSmith 0.1.0, seed 42: CastF64, Round, Tan, Round, Softmax, ReduceMax, ExpandLast4, ReLU, CastF32, Add, Flatten, Greater, Sigmoid, CastI32, CastF32."""

import torch
from torch import device, inf, nan, nn

SEED = 42
INPUTS = ('x0:float64[1,1,36,15,4]',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m4 = nn.Softmax(dim=0)

    def forward(self, x0):
        to = x0.to(dtype = torch.float64)
        round_1 = torch.round(to)
        tan = torch.tan(round_1)
        round_2 = torch.round(tan)
        m4 = self.m4(round_2)
        max_1 = m4.max(4)
        expand = m4.expand(1, 1, 36, 15, 4)
        relu = torch.relu(m4)
        to_1 = relu.to(dtype = torch.float32)
        add = torch.add(to_1, to_1)
        flatten = add.flatten()
        gt = torch.gt(flatten, flatten)
        sigmoid = torch.sigmoid(relu)
        to_2 = sigmoid.to(dtype = torch.int32)
        to_3 = to_2.to(dtype = torch.float32)
        getattr_1 = max_1.values
        return (getattr_1, expand, gt, to_3)
