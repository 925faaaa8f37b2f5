"""Denoisers and autoencoders of diffusers."""

import torch

from .registry import BATCH, register


def diffuser(name, cls, inputs, family='diffusers', **kw):
    def f():
        import diffusers
        m = getattr(diffusers, cls)(**kw)
        k = inputs()
        return dict(model=m, kwargs=k, loss='mse')
    register('diffusers/' + name, family, f)


randn = torch.randn


def longs(x):
    return torch.tensor(x, dtype=torch.long)


UNET = dict(sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8)
diffuser('unet2dcond-sd15', 'UNet2DConditionModel', lambda: dict(sample=randn(BATCH, 4, 16, 16), timestep=longs(10),
    encoder_hidden_states=randn(BATCH, 7, 32)), **UNET, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'),
    up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'), cross_attention_dim=32, attention_head_dim=8)
diffuser('unet2dcond-sdxl', 'UNet2DConditionModel', lambda: dict(sample=randn(BATCH, 4, 16, 16), timestep=longs(10),
    encoder_hidden_states=randn(BATCH, 7, 32), added_cond_kwargs=dict(text_embeds=randn(BATCH, 32), time_ids=randn(BATCH, 6))),
    **UNET, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'),
    cross_attention_dim=32, attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type='text_time',
    addition_time_embed_dim=8, projection_class_embeddings_input_dim=80, transformer_layers_per_block=(1, 2))
diffuser('unet2d-ddpm', 'UNet2DModel', lambda: dict(sample=randn(BATCH, 3, 16, 16), timestep=longs(10)), **{**UNET,
    'in_channels': 3, 'out_channels': 3}, down_block_types=('DownBlock2D', 'AttnDownBlock2D'), up_block_types=('AttnUpBlock2D',
    'UpBlock2D'), attention_head_dim=8)
diffuser('unet-spatiotemporal-svd', 'UNetSpatioTemporalConditionModel', lambda: dict(sample=randn(BATCH, 2, 4, 16, 16),
    timestep=longs(10), encoder_hidden_states=randn(BATCH, 1, 32), added_time_ids=randn(BATCH, 3)), sample_size=16,
    in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=('CrossAttnDownBlockSpatioTemporal', 'DownBlockSpatioTemporal'), up_block_types=('UpBlockSpatioTemporal',
    'CrossAttnUpBlockSpatioTemporal'), cross_attention_dim=32, num_attention_heads=8, addition_time_embed_dim=8,
    projection_class_embeddings_input_dim=24)
diffuser('controlnet', 'ControlNetModel', lambda: dict(sample=randn(BATCH, 4, 16, 16), timestep=longs(10),
    encoder_hidden_states=randn(BATCH, 7, 32), controlnet_cond=randn(BATCH, 3, 128, 128)), block_out_channels=(32, 64),
    layers_per_block=1, in_channels=4, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), cross_attention_dim=32,
    conditioning_embedding_out_channels=(8, 16, 16, 32), norm_num_groups=8, attention_head_dim=8)
diffuser('flux', 'FluxTransformer2DModel', lambda: dict(hidden_states=randn(BATCH, 16, 4), encoder_hidden_states=randn(BATCH, 8,
    32), pooled_projections=randn(BATCH, 32), timestep=torch.rand(BATCH), img_ids=randn(16, 3), txt_ids=randn(8, 3),
    guidance=torch.rand(BATCH)), patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
    num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=True)
diffuser('sd3', 'SD3Transformer2DModel', lambda: dict(hidden_states=randn(BATCH, 4, 16, 16), encoder_hidden_states=randn(BATCH,
    8, 32), pooled_projections=randn(BATCH, 64), timestep=torch.rand(BATCH)), sample_size=16, patch_size=2, in_channels=4,
    num_layers=2, attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=32,
    pooled_projection_dim=64, out_channels=4, pos_embed_max_size=16)
diffuser('autoencoder-kl', 'AutoencoderKL', lambda: dict(sample=randn(BATCH, 3, 32, 32)), in_channels=3, out_channels=3,
    down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2, block_out_channels=(16, 32),
    layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=32)
diffuser('vq-model', 'VQModel', lambda: dict(sample=randn(BATCH, 3, 32, 32)), in_channels=3, out_channels=3,
    down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2, block_out_channels=(16, 32),
    layers_per_block=1, latent_channels=4, norm_num_groups=8, num_vq_embeddings=32)
diffuser('hunyuan-dit', 'HunyuanDiT2DModel', lambda: dict(hidden_states=randn(BATCH, 4, 16, 16), timestep=torch.tensor([1.0,
    2.0]), encoder_hidden_states=randn(BATCH, 7, 32), text_embedding_mask=torch.ones(BATCH, 7),
    encoder_hidden_states_t5=randn(BATCH, 8, 48), text_embedding_mask_t5=torch.ones(BATCH, 8), image_meta_size=randn(BATCH, 6),
    style=longs([0, 0]), image_rotary_emb=(randn(64, 8), randn(64, 8))), sample_size=16, num_layers=2, patch_size=2,
    attention_head_dim=8, num_attention_heads=4, in_channels=4, cross_attention_dim=32, cross_attention_dim_t5=48,
    pooled_projection_dim=16, hidden_size=32, text_len=7, text_len_t5=8, activation_fn='gelu-approximate')
diffuser('cogvideox', 'CogVideoXTransformer3DModel', lambda: dict(hidden_states=randn(BATCH, 2, 4, 8, 8),
    encoder_hidden_states=randn(BATCH, 8, 16), timestep=longs([1, 2])), num_attention_heads=2, attention_head_dim=8,
    in_channels=4, out_channels=4, time_embed_dim=2, text_embed_dim=16, num_layers=2, sample_width=8, sample_height=8,
    sample_frames=5, patch_size=2, temporal_compression_ratio=4, max_text_seq_length=8)
diffuser('ltx-video', 'LTXVideoTransformer3DModel', lambda: dict(hidden_states=randn(BATCH, 32, 4),
    encoder_hidden_states=randn(BATCH, 8, 16), timestep=longs([1, 2]), encoder_attention_mask=torch.ones(BATCH, 8,
    dtype=torch.bool), num_frames=2, height=4, width=4), in_channels=4, out_channels=4, num_attention_heads=2,
    attention_head_dim=16, cross_attention_dim=32, num_layers=2, caption_channels=16)
diffuser('wan', 'WanTransformer3DModel', lambda: dict(hidden_states=randn(BATCH, 4, 2, 16, 16), timestep=longs([1, 2]),
    encoder_hidden_states=randn(BATCH, 8, 16)), patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12,
    in_channels=4, out_channels=4, text_dim=16, freq_dim=256, ffn_dim=32, num_layers=2, cross_attn_norm=True,
    qk_norm='rms_norm_across_heads', rope_max_seq_len=32)
diffuser('autoencoder-kl-wan', 'AutoencoderKLWan', lambda: dict(sample=randn(1, 3, 5, 16, 16)), base_dim=4, z_dim=16,
    dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True])
diffuser('lumina2', 'Lumina2Transformer2DModel', lambda: dict(hidden_states=randn(BATCH, 4, 16, 16),
    encoder_hidden_states=randn(BATCH, 8, 32), timestep=torch.rand(BATCH), encoder_attention_mask=torch.ones(BATCH, 8,
    dtype=torch.bool)), sample_size=16, patch_size=2, in_channels=4, hidden_size=24, num_layers=2, num_refiner_layers=1,
    num_attention_heads=3, num_kv_heads=1, multiple_of=2, ffn_dim_multiplier=None, scaling_factor=1.0, axes_dim_rope=(4, 2, 2),
    axes_lens=(128, 128, 128), cap_feat_dim=32)
diffuser('mochi', 'MochiTransformer3DModel', lambda: dict(hidden_states=randn(BATCH, 4, 2, 16, 16),
    encoder_hidden_states=randn(BATCH, 8, 16), timestep=longs([1, 2]), encoder_attention_mask=torch.ones(BATCH, 8,
    dtype=torch.bool)), patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
    in_channels=4, out_channels=None, qk_norm='rms_norm', text_embed_dim=16, time_embed_dim=4, activation_fn='swiglu',
    max_sequence_length=8)
diffuser('prior-transformer', 'PriorTransformer', lambda: dict(hidden_states=randn(BATCH, 8), timestep=longs(2),
    proj_embedding=randn(BATCH, 8), encoder_hidden_states=randn(BATCH, 7, 8)), num_attention_heads=2, attention_head_dim=4,
    num_layers=2, embedding_dim=8, num_embeddings=7, additional_embeddings=4)
diffuser('stable-cascade', 'StableCascadeUNet', lambda: dict(sample=randn(BATCH, 4, 8, 8), timestep_ratio=torch.rand(BATCH),
    clip_text_pooled=randn(BATCH, 1, 32)), in_channels=4, out_channels=4, patch_size=1, timestep_ratio_embedding_dim=16,
    conditioning_dim=32, block_out_channels=(32, 64), num_attention_heads=(2, 4), down_num_layers_per_block=(1, 1),
    up_num_layers_per_block=(1, 1), down_blocks_repeat_mappers=(1, 1), up_blocks_repeat_mappers=(1, 1),
    block_types_per_layer=(('SDCascadeResBlock', 'SDCascadeTimestepBlock'), ('SDCascadeResBlock', 'SDCascadeTimestepBlock',
    'SDCascadeAttnBlock')), clip_text_in_channels=None, clip_text_pooled_in_channels=32, clip_image_in_channels=None,
    clip_seq=2, switch_level=(False,))
diffuser('stable-audio-dit', 'StableAudioDiTModel', lambda: dict(hidden_states=randn(BATCH, 4, 16), timestep=torch.rand(BATCH),
    encoder_hidden_states=randn(BATCH, 8, 16), global_hidden_states=randn(BATCH, 1, 16), rotary_embedding=(randn(17, 4),
    randn(17, 4))), sample_size=16, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
    num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=16, time_proj_dim=16, global_states_input_dim=16,
    cross_attention_input_dim=16)
diffuser('consistency-decoder-unet1d', 'UNet1DModel', lambda: dict(sample=randn(BATCH, 14, 16), timestep=longs([1, 2])),
    block_out_channels=(8, 8, 16, 16), in_channels=14, out_channels=14, time_embedding_type='positional',
    use_timestep_embedding=True, out_block_type='OutConv1DBlock', flip_sin_to_cos=False, freq_shift=1.0,
    mid_block_type='MidResTemporalBlock1D', down_block_types=('DownResnetBlock1D',) * 4,
    up_block_types=('UpResnetBlock1D',) * 3, act_fn='swish', norm_num_groups=4, layers_per_block=1, extra_in_channels=0)
