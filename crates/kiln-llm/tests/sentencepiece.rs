//! Models of SentencePiece: ids and texts are those of its own library; `reference/make_sentencepiece.py` trained the small
//! models and wrote what it gives. Damaged models are errors, never wrong tokens.

use kiln_ir::examples::Random;
use kiln_llm::{OpenOptions, Tokenizer, open};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/sentencepiece")
}

fn model(name: &str) -> Vec<u8> {
    std::fs::read(reference().join(name).with_extension("model")).unwrap()
}

/// Ids and texts of all models of a folder.
fn agrees(folder: &Path) {
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    assert!(expected.as_object().unwrap().len() >= 6);
    for (name, expected) in expected.as_object().unwrap() {
        let bytes = std::fs::read(folder.join(format!("{name}.model"))).unwrap();
        let tokenizer = Tokenizer::parse_sentencepiece(&bytes).unwrap();
        assert_eq!(tokenizer.len() as u64, expected["pieces"].as_u64().unwrap(), "{name}");
        let begin = expected["bos"].as_u64().unwrap() as u32;
        for case in expected["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, true).unwrap(), [&[begin][..], &ids].concat(), "{name}: {text:?}");
            if let Some(decoded) = case["decoded"].as_str() {
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), decoded, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn ids_and_texts_are_those_of_the_library() {
    agrees(&reference());
}

/// The same with NFKC's rules, whose tables are too large for the repository.
#[test]
#[ignore = "needs the models of `make_sentencepiece.py --nfkc DIR`, in the folder that KILN_SENTENCEPIECE names"]
fn nfkc_is_that_of_the_library() {
    agrees(Path::new(&std::env::var_os("KILN_SENTENCEPIECE").expect("KILN_SENTENCEPIECE names a folder")));
}

/// A folder with `tokenizer.model` and no `tokenizer.json`; it goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-sentencepiece-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("tokenizer.model"), model("bpe")).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        Tokenizer::read(&self.0).unwrap().encode(text, true).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the files beside a model say about special tokens counts, as in transformers.
#[test]
fn a_folder_says_which_special_tokens_there_are() {
    let folder = Folder::new("folder");
    let plain = Tokenizer::parse_sentencepiece(&model("bpe")).unwrap();
    let words = plain.encode("Lily saw", false).unwrap();
    assert_eq!(folder.ids("Lily saw"), [&[1][..], &words].concat());
    // `<s>` is a token in a text too, and what follows it is a text of its own.
    assert_eq!(folder.ids("<s>Lily saw"), [&[1, 1][..], &words].concat());
    let count = plain.len() as u32;
    folder.write("added_tokens.json", &format!(r#"{{"<pad>": {count}}}"#));
    folder.write(
        "tokenizer_config.json",
        &format!(
            r#"{{"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true,
                "added_tokens_decoder": {{"{}": {{"content": "<|im_end|>", "special": true}}}}}}"#,
            count + 1
        ),
    );
    assert_eq!(folder.ids("<pad>Lily saw<|im_end|>"), [&[count][..], &words, &[count + 1, 2]].concat());
    let tokenizer = Tokenizer::read(&folder.0).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("Lily<|im_end|>", false).unwrap(), true).unwrap(), "Lily");
    // Tokens of this class have other numbers than the model's.
    folder.write("tokenizer_config.json", r#"{"tokenizer_class": "XLMRobertaTokenizer"}"#);
    let message = Tokenizer::read(&folder.0).unwrap_err().to_string();
    assert!(message.contains("XLMRobertaTokenizer without a tokenizer.json"), "{message}");
}

/// Such a folder was once called a shape without a tokenizer.
#[test]
fn a_model_with_such_a_tokenizer_opens() {
    let folder = Folder::new("opens");
    let stories = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories260K");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(stories.join(file), folder.0.join(file)).unwrap();
    }
    let opened = open(folder.0.to_str().unwrap(), &OpenOptions::default()).unwrap();
    assert!(opened.tokenizer().unwrap().encode("a time", true).unwrap().len() > 2);
}

/// Whatever is done to a model, it is read or refused.
#[test]
fn damaged_models_are_read_or_refused() {
    let mut random = Random(1);
    let mut random = |below| random.below(below);
    let (mut read, mut refused) = (0, 0);
    for name in ["bpe-unused", "unigram", "unigram-bytes"] {
        let whole = model(name);
        for _ in 0..1500 {
            let mut mutant = whole.clone();
            for _ in 0..=random(3) {
                let at = random(mutant.len());
                match random(3) {
                    0 => mutant[at] = random(256) as u8,
                    1 => mutant[at] ^= 1 << random(8),
                    _ => mutant.truncate(at.max(1)),
                }
            }
            match Tokenizer::parse_sentencepiece(&mutant) {
                Ok(tokenizer) => {
                    read += 1;
                    // This may be refused too, but not with a panic.
                    let _ = tokenizer
                        .encode("Ａ ﬁne day… 日本\u{fdfa} <|turn|> time", true)
                        .map(|ids| tokenizer.decode(&ids, false));
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
    let message = |bytes: &[u8]| Tokenizer::parse_sentencepiece(bytes).unwrap_err().to_string();
    // A file of tiktoken begins with a token in base64.
    assert!(message(b"IQ== 0\nIg== 1\n").contains("no SentencePiece model (tiktoken's files are not read)"));
    assert!(message(b"").contains("no SentencePiece model"));
}
