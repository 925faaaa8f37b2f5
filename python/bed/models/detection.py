"""Image models of transformers: detection, segmentation, depth, video."""

import torch
import transformers as T

from .registry import BATCH, config, image, register
from .vision import VIT, vision


def _perceiver():
    m = T.PerceiverForImageClassificationLearned(T.PerceiverConfig(num_latents=8, d_latents=32, d_model=64, num_blocks=1,
        num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=1, image_size=16, num_labels=5))
    return dict(model=m, kwargs=dict(inputs=torch.randn(BATCH, 3, 16, 16)))


resnet_backbone = lambda: config('resnet', embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1],
    out_features=['stage2', 'stage3', 'stage4'])
swin_backbone = lambda: config('swin', image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 4],
    window_size=2, out_features=['stage1', 'stage2', 'stage3', 'stage4'])
DETR = dict(use_timm_backbone=False, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=8, num_labels=10)


def detector(mt, cls, name=None, size=64, fam='vision-hf', extra=None, backbone=resnet_backbone, **over):
    def build():
        m = getattr(T, cls)(config(mt, backbone_config=backbone(), **over))
        k = dict(pixel_values=image(size))
        if extra:
            k.update(extra())
        return dict(model=m, kwargs=k)
    register('hf/' + (name or mt), fam, build)


resnet_last_stage = lambda: config('resnet', embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1],
    out_features=['stage4'])
detector('detr', 'DetrForObjectDetection', **DETR, backbone=resnet_last_stage)
detector('conditional_detr', 'ConditionalDetrForObjectDetection', **DETR, backbone=resnet_last_stage)
detector('deformable_detr', 'DeformableDetrForObjectDetection', **DETR, num_feature_levels=4, encoder_n_points=2,
    decoder_n_points=2)
rt_detr_backbone = lambda: config('rt_detr_resnet', embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1],
    layer_type='basic', downsample_in_first_stage=False, downsample_in_bottleneck=False, out_features=['stage2', 'stage3',
    'stage4'])
detector('rt_detr', 'RTDetrForObjectDetection', backbone=rt_detr_backbone, size=64, encoder_hidden_dim=32,
    encoder_in_channels=[32, 48, 64], encoder_ffn_dim=64, encoder_attention_heads=2, d_model=32, num_queries=8,
    decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=2, decoder_attention_heads=2, decoder_n_points=2,
    num_labels=10, num_denoising=0, anchor_image_size=None, use_timm_backbone=False)
vision('yolos', 'yolos', auto='AutoModelForObjectDetection', hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=128, image_size=[32, 32], patch_size=8, num_detection_tokens=8)
detector('mask2former', 'Mask2FormerForUniversalSegmentation', backbone=swin_backbone, size=64, feature_size=32,
    mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=64, encoder_layers=1, decoder_layers=2, num_attention_heads=2,
    dim_feedforward=64, num_queries=8, num_labels=10)
vision('dpt', 'dpt-depth', cls='DPTForDepthEstimation', hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
    intermediate_size=64, image_size=32, patch_size=8, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 32, 32],
    fusion_hidden_size=16, is_hybrid=False)
vision('glpn', 'glpn-depth', cls='GLPNForDepthEstimation', size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64],
    num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=16)
detector('depth_anything', 'DepthAnythingForDepthEstimation', size=56, backbone=lambda: config('dinov2', hidden_size=32,
    num_hidden_layers=4, num_attention_heads=4, image_size=56, patch_size=14, out_indices=[1, 2, 3, 4], apply_layernorm=True,
    reshape_hidden_states=False), patch_size=14, reassemble_hidden_size=32, neck_hidden_sizes=[16, 16, 32, 32],
    fusion_hidden_size=16, head_hidden_size=16)


def _sam():
    c = T.SamConfig(vision_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=8,
        output_channels=16, global_attn_indexes=[1], window_size=4, mlp_dim=64, num_pos_feats=8),
        prompt_encoder_config=dict(hidden_size=16, image_size=64, patch_size=8, mask_input_channels=4),
        mask_decoder_config=dict(hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2,
        iou_head_hidden_dim=16))
    return dict(model=T.SamModel(c), kwargs=dict(pixel_values=image(64), input_points=torch.rand(BATCH, 1, 2, 2) * 64,
        input_labels=torch.ones(BATCH, 1, 2, dtype=torch.long)))


register('hf/perceiver-image', 'vision-hf', _perceiver)
register('hf/sam', 'vision-hf', _sam)


def video(mt, cls, frames=4, size=32, shape='tchw', **over):
    def f():
        m = getattr(T, cls)(config(mt, **over))
        return dict(model=m, kwargs=dict(pixel_values=torch.randn(BATCH, frames, 3, size, size)))
    return f


register('hf/timesformer', 'vision-hf', video('timesformer', 'TimesformerForVideoClassification', **{**VIT, 'num_frames': 4}))


def _vitmatte():
    c = T.VitMatteConfig(backbone_config=config('vitdet', hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        image_size=64, patch_size=16, num_channels=4, window_size=2, window_block_indices=[0],
        use_relative_position_embeddings=True, out_features=['stage2']), hidden_size=32, fusion_hidden_sizes=[32, 16, 16, 8],
        convstream_hidden_sizes=[8, 16, 16])
    return dict(model=T.VitMatteForImageMatting(c), kwargs=dict(pixel_values=torch.randn(BATCH, 4, 64, 64)))


register('hf/vitmatte', 'vision-hf', _vitmatte)


def _superpoint():
    m = T.SuperPointForKeypointDetection(T.SuperPointConfig(encoder_hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=16,
        keypoint_decoder_dim=65, descriptor_decoder_dim=16))
    return dict(model=m, kwargs=dict(pixel_values=torch.randn(1, 3, 64, 64)))


register('hf/superpoint', 'vision-hf', _superpoint)
