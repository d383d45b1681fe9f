"""Sound, time series, state spaces and several modes at once: the rest of transformers."""

from __future__ import annotations

from modelc.tests.nets.transformers_cases import IDS, LANGUAGE, MASK, TEXT, VISION, case, known

_SAMPLES = ("input_values:float32[batch=1..3,time=400..1200]",)
_WAV = known("wav2vec2")
_SERIES = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2,
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
}  # fmt: skip
_PAST = (
    "past_values:float32[batch=1..4,10]",
    "past_time_features:float32[batch=1..4,10,2]",
    "past_observed_mask:float32[batch=1..4,10]{1..1}",
    "future_values:float32[batch=1..4,4]",
    "future_time_features:float32[batch=1..4,4,2]",
)
_CHANNELS = ("past_values:float32[batch=1..4,32,3]",)
_STATES = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
    "pad_token_id": 0,
}  # fmt: skip
_HYBRID = {**LANGUAGE, "num_key_value_heads": 2, "pad_token_id": 0}
_PIXELS = "pixel_values:float32[batch=1..4,3,32,32]"
_TEXTS = "input_ids:int64[texts=1..4,seq=2..24]{2..99}"
_TEXT_MASKS = "attention_mask:int64[texts=1..4,seq=2..24]{0..1}"
_BOTH = {"text_config": LANGUAGE, "vision_config": VISION, "projection_dim": 16}
_PAIRS = (_TEXTS, _PIXELS, _TEXT_MASKS)
_LISTENER = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_target_positions": 40, "pad_token_id": 0,
    "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

_AUDIO = (
    case("wav2vec2", "audio", "Wav2Vec2ForCTC", _WAV, _SAMPLES),
    case("hubert", "audio", "HubertForCTC", _WAV, _SAMPLES),
    case("wavlm", "audio", "WavLMModel", {**_WAV, "num_buckets": 16}, _SAMPLES),
    case("sew", "audio", "SEWModel", _WAV, _SAMPLES),
    case("data2vec-audio", "audio", "Data2VecAudioModel", _WAV, _SAMPLES),
    case(
        "whisper",
        "audio",
        "WhisperForConditionalGeneration",
        {**_LISTENER, "num_mel_bins": 16, "max_source_positions": 20,
         "suppress_tokens": None, "begin_suppress_tokens": None},
        (
            "input_features:float32[batch=1..3,16,40]",
            "decoder_input_ids:int64[batch=1..3,target=1..12]{3..99}",
        ),
    ),
    case(
        "speech-to-text",
        "audio",
        "Speech2TextForConditionalGeneration",
        {**_LISTENER, "conv_channels": 32, "input_feat_per_channel": 16,
         "max_source_positions": 64},
        (
            "input_features:float32[batch=1..3,frames=20..60,16]",
            "decoder_input_ids:int64[batch=1..3,target=1..12]{3..99}",
        ),
        config="Speech2TextConfig",
    ),
    case(
        "ast",
        "audio",
        "ASTForAudioClassification",
        {**VISION, "max_length": 40, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4},
        ("input_values:float32[batch=1..3,40,16]",),
    ),
    case(
        "encodec",
        "audio",
        "EncodecModel",
        {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 16,
         "codebook_dim": 16, "sampling_rate": 800, "target_bandwidths": [1.5, 3.0]},
        ("input_values:float32[batch=1..3,1,time=64..320]",),
    ),
    case(
        "moonshine",
        "audio",
        "MoonshineForConditionalGeneration",
        {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
         "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
         "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
         "encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
        (
            "input_values:float32[batch=1..3,time=1200..2400]",
            "decoder_input_ids:int64[batch=1..3,target=1..12]{3..99}",
        ),
    ),
)  # fmt: skip
_TIME = (
    case(
        "patchtst",
        "time-series",
        "PatchTSTForPrediction",
        {"num_input_channels": 3, "context_length": 32, "patch_length": 4, "patch_stride": 4,
         "num_hidden_layers": 2, "d_model": 16, "ffn_dim": 32, "prediction_length": 4},
        _CHANNELS,
    ),
    case(
        "patchtsmixer",
        "time-series",
        "PatchTSMixerForPrediction",
        {"num_input_channels": 3, "context_length": 32, "patch_length": 4, "patch_stride": 4,
         "num_layers": 2, "prediction_length": 4},
        _CHANNELS,
    ),
    case("informer", "time-series", "InformerModel", _SERIES, _PAST),
    case("autoformer", "time-series", "AutoformerModel", {**_SERIES, "moving_average": 3,
         "label_length": 2}, _PAST),
    case("time-series-transformer", "time-series", "TimeSeriesTransformerModel", _SERIES, _PAST),
)  # fmt: skip
_SPACES = (
    case("mamba", "state-space", "MambaForCausalLM", _STATES, TEXT),
    case("falcon-mamba", "state-space", "FalconMambaForCausalLM", _STATES, TEXT),
    case(
        "mamba2",
        "state-space",
        "Mamba2ForCausalLM",
        {**_STATES, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
        TEXT,
    ),
    case(
        "rwkv",
        "state-space",
        "RwkvForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 40,
         "attention_hidden_size": 32, "intermediate_size": 64},
        (IDS,),
    ),
    case(
        "recurrent-gemma",
        "state-space",
        "RecurrentGemmaForCausalLM",
        {**_HYBRID, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
        TEXT,
    ),
    case(
        "jamba",
        "state-space",
        "JambaForCausalLM",
        {**_HYBRID, "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2,
         "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4,
         "use_mamba_kernels": False},
        TEXT,
    ),
    case(
        "bamba",
        "state-space",
        "BambaForCausalLM",
        {**_HYBRID, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16,
         "mamba_d_state": 8, "mamba_chunk_size": 8},
        TEXT,
    ),
)  # fmt: skip
_MODES = (
    case("clip", "multi-modal", "CLIPModel", _BOTH, _PAIRS),
    case(
        "siglip",
        "multi-modal",
        "SiglipModel",
        {"text_config": {**LANGUAGE, "projection_size": 32}, "vision_config": VISION},
        _PAIRS,
    ),
    case("blip", "multi-modal", "BlipModel", _BOTH, _PAIRS),
    case(
        "vilt",
        "multi-modal",
        "ViltForQuestionAnswering",
        {**LANGUAGE, "image_size": 32, "patch_size": 8, "num_labels": 3},
        (*TEXT, _PIXELS),
    ),
    case(
        "git",
        "multi-modal",
        "GitForCausalLM",
        {**LANGUAGE, "vision_config": VISION},
        (*TEXT, _PIXELS),
    ),
    case(
        "owlvit",
        "multi-modal",
        "OwlViTForObjectDetection",
        {**_BOTH, "projection_dim": 32},
        (
            "input_ids:int64[texts=1..4,16]{2..99}",
            "pixel_values:float32[1,3,32,32]",
            "attention_mask:int64[texts=1..4,16]{0..1}",
        ),
        config="OwlViTConfig",
    ),
    case(
        "trocr",
        "multi-modal",
        "VisionEncoderDecoderModel",
        {
            "encoder": {"model_type": "vit", **VISION},
            "decoder": {
                "model_type": "trocr", "vocab_size": 100, "d_model": 32, "decoder_layers": 2,
                "decoder_attention_heads": 4, "decoder_ffn_dim": 64,
                "max_position_embeddings": 40, "cross_attention_hidden_size": 32,
            },
        },
        (_PIXELS, "decoder_input_ids:int64[batch=1..4,target=1..12]{3..99}"),
        config="VisionEncoderDecoderConfig",
    ),
    case(
        "lxmert",
        "multi-modal",
        "LxmertModel",
        {**LANGUAGE, "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 12,
         "visual_pos_dim": 4},
        (
            *TEXT,
            "visual_feats:float32[batch=1..4,boxes=1..6,12]",
            "visual_pos:float32[batch=1..4,boxes=1..6,4]{0..1}",
        ),
    ),
    case(
        "visual-bert",
        "multi-modal",
        "VisualBertModel",
        {**LANGUAGE, "visual_embedding_dim": 12},
        (
            *TEXT,
            "visual_embeds:float32[batch=1..4,boxes=1..6,12]",
            "visual_attention_mask:int64[batch=1..4,boxes=1..6]{0..1}",
        ),
    ),
    case(
        "clipseg",
        "multi-modal",
        "CLIPSegForImageSegmentation",
        {
            "text_config": {**LANGUAGE, "eos_token_id": 2}, "vision_config": VISION,
            "projection_dim": 16, "extract_layers": [0, 1], "reduce_dim": 16,
            "decoder_num_attention_heads": 2, "decoder_intermediate_size": 32,
        },
        (
            "input_ids:int64[batch=1..4,seq=2..24]{2..99}",
            "pixel_values:float32[batch=1..4,3,32,32]",
            MASK,
        ),
    ),
)  # fmt: skip
CASES = (*_AUDIO, *_TIME, *_SPACES, *_MODES)
