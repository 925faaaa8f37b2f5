"""Decoder language models of transformers."""

import transformers as T

from .registry import VOCABULARY, config, padding_mask, register, token_ids

DECODER = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def decoder(mt, name=None, drop=(), cls=None, nomask=False, **over):
    def build():
        kw = {k: v for k, v in {**DECODER, **over}.items() if k not in drop}
        c = config(mt, **kw)
        m = getattr(T, cls)(c) if cls else T.AutoModelForCausalLM.from_config(c)
        i = token_ids()
        k = dict(input_ids=i) if nomask else dict(input_ids=i, attention_mask=padding_mask())
        return dict(model=m, kwargs=k, train_kwargs={**k, 'labels': i.clone()})
    register('hf/' + (name or mt), 'decoder-lm', build)


decoder('llama')
decoder('llama', 'llama3-rope', rope_parameters=dict(rope_type='llama3', rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
    high_freq_factor=4.0, original_max_position_embeddings=64))
decoder('mistral', head_dim=16, sliding_window=8)
decoder('qwen2')
decoder('qwen3', head_dim=16)
decoder('gemma', head_dim=16)
decoder('gemma3_text', head_dim=16, sliding_window=8, query_pre_attn_scalar=16, layer_types=['sliding_attention',
    'full_attention'])
decoder('gemma3n_text', num_hidden_layers=4, head_dim=16, sliding_window=8, layer_types=['sliding_attention',
    'full_attention'] * 2, num_kv_shared_layers=2, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCABULARY,
    laurel_rank=8, altup_num_inputs=2, altup_active_idx=0, intermediate_size=[128] * 4, activation_sparsity_pattern=[0.95, 0.95,
    0.0, 0.0])
decoder('gemma4_text', head_dim=16, global_head_dim=16, sliding_window=8, num_hidden_layers=2, layer_types=['sliding_attention',
    'full_attention'], hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=0)
decoder('recurrent_gemma', num_hidden_layers=3, lru_width=64, attention_window_size=8, head_dim=16, conv1d_width=4)
decoder('phi3', original_max_position_embeddings=128)
decoder('gpt2', n_embd=64, n_layer=2, n_head=4, n_positions=128)
decoder('gpt_bigcode', n_embd=64, n_layer=2, n_head=4, n_positions=128, n_inner=128)
decoder('gpt_neo', num_layers=2, num_heads=4, attention_types=[[['global', 'local'], 1]], window_size=8)
decoder('gptj', n_embd=64, n_layer=2, n_head=4, n_positions=128, rotary_dim=8)
decoder('codegen', n_embd=64, n_layer=2, n_head=4, n_positions=128, rotary_dim=8, n_ctx=128)
decoder('opt', ffn_dim=128, word_embed_proj_dim=64)
decoder('bloom', n_layer=2, n_head=4)
decoder('falcon', new_decoder_architecture=False, multi_query=True, alibi=False)
decoder('falcon', 'falcon-alibi', alibi=True, multi_query=False, new_decoder_architecture=False)
decoder('mpt', d_model=64, n_heads=4, n_layers=2, max_seq_len=128)
decoder('olmo')
decoder('olmo2')
decoder('olmo3', sliding_window=8, layer_types=['sliding_attention', 'full_attention'])
decoder('olmo_hybrid', num_hidden_layers=4)
decoder('mixtral', num_local_experts=4, num_experts_per_tok=2)
decoder('qwen3_moe', moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16)
decoder('qwen3_next', moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
    head_dim=16, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
    linear_value_head_dim=16)
decoder('qwen3_5_text', head_dim=16, num_hidden_layers=4, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=16)
decoder('kimi_linear', num_hidden_layers=3, moe_intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
    layer_types=['linear_attention', 'full_attention', 'linear_attention'], linear_head_dim=16, linear_num_heads=4,
    kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=16, qk_nope_head_dim=16, num_key_value_heads=4)
decoder('deepseek_v2', moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=32, kv_lora_rank=16,
    qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_group=1, topk_group=1,
    n_shared_experts=1, num_key_value_heads=4, head_dim=8)
decoder('deepseek_v3', moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, q_lora_rank=32, kv_lora_rank=16,
    qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_group=2, topk_group=1,
    n_shared_experts=1, num_key_value_heads=4)
decoder('glm4_moe', moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1,
    topk_group=1, head_dim=16, first_k_dense_replace=1)
decoder('minimax_m2', num_local_experts=4, num_experts_per_tok=2, head_dim=16, rotary_dim=8)
decoder('minimax', num_local_experts=4, num_experts_per_tok=2, head_dim=16, block_size=8)
decoder('ernie4_5_moe', moe_intermediate_size=32, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1,
    moe_layer_end_index=1)
decoder('hunyuan_v1_dense', head_dim=16)
decoder('llama4_text', num_local_experts=4, head_dim=16, intermediate_size_mlp=128, interleave_moe_layer_step=1,
    attention_chunk_size=8, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0])
decoder('granite')
decoder('dbrx', d_model=64, n_heads=4, n_layers=2, max_seq_len=128, ffn_config=dict(ffn_hidden_size=64, moe_num_experts=4,
    moe_top_k=2, hidden_size=64), attn_config=dict(kv_n_heads=2, clip_qkv=8, rope_theta=10000.0))
decoder('mamba', state_size=8, conv_kernel=4, expand=2)
decoder('rwkv', context_length=128, attention_hidden_size=64, nomask=True)
decoder('jamba', num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
    expert_layer_offset=1, mamba_d_state=8, use_mamba_kernels=False)
decoder('bamba', attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1,
    mamba_chunk_size=8, attn_rotary_emb=8)
decoder('falcon_h1', mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=8,
    head_dim=16)
decoder('nemotron_h', layers_block_type=['linear_attention', 'full_attention', 'mlp'], num_hidden_layers=3, mamba_num_heads=8,
    mamba_head_dim=16, ssm_state_size=16, n_groups=1, chunk_size=8, head_dim=16)
decoder('lfm2', layer_types=['conv', 'full_attention'], block_multiple_of=8)
decoder('starcoder2', sliding_window=8)
decoder('cohere')
decoder('cohere2', head_dim=16, sliding_window=8, layer_types=['sliding_attention', 'full_attention'])
decoder('glm', head_dim=16)
decoder('smollm3')
decoder('nemotron')
decoder('exaone4', sliding_window=8, layer_types=['sliding_attention', 'full_attention'])
decoder('ctrl', n_embd=64, n_layer=2, n_head=4, n_positions=128, dff=128)
decoder('bitnet')
decoder('diffllama')
decoder('persimmon')
decoder('seed_oss', head_dim=16)
decoder('apertus')
decoder('doge')
decoder('moshi', 'moshi-depth-lm', head_dim=16, ffn_dim=128, cls='MoshiForCausalLM')
