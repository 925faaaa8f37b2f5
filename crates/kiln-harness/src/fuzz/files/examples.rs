//! Small files that are what they should be, to be changed.

use kiln_llm::PRESETS;
use serde_json::{Value, json};

/// What may be put into a file anywhere.
pub const WORDS: [&str; 40] = [
    "{{ x ~ x }}",
    "{% for i in range(99999) %}",
    "{% endfor %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% set ns = namespace(x='ab') %}",
    "{% set x = [x, x] %}",
    "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{{ '%99999d'|format(1) }}",
    "{{ '{:>99999}'.format(1) }}",
    "|indent(99999)",
    "|replace('', messages|string)",
    "|tojson(indent=9999)",
    "|slice(99999)|list",
    "|batch(9999, 1)",
    "|join(messages)",
    "|map('upper')",
    "|sort|unique|list",
    "|selectattr('role', 'in', messages)",
    ".split(' ', 1)",
    "[::-1]",
    "[9:1:-3]",
    " * 99999",
    " ** 62",
    " // 0",
    " % ()",
    " if x else ",
    "(((((((((((((",
    "[[[[[[[[[[[[[[",
    "{#",
    "-%}",
    "\u{1b}[2J",
    "\u{202e}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"},",
    "{\"type\":\"Strip\",\"content\":\"a\",\"start\":4611686018427387904,\"stop\":9},",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true},",
    "\"Regex\":\"(a+)+(?=z)\"",
    "(?:(?!a*b)a)*",
    "\\1",
    "null",
    "\"\":",
];

/// Templates in the ways that models write them.
pub fn templates() -> Vec<Vec<u8>> {
    let all = [
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "{{- bos_token }}\n{%- set ns = namespace(text='', n=0) %}\n{%- for m in messages if m.role != 'system' %}\n  {%- set ns.text = ns.text ~ m.content | trim %}\n  {%- set ns.n = ns.n + loop.index0 %}\n{%- else %}none{%- endfor %}\n{{ ns.text | upper }}{{ '%5d|%-8s|' | format(ns.n, 'x') }}{{ '{:>7}{!r}'.format(1.5, 'q') }}",
        "{%- macro show(v, depth=0) %}{%- if v is mapping %}{ {%- for k, w in v | dictsort %}{{ k }}: {{ show(w, depth + 1) }}{{ ', ' if not loop.last }}{%- endfor %} }{%- elif v is string %}{{ v | tojson }}{%- elif v is iterable %}[{{ v | map('string') | join(', ') }}]{%- else %}{{ v }}{%- endif %}{%- endmacro %}\n{{ show({'a': [1, 2.5, none], 'b': {'c': messages[0].content}, 'd': true}) }}",
        "{% set parts = messages[0]['content'].split(' ', 1) %}{% if parts | length > 1 and 'b' in parts[-1].lower() %}{{ parts[0][::-1] ~ parts[1:] }}{% else %}{{ raise_exception('no') if false else (messages | selectattr('role', 'equalto', 'user') | list | first).content.replace('H', 'J') | indent(2, true) }}{% endif %}",
        "{% filter upper %}{% for i in range(0, 10, 3) %}{% if i == 6 %}{% continue %}{% endif %}{{ i }}{{ loop.cycle('a', 'b') }}{% endfor %}{% endfilter %}{% set t | trim %}  {{ messages | tojson(indent=2) }} {% endset %}{{ t | length }}{% macro outer(n) %}{{ caller(n * 2) }}{% endmacro %}{% call(x) outer(3) %}{{ x }}{% endcall %}",
    ];
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn letters() -> serde_json::Map<String, Value> {
    let all = "abcdefghijklmnopqrstuvwxyzOuü ï,<>0123456789\nĠĊ▁#é.";
    all.chars().enumerate().map(|(id, letter)| (letter.to_string(), json!(id))).collect()
}

/// Tokenizers of every model and with every part.
pub fn tokenizers() -> Vec<Vec<u8>> {
    let mut vocabulary = letters();
    for (at, token) in ["on", "ce", "once", "<unk>", "<s>"].iter().enumerate() {
        vocabulary.insert((*token).into(), json!(100 + at));
    }
    let added = json!([{"id": 104, "content": "<s>", "special": true}, {"id": 110, "content": " time", "lstrip": true, "normalized": true}]);
    let bpe = json!({"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "vocab": vocabulary,
        "merges": ["o n", ["c", "e"], "on ce"]});
    let mut pieces = vocabulary.clone();
    pieces.extend(
        letters().into_iter().map(|(letter, id)| (format!("##{letter}"), json!(200 + id.as_u64().unwrap_or(0)))),
    );
    let files = [
        json!({"added_tokens": added, "model": bpe,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [104], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}),
        json!({"added_tokens": added, "model": bpe, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
                {"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
            "decoder": {"type": "ByteLevel"}}),
        json!({"added_tokens": added,
            "model": {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": pieces},
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["<s>", 104], "cls": ["<s>", 104]},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}}),
        json!({"added_tokens": [], "model": bpe,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}}),
    ];
    files.iter().map(|file| file.to_string().into_bytes()).collect()
}

/// Settings of every preset.
pub fn configs() -> Vec<Vec<u8>> {
    PRESETS.iter().map(|preset| preset.config.as_bytes().to_vec()).collect()
}

/// Tensors of several dtypes.
pub fn safetensors() -> Vec<Vec<u8>> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
        "d": {"dtype": "BOOL", "shape": [0, 5], "data_offsets": [40, 40]},
    })
    .to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend((0..40).map(|byte| byte as u8));
    vec![file]
}

/// Writes what a GGUF file begins with.
#[derive(Default)]
struct Writer {
    keys: Vec<u8>,
    count: u64,
}

impl Writer {
    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn key(&mut self, name: &str, kind: u32, value: &[u8]) -> &mut Writer {
        self.keys.extend([&Writer::text(name)[..], &kind.to_le_bytes(), value].concat());
        self.count += 1;
        self
    }

    fn list(&mut self, name: &str, kind: u32, values: Vec<Vec<u8>>) -> &mut Writer {
        let start = [kind.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        self.key(name, 9, &[start, values.concat()].concat())
    }

    fn number(&mut self, name: &str, value: u32) -> &mut Writer {
        self.key(name, 4, &value.to_le_bytes())
    }
}

/// A Llama of one layer, with a tokenizer and a template.
pub fn gguf() -> Vec<Vec<u8>> {
    const WIDTH: u64 = 32;
    let tokens: Vec<String> = letters().keys().cloned().collect();
    let vocabulary = tokens.len() as u64;
    let tensors: [(&str, Vec<u64>); 12] = [
        ("token_embd.weight", vec![WIDTH, vocabulary]),
        ("output_norm.weight", vec![WIDTH]),
        ("output.weight", vec![WIDTH, vocabulary]),
        ("blk.0.attn_norm.weight", vec![WIDTH]),
        ("blk.0.ffn_norm.weight", vec![WIDTH]),
        ("blk.0.attn_q.weight", vec![WIDTH, WIDTH]),
        ("blk.0.attn_k.weight", vec![WIDTH, WIDTH]),
        ("blk.0.attn_v.weight", vec![WIDTH, WIDTH]),
        ("blk.0.attn_output.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_gate.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_up.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_down.weight", vec![WIDTH, WIDTH]),
    ];
    let mut writer = Writer::default();
    writer
        .key("general.architecture", 8, &Writer::text("llama"))
        .number("llama.block_count", 1)
        .number("llama.context_length", 64)
        .number("llama.embedding_length", WIDTH as u32)
        .number("llama.feed_forward_length", WIDTH as u32)
        .number("llama.attention.head_count", 2)
        .key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes())
        .key("tokenizer.ggml.model", 8, &Writer::text("gpt2"))
        .key("tokenizer.ggml.pre", 8, &Writer::text("gpt-2"))
        .key("tokenizer.chat_template", 8, &Writer::text("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"))
        .list("tokenizer.ggml.tokens", 8, tokens.iter().map(|token| Writer::text(token)).collect())
        .list("tokenizer.ggml.merges", 8, Vec::new());
    let mut file =
        [&b"GGUF\x03\0\0\0"[..], &(tensors.len() as u64).to_le_bytes(), &writer.count.to_le_bytes()].concat();
    file.extend(&writer.keys);
    let mut offset = 0u64;
    for (name, shape) in &tensors {
        file.extend(Writer::text(name));
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|size| file.extend(size.to_le_bytes()));
        file.extend([0u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat());
        offset += (shape.iter().product::<u64>() * 4).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32) + offset as usize, 0);
    vec![file]
}
