//! Chat templates: a conversation as the text that a model was trained on.
//!
//! Templates are Jinja, rendered as transformers renders them: blocks trimmed, loop controls, Python's methods of texts and
//! maps, `raise_exception`, `strftime_now` (of UTC), `tojson` in Python's spelling and order, `tools` and `documents` that
//! are `none` unless given. A template is foreign input: its steps, its memory and its depth are bounded.

use crate::config::Fields;
use crate::jinja::{Template, TemplateError};
use crate::{Error, Gguf, Result, files};
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Whose: `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// The template of a model, with the names of its special tokens.
///
/// ```
/// use kiln_llm::{ChatTemplate, Message};
/// let source = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m.content.strip() }}<|im_end|>\n{% endfor %}\
///     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// let template = ChatTemplate::new(source, &[])?;
/// let text = template.render(&[Message::new("user", " Hi! ")], true)?;
/// assert_eq!(text, "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n");
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    tokens: Vec<(String, String)>,
    /// Where it is from, for messages.
    origin: String,
}

impl ChatTemplate {
    /// The template of a folder: `chat_template.jinja`, or the one in `chat_template.json` or `tokenizer_config.json`; none if
    /// none of them has one.
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<ChatTemplate>> {
        let folder = folder.as_ref();
        let read = |name: &str| {
            let path = folder.join(name);
            if path.exists() { Fields::read(path).map(Some) } else { Ok(None) }
        };
        let config = read("tokenizer_config.json")?;
        let mut tokens = config.as_ref().map(special_tokens).unwrap_or_default();
        for (name, token) in read("special_tokens_map.json")?.as_ref().map(special_tokens).unwrap_or_default() {
            if !tokens.iter().any(|(known, _)| *known == name) {
                tokens.push((name, token));
            }
        }
        let file = folder.join("chat_template.jinja");
        if file.exists() {
            let source = files::read_text(&file, files::Kind::Template)?;
            return ChatTemplate::of(&source, &tokens, file.display().to_string()).map(Some);
        }
        let apart = read("chat_template.json")?.filter(|apart| apart.get("chat_template").is_some());
        let Some(config) = apart.or(config) else { return Ok(None) };
        let origin = format!("{}: chat_template", config.path().display());
        match config.get("chat_template") {
            None => Ok(None),
            Some(Json::String(source)) => ChatTemplate::of(source, &tokens, origin).map(Some),
            // Several, by name.
            Some(Json::Array(list)) => {
                let named = |name: &str| list.iter().find(|one| one.get("name").and_then(Json::as_str) == Some(name));
                let one = named("default").or(list.first()).and_then(|one| one.get("template"));
                let source = one.and_then(Json::as_str).ok_or_else(|| config.bad("chat_template", "no template"))?;
                ChatTemplate::of(source, &tokens, origin).map(Some)
            }
            Some(other) => Err(config.bad("chat_template", format!("{other} is no template"))),
        }
    }

    /// The template of a GGUF file; none if it has none.
    pub fn from_gguf(file: &Gguf) -> Result<Option<ChatTemplate>> {
        let Some(source) = file.text("tokenizer.chat_template") else { return Ok(None) };
        let tokens = file.texts("tokenizer.ggml.tokens").unwrap_or_default();
        let token = |name: &str| {
            let id = file.token(&format!("tokenizer.ggml.{name}_token_id"))?;
            Some((format!("{name}_token"), tokens.get(id as usize)?.clone()))
        };
        let named: Vec<(String, String)> = ["bos", "eos"].into_iter().filter_map(token).collect();
        ChatTemplate::of(source, &named, "tokenizer.chat_template".into()).map(Some)
    }

    /// A template with special tokens by name, as `("bos_token", "<s>")`.
    pub fn new(source: &str, tokens: &[(String, String)]) -> Result<ChatTemplate> {
        ChatTemplate::of(source, tokens, "chat template".into())
    }

    fn of(source: &str, tokens: &[(String, String)], origin: String) -> Result<ChatTemplate> {
        match Template::parse(source) {
            Ok(template) => Ok(ChatTemplate { template, tokens: tokens.to_vec(), origin }),
            Err(cause) => Err(Error::Template { origin, cause: Box::new(cause) }),
        }
    }

    /// The text of a conversation; with `answer`, the beginning of the assistant's next turn.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        let turns = messages.iter().map(|turn| json!({"role": turn.role, "content": turn.content})).collect();
        self.render_json(&turns, answer, &Map::new())
    }

    /// [`ChatTemplate::render`] of turns that hold more than text, with further variables such as `tools`.
    pub fn render_json(&self, messages: &Json, answer: bool, more: &Map<String, Json>) -> Result<String> {
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), Json::from(token.as_str())));
        let own = [
            ("tools", Json::Null),
            ("documents", Json::Null),
            ("messages", messages.clone()),
            ("add_generation_prompt", answer.into()),
        ];
        let more = more.iter().map(|(name, value)| (name.as_str(), value.clone()));
        self.template.render(tokens.chain(own).chain(more)).map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: TemplateError) -> Error {
        Error::Template { origin: self.origin.clone(), cause: Box::new(cause) }
    }
}

/// `bos_token` and the like; each a text or an object that holds one.
fn special_tokens(config: &Fields) -> Vec<(String, String)> {
    let names = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];
    names.into_iter().filter_map(|name| Some((name.to_owned(), config.special_token(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_of_transformers_are_there() {
        let render = |source: &str| {
            let messages = serde_json::json!([{"role": "user", "content": "hi", "tools": [{"b": 1.5, "a": null}]}]);
            let tokens = [("bos_token".to_owned(), "<s>".to_owned())];
            ChatTemplate::new(source, &tokens)?.render_json(&messages, true, &serde_json::Map::new())
        };
        assert_eq!(render("{{ messages[0].tools | tojson }}").unwrap(), r#"[{"b": 1.5, "a": null}]"#);
        assert_eq!(
            render("{{ messages[0].tools[0] | tojson(indent=2) }}").unwrap(),
            "{\n  \"b\": 1.5,\n  \"a\": null\n}"
        );
        let loops = "{{ bos_token }}{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}";
        assert_eq!(render(loops).unwrap(), "<s>023");
        let blocks = "a\n  {% if add_generation_prompt %}\n  b\n  {%- endif %}\nc";
        assert_eq!(render(blocks).unwrap(), "a\n  bc");
        assert_eq!(
            render("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{{ 'a,b'.split(',')[-1] }}")
                .unwrap(),
            "2b"
        );
        let compact = "{{ messages[0].tools | tojson(sort_keys=true, separators=(',', ':')) }}";
        assert_eq!(render(compact).unwrap(), r#"[{"a":null,"b":1.5}]"#);
        assert_eq!(
            render("{{ 'é😀' | tojson }}{{ 'é😀' | tojson(ensure_ascii=true) }}").unwrap(),
            r#""é😀""\u00e9\ud83d\ude00""#
        );
        // Not given, but defined.
        assert_eq!(render("{{ tools is none }}{{ documents is defined }}").unwrap(), "TrueTrue");
        assert_eq!(render("{%- generation -%} a {%- endgeneration %} b").unwrap(), "a b");
        let refused = render("{{ raise_exception('roles must alternate') }}").unwrap_err().to_string();
        assert!(refused.contains("roles must alternate"), "{refused}");
        assert!(render("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}").is_err());
    }
}
