"""Image models of timm."""

import torch

from .registry import BATCH, register

TWO_LAYERS = dict(depth=2)
SHRINK = {n: TWO_LAYERS for n in ['vit_tiny_patch16_224', 'vit_base_patch16_siglip_224', 'vit_small_patch16_dinov3',
    'deit_tiny_distilled_patch16_224', 'deit3_small_patch16_224', 'cait_xxs24_224', 'beit_base_patch16_224',
    'beitv2_base_patch16_224', 'eva02_tiny_patch14_224', 'flexivit_small', 'vit_relpos_small_patch16_224',
    'vit_small_r26_s32_224', 'xcit_nano_12_p16_224', 'convit_tiny', 'tnt_s_legacy_patch16_224']}
SHRINK.update({'samvit_base_patch16': dict(depth=3), 'naflexvit_base_patch16_gap': dict(depth=2)})


def timm_model(name, size=None):
    def f():
        import timm
        model = timm.create_model(name, pretrained=False, **SHRINK.get(name, {}))
        pixels = size or model.pretrained_cfg.get('input_size', (3, 224, 224))[-1]
        return dict(model=model, args=(torch.randn(BATCH, 3, pixels, pixels),), loss='ce')
    register('timm/' + name, 'timm', f)


for n in ['resnet50', 'resnext50_32x4d', 'seresnet18', 'res2net50_26w_4s', 'skresnet18', 'ecaresnet26t', 'densenet121',
    'inception_v3', 'inception_v4', 'inception_resnet_v2', 'dla34', 'dpn68', 'hrnet_w18_small', 'efficientnet_b0',
    'efficientnetv2_rw_t', 'tf_efficientnet_b0', 'mixnet_s', 'mobilenetv4_conv_small', 'mobilenetv4_hybrid_medium',
    'mnasnet_100', 'ghostnet_100', 'ghostnetv2_100', 'lcnet_050', 'tinynet_e', 'regnety_002', 'repvgg_a0', 'mobileone_s0',
    'cspresnet50', 'cspdarknet53', 'ese_vovnet19b_dw', 'selecsls42', 'nf_regnet_b0', 'dm_nfnet_f0', 'nf_resnet50',
    'convnext_atto', 'convmixer_768_32', 'resnetv2_50x1_bit', 'starnet_s1', 'test_byobnet']:
    timm_model(n, size=128 if n not in ('inception_v3', 'inception_v4', 'inception_resnet_v2', 'pnasnet5large') else 160)
for n in ['vit_tiny_patch16_224', 'vit_base_patch16_siglip_224', 'vit_small_patch16_dinov3', 'deit3_small_patch16_224',
    'cait_xxs24_224', 'beit_base_patch16_224', 'beitv2_base_patch16_224', 'flexivit_small', 'swin_tiny_patch4_window7_224',
    'gmlp_ti16_224', 'coat_lite_tiny', 'volo_d1_224', 'maxvit_tiny_tf_224', 'maxvit_nano_rw_256', 'crossvit_tiny_240',
    'pit_ti_224', 'tnt_s_legacy_patch16_224', 'twins_svt_small', 'twins_pcpvt_small', 'visformer_tiny', 'xcit_nano_12_p16_224',
    'levit_128s', 'convit_tiny', 'edgenext_xx_small', 'mobilevitv2_050', 'efficientformer_l1', 'efficientformerv2_s0',
    'poolformer_s12', 'poolformerv2_s12', 'convformer_s18', 'gcvit_xxtiny', 'mvitv2_tiny', 'pvt_v2_b0', 'focalnet_tiny_srf',
    'fastvit_t8', 'repvit_m0_9', 'tiny_vit_5m_224', 'efficientvit_m0', 'halonet26t', 'botnet26t_256', 'eca_halonext26ts',
    'shvit_s1', 'naflexvit_base_patch16_gap']:
    timm_model(n)
timm_model('samvit_base_patch16', 128)
