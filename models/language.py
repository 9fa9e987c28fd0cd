"""Language models: BERT base, GPT-2 small and a Llama-style stack, as prefill and decode step."""

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from models.export import Recipe
from models.seeding import centre_, generator, scale_, seed_transformer, uniform_

# The factor on queries and keys gives scores a deviation of about 2, far from uniform.
ATTENTION_GAIN = 1.5


class Bert(nn.Module):
    """A wrapper of the library's encoder with positional inputs: hidden states and pooled
    output."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(BertConfig())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        result = self.bert(input_ids, attention_mask, token_type_ids)
        return result.last_hidden_state, result.pooler_output


def bert_base() -> Recipe:
    """BERT base with the uncased vocabulary of 30522 tokens.

    Each residual is normalised, which pulls all tokens towards one vector that no input changes.
    Sharp attention alone makes the model chaotic, so that rounding noise grows to 1e-4. Therefore,
    attention is sharp, but residual steps, biases and constant embeddings are small. Norms are near
    one, because 25 of them multiply. Weights that take GELU's positive output have a mean of zero.
    """
    model, rng = Bert(), generator(110)
    seed_transformer(model, rng, embedding_std=1.0, bias_std=0.03)
    for name, parameter in model.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            scale_(parameter, 2.0)
        elif name.endswith("attention.output.dense.weight"):
            scale_(parameter, 0.3)
        elif name.endswith("output.dense.weight"):
            centre_(parameter)
            scale_(parameter, 0.4)
        elif "position_embeddings" in name or "token_type_embeddings" in name:
            scale_(parameter, 0.3)
        elif name.endswith("LayerNorm.weight"):
            uniform_(parameter, 0.875, 1.125, rng)
    return Recipe(model, "dynamo", 18)


class Prefill(nn.Module):
    """A causal language model that maps a whole prompt to logits for every token."""

    def __init__(self, model: GPT2LMHeadModel | LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids, use_cache=False).logits
        return logits


class Decode(nn.Module):
    """One step of a causal language model with the keys and values of earlier tokens as inputs."""

    def __init__(self, model: GPT2LMHeadModel | LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past_k: Sequence[Tensor],
        past_v: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        cache = DynamicCache()
        for layer, (key, value) in enumerate(zip(past_k, past_v, strict=True)):
            cache.update(key, value, layer)
        result = self.model(input_ids, position_ids=position_ids, past_key_values=cache)
        present = result.past_key_values.layers
        return result.logits, [layer.keys for layer in present], [layer.values for layer in present]


def _gpt2() -> GPT2LMHeadModel:
    config = GPT2Config()
    model = GPT2LMHeadModel(config)
    seed_transformer(model, generator(124), embedding_std=0.25)
    width = config.n_embd
    for name, parameter in model.named_parameters():
        # `c_attn` holds the weights of queries, keys and values side by side.
        if name.endswith("c_attn.weight"):
            scale_(parameter.detach()[:, : 2 * width], ATTENTION_GAIN)
    return model


def gpt2_prefill() -> Recipe:
    """Returns GPT-2 small (124 M parameters) on a prompt."""
    return Recipe(Prefill(_gpt2()), "dynamo", 18)


def gpt2_decode() -> Recipe:
    """Returns GPT-2 small for one token with its cache."""
    return Recipe(Decode(_gpt2()), "dynamo", 18)


def _llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    seed_transformer(model, generator(1024), embedding_std=1.0)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            scale_(parameter, ATTENTION_GAIN)
    return model


def llama_prefill() -> Recipe:
    """Returns the Llama-style stack (110 M parameters) on a prompt."""
    return Recipe(Prefill(_llama()), "dynamo", 20)


def llama_decode() -> Recipe:
    """Returns the Llama-style stack for one token with its cache."""
    return Recipe(Decode(_llama()), "dynamo", 20)
