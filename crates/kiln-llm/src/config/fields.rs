//! A JSON object whose members are read by name and kind.

use super::Activation;
use crate::models::{Kind, Unsupported};
use crate::{Error, Result, files};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// An object of a file; what is `null` counts as missing.
#[derive(Debug, Clone)]
pub struct Fields {
    path: PathBuf,
    value: Value,
}

impl Fields {
    /// Reads a file that holds one object.
    pub fn read(path: impl AsRef<Path>) -> Result<Fields> {
        let path = path.as_ref();
        let text = files::read(path, files::Kind::Settings)?;
        Fields::parse(&text, path)
    }

    /// Parses a text that holds one object; `path` is for messages.
    ///
    /// ```
    /// use kiln_llm::config::Fields;
    /// let fields = Fields::parse(br#"{"heads": 8, "bias": "no"}"#, "config.json")?;
    /// assert_eq!(fields.size("heads", 1)?, 8);
    /// assert_eq!(fields.flag("bias", true).unwrap_err().to_string(), r#"config.json: bias: "no" is no flag"#);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn parse(text: &[u8], path: impl Into<PathBuf>) -> Result<Fields> {
        let path = path.into();
        let json = |message: String| Error::Json { path: path.clone(), message };
        let value: Value = serde_json::from_slice(text).map_err(|e| json(e.to_string()))?;
        if !value.is_object() {
            return Err(json("the whole is no object".into()));
        }
        Ok(Fields { path, value })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A member, of whatever kind.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    /// Whether a member is there at all, be it `null`.
    pub fn says(&self, name: &str) -> bool {
        self.value.get(name).is_some()
    }

    /// The names of members that are not `null`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let members = self.value.as_object().into_iter().flatten();
        members.filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Sets a member.
    pub fn set(&mut self, name: &str, value: Value) {
        if let Some(members) = self.value.as_object_mut() {
            members.insert(name.into(), value);
        }
    }

    /// Takes a member of another object where this one says nothing.
    pub fn inherit(&mut self, other: &Fields, name: &str) {
        if let (None, Some(value)) = (self.get(name), other.get(name)) {
            self.set(name, value.clone());
        }
    }

    /// An error about a member.
    pub fn bad(&self, name: &str, problem: impl Into<String>) -> Error {
        Error::Config { path: self.path.clone(), field: name.into(), problem: problem.into() }
    }

    fn typed<'a, T>(&'a self, name: &str, kind: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.bad(name, format!("{value} is no {kind}")))
    }

    /// A size, if it is there: a whole number below 2³¹, so that products of a few sizes stay within 64 bits.
    pub fn size_if(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "size", |v| v.as_u64().filter(|&n| n < 1 << 31).map(|n| n as usize))
    }

    /// A size, or its default.
    pub fn size(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.size_if(name)?.unwrap_or(default))
    }

    /// A size that must not be 0, or its default.
    pub fn positive(&self, name: &str, default: usize) -> Result<usize> {
        match self.size(name, default)? {
            0 => Err(self.bad(name, "must not be 0")),
            size => Ok(size),
        }
    }

    /// Returns the number of layers. More than any model has is an error, since lists of this length are allocated before
    /// weights are read.
    pub fn layers(&self, name: &str, default: usize) -> Result<usize> {
        match self.positive(name, default)? {
            layers if layers > 1 << 12 => Err(self.bad(name, format!("{layers} is more than any model has"))),
            layers => Ok(layers),
        }
    }

    /// A finite number, if it is there.
    pub fn number_if(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "number", |v| v.as_f64().filter(|x| x.is_finite()))
    }

    /// A finite number, or its default.
    pub fn number(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number_if(name)?.unwrap_or(default))
    }

    /// A flag, or its default.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.typed(name, "flag", Value::as_bool)?.unwrap_or(default))
    }

    /// A text, if it is there.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "text", Value::as_str)
    }

    /// An object, if it is there.
    pub fn object(&self, name: &str) -> Result<Option<Fields>> {
        let object = self.typed(name, "object", |v| v.is_object().then(|| v.clone()))?;
        Ok(object.map(|value| Fields { path: self.path.clone(), value }))
    }

    /// A special token such as `eos_token`: a text, or an object that holds one.
    pub fn special_token(&self, name: &str) -> Option<String> {
        let token = self.get(name)?;
        token.as_str().or(token.get("content").and_then(Value::as_str)).map(str::to_owned)
    }

    /// Checks that `model_type`, or the `architectures` where there is none, is one of these. A configuration that says
    /// neither is taken for the first, since whoever asks knows what it is.
    pub fn model_type(&self, known: &[&str]) -> Result<()> {
        let Some(kind) = Kind::of(self)? else { return Ok(()) };
        if known.contains(&kind.model_type) {
            return Ok(());
        }
        let same_task = known.first().and_then(|name| Kind::named(name)).is_some_and(|asked| asked.task == kind.task);
        let why = if same_task { Unsupported::NoCode } else { Unsupported::OtherTask(kind.task) };
        Err(Error::UnknownArchitecture { path: self.path.clone(), found: kind.model_type.into(), why })
    }

    /// The small number that keeps a norm's divisor from 0, or its default.
    pub fn epsilon(&self, name: &str, default: f64) -> Result<f64> {
        match self.number(name, default)? {
            eps if eps < 0.0 => Err(self.bad(name, format!("{eps} is negative"))),
            eps => Ok(eps),
        }
    }

    /// How many heads there are, or the default; they have to divide the width of all of them.
    pub fn heads(&self, name: &str, default: usize, width: usize) -> Result<usize> {
        match self.positive(name, default)? {
            heads if width.is_multiple_of(heads) => Ok(heads),
            heads => Err(self.bad(name, format!("{heads} heads do not divide a width of {width}"))),
        }
    }

    /// An activation by its name, or the default.
    pub fn activation(&self, name: &str, default: Activation) -> Result<Activation> {
        let Some(text) = self.text(name)? else { return Ok(default) };
        Activation::named(text).ok_or_else(|| self.bad(name, format!("'{text}' is not supported")))
    }

    /// Returns the attention window of each layer in tokens; `None` for all of them. `layer_types` says which layers have
    /// the window; without it, `otherwise` does.
    pub fn windows(
        &self,
        layers: usize,
        window: Option<usize>,
        otherwise: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>> {
        let name = "layer_types";
        let Some(value) = self.get(name) else {
            return Ok((0..layers).map(|layer| window.filter(|_| otherwise(layer))).collect());
        };
        let list = value.as_array().filter(|list| list.len() >= layers);
        let list = list.ok_or_else(|| self.bad(name, format!("no list of the types of {layers} layers")))?;
        let window = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => {
                window.map(Some).ok_or_else(|| self.bad(name, "layers with a window, but no sliding_window"))
            }
            _ => Err(self.bad(name, format!("{kind} is not supported"))),
        };
        list.iter().take(layers).map(window).collect()
    }

    /// Token ids, given as one or as a list; empty if missing.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        let token = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let tokens = self.typed(name, "token or list of tokens", |v| match v {
            Value::Array(items) => items.iter().map(token).collect(),
            one => token(one).map(|t| vec![t]),
        })?;
        Ok(tokens.unwrap_or_default())
    }
}
