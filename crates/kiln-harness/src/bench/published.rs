//! `kiln bench report`: docs/benchmarks.md, made of lines of JSON that are kept beside it.
//!
//! ```text
//!  docs/benchmarks/machines.jsonl   {"machine": "B", "about": "2 cores of …"}                      a line a machine
//!  docs/benchmarks/10-decode.jsonl  {"question": "…", "by": "median", "runs": [{"machine", "date", "command"}]}
//!                                   {"model": "…", "side": "kiln", "mode": "default", "median_ms": 1.5}         as `--json` writes them
//!                                   {"model": "…", "side": "torch", "mode": "torch:default", "ratio": 3.0}
//! ```
//!
//! The first line of a file is the question that its table answers; the others are records, whole ones of `kiln bench … --json` or
//! those of their fields that are known. A record of a peer has a time, or only how many times as long as Kiln it takes (`ratio`,
//! `ratio_of_minima`). Records of the same model, prompt, threads and machine are one row. With `"summary"` in the question, rows are
//! summed up by the field that it names: how many, the geometric mean, the worst, and how many are behind.

use kiln_terminal::failure::Failure;
use kiln_terminal::format;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Benchmarks

<!-- Written by `kiln bench report > docs/benchmarks.md` from the lines of JSON in docs/benchmarks; a test compares the two. -->

× is how many times as long the other side takes: above 1 Kiln is ahead. Both sides of a × were measured in one run, turn by turn, unless the table says otherwise.
`torch` is PyTorch 2.11 with transformers' model, `torch-lean` a decoder written by hand for torch.compile, `eager` Kiln op by op. How it is measured:
[benchmarking.md](benchmarking.md). Every run with its circumstances, what was tried and what falls short: [benchmarks-log.md](benchmarks-log.md).
";

/// The page of a folder of lines.
pub fn page(folder: &Path) -> Result<String, Failure> {
    let mut out = HEAD.to_owned() + "\n";
    for machine in lines(&folder.join("machines.jsonl"))? {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(out, "- Machine {}: {}", text(&machine, "machine"), text(&machine, "about"));
    }
    for file in files(folder)? {
        let lines = lines(&file)?;
        let Some((question, records)) = lines.split_first().filter(|(first, _)| first["question"].is_string()) else {
            return Err(Failure::unusable(format!("{}: the first line is no question", file.display())));
        };
        let table = Table { question, rows: rows(question, records) };
        table.write(&mut out);
    }
    Ok(out)
}

/// The files of questions, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).map_err(|error| Failure::file(folder, error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        path.extension().is_some_and(|end| end == "jsonl") && path.file_stem() != Some("machines".as_ref())
    });
    files.sort();
    Ok(files)
}

fn lines(path: &Path) -> Result<Vec<Value>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    let parse = |(number, line): (usize, &str)| {
        let place = || Failure::unusable(format!("{}: line {}", path.display(), number + 1));
        serde_json::from_str(line).map_err(|error| place().caused_by(error))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// What is measured once: the records of all sides.
struct Row<'a> {
    machine: &'a str,
    model: &'a str,
    prompt: Option<u64>,
    threads: Option<u64>,
    records: Vec<&'a Value>,
}

fn rows<'a>(question: &'a Value, records: &'a [Value]) -> Vec<Row<'a>> {
    let first = text(&question["runs"][0], "machine");
    let mut rows: Vec<Row<'a>> = Vec::new();
    for record in records {
        let machine = record["machine"].as_str().unwrap_or(first);
        let (model, prompt, threads) = (text(record, "model"), record["prompt"].as_u64(), record["threads"].as_u64());
        let same =
            |row: &&mut Row<'_>| (row.machine, row.model, row.prompt, row.threads) == (machine, model, prompt, threads);
        match rows.iter_mut().find(same) {
            Some(row) => row.records.push(record),
            None => rows.push(Row { machine, model, prompt, threads, records: vec![record] }),
        }
    }
    rows
}

/// The table that answers a question.
struct Table<'a> {
    question: &'a Value,
    rows: Vec<Row<'a>>,
}

impl<'a> Table<'a> {
    /// Whether figures are minima; medians otherwise.
    fn of_minima(&self) -> bool {
        text(self.question, "by") == "minimum"
    }

    fn seconds(&self, record: &Value) -> Option<f64> {
        record[if self.of_minima() { "min_ms" } else { "median_ms" }].as_f64().map(|ms| ms / 1e3)
    }

    /// Tokens a second, as a record states them or as the question's tokens a call give.
    fn rate(&self, record: &Value) -> Option<f64> {
        let tokens = self.question["tokens_a_call"].as_f64();
        record["tokens_per_s"].as_f64().or_else(|| Some(tokens? / self.seconds(record)?))
    }

    /// Kiln's own record of a row: its fastest compiled mode, of those that the question names if it does.
    fn kiln(&self, row: &Row<'a>) -> Option<&'a Value> {
        let named = |record: &Value| match self.question["kiln"].as_array() {
            Some(modes) => modes.contains(&record["mode"]),
            None => record["mode"] != "eager",
        };
        let own = row.records.iter().copied().filter(|record| record["side"] == "kiln" && named(record));
        own.min_by(|a, b| {
            let [a, b] = [a, b].map(|record| self.seconds(record).unwrap_or(f64::INFINITY));
            a.total_cmp(&b)
        })
    }

    /// How many times as long as Kiln another record takes.
    fn ratio(&self, row: &Row<'a>, other: &Value) -> Option<f64> {
        let stated = other[if self.of_minima() { "ratio_of_minima" } else { "ratio" }].as_f64();
        stated.or_else(|| Some(self.seconds(other)? / self.seconds(self.kiln(row)?)?))
    }

    /// The modes of other sides, and of Kiln itself that are columns of their own, in the order in which they come.
    fn labels(&self) -> Vec<&'a str> {
        let mut labels = Vec::new();
        for row in &self.rows {
            let kiln = self.kiln(row);
            let is_other = |record: &&&Value| kiln.is_none_or(|kiln| !std::ptr::eq(kiln, **record));
            // With several modes in the race the slower ones are no columns.
            let is_column = |record: &&&Value| record["side"] != "kiln" || self.is_named_column(record);
            for record in row.records.iter().filter(is_other).filter(is_column) {
                let label = text(record, "mode");
                if !labels.contains(&label) {
                    labels.push(label);
                }
            }
        }
        labels
    }

    fn is_named_column(&self, record: &Value) -> bool {
        let others = self.question["kiln"].as_array().filter(|_| self.question["summary"].is_null());
        record["mode"] == "eager" || others.is_some_and(|modes| !modes.contains(&record["mode"]))
    }

    fn write(&self, out: &mut String) {
        let question = self.question;
        let _ = writeln!(out, "\n## {}\n", text(question, "question"));
        let by = if self.of_minima() { "minima" } else { "medians" };
        let note = question["note"].as_str().map(|note| format!("; {note}")).unwrap_or_default();
        let run = |run: &Value| {
            format!("Machine {}, {}: `{}`", text(run, "machine"), text(run, "date"), text(run, "command"))
        };
        let runs: Vec<String> = question["runs"].as_array().into_iter().flatten().map(run).collect();
        // Lines around a table are few.
        let _ = writeln!(out, "{}. By {by}{note}.\n", runs.join(";\n"));
        let lines = match question["summary"].as_str() {
            Some(field) => self.summary(field),
            None => self.every_row(),
        };
        // Columns that no row has anything in are left out.
        let columns = lines.first().map_or(0, Vec::len);
        let kept: Vec<usize> =
            (0..columns).filter(|&column| lines[1..].iter().any(|line| !line[column].is_empty())).collect();
        for (number, line) in lines.iter().enumerate() {
            let cells: Vec<&str> = kept.iter().map(|&column| line[column].as_str()).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
            if number == 0 {
                let _ = writeln!(out, "|{}", "---|".repeat(kept.len()));
            }
        }
    }

    /// One line per row: Kiln's time and rate, its first call, and the ratios of the others.
    fn every_row(&self) -> Vec<Vec<String>> {
        let labels = self.labels();
        let differ =
            |value: fn(&Row<'a>) -> Option<u64>| self.rows.iter().any(|row| value(row) != value(&self.rows[0]));
        let (prompts, threads) = (differ(|row| row.prompt), differ(|row| row.threads));
        let machines = self.rows.iter().any(|row| row.machine != self.rows[0].machine);
        let mut titles: Vec<String> =
            ["machine", "", "tokens", "threads", "Kiln", "tokens/s", "first call"].map(Into::into).into();
        titles.extend(labels.iter().map(|label| (*label).to_owned()));
        titles.push("their first calls".into());
        let mut lines = vec![titles];
        for row in &self.rows {
            let kiln = self.kiln(row);
            let number = |shown: bool, value: Option<u64>| {
                value.filter(|_| shown).map(|value| value.to_string()).unwrap_or_default()
            };
            let rate = kiln.and_then(|kiln| self.rate(kiln)).map(format::rate).unwrap_or_default();
            let first = kiln.and_then(|kiln| kiln["first_call_s"].as_f64()).map(format::seconds).unwrap_or_default();
            let mut line = vec![
                if machines { row.machine.to_owned() } else { String::new() },
                row.model.to_owned(),
                number(prompts, row.prompt),
                number(threads, row.threads),
                kiln.and_then(|kiln| self.seconds(kiln)).map(format::seconds).unwrap_or_default(),
                rate,
                first,
            ];
            let of = |label: &str| row.records.iter().copied().find(|record| text(record, "mode") == label);
            line.extend(labels.iter().map(|label| of(label).map(|other| self.cell(row, other)).unwrap_or_default()));
            line.push(self.first_calls(row));
            lines.push(line);
        }
        lines
    }

    /// What a column says of a side: how many times as long it takes; of Kiln's own modes other than eager the time.
    fn cell(&self, row: &Row<'a>, other: &Value) -> String {
        match self.seconds(other) {
            Some(seconds) if other["side"] == "kiln" && other["mode"] != "eager" => format::seconds(seconds),
            _ => self.ratio(row, other).map(format::ratio).unwrap_or_default(),
        }
    }

    /// From the soonest to the latest first call of the others.
    fn first_calls(&self, row: &Row<'a>) -> String {
        let others = row.records.iter().filter(|record| record["side"] != "kiln");
        let calls: Vec<f64> = others.filter_map(|record| record["first_call_s"].as_f64()).collect();
        let [soonest, latest] = [calls.iter().copied().reduce(f64::min), calls.iter().copied().reduce(f64::max)];
        match (soonest, latest) {
            (Some(a), Some(b)) if a == b => format::seconds(a),
            (Some(a), Some(b)) => format!("{} to {}", format::seconds(a), format::seconds(b)),
            _ => String::new(),
        }
    }

    /// A line for each value of a field: how many rows, and of every other side the geometric mean, the worst, and the rows on which
    /// Kiln is behind.
    fn summary(&self, field: &str) -> Vec<Vec<String>> {
        let labels = self.labels();
        let mut titles = vec![field.to_owned(), "rows".to_owned()];
        titles.extend(labels.iter().map(|label| format!("{label}: geometric mean, worst, behind")));
        let mut lines = vec![titles];
        let value = |row: &Row<'a>| match &row.records[0][field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut values: Vec<String> = Vec::new();
        for row in &self.rows {
            if !values.contains(&value(row)) {
                values.push(value(row));
            }
        }
        for group in values {
            let rows: Vec<&Row<'a>> = self.rows.iter().filter(|row| value(row) == group).collect();
            let mut line = vec![group, rows.len().to_string()];
            for label in &labels {
                let of = |row: &&Row<'a>| row.records.iter().copied().find(|record| text(record, "mode") == *label);
                let ratios: Vec<f64> = rows.iter().filter_map(|row| self.ratio(row, of(row)?)).collect();
                line.push(summed(&ratios));
            }
            lines.push(line);
        }
        lines
    }
}

/// Geometric mean, worst and how many are below 1.
fn summed(ratios: &[f64]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let behind = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    format!("{}, {}, {behind}", format::ratio(mean), format::ratio(worst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn documents() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// The page that people read is the one that the committed lines give.
    #[test]
    fn the_page_is_what_the_lines_say() {
        let page = page(&documents().join("benchmarks")).unwrap();
        let kept = std::fs::read_to_string(documents().join("benchmarks.md")).unwrap();
        assert!(page == kept, "docs/benchmarks.md is not up to date: kiln bench report > docs/benchmarks.md");
        assert!(page.lines().count() <= 180, "{} lines", page.lines().count());
    }

    /// Every table says on which machine, when and by which command; every machine is described.
    #[test]
    fn every_table_says_where_it_is_from() {
        let folder = documents().join("benchmarks");
        let machines = lines(&folder.join("machines.jsonl")).unwrap();
        let questions = files(&folder).unwrap();
        assert!(questions.len() >= 8, "{questions:?}");
        for file in questions {
            let lines = lines(&file).unwrap();
            let runs = lines[0]["runs"].as_array().unwrap();
            assert!(!runs.is_empty() && lines.len() > 1, "{}", file.display());
            for run in runs {
                let known = machines.iter().any(|machine| machine["machine"] == run["machine"]);
                assert!(
                    known && text(run, "date").starts_with("20") && text(run, "command").contains("kiln bench"),
                    "{run}"
                );
            }
            for record in &lines[1..] {
                let machine = record["machine"].as_str().unwrap_or(text(&runs[0], "machine"));
                assert!(runs.iter().any(|run| run["machine"] == machine), "{}: {record}", file.display());
                assert!(record["side"].is_string() && record["mode"].is_string(), "{}: {record}", file.display());
            }
        }
    }

    #[test]
    fn ratios_are_stated_or_of_one_run() {
        let question = json!({"question": "?", "by": "median", "runs": [{"machine": "A"}]});
        let records = [
            json!({"model": "m", "side": "kiln", "mode": "default", "median_ms": 2.0, "tokens_per_s": 500.0}),
            json!({"model": "m", "side": "kiln", "mode": "reduce-overhead", "median_ms": 1.0}),
            json!({"model": "m", "side": "torch", "mode": "torch:default", "median_ms": 3.0, "first_call_s": 20.0}),
            json!({"model": "m", "side": "torch", "mode": "torch:eager", "ratio": 0.5, "first_call_s": 1.0}),
        ];
        let table = Table { question: &question, rows: rows(&question, &records) };
        let mut out = String::new();
        table.write(&mut out);
        let last = out.lines().last().unwrap();
        assert_eq!(last, "| m | 1.00 ms | 3.00× | 0.50× | 1.00 s to 20.0 s |", "{out}");
        let question = json!({"question": "?", "by": "median", "summary": "threads", "runs": [{"machine": "A"}]});
        let records = [
            json!({"model": "m", "threads": 1, "side": "torch", "mode": "torch:eager", "ratio": 0.5}),
            json!({"model": "n", "threads": 1, "side": "torch", "mode": "torch:eager", "ratio": 8.0}),
        ];
        let table = Table { question: &question, rows: rows(&question, &records) };
        assert_eq!(table.summary("threads")[1], ["1", "2", "2.00×, 0.50×, 1"]);
    }

    #[test]
    fn a_line_that_is_no_json_is_named() {
        let folder = std::env::temp_dir().join(format!("kiln-published-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("machines.jsonl"), "{\"machine\": \"A\"}\nnonsense\n").unwrap();
        let error = page(&folder).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.ends_with("machines.jsonl: line 2"), "{error}");
    }
}
