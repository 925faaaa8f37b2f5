//! How the vectors of a text's tokens become one: as a folder of sentence-transformers says.

use crate::config::Fields;
use crate::{Error, Result, files};
use kiln::{DType, Tensor};
use serde_json::Value;
use std::path::{Component, Path};

/// One way to make one vector of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The first token's.
    Cls,
    /// The mean of all tokens'.
    Mean,
    /// The largest number at each place.
    Max,
    /// The sum over the root of their count.
    MeanSqrtLength,
}

/// How a text's vector is made.
///
/// ```
/// use kiln_llm::{Pool, Pooling};
/// assert_eq!(Pooling::default(), Pooling { pools: vec![Pool::Mean], normalize: true });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    /// Side by side where there are several.
    pub pools: Vec<Pool>,
    /// Whether the result is divided by its length.
    pub normalize: bool,
}

impl Default for Pooling {
    /// The mean, of length 1: what most models for embeddings are trained for.
    fn default() -> Pooling {
        Pooling { pools: vec![Pool::Mean], normalize: true }
    }
}

impl Pool {
    /// Every one, with the member of `1_Pooling/config.json` that asks for it and its name in `pooling_mode`.
    const NAMES: [(Pool, &str, &str); 4] = [
        (Pool::Cls, "pooling_mode_cls_token", "cls"),
        (Pool::Max, "pooling_mode_max_tokens", "max"),
        (Pool::Mean, "pooling_mode_mean_tokens", "mean"),
        (Pool::MeanSqrtLength, "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ];

    /// The one of this name: `mean`, `cls`, `max` or `mean_sqrt_len_tokens`.
    pub fn named(name: &str) -> Option<Pool> {
        Pool::NAMES.iter().find(|known| known.2 == name).map(|known| known.0)
    }
}

impl Pooling {
    /// What `modules.json` of a folder asks for, and the file of pooling that it names; the default where there is none.
    pub fn read(folder: impl AsRef<Path>) -> Result<Pooling> {
        let folder = folder.as_ref();
        let path = folder.join("modules.json");
        if !path.exists() {
            return Ok(Pooling::default());
        }
        let text = files::read(&path, files::Kind::Settings)?;
        let json = |message: String| Error::Json { path: path.clone(), message };
        let modules: Value = serde_json::from_slice(&text).map_err(|e| json(e.to_string()))?;
        let modules = modules.as_array().ok_or_else(|| json("the whole is no list".into()))?;
        let mut pooling = Pooling { normalize: false, ..Pooling::default() };
        for module in modules {
            let part = |name: &str| module.get(name).and_then(Value::as_str);
            let bad = |problem: String| Error::Config { path: path.clone(), field: "type".into(), problem };
            let kind = part("type").ok_or_else(|| bad("it is missing or no text".into()))?;
            match kind.rsplit('.').next().unwrap_or(kind) {
                "Transformer" => {}
                "Normalize" => pooling.normalize = true,
                "Pooling" => pooling.pools = Pooling::pools(folder, part("path").unwrap_or("1_Pooling"), &path)?,
                other => return Err(bad(format!("the module '{other}' is not supported"))),
            }
        }
        Ok(pooling)
    }

    fn pools(folder: &Path, name: &str, from: &Path) -> Result<Vec<Pool>> {
        // A model names files of its own folder, and no others of the machine.
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            let problem = format!("'{name}' is not in this folder");
            return Err(Error::Config { path: from.to_owned(), field: "path".into(), problem });
        }
        let file = folder.join(name).join("config.json");
        if !file.exists() {
            return Ok(Pooling::default().pools);
        }
        Pooling::from_fields(&Fields::read(file)?)
    }

    /// The ways to pool that the members of a `1_Pooling/config.json` ask for.
    ///
    /// ```
    /// use kiln_llm::{Pool, Pooling, config::Fields};
    /// let json = br#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
    /// assert_eq!(Pooling::from_fields(&Fields::parse(json, "config.json")?)?, [Pool::Cls]);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<Vec<Pool>> {
        if let Some(name) = fields.text("pooling_mode")? {
            let pool = Pool::named(name);
            let pool = pool.ok_or_else(|| fields.bad("pooling_mode", format!("'{name}' is not supported")))?;
            return Ok(vec![pool]);
        }
        for other in ["pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"] {
            if fields.flag(other, false)? {
                return Err(fields.bad(other, "this way to pool is not supported"));
            }
        }
        let mut pools = Vec::new();
        for (pool, member, _) in Pool::NAMES {
            // Whoever says nothing means the mean.
            if fields.flag(member, pool == Pool::Mean)? {
                pools.push(pool);
            }
        }
        if pools.is_empty() {
            return Err(fields.bad("pooling_mode_mean_tokens", "no way to pool is chosen"));
        }
        Ok(pools)
    }

    /// The texts' vectors, `[batch, width]` in f32, of their tokens', `[batch, tokens, width]`, of which those count that
    /// `valid`, `[batch, tokens]`, says.
    #[track_caller]
    pub fn apply(&self, hidden: &Tensor, valid: &Tensor) -> kiln::Result<Tensor> {
        let hidden = hidden.to_dtype(DType::F32)?;
        let valid = valid.unsqueeze(-1)?;
        let sum = || valid.where_(&hidden, 0.0)?.sum(1);
        let count = || valid.to_dtype(DType::F32)?.sum(1);
        let pooled = self.pools.iter().map(|pool| match pool {
            Pool::Cls => hidden.select(1, 0),
            Pool::Mean => sum()? / count()?,
            Pool::Max => valid.where_(&hidden, f64::NEG_INFINITY)?.max(1),
            Pool::MeanSqrtLength => sum()? / count()?.sqrt()?,
        });
        let pooled = Tensor::cat(&pooled.collect::<kiln::Result<Vec<Tensor>>>()?, -1)?;
        match self.normalize {
            true => &pooled / pooled.norm_keepdim(2.0, -1)?.maximum(1e-12)?,
            false => Ok(pooled),
        }
    }
}
