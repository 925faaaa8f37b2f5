//! Post-processors: the special tokens around a text.

use super::TokenizerError;
use super::bounds::{MOST_FRAME, few};
use super::json::{id, kind, parts};
use serde_json::Value;

const PART: &str = "post_processor";

/// The tokens before and after a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Frame {
    pub(super) fn parse(value: Option<&Value>) -> Result<Frame, TokenizerError> {
        let mut frame = Frame::default();
        for part in parts(value, "processors", PART)? {
            let one = Frame::one(part)?;
            // A later processor frames what an earlier one made.
            frame.before.splice(0..0, one.before);
            frame.after.extend(one.after);
        }
        Ok(frame)
    }

    fn one(value: &Value) -> Result<Frame, TokenizerError> {
        match kind(value, PART)? {
            // It changes offsets, not tokens.
            "ByteLevel" => Ok(Frame::default()),
            "TemplateProcessing" => Frame::template(value),
            "BertProcessing" | "RobertaProcessing" => {
                let token = |field| {
                    let token = value.get(field).and_then(|pair| pair.get(1));
                    id(token.unwrap_or(&Value::Null), PART, field)
                };
                Ok(Frame { before: vec![token("cls")?], after: vec![token("sep")?] })
            }
            other => Err(TokenizerError::Unsupported { part: PART, kind: other.into() }),
        }
    }

    fn template(value: &Value) -> Result<Frame, TokenizerError> {
        let malformed = |field| TokenizerError::Malformed { part: PART, field };
        let pieces = value.get("single").and_then(Value::as_array).ok_or(malformed("single"))?;
        let mut frame = Frame::default();
        let mut met = false;
        for piece in pieces {
            if piece.get("Sequence").is_some() {
                if met {
                    return Err(malformed("single"));
                }
                met = true;
                continue;
            }
            let name = piece.get("SpecialToken").and_then(|token| token.get("id")).and_then(Value::as_str);
            let name = name.ok_or(malformed("single"))?;
            let ids = value.get("special_tokens").and_then(|all| all.get(name)).and_then(|token| token.get("ids"));
            let ids = ids.and_then(Value::as_array).ok_or(malformed("special_tokens"))?;
            let side = if met { &mut frame.after } else { &mut frame.before };
            for token in ids {
                side.push(id(token, PART, "special_tokens")?);
            }
            few(PART, frame.before.len() + frame.after.len(), MOST_FRAME)?;
        }
        if met { Ok(frame) } else { Err(malformed("single")) }
    }
}
