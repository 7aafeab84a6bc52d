"""Small models of many families of Hugging Face's transformers: their classes, configurations and inputs."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
GROUPED = TEXT | {"num_key_value_heads": 2, "num_hidden_layers": 3}
HEADS = GROUPED | {"head_dim": 8}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 16}
PICTURE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "image_size": 32}
LAYERED: dict[str, Any] = {
    "d_model": 32,
    "vocab_size": 64,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
}
TOKENS = {"input_ids": (2, 12)}
BOTH = TOKENS | {"decoder_input_ids": (2, 12)}
PIXELS = {"pixel_values": (2, 3, 32, 32)}
Shapes = dict[str, tuple[int, ...]]

ZOO: dict[str, tuple[str, str, dict[str, Any], Shapes]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", HEADS, TOKENS),
    "mistral": ("MistralForCausalLM", "MistralConfig", HEADS, TOKENS),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", HEADS | {"num_local_experts": 4}, TOKENS),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, TOKENS),
    "qwen2moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", GROUPED | SHARED, TOKENS),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", HEADS, TOKENS),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", HEADS | EXPERTS, TOKENS),
    "qwen3next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        HEADS
        | SHARED
        | {
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        TOKENS,
    ),
    "deepseek3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        TEXT
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "qk_nope_head_dim": 8,
        },
        TOKENS,
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", HEADS, TOKENS),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", HEADS, TOKENS),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50}, TOKENS),
    "gptneo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": 50,
            "intermediate_size": 48,
        },
        TOKENS,
    ),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, TOKENS),
    "bert": ("BertForMaskedLM", "BertConfig", TEXT, TOKENS),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", TEXT | {"embedding_size": 16}, TOKENS),
    "deberta": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        TOKENS,
    ),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", TEXT, TOKENS),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 64},
        TOKENS,
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", TEXT | {"image_size": 32, "patch_size": 8}, PIXELS),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        PIXELS,
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 16, 16], "depths": [2, 2, 2, 2]},
        PIXELS,
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [2, 2, 2, 2]},
        PIXELS,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"num_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16, "vocab_size": 64},
        BOTH,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        LAYERED
        | {
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        {"input_features": (2, 8, 24), "decoder_input_ids": (2, 12)},
    ),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64},
        TOKENS,
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED | {"pad_token_id": 0}, TOKENS),
    "gptoss": ("GptOssForCausalLM", "GptOssConfig", HEADS | {"num_local_experts": 4}, TOKENS),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 64,
            "word_embed_proj_dim": 32,
        },
        TOKENS,
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
        TOKENS,
    ),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", HEADS, TOKENS),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED | {"pad_token_id": 0}, TOKENS),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        HEADS | {"num_local_experts": 4, "intermediate_size_mlp": 48},
        TOKENS,
    ),
    "granitemoe": ("GraniteMoeForCausalLM", "GraniteMoeConfig", GROUPED | {"num_local_experts": 4}, TOKENS),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4},
        TOKENS,
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "vocab_size": 64,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
        },
        TOKENS,
    ),
    "jamba": (
        "JambaForCausalLM",
        "JambaConfig",
        GROUPED | {"num_hidden_layers": 4, "num_experts": 2, "mamba_d_state": 4, "use_mamba_kernels": False},
        TOKENS,
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TEXT, "vision_config": PICTURE | {"num_attention_heads": 4, "patch_size": 8}},
        TOKENS | PIXELS,
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", LAYERED, BOTH),
}
"""Of each family: the class of the model, that of its configuration, what that says, and shapes of inputs."""
