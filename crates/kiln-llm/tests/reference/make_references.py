"""Small random models of each architecture with what transformers makes of them.

    python make_references.py [NAME…]        # torch and transformers 5.17; writes the folders architectures/*

Each folder is one as `save_pretrained` writes it (config.json and model.safetensors, weights in f16), with
`expected.safetensors` (logits of the prompts in f32) and `expected.json` (prompts and their greedy continuations).

Weights are large enough that scores spread, so that a wrong angle, mask or scale shows. The script checks that: every case
names changes of its configuration that have to move the logits, and runs the same weights with them.
"""

import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

VOCABULARY = 96
LENGTHS = (3, 9, 21)
NEW = 12
HERE = pathlib.Path(__file__).parent / "architectures"
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=None,
)


def rope(kind="default", theta=100.0, **more):
    """A small base, so that every pair of a head turns visibly within a few tokens."""
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


LLAMA3 = dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_position_embeddings=16)
YARN = dict(factor=4.0, beta_fast=2.0, beta_slow=0.5, original_max_position_embeddings=48)
LONG = dict(short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.5, 2.0, 4.0, 9.0], original_max_position_embeddings=16)
GEMMA_ROPE = dict(rope_parameters=dict(
    sliding_attention=dict(rope_type="default", rope_theta=10.0),
    full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0),
))
GEMMA_SIZES = dict(SIZES, num_hidden_layers=3, head_dim=12, query_pre_attn_scalar=9, sliding_window=6, **GEMMA_ROPE)
GPT2 = dict(vocab_size=VOCABULARY, n_positions=40, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=None)
NEOX = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=64, bos_token_id=1, eos_token_id=None,
)

# Name: configuration, and the changes that have to show.
CASES = {
    "llama": (tf.LlamaConfig(**SIZES, **rope()), [rope(theta=90.0)]),
    "llama-3": (
        tf.LlamaConfig(**SIZES, head_dim=12, tie_word_embeddings=True, **rope("llama3", **LLAMA3)),
        [rope(), rope("llama3", **dict(LLAMA3, high_freq_factor=2.0)), rope("llama3", **dict(LLAMA3, factor=2.0))],
    ),
    "llama-linear": (
        tf.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, **rope("linear", factor=3.0)),
        [rope(), rope("linear", factor=2.5)],
    ),
    "llama-yarn": (
        tf.LlamaConfig(**SIZES, head_dim=16, **rope("yarn", **YARN)),
        [rope(), rope("yarn", attention_factor=1.0, **YARN), rope("yarn", **dict(YARN, beta_fast=4.0))],
    ),
    "llama-dynamic": (tf.LlamaConfig(**SIZES, **rope("dynamic", factor=2.0)), [rope(theta=90.0)]),
    "mistral": (
        tf.MistralConfig(**SIZES, head_dim=12, sliding_window=6, **rope()),
        [dict(sliding_window=None), dict(sliding_window=5), dict(sliding_window=7)],
    ),
    "qwen2": (tf.Qwen2Config(**SIZES, tie_word_embeddings=True, **rope()), [rope(theta=90.0)]),
    "qwen2-window": (
        tf.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1, **rope()),
        [dict(layer_types=["full_attention"] * 2), dict(layer_types=["sliding_attention"] * 2)],
    ),
    "qwen3": (tf.Qwen3Config(**SIZES, head_dim=12, **rope()), [rope(theta=90.0), dict(rms_norm_eps=0.1)]),
    "gemma3": (
        tf.Gemma3TextConfig(**GEMMA_SIZES, sliding_window_pattern=2, tie_word_embeddings=True),
        [
            dict(sliding_window=5), dict(sliding_window=7), dict(query_pre_attn_scalar=12),
            dict(layer_types=["sliding_attention"] * 3), dict(hidden_activation="silu"),
            dict(rope_parameters=dict(GEMMA_ROPE["rope_parameters"], full_attention=dict(rope_type="default", rope_theta=1000.0))),
            dict(rope_parameters=dict(GEMMA_ROPE["rope_parameters"], sliding_attention=dict(rope_type="default", rope_theta=20.0))),
        ],
    ),
    "gemma3-softcap": (
        tf.Gemma3TextConfig(**GEMMA_SIZES, final_logit_softcapping=8.0, attention_bias=True, tie_word_embeddings=True),
        [dict(final_logit_softcapping=None), dict(final_logit_softcapping=9.0)],
    ),
    "phi3": (
        tf.Phi3Config(**SIZES, sliding_window=6, **rope()),
        [dict(sliding_window=None), rope(theta=90.0)],
    ),
    "phi3-longrope": (
        tf.Phi3Config(**SIZES, original_max_position_embeddings=16, **rope("longrope", **LONG)),
        [
            rope(), rope("longrope", attention_factor=1.0, **LONG),
            rope("longrope", **dict(LONG, short_factor=[1.0] * 4)), rope("longrope", **dict(LONG, long_factor=[1.0] * 4)),
        ],
    ),
    "phi3-partial": (
        tf.Phi3Config(**SIZES, tie_word_embeddings=True, **rope(partial_rotary_factor=0.75)),
        [rope(partial_rotary_factor=1.0)],
    ),
    "gpt2": (tf.GPT2Config(**GPT2), [dict(activation_function="relu")]),
    "gpt2-variant": (
        tf.GPT2Config(**dict(GPT2, n_inner=40, activation_function="relu"), scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False),
        [dict(scale_attn_by_inverse_layer_idx=False), dict(scale_attn_weights=False)],
    ),
    "gpt-neox": (
        tf.GPTNeoXConfig(**NEOX, **rope(partial_rotary_factor=0.25)),
        [rope(partial_rotary_factor=0.5), dict(use_parallel_residual=False), dict(hidden_act="relu")],
    ),
    "gpt-neox-sequential": (
        tf.GPTNeoXConfig(**NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new", **rope(partial_rotary_factor=0.5)),
        [dict(use_parallel_residual=True)],
    ),
}


def fill(model, seed):
    """Numbers that f16 holds: projections about 1.5/√inputs, norms about their neutral value, biases visible."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            embedding = "embed" in name or "wte" in name or "wpe" in name
            inputs = parameter.shape[0] if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else parameter.shape[1]
            value = noise * (0.35 if embedding else 1.5 * inputs**-0.5)
        elif name.endswith("bias"):
            value = noise * 0.3
        else:
            value = parameter.data + noise * 0.3
        parameter.data = value.half().float()


def run(model, prompts):
    with torch.no_grad():
        return [model(torch.tensor([prompt]), use_cache=False).logits[0] for prompt in prompts]


def greedy(model, prompt, whole):
    """The likeliest tokens behind a prompt, and the logits each was chosen by.

    With `whole` every token is chosen by a pass over the whole text. Texts whose positions change on the way need that: when a
    text of a Phi-3 grows beyond its original context, `generate` of transformers 5.17 drops the cache, as it should, but then
    feeds the newest token alone and not the text again, so that what it makes is no continuation of the text.
    """
    if not whole:
        made = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True)
        return made.sequences[0, len(prompt):].tolist(), [step[0] for step in made.logits]
    text, steps = list(prompt), []
    for _ in range(NEW):
        steps.append(run(model, [text])[0][-1])
        text.append(steps[-1].argmax().item())
    return text[len(prompt):], steps


def changed(config, change):
    config = copy.deepcopy(config).to_dict() | change
    kind = tf.AutoConfig.for_model(config.pop("model_type")).__class__
    return kind(**config)


def make(name, config, changes, seed):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    fill(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    # Texts within the original context, over its border, from it on and beyond it.
    lengths = LENGTHS + (16,) if "longrope" in name else LENGTHS
    prompts = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    logits = run(model, prompts)
    scale = max(x.abs().max().item() for x in logits)

    for change in changes:
        other = tf.AutoModelForCausalLM.from_config(changed(config, change), attn_implementation="eager").float().eval()
        other.load_state_dict(model.state_dict())
        moved = max((a - b).abs().max().item() for a, b in zip(run(other, prompts), logits)) / scale
        assert moved > 1e-2, f"{name}: {change} moves the logits by {moved:.1e} of their scale only"

    texts = []
    for prompt in prompts:
        new, steps = greedy(model, prompt, "longrope" in name)
        for step in steps:
            first, second = step.topk(2).values.tolist()
            assert first - second > 1e-3 * scale, f"{name}: the choice is too close to compare; take another seed"
        texts.append(dict(prompt=prompt, greedy=new))

    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file({f"logits.{i}": x.contiguous() for i, x in enumerate(logits)}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(texts) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:20} scale {scale:6.2f}  {size / 1024:5.0f} kB  changes seen: {len(changes)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    tf.logging.disable_progress_bar()
    wanted = sys.argv[1:]
    for number, (name, (config, changes)) in enumerate(CASES.items()):
        if wanted and name not in wanted:
            continue
        for attempt in range(20):
            try:
                make(name, config, changes, 1000 * number + 10 * attempt)
                break
            except AssertionError as error:
                if "another seed" not in str(error) or attempt == 19:
                    raise
