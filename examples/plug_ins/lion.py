"""Lion, an optimizer with one moment m per weight p (Chen et al., arXiv:2302.06675, algorithm 2).

c = b1 m + (1 - b1) g,   p -= eta (sign(c) + wd p),   m = b2 m + (1 - b2) g;   g: gradient, eta: learning rate
"""

import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    if "m" not in self.state[p]:
                        self.state[p]["m"] = torch.zeros_like(p)
                    m = self.state[p]["m"]
                    step = torch.sign(b1 * m + (1 - b1) * p.grad) + group["weight_decay"] * p
                    p -= group["lr"] * step
                    m.lerp_(p.grad, 1 - b2)
