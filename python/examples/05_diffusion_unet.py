"""Denoising with a diffusion U-Net of diffusers: the network is compiled, the scheduler's loop around it is plain Python."""

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from side_by_side import side_by_side

import kiln

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=32, attention_head_dim=8,
).eval()
fast = torch.compile(unet, backend="kiln")

noise, prompt = torch.randn(1, 4, 16, 16), torch.randn(1, 7, 32)


@torch.no_grad()
def denoise(network, steps=4):
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(steps)
    latents = noise
    for step in scheduler.timesteps:
        predicted = network(latents, step, encoder_hidden_states=prompt).sample
        latents = scheduler.step(predicted, step, latents).prev_sample
    return latents


torch.testing.assert_close(denoise(fast), denoise(unet), rtol=1e-3, atol=1e-3)
side_by_side(lambda: denoise(unet), lambda: denoise(fast), rounds=5)
print(kiln.report())
