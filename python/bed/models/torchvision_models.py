"""Models of torchvision."""

import torch

from .registry import BATCH, register


def classifier(name, size=64, **kw):
    def f():
        import torchvision
        model = getattr(torchvision.models, name)(weights=None, **kw)
        return dict(model=model, args=(torch.randn(BATCH, 3, size, size),), loss='ce')
    register('tv/' + name, 'torchvision', f)


for n in ['vgg11', 'resnet18', 'densenet121', 'mobilenet_v3_small', 'mnasnet0_5', 'shufflenet_v2_x0_5', 'efficientnet_v2_s',
    'regnet_y_400mf', 'convnext_tiny', 'wide_resnet50_2']:
    classifier(n)
classifier('inception_v3', 128, init_weights=False)
classifier('vit_b_16', 224)
classifier('swin_t', 64)
classifier('swin_v2_t', 64)
classifier('maxvit_t', 224)


def segmenter(name):
    def f():
        import torchvision
        return dict(model=getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None),
            args=(torch.randn(BATCH, 3, 64, 64),))
    register('tv/' + name, 'torchvision', f)


for n in ['fcn_resnet50', 'deeplabv3_mobilenet_v3_large']:
    segmenter(n)


def video_classifier(name, t=8, s=64):
    def f():
        import torchvision
        return dict(model=getattr(torchvision.models.video, name)(weights=None), args=(torch.randn(1, 3, t, s, s),))
    register('tv/' + name, 'torchvision', f)


video_classifier('r3d_18')
video_classifier('r2plus1d_18')


def box_detector(name, size=128):
    def f():
        import torchvision
        m = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=5)
        return dict(model=m, args=([torch.rand(3, size, size)],))
    register('tv/' + name, 'torchvision', f)


for n in ['retinanet_resnet50_fpn', 'fcos_resnet50_fpn']:
    box_detector(n)


def _raft():
    import torchvision
    m = torchvision.models.optical_flow.raft_small(weights=None)
    return dict(model=m, args=(torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), kwargs=dict(num_flow_updates=2))


register('tv/raft_small', 'torchvision', _raft)
