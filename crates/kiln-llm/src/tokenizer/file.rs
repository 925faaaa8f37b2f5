//! `tokenizer.json` as it is read. The vocabulary and the merges are tens of thousands of texts: as values they would take
//! twenty times the size of the file, so they go straight to the form they are used in.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The tokens by their texts.
pub(super) type Vocabulary = HashMap<Arc<str>, u32>;

/// A file, parsed.
pub(super) struct TokenizerFile {
    /// The member `model`.
    pub(super) model: ModelPart,
    /// All others.
    pub(super) members: Map<String, Value>,
}

/// The member `model`.
#[derive(Default)]
pub(super) struct ModelPart {
    /// All but the tables.
    pub(super) fields: Value,
    /// `vocab`; `None` where it is not a token number a text.
    pub(super) vocabulary: Option<Vocabulary>,
    /// Whether there is a member `merges`.
    pub(super) has_merges: bool,
    /// `merges`; `None` where it is no list of pairs.
    pub(super) merges: Option<Pairs>,
}

/// Pairs of texts, all in one.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    text: String,
    /// Where the left and the right text of each end.
    ends: Vec<(usize, usize)>,
}

impl Pairs {
    fn push(&mut self, left: &str, right: &str) {
        self.text.push_str(left);
        let middle = self.text.len();
        self.text.push_str(right);
        self.ends.push((middle, self.text.len()));
    }

    /// The pairs, in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        (0..self.ends.len()).map(|number| {
            let begin = number.checked_sub(1).map_or(0, |before| self.ends[before].1);
            let (middle, end) = self.ends[number];
            (&self.text[begin..middle], &self.text[middle..end])
        })
    }
}

/// The visits of what is neither a list nor an object, all with the same answer.
macro_rules! scalars {
    ($answer:expr) => {
        scalars!($answer, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($answer)
        }
    };
    ($answer:expr, $($visit:ident: $ty:ty),+) => {
        $(fn $visit<E>(self, _: $ty) -> Result<Self::Value, E> {
            Ok($answer)
        })+
    };
}

fn skip<'de, S: SeqAccess<'de>>(mut list: S) -> Result<(), S::Error> {
    while list.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

impl<'de> Deserialize<'de> for TokenizerFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenizerFile, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = TokenizerFile;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<TokenizerFile, M::Error> {
                let mut file = TokenizerFile { model: ModelPart::default(), members: Map::new() };
                while let Some(name) = map.next_key::<String>()? {
                    match &*name {
                        "model" => file.model = map.next_value()?,
                        _ => drop(file.members.insert(name, map.next_value()?)),
                    }
                }
                Ok(file)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl<'de> Deserialize<'de> for ModelPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ModelPart, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = ModelPart;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a model")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<ModelPart, M::Error> {
                let mut model = ModelPart::default();
                let mut fields = Map::new();
                while let Some(name) = map.next_key::<String>()? {
                    match &*name {
                        "vocab" => model.vocabulary = map.next_value::<Ids>()?.0,
                        "merges" => {
                            model.has_merges = true;
                            model.merges = map.next_value::<Merges>()?.0;
                        }
                        _ => drop(fields.insert(name, map.next_value()?)),
                    }
                }
                model.fields = Value::Object(fields);
                Ok(model)
            }
            fn visit_seq<S: SeqAccess<'de>>(self, list: S) -> Result<ModelPart, S::Error> {
                skip(list).map(|()| ModelPart::default())
            }
            scalars!(ModelPart::default());
        }
        deserializer.deserialize_any(Members)
    }
}

/// A vocabulary, if it is one.
struct Ids(Option<Vocabulary>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ids, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ids;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Ids, M::Error> {
                let mut all = Some(Vocabulary::new());
                while let Some((text, id)) = map.next_entry::<String, Value>()? {
                    match (&mut all, id.as_u64().and_then(|id| u32::try_from(id).ok())) {
                        (Some(all), Some(id)) => drop(all.insert(text.into(), id)),
                        _ => all = None,
                    }
                }
                Ok(Ids(all))
            }
            fn visit_seq<S: SeqAccess<'de>>(self, list: S) -> Result<Ids, S::Error> {
                skip(list).map(|()| Ids(None))
            }
            scalars!(Ids(None));
        }
        deserializer.deserialize_any(Entries)
    }
}

/// A list of merges, if it is one: `"left right"` or `["left", "right"]` each.
struct Merges(Option<Pairs>);

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merges, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = Merges;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Merges, S::Error> {
                let mut all = Some(Pairs::default());
                while let Some(merge) = list.next_element::<Value>()? {
                    let pair = match &merge {
                        Value::String(pair) => pair.split_once(' '),
                        Value::Array(pair) => match &pair[..] {
                            [Value::String(left), Value::String(right)] => Some((&**left, &**right)),
                            _ => None,
                        },
                        _ => None,
                    };
                    match (&mut all, pair) {
                        (Some(all), Some((left, right))) => all.push(left, right),
                        _ => all = None,
                    }
                }
                Ok(Merges(all))
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Merges, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Merges(None))
            }
            scalars!(Merges(None));
        }
        deserializer.deserialize_any(Items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> ModelPart {
        serde_json::from_str::<TokenizerFile>(text).unwrap().model
    }

    #[test]
    fn tables_go_to_the_form_they_are_used_in() {
        let part =
            model(r#"{"model": {"type": "BPE", "merges": ["a b", ["ab", " c"]], "vocab": {"a": 0, "\u0062": 7}}}"#);
        assert_eq!(part.vocabulary.unwrap().get("b"), Some(&7));
        assert_eq!(part.merges.unwrap().iter().collect::<Vec<_>>(), [("a", "b"), ("ab", " c")]);
        assert_eq!(part.fields, serde_json::json!({"type": "BPE"}));
    }

    #[test]
    fn tables_of_another_kind_are_none() {
        for odd in ["null", "true", "-1", "1.5", r#""x""#, "[1, [2]]", r#"{"a": -1}"#, r#"{"a": {}, "b": 1}"#] {
            let part = model(&format!(r#"{{"model": {{"vocab": {odd}, "merges": {odd}, "unk_token": "u"}}, "x": 1}}"#));
            assert!(part.vocabulary.is_none() && part.merges.is_none() && part.has_merges, "{odd}");
            assert_eq!(part.fields["unk_token"], "u", "{odd}");
            assert!(model(&format!(r#"{{"model": {odd}}}"#)).vocabulary.is_none(), "{odd}");
        }
    }
}
