"""Models of text and images of transformers."""

import torch
import transformers as T

from .registry import BATCH, TOKENS, VOCABULARY, config, image, padding_mask, register, token_ids
from .vision import VIT


def _layoutlmv3():
    m = T.LayoutLMv3ForTokenClassification(T.LayoutLMv3Config(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, max_position_embeddings=64, coordinate_size=8, shape_size=16,
        input_size=32, patch_size=8, max_2d_position_embeddings=128, num_labels=3, has_relative_attention_bias=True,
        has_spatial_attention_bias=True))
    corner = torch.randint(0, 50, (BATCH, TOKENS, 2))
    bbox = torch.cat([corner, corner + 20], -1)
    return dict(model=m, kwargs=dict(input_ids=token_ids(), bbox=bbox, attention_mask=padding_mask(left=False),
        pixel_values=torch.randn(BATCH, 3, 32, 32)))


def _clip(cls='CLIP', tcfg=None, vcfg=None, s=TOKENS, **k):
    def f():
        tc = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32, eos_token_id=2, bos_token_id=1, pad_token_id=0, projection_dim=32)
        vc = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8,
            projection_dim=32)
        c = getattr(T, cls + 'Config')(text_config={**tc, **(tcfg or {})}, vision_config={**vc, **(vcfg or {})}, **k)
        i = token_ids(s=s)
        i[:, -1] = 2
        kk = dict(input_ids=i, pixel_values=image(), attention_mask=torch.ones(BATCH, s, dtype=torch.long))
        return dict(model=getattr(T, cls + 'Model')(c), kwargs=kk, train_kwargs={**kk, 'return_loss': True})
    return f


register('hf/layoutlmv3', 'multimodal', _layoutlmv3)
register('hf/clip', 'multimodal', _clip(projection_dim=32))
register('hf/siglip', 'multimodal', _clip('Siglip'))
register('hf/chinese_clip', 'multimodal', _clip('ChineseCLIP', projection_dim=32))
register('hf/blip-itm', 'multimodal', _clip('Blip', projection_dim=32))
register('hf/altclip', 'multimodal', _clip('AltCLIP', projection_dim=32, tcfg=dict(project_dim=32, max_position_embeddings=64)))
register('hf/groupvit', 'multimodal', _clip('GroupViT', projection_dim=32, projection_intermediate_dim=64, vcfg=dict(depths=[1,
    1, 1], num_group_tokens=[8, 4, 0], num_output_groups=[8, 4, 4])))


def _siglip2():
    c = T.Siglip2Config(text_config=dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32), vision_config=dict(hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2, num_patches=16, patch_size=8))
    return dict(model=T.Siglip2Model(c), kwargs=dict(input_ids=token_ids(), pixel_values=torch.randn(BATCH, 16, 192),
        pixel_attention_mask=torch.ones(BATCH, 16, dtype=torch.long), spatial_shapes=torch.tensor([[4, 4]] * BATCH)))


register('hf/siglip2', 'multimodal', _siglip2)


def _vilt():
    m = T.ViltForQuestionAnswering(T.ViltConfig(**{**VIT, 'vocab_size': VOCABULARY, 'max_position_embeddings': 32,
        'num_labels': 10, 'image_size': 32}))
    return dict(model=m, kwargs=dict(input_ids=token_ids(), attention_mask=padding_mask(left=False),
        token_type_ids=torch.zeros(BATCH, TOKENS, dtype=torch.long), pixel_values=image(), pixel_mask=torch.ones(BATCH, 32, 32,
        dtype=torch.long)))


register('hf/vilt', 'multimodal', _vilt)
TEXT = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
IMAGE_TOKEN = 500


def ids_with_image(n, s=8, b=BATCH, tok=IMAGE_TOKEN):
    i = token_ids(b, s + n, 400)
    i[:, 2:2 + n] = tok
    return i


def _paligemma():
    c = T.PaliGemmaConfig(vision_config=config('siglip_vision_model', hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, image_size=32, patch_size=8, vision_use_head=False), text_config=config('gemma', **{**TEXT,
        'head_dim': 16}), image_token_index=IMAGE_TOKEN, projection_dim=64)
    i = ids_with_image(16)
    return dict(model=T.PaliGemmaForConditionalGeneration(c), kwargs=dict(input_ids=i, attention_mask=torch.ones_like(i),
        token_type_ids=torch.zeros_like(i), pixel_values=image()))


register('hf/paligemma', 'multimodal', _paligemma)


def _qwen_vl(which):
    def f():
        tc = {**TEXT, 'rope_parameters': dict(rope_type='default', rope_theta=10000.0, mrope_section=[2, 3, 3])}
        if which == 'Qwen2VL':
            vc = dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=4, spatial_merge_size=2,
                temporal_patch_size=2, in_channels=3)
        elif which == 'Qwen2_5_VL':
            vc = dict(depth=2, hidden_size=32, intermediate_size=64, out_hidden_size=64, num_heads=2, patch_size=4,
                spatial_merge_size=2, temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1], in_channels=3)
        else:
            tc['head_dim'] = 16
            vc = dict(depth=2, hidden_size=32, intermediate_size=64, out_hidden_size=64, num_heads=2, patch_size=4,
                spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=64, deepstack_visual_indexes=[0],
                in_channels=3)
        c = getattr(T, which + 'Config')(text_config=tc, vision_config=vc, image_token_id=IMAGE_TOKEN, video_token_id=501,
            vision_start_token_id=502, vision_end_token_id=503)
        i = ids_with_image(16, b=1)
        i[:, 1] = 502
        k = dict(input_ids=i, attention_mask=torch.ones_like(i), pixel_values=torch.randn(64, 3 * 2 * 16),
            image_grid_thw=torch.tensor([[1, 8, 8]]))
        import inspect
        m = getattr(T, which + 'ForConditionalGeneration')(c)
        if 'mm_token_type_ids' in inspect.signature(m.forward).parameters:
            k['mm_token_type_ids'] = (i == IMAGE_TOKEN).long()
        return dict(model=m, kwargs=k)
    return f


register('hf/qwen2_5_vl', 'multimodal', _qwen_vl('Qwen2_5_VL'))


def _idefics3():
    c = T.Idefics3Config(vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=32, patch_size=8), text_config=config('llama', **TEXT), image_token_id=IMAGE_TOKEN, scale_factor=2)
    i = ids_with_image(4)
    return dict(model=T.Idefics3ForConditionalGeneration(c), kwargs=dict(input_ids=i, attention_mask=torch.ones_like(i),
        pixel_values=torch.randn(BATCH, 1, 3, 32, 32)))


register('hf/idefics3', 'multimodal', _idefics3)


def _gemma3mm():
    c = T.Gemma3Config(vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=32, patch_size=8, vision_use_head=False), text_config=dict(**TEXT, head_dim=16, sliding_window=8,
        layer_types=['sliding_attention', 'full_attention']), image_token_index=IMAGE_TOKEN, mm_tokens_per_image=4)
    i = ids_with_image(4)
    return dict(model=T.Gemma3ForConditionalGeneration(c), kwargs=dict(input_ids=i, attention_mask=torch.ones_like(i),
        token_type_ids=(i == IMAGE_TOKEN).long(), pixel_values=image()))


register('hf/gemma3-mm', 'multimodal', _gemma3mm)


def _blip2():
    c = T.Blip2Config(vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=32, patch_size=8), qformer_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, encoder_hidden_size=32, vocab_size=VOCABULARY, max_position_embeddings=64),
        text_config=config('opt', vocab_size=VOCABULARY, hidden_size=64, ffn_dim=128, num_hidden_layers=2,
        num_attention_heads=4, word_embed_proj_dim=64, max_position_embeddings=128, pad_token_id=0), num_query_tokens=4,
        image_token_index=IMAGE_TOKEN, image_text_hidden_size=16)
    i = ids_with_image(4)
    return dict(model=T.Blip2ForConditionalGeneration(c), kwargs=dict(pixel_values=image(), input_ids=i,
        attention_mask=torch.ones_like(i)))


register('hf/blip-2', 'multimodal', _blip2)


def _git():
    m = T.GitForCausalLM(T.GitConfig(vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, image_size=32, patch_size=8), vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
        pad_token_id=0))
    return dict(model=m, kwargs=dict(input_ids=token_ids(), attention_mask=padding_mask(left=False), pixel_values=image()))


register('hf/git', 'multimodal', _git)


def _trocr():
    c = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(config('vit', **VIT), config('trocr', vocab_size=VOCABULARY,
        d_model=64, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=128, max_position_embeddings=64,
        cross_attention_hidden_size=64, is_decoder=True, add_cross_attention=True))
    return dict(model=T.VisionEncoderDecoderModel(c), kwargs=dict(pixel_values=image(), decoder_input_ids=token_ids()))


register('hf/trocr', 'multimodal', _trocr)
