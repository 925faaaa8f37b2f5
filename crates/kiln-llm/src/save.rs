//! Random weights as files, so that other programs can have the same ones.

use crate::weights::Kept;
use crate::{Error, Preset, Result, Weights, models};
use kiln::{DType, Device};
use serde_json::Value;
use std::path::Path;

impl Preset {
    /// Writes the preset's random weights with its `config.json` as a folder in Hugging Face's layout, of all layers or of so
    /// many.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("kiln-preset-doc-{}", std::process::id()));
    /// use kiln_llm::{OpenOptions, Preset};
    /// let preset = Preset::named("smollm2-135m").unwrap();
    /// preset.save(&folder, kiln::DType::Bf16, Some(1), 0)?;
    /// let opened = kiln_llm::open(&folder.display().to_string(), &OpenOptions::default())?;
    /// assert_eq!(opened.model.sizes().layers, 1);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn save(&self, folder: impl AsRef<Path>, dtype: DType, layers: Option<usize>, seed: u64) -> Result<()> {
        let folder = folder.as_ref();
        let failed = |error: std::io::Error| Error::Io { path: folder.to_owned(), message: error.to_string() };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let kept = Kept::default();
        models::load(&self.fields()?, &Weights::random(seed, dtype, Device::Cpu).keeping(kept.clone()), layers)?;
        kiln::safetensors::save(folder.join("model.safetensors"), kept.borrow().iter())?;
        std::fs::write(folder.join("config.json"), self.settings(dtype, layers)?).map_err(failed)
    }

    /// `config.json` of the preset, cut to so many layers.
    fn settings(&self, dtype: DType, layers: Option<usize>) -> Result<String> {
        let bad = |error: serde_json::Error| Error::Json { path: self.name.into(), message: error.to_string() };
        let mut config: Value = serde_json::from_str(self.config).map_err(bad)?;
        if let Some(layers) = layers {
            let field = if config["n_layer"].is_u64() { "n_layer" } else { "num_hidden_layers" };
            let all = config[field].as_u64().unwrap_or(u64::MAX) as usize;
            config[field] = models::cut(Some(layers), all)?.into();
        }
        let stored = match dtype {
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        config["torch_dtype"] = stored.into();
        Ok(config.to_string())
    }
}
