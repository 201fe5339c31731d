"""Speech and sound."""

import torch

from .base import AUDIO, BERT, SEQ2SEQ, SPECIAL, VIT, VOCAB, Inputs, Row, waveform  # noqa: F401


def row(model: str, config: str, settings: dict = AUDIO, inputs=waveform, **nested: dict) -> Row:
    return Row("audio", model, config, inputs, settings, nested)


def _features(bins: int = 16, frames: int = 40, length: int = 0, name: str = "input_features"):
    def make(batch: int = 2) -> Inputs:
        made: Inputs = {name: torch.randn(batch, frames, bins)}
        if length:
            made["decoder_input_ids"] = torch.randint(3, 32, (batch, length))
        return made

    return make


def _mono(samples: int = 640):
    return lambda batch=2: {"input_values": torch.randn(batch, 1, samples)}


_CODEC = {"upsampling_ratios": [4, 2], "hidden_size": 16, "num_filters": 4, "codebook_size": 16}

ROWS: dict[str, Row] = {
    "audio_spectrogram_transformer": row("ASTModel", "ASTConfig", {**VIT, "num_mel_bins": 16, "max_length": 40}, _features(name="input_values")),
    "clap": row("ClapModel", "ClapConfig", {"projection_dim": 16}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch, 7)), "input_features": torch.randn(batch, 1, 64, 16), "is_longer": torch.tensor([[False]] * batch)}, text_config={**BERT, "pad_token_id": 1, "projection_dim": 16}, audio_config={"spec_size": 64, "num_mel_bins": 16, "window_size": 4, "patch_embeds_hidden_size": 16, "hidden_size": 32, "depths": [1, 1], "num_attention_heads": [2, 2], "projection_dim": 16, "num_hidden_layers": 2, "patch_size": 4, "patch_stride": [4, 4], "enable_fusion": False}),
    "dac": row("DacModel", "DacConfig", {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 16, "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4, "hidden_size": 32, "upsampling_ratios": [4, 2]}, _mono()),
    "data2vec_audio": row("Data2VecAudioModel", "Data2VecAudioConfig", {**AUDIO, "num_conv_pos_embeddings": 5}),
    "encodec": row("EncodecModel", "EncodecConfig", {**_CODEC, "codebook_dim": 16}, _mono()),
    "fastspeech2": row("FastSpeech2ConformerModel", "FastSpeech2ConformerConfig", {"vocab_size": VOCAB, "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "encoder_linear_units": 32, "decoder_linear_units": 32, "num_mel_bins": 8, "speech_decoder_postnet_units": 16, "duration_predictor_channels": 16, "energy_predictor_channels": 16, "pitch_predictor_channels": 16}, lambda batch=1: {"input_ids": torch.randint(1, VOCAB, (batch, 7))}),
    "mimi": row("MimiModel", "MimiConfig", {**_CODEC, "hidden_size": 32, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "num_quantizers": 4, "num_semantic_quantizers": 1, "upsample_groups": 32, "sliding_window": 8, "frame_rate": 1500, "sampling_rate": 24000}, _mono()),
    "musicgen": row("MusicgenForCausalLM", "MusicgenDecoderConfig", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "num_codebooks": 2, "max_position_embeddings": 64}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch * 2, 7)), "encoder_hidden_states": torch.randn(batch, 4, 32)}),
    "seamless_m4t_text": row("SeamlessM4Tv2ForTextToText", "SeamlessM4Tv2Config", {"vocab_size": VOCAB, "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "speech_encoder_layers": 1, "max_position_embeddings": 64}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch, 7)), "decoder_input_ids": torch.randint(3, VOCAB, (batch, 5))}),
    "sew": row("SEWModel", "SEWConfig", {**AUDIO, "squeeze_factor": 2}),
    "sew_d": row("SEWDModel", "SEWDConfig", {**AUDIO, "squeeze_factor": 2, "max_position_embeddings": 32, "position_buckets": 8}),
    "speech_to_text": row("Speech2TextModel", "Speech2TextConfig", {**SEQ2SEQ, "max_source_positions": 64, "max_target_positions": 64, "input_feat_per_channel": 16, "conv_channels": 32}, _features(length=5)),
    "speecht5": row("SpeechT5ForSpeechToText", "SpeechT5Config", {**AUDIO, "vocab_size": VOCAB, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "decoder_start_token_id": 1, **SPECIAL}, lambda batch=2: {"input_values": torch.randn(batch, 1600), "decoder_input_ids": torch.randint(3, VOCAB, (batch, 5))}),
    "unispeech": row("UniSpeechModel", "UniSpeechConfig"),
    "unispeech_sat": row("UniSpeechSatModel", "UniSpeechSatConfig"),
    "univnet": row("UnivNetModel", "UnivNetConfig", {"model_in_channels": 8, "model_hidden_channels": 8, "num_mel_bins": 8, "resblock_kernel_sizes": [3, 3], "resblock_stride_sizes": [2, 2], "resblock_dilation_sizes": [[1, 3], [1, 3]], "kernel_predictor_hidden_channels": 8}, lambda batch=1: {"input_features": torch.randn(batch, 6, 8), "noise_sequence": torch.randn(batch, 6, 8)}),
    "wav2vec2_bert": row("Wav2Vec2BertModel", "Wav2Vec2BertConfig", {**AUDIO, "feature_projection_input_dim": 16, "max_source_positions": 64, "left_max_position_embeddings": 8, "right_max_position_embeddings": 4}, _features()),
    "wav2vec2_conformer": row("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig"),
    "wavlm": row("WavLMModel", "WavLMConfig", {**AUDIO, "num_buckets": 16, "max_bucket_distance": 32}),
}  # fmt: skip
