"""Writes tokens.json: ids and texts that Hugging Face's tokenizers gives, for small vocabularies made here and for stories260K.

usage: python make_tokens.py        (needs `pip install tokenizers`)
"""
import json, pathlib
from tokenizers import Tokenizer, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers, AddedToken

here = pathlib.Path(__file__).parent
TEXTS = [
    "Once upon a time", "", " ", "Hello, world! It's 12345 o'clock.", "  two  spaces\n\n\nand\tlines  ",
    "naïve café — ÀÉÎ ß ﬁ", "日本語のテキスト and 中文", "emoji 👩‍👩‍👧 🇫🇷 €uro", "don't we'll I'M HE'S", "a<|end|>b <|end|>  c",
    "x=3.14159; y += 2**10 // 7", "Ünïcödé e\u0301 \u00a0nbsp \u200bzwsp", "ALLCAPS lowercase MiXeD", "tabs\t\tand\r\nwindows", "ends with space ",
]
CORPUS = [(pathlib.Path(__file__).parent / "corpus.txt").read_text(), *TEXTS]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(name, splitter, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = splitter
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|end|>"]))
    return name, t


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bert():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return "bert", t


def metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    t.train_from_iterator(CORPUS[:1], trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"]))
    t.add_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True, normalized=False)])
    return "metaspace", t


all_ = [
    byte_level("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False)),
    byte_level("llama3", split(LLAMA3), ignore_merges=True),
    byte_level("qwen2", split(QWEN2), normalizers.NFC()),
    byte_level("smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    bert(), metaspace(),
    ("stories260K", Tokenizer.from_file(str(here / "../../models/stories260K/tokenizer.json"))),
]
out = []
for name, t in all_:
    cases = []
    for text in TEXTS:
        ids = t.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": t.decode(ids), "with_special": t.decode(ids, skip_special_tokens=False)})
    out.append({"name": name, "tokenizer": None if name == "stories260K" else json.loads(t.to_str()), "cases": cases})
(here / "tokens.json").write_text(json.dumps(out, ensure_ascii=False))
