//! `KILN_DEBUG`: everything about a program as text files in a folder of its own.
//!
//! ```text
//!  kiln_debug/3-graph/index.txt                what is here, and the launches in order
//!                     00-capture.kiln          the graph as it was given
//!                     01-decompose.kiln …      the graph after each stage that changed it, then the schedule (07-schedule.txt …):
//!                                              the names are those of `kiln::pipeline::STAGES`
//!                     schedule.txt             launches with their nodes, lines and bytes; what was not fused and why
//!                     plan.txt                 each buffer's offset and lifetime
//!                     guards.txt               what arguments have to be (of captured functions)
//!                     kernels/0-exp.kernel.txt the kernel; .vir.txt its vector IR, .asm.txt its machine code
//! ```

use super::{EAGER, Unit, show};
use kiln_ir::{Graph, Symbol};
use kiln_kernels::Form;
use kiln_kernels::schedule::Role;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{Program, environment};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;
use std::{fs, io};

/// What `KILN_DEBUG` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DumpRequest {
    folder: PathBuf,
    /// Programs of eager operations as well.
    eager: bool,
}

impl DumpRequest {
    /// `1` is `kiln_debug`, `all` is that with eager operations, anything else names a folder; nothing, `0` and `false` ask
    /// for nothing.
    fn parse(text: &str) -> Option<DumpRequest> {
        match text.trim() {
            "" | "0" | "false" | "off" => None,
            "1" | "true" | "on" => Some(DumpRequest { folder: "kiln_debug".into(), eager: false }),
            "all" => Some(DumpRequest { folder: "kiln_debug".into(), eager: true }),
            folder => Some(DumpRequest { folder: folder.into(), eager: false }),
        }
    }
}

fn request() -> Option<&'static DumpRequest> {
    static REQUEST: OnceLock<Option<DumpRequest>> = OnceLock::new();
    REQUEST.get_or_init(|| environment::DEBUG.get().and_then(|text| DumpRequest::parse(&text))).as_ref()
}

/// Dumps a program if `KILN_DEBUG` asks for it, and returns the folder. `passes` is how long the passes took.
pub(crate) fn if_asked(unit: &Unit<'_>, program: &Program, passes: Duration) -> Option<PathBuf> {
    let request = request().filter(|request| unit.options.name != EAGER || request.eager)?;
    static FIRST: Once = Once::new();
    match dump(unit, program, passes, &request.folder) {
        Ok(folder) => {
            FIRST.call_once(|| say(format_args!("KILN_DEBUG writes to {}", request.folder.display())));
            event::emit(Category::Kernels, || Event::Dumped { folder: folder.clone() });
            Some(folder)
        }
        Err(error) => {
            FIRST.call_once(|| say(format_args!("KILN_DEBUG cannot write to {}: {error}", request.folder.display())));
            None
        }
    }
}

/// Adds a text to a program's folder: `guards.txt`, for instance, which the graph knows nothing of.
pub(crate) fn add(folder: &Path, name: &str, about: &str, text: &str) {
    let written = fs::write(folder.join(name), text).and_then(|()| {
        let mut index = fs::OpenOptions::new().append(true).open(folder.join("index.txt"))?;
        writeln!(index, "{name:40} {about}")
    });
    if let Err(error) = written {
        say(format_args!("KILN_DEBUG cannot write to {}: {error}", folder.display()));
    }
}

/// A line on stderr; where that cannot be written there is nobody to tell.
fn say(words: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "kiln: {words}");
}

/// What the stages made, each with its stage's name and its text; a schedule that a stage left as it was is not repeated. Also the graph
/// that was cut into kernels.
fn stages(unit: &Unit<'_>) -> (Vec<(String, String)>, Option<Graph>) {
    let mut texts: Vec<(String, String)> = Vec::new();
    let mut last = String::new();
    let scheduled = show(unit, &mut |stage, form| {
        let (extension, text) = match form {
            Form::Graph(graph) => ("kiln", graph.to_string()),
            Form::Schedule(schedule) => ("txt", schedule.to_string()),
        };
        if text != last {
            texts.push((format!("{stage}.{extension}"), text.clone()));
            last = text;
        }
    });
    (texts, scheduled.ok())
}

/// Writes everything about a program to a new folder within `into`, which is made if need be, and returns that folder.
pub(crate) fn dump(unit: &Unit<'_>, program: &Program, passes: Duration, into: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(into)?;
    let name = &unit.options.name;
    let name = if name.is_empty() { "graph".to_owned() } else { file_name(name) };
    let folder = own_folder(into, &name)?;
    let mut index = Index::default();
    let file = |index: &mut Index, name: &str, about: &str, text: &str| {
        index.files.push((name.to_owned(), about.to_owned()));
        fs::write(folder.join(name), text)
    };
    let (texts, scheduled) = stages(unit);
    for (number, (name, text)) in texts.iter().enumerate() {
        let about =
            if name.ends_with(".kiln") { "the graph after this stage" } else { "the schedule after this stage" };
        file(&mut index, &format!("{number:02}-{name}"), about, text)?;
    }
    let schedule = program.schedule();
    if let Some(graph) = &scheduled {
        let text = format!("{}\n{schedule}", schedule.explain(graph, &|_| None));
        file(&mut index, "schedule.txt", "launches, their nodes and bytes; what was not fused and why", &text)?;
    }
    file(&mut index, "plan.txt", "each buffer's offset and lifetime", &plan_text(program))?;
    fs::create_dir(folder.join("kernels"))?;
    let mut written: Vec<(Arc<kiln_kernels::Kernel>, String)> = Vec::new();
    let mut launches = String::new();
    for (number, (step, planned)) in program.steps().iter().zip(&schedule.steps).enumerate() {
        let known = written.iter().find(|(kernel, _)| Arc::ptr_eq(kernel, &planned.kernel));
        let name = match known {
            Some((_, name)) => name.clone(),
            None => {
                let name = format!("kernels/{number}-{}", file_name(step.label()));
                file(&mut index, &format!("{name}.kernel.txt"), "a kernel", &format!("{}\n", step.kernel()))?;
                if let Some(text) = step.code().intermediate() {
                    file(&mut index, &format!("{name}.vir.txt"), "its vector IR", &text)?;
                }
                if let Some(text) = step.code().disassembly() {
                    file(&mut index, &format!("{name}.asm.txt"), "its machine code", &text)?;
                }
                written.push((planned.kernel.clone(), name.clone()));
                name
            }
        };
        let arguments: Vec<String> = planned.args.iter().map(|b| schedule.buffer_name(b.index())).collect();
        let at = if step.source().is_unknown() { String::new() } else { format!("  at {}", step.source()) };
        let _ = writeln!(launches, "{number:4}  {}({})  {name}{at}", step.label(), arguments.join(", "));
    }
    fs::write(folder.join("index.txt"), index.text(unit, program, passes, &launches))?;
    Ok(folder)
}

#[derive(Default)]
struct Index {
    files: Vec<(String, String)>,
}

impl Index {
    fn text(&self, unit: &Unit<'_>, program: &Program, passes: Duration, launches: &str) -> String {
        let times = program.times();
        let mut text = String::new();
        let made = match times.read.is_zero() {
            true => format!("passes {:.1?}, schedule {:.1?}, code {:.1?}", passes, times.schedule, times.code),
            false => format!("read from disk in {:.1?}", times.read),
        };
        let _ = writeln!(
            text,
            "{} nodes, {} launches for {}; {made} ({} kernels compiled)",
            unit.graph.nodes().len(),
            program.steps().len(),
            program.backend().target(),
            times.compiled,
        );
        let _ = write!(text, "\nlaunches\n{launches}\nfiles\n");
        for (name, about) in &self.files {
            let _ = writeln!(text, "{name:40} {about}");
        }
        text
    }
}

/// A new folder `<number>-<name>`, with the first number that is free.
fn own_folder(into: &Path, name: &str) -> io::Result<PathBuf> {
    let mut number = fs::read_dir(into)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.split('-').next()?.parse::<usize>().ok())
        .max()
        .map_or(0, |last| last + 1);
    loop {
        let folder = into.join(format!("{number}-{name}"));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Another thread or process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// A name that every file system takes.
fn file_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    let name: String = text.chars().map(plain).take(60).collect();
    if name.is_empty() { "kernel".to_owned() } else { name }
}

/// The memory of a program; sizes in bytes where they are known.
fn plan_text(program: &Program) -> String {
    let schedule = program.schedule();
    let plan = kiln_kernels::plan(schedule, &|_: Symbol| None).ok();
    let mut text = match &plan {
        Some(plan) => format!(
            "an arena of {} bytes for temporaries that would take {} bytes apart\n",
            plan.arena_bytes, plan.temp_bytes
        ),
        None => "sizes are known only when the program is called\n".to_owned(),
    };
    for (index, decl) in schedule.buffers.iter().enumerate() {
        let uses = |step: &kiln_kernels::Step| step.args.iter().any(|arg| arg.index() == index);
        let steps = &schedule.steps;
        let life = match (steps.iter().position(uses), steps.iter().rposition(uses)) {
            (Some(first), Some(last)) => format!("launches {first}..={last}"),
            _ => "unused".to_owned(),
        };
        let bytes = plan.as_ref().map_or(String::new(), |plan| format!("{:>12} bytes", plan.bytes[index]));
        let place = plan.as_ref().and_then(|plan| plan.offsets[index]).filter(|_| decl.role == Role::Temp);
        let place = place.map_or(String::new(), |offset| format!("  at {offset} of the arena"));
        let name = schedule.buffer_name(index);
        let _ = writeln!(text, "{name:12} {}[{}]{bytes}  {life}{place}", decl.dtype, decl.elements);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed() {
        assert_eq!(DumpRequest::parse("1"), Some(DumpRequest { folder: "kiln_debug".into(), eager: false }));
        assert_eq!(DumpRequest::parse("all"), Some(DumpRequest { folder: "kiln_debug".into(), eager: true }));
        assert_eq!(DumpRequest::parse("/tmp/x"), Some(DumpRequest { folder: "/tmp/x".into(), eager: false }));
        assert_eq!((DumpRequest::parse("0"), DumpRequest::parse("")), (None, None));
    }

    #[test]
    fn names_of_files_are_tame() {
        assert_eq!(file_name("../a b/ü"), ".._a_b__");
        assert_eq!(file_name(""), "kernel");
    }
}
