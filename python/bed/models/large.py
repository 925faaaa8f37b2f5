"""Models large enough for their times to mean something: tens of milliseconds a call on one core. Built from configurations with random
weights; ``zoo --large`` runs them."""

import torch

from .registry import LARGE, config, padding_mask, register, token_ids

ROWS, LENGTH, WORDS, PIXELS = 2, 128, 8192, 224
TEXT = dict(vocab_size=WORDS, hidden_size=384, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=6, max_position_embeddings=512,
    pad_token_id=0)
IMAGE = dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=6, image_size=PIXELS, patch_size=16)


def _register(name, family, build):
    register("large/" + name, family, build, LARGE)


def text(kind, auto, family, masked=False, rows=ROWS, length=LENGTH, **other):
    """A text model of transformers; ``masked``: with rows of several lengths."""

    def build():
        import transformers

        values = {key: value for key, value in {**TEXT, **other}.items() if value is not None}
        model = getattr(transformers, auto).from_config(config(kind, **values))
        given = dict(input_ids=token_ids(rows, length, WORDS))
        if masked:
            given["attention_mask"] = padding_mask(rows, length, left=False)
        if "Seq2Seq" in auto:
            given["decoder_input_ids"] = token_ids(rows, length // 2, WORDS)
        labels = given.get("decoder_input_ids", given["input_ids"]).clone()
        return dict(model=model, kwargs=given, train_kwargs={**given, "labels": labels})

    _register(kind, family, build)


for kind in ("bert", "electra", "albert", "mobilebert", "modernbert", "deberta-v2", "convbert"):
    of_kind = {
        "electra": dict(embedding_size=384),
        "albert": dict(embedding_size=128),
        "mobilebert": dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, embedding_size=128),
        "deberta-v2": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=32, type_vocab_size=0),
    }
    text(kind, "AutoModelForMaskedLM", "encoder", masked=kind == "bert", **of_kind.get(kind, {}))
for kind in ("llama", "qwen3", "gemma3_text", "mistral", "phi3", "gpt_neox", "opt", "bloom", "gpt2", "mamba"):
    of_kind = {
        "qwen3": dict(num_key_value_heads=2, head_dim=64),
        "gemma3_text": dict(num_key_value_heads=2, head_dim=64, sliding_window=64),
        "mistral": dict(num_key_value_heads=2, head_dim=64, sliding_window=None),
        "phi3": dict(num_key_value_heads=2),
        "opt": dict(ffn_dim=1536, word_embed_proj_dim=384),
        "bloom": dict(n_layer=4, n_head=6),
        "gpt2": dict(n_embd=384, n_layer=4, n_head=6, n_positions=512),
        "mamba": dict(num_hidden_layers=2, state_size=8, intermediate_size=None, num_attention_heads=None),
    }
    text(kind, "AutoModelForCausalLM", "decoder-lm", length=32 if kind == "mamba" else LENGTH, **of_kind.get(kind, {}))
text("t5", "AutoModelForSeq2SeqLM", "seq2seq", d_model=384, d_ff=1536, num_layers=3, num_heads=6, d_kv=64)
text("bart", "AutoModelForSeq2SeqLM", "seq2seq", d_model=384, encoder_layers=3, decoder_layers=3, encoder_attention_heads=6,
    decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)


def image(kind, auto="AutoModelForImageClassification", rows=1, **values):
    """An image model of transformers."""

    def build():
        import transformers

        model = getattr(transformers, auto).from_config(config(kind, **values))
        return dict(model=model, kwargs=dict(pixel_values=torch.randn(rows, 3, PIXELS, PIXELS)), loss="ce")

    _register(kind, "vision", build)


image("vit", rows=2, **IMAGE)
image("dinov2", rows=1, **{**IMAGE, "patch_size": 14})
image("segformer", "AutoModelForSemanticSegmentation", rows=1)
image("convnextv2")


def _whisper():
    import transformers

    settings = transformers.WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=2, encoder_attention_heads=6, encoder_ffn_dim=1536,
        max_source_positions=300)
    return dict(model=transformers.models.whisper.modeling_whisper.WhisperEncoder(settings), kwargs=dict(input_features=torch.randn(2, 80, 600)))


def _wav2vec2():
    import transformers

    settings = transformers.Wav2Vec2Config(hidden_size=384, num_hidden_layers=3, num_attention_heads=6, intermediate_size=1536,
        conv_dim=(256,) * 7, mask_time_prob=0.0)
    return dict(model=transformers.Wav2Vec2Model(settings), kwargs=dict(input_values=torch.randn(1, 16000)))


def _clip():
    import transformers

    settings = transformers.CLIPConfig(text_config=dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=4),
        vision_config=dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=3, num_attention_heads=6))
    given = dict(input_ids=token_ids(2, 64, 8192), pixel_values=torch.randn(2, 3, PIXELS, PIXELS))
    return dict(model=transformers.CLIPModel(settings), kwargs=given)


_register("whisper-encoder", "audio", _whisper)
_register("wav2vec2", "audio", _wav2vec2)
_register("clip", "multimodal", _clip)


def of_timm(name, rows=2, **values):
    """An image model of timm at its own size."""

    def build():
        import timm

        model = timm.create_model(name, pretrained=False, **values)
        return dict(model=model, args=(torch.randn(rows, *model.pretrained_cfg["input_size"]),), loss="ce")

    _register(name, "timm", build)


for name in ("resnet18", "resnet50", "efficientnet_b0", "mobilenetv3_large_100", "regnety_002", "convnext_atto", "densenet121",
    "mixer_s32_224", "swin_tiny_patch4_window7_224", "repvgg_a0", "poolformer_s12"):
    of_timm(name)


def _denoiser():
    import diffusers

    model = diffusers.UNet2DConditionModel(sample_size=32, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=256,
        attention_head_dim=8)
    given = dict(sample=torch.randn(2, 4, 32, 32), timestep=torch.tensor(10), encoder_hidden_states=torch.randn(2, 77, 256))
    return dict(model=model, kwargs=given, loss="mse")


def _autoencoder():
    import diffusers

    model = diffusers.AutoencoderKL(in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
    return dict(model=model, kwargs=dict(sample=torch.randn(1, 3, 64, 64)), loss="mse")


_register("unet2d-condition", "diffusers", _denoiser)
_register("autoencoder-kl", "diffusers", _autoencoder)
