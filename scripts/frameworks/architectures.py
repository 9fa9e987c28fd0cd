"""Small configurations of Hugging Face architectures, with inputs for each.

A case names a model class of `transformers`, its configuration's class and fields, and a function
that draws its inputs.  Sizes are small; each model has the structure of its family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[], dict[str, torch.Tensor]]
VOCABULARY, LENGTH = 96, 12


@dataclass(frozen=True, slots=True)
class ModelCase:
    """An architecture of transformers: the class `model` with a configuration of class `config`.

    `fields` are fields of the configuration. `inputs` draws the tensors of a call, and `arguments`
    are further arguments of `forward`.
    """

    name: str
    model: str
    config: str
    fields: Mapping[str, Any]
    inputs: Inputs
    arguments: Mapping[str, Any] = field(default_factory=dict)


# ---- inputs --------------------------------------------------------------------------------------


def text() -> dict[str, torch.Tensor]:
    """Returns token ids and a mask; the last tokens of the second row are masked."""
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, LENGTH))}


def pair() -> dict[str, torch.Tensor]:
    """Returns token ids and a mask for an encoder, and token ids for a decoder."""
    return text() | {"decoder_input_ids": torch.randint(3, VOCABULARY, (2, 7))}


def image(size: int = 32, batch: int = 2) -> Inputs:
    return lambda: {"pixel_values": torch.randn(batch, 3, size, size)}


def image_and_text(size: int = 32) -> Inputs:
    return lambda: text() | image(size)()


def frames() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 4, 3, 32, 32)}


def wave() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 1200)}


def spectrum(mels: int = 16, length: int = 40) -> Inputs:
    def make() -> dict[str, torch.Tensor]:
        decoder = torch.randint(3, VOCABULARY, (1, 5))
        return {"input_features": torch.randn(1, mels, length), "decoder_input_ids": decoder}

    return make


# ---- fields that several families share ----------------------------------------------------------

_BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40,
}  # fmt: skip
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_MOE = _LLAMA | {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}  # fmt: skip
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_WAVE = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 2,
}  # fmt: skip
_TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48}  # fmt: skip
_PAIR = {
    "text_config": _TOWER | {"vocab_size": VOCABULARY, "max_position_embeddings": 40},
    "vision_config": _TOWER | {"image_size": 32, "patch_size": 8},
    "projection_dim": 16,
}  # fmt: skip
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
         "window_size": 4}  # fmt: skip
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


def _encoder(name: str, family: str, **more: Any) -> ModelCase:
    return ModelCase(name, f"{family}Model", f"{family}Config", _BERT | more, text)


def _decoder(name: str, family: str, base: Mapping[str, Any] = _LLAMA, **more: Any) -> ModelCase:
    fields = {**base, **more}
    model = f"{family}ForCausalLM"
    return ModelCase(name, model, f"{family}Config", fields, text, {"use_cache": False})


def _both(name: str, family: str, base: Mapping[str, Any] = _BART, **more: Any) -> ModelCase:
    fields = {**base, **more}
    return ModelCase(name, f"{family}Model", f"{family}Config", fields, pair, {"use_cache": False})


def _vision(name: str, family: str, fields: Mapping[str, Any], size: int = 32) -> ModelCase:
    return ModelCase(name, f"{family}Model", f"{family}Config", fields, image(size))


def _waves(name: str, family: str, **more: Any) -> ModelCase:
    return ModelCase(name, f"{family}Model", f"{family}Config", _WAVE | more, wave)


TEXT = (
    _encoder("bert", "Bert"),
    _encoder("roberta", "Roberta"),
    ModelCase("distilbert", "DistilBertModel", "DistilBertConfig",
         {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
         text),
    _encoder("albert", "Albert", embedding_size=16),
    _encoder("electra", "Electra", embedding_size=16),
    _encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("deberta_v2", "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("mpnet", "MPNet"),
    _encoder("camembert", "Camembert"),
    _encoder("xlm_roberta", "XLMRoberta"),
    _encoder("ernie", "Ernie"),
    _encoder("megatron_bert", "MegatronBert"),
    _encoder("mobilebert", "MobileBert", embedding_size=32, intra_bottleneck_size=32,
             true_hidden_size=32),
    _encoder("rembert", "RemBert", input_embedding_size=16, output_embedding_size=16),
    _encoder("roformer", "RoFormer", embedding_size=32),
    _encoder("convbert", "ConvBert", embedding_size=32, conv_kernel_size=3),
    _encoder("squeezebert", "SqueezeBert", embedding_size=32),
    ModelCase("nystromformer", "NystromformerModel", "NystromformerConfig",
         _BERT | {"num_landmarks": 12, "segment_means_seq_len": 12}, text),
    _encoder("esm", "Esm", pad_token_id=1, position_embedding_type="rotary", mask_token_id=2),
    _encoder("data2vec_text", "Data2VecText"),
    _encoder("splinter", "Splinter"),
    _encoder("layoutlm", "LayoutLM"),
    _encoder("modernbert", "ModernBert", pad_token_id=0),
    _encoder("ibert", "IBert"),
    ModelCase("fnet", "FNetModel", "FNetConfig", _BERT, tokens),
    ModelCase("funnel", "FunnelBaseModel", "FunnelConfig",
         {"vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48,
          "block_sizes": [1, 1], "num_decoder_layers": 1}, text),
    ModelCase("xlnet", "XLNetModel", "XLNetConfig",
         {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, text),
    ModelCase("xlm", "XLMModel", "XLMConfig",
         {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, text),
    ModelCase("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT, text, {"use_cache": False}),
    ModelCase("openai_gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT, text),
    _decoder("gpt_neo", "GPTNeo", _BERT, num_layers=2, num_heads=4,
             attention_types=[[["global", "local"], 1]]),
    _decoder("gptj", "GPTJ", _GPT, rotary_dim=4),
    _decoder("gpt_neox", "GPTNeoX", _BERT),
    _decoder("gpt_bigcode", "GPTBigCode", _GPT),
    _decoder("codegen", "CodeGen", _GPT, rotary_dim=4),
    _decoder("opt", "OPT", _BERT, ffn_dim=48, word_embed_proj_dim=32),
    _decoder("bloom", "Bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2,
                                "n_head": 4}),
    _decoder("mpt", "Mpt", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4,
                            "max_seq_len": 40}),
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral", sliding_window=6),
    _decoder("mixtral", "Mixtral", _MOE),
    _decoder("qwen2", "Qwen2"),
    _decoder("qwen3", "Qwen3"),
    _decoder("qwen2_moe", "Qwen2Moe", _MOE, shared_expert_intermediate_size=24),
    _decoder("qwen3_moe", "Qwen3Moe", _MOE),
    _decoder("gemma", "Gemma"),
    _decoder("gemma2", "Gemma2", query_pre_attn_scalar=8),
    ModelCase("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig",
         _LLAMA | {"query_pre_attn_scalar": 8}, text, {"use_cache": False}),
    _decoder("phi", "Phi"),
    _decoder("phi3", "Phi3"),
    _decoder("falcon", "Falcon", _BERT),
    _decoder("stablelm", "StableLm"),
    _decoder("starcoder2", "Starcoder2"),
    _decoder("olmo", "Olmo"),
    _decoder("olmo2", "Olmo2"),
    _decoder("olmoe", "Olmoe", _MOE),
    _decoder("cohere", "Cohere"),
    _decoder("granite", "Granite"),
    _decoder("glm", "Glm"),
    _decoder("persimmon", "Persimmon"),
    _decoder("nemotron", "Nemotron"),
    _decoder("smollm3", "SmolLM3"),
    _decoder("helium", "Helium"),
    _decoder("biogpt", "BioGpt", _BERT),
    _decoder("xglm", "XGLM", {"vocab_size": VOCABULARY, "d_model": 32, "num_layers": 2,
                              "attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 40}),
    _decoder("deepseek_v3", "DeepseekV3", _MOE, kv_lora_rank=16, q_lora_rank=16, n_group=1,
             topk_group=1, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
             num_key_value_heads=4, first_k_dense_replace=1),
    _decoder("mamba", "Mamba", {"vocab_size": VOCABULARY, "hidden_size": 32,
                                "num_hidden_layers": 2, "state_size": 4}),
    _both("t5", "T5", _T5),
    _both("mt5", "MT5", _T5),
    _both("umt5", "UMT5", _T5),
    _both("longt5", "LongT5", _T5, local_radius=3),
    _both("switch_transformers", "SwitchTransformers", _T5, num_experts=2),
    _both("bart", "Bart"),
    _both("mbart", "MBart"),
    _both("pegasus", "Pegasus"),
    _both("marian", "Marian", decoder_start_token_id=1),
    _both("m2m_100", "M2M100"),
    _both("blenderbot", "Blenderbot"),
    _both("plbart", "PLBart"),
)  # fmt: skip

VISION = (
    _vision("vit", "ViT", _VIT),
    _vision("deit", "DeiT", _VIT),
    _vision("beit", "Beit", _VIT),
    _vision("data2vec_vision", "Data2VecVision", _VIT),
    _vision("dinov2", "Dinov2", _VIT),
    _vision("dinov2_registers", "Dinov2WithRegisters", _VIT),
    _vision("dinov3_vit", "DINOv3ViT", _VIT),
    _vision("ijepa", "IJepa", _VIT),
    _vision("vit_msn", "ViTMSN", _VIT),
    _vision("vitdet", "VitDet", _VIT),
    _vision("yolos", "Yolos", _VIT | {"image_size": [32, 32], "num_detection_tokens": 5}),
    _vision("swin", "Swin", _SWIN),
    _vision("swinv2", "Swinv2", _SWIN),
    _vision("swin2sr", "Swin2SR", _SWIN | {"patch_size": 1, "upscale": 2}),
    _vision("hiera", "Hiera", {"image_size": [32, 32], "embed_dim": 16, "depths": [1, 1, 2],
                               "num_heads": [1, 2, 4], "query_stride": [2, 2], "num_query_pool": 2,
                               "patch_stride": [4, 4], "masked_unit_size": [4, 4]}),
    _vision("convnext", "ConvNext", _STAGES),
    _vision("convnextv2", "ConvNextV2", _STAGES),
    _vision("focalnet", "FocalNet", {"image_size": 32, "embed_dim": 16, "depths": [1, 1],
                                     "hidden_sizes": [16, 32], "focal_levels": [2, 2],
                                     "focal_windows": [3, 3]}),
    _vision("resnet", "ResNet", _STAGES | {"embedding_size": 8}),
    _vision("bit", "Bit", _STAGES | {"embedding_size": 8, "num_groups": 2}),
    _vision("regnet", "RegNet", _STAGES | {"embedding_size": 8, "groups_width": 4}),
    _vision("mobilenet_v1", "MobileNetV1", {"depth_multiplier": 0.25, "min_depth": 4}),
    _vision("mobilenet_v2", "MobileNetV2", {"depth_multiplier": 0.25, "min_depth": 4,
                                            "depth_divisible_by": 4}),
    _vision("efficientnet", "EfficientNet", {"width_coefficient": 0.25, "depth_coefficient": 0.2,
                                             "image_size": 32, "hidden_dim": 320}),
    _vision("mobilevit", "MobileViT", {"image_size": 32, "hidden_sizes": [16, 24, 32],
                                       "neck_hidden_sizes": [8, 16, 16, 16, 24, 32, 48],
                                       "num_attention_heads": 4}, 64),
    _vision("poolformer", "PoolFormer", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
            64),
    _vision("pvt", "Pvt", {"image_size": 64, "hidden_sizes": [8, 16, 24, 32],
                           "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8]}, 64),
    _vision("pvt_v2", "PvtV2", {"image_size": 64, "hidden_sizes": [8, 16, 24, 32],
                                "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8]}, 64),
    _vision("segformer", "Segformer", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
                                       "num_attention_heads": [1, 2, 4, 8],
                                       "decoder_hidden_size": 16}, 64),
    _vision("glpn", "GLPN", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
                             "num_attention_heads": [1, 2, 4, 8], "decoder_hidden_size": 16}, 64),
    _vision("cvt", "Cvt", {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
            64),
    _vision("levit", "Levit", {"image_size": 64, "hidden_sizes": [16, 32, 48],
                               "num_attention_heads": [2, 4, 6], "depths": [1, 1, 1],
                               "key_dim": [8, 8, 8]}, 64),
    _vision("swiftformer", "SwiftFormer", {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
            64),
    _vision("textnet", "TextNet", {}, 64),
    ModelCase("dpt", "DPTForDepthEstimation", "DPTConfig",
         _VIT | {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 24, 32],
                 "fusion_hidden_size": 16, "is_hybrid": False, "num_hidden_layers": 4},
         image()),
    ModelCase("vit_mae", "ViTMAEForPreTraining", "ViTMAEConfig",
         _VIT | {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1,
                 "decoder_num_attention_heads": 4, "decoder_intermediate_size": 24,
                 "mask_ratio": 0.0},
         lambda: image()() | {"noise": torch.rand(2, 16)}),
    ModelCase("imagegpt", "ImageGPTModel", "ImageGPTConfig", _GPT, tokens, {"use_cache": False}),
    ModelCase("timesformer", "TimesformerModel", "TimesformerConfig", _VIT | {"num_frames": 4},
         frames),
    ModelCase("videomae", "VideoMAEModel", "VideoMAEConfig", _VIT | {"num_frames": 4}, frames),
    ModelCase("vivit", "VivitModel", "VivitConfig",
         _VIT | {"num_frames": 4, "tubelet_size": [2, 8, 8]}, frames),
    ModelCase("sam_vision", "SamVisionModel", "SamVisionConfig",
         _VIT | {"output_channels": 16, "window_size": 2, "global_attn_indexes": [1],
                 "mlp_dim": 48}, image()),
    ModelCase("superpoint_like_univnet", "UnivNetModel", "UnivNetConfig",
         {"model_in_channels": 8, "model_hidden_channels": 4, "num_mel_bins": 8,
          "resblock_kernel_sizes": [3], "resblock_stride_sizes": [4],
          "resblock_dilation_sizes": [[1, 3]], "kernel_predictor_hidden_channels": 8},
         lambda: {"input_features": torch.randn(1, 6, 8), "noise_sequence": torch.randn(1, 6, 8)}),
)  # fmt: skip

BOTH = (
    ModelCase("clip", "CLIPModel", "CLIPConfig", _PAIR, image_and_text()),
    ModelCase("siglip", "SiglipModel", "SiglipConfig", _PAIR, image_and_text()),
    ModelCase("chinese_clip", "ChineseCLIPModel", "ChineseCLIPConfig", _PAIR, image_and_text()),
    ModelCase("clipseg", "CLIPSegModel", "CLIPSegConfig", _PAIR, image_and_text()),
    ModelCase("altclip_vision", "CLIPVisionModel", "CLIPVisionConfig", _VIT, image()),
    ModelCase("owlvit", "OwlViTModel", "OwlViTConfig", _PAIR, image_and_text()),
    ModelCase("blip_vision", "BlipVisionModel", "BlipVisionConfig", _VIT, image()),
    ModelCase("groupvit_text", "GroupViTTextModel", "GroupViTTextConfig",
         _PAIR["text_config"], text),
    ModelCase("vilt", "ViltModel", "ViltConfig", _BERT | {"image_size": 32, "patch_size": 8,
                                                     "max_image_length": -1}, image_and_text()),
    ModelCase("git", "GitModel", "GitConfig",
         _BERT | {"vision_config": _TOWER | {"image_size": 32, "patch_size": 8}},
         image_and_text(), {"use_cache": False}),
)  # fmt: skip

AUDIO = (
    _waves("wav2vec2", "Wav2Vec2"),
    _waves("hubert", "Hubert"),
    _waves("data2vec_audio", "Data2VecAudio", conv_pos_kernel_size=5),
    _waves("unispeech", "UniSpeech"),
    _waves("wavlm", "WavLM"),
    _waves("sew", "SEW", squeeze_factor=2),
    ModelCase("whisper", "WhisperModel", "WhisperConfig",
         _BART | {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 20,
                  "decoder_start_token_id": 1}, spectrum(), {"use_cache": False}),
    ModelCase("audio_spectrogram", "ASTModel", "ASTConfig",
         _TOWER | {"patch_size": 4, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 4,
                   "time_stride": 4},
         lambda: {"input_values": torch.randn(1, 24, 16)}),
    ModelCase("speech_to_text", "Speech2TextModel", "Speech2TextConfig",
         _BART | {"input_feat_per_channel": 16, "conv_channels": 16, "max_source_positions": 40,
                  "max_target_positions": 20},
         lambda: {"input_features": torch.randn(1, 40, 16),
                  "decoder_input_ids": torch.randint(3, VOCABULARY, (1, 5))},
         {"use_cache": False}),
    ModelCase("encodec", "EncodecModel", "EncodecConfig",
         {"hidden_size": 16, "num_filters": 4, "codebook_size": 16, "upsampling_ratios": [4, 2],
          "num_lstm_layers": 1},
         lambda: {"input_values": torch.randn(1, 1, 320)}),
    ModelCase("patchtst", "PatchTSTModel", "PatchTSTConfig",
         {"d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24,
          "context_length": 32, "num_input_channels": 2, "patch_length": 4, "patch_stride": 4},
         lambda: {"past_values": torch.randn(2, 32, 2)}),
    ModelCase("patchtsmixer", "PatchTSMixerModel", "PatchTSMixerConfig",
         {"d_model": 16, "num_layers": 2, "context_length": 32, "num_input_channels": 2,
          "patch_length": 4, "patch_stride": 4},
         lambda: {"past_values": torch.randn(2, 32, 2)}),
)  # fmt: skip

CASES = {case.name: case for case in (*TEXT, *VISION, *BOTH, *AUDIO)}
