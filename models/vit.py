"""ViT-B/16 in a module of its own, because its library takes seconds to import."""

from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from models.export import Recipe
from models.seeding import generator, scale_, seed_transformer


class ViT(nn.Module):
    """A wrapper of the library's classifier with positional inputs: pixels in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = ViTForImageClassification(
            ViTConfig(id2label={label: str(label) for label in range(1000)})
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.vit(pixel_values=pixel_values).logits
        return logits


def vit_b16() -> Recipe:
    """Returns ViT-B/16 at 224x224 with 1000 classes; query and key gains spread the attention."""
    model = ViT()
    seed_transformer(model, generator(86), embedding_std=1.0)
    for name, parameter in model.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            scale_(parameter, 1.5)
    return Recipe(model, "dynamo", 18)
