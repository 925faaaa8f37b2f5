//! What of several lines is one text: lines that end in a backslash, and blocks between `"""`.

/// What a block begins and ends with.
const QUOTES: &str = "\"\"\"";

/// Whether more lines belong to a text.
pub fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(inside) => !inside.trim_end().ends_with(QUOTES),
        None => ends_in_backslash(text),
    }
}

/// Whether a text goes on behind the backslash it ends in; two of them are one that is meant.
fn ends_in_backslash(text: &str) -> bool {
    text.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1
}

/// The text that is meant, without the signs that kept it open.
pub fn meant(text: &str) -> String {
    let text = text.trim();
    if let Some(inside) = text.strip_prefix(QUOTES) {
        return inside.strip_suffix(QUOTES).unwrap_or(inside).trim_matches('\n').to_owned();
    }
    let lines: Vec<&str> = text.split('\n').collect();
    let (last, before) = lines.split_last().unwrap_or((&"", &[]));
    let joined =
        |line: &&str| if ends_in_backslash(line) { line[..line.len() - 1].to_owned() } else { (*line).to_owned() };
    before.iter().map(joined).chain([(*last).to_owned()]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_belong_together_while_they_say_so() {
        for (text, open) in [
            ("plain", false),
            ("", false),
            ("one \\", true),
            ("one \\\ntwo", false),
            ("a path C:\\\\", false),
            ("\"\"\"", true),
            ("\"\"\"one", true),
            ("\"\"\"one\n\"two\"", true),
            ("\"\"\"one\"\"\"", false),
            ("\"\"\"\none\n\"\"\"", false),
            ("say \"\"\"", false),
        ] {
            assert_eq!(is_open(text), open, "{text}");
        }
    }

    #[test]
    fn what_is_meant_has_no_signs() {
        for (text, words) in [
            (" plain ", "plain"),
            ("one \\\ntwo", "one \ntwo"),
            ("\"\"\"one\ntwo\"\"\"", "one\ntwo"),
            ("\"\"\"\n one\n\n\ntwo\n\"\"\"", " one\n\n\ntwo"),
            ("one\ntwo", "one\ntwo"),
            ("\"\"\"", ""),
            ("\"\"\"one \\", "one \\"),
        ] {
            assert_eq!(meant(text), words, "{text}");
        }
    }
}
