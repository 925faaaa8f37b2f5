//! The files of a benchmark: lines of JSON and a page, opened before anything is measured.

use super::record::Record;
use super::{Arguments, Benchmark, html};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output_file::OutputFile;
use std::fmt::Write;

/// The requested output files.
#[derive(Debug)]
pub struct Outputs {
    json: Option<OutputFile>,
    html: Option<OutputFile>,
}

impl Outputs {
    /// Opens what `--json` and `--html` name.
    pub fn open(arguments: &Arguments) -> Result<Outputs, Failure> {
        if arguments.html.is_some() && matches!(arguments.what, Benchmark::Blocks | Benchmark::FirstCall) {
            let message = format!("there is no page of 'kiln bench {}'", arguments.what.name());
            return Err(Failure::unusable(message).advise("--json FILE"));
        }
        let (json, html) = (arguments.json.as_deref(), arguments.html.as_deref());
        let outputs = Outputs { json: OutputFile::maybe(json)?, html: OutputFile::maybe(html)? };
        // Both are there now, so that two names of one file show.
        if let (Some(json), Some(html)) = (&outputs.json, &outputs.html)
            && json.path().is_file()
            && json.path().canonicalize().ok() == html.path().canonicalize().ok()
        {
            return Err(Failure::unusable("--json and --html name the same file"));
        }
        Ok(outputs)
    }

    /// Writes all records, in place of those that were written before.
    pub fn write(&mut self, records: &[Record]) -> Outcome {
        self.write_lines(records.iter().map(Record::to_json))?;
        if let Some(file) = &mut self.html {
            let command = std::env::args().skip(1).fold("kiln".to_owned(), |line, word| line + " " + &word);
            file.write(&html::page(records, &command))?;
        }
        Ok(())
    }

    /// Writes one object per line, if JSON lines were requested.
    pub fn write_lines(&mut self, lines: impl IntoIterator<Item = serde_json::Value>) -> Outcome {
        let Some(file) = &mut self.json else { return Ok(()) };
        let mut text = String::new();
        for line in lines {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{line}");
        }
        Ok(file.write(&text)?)
    }
}
