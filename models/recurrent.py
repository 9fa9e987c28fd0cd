"""Recurrent models: a bidirectional LSTM tagger."""

from math import sqrt

from torch import Tensor, nn

from models.export import Recipe
from models.seeding import BIAS_STD, generator, normal_


class Tagger(nn.Module):
    """A bidirectional LSTM over [1, steps, features], then a linear map to the scores of each
    step."""

    def __init__(self, features: int, hidden: int, layers: int, tags: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        scores: Tensor = self.head(states)
        return scores


def lstm() -> Recipe:
    """Returns the tagger (128 features, 256 hidden, two layers, 17 tags) as an ONNX LSTM
    operator."""
    model = Tagger(features=128, hidden=256, layers=2, tags=17)
    rng = generator(17)
    for name, parameter in model.named_parameters():
        std = BIAS_STD if "bias" in name else 1.5 * sqrt(1.0 / parameter.shape[1])
        normal_(parameter, std, rng)
    return Recipe(model, "torchscript", 17)
