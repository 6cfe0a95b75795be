"""Small models of transformers, one a row: class, kind, its config with small sizes, its inputs.

Weights are random, shapes are tiny: what counts is the Python that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ZOO", "Row", "build"]

TEXT = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}
SPEECH = {
    **TEXT, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
SEQUENCES = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
SMALL_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}


def integers(*shape: int) -> torch.Tensor:
    """Token ids."""
    return torch.randint(2, 90, shape)


def text() -> dict[str, Any]:
    """Tokens and their mask."""
    return {"input_ids": integers(1, 8), "attention_mask": torch.ones(1, 8, dtype=torch.long)}


def tokens() -> dict[str, Any]:
    """Tokens alone."""
    return {"input_ids": integers(1, 8)}


def image() -> dict[str, Any]:
    """A picture."""
    return {"pixel_values": torch.randn(1, 3, 32, 32)}


def both() -> dict[str, Any]:
    """Tokens and a picture."""
    return {**text(), **image()}


def wave() -> dict[str, Any]:
    """A sound."""
    return {"input_values": torch.randn(1, 1000)}


def two_sequences() -> dict[str, Any]:
    """Tokens for an encoder and for a decoder."""
    masks = {"attention_mask": torch.ones(1, 8), "decoder_attention_mask": torch.ones(1, 4)}
    return {"input_ids": integers(1, 8), "decoder_input_ids": integers(1, 4), **masks}


def spectrum() -> dict[str, Any]:
    """A spectrogram, and tokens for a decoder."""
    return {"input_features": torch.randn(1, 16, 100), "decoder_input_ids": integers(1, 4)}


def picture_in_text() -> dict[str, Any]:
    """Tokens of which 16 stand for a picture."""
    ids = torch.cat([integers(1, 4), torch.full((1, 16), 99), integers(1, 4)], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **image()}


@dataclass(frozen=True)
class Row:
    """A model class and how a small one is made."""

    model: str
    kind: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]


def _nested(**parts: Any) -> dict[str, Any]:
    return parts


_CLIP_TEXT, _CLIP_VISION = {**TEXT, "projection_dim": 16}, {**VISION, "projection_dim": 16}
_ROWS: tuple[Row, ...] = (
    Row("BertModel", "encoder", TEXT, text),
    Row("BertForMaskedLM", "encoder", TEXT, text),
    Row("BertForSequenceClassification", "encoder", TEXT, text),
    Row("RobertaModel", "encoder", TEXT, text),
    Row("XLMRobertaModel", "encoder", TEXT, text),
    Row("DistilBertModel", "encoder", {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}, text),
    Row("ElectraModel", "encoder", {**TEXT, "embedding_size": 32}, text),
    Row("AlbertModel", "encoder", {**TEXT, "embedding_size": 16}, text),
    Row("DebertaV2Model", "encoder", TEXT, text),
    Row("MPNetModel", "encoder", TEXT, text),
    Row("ModernBertModel", "encoder", {**TEXT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}, text),
    Row("XLNetModel", "encoder", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37}, text),
    Row("FunnelModel", "encoder", {"vocab_size": 100, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 37}, text),
    Row("LongformerModel", "encoder", {**TEXT, "attention_window": 4}, text),
    Row("BigBirdModel", "encoder", {**TEXT, "attention_type": "original_full"}, text),
    Row("FNetModel", "encoder", {k: v for k, v in TEXT.items() if k != "num_attention_heads"}, tokens),
    Row("LayoutLMModel", "encoder", TEXT, text),
    Row("EsmModel", "encoder", {**TEXT, "pad_token_id": 1}, text),
    Row("MegatronBertModel", "encoder", TEXT, text),
    Row("RoFormerModel", "encoder", {**TEXT, "embedding_size": 32}, text),
    Row("GPT2LMHeadModel", "decoder", GPT, text),
    Row("GPTNeoXForCausalLM", "decoder", TEXT, text),
    Row("GPTJForCausalLM", "decoder", {**GPT, "rotary_dim": 4}, text),
    Row("CodeGenForCausalLM", "decoder", {**GPT, "rotary_dim": 4}, text),
    Row("LlamaForCausalLM", "decoder", GROUPED, text),
    Row("MistralForCausalLM", "decoder", GROUPED, text),
    Row("Qwen2ForCausalLM", "decoder", GROUPED, text),
    Row("Qwen3ForCausalLM", "decoder", {**GROUPED, "head_dim": 8}, text),
    Row("GemmaForCausalLM", "decoder", {**GROUPED, "head_dim": 8}, text),
    Row("Gemma2ForCausalLM", "decoder", {**GROUPED, "head_dim": 8}, text),
    Row("Gemma3ForCausalLM", "decoder", {**GROUPED, "head_dim": 8}, text),
    Row("PhiForCausalLM", "decoder", TEXT, text),
    Row("Phi3ForCausalLM", "decoder", {**GROUPED, "pad_token_id": 0}, text),
    Row("OPTForCausalLM", "decoder", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 37, "word_embed_proj_dim": 32}, text),
    Row("BloomForCausalLM", "decoder", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}, text),
    Row("FalconForCausalLM", "decoder", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}, text),
    Row("OlmoForCausalLM", "decoder", TEXT, text),
    Row("Olmo2ForCausalLM", "decoder", TEXT, text),
    Row("CohereForCausalLM", "decoder", GROUPED, text),
    Row("StableLmForCausalLM", "decoder", GROUPED, text),
    Row("Starcoder2ForCausalLM", "decoder", GROUPED, text),
    Row("GraniteForCausalLM", "decoder", GROUPED, text),
    Row("SmolLM3ForCausalLM", "decoder", {**GROUPED, "pad_token_id": 0}, text),
    Row("T5ForConditionalGeneration", "encoder-decoder", T5, two_sequences),
    Row("BartModel", "encoder-decoder", SEQUENCES, two_sequences),
    Row("PegasusModel", "encoder-decoder", SEQUENCES, two_sequences),
    Row("MarianMTModel", "encoder-decoder", {**SEQUENCES, "pad_token_id": 0, "decoder_start_token_id": 0}, two_sequences),
    Row("MixtralForCausalLM", "mixture of experts", {**GROUPED, "intermediate_size": 40, "num_local_experts": 4}, text),
    Row("Qwen2MoeForCausalLM", "mixture of experts", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}, text),
    Row("Qwen3MoeForCausalLM", "mixture of experts", {**GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, text),
    Row("OlmoeForCausalLM", "mixture of experts", {**GROUPED, "intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2}, text),
    Row("SwitchTransformersModel", "mixture of experts", {**T5, "num_experts": 4, "expert_capacity": 8}, two_sequences),
    Row("MambaForCausalLM", "state space", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, tokens),
    Row("Mamba2ForCausalLM", "state space", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}, tokens),
    Row("FalconMambaForCausalLM", "state space", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, tokens),
    Row("RwkvModel", "state space", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}, tokens),
    Row("RecurrentGemmaForCausalLM", "state space", {**GROUPED, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "head_dim": 8}, tokens),
    Row("ViTForImageClassification", "vision", VISION, image),
    Row("DeiTModel", "vision", VISION, image),
    Row("BeitModel", "vision", VISION, image),
    Row("Dinov2Model", "vision", {k: v for k, v in VISION.items() if k != "intermediate_size"}, image),
    Row("SwinModel", "vision", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4}, image),
    Row("ConvNextModel", "vision", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, image),
    Row("ConvNextV2Model", "vision", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, image),
    Row("ResNetForImageClassification", "vision", SMALL_RESNET, image),
    Row("RegNetModel", "vision", {**SMALL_RESNET, "groups_width": 8}, image),
    Row("MobileNetV2Model", "vision", {"depth_multiplier": 0.35}, image),
    Row("SegformerForSemanticSegmentation", "vision", {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [16, 32], "num_attention_heads": [2, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16}, image),
    Row("PoolFormerModel", "vision", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1]}, image),
    Row("DetrModel", "vision", {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": transformers.ResNetConfig(**SMALL_RESNET, out_features=["stage2"]), "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "num_queries": 5}, image),
    Row("Wav2Vec2Model", "audio", SPEECH, wave),
    Row("HubertModel", "audio", SPEECH, wave),
    Row("WavLMModel", "audio", SPEECH, wave),
    Row("UniSpeechModel", "audio", {**SPEECH, "num_codevector_groups": 2, "codevector_dim": 16, "proj_codevector_dim": 16}, wave),
    Row("Data2VecAudioModel", "audio", {**SPEECH, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3}, wave),
    Row("ASTModel", "audio", {**{k: v for k, v in VISION.items() if k != "image_size"}, "max_length": 32, "num_mel_bins": 16}, lambda: {"input_values": torch.randn(1, 32, 16)}),
    Row("WhisperModel", "audio", {**SEQUENCES, "max_source_positions": 50, "num_mel_bins": 16, "pad_token_id": 0}, spectrum),
    Row("Speech2TextModel", "audio", {**SEQUENCES, "num_conv_layers": 2, "conv_channels": 16, "input_feat_per_channel": 16, "max_source_positions": 100}, lambda: {"input_features": torch.randn(1, 40, 16), "decoder_input_ids": integers(1, 4)}),
    Row("CLIPModel", "multimodal", _nested(text_config=_CLIP_TEXT, vision_config=_CLIP_VISION, projection_dim=16), both),
    Row("SiglipModel", "multimodal", _nested(text_config=TEXT, vision_config=VISION), both),
    Row("BlipModel", "multimodal", _nested(text_config=TEXT, vision_config=VISION, projection_dim=16), both),
    Row("ViltModel", "multimodal", {**TEXT, **VISION}, both),
    Row("VisualBertModel", "multimodal", {**TEXT, "visual_embedding_dim": 16}, lambda: {**text(), "visual_embeds": torch.randn(1, 3, 16), "visual_attention_mask": torch.ones(1, 3, dtype=torch.long)}),
    Row("LlavaForConditionalGeneration", "multimodal", _nested(text_config={"model_type": "llama", **GROUPED}, vision_config={"model_type": "clip_vision_model", **VISION}, image_token_index=99), picture_in_text),
    Row("CamembertModel", "encoder", TEXT, text),
    Row("ErnieModel", "encoder", TEXT, text),
    Row("SqueezeBertModel", "encoder", {**TEXT, "intermediate_size": 40, "embedding_size": 32}, text),
    Row("ConvBertModel", "encoder", {**TEXT, "embedding_size": 32}, text),
    Row("GPTNeoForCausalLM", "decoder", {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}, text),
    Row("GPTBigCodeForCausalLM", "decoder", GPT, text),
    Row("XGLMForCausalLM", "decoder", {"vocab_size": 100, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 37}, text),
    Row("GlmForCausalLM", "decoder", {**GROUPED, "head_dim": 8, "pad_token_id": 0}, text),
    Row("NemotronForCausalLM", "decoder", GROUPED, text),
    Row("MBartModel", "encoder-decoder", SEQUENCES, two_sequences),
    Row("BlenderbotModel", "encoder-decoder", SEQUENCES, two_sequences),
    Row("MT5Model", "encoder-decoder", T5, two_sequences),
    Row("Swinv2Model", "vision", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4}, image),
    Row("ViTMSNModel", "vision", VISION, image),
    Row("YolosModel", "vision", {**VISION, "image_size": [32, 32], "num_detection_tokens": 5}, image),
    Row("MobileViTModel", "vision", {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 16, 16, 24, 24, 32, 32], "num_attention_heads": 4}, image),
    Row("EfficientNetModel", "vision", {"image_size": 32, "width_coefficient": 0.5, "depth_coefficient": 0.2, "hidden_dim": 640}, image),
    Row("SEWModel", "audio", {**SPEECH, "squeeze_factor": 1}, wave),
    Row("Wav2Vec2ConformerModel", "audio", SPEECH, wave),
    Row("GitModel", "multimodal", {**TEXT, "vision_config": VISION}, both),
)  # fmt: skip

ZOO = {row.model: row for row in _ROWS}
"""Model class -> its row."""


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A small model with random weights in evaluation mode, and keyword arguments for a call."""
    row = ZOO[name]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**row.config)).eval()
    return model, row.inputs()
