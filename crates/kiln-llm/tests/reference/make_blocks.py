"""Writes blocks.json: random blocks of each quantised type, and the elements that the gguf package gives for them.

usage: python make_blocks.py        (needs `pip install gguf`)
"""
import json, pathlib
import numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES
from gguf.quants import dequantize

rng = np.random.default_rng(0)
out = []
# Where the f16 scales are in a block.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208], T.F16: []}
for kind, scales in SCALES.items():
    elements, size = GGML_QUANT_SIZES[kind]
    count = 32 if kind == T.F16 else 2
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        blocks[:, at : at + 2] = rng.normal(size=count).astype(np.float16).view(np.uint8).reshape(count, 2)
    if kind == T.F16:
        blocks = rng.normal(size=count).astype(np.float16).view(np.uint8).reshape(count, 2)
    values = dequantize(blocks.reshape(-1), kind).astype(np.float32).reshape(-1)
    out.append({"type": int(kind), "bytes": blocks.tobytes().hex(), "elements": [float(x) for x in values]})
(pathlib.Path(__file__).parent / "blocks.json").write_text(json.dumps(out))
