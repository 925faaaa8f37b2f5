"""Speech and audio models of transformers."""

import torch
import transformers as T

from .registry import BATCH, VOCABULARY, config, padding_mask, register, token_ids

SPEECH = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=[16, 16, 16],
    conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_feat_extract_layers=3, num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4, vocab_size=32, pad_token_id=0, mask_time_prob=0.0, mask_time_length=2)


def speech_encoder(mt, cls, **over):
    def f():
        m = getattr(T, cls)(config(mt, **{**SPEECH, **over}))
        x = torch.randn(BATCH, 1600)
        am = torch.ones(BATCH, 1600, dtype=torch.long)
        am[0, 1400:] = 0
        k = dict(input_values=x, attention_mask=am)
        return dict(model=m, kwargs=k, train_kwargs={**k, 'labels': torch.randint(1, 32, (BATCH, 5))})
    register('hf/' + mt, 'audio', f)


speech_encoder('wav2vec2', 'Wav2Vec2ForCTC')
speech_encoder('hubert', 'HubertForCTC')
speech_encoder('unispeech-sat', 'UniSpeechSatForCTC')
speech_encoder('data2vec-audio', 'Data2VecAudioForCTC', conv_pos_kernel_size=3)
speech_encoder('sew-d', 'SEWDForCTC', squeeze_factor=2, position_buckets=8, max_position_embeddings=64)


def _ast():
    m = T.ASTForAudioClassification(T.ASTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, patch_size=4, max_length=32, num_mel_bins=16, frequency_stride=4, time_stride=4, num_labels=10))
    return dict(model=m, kwargs=dict(input_values=torch.randn(BATCH, 32, 16)))


register('hf/ast', 'audio', _ast)


def _clap():
    c = T.ClapConfig(text_config=dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, projection_dim=16), audio_config=dict(window_size=4, num_mel_bins=16,
        spec_size=64, patch_size=4, patch_stride=[4, 4], num_classes=10, hidden_size=64, projection_dim=16, depths=[1, 1],
        num_attention_heads=[2, 2], patch_embeds_hidden_size=32, enable_fusion=False, num_hidden_layers=2), projection_dim=16)
    return dict(model=T.ClapModel(c), kwargs=dict(input_ids=token_ids(), input_features=torch.randn(BATCH, 1, 200, 16),
        is_longer=torch.zeros(BATCH, 1, dtype=torch.bool)))


register('hf/clap', 'audio', _clap)


def _encodec():
    m = T.EncodecModel(T.EncodecConfig(num_filters=8, hidden_size=16, num_lstm_layers=1, codebook_size=16, codebook_dim=16,
        upsampling_ratios=[4, 2], sampling_rate=400, target_bandwidths=[1.5, 3.0], num_residual_layers=1))
    return dict(model=m, kwargs=dict(input_values=torch.randn(BATCH, 1, 320)))


register('hf/encodec', 'audio', _encodec)


def _dac():
    m = T.DacModel(T.DacConfig(encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_hidden_size=32, n_codebooks=3,
        codebook_size=16, codebook_dim=4, hidden_size=32, upsampling_ratios=[4, 2]))
    return dict(model=m, kwargs=dict(input_values=torch.randn(BATCH, 1, 320)))


register('hf/dac', 'audio', _dac)


def _mimi():
    m = T.MimiModel(T.MimiConfig(num_filters=8, hidden_size=32, num_residual_layers=1, upsampling_ratios=[4, 2],
        codebook_size=16, codebook_dim=16, vector_quantization_hidden_dimension=16, num_quantizers=4, num_semantic_quantizers=1,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8, intermediate_size=64, sliding_window=8,
        sampling_rate=400, frame_rate=25, upsample_groups=32))
    return dict(model=m, kwargs=dict(input_values=torch.randn(BATCH, 1, 320)))


register('hf/mimi', 'audio', _mimi)


def _s2t():
    m = T.Speech2TextForConditionalGeneration(T.Speech2TextConfig(vocab_size=VOCABULARY, d_model=64, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
        input_feat_per_channel=16, input_channels=1, conv_channels=32, max_source_positions=100, max_target_positions=64,
        pad_token_id=0))
    am = torch.ones(BATCH, 40, dtype=torch.long)
    am[0, 30:] = 0
    return dict(model=m, kwargs=dict(input_features=torch.randn(BATCH, 40, 16), attention_mask=am,
        decoder_input_ids=token_ids()))


register('hf/speech_to_text', 'audio', _s2t)


def _moonshine():
    m = T.MoonshineForConditionalGeneration(T.MoonshineConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128,
        encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        encoder_num_key_value_heads=4, decoder_num_key_value_heads=4, pad_token_id=0, decoder_start_token_id=1))
    return dict(model=m, kwargs=dict(input_values=torch.randn(BATCH, 4000), decoder_input_ids=token_ids()))


register('hf/moonshine', 'audio', _moonshine)


def _speecht5():
    m = T.SpeechT5ForTextToSpeech(T.SpeechT5Config(vocab_size=81, hidden_size=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
        speech_decoder_prenet_units=16, speech_decoder_postnet_units=16, num_mel_bins=16, speaker_embedding_dim=16,
        positional_dropout=0.0))
    return dict(model=m, kwargs=dict(input_ids=token_ids(v=80), attention_mask=padding_mask(left=False),
        decoder_input_values=torch.randn(BATCH, 12, 16), speaker_embeddings=torch.randn(BATCH, 16)))


register('hf/speecht5-tts', 'audio', _speecht5)


def _parakeet():
    c = T.ParakeetCTCConfig(vocab_size=32, encoder_config=dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, conv_kernel_size=9, subsampling_conv_channels=16, num_mel_bins=16), pad_token_id=0)
    return dict(model=T.ParakeetForCTC(c), kwargs=dict(input_features=torch.randn(BATCH, 64, 16),
        attention_mask=torch.ones(BATCH, 64, dtype=torch.long)))


register('hf/parakeet-ctc', 'audio', _parakeet)
