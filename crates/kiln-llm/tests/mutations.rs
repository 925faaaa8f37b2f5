//! Files are foreign input: thousands of damaged configurations, headers and indices end in an error or a model, never in a
//! panic, and never in an allocation that only a lie asked for.

use kiln::{DType, Device, safetensors};
use kiln_ir::examples::Random;
use kiln_llm::config::{Fields, GenerationConfig};
use kiln_llm::{ChatTemplate, Checkpoint, KvCache, Message, Tokenizer, Weights, models};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which remembers the largest request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static WATCHED: Watched = Watched;

/// More than any honest file here needs.
const LIMIT: usize = 16 << 20;

/// Runs one case; says which it was if it panics or asks for too much.
fn survives<T>(what: &str, case: &dyn std::fmt::Display, run: impl FnOnce() -> T) -> T {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < LIMIT, "{what}: {largest} bytes at once for\n{case}");
    outcome.unwrap_or_else(|_| panic!("{what}: a panic for\n{case}"))
}

/// What a member may be replaced with.
fn odd_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(7),
        json!(-1),
        json!(65536),
        json!(i64::from(i32::MAX)),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.5),
        json!(1e-320),
        json!(""),
        json!("silu"),
        json!("yarn"),
        json!("longrope"),
        json!("\u{0}ß"),
        json!([]),
        json!([1, "two", null]),
        json!({}),
        json!({"rope_type": "llama3", "factor": 0}),
        json!([[[[]]]]),
    ]
}

struct Draws(Random);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0.below(count)
    }

    fn value(&mut self) -> Value {
        let odd = odd_values();
        odd[self.below(odd.len())].clone()
    }

    /// Changes one member, somewhere.
    fn change(&mut self, value: &mut Value) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                let name = members.keys().nth(self.below(members.len())).unwrap().clone();
                match self.below(4) {
                    0 => drop(members.remove(&name)),
                    1 => self.change(&mut members[&name]),
                    _ => members[&name] = self.value(),
                }
            }
            Value::Array(items) if !items.is_empty() => {
                let at = self.below(items.len());
                match self.below(4) {
                    0 => drop(items.remove(at)),
                    1 => items.push(items[at].clone()),
                    2 => self.change(&mut items[at]),
                    _ => items[at] = self.value(),
                }
            }
            Value::Number(number) if self.below(2) == 0 => {
                let by = [-1.0, 0.5, 2.0, 3.0, 1e9, 1e18][self.below(6)];
                let changed = number.as_f64().unwrap_or(0.0) * by;
                *value = if changed.fract() == 0.0 { json!(changed as i64) } else { json!(changed) };
            }
            other => *other = self.value(),
        }
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        match self.below(5) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes.extend((0..self.below(9)).map(|n| n as u8)),
            _ => {
                for _ in 0..=self.below(4) {
                    let at = self.below(bytes.len());
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = [b'0', b'9', b'"', b'}', b',', 0, 255, b'-'][self.below(8)];
                    }
                }
            }
        }
    }
}

fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/architectures");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn read_json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn damaged_configurations() {
    let mut draws = Draws(Random(1));
    let mut made = 0;
    for folder in folders() {
        let config = read_json(folder.join("config.json"));
        let checkpoint = Checkpoint::open(&folder, Device::Cpu).unwrap();
        let names: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        let replaced = names.iter().flat_map(|name| odd_values().into_iter().map(move |value| Some((name, value))));
        for one in replaced.chain(std::iter::repeat_n(None, 100)) {
            let mut changed = config.clone();
            match one {
                Some((name, value)) => changed[name] = value,
                None => (0..=draws.below(3)).for_each(|_| draws.change(&mut changed)),
            }
            let mut text = changed.to_string().into_bytes();
            if draws.below(8) == 0 {
                draws.damage(&mut text);
            }
            let shown = String::from_utf8_lossy(&text).into_owned();
            let model = survives("config.json", &shown, || {
                let fields = Fields::parse(&text, "config.json")?;
                let model = models::load(&fields, &Weights::new(&checkpoint, DType::F32), None)?;
                KvCache::fixed(&*model, 1, 4)?;
                Ok::<_, kiln_llm::Error>(model)
            });
            // What is still a model has sizes that can be computed with.
            if let Ok(model) = model {
                made += 1;
                let finite = |rotation: &kiln_llm::Rotation| {
                    rotation.factor.is_finite() && rotation.frequencies.iter().all(|f| f.is_finite())
                };
                assert!(model.rotations().iter().all(finite), "{shown}");
            }
        }
    }
    assert!(made > 300, "most harmless changes leave a model: {made}");
}

#[test]
fn damaged_headers_of_safetensors() {
    let mut draws = Draws(Random(2));
    let stored = std::fs::read(folders()[0].join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(stored[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&stored[8..8 + length]).unwrap();
    let mut read = 0;
    for _ in 0..4000 {
        let mut changed = header.clone();
        for _ in 0..draws.below(3) {
            draws.change(&mut changed);
        }
        let mut text = changed.to_string().into_bytes();
        if draws.below(3) == 0 {
            draws.damage(&mut text);
        }
        let claimed = match draws.below(8) {
            0 => [0, 1, 7, u64::MAX, 1 << 40, stored.len() as u64][draws.below(6)],
            _ => text.len() as u64,
        };
        let mut file = claimed.to_le_bytes().to_vec();
        file.extend(&text);
        file.extend(&stored[8 + length..]);
        if draws.below(6) == 0 {
            file.truncate(draws.below(file.len()));
        }
        let shown = String::from_utf8_lossy(&text).into_owned();
        let outcome = survives("model.safetensors", &shown, || safetensors::from_bytes(&file, Device::Cpu));
        // Whatever is accepted can be read to its end.
        for tensor in outcome.into_iter().flat_map(|whole| whole.tensors.into_values()) {
            read += 1;
            survives("model.safetensors", &shown, || tensor.to_dtype(DType::F32).and_then(|t| t.to_vec::<f32>())).ok();
        }
    }
    assert!(read > 1000, "{read}");
}

#[test]
fn damaged_indices_of_shards() {
    let mut draws = Draws(Random(3));
    let folder = std::env::temp_dir().join(format!("kiln-index-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(folders()[0].join("model.safetensors"), folder.join("one.safetensors")).unwrap();
    std::fs::write(folder.join("two.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    std::fs::write(folder.join("cut.safetensors"), b"\xff\xff\xff\xff\xff\0\0\0{}").unwrap();
    let tensors = Checkpoint::open(&folders()[0], Device::Cpu).unwrap().tensors;
    let map: serde_json::Map<String, Value> =
        tensors.keys().map(|name| (name.clone(), "one.safetensors".into())).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    let elsewhere =
        ["two.safetensors", "cut.safetensors", "../one.safetensors", "/etc/passwd", "", ".", "no.safetensors"];
    let mut opened = 0;
    for _ in 0..400 {
        let mut changed = index.clone();
        match draws.below(3) {
            0 => draws.change(&mut changed),
            1 => {
                let map = changed["weight_map"].as_object_mut().unwrap();
                let name = map.keys().nth(draws.below(map.len())).unwrap().clone();
                map[&name] = elsewhere[draws.below(elsewhere.len())].into();
            }
            _ => {}
        }
        let mut text = changed.to_string().into_bytes();
        if draws.below(4) == 0 {
            draws.damage(&mut text);
        }
        std::fs::write(folder.join("model.safetensors.index.json"), &text).unwrap();
        let shown = String::from_utf8_lossy(&text).into_owned();
        opened += usize::from(survives("index.json", &shown, || Checkpoint::open(&folder, Device::Cpu)).is_ok());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(opened > 50, "{opened}");
}

#[test]
fn damaged_settings_of_generation_and_chat() {
    let mut draws = Draws(Random(4));
    let folder = std::env::temp_dir().join(format!("kiln-settings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let generation =
        json!({"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.6, "top_k": 40, "max_new_tokens": 9});
    let chat = json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
        "chat_template": [{"name": "default", "template": "{% for m in messages %}{{ m['role'] + m.content[1:] }}{% endfor %}"}]
    });
    for _ in 0..500 {
        let (mut settings, mut tokens) = (generation.clone(), chat.clone());
        draws.change(&mut settings);
        draws.change(&mut tokens);
        survives("generation_config.json", &settings, || {
            GenerationConfig::from_fields(&Fields::parse(settings.to_string().as_bytes(), "generation_config.json")?)
        })
        .ok();
        let mut text = tokens.to_string().into_bytes();
        if draws.below(2) == 0 {
            draws.damage(&mut text);
        }
        std::fs::write(folder.join("tokenizer_config.json"), &text).unwrap();
        let shown = String::from_utf8_lossy(&text).into_owned();
        survives("tokenizer_config.json", &shown, || {
            let template = ChatTemplate::read(&folder)?;
            template.map(|template| template.render(&[Message::new("user", "hello")], true)).transpose()
        })
        .ok();
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn damaged_tokenizers() {
    let mut draws = Draws(Random(5));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories260K/tokenizer.json");
    let whole = read_json(path);
    for round in 0..60 {
        let mut changed = whole.clone();
        for _ in 0..=draws.below(3) {
            draws.change(&mut changed);
        }
        survives("tokenizer.json", &format!("round {round}"), || {
            let tokenizer = Tokenizer::parse(changed.to_string().as_bytes())?;
            let ids = tokenizer.encode("Once upon a time, ünïcode <s> 42", true)?;
            tokenizer.decode(&ids, false)
        })
        .ok();
    }
}
