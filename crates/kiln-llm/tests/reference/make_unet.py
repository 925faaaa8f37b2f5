"""A tiny U-Net of Stable Diffusion 1.5's shape with random weights, what diffusers makes of a noisy picture with it, and DDIM's steps.
Run: python make_unet.py (needs torch, diffusers, safetensors)"""
import json
import pathlib

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parent / "tiny-unet"
OUT.mkdir(exist_ok=True)
torch.manual_seed(17)
model = UNet2DConditionModel(in_channels=4, out_channels=4, block_out_channels=(8, 16, 16, 16), layers_per_block=1, attention_head_dim=2,
                             cross_attention_dim=12, norm_num_groups=4).half().float().eval()
x, times, text = torch.randn(2, 4, 16, 16), torch.tensor([981.0, 3.0]), torch.randn(2, 5, 12)
with torch.no_grad():
    noise = model(x, times, text).sample
scheduler = DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=True, steps_offset=1)
scheduler.set_timesteps(20)
stepped = scheduler.step(noise[:1], int(scheduler.timesteps[3]), x[:1]).prev_sample
save_file({key: value.half().contiguous() for key, value in model.state_dict().items()}, OUT / "model.safetensors")
save_file({"x": x, "times": times, "text": text, "noise": noise, "stepped": stepped}, OUT / "expected.safetensors")
(OUT / "expected.json").write_text(json.dumps({"timesteps": scheduler.timesteps.tolist()}))
