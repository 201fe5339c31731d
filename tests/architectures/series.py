"""Time series and decisions."""

import torch

from .base import Inputs, Row


def row(model: str, config: str, settings: dict, inputs) -> Row:
    return Row("series", model, config, inputs, settings)


def _past_and_future(batch: int = 2, context: int = 12, prediction: int = 4) -> Inputs:
    past = context + 3  # the longest lag
    return {
        "past_values": torch.randn(batch, past),
        "past_time_features": torch.randn(batch, past, 1),
        "past_observed_mask": torch.ones(batch, past),
        "future_values": torch.randn(batch, prediction),
        "future_time_features": torch.randn(batch, prediction, 1),
    }


_SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 3], "num_time_features": 1, "d_model": 16,
           "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
           "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}  # fmt: skip

ROWS: dict[str, Row] = {
    "decision_transformer": row("DecisionTransformerModel", "DecisionTransformerConfig", {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 20}, lambda batch=2: {"states": torch.randn(batch, 4, 5), "actions": torch.randn(batch, 4, 3), "rewards": torch.randn(batch, 4, 1), "returns_to_go": torch.randn(batch, 4, 1), "timesteps": torch.arange(4).expand(batch, 4), "attention_mask": torch.ones(batch, 4)}),
    "informer": row("InformerModel", "InformerConfig", {**_SERIES, "attention_type": "full"}, _past_and_future),
    "patchtsmixer": row("PatchTSMixerModel", "PatchTSMixerConfig", {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3, "d_model": 8, "num_layers": 2}, lambda batch=2: {"past_values": torch.randn(batch, 16, 3)}),
    "patchtst": row("PatchTSTModel", "PatchTSTConfig", {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3, "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32}, lambda batch=2: {"past_values": torch.randn(batch, 16, 3)}),
    "time_series_transformer": row("TimeSeriesTransformerModel", "TimeSeriesTransformerConfig", _SERIES, _past_and_future),
}  # fmt: skip
