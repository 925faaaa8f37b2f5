"""The denoiser of Stable Diffusion 1.5 in plain PyTorch, for machines without diffusers: the same modules under the same names, so that
weights of ``diffusers.UNet2DConditionModel`` load into it and give the same results (a test compares them where diffusers is)."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ResnetBlock(nn.Module):
    def __init__(self, channels_in, channels_out, time_channels):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, channels_in, eps=1e-5)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.time_emb_proj = nn.Linear(time_channels, channels_out)
        self.norm2 = nn.GroupNorm(32, channels_out, eps=1e-5)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else None

    def forward(self, hidden, time):
        inner = self.conv1(F.silu(self.norm1(hidden)))
        inner = inner + self.time_emb_proj(F.silu(time))[:, :, None, None]
        inner = self.conv2(F.silu(self.norm2(inner)))
        return inner + (hidden if self.conv_shortcut is None else self.conv_shortcut(hidden))


class Attention(nn.Module):
    def __init__(self, channels, heads, context_channels=None):
        super().__init__()
        self.heads = heads
        context_channels = context_channels or channels
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context_channels, channels, bias=False)
        self.to_v = nn.Linear(context_channels, channels, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, hidden, context=None):
        context = hidden if context is None else context

        def split(values):
            return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        found = F.scaled_dot_product_attention(split(self.to_q(hidden)), split(self.to_k(context)), split(self.to_v(context)))
        return self.to_out[0](found.transpose(1, 2).flatten(2))


class GatedGelu(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.proj = nn.Linear(channels, 2 * inner)

    def forward(self, hidden):
        value, gate = self.proj(hidden).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.ModuleList([GatedGelu(channels, 4 * channels), nn.Identity(), nn.Linear(4 * channels, channels)])

    def forward(self, hidden):
        for part in self.net:
            hidden = part(hidden)
        return hidden


class TransformerBlock(nn.Module):
    def __init__(self, channels, heads, context_channels):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn1 = Attention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        self.attn2 = Attention(channels, heads, context_channels)
        self.norm3 = nn.LayerNorm(channels)
        self.ff = FeedForward(channels)

    def forward(self, hidden, context):
        hidden = self.attn1(self.norm1(hidden)) + hidden
        hidden = self.attn2(self.norm2(hidden), context) + hidden
        return self.ff(self.norm3(hidden)) + hidden


class Transformer(nn.Module):
    def __init__(self, channels, heads, context_channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(channels, heads, context_channels)])
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, hidden, context):
        batch, channels, height, width = hidden.shape
        inner = self.proj_in(self.norm(hidden))
        inner = inner.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        for block in self.transformer_blocks:
            inner = block(inner, context)
        inner = inner.reshape(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()
        return self.proj_out(inner) + hidden


class Downsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, hidden):
        return self.conv(hidden)


class Upsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden):
        return self.conv(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))


class Block(nn.Module):
    """Residual blocks with an attention after each, where there are any."""

    def __init__(self, sizes, time_channels, attention=None):
        super().__init__()
        self.resnets = nn.ModuleList([ResnetBlock(first, last, time_channels) for first, last in sizes])
        if attention is not None:
            self.attentions = nn.ModuleList([Transformer(last, *attention) for _, last in sizes])

    def layer(self, number, hidden, time, context):
        hidden = self.resnets[number](hidden, time)
        return self.attentions[number](hidden, context) if hasattr(self, "attentions") else hidden


class DownBlock(Block):
    def __init__(self, channels_in, channels_out, time_channels, attention, is_last, layers):
        super().__init__([(channels_in if number == 0 else channels_out, channels_out) for number in range(layers)], time_channels, attention)
        self.downsamplers = None if is_last else nn.ModuleList([Downsample(channels_out)])

    def forward(self, hidden, time, context):
        kept = []
        for number in range(len(self.resnets)):
            hidden = self.layer(number, hidden, time, context)
            kept.append(hidden)
        if self.downsamplers is not None:
            hidden = self.downsamplers[0](hidden)
            kept.append(hidden)
        return hidden, kept


class UpBlock(Block):
    def __init__(self, channels_in, before, channels_out, time_channels, attention, is_last, layers):
        sizes = []
        for number in range(layers):
            skipped = channels_in if number == layers - 1 else channels_out
            sizes.append(((before if number == 0 else channels_out) + skipped, channels_out))
        super().__init__(sizes, time_channels, attention)
        self.upsamplers = None if is_last else nn.ModuleList([Upsample(channels_out)])

    def forward(self, hidden, kept, time, context):
        for number in range(len(self.resnets)):
            hidden = self.layer(number, torch.cat([hidden, kept.pop()], dim=1), time, context)
        return hidden if self.upsamplers is None else self.upsamplers[0](hidden)


class MiddleBlock(nn.Module):
    def __init__(self, channels, time_channels, attention):
        super().__init__()
        self.attentions = nn.ModuleList([Transformer(channels, *attention)])
        self.resnets = nn.ModuleList([ResnetBlock(channels, channels, time_channels) for _ in range(2)])

    def forward(self, hidden, time, context):
        hidden = self.attentions[0](self.resnets[0](hidden, time), context)
        return self.resnets[1](hidden, time)


class TimeEmbedding(nn.Module):
    def __init__(self, channels, time_channels):
        super().__init__()
        self.linear_1 = nn.Linear(channels, time_channels)
        self.linear_2 = nn.Linear(time_channels, time_channels)

    def forward(self, waves):
        return self.linear_2(F.silu(self.linear_1(waves)))


def waves(timestep, channels):
    """Cosines and sines of a time, at frequencies from 1 to 1/10000."""
    half = channels // 2
    frequencies = torch.exp(-math.log(10000.0) / half * torch.arange(half, dtype=torch.float32, device=timestep.device))
    angles = timestep[:, None].float() * frequencies[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class UNet(nn.Module):
    """``UNet2DConditionModel`` with the configuration of Stable Diffusion 1.5: attention at all levels but the innermost."""

    def __init__(self, block_out_channels=(320, 640, 1280, 1280), cross_attention_dim=768, heads=8, layers=2):
        super().__init__()
        channels, count = list(block_out_channels), len(block_out_channels)
        time_channels = 4 * channels[0]
        attention = (heads, cross_attention_dim)
        self.channels = channels[0]
        self.conv_in = nn.Conv2d(4, channels[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(channels[0], time_channels)
        self.down_blocks = nn.ModuleList()
        for number, out in enumerate(channels):
            is_last = number == count - 1
            before = channels[max(number - 1, 0)]
            self.down_blocks.append(DownBlock(before, out, time_channels, None if is_last else attention, is_last, layers))
        self.mid_block = MiddleBlock(channels[-1], time_channels, attention)
        self.up_blocks = nn.ModuleList()
        for number, out in enumerate(reversed(channels)):
            place = count - 1 - number
            before, skipped = channels[min(place + 1, count - 1)], channels[max(place - 1, 0)]
            self.up_blocks.append(UpBlock(skipped, before, out, time_channels, None if number == 0 else attention, place == 0, layers + 1))
        self.conv_norm_out = nn.GroupNorm(32, channels[0], eps=1e-5)
        self.conv_out = nn.Conv2d(channels[0], 4, 3, padding=1)

    def forward(self, sample, timestep, encoder_hidden_states):
        """The noise of images, as a tuple of one tensor."""
        time = self.time_embedding(waves(timestep, self.channels).to(sample.dtype))
        hidden = self.conv_in(sample)
        kept = [hidden]
        for block in self.down_blocks:
            hidden, more = block(hidden, time, encoder_hidden_states)
            kept += more
        hidden = self.mid_block(hidden, time, encoder_hidden_states)
        for block in self.up_blocks:
            hidden = block(hidden, kept, time, encoder_hidden_states)
        return (self.conv_out(F.silu(self.conv_norm_out(hidden))),)
