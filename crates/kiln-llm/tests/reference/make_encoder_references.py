"""Makes the small encoders and images that the tests compare with: random weights, and what transformers and Pillow make of them.

    python make_encoder_references.py        (needs torch, transformers, tokenizers, pillow, numpy)

Writes tiny-bert/, tiny-vit/, tiny-deit/ (folders in Hugging Face's layout, each with an expected.json) and images/ beside itself.
"""

import json
import pathlib

import numpy
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent


def shake(model, seed):
    """Weights large enough that every part of the model shows in its output."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.3
        noise = torch.randn(parameter.shape, generator=generator) * scale
        with torch.no_grad():
            parameter.copy_(noise + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
    return model.eval()


def folder(name, model, **files):
    path = HERE / name
    path.mkdir(exist_ok=True)
    model.save_pretrained(path)
    (path / "model.safetensors").chmod(0o644)
    for file, content in files.items():
        (path / f"{file}.json").write_text(json.dumps(content, indent=None if file == "expected" else 1) + "\n")


def rounded(tensor):
    return [float(f"{x:.7g}") for x in tensor.flatten().tolist()]


def bert():
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog mat rug sits rests on is . , ! market stock fell today sun ny un ##ny ##s ##ing rest kit ##ten"
    vocabulary = {word: i for i, word in enumerate(words.split())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, pad_token_id=0,
    )
    model = shake(transformers.BertModel(config, add_pooling_layer=False), 1)
    texts = [
        "A cat sits on the mat.", "A kitten is resting on a rug!", "Sunny.", "",
        "the stock market fell today, the dog is on the mat, the cat is on the rug, the kitten sits on the dog.",
        "unknown unsunny rests",
    ]
    tokenizer.enable_truncation(config.max_position_embeddings)
    cases = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        mean = hidden.mean(0)
        cases.append({
            "text": text, "ids": ids, "hidden": rounded(hidden), "mean": rounded(mean),
            "normalized": rounded(mean / mean.norm()), "max": rounded(hidden.max(0).values),
            "mean_sqrt_len": rounded(hidden.sum(0) / len(ids) ** 0.5),
        })
    tokenizer.no_truncation()
    folder("tiny-bert", model, expected=cases)
    tokenizer.save(str(HERE / "tiny-bert/tokenizer.json"), pretty=False)


def picture(width, height):
    """Smooth and rough parts, every channel different."""
    y, x = numpy.mgrid[0:height, 0:width]
    red = 127 + 120 * numpy.sin(x * x / 40.0)
    green = 255 * ((x // 3 + y // 2) % 2)
    blue = 255.0 * y / height
    return Image.fromarray(numpy.stack([red, green, blue], -1).clip(0, 255).astype("uint8"))


def images():
    path = HERE / "images"
    path.mkdir(exist_ok=True)
    source = picture(45, 31)
    source.save(path / "rgb.png", optimize=True)
    names = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
    for kind, width, height in [
        ("bicubic", 20, 14), ("bicubic", 60, 50), ("bicubic", 45, 10), ("bicubic", 7, 31), ("bilinear", 16, 16),
        ("bilinear", 64, 33), ("lanczos", 21, 17), ("nearest", 30, 40), ("box", 13, 9), ("hamming", 22, 12),
    ]:
        source.resize((width, height), names[kind]).save(path / f"{kind}_{width}x{height}.png", optimize=True)
    small = picture(19, 13)
    alpha = Image.fromarray((numpy.arange(19 * 13) % 256).astype("uint8").reshape(13, 19))
    forms = {
        "grey": small.convert("L"), "palette": small.quantize(13), "bits": small.convert("1"),
        "rgba": Image.merge("RGBA", [*small.split(), alpha]), "grey_alpha": Image.merge("LA", [small.convert("L"), alpha]),
        "palette_4": small.quantize(4),
    }
    for name, form in forms.items():
        form.save(path / f"{name}.png")
        form.convert("RGB").save(path / f"{name}_as_rgb.png")
    deep = numpy.asarray(small.convert("L")).astype("uint16") * 257
    Image.fromarray(deep).save(path / "grey_16.png")
    small.convert("L").convert("RGB").save(path / "grey_16_as_rgb.png")
    for name, form in [("colour", small), ("light", small.convert("L"))]:
        form.save(path / f"{name}.jpg", quality=90, subsampling=0)
        Image.open(path / f"{name}.jpg").convert("RGB").save(path / f"{name}_as_rgb.png")
    small.save(path / "progressive.jpg", quality=90, subsampling=0, progressive=True)
    Image.open(path / "progressive.jpg").convert("RGB").save(path / "progressive_as_rgb.png")


def pixels(image, preprocessor):
    """What an image processor does, with Pillow alone."""
    image = image.resize((preprocessor["size"]["width"], preprocessor["size"]["height"]), preprocessor["resample"])
    if preprocessor["do_center_crop"]:
        crop = preprocessor["crop_size"]
        left, top = (image.width - crop["width"]) // 2, (image.height - crop["height"]) // 2
        image = image.crop((left, top, left + crop["width"], top + crop["height"]))
    values = numpy.asarray(image).astype("float32") / 255
    values = (values - numpy.array(preprocessor["image_mean"], "float32")) / numpy.array(preprocessor["image_std"], "float32")
    return torch.tensor(values.transpose(2, 0, 1))[None]


def vision(name, model, preprocessor, seed):
    model = shake(model, seed)
    values = pixels(Image.open(HERE / "images/rgb.png"), preprocessor)
    with torch.no_grad():
        logits = model(values).logits[0]
    expected = {"pixels": rounded(values[0, :, ::5, ::5]), "logits": rounded(logits), "probabilities": rounded(logits.softmax(-1))}
    folder(name, model, preprocessor_config=preprocessor, expected=expected)


def vit():
    labels = ["tench", "tabby cat", "espresso", "mat", "rug"]
    sizes = dict(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8,
        id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)},
    )
    common = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    half, mean, std = [0.5, 0.5, 0.5], [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    plain = {**common, "size": {"width": 32, "height": 32}, "resample": 2, "do_center_crop": False, "image_mean": half, "image_std": half}
    vision("tiny-vit", transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)), plain, 2)
    cropped = {**common, "size": {"width": 40, "height": 36}, "resample": 3, "do_center_crop": True, "crop_size": {"width": 32, "height": 32}, "image_mean": mean, "image_std": std}
    vision("tiny-deit", transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**sizes)), cropped, 3)


if __name__ == "__main__":
    torch.manual_seed(0)
    bert()
    images()
    vit()
