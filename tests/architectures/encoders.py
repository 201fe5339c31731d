"""Text encoders."""

from .base import BERT, SPECIAL, TEXT, VOCAB, Inputs, Row, masked_tokens, tokens  # noqa: F401


def _long(**sizes: int) -> Inputs:
    return masked_tokens(**{"length": 16, **sizes})


def row(model: str, config: str, settings: dict = BERT, inputs=masked_tokens, **nested: dict) -> Row:
    return Row("encoder", model, config, inputs, settings, nested)


_XLM = {"vocab_size": VOCAB, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "pad_index": 0,
        "bos_index": 1, "eos_index": 2, "unk_index": 3}  # fmt: skip
_EMBEDDED = {**BERT, "embedding_size": 16}

ROWS: dict[str, Row] = {
    "bert_generation": row("BertGenerationEncoder", "BertGenerationConfig"),
    "big_bird": row("BigBirdModel", "BigBirdConfig", {**BERT, "attention_type": "original_full"}),
    "camembert": row("CamembertModel", "CamembertConfig", {**BERT, "pad_token_id": 1}),
    "canine": row("CanineModel", "CanineConfig", {**BERT, "num_hash_buckets": 64, "num_hash_functions": 4, "downsampling_rate": 2, "upsampling_kernel_size": 2, "local_transformer_stride": 8}, _long),
    "convbert": row("ConvBertModel", "ConvBertConfig", _EMBEDDED),
    "data2vec_text": row("Data2VecTextModel", "Data2VecTextConfig", {**BERT, "pad_token_id": 1}),
    "deberta": row("DebertaModel", "DebertaConfig", {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}),
    "dpr": row("DPRQuestionEncoder", "DPRConfig"),
    "ernie": row("ErnieModel", "ErnieConfig"),
    "esm": row("EsmModel", "EsmConfig", {**BERT, "mask_token_id": 4, "pad_token_id": 0, "position_embedding_type": "rotary"}),
    "eurobert": row("EuroBertModel", "EuroBertConfig"),
    "flaubert": row("FlaubertModel", "FlaubertConfig", _XLM),
    "fnet": row("FNetModel", "FNetConfig", BERT, tokens),
    "funnel": row("FunnelModel", "FunnelConfig", {"vocab_size": VOCAB, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, **SPECIAL}),
    "ibert": row("IBertModel", "IBertConfig", {**BERT, "pad_token_id": 1, "quant_mode": False}),
    "layoutlm": row("LayoutLMModel", "LayoutLMConfig", {**BERT, "max_2d_position_embeddings": 64}),
    "longformer": row("LongformerModel", "LongformerConfig", {**BERT, "attention_window": 4}),
    "luke": row("LukeModel", "LukeConfig", {**BERT, "entity_vocab_size": 20, "entity_emb_size": 16}),
    "markuplm": row("MarkupLMModel", "MarkupLMConfig", {**BERT, "max_depth": 5, "xpath_unit_hidden_size": 8, "max_xpath_tag_unit_embeddings": 12, "max_xpath_subs_unit_embeddings": 12, "tag_pad_id": 10, "subs_pad_id": 10}),
    "megatron_bert": row("MegatronBertModel", "MegatronBertConfig"),
    "mobilebert": row("MobileBertModel", "MobileBertConfig", {**BERT, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    "mpnet": row("MPNetModel", "MPNetConfig", {**BERT, "pad_token_id": 1}),
    "mra": row("MraModel", "MraConfig", {**BERT, "block_per_row": 2}, _long),
    "nomic_bert": row("NomicBertModel", "NomicBertConfig"),
    "rembert": row("RemBertModel", "RemBertConfig", {**BERT, "input_embedding_size": 16, "output_embedding_size": 32}),
    "roberta_prelayernorm": row("RobertaPreLayerNormModel", "RobertaPreLayerNormConfig", {**BERT, "pad_token_id": 1}),
    "roc_bert": row("RoCBertModel", "RoCBertConfig", {**BERT, "enable_pronunciation": True, "enable_shape": True, "pronunciation_vocab_size": VOCAB, "pronunciation_embed_dim": 8, "shape_vocab_size": VOCAB, "shape_embed_dim": 8}),
    "roformer": row("RoFormerModel", "RoFormerConfig", _EMBEDDED),
    "splinter": row("SplinterModel", "SplinterConfig"),
    "squeezebert": row("SqueezeBertModel", "SqueezeBertConfig", {**BERT, "embedding_size": 32}),
    "tapas": row("TapasModel", "TapasConfig", {**BERT, "type_vocab_sizes": [3, 16, 16, 2, 2, 8, 8]}),
    "xlm": row("XLMModel", "XLMConfig", _XLM),
    "xlm_roberta": row("XLMRobertaModel", "XLMRobertaConfig", {**BERT, "pad_token_id": 1}),
    "xlm_roberta_xl": row("XLMRobertaXLModel", "XLMRobertaXLConfig", {**BERT, "pad_token_id": 1}),
    "xlnet": row("XLNetModel", "XLNetConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, **SPECIAL}),
    "xmod": row("XmodModel", "XmodConfig", {**BERT, "pad_token_id": 1, "languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": row("YosoModel", "YosoConfig", {**BERT, "use_expectation": True}),
}  # fmt: skip
