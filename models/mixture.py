"""A mixture of experts: each token goes to the best two of eight feed-forward networks."""

from math import sqrt

import torch
from torch import Tensor, nn

from models.export import Recipe
from models.seeding import generator, normal_

EXPERTS, CHOSEN, DEPTH, WIDTH, LAYERS = 8, 2, 128, 256, 2


class Experts(nn.Module):
    """One layer: a gate scores the experts, and the best two compute each token."""

    def __init__(self, rng: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DEPTH)
        self.gate = nn.Parameter(torch.empty(DEPTH, EXPERTS))
        self.up = nn.Parameter(torch.empty(EXPERTS, DEPTH, WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, WIDTH, DEPTH))
        normal_(self.norm.bias, 0.2, rng)
        normal_(self.gate, 1 / sqrt(DEPTH), rng)
        normal_(self.up, sqrt(2 / DEPTH), rng)
        normal_(self.down, 1 / sqrt(WIDTH), rng)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x)
        best, index = torch.topk(rows @ self.gate, CHOSEN, dim=-1)
        share = torch.softmax(best, dim=-1)
        experts = index.flatten()
        copies = rows.repeat_interleave(CHOSEN, 0)[:, None, :]
        hidden = torch.relu(copies @ self.up.index_select(0, experts))
        results = (hidden @ self.down.index_select(0, experts)).reshape(-1, CHOSEN, DEPTH)
        return x + (results * share[:, :, None]).sum(1)


def mixture() -> Recipe:
    """Returns two layers of eight experts, of which each token takes two (1.1 M parameters)."""
    rng = generator(88)
    model = nn.Sequential(*(Experts(rng) for _ in range(LAYERS)))
    return Recipe(model, "dynamo", 18)
