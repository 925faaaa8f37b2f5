//! Which kind of model a `config.json` describes: `model_type` says it, or the classes under `architectures` do. Where both
//! speak they have to agree, and where neither does nothing is guessed.

use crate::config::Fields;
use crate::{Error, Result};
use serde_json::Value;

/// What a kind of model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// It continues texts.
    Generate,
    /// It turns texts into vectors.
    Embed,
    /// It says what pictures show.
    Classify,
}

/// Why there is no code for a kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Nobody wrote it.
    NoCode,
    /// Its layers choose among several feed-forward parts for each token.
    Experts,
    /// It reads a text with one part and writes with another.
    EncoderDecoder,
    /// It is for another task than the requested one.
    OtherTask(Task),
    /// Folders of this kind are supported, GGUF files are not.
    OnlyFolders,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unsupported::NoCode => "are not supported",
            Unsupported::Experts => "are not supported: mixtures of experts (MoE) are not",
            Unsupported::EncoderDecoder => "are not supported: models with an encoder and a decoder are not",
            Unsupported::OtherTask(Task::Generate) => "continue texts, and do nothing else",
            Unsupported::OtherTask(Task::Embed) => "turn texts into vectors, and do not write",
            Unsupported::OtherTask(Task::Classify) => "classify pictures, and do not write",
            Unsupported::OnlyFolders => "are not supported as GGUF files, but as folders with safetensors",
        })
    }
}

/// A kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// What it is for.
    pub task: Task,
    /// The classes of transformers whose checkpoints it reads.
    pub classes: &'static [&'static str],
}

const fn kind(model_type: &'static str, task: Task, classes: &'static [&'static str]) -> Kind {
    Kind { model_type, task, classes }
}

/// Every kind of model that there is code for.
pub const KINDS: &[Kind] = &[
    // Early files spell it with three capitals.
    kind("llama", Task::Generate, &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"]),
    kind("mistral", Task::Generate, &["MistralForCausalLM", "MistralModel"]),
    kind("qwen2", Task::Generate, &["Qwen2ForCausalLM", "Qwen2Model"]),
    kind("qwen3", Task::Generate, &["Qwen3ForCausalLM", "Qwen3Model"]),
    kind("gemma3_text", Task::Generate, &["Gemma3ForCausalLM", "Gemma3TextModel"]),
    kind("gemma3", Task::Generate, &["Gemma3ForConditionalGeneration", "Gemma3Model"]),
    kind("phi3", Task::Generate, &["Phi3ForCausalLM", "Phi3Model"]),
    kind("gpt2", Task::Generate, &["GPT2LMHeadModel", "GPT2DoubleHeadsModel", "GPT2Model"]),
    kind("gpt_neox", Task::Generate, &["GPTNeoXForCausalLM", "GPTNeoXModel"]),
    kind(
        "bert",
        Task::Embed,
        &[
            "BertModel",
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForNextSentencePrediction",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "BertForQuestionAnswering",
        ],
    ),
    kind("vit", Task::Classify, &["ViTForImageClassification"]),
    kind("deit", Task::Classify, &["DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"]),
    kind("resnet", Task::Classify, &["ResNetForImageClassification"]),
    kind("mobilenet_v2", Task::Classify, &["MobileNetV2ForImageClassification"]),
    kind("efficientnet", Task::Classify, &["EfficientNetForImageClassification"]),
    kind("convnext", Task::Classify, &["ConvNextForImageClassification"]),
    kind("convnextv2", Task::Classify, &["ConvNextV2ForImageClassification"]),
    kind("timm_wrapper", Task::Classify, &["TimmWrapperForImageClassification"]),
];

/// Mixtures of experts whose names do not say so.
const EXPERTS: &[&str] = &[
    "mixtral",
    "deepseek",
    "deepseek2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "dbrx",
    "jamba",
    "gpt_oss",
    "gpt-oss",
    "llama4",
    "llama4_text",
    "grok",
    "grok-1",
    "arctic",
    "minimax",
    "minimax_m2",
    "kimi_k2",
    "longcat_flash",
    "dots1",
    "qwen3_next",
    "qwen3next",
];

/// Settings that only mixtures of experts have.
const EXPERT_COUNTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

impl Kind {
    /// The kind of a `model_type`.
    pub fn named(model_type: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.model_type == model_type)
    }

    /// The kind of a class of transformers.
    fn of_class(class: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.classes.contains(&class))
    }

    /// The kind that a configuration says; `None` where it says nothing. A kind that there is no code for is an error.
    pub fn of(fields: &Fields) -> Result<Option<&'static Kind>> {
        let said = fields.text("model_type")?;
        let classes = classes(fields)?;
        let unknown = |found: &str| Error::UnknownArchitecture {
            path: fields.path().to_owned(),
            found: found.into(),
            why: Unsupported::because(found, fields),
        };
        let kind = match (said, &classes[..]) {
            (None, []) => return Ok(None),
            (None, [first, ..]) => {
                classes.iter().find_map(|class| Kind::of_class(class)).ok_or_else(|| unknown(first))?
            }
            (Some(said), classes) => {
                let kind = Kind::named(said).ok_or_else(|| unknown(said))?;
                if !classes.is_empty() && !classes.iter().any(|class| kind.classes.contains(class)) {
                    return Err(Error::Conflict {
                        path: fields.path().to_owned(),
                        model_type: said.into(),
                        architectures: classes.join(", "),
                        known: kind.classes,
                    });
                }
                kind
            }
        };
        // A Llama with experts has the type of its own kind, but is none of the kind that there is code for.
        match has_experts(fields) {
            true => Err(unknown(kind.model_type)),
            false => Ok(Some(kind)),
        }
    }
}

impl Unsupported {
    /// Why a type that a file names is not supported.
    pub(crate) fn of_type(found: &str) -> Unsupported {
        let lower = found.to_ascii_lowercase();
        let class = lower.strip_suffix("forcausallm").unwrap_or(&lower);
        if lower.contains("moe")
            || EXPERTS.contains(&class)
            || EXPERTS.iter().any(|name| name.replace('_', "") == class)
        {
            return Unsupported::Experts;
        }
        let with_encoder = ["t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper", "led"];
        match with_encoder.contains(&class) || lower.ends_with("forconditionalgeneration") && class.starts_with("t5") {
            true => Unsupported::EncoderDecoder,
            false => Unsupported::NoCode,
        }
    }

    fn because(found: &str, fields: &Fields) -> Unsupported {
        match Unsupported::of_type(found) {
            Unsupported::NoCode if has_experts(fields) => Unsupported::Experts,
            Unsupported::NoCode if matches!(fields.flag("is_encoder_decoder", false), Ok(true)) => {
                Unsupported::EncoderDecoder
            }
            why => why,
        }
    }
}

/// The classes of transformers that a configuration names.
fn classes(fields: &Fields) -> Result<Vec<&str>> {
    let Some(value) = fields.get("architectures") else { return Ok(Vec::new()) };
    let list: Option<Vec<&str>> = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    list.ok_or_else(|| fields.bad("architectures", "no list of names"))
}

/// Whether a configuration, or the part of it about texts, has more than one expert.
fn has_experts(fields: &Fields) -> bool {
    let several = |value: &Value| value.as_u64().is_some_and(|count| count > 1);
    let text = fields.get("text_config");
    let member = |name: &&str| fields.get(name).or_else(|| text.and_then(|text| text.get(*name)));
    EXPERT_COUNTS.iter().filter_map(member).any(several)
}
