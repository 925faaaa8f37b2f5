"""Makes small SentencePiece models and what the library makes of texts with them: `sentencepiece/*.model` and
`sentencepiece/expected.json`, which `tests/sentencepiece.rs` holds Kiln against.

    pip install sentencepiece protobuf
    python make_sentencepiece.py            # writes the files beside itself
    python make_sentencepiece.py --nfkc DIR # the same with the rules of NFKC, whose tables are too large for the repository
"""

import json
import sys
from pathlib import Path

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto

HERE = Path(__file__).parent
CORPUS = HERE / "corpus.txt"

# Rules of a few characters, one of two and one that becomes several words.
RULES = "\n".join([
    "FF21\t41", "FF42\t62", "FB01\t66 69", "3000\t20", "00A0\t20", "09\t20", "61 030A\tE5", "2026\t2E 2E 2E", "2120\t53 4D",
    "FDFA\t41 20 42 20 43", "200B\t", "1F600\t3A 29",
]) + "\n"

TEXTS = [
    "", " ", "   ", "Once upon a time", " leading", "trailing ", "two  spaces   three", "line\nbreak\n\n", "tab\there",
    "a kiln fires clay.", "Ａｂｃ", "ﬁne oﬃce", "na\u0131ve café Å a\u030a", "日本語のテキスト", "Привет, мир!", "🙂🙃 emoji 🎉",
    "wait…", "x\u3000y", "x\u00a0\u00a0y", "zero\u200bwidth", "\ufdfa", "😀!", "<|turn|>user\nhi<|turn|>", "foo<|turn|>bar",
    " <|turn|> ", "<|turn|><|turn|>", "▁▁ marks ▁", "<0x41>", "1234567890", "!!!???", "\u0000\u0001", "The " * 12,
    "aaaaaaaaaaaaaaaaaaaaaaaaa", "ababababab cdcdcdcd", "\u00e9\u0301", "mixed日本and английский",
]


def train(name, folder, **options):
    options = {
        "input": str(CORPUS), "model_prefix": str(folder / name), "character_coverage": 1.0, "hard_vocab_limit": False,
        "num_threads": 1, "minloglevel": 2, "max_sentence_length": 100000, **options,
    }
    spm.SentencePieceTrainer.train(**options)
    (folder / f"{name}.vocab").unlink()


def change(folder, name, edit):
    """Edits a model after training."""
    path = folder / f"{name}.model"
    model = proto.ModelProto()
    model.ParseFromString(path.read_bytes())
    edit(model)
    path.write_bytes(model.SerializeToString())


def retire(model):
    """Every third longer piece is not to be used any more."""
    longer = [piece for piece in model.pieces if piece.type == 1 and len(piece.piece) > 2]
    for piece in longer[::3]:
        piece.type = 5


def strip(model):
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.ClearField("self_test_data")


def main():
    nfkc = "--nfkc" in sys.argv
    folder = Path(sys.argv[-1]) if nfkc else HERE / "sentencepiece"
    folder.mkdir(exist_ok=True)
    rules = folder / "rules.tsv"
    rules.write_text(RULES)
    ruled = {"normalization_rule_name": "nmt_nfkc"} if nfkc else {"normalization_rule_tsv": str(rules)}
    # As Llama 2's: bytes for what is no piece, spaces as they are.
    train("bpe", folder, model_type="bpe", vocab_size=420, byte_fallback=True, normalization_rule_name="identity",
          remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True)
    # As Gemma's: no space before a text, and pieces that users defined.
    train("bpe-user", folder, model_type="bpe", vocab_size=420, byte_fallback=True, normalization_rule_name="identity",
          add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["<|turn|>", "\n\n", "on", "▁▁"])
    train("bpe-unused", folder, model_type="bpe", vocab_size=220, byte_fallback=False, **ruled)
    train("unigram", folder, model_type="unigram", vocab_size=160, **ruled)
    train("unigram-bytes", folder, model_type="unigram", vocab_size=420, byte_fallback=True,
          user_defined_symbols=["<|turn|>", "time", "ba"], **ruled)
    train("unigram-unused", folder, model_type="unigram", vocab_size=160, normalization_rule_name="identity")
    for name in ["bpe-unused", "unigram-unused"]:
        change(folder, name, retire)
    rules.unlink()
    expected = {}
    for path in sorted(folder.glob("*.model")):
        change(folder, path.stem, strip)
        model = spm.SentencePieceProcessor(model_file=str(path))
        cases = []
        for text in TEXTS + CORPUS.read_text().splitlines()[:12]:
            ids = model.encode(text)
            cases.append({"text": text, "ids": ids, "decoded": model.decode(ids) if model.unk_id() not in ids else None})
        expected[path.stem] = {"bos": model.bos_id(), "eos": model.eos_id(), "pieces": model.get_piece_size(), "cases": cases}
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=0) + "\n")


main()
