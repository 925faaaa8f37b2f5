"""PyTorch's side of `kiln bench decode` and `kiln bench forward --model`: one model in one mode, driven line by line.

Reads one JSON request a line and answers one JSON line:
  {"do": "open", "what": "decode" | "forward", "folder", "style": "transformers" | "lean", "mode", "dtype", "device",
   "threads", "context", "prompts": [[ids]], "tokens"}            loads, compiles; the first call is timed
  {"do": "turn", "repeats": n, "seconds": s}                       samples of one turn, in ms: calls, or tokens of one text
  {"do": "memory"}                                                 the peak so far
  {"do": "check", "file", "rows", "follow": [[ids]]}               logits as raw f32: of a pass's last positions; when decoding,
                                                                   after the prompts and after each token that is to follow
Both sides read the same safetensors file, attend with `scaled_dot_product_attention` over a static cache, and multiply
float32 in float32.
"""
import os, time

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Norm(nn.Module):
    def __init__(self, weight, eps):
        super().__init__()
        self.register_buffer("weight", weight)
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Layer(nn.Module):
    """One Llama layer written for the compiler: fused qkv and gate/up weights, a static cache of its own."""

    def __init__(self, get, at, c, batch, context, like):
        super().__init__()
        name = f"model.layers.{at}."
        both = lambda *parts: torch.cat([get(name + part + ".weight") for part in parts])
        self.heads, self.groups, self.depth = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.first = Norm(get(name + "input_layernorm.weight"), c.rms_norm_eps)
        self.second = Norm(get(name + "post_attention_layernorm.weight"), c.rms_norm_eps)
        self.register_buffer("qkv", both("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        self.register_buffer("out", get(name + "self_attn.o_proj.weight"))
        self.register_buffer("gate_up", both("mlp.gate_proj", "mlp.up_proj"))
        self.register_buffer("down", get(name + "mlp.down_proj.weight"))
        self.register_buffer("keys", torch.zeros(batch, self.groups, context, self.depth, **like))
        self.register_buffer("values", torch.zeros(batch, self.groups, context, self.depth, **like))

    def forward(self, x, cos, sin, positions, mask):
        b, t, _ = x.shape
        h, g, d = self.heads, self.groups, self.depth
        q, k, v = F.linear(self.first(x), self.qkv).view(b, t, h + 2 * g, d).transpose(1, 2).split([h, g, g], 1)
        turn = lambda y: y * cos + torch.cat((-y[..., d // 2:], y[..., : d // 2]), -1) * sin
        q, k = turn(q), turn(k)
        self.keys[:, :, positions] = k
        self.values[:, :, positions] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=h != g)
        x = x + F.linear(y.transpose(1, 2).reshape(b, t, h * d), self.out)
        gate, up = F.linear(self.second(x), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Lean(nn.Module):
    """The strongest decode PyTorch gives: no library code between the weights and the token, argmax inside."""

    def __init__(self, get, c, batch, context, like):
        super().__init__()
        self.register_buffer("embedding", get("model.embed_tokens.weight"))
        self.layers = nn.ModuleList(Layer(get, at, c, batch, context, like) for at in range(c.num_hidden_layers))
        self.norm = Norm(get("model.norm.weight"), c.rms_norm_eps)
        self.register_buffer("head", self.embedding if c.tie_word_embeddings else get("lm_head.weight"))
        rotary = LlamaRotaryEmbedding(c).to(like["device"])
        cos, sin = rotary(torch.zeros(1, **like), torch.arange(context, device=like["device"])[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])
        self.register_buffer("mask", torch.ones(context, context, dtype=torch.bool, device=like["device"]).tril())

    def logits(self, tokens, positions):
        x = self.embedding[tokens]
        cos, sin, mask = self.cos[positions], self.sin[positions], self.mask[None, None, positions]
        for layer in self.layers:
            x = layer(x, cos, sin, positions, mask)
        return F.linear(self.norm(x), self.head)

    def forward(self, tokens, positions):
        return self.logits(tokens, positions)[:, -1].argmax(-1, keepdim=True)


class Side:
    def open(self, r):
        torch.set_num_threads(r["threads"])
        torch.set_float32_matmul_precision("highest")
        self.device = torch.device("cuda" if r["device"].startswith("cuda") else "cpu")
        self.sync = torch.cuda.synchronize if self.device.type == "cuda" else (lambda: None)
        self.dtype, self.mode, self.lean, self.context = DTYPES[r["dtype"]], r["mode"], r["style"] == "lean", r["context"]
        self.prompt = torch.tensor(r["prompts"], device=self.device)
        self.tokens = r["tokens"]
        self.before = status("VmRSS")
        if self.lean:
            self.load_lean(r["folder"])
        else:
            self.load_transformers(r["folder"])
        answer = self.decode_open() if r["what"] == "decode" else self.forward_open()
        answer.update(peer=f"torch {torch.__version__}, transformers {transformers.__version__}")
        return answer

    def load_lean(self, folder):
        from safetensors import safe_open
        self.config = AutoConfig.from_pretrained(folder)
        if self.config.model_type != "llama":
            raise ValueError(f"the lean decode is written for Llama, this is {self.config.model_type}")
        like = dict(dtype=self.dtype, device=self.device)
        with safe_open(os.path.join(folder, "model.safetensors"), framework="pt") as file:
            get = lambda name: file.get_tensor(name).to(**like)
            self.model = Lean(get, self.config, len(self.prompt), self.context, like).eval()
        # A tied head is the embedding, and counted once.
        buffers = {b.data_ptr(): (n.split(".")[-1], b) for n, b in self.model.named_buffers()}
        others = ("keys", "values", "cos", "sin", "mask")
        self.weights = sum(b.numel() * b.element_size() for name, b in buffers.values() if name not in others)
        self.cache = None

    def load_transformers(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype, attn_implementation="sdpa")
        self.model = self.model.to(self.device).eval()
        self.config = self.model.config
        self.weights = sum(p.numel() * p.element_size() for p in self.model.parameters())

    def compiled(self, f, fullgraph=True):
        if self.mode == "eager":
            return f
        if self.lean and self.device.type == "cpu":
            # The weights become constants, packed as MKL likes them: what PyTorch offers for inference on the CPU.
            torch._inductor.config.freezing = True
        return torch.compile(f, mode=None if self.mode == "default" else self.mode, fullgraph=fullgraph, dynamic=False)

    def decode_open(self):
        batch = len(self.prompt)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        if self.lean:
            self.step = self.compiled(self.model)
        else:
            self.cache = StaticCache(config=self.config, max_cache_len=self.context)
            forward = self.compiled(self.model.forward)

            def logits(token, position):
                if self.mode != "eager":
                    torch.compiler.cudagraph_mark_step_begin()
                out = forward(input_ids=token, past_key_values=self.cache, position_ids=position[None].expand(batch, 1))
                return out.logits[:, -1]

            self.step_logits = logits
            self.step = lambda token, position: logits(token, position).argmax(-1, keepdim=True)
        answer = self.text(self.tokens, float("inf"))
        answer["first_call_s"] = (answer["prefill_ms"] + answer["ms"][0]) / 1e3
        return dict(answer, weights_bytes=self.weights, kv_bytes=self.kv_bytes())

    def kv_bytes(self):
        c = self.config
        depth = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        groups = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
        return 2 * c.num_hidden_layers * len(self.prompt) * groups * self.context * depth * self.dtype.itemsize

    def prefill(self):
        """The prompt goes through uncompiled, as `generate` does it."""
        length = self.prompt.shape[1]
        positions = torch.arange(length, device=self.device)
        if self.lean:
            return self.model.logits(self.prompt, positions)[:, -1]
        self.cache.reset()
        places = positions[None].expand(len(self.prompt), -1)
        out = self.model(input_ids=self.prompt, past_key_values=self.cache, position_ids=places, logits_to_keep=1)
        return out.logits[:, -1]

    def text(self, tokens, seconds):
        """A prefill and `tokens` further tokens, each timed with the reading of its ids."""
        clock = time.perf_counter
        self.sync()
        start = begin = clock()
        chosen = self.prefill().argmax(-1, keepdim=True)
        ids = [chosen[:, 0].tolist()]
        prefill = clock() - begin
        self.token.copy_(chosen)
        self.position.fill_(self.prompt.shape[1])
        samples = []
        for _ in range(tokens):
            begin = clock()
            chosen = self.step(self.token, self.position)
            ids.append(chosen[:, 0].tolist())
            self.token.copy_(chosen)
            self.position.add_(1)
            samples.append((clock() - begin) * 1e3)
            if clock() - start > seconds:
                break
        return dict(prefill_ms=prefill * 1e3, ms=samples, ids=[list(row) for row in zip(*ids)])

    def forward_open(self):
        if self.lean:
            positions = torch.arange(self.prompt.shape[1], device=self.device)
            inner = self.compiled(self.model.logits)
            self.call = lambda: inner(self.prompt, positions)
        else:
            inner = self.compiled(self.model.forward)
            self.call = lambda: inner(input_ids=self.prompt, use_cache=False).logits
        begin = time.perf_counter()
        self.call()
        self.sync()
        first = time.perf_counter() - begin
        for _ in range(3):
            self.call()
        self.sync()
        return dict(first_call_s=first, weights_bytes=self.weights, kv_bytes=0)

    def turn(self, r):
        if not hasattr(self, "call"):
            return self.text(r["repeats"], r["seconds"])
        samples, start = [], time.perf_counter()
        while len(samples) < r["repeats"] and time.perf_counter() - start <= r["seconds"]:
            begin = time.perf_counter()
            self.call()
            self.sync()
            samples.append((time.perf_counter() - begin) * 1e3)
        return dict(ms=samples)

    def memory(self, _):
        if self.device.type == "cuda":
            return dict(peak_bytes=torch.cuda.max_memory_allocated())
        return dict(peak_bytes=status("VmHWM") - self.before)

    def following(self, follow):
        """Logits after the prompts and after each token that is to follow them, by steps compiled as those that were timed."""
        if self.lean:
            # What was timed gives tokens only.
            inner = self.compiled(self.model.logits)
            step = lambda token, position: inner(token, position)[:, -1]
        else:
            step = self.step_logits
        rows = [self.prefill().float().cpu()]
        self.position.fill_(self.prompt.shape[1])
        for column in torch.tensor(follow, device=self.device).T:
            self.token.copy_(column[:, None])
            rows.append(step(self.token, self.position).float().cpu())
            self.position.add_(1)
        return torch.stack(rows, 1)

    def check(self, r):
        logits = self.call()[:, -r["rows"]:] if hasattr(self, "call") else self.following(r["follow"])
        values = logits.float().cpu().contiguous()
        with open(r["file"], "wb") as out:
            out.write(values.numpy().tobytes())
        return dict(count=values.numel())


side = Side()
with torch.no_grad():
    serve(lambda request: getattr(side, request["do"])(request))
