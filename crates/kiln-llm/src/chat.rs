//! Chat templates: a conversation as the text that a model was trained on.
//!
//! Templates are Jinja, rendered as transformers renders them: blocks trimmed, loop controls, Python's methods of texts and
//! maps, `raise_exception`, `strftime_now` (of UTC), `tojson` in Python's spelling and order, `tools` and `documents` that
//! are `none` unless given. A template is foreign input: its work is bounded.

use crate::config::Fields;
use crate::{Error, Gguf, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind};
use serde_json::Value as Json;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

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
    environment: Environment<'static>,
    tokens: Vec<(String, String)>,
}

/// The one template of an environment.
const NAME: &str = "chat_template";

/// Steps that one rendering may take.
const FUEL: u64 = 10_000_000;

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
            let source = std::fs::read_to_string(&file).map_err(|e| Error::io(&file, &e))?;
            return ChatTemplate::new(&source, &tokens).map(Some);
        }
        let apart = read("chat_template.json")?.filter(|apart| apart.get("chat_template").is_some());
        let Some(config) = apart.or(config) else { return Ok(None) };
        match config.get("chat_template") {
            None => Ok(None),
            Some(Json::String(source)) => ChatTemplate::new(source, &tokens).map(Some),
            // Several, by name.
            Some(Json::Array(list)) => {
                let named = |name: &str| list.iter().find(|one| one.get("name").and_then(Json::as_str) == Some(name));
                let one = named("default").or(list.first()).and_then(|one| one.get("template"));
                let source = one.and_then(Json::as_str);
                ChatTemplate::new(source.ok_or_else(|| config.bad("chat_template", "no template"))?, &tokens).map(Some)
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
        ChatTemplate::new(source, &named).map(Some)
    }

    /// A template with special tokens by name, as `("bos_token", "<s>")`.
    pub fn new(source: &str, tokens: &[(String, String)]) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(Error::template)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", tojson);
        environment.add_function("strftime_now", |format: String| strftime(&format, seconds_now()));
        environment.add_function("raise_exception", |message: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, without_marks(source)).map_err(Error::template)?;
        Ok(ChatTemplate { environment, tokens: tokens.to_vec() })
    }

    /// The text of a conversation; with `answer`, the beginning of the assistant's next turn.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        let turn = |m: &Message| Value::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        self.render_values(messages.iter().map(turn).collect(), answer, &serde_json::Map::new())
    }

    /// [`ChatTemplate::render`] of turns that hold more than text, with further variables such as `tools`.
    pub fn render_json(&self, messages: &Json, answer: bool, more: &serde_json::Map<String, Json>) -> Result<String> {
        self.render_values(to_value(messages), answer, more)
    }

    fn render_values(&self, messages: Value, answer: bool, more: &serde_json::Map<String, Json>) -> Result<String> {
        let mut all: Vec<(&str, Value)> = Vec::new();
        all.extend(self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token))));
        all.extend([("tools", Value::from(())), ("documents", Value::from(()))]);
        all.extend([("messages", messages), ("add_generation_prompt", answer.into())]);
        all.extend(more.iter().map(|(name, value)| (name.as_str(), to_value(value))));
        let template = self.environment.get_template(NAME).map_err(Error::template)?;
        template.render(Value::from_pairs(all)).map_err(Error::template)
    }
}

/// `bos_token` and the like; each a text or an object that holds one.
fn special_tokens(config: &Fields) -> Vec<(String, String)> {
    let names = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];
    names.into_iter().filter_map(|name| Some((name.to_owned(), config.special_token(name)?))).collect()
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(members) => {
            Value::from_pairs(members.iter().map(|(name, value)| (name.as_str(), to_value(value))))
        }
    }
}

/// `{% generation %}` marks what an assistant said, for training; what is between the marks is a part of the text.
fn without_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + length + 2]);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        let plain = match inner {
            "generation" => tag.replace(inner, "if true"),
            "endgeneration" => tag.replace(inner, "endif"),
            _ => tag.to_owned(),
        };
        out.push_str(before);
        out.push_str(&plain);
        rest = &rest[start + length + 2..];
    }
    out + rest
}

/// JSON as Python's `json.dumps` writes it, with its options.
struct Dump {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    comma: String,
    colon: String,
}

/// JSON as transformers writes it: a space after commas and colons, or lines with an indent; letters as they are.
fn tojson(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            Some((pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = separators.unwrap_or_else(|| (comma.into(), ": ".into()));
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut out = String::new();
    Dump { indent, ascii, sorted, comma, colon }.write(&value, 0, &mut out)?;
    Ok(out)
}

impl Dump {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth).min(1 << 10)));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        let written = Json::from(text).to_string();
        if !self.ascii {
            return out.push_str(&written);
        }
        for c in written.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), minijinja::Error> {
        let map = value.kind() == ValueKind::Map;
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&value.to_string()),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                let mut items: Vec<Value> = value.try_iter()?.collect();
                if map && self.sorted {
                    items.sort();
                }
                out.push(if map { '{' } else { '[' });
                for (count, item) in items.iter().enumerate() {
                    out.push_str(if count > 0 { &self.comma } else { "" });
                    self.line(depth + 1, out);
                    if map {
                        self.text(&item.to_string(), out);
                        out.push_str(&self.colon);
                        self.write(&value.get_item(item)?, depth + 1, out)?;
                    } else {
                        self.write(item, depth + 1, out)?;
                    }
                }
                if !items.is_empty() {
                    self.line(depth, out);
                }
                out.push(if map { '}' } else { ']' });
            }
            _ => self.text(&value.to_string(), out),
        }
        Ok(())
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time in seconds since 1970 by C's format; what is no known field stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, time) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = date(days);
    let weekday = DAYS[(days % 7) as usize];
    let name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{:02}", time / 3600),
            Some('M') => out += &format!("{:02}", time / 60 % 60),
            Some('S') => out += &format!("{:02}", time % 60),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of the days since 1970: eras of 400 years, years that begin in March.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(strftime("%a %d %b %Y %H:%M:%S %%%q%", 0), "Thu 01 Jan 1970 00:00:00 %%q%");
        assert_eq!(strftime("%A, %d %B %y", 951_782_400), "Tuesday, 29 February 00");
        assert_eq!(strftime("%Y-%m-%d", 4_107_542_400), "2100-03-01");
    }

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
