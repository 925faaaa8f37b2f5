"""Encoder-decoder text models of transformers."""

import transformers as T

from .registry import TOKENS, VOCABULARY, config, padding_mask, register, token_ids


def seq2seq(mt, name=None, nolabels=False, src=TOKENS, tgt=10, **over):
    def build():
        kw = dict(vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **over)
        m = T.AutoModelForSeq2SeqLM.from_config(config(mt, **kw))
        k = dict(input_ids=token_ids(s=src), attention_mask=padding_mask(s=src, left=False))
        d = token_ids(s=tgt)
        return dict(model=m, kwargs={**k, 'decoder_input_ids': d}, train_kwargs={**k, 'labels': d})
    register('hf/' + (name or mt), 'seq2seq', build)


T5 = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4)
BART = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=128)
seq2seq('t5', **T5)
seq2seq('mt5', 'flan-t5-gated', feed_forward_proj='gated-gelu', **T5)
seq2seq('umt5', **T5)
seq2seq('switch_transformers', **T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
seq2seq('longt5', 'longt5-tglobal', **T5, encoder_attention_type='transient-global', local_radius=4, global_block_size=4,
    src=32)
seq2seq('pegasus', **BART)
seq2seq('marian', **BART)
seq2seq('m2m_100', **BART)
seq2seq('led', **BART, attention_window=4, max_encoder_position_embeddings=128, max_decoder_position_embeddings=64, src=16)
seq2seq('bigbird_pegasus', **BART, attention_type='block_sparse', block_size=4, num_random_blocks=1, src=64)
seq2seq('prophetnet', hidden_size=64, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
    num_decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=128)
seq2seq('nllb-moe', **BART, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2)
seq2seq('t5gemma', encoder=dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8), decoder=dict(vocab_size=VOCABULARY,
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    sliding_window=8, cross_attention_hidden_size=64))
