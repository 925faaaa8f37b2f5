"""Writes what transformers and llama.cpp make of a GGUF file: tokens of odd texts, logits, the likeliest continuations.

usage: python make_gguf_reference.py FILE.gguf FOLDER
       (needs `pip install torch transformers accelerate gguf safetensors llama-cpp-python`)

transformers unpacks all weights to f32, which is what Kiln's answers have to be within rounding. llama.cpp rounds activations to 8 bits
before it multiplies, so that its continuations may part from these where two tokens are nearly as likely: `gap` says how near the
first of such places is, as the difference of the two logits. FOLDER gets expected.json and expected.safetensors.
"""
import json, pathlib, sys

import torch
from llama_cpp import Llama
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
NEW = 24
TEXTS = [
    "", " ", "Hello, world! It's 12345 o'clock.", "  two  spaces\n\n\nand\tlines  ", "naïve café — ÀÉÎ ß ﬁ", "日本語のテキスト and 中文，标点。",
    "emoji 👩‍👩‍👧 🇫🇷 🏳️‍🌈 €uro", "don't we'll I'M HE'S ’tis", "a<|im_end|>b <|im_end|>  c<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start |> <| im_end|>",
    "x=3.14159; y += 2**10 // 7", "Ünïcödé e\u0301 \u00a0nbsp \u200bzwsp\u3000wide", "tabs\t\tand\r\nwindows\r\rold", "ends with space ", "          ten", "\n \n  \n   x",
    "def f(xs):\n    return [x ** 2 for x in xs if x % 2 == 0]  # squares\n\n\nclass A:\n\tpass\n", "fn main() { let s = \"a\\n\"; println!(\"{s:?}\"); }",
    "١٢٣ ½ Ⅷ ४२ 1,000,000.50", "עברית العربية हिन्दी ไทย 한국어", "\x00\x01\x7f", "𝓯𝓪𝓷𝓬𝔂 ǅ ŉ K", "</s><s>[INST]", "<fim_prefix><|fim_prefix|>def <|fim_suffix|>",
]
LONG = """The museum opened in 1931, in a building that had been a mill. Its first curator, a retired engineer, labelled every drawer
by hand and kept a diary of visitors: how long they stayed, what they asked, which of the seventeen clocks they stopped in front of.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values) if values else 0.0

On the second floor there is a map of the river as it was before the dam. Children look for their street on it and do not find it.
"""
PROMPTS = [LONG, "The capital of France is", "def fibonacci(n):\n", "Question: Why is the sky blue?\nAnswer:"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
peer = Llama(str(file), n_ctx=512, logits_all=True, n_threads=torch.get_num_threads(), n_threads_batch=torch.get_num_threads(), verbose=False)


def encode(text):
    return tokenizer.encode(text, add_special_tokens=False)


def peer_encode(text):
    return peer.tokenize(text.encode(), add_bos=False, special=True)


@torch.no_grad()
def follow(ids):
    """The likeliest continuation, and how much likelier each token is than the next best, in logits."""
    out, gaps = [], []
    state = model(torch.tensor([ids]), use_cache=True)
    for _ in range(NEW):
        best = state.logits[0, -1].topk(2)
        out.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        state = model(torch.tensor([out[-1:]]), past_key_values=state.past_key_values, use_cache=True)
    return out, gaps


def peer_follow(ids):
    peer.reset()
    out = []
    for token in peer.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
        out.append(int(token))
        if len(out) == NEW:
            return out


chat = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
tokens = [{"text": text, "ids": encode(text), "llama_cpp": peer_encode(text)} for text in [*TEXTS, chat]]
texts, logits = [], {}
for number, prompt in enumerate([*PROMPTS, chat]):
    ids = encode(prompt)
    with torch.no_grad():
        logits[f"logits.{number}"] = model(torch.tensor([ids])).logits[0].contiguous()
    peer.reset()
    peer.eval(ids)
    theirs = torch.tensor(peer.scores[: len(ids)])
    greedy, gaps = follow(ids)
    other = peer_follow(ids)
    parts = next((i for i, (a, b) in enumerate(zip(greedy, other)) if a != b), None)
    texts.append({
        "prompt": ids, "greedy": greedy, "llama_cpp": other,
        "parts_at": parts, "gap": None if parts is None else gaps[parts], "least_gap": min(gaps),
        "llama_cpp_error": float((theirs - logits[f"logits.{number}"]).abs().max()),
        "llama_cpp_same_best": int((theirs.argmax(1) == logits[f"logits.{number}"].argmax(1)).sum()),
    })
folder.mkdir(parents=True, exist_ok=True)
(folder / "expected.json").write_text(json.dumps({"chat": chat, "tokens": tokens, "texts": texts}, ensure_ascii=False))
save_file(logits, folder / "expected.safetensors")
for text in texts:
    print({name: len(value) if isinstance(value, list) else value for name, value in text.items()})
print(f"llama.cpp splits {sum(t['ids'] != t['llama_cpp'] for t in tokens)} of {len(tokens)} texts otherwise than transformers")
