"""Text encoders of transformers."""

import torch
import transformers as T

from .registry import BATCH, TOKENS, VOCABULARY, config, padding_mask, register, token_ids

ENCODER = dict(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=128, type_vocab_size=2, pad_token_id=0)


def encoder(mt, name=None, auto='AutoModelForMaskedLM', s=TOKENS, extra=None, drop=(), nomask=False, **over):
    def build():
        kw = {k: v for k, v in {**ENCODER, **over}.items() if k not in drop}
        m = getattr(T, auto).from_config(config(mt, **kw))
        i = token_ids(s=s)
        k = dict(input_ids=i)
        if not nomask:
            k['attention_mask'] = padding_mask(s=s, left=False)
        if extra:
            k.update(extra())
        lab = i.clone() if 'MaskedLM' in auto else torch.randint(0, 2, (BATCH,))
        return dict(model=m, kwargs=k, train_kwargs={**k, 'labels': lab})
    register('hf/' + (name or mt), 'encoder', build)


for n in ['bert', 'camembert', 'roformer', 'rembert', 'layoutlm', 'convbert', 'nystromformer', 'yoso', 'eurobert']:
    encoder(n, **{'input_embedding_size': 64, 'output_embedding_size': 64} if n == 'rembert' else {})
encoder('albert', embedding_size=32)
encoder('distilbert', dim=64, n_layers=2, n_heads=4, hidden_dim=128)
encoder('deberta-v2', relative_attention=True, pos_att_type=['c2p', 'p2c'], position_buckets=8, norm_rel_ebd='layer_norm',
    share_att_key=True, conv_kernel_size=3)
encoder('modernbert', num_hidden_layers=3, local_attention=8, global_attn_every_n_layers=3)
encoder('big_bird', attention_type='block_sparse', block_size=4, num_random_blocks=1, s=64)
encoder('squeezebert', embedding_size=64)
encoder('mobilebert', embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32)
encoder('xlm', emb_dim=64, n_layers=2, n_heads=4)
encoder('mra', s=64, block_per_row=1, approx_mode='full', initial_prior_first_n_blocks=0)
encoder('luke', 'luke', entity_vocab_size=32, entity_emb_size=16)
encoder('tapas', 'tapas', auto='AutoModel', type_vocab_sizes=[3, 8, 8, 2, 8, 8, 2],
    extra=lambda: dict(token_type_ids=torch.randint(0, 2, (BATCH, TOKENS, 7))))
encoder('nomic_bert', 'nomic-bert')
