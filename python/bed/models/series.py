"""Time series models of transformers."""

import torch
import transformers as T

from .registry import BATCH, register


def _patchtsmixer():
    m = T.PatchTSMixerForPrediction(T.PatchTSMixerConfig(num_input_channels=3, context_length=32, patch_length=8,
        patch_stride=8, prediction_length=8, d_model=16, num_layers=2))
    return dict(model=m, kwargs=dict(past_values=torch.randn(BATCH, 32, 3)))


register('hf/patchtsmixer', 'timeseries', _patchtsmixer)


def series_transformer(cls, **over):
    def f():
        C = getattr(T, cls + 'Config')
        c = C(prediction_length=8, context_length=16, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_time_features=2, lags_sequence=[1, 2, 3],
            **over)
        m = getattr(T, cls + 'ForPrediction')(c)
        steps = 16 + 3
        k = dict(past_values=torch.rand(BATCH, steps), past_time_features=torch.randn(BATCH, steps, 2),
            past_observed_mask=torch.ones(BATCH, steps), future_values=torch.rand(BATCH, 8),
            future_time_features=torch.randn(BATCH, 8, 2))
        return dict(model=m, kwargs=k, train_kwargs=k)
    return f


register('hf/time_series_transformer', 'timeseries', series_transformer('TimeSeriesTransformer'))


def _dt():
    m = T.DecisionTransformerModel(T.DecisionTransformerConfig(state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=2,
        n_positions=128, max_ep_len=64))
    return dict(model=m, kwargs=dict(states=torch.randn(BATCH, 8, 5), actions=torch.randn(BATCH, 8, 3),
        rewards=torch.randn(BATCH, 8, 1), returns_to_go=torch.randn(BATCH, 8, 1), timesteps=torch.arange(8)[None].expand(BATCH,
        8), attention_mask=torch.ones(BATCH, 8, dtype=torch.long)))


register('hf/decision_transformer', 'timeseries', _dt)
