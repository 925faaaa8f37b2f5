//! The user's own lines, where their files can be found.

use kiln_ir::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines shown before and after one that is of interest.
const AROUND: u32 = 2;

/// A part of a file.
pub(super) struct Excerpt {
    /// The file as the compiler names it.
    pub(super) file: String,
    /// Runs of lines, each with its number; `None` where the file could not be read.
    pub(super) runs: Vec<Vec<(u32, Option<String>)>>,
}

/// The lines that sources name, with some around them, by file.
pub(super) fn excerpts<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<Excerpt> {
    let mut files: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for source in sources.filter(|source| !source.is_unknown()) {
        files.entry(&source.file).or_default().push(source.line);
    }
    files.into_iter().map(|(file, lines)| excerpt(file, lines)).collect()
}

fn excerpt(file: &str, mut lines: Vec<u32>) -> Excerpt {
    lines.sort_unstable();
    lines.dedup();
    let text = find(Path::new(file)).and_then(|path| std::fs::read_to_string(path).ok());
    let Some(text) = text else {
        let run = lines.into_iter().map(|line| (line, None)).collect();
        return Excerpt { file: file.to_owned(), runs: vec![run] };
    };
    let all: Vec<&str> = text.lines().collect();
    let mut runs: Vec<Vec<(u32, Option<String>)>> = Vec::new();
    let mut shown = 0;
    for line in lines {
        let first = line.saturating_sub(AROUND).max(1);
        let last = (line + AROUND).min(all.len() as u32).max(line);
        if runs.is_empty() || first > shown + 1 {
            runs.push(Vec::new());
        }
        if let Some(run) = runs.last_mut() {
            for number in first.max(shown + 1)..=last {
                run.push((number, all.get(number as usize - 1).map(|text| (*text).to_owned())));
            }
        }
        shown = shown.max(last);
    }
    Excerpt { file: file.to_owned(), runs }
}

/// A file that the compiler named from the folder it was started in, which may be above this one.
fn find(file: &Path) -> Option<PathBuf> {
    if file.is_absolute() {
        return file.is_file().then(|| file.to_owned());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(file)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_with_their_neighbours_and_none_twice() {
        let at = |line| Source::new(file!(), line);
        let sources = [at(3), at(4), at(20), at(3)];
        let excerpts = excerpts(sources.iter());
        assert_eq!(excerpts.len(), 1);
        let numbers: Vec<Vec<u32>> =
            excerpts[0].runs.iter().map(|run| run.iter().map(|(number, _)| *number).collect()).collect();
        assert_eq!(numbers, [vec![1, 2, 3, 4, 5, 6], vec![18, 19, 20, 21, 22]]);
        assert_eq!(excerpts[0].runs[0][2].1.as_deref(), Some("use kiln_ir::Source;"));
    }

    #[test]
    fn a_file_that_is_not_there_has_numbers_only() {
        let source = Source::new("nowhere/at/all.rs", 7);
        let excerpts = excerpts([source].iter());
        assert_eq!(excerpts[0].runs, [vec![(7, None)]]);
    }
}
