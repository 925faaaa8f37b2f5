//! The names of a classifier's kinds.

use crate::config::Fields;
use crate::{Error, Result, files};
use std::path::Path;

/// Names by number: `id2label` of `config.json`, else the lines of `synset_words.txt` (`n01440764 tench, Tinca tinca`) or
/// `labels.txt`, else the number itself.
pub(super) fn labels(folder: &Path, config: Option<&Fields>, classes: usize) -> Result<Vec<String>> {
    let mut labels: Vec<String> = (0..classes).map(|class| format!("class {class}")).collect();
    let named = config.map(|fields| fields.object("id2label")).transpose()?.flatten();
    if let (Some(named), Some(fields)) = (named, config) {
        for (class, label) in labels.iter_mut().enumerate() {
            match named.text(&class.to_string())? {
                Some(name) => *label = name.to_owned(),
                None => return Err(fields.bad("id2label", format!("it has no name for {class} of {classes}"))),
            }
        }
        return Ok(labels);
    }
    for (file, synsets) in [("synset_words.txt", true), ("labels.txt", false)] {
        let path = folder.join(file);
        if !path.exists() {
            continue;
        }
        let text = files::read_text(&path, files::Kind::Labels)?;
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.len() != classes {
            let problem = format!("{} lines for {classes} kinds", lines.len());
            return Err(Error::Config { path, field: "labels".into(), problem });
        }
        let name = |line: &str| match line.split_once(' ') {
            Some((synset, name)) if synsets && is_synset(synset) => name.trim().to_owned(),
            _ => line.to_owned(),
        };
        return Ok(lines.into_iter().map(name).collect());
    }
    Ok(labels)
}

/// A name of WordNet's: n and eight digits.
fn is_synset(word: &str) -> bool {
    word.len() == 9 && word.starts_with('n') && word[1..].bytes().all(|byte| byte.is_ascii_digit())
}
