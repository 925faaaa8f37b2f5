"""Image models of transformers: classifiers."""

import torch
import transformers as T

from .registry import BATCH, config, image, register

VIT = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
    num_labels=10)


def vision(mt, name=None, auto='AutoModelForImageClassification', size=32, extra=None, cls=None, fam='vision-hf', **over):
    def build():
        c = config(mt, **over)
        m = getattr(T, cls)(c) if cls else getattr(T, auto).from_config(c)
        k = dict(pixel_values=image(size))
        if extra:
            k.update(extra())
        return dict(model=m, kwargs=k, train_kwargs={**k, 'labels': torch.randint(0, 10, (BATCH,))})
    register('hf/' + (name or mt), fam, build)


vision('vit', **VIT)
vision('deit', cls='DeiTForImageClassification', **VIT)
vision('dinov2_with_registers', **VIT)
vision('vit_msn', **VIT)
vision('ijepa', **VIT)
vision('dinov3_vit', auto='AutoModel', **VIT)
vision('dinov3_convnext', auto='AutoModel', hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])
vision('vit_mae', auto='AutoModelForPreTraining', **VIT, decoder_hidden_size=32, decoder_num_hidden_layers=1,
    decoder_num_attention_heads=2, decoder_intermediate_size=64)
SWIN = dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10)
vision('swin', **SWIN)
vision('swinv2', **SWIN)
vision('donut-swin', **SWIN)
vision('swin2sr', auto='AutoModelForImageToImage', image_size=32, patch_size=1, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
    window_size=4, upscale=2)
CONVNEXT = dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10)
vision('convnext', **CONVNEXT, size=64)
vision('convnextv2', **CONVNEXT, size=64)
vision('resnet', embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10, layer_type='bottleneck',
    size=64)
vision('regnet', embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], groups_width=8, num_labels=10, size=64)
vision('mobilenet_v1', num_labels=10, depth_multiplier=0.25, size=64)
vision('mobilenet_v2', num_labels=10, depth_multiplier=0.25, size=64)
vision('mobilevit', num_labels=10, image_size=64, hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 128],
    size=64)
vision('mobilevitv2', num_labels=10, image_size=64, width_multiplier=0.5, size=64)
vision('efficientnet', num_labels=10, image_size=64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, size=64)
vision('levit', cls='LevitForImageClassification', image_size=64, hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4],
    depths=[1, 1, 1], key_dim=[8, 8, 8], num_labels=10, size=64)
vision('cvt', embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 2, 3], num_labels=10, size=64)
vision('poolformer', depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], num_labels=10, size=64)
vision('pvt', image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], num_attention_heads=[1, 2, 3, 4],
    num_labels=10, size=64)
vision('pvt_v2', image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], num_attention_heads=[1, 2, 3, 4],
    num_labels=10, size=64)
vision('textnet', num_labels=10, size=64)
vision('hgnet_v2', num_labels=10, size=64)
