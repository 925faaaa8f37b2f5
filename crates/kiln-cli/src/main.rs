//! The `kiln` command: one file a subcommand, each with its options (`Arguments`) and what it does (`run`). Measuring and testing
//! (`bench`, `selftest`, `fuzz`) are in `kiln-harness`, how all of them talk is in `kiln-terminal`.
//!
//! ```text
//! kiln                     the demo: a model tells a story, eager and compiled, timed and checked
//! kiln run MODEL           a model continues a text, or talks
//! kiln embed MODEL TEXT…   vectors of texts
//! kiln classify MODEL …    what pictures show
//! kiln bench …             measure, with PyTorch beside if asked
//! kiln explain FILE        what became of a graph: kernels, bytes, what was not fused and why
//! kiln cache …             what is on disk, and how to ship it
//! kiln doctor              what this machine offers and what Kiln would use
//! kiln selftest            differential tests on this machine, one line a group
//! kiln fuzz …              look for graphs on which interpreter, eager and compiled differ
//! kiln completions SHELL   a script that completes all of this
//! ```

#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate kiln_terminal;

mod cache;
mod classify;
mod completions;
mod demo;
mod demo_kernel;
mod doctor;
mod embed;
mod explain;
mod interrupt;
mod line;
mod mode;
mod program;
mod run;
mod settings;
mod tell;

use clap::builder::styling::{AnsiColor, Style, Styles};
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use kiln_harness::{bench, fuzz, selftest};
use kiln_terminal::failure::{self, Failure, Outcome};
use kiln_terminal::{Color, Paint, output};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  kiln                                     # the demo
  kiln run stories260K --prompt 'Lily saw'
  kiln run ~/models/SmolLM2 --chat
  kiln doctor                              # what is here
  kiln explain docs/softmax.kiln --code    # a graph, its kernels, their machine code

Exit codes:
  0  done
  1  the work failed: a result is wrong, a file is damaged
  2  the work could not begin: a wrong option, a file, a model or a device that is not there
  130  Ctrl-C

With --json the last line on standard output is one object; words for people go to standard error.";

#[derive(Parser)]
#[command(
    name = "kiln",
    version,
    about = "Tensors that compile: eager programs into fused machine code",
    after_help = EXAMPLES,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Colours: as the terminal and NO_COLOR say, always, or never
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN", hide_possible_values = true)]
    color: Color,
}

#[derive(Subcommand)]
enum Command {
    /// A model tells a story, eager and compiled: timed, compared (also what `kiln` alone does)
    Demo(demo::Arguments),
    /// Continue a text or talk with a model: a folder, a GGUF file or a preset
    Run(run::Arguments),
    /// Turn texts into vectors
    Embed(embed::Arguments),
    /// Say what pictures show
    Classify(classify::Arguments),
    /// Measure, with PyTorch beside Kiln if asked
    Bench(bench::Arguments),
    /// Show what becomes of a graph given as text
    Explain(explain::Arguments),
    /// Show, shrink and ship the disk cache
    Cache(cache::Arguments),
    /// Show what this machine offers and what Kiln would use
    Doctor(doctor::Arguments),
    /// Compare interpreter, eager and compiled on this machine, group by group
    Selftest(selftest::Arguments),
    /// Look for graphs, texts and cache entries that break something
    Fuzz(fuzz::Arguments),
    /// Write a completion script for a shell
    Completions(completions::Arguments),
}

fn main() -> ExitCode {
    interrupt::listen();
    kiln::report_truncated_files();
    let parsed = command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        // Help and the version are no failure, all else is a usage error.
        Err(error) => match error.print() {
            _ if error.use_stderr() => return ExitCode::from(failure::UNUSABLE),
            printed => return end(Ok(()), printed.and_then(|()| output::finish())),
        },
    };
    kiln_terminal::set_color(arguments.color);
    let outcome = output::until_reader_goes(|| run(&arguments)).unwrap_or(Ok(()));
    end(outcome, output::finish())
}

/// Reports the error and returns the exit code; output that could not be written is an error too.
fn end(outcome: Outcome, printed: std::io::Result<()>) -> ExitCode {
    let lost = printed.err().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe);
    let lost = lost.map(|error| Failure::new("standard output could not be written").caused_by(error).into());
    let errors: Vec<Box<dyn std::error::Error>> = outcome.err().into_iter().chain(lost).collect();
    for error in errors.iter().filter(|error| !error.is::<interrupt::Interrupted>()) {
        eprint!("{}", failure::render(error.as_ref(), Paint::stderr()));
    }
    errors.first().map_or(ExitCode::SUCCESS, |error| ExitCode::from(program::exit_code(error.as_ref())))
}

/// Runs the command, after checking the environment variables.
fn run(arguments: &Arguments) -> Outcome {
    settings::check()?;
    match &arguments.command {
        None => demo::run(&demo::Arguments::default()),
        Some(Command::Demo(arguments)) => demo::run(arguments),
        Some(Command::Run(arguments)) => run::run(arguments),
        Some(Command::Embed(arguments)) => embed::run(arguments),
        Some(Command::Classify(arguments)) => classify::run(arguments),
        Some(Command::Bench(arguments)) => bench::run(arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Cache(arguments)) => cache::run(arguments),
        Some(Command::Doctor(arguments)) => doctor::run(arguments),
        Some(Command::Selftest(arguments)) => selftest::run(arguments),
        Some(Command::Fuzz(arguments)) => fuzz::run(arguments),
        Some(Command::Completions(arguments)) => completions::run(arguments),
    }
}

/// The command with its looks.
fn command() -> clap::Command {
    let styles = Styles::styled()
        .header(Style::new().bold())
        .usage(Style::new().bold())
        .literal(AnsiColor::Cyan.on_default())
        .placeholder(Style::new().dimmed());
    // Help and usage errors are written while the options are read, before they can say anything of colours.
    let mut words = std::env::args().skip_while(|word| !word.starts_with("--color"));
    let asked = match words.next().as_deref().map(|word| word.split_once('=')) {
        Some(Some((_, value))) => Color::from_str(value, true).ok(),
        Some(None) => words.next().and_then(|value| Color::from_str(&value, true).ok()),
        None => None,
    };
    let choice = match asked {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    };
    headings(negative_numbers(Arguments::command())).styles(styles).color(choice).max_term_width(110)
}

/// Lets every option take `-1` as its value, so that it is the value that is called wrong, and what it may be is said.
fn negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    let command = command.mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(negative_numbers)
}

/// Makes the headings behind the options look like the others.
fn headings(command: clap::Command) -> clap::Command {
    let text = command.get_after_help().map(|text| text.to_string());
    let command = command.mut_subcommands(headings);
    let Some(text) = text else { return command };
    let heading = |line: &str| !line.starts_with(' ') && line.ends_with(':');
    let lines =
        text.lines().map(|line| if heading(line) { format!("\x1b[1m{line}\x1b[0m\n") } else { format!("{line}\n") });
    command.after_help(lines.collect::<String>().trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line, as a shell would cut it; what is before `kiln` and behind a comment sign or a redirection is not ours.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for character in line.chars() {
            match (quote, character) {
                (None, '\'' | '"') => quote = Some(character),
                (Some(open), _) if open == character => quote = None,
                (None, '#' | '<' | '>') => break,
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().unwrap().push(character),
            }
        }
        let ours = words.iter().position(|word| word == "kiln").unwrap_or(0);
        words.drain(..ours);
        words.retain(|word| !word.is_empty());
        words
    }

    fn check(command: &clap::Command, path: &str, root: &clap::Command, examples: &mut usize) {
        let help = command.get_after_help().unwrap_or_else(|| panic!("`{path}` has no examples")).to_string();
        let (_, lines) = help.split_once("Examples:").unwrap_or_else(|| panic!("`{path}` has no examples"));
        let lines: Vec<&str> = lines.lines().skip(1).take_while(|line| line.starts_with("  ")).collect();
        assert!(lines.iter().any(|line| line.contains(path)), "no example of `{path}` is one of it");
        for line in lines {
            let words = words(line);
            assert_eq!(words[0], "kiln", "{path}: {line}");
            if let Err(error) = root.clone().try_get_matches_from(&words) {
                panic!("{path}: {line}\n{error}");
            }
            *examples += 1;
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            check(inner, &format!("{path} {}", inner.get_name()), root, examples);
        }
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut root = command();
        root.build();
        let mut examples = 0;
        check(&root, "kiln", &root, &mut examples);
        assert!(examples >= 20, "{examples}");
        root.debug_assert();
    }

    #[test]
    fn words_are_cut_as_a_shell_cuts_them() {
        assert_eq!(words("  kiln run x --prompt \"Once upon\"   # c"), ["kiln", "run", "x", "--prompt", "Once upon"]);
        assert_eq!(words("echo Hi | A=1 kiln run x > y"), ["kiln", "run", "x"]);
    }
}
