//! Files that all sides read: a folder as it is, or one made for the run of the embedded model or of random weights.

use kiln::DType;
use kiln_llm::{Preset, WeightFormat};
use kiln_terminal::failure::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder that goes away with its last owner.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one, in the system's folder for such.
    pub fn new() -> std::io::Result<Scratch> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kiln-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the temporary folder is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model that all sides can read.
#[derive(Debug, Clone)]
pub struct Source {
    /// For the table.
    pub name: String,
    /// Folder or GGUF file. Where only some layers are used, its settings say so, as peers want it.
    pub path: PathBuf,
    /// The same with all of its layers.
    pub whole: PathBuf,
    /// Layers of it that are used, where not all are.
    pub layers: Option<usize>,
    /// What Kiln holds the weights of linear layers as.
    pub weights: WeightFormat,
    /// Tokens with an embedding.
    pub vocabulary: usize,
    /// The longest text.
    pub longest: usize,
    /// Elements that a layer has of one token at a time: the stream and its sum, queries, keys, values, what was mixed, and the
    /// halves of the feed-forward part with their product.
    pub width: usize,
    /// Kept while it is read.
    _scratch: Vec<Arc<Scratch>>,
}

impl Source {
    /// Whether this is one file of quantised blocks.
    pub fn is_gguf(&self) -> bool {
        self.path.is_file()
    }
}

type Found = Result<Source, Box<dyn std::error::Error>>;

/// Makes files of a model: a folder, a GGUF file, `stories260K`, or the name of a preset, whose random weights are written in a
/// dtype. With `layers`, only so many of its first ones are used. Where weights are to be quantised, those of a preset are not
/// written: each side draws them in that format.
pub fn prepare(model: &str, dtype: DType, layers: Option<usize>, weights: WeightFormat) -> Found {
    let mut source = files(model, dtype, layers, weights)?;
    if weights != WeightFormat::AsStored {
        source.name = format!("{}, {weights} weights", source.name);
        source.weights = weights;
    }
    Ok(source)
}

fn files(model: &str, dtype: DType, layers: Option<usize>, weights: WeightFormat) -> Found {
    let path = Path::new(model);
    if path.is_dir() {
        return folder(path, layers);
    }
    if path.is_file() && weights != WeightFormat::AsStored {
        return Err(kiln_llm::Error::StoredFormat { path: path.to_owned(), format: weights }.into());
    }
    if path.is_file() {
        return gguf(path, layers);
    }
    // Real weights rather than the preset's.
    if model.eq_ignore_ascii_case("stories260K") {
        let scratch = Scratch::new()?;
        for (name, bytes) in kiln_llm::open::EMBEDDED_FILES {
            std::fs::write(scratch.path().join(name), bytes)?;
        }
        return read("stories260K".into(), scratch.path().to_owned(), layers, Some(scratch));
    }
    match Preset::named(model) {
        Some(preset) if weights == WeightFormat::AsStored => random(preset, dtype, layers),
        Some(preset) => drawn(preset, layers),
        None => {
            let failure = Failure::unusable(format!("'{model}' is no folder, no GGUF file and no preset"));
            Err(failure.advise("kiln bench decode --model stories260K").into())
        }
    }
}

/// Random weights of a shape.
fn random(preset: &Preset, dtype: DType, layers: Option<usize>) -> Found {
    let scratch = Scratch::new()?;
    preset.save(scratch.path(), dtype, layers, 0)?;
    let name = format!("{} (random)", preset.name);
    let name = layers.map_or_else(|| name.clone(), |layers| format!("{name}, {layers} of its layers"));
    read(name, scratch.path().to_owned(), None, Some(scratch))
}

/// A shape whose random weights each side draws for itself.
fn drawn(preset: &Preset, layers: Option<usize>) -> Found {
    let config: Value = serde_json::from_str(preset.config)?;
    let sizes = Sizes::of(&config);
    let name = match layers {
        Some(layers) => format!("{} (random), {} of its layers", preset.name, cut(&config, layers)?),
        None => format!("{} (random)", preset.name),
    };
    Ok(sizes.source(name, preset.name.into(), layers, None))
}

fn folder(path: &Path, layers: Option<usize>) -> Found {
    let path = path.canonicalize()?;
    if !path.join("config.json").is_file() {
        return Err(Failure::unusable(format!("{} has no config.json", path.display())).into());
    }
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    // The files stay where they are. Settings and weights only: nobody needs the tokenizer, and it has its own memory.
    let scratch = Scratch::new()?;
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        let target = scratch.path().join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "config.json" {
            std::fs::copy(entry.path(), target)?;
        } else if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") {
            link(&entry.path(), &target)?;
        }
    }
    read(name, scratch.path().to_owned(), layers, Some(scratch))
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from, to).map(|_| ())
}

/// Reads the sizes; with `layers`, makes another folder whose settings say so many. Kiln reads the whole one, and is told how many: tensors
/// that settings do not account for are an error.
fn read(name: String, path: PathBuf, layers: Option<usize>, scratch: Option<Scratch>) -> Found {
    let file = path.join("config.json");
    let text = kiln::files::read_text(&file, 32 << 20).map_err(|cause| format!("{}: {cause}", file.display()))?;
    let mut config: Value = serde_json::from_str(&text)?;
    let mut source = Sizes::of(&config).source(name, path.clone(), None, scratch);
    if let Some(layers) = layers {
        let (field, all) = all_layers(&config)?;
        let kept = cut(&config, layers)?;
        config[field] = kept.into();
        let cut = Scratch::new()?;
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            if entry.file_name() != "config.json" {
                link(&entry.path().canonicalize()?, &cut.path().join(entry.file_name()))?;
            }
        }
        std::fs::write(cut.path().join("config.json"), config.to_string())?;
        source.name = format!("{}, {kept} of {all} layers", source.name);
        source.path = cut.path().to_owned();
        source.layers = Some(kept);
        source._scratch.push(Arc::new(cut));
    }
    Ok(source)
}

/// What the sides have to know of a configuration.
struct Sizes {
    vocabulary: usize,
    longest: usize,
    width: usize,
}

impl Sizes {
    fn of(config: &Value) -> Sizes {
        let size = |names: &[&str], otherwise: usize| {
            names.iter().find_map(|name| config[*name].as_u64()).map_or(otherwise, |n| n as usize).max(1)
        };
        let hidden = size(&["hidden_size", "n_embd"], 0);
        let heads = size(&["num_attention_heads", "n_head"], 1);
        let groups = size(&["num_key_value_heads"], heads);
        let inner = size(&["intermediate_size", "n_inner"], 4 * hidden);
        Sizes {
            vocabulary: size(&["vocab_size"], 32_000),
            longest: size(&["max_position_embeddings", "n_positions"], 2048),
            width: width(hidden, inner, heads, groups, size(&["head_dim"], hidden / heads)),
        }
    }

    fn source(self, name: String, path: PathBuf, layers: Option<usize>, scratch: Option<Scratch>) -> Source {
        let Sizes { vocabulary, longest, width } = self;
        let _scratch = scratch.into_iter().map(Arc::new).collect();
        let weights = WeightFormat::AsStored;
        Source { name, whole: path.clone(), path, layers, weights, vocabulary, longest, width, _scratch }
    }
}

/// The setting that has the number of layers, and the number.
fn all_layers(config: &Value) -> Result<(&'static str, usize), Box<dyn std::error::Error>> {
    let field = if config["n_layer"].is_u64() { "n_layer" } else { "num_hidden_layers" };
    let all = config[field].as_u64().ok_or("config.json does not say how many layers there are")?;
    Ok((field, all as usize))
}

/// The number of layers to use: more than there are is an error.
fn cut(config: &Value, layers: usize) -> Result<usize, Box<dyn std::error::Error>> {
    let (_, all) = all_layers(config)?;
    match layers > all {
        true => Err(kiln_llm::Error::TooManyLayers { asked: layers, layers: all }.into()),
        false => Ok(layers.max(1)),
    }
}

fn width(hidden: usize, inner: usize, heads: usize, groups: usize, depth: usize) -> usize {
    4 * hidden + 2 * (heads + groups) * depth + 3 * inner
}

fn gguf(path: &Path, layers: Option<usize>) -> Found {
    if layers.is_some() {
        return Err(Failure::unusable("a GGUF file is measured whole: --layers is for folders and presets").into());
    }
    let config = kiln_llm::Gguf::open(path)?.config()?;
    let (heads, groups) = (config.num_attention_heads, config.num_key_value_heads);
    Ok(Source {
        name: path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        path: path.canonicalize()?,
        whole: path.canonicalize()?,
        layers: None,
        weights: WeightFormat::AsStored,
        vocabulary: config.vocab_size,
        longest: config.max_position_embeddings,
        width: width(config.hidden_size, config.intermediate_size, heads, groups, config.head_dim),
        _scratch: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: WeightFormat = WeightFormat::AsStored;

    #[test]
    fn the_embedded_model_becomes_a_folder_that_goes_away() {
        let source = prepare("stories260K", DType::F32, Some(2), STORED).expect("embedded");
        assert_eq!((source.vocabulary, source.longest), (512, 512));
        assert_eq!(source.name, "stories260K, 2 of 5 layers");
        let path = source.path.clone();
        assert!(path.join("model.safetensors").exists());
        drop(source);
        assert!(!path.exists());
    }

    #[test]
    fn a_cut_folder_leaves_the_original_alone() {
        let whole = prepare("stories260K", DType::F32, None, STORED).expect("embedded");
        let before = std::fs::read_to_string(whole.path.join("config.json")).expect("settings");
        let cut = prepare(&whole.path.display().to_string(), DType::F32, Some(1), STORED).expect("a folder");
        let after: Value =
            serde_json::from_str(&std::fs::read_to_string(cut.path.join("config.json")).expect("settings"))
                .expect("JSON");
        assert_eq!(after["num_hidden_layers"], 1);
        assert_eq!(std::fs::read_to_string(whole.path.join("config.json")).expect("settings"), before);
        assert!(cut.path.join("model.safetensors").exists());
    }

    /// Of embedded weights, a folder and a preset, whose random weights are not made first.
    #[test]
    fn more_layers_than_there_are_is_an_error() {
        let whole = prepare("stories260K", DType::F32, None, STORED).expect("embedded");
        for model in ["stories260K", "stories15m", &whole.path.display().to_string()] {
            let error = prepare(model, DType::F32, Some(7), STORED).expect_err("too many");
            let error = error.downcast_ref::<kiln_llm::Error>().expect("an error of models");
            assert!(matches!(error, kiln_llm::Error::TooManyLayers { asked: 7, layers: 5 | 6 }), "{model}: {error}");
        }
        assert!(prepare("stories260K", DType::F32, Some(5), STORED).is_ok());
    }

    #[test]
    fn quantised_weights_of_a_preset_are_not_written() {
        let source = prepare("llama-3-8b", DType::Bf16, Some(3), WeightFormat::Int8).expect("a preset");
        assert_eq!(source.name, "llama-3-8b (random), 3 of its layers, int8 weights");
        assert_eq!((source.path.to_str(), source.layers), (Some("llama-3-8b"), Some(3)));
        assert!(prepare("llama-3-8b", DType::Bf16, Some(33), WeightFormat::Q8_0).is_err());
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let error = prepare(file, DType::F32, None, WeightFormat::Q4_K_M).expect_err("a file");
        assert!(error.to_string().ends_with("are used as they are stored, not as q4_k_m"), "{error}");
    }

    #[test]
    fn what_is_no_model_is_told() {
        let error = prepare("no such thing", DType::F32, None, STORED).expect_err("nothing");
        assert!(error.to_string().contains("'no such thing'"), "{error}");
    }
}
