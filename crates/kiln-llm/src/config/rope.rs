//! The rotary embedding's settings: `rope_parameters` holds them in newer files, `rope_theta` and `rope_scaling` in older ones.

use super::Fields;
use crate::{Error, Result};

/// How the frequencies of a rotary embedding are changed for longer contexts.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RopeScaling {
    /// They are not.
    #[default]
    None,
    /// All divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3's: slow ones divided by a factor, fast ones kept, a blend between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Waves longer than the original context over this are slow.
        low_freq_factor: f64,
        /// Waves shorter than the original context over this are fast.
        high_freq_factor: f64,
        /// The original context.
        original_max_position_embeddings: f64,
    },
    /// YaRN: as Llama 3's with a ramp over the pairs, and cosine and sine scaled.
    Yarn {
        /// The factor.
        factor: f64,
        /// Scales cosine and sine.
        attention_factor: f64,
        /// Pairs that turn more often within the original context are kept.
        beta_fast: f64,
        /// Pairs that turn less often are divided.
        beta_slow: f64,
        /// The original context.
        original_max_position_embeddings: f64,
        /// Whether the ends of the ramp are whole pairs.
        truncate: bool,
    },
    /// Each pair divided by a factor of its own, as GGUF files have it for Llama 3.
    Each {
        /// The factors.
        factors: Vec<f64>,
    },
    /// Phi-3's: each pair divided by a factor of its own, of one list up to the original context and of another beyond.
    LongRope {
        /// Up to the original context.
        short_factor: Vec<f64>,
        /// Beyond.
        long_factor: Vec<f64>,
        /// Scales cosine and sine.
        attention_factor: f64,
        /// The original context.
        original_max_position_embeddings: usize,
    },
}

/// A rotary embedding: base, scaling, and how many elements of a head turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base.
    pub theta: f64,
    /// How it reaches beyond the positions it was trained for.
    pub scaling: RopeScaling,
    /// Elements of a head that turn, the first ones; an even number.
    pub width: usize,
}

/// What is known of the object that scales positions. All that stands there changes angles, so that nothing else may.
const MEMBERS: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    // Whether the model was trained further with it.
    "finetuned",
];

impl Rope {
    /// Radians a position for each pair of a head; with `long` those for texts beyond the original context, which differ
    /// with [`RopeScaling::LongRope`] only.
    ///
    /// ```
    /// use kiln_llm::config::{Rope, RopeScaling};
    /// let rope = Rope { theta: 10000.0, scaling: RopeScaling::Linear { factor: 2.0 }, width: 4 };
    /// assert_eq!(rope.frequencies(false), [0.5, 0.005]);
    /// ```
    pub fn frequencies(&self, long: bool) -> Vec<f64> {
        let pairs = self.width / 2;
        let plain = (0..pairs).map(|i| self.theta.powf(-(2.0 * i as f64) / self.width as f64));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let scaled = |frequency: f64| {
                    let waves = original * frequency / std::f64::consts::TAU;
                    if waves < *low {
                        frequency / factor
                    } else if waves > *high {
                        frequency
                    } else {
                        let smooth = (waves - low) / (high - low);
                        (1.0 - smooth) * frequency / factor + smooth * frequency
                    }
                };
                plain.map(scaled).collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: original,
                truncate,
                ..
            } => {
                // The pair that turns so often within the original context.
                let pair = |turns: f64| {
                    self.width as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (first, last) = (pair(*beta_fast), pair(*beta_slow));
                let (first, last) = if *truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, mut last) = (first.max(0.0), last.min(self.width as f64 - 1.0));
                if first == last {
                    last += 0.001;
                }
                let scaled = |(i, frequency): (usize, f64)| {
                    let divided = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    frequency / factor * divided + frequency * (1.0 - divided)
                };
                plain.enumerate().map(scaled).collect()
            }
            RopeScaling::Each { factors } => plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(),
            RopeScaling::LongRope { short_factor, long_factor, .. } => {
                let factors = if long { long_factor } else { short_factor };
                plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
        }
    }

    /// What cosine and sine are multiplied with.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    /// The context beyond which the frequencies are others, if there is one.
    pub fn original_context(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        }
    }

    /// From the members of a `config.json`.
    pub(super) fn from_fields(fields: &Fields, known: Known) -> Result<Rope> {
        let (name, inner) = match fields.object("rope_scaling")? {
            Some(scaling) => ("rope_scaling", Some(scaling)),
            None => ("rope_parameters", fields.object("rope_parameters")?),
        };
        Scaling { name, fields, inner, known }.rope()
    }

    /// The one of `rope_parameters` for a kind of layers, as Gemma has it; `None` where the file has no such object.
    pub(super) fn of_layers(fields: &Fields, layers: &str, known: Known) -> Result<Option<Rope>> {
        let all = fields.object("rope_parameters")?;
        let Some(inner) = all.map(|all| all.object(layers)).transpose()?.flatten() else { return Ok(None) };
        Scaling { name: "rope_parameters", fields, inner: Some(inner), known }.rope().map(Some)
    }

    /// One that is not scaled, with its base under a name of its own.
    pub(super) fn plain(fields: &Fields, name: &str, known: Known) -> Result<Rope> {
        let theta = checked_base(fields, name, fields.number(name, known.theta)?)?;
        Ok(Rope { theta, scaling: RopeScaling::None, width: known.head_dim })
    }
}

/// What is known before the file says anything about positions.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Width of a head.
    pub head_dim: usize,
    /// The longest context.
    pub context: usize,
    /// The base of an architecture where its file names none.
    pub theta: f64,
    /// The part of a head that turns where the file names none.
    pub part: f64,
}

impl Known {
    /// Of heads that turn wholly, by the usual base.
    pub fn new(head_dim: usize, context: usize) -> Known {
        Known { head_dim, context, theta: 10000.0, part: 1.0 }
    }
}

fn checked_base(fields: &Fields, name: &str, theta: f64) -> Result<f64> {
    // A base of 1 has no slow pairs, and YaRN divides by its logarithm.
    if theta > 1.0 { Ok(theta) } else { Err(fields.bad(name, format!("{theta} is no base above 1"))) }
}

/// The object that describes a scaling, inside of the whole file.
struct Scaling<'a> {
    name: &'static str,
    fields: &'a Fields,
    inner: Option<Fields>,
    known: Known,
}

impl Scaling<'_> {
    fn bad(&self, problem: String) -> Error {
        self.fields.bad(self.name, problem)
    }

    fn rope(&self) -> Result<Rope> {
        let fields = self.fields;
        let outer = |name: &str| fields.number_if(name);
        let inner = |name: &str| self.inner.as_ref().map_or(Ok(None), |inner| inner.number_if(name));
        let theta =
            inner("rope_theta")?.or(outer("rope_theta")?).or(outer("rotary_emb_base")?).unwrap_or(self.known.theta);
        let theta = checked_base(fields, "rope_theta", theta)?;
        let written = inner("partial_rotary_factor")?.or(outer("partial_rotary_factor")?).or(outer("rotary_pct")?);
        let part = written.unwrap_or(self.known.part);
        let width = (self.known.head_dim as f64 * part) as usize;
        if !(part > 0.0 && part <= 1.0) || width == 0 || !width.is_multiple_of(2) {
            let problem = format!("{part} of a head of {} elements is no even part of it", self.known.head_dim);
            return Err(fields.bad("partial_rotary_factor", problem));
        }
        let scaling = match &self.inner {
            Some(inner) => self.scaling(inner, width / 2)?,
            None => RopeScaling::None,
        };
        Ok(Rope { theta, scaling, width })
    }

    fn positive(&self, inner: &Fields, member: &str) -> Result<Option<f64>> {
        match inner.number_if(member)? {
            Some(value) if value <= 0.0 => Err(self.bad(format!("{member}: {value} is not positive"))),
            value => Ok(value),
        }
    }

    fn scaling(&self, inner: &Fields, pairs: usize) -> Result<RopeScaling> {
        let needed =
            |member: &str| self.positive(inner, member)?.ok_or_else(|| self.bad(format!("{member} is missing")));
        let original = || -> Result<usize> {
            let member = "original_max_position_embeddings";
            Ok(match inner.size_if(member)?.or(self.fields.size_if(member)?) {
                Some(original) => original.max(1),
                None => self.known.context,
            })
        };
        if let Some(unknown) = inner.names().find(|name| !MEMBERS.contains(name)) {
            return Err(self.bad(format!("{unknown} is not supported")));
        }
        match inner.text("rope_type")?.or(inner.text("type")?).unwrap_or("default") {
            // The first files of Phi-3 call theirs so.
            "yarn" if inner.get("short_factor").is_some() => self.long_rope(inner, pairs, original()?),
            "default" => Ok(RopeScaling::None),
            // Its frequencies change beyond the longest context of the configuration, which no text here gets to.
            "dynamic" => needed("factor").map(|_| RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: needed("factor")? }),
            "llama3" => {
                let (low, high) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
                if low >= high {
                    return Err(self.bad(format!("low_freq_factor {low} is not below high_freq_factor {high}")));
                }
                Ok(RopeScaling::Llama3 {
                    factor: needed("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original()? as f64,
                })
            }
            "yarn" => {
                if inner.get("factor").is_none() && inner.get("original_max_position_embeddings").is_none() {
                    return Err(self.bad("factor is missing".into()));
                }
                self.yarn(inner, original()?)
            }
            "longrope" | "su" => self.long_rope(inner, pairs, original()?),
            other => Err(self.bad(format!("rope type '{other}' is not supported"))),
        }
    }

    fn yarn(&self, inner: &Fields, original: usize) -> Result<RopeScaling> {
        let factor = self.positive(inner, "factor")?.unwrap_or(self.known.context as f64 / original as f64);
        let magnitude = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let scales = (self.positive(inner, "mscale")?, self.positive(inner, "mscale_all_dim")?);
        let attention_factor = match (self.positive(inner, "attention_factor")?, scales) {
            (Some(given), _) => given,
            (None, (Some(one), Some(all))) => magnitude(one) / magnitude(all),
            _ => magnitude(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast: self.positive(inner, "beta_fast")?.unwrap_or(32.0),
            beta_slow: self.positive(inner, "beta_slow")?.unwrap_or(1.0),
            original_max_position_embeddings: original as f64,
            truncate: inner.flag("truncate", true)?,
        })
    }

    fn long_rope(&self, inner: &Fields, pairs: usize, original: usize) -> Result<RopeScaling> {
        let factor = self.positive(inner, "factor")?.unwrap_or(self.known.context as f64 / original as f64);
        let suggested = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
        let attention_factor = self.positive(inner, "attention_factor")?.unwrap_or(suggested);
        if !attention_factor.is_finite() {
            return Err(self.bad(format!("an original context of {original} has no attention factor")));
        }
        for other in ["short_mscale", "long_mscale"] {
            if inner.get(other).is_some() {
                return Err(self.bad(format!("{other} is not supported")));
            }
        }
        Ok(RopeScaling::LongRope {
            short_factor: self.factors(inner, "short_factor", pairs)?,
            long_factor: self.factors(inner, "long_factor", pairs)?,
            attention_factor,
            original_max_position_embeddings: original,
        })
    }

    /// A positive factor for each pair.
    fn factors(&self, inner: &Fields, member: &str, pairs: usize) -> Result<Vec<f64>> {
        let list = inner.get(member).and_then(|list| list.as_array());
        let list = list.ok_or_else(|| self.bad(format!("{member} is missing or no list")))?;
        let factors: Option<Vec<f64>> = list.iter().map(|v| v.as_f64().filter(|&x| x > 0.0 && x.is_finite())).collect();
        match factors {
            Some(factors) if factors.len() == pairs => Ok(factors),
            Some(factors) => Err(self.bad(format!("{member} has {} factors for {pairs} pairs", factors.len()))),
            None => Err(self.bad(format!("{member} holds something that is no positive number"))),
        }
    }
}
