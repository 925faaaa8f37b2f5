"""Tiny convolutional networks with random weights, and what timm and transformers make of a picture with them.
Run: python make_convnets.py (needs torch, timm, torchvision, transformers, safetensors, pillow)"""
import json
import pathlib
import shutil

import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform
from timm.models import convnext, efficientnet, mobilenetv3, regnet, resnet

HERE = pathlib.Path(__file__).parent
OUT = HERE / "convnets"
picture = Image.open(HERE / "images/rgb.png").convert("RGB")


def shaken(model, seed):
    """Statistics and gains that are not those of a new model, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        if "running_var" in name:
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        elif tensor.ndim == 1 or "gamma" in name or "grn" in name or "layer_scale" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3 + (1.0 if "weight" in name else 0.1))
        else:
            fan = max(1, tensor[0].numel())
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (1.5 / fan) ** 0.5)
    # Halved, so that files are small; both sides compute with the same numbers.
    return model.half().float().eval()


def write(name, model, config, pixels, logits, processor=None):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({key: (value.half() if value.is_floating_point() else value).contiguous().clone() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))
    expected = {"pixels": pixels[0, :, ::7, ::7].flatten().tolist(), "logits": logits.flatten().tolist()}
    (folder / "expected.json").write_text(json.dumps(expected))


def narrow(model):
    """A head of 32 channels, not 1280, so that the file is small."""
    old = model.conv_head
    model.conv_head = torch.nn.Conv2d(old.in_channels, 32, 1, bias=old.bias is not None)
    if hasattr(model, "bn2"):
        model.bn2 = type(model.bn2)(32, eps=model.bn2.eps, act_layer=type(model.bn2.act))
    model.classifier = torch.nn.Linear(32, 5)
    return model


def timm(name, architecture, model, seed, **how):
    model = shaken(model, seed)
    said = {"input_size": [3, 40, 40], "crop_pct": 0.8, "interpolation": "bicubic", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], **how}
    transform = create_transform(said["input_size"], crop_pct=said["crop_pct"], interpolation=said["interpolation"], mean=said["mean"], std=said["std"])
    pixels = transform(picture)[None]
    with torch.no_grad():
        logits = model(pixels)
    write(name, model, {"architecture": architecture, "num_classes": 5, "pretrained_cfg": said}, pixels, logits)


def hugging(name, model, processor, seed):
    model = shaken(model, seed)
    pixels = processor(picture, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        logits = model(pixel_values=pixels).logits
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    said = json.loads(processor.to_json_string())
    write(name, model, config, pixels, logits, said)


small = dict(num_classes=5)
timm("resnet18", "resnet18.a1_in1k", resnet.ResNet(resnet.BasicBlock, [1, 1, 2, 1], channels=(8, 8, 16, 16), stem_width=8, **small), 1)
timm("resnet50", "resnet50", resnet.ResNet(resnet.Bottleneck, [2, 1, 1, 1], channels=(4, 4, 8, 8), **small), 2, interpolation="bilinear", crop_pct=1.0)
timm("seresnext50", "seresnext50_32x4d",
     resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], channels=(8, 8, 16, 16), cardinality=4, base_width=32, block_args=dict(attn_layer="se"), **small), 3)
timm("regnety", "regnety_008", regnet.RegNet(regnet.RegNetCfg(depth=5, w0=8, wa=6.0, wm=1.3, group_size=4, se_ratio=0.25, stem_width=8), **small), 13)
timm("mobilenetv2", "mobilenetv2_100", narrow(efficientnet._gen_mobilenet_v2("mobilenetv2_100", 0.15, **small)), 4)
timm("mobilenetv3_large", "mobilenetv3_large_100", narrow(mobilenetv3._gen_mobilenet_v3("mobilenetv3_large_100", 0.15, **small)), 5)
timm("mobilenetv3_small", "mobilenetv3_small_100", narrow(mobilenetv3._gen_mobilenet_v3("mobilenetv3_small_100", 0.15, **small)), 6)
timm("tf_mobilenetv3_large", "tf_mobilenetv3_large_100",
     narrow(mobilenetv3._gen_mobilenet_v3("tf_mobilenetv3_large_100", 0.15, pad_type="same", bn_eps=1e-3, **small)), 7)
timm("efficientnet_b0", "efficientnet_b0.ra_in1k", narrow(efficientnet._gen_efficientnet("efficientnet_b0", 0.15, 0.4, **small)), 8)
timm("tf_efficientnet_b0", "tf_efficientnet_b0", narrow(efficientnet._gen_efficientnet("tf_efficientnet_b0", 0.15, 0.4, pad_type="same", bn_eps=1e-3, **small)), 9,
     input_size=[3, 41, 41])
timm("efficientnetv2", "efficientnetv2_s", narrow(efficientnet._gen_efficientnetv2_s("efficientnetv2_s", 0.1, 0.2, **small)), 10)
timm("convnext", "convnext_tiny", convnext.ConvNeXt(depths=(1, 2, 1, 1), dims=(8, 12, 16, 20), **small), 11)
timm("convnextv2", "convnextv2_atto",
     convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 12, 16, 20), use_grn=True, ls_init_value=None, conv_mlp=True, **small), 12)

t = transformers
size = {"size": {"shortest_edge": 40}}
hugging("hf_resnet", t.ResNetForImageClassification(t.ResNetConfig(embedding_size=8, hidden_sizes=[16, 16, 24, 32], depths=[1, 2, 1, 1], num_labels=5)),
        t.ConvNextImageProcessorPil(**size, crop_pct=0.875), 21)
hugging("hf_resnet_basic", t.ResNetForImageClassification(t.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", downsample_in_first_stage=True, num_labels=5)), t.ConvNextImageProcessorPil(**size), 22)
hugging("hf_mobilenet_v2", t.MobileNetV2ForImageClassification(t.MobileNetV2Config(depth_multiplier=0.25, image_size=40, num_labels=5, finegrained_output=False)),
        t.MobileNetV2ImageProcessorPil(size={"shortest_edge": 48}, crop_size={"height": 40, "width": 40}), 23)
hugging("hf_efficientnet", t.EfficientNetForImageClassification(t.EfficientNetConfig(
    width_coefficient=0.15, depth_coefficient=0.4, hidden_dim=192, image_size=40, depthwise_padding=[2], num_labels=5)),
        t.EfficientNetImageProcessorPil(size={"height": 40, "width": 40}, resample=3), 24)
hugging("hf_convnext", t.ConvNextForImageClassification(t.ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 2, 1], image_size=40, num_labels=5)),
        t.ConvNextImageProcessorPil(**size, crop_pct=0.8), 25)
hugging("hf_convnextv2", t.ConvNextV2ForImageClassification(t.ConvNextV2Config(hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], image_size=40, num_labels=5)),
        t.ConvNextImageProcessorPil(size={"shortest_edge": 384}), 26)
