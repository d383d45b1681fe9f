"""Encoders, decoders and encoder-decoders of transformers, with the heads that users export."""

from __future__ import annotations

from modelc.tests.nets.transformers_cases import IDS, LANGUAGE, MASK, TEXT, case, known

_RELATIVE = {**LANGUAGE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_FUNNEL = {
    "vocab_size": 100, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4,
    "d_head": 8, "d_inner": 64,
}  # fmt: skip
_LONGER = tuple(text.replace("seq=2..24", "seq=8..24") for text in TEXT)  # it pools
_LLAMA = {**LANGUAGE, "num_key_value_heads": 2}
_GEMMA = {**_LLAMA, "head_dim": 8}
_SEQ2SEQ = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 40, "pad_token_id": 1,
    "decoder_start_token_id": 2, "eos_token_id": 2,
}  # fmt: skip
_T5 = {**known("t5"), "decoder_start_token_id": 0}
_WORDS = {"vocab_size": 100, "pad_token_id": 0}
_OUT = "decoder_input_ids:int64[batch=1..4,target=1..12]{2..99}"
_TRANSLATION = (IDS, MASK, _OUT)

_ENCODERS = (
    case("bert", "encoder", "BertForSequenceClassification", LANGUAGE, TEXT),
    case("roberta", "encoder", "RobertaForTokenClassification", LANGUAGE, TEXT),
    case("distilbert", "encoder", "DistilBertForQuestionAnswering", known("distilbert"), TEXT),
    case("deberta-v2", "encoder", "DebertaV2ForSequenceClassification", _RELATIVE, TEXT),
    case("deberta", "encoder", "DebertaModel", _RELATIVE, TEXT),
    case("electra", "encoder", "ElectraForPreTraining", known("electra"), TEXT),
    case("albert", "encoder", "AlbertForMaskedLM", known("albert"), TEXT),
    case("mpnet", "encoder", "MPNetModel", known("mpnet"), TEXT),
    case(
        "modernbert",
        "encoder",
        "ModernBertForMaskedLM",
        {**LANGUAGE, "local_attention": 8, "pad_token_id": 0},
        TEXT,
    ),
    case("longformer", "encoder", "LongformerModel", {**LANGUAGE, "attention_window": 8}, TEXT),
    case("big-bird", "encoder", "BigBirdModel", {**LANGUAGE, "block_size": 4}, TEXT),
    case(
        "xlnet",
        "encoder",
        "XLNetModel",
        {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "d_head": 8},
        TEXT,
        config="XLNetConfig",
    ),
    case("funnel", "encoder", "FunnelModel", _FUNNEL, _LONGER),
    case("fnet", "encoder", "FNetForSequenceClassification", LANGUAGE, (IDS,)),
    case("roformer", "encoder", "RoFormerForMaskedLM", LANGUAGE, TEXT, config="RoFormerConfig"),
    case("convbert", "encoder", "ConvBertModel", {**LANGUAGE, "embedding_size": 32}, TEXT),
    case("rembert", "encoder", "RemBertModel", {**LANGUAGE, "input_embedding_size": 16}, TEXT),
    case("squeezebert", "encoder", "SqueezeBertModel", {**LANGUAGE, "embedding_size": 32}, TEXT),
    case("esm", "encoder", "EsmForMaskedLM", {**LANGUAGE, "pad_token_id": 1}, TEXT),
)
_DECODERS = (
    case("gpt2", "decoder", "GPT2LMHeadModel", known("gpt2"), TEXT, config="GPT2Config"),
    case("llama", "decoder", "LlamaForCausalLM", known("llama"), TEXT),
    case("qwen2", "decoder", "Qwen2ForSequenceClassification", _WORDS | _LLAMA, TEXT),
    case("qwen3", "decoder", "Qwen3ForCausalLM", _GEMMA, TEXT),
    case("mistral", "decoder", "MistralForCausalLM", {**_LLAMA, "sliding_window": 8}, TEXT),
    case(
        "mixtral",
        "decoder",
        "MixtralForCausalLM",
        {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        TEXT,
    ),
    case("gemma", "decoder", "GemmaForCausalLM", _GEMMA, TEXT),
    case("gemma2", "decoder", "Gemma2ForCausalLM", {**_GEMMA, "sliding_window": 8}, TEXT),
    case("phi", "decoder", "PhiForCausalLM", LANGUAGE, TEXT),
    case("phi3", "decoder", "Phi3ForCausalLM", {**_LLAMA, "pad_token_id": 0}, TEXT),
    case(
        "opt",
        "decoder",
        "OPTForCausalLM",
        {**LANGUAGE, "ffn_dim": 64, "word_embed_proj_dim": 32},
        TEXT,
    ),
    case(
        "bloom",
        "decoder",
        "BloomForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        TEXT,
    ),
    case("falcon", "decoder", "FalconForCausalLM", LANGUAGE, TEXT),
    case("gpt-neox", "decoder", "GPTNeoXForCausalLM", LANGUAGE, TEXT),
    case(
        "gpt-neo",
        "decoder",
        "GPTNeoForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 40,
        },
        TEXT,
    ),
    case(
        "gptj",
        "decoder",
        "GPTJForCausalLM",
        {**known("gpt2"), "rotary_dim": 4},
        TEXT,
    ),
    case(
        "mpt",
        "decoder",
        "MptForCausalLM",
        {"vocab_size": 100, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 40},
        TEXT,
    ),
    case(
        "olmoe",
        "decoder",
        "OlmoeForCausalLM",
        {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
        TEXT,
    ),
    case("stablelm", "decoder", "StableLmForCausalLM", _LLAMA, TEXT),
)
_BOTH = (
    case("t5", "encoder-decoder", "T5ForConditionalGeneration", _T5, _TRANSLATION),
    case("bart", "encoder-decoder", "BartForConditionalGeneration", _SEQ2SEQ, _TRANSLATION),
    case("pegasus", "encoder-decoder", "PegasusForConditionalGeneration", _SEQ2SEQ, _TRANSLATION),
    case(
        "marian", "encoder-decoder", "MarianMTModel", _SEQ2SEQ, _TRANSLATION, config="MarianConfig"
    ),
    case("m2m100", "encoder-decoder", "M2M100ForConditionalGeneration", _SEQ2SEQ, _TRANSLATION),
    case(
        "led",
        "encoder-decoder",
        "LEDForConditionalGeneration",
        {
            **_SEQ2SEQ,
            "attention_window": 8,
            "max_encoder_position_embeddings": 40,
            "max_decoder_position_embeddings": 40,
        },
        _TRANSLATION,
    ),
    case(
        "switch",
        "encoder-decoder",
        "SwitchTransformersForConditionalGeneration",
        {**_T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        _TRANSLATION,
    ),
    case(
        "bert2bert",
        "encoder-decoder",
        "EncoderDecoderModel",
        {
            "encoder": {"model_type": "bert", **LANGUAGE},
            "decoder": {
                "model_type": "bert",
                "is_decoder": True,
                "add_cross_attention": True,
                **LANGUAGE,
            },
        },
        _TRANSLATION,
        config="EncoderDecoderConfig",
    ),
)
CASES = (*_ENCODERS, *_DECODERS, *_BOTH)
