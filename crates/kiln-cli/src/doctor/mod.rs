//! `kiln doctor`: what this machine offers and what Kiln would use.

mod libraries;
pub mod machine;
mod python;

use kiln_cpu::features::{Extension, Isa, detect, target, targets};
use kiln_cpu::pool;
use kiln_runtime::disk::{self, Store};
use kiln_terminal::failure::Outcome;
use kiln_terminal::{Console, format};
use serde_json::{Map, Value, json};

const EXAMPLES: &str = "\
Examples:
  kiln doctor
  kiln doctor --json
  KILN_THREADS=1 KILN_CPU_ISA=avx2 kiln doctor     # what these would change";

/// Options of `kiln doctor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print the facts as one JSON object
    #[arg(long)]
    json: bool,
    /// The Python to look for PyTorch in (default: $KILN_PYTHON, then python3)
    #[arg(long, value_name = "FILE")]
    python: Option<String>,
    /// Do not measure the memory
    #[arg(long)]
    quick: bool,
}

/// How a fact is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Plain,
    Good,
    Missing,
}

/// One line: for people a text, for programs a value.
#[derive(Debug)]
struct Fact {
    name: &'static str,
    mark: Mark,
    text: String,
    value: Value,
}

impl Fact {
    fn new(name: &'static str, mark: Mark, text: impl Into<String>, value: impl Into<Value>) -> Fact {
        Fact { name, mark, text: text.into(), value: value.into() }
    }

    fn plain(name: &'static str, text: impl Into<String>) -> Fact {
        let text = text.into();
        Fact { name, mark: Mark::Plain, value: text.clone().into(), text }
    }
}

/// Prints the facts.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let paint = console.paint;
    console.say(format!("\n  {} {}", paint.ember("kiln"), paint.dim(env!("CARGO_PKG_VERSION"))));
    let mut object = Map::new();
    object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    let python = python::look(arguments.python.as_deref());
    let sections = [
        ("cpu", cpu(!arguments.quick)),
        ("gpu", libraries::gpu(python.as_ref().map(|found| &found.packages[..]).unwrap_or_default())),
        ("python", python::facts(python.as_ref())),
        ("cache", cache()),
        ("kiln would use", vec![uses()]),
    ];
    for (title, facts) in sections {
        console.say(format!("\n  {}", paint.bold(title)));
        let mut members = Map::new();
        for Fact { name, mark, text, value } in facts {
            let mark = match mark {
                Mark::Plain => " ".to_owned(),
                Mark::Good => paint.green("✓"),
                Mark::Missing => paint.yellow("–"),
            };
            console.hang(format!("  {mark} {} {text}", paint.dim(format!("{name:<12}"))), 15);
            members.insert(name.replace(' ', "_"), value);
        }
        object.insert(title.replace("kiln would use", "uses").replace(' ', "_"), members.into());
    }
    console.say("");
    console.result(|| object.into());
    Ok(())
}

fn cpu(measured: bool) -> Vec<Fact> {
    let features = detect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let available: Vec<&str> = targets().collect();
    let (isa, target) = (Isa::get(), target());
    let threads = pool::threads();
    let mut facts = vec![
        Fact::plain("model", format!("{} ({})", machine::cpu_name(), std::env::consts::ARCH)),
        Fact::new("cores", Mark::Plain, cores.to_string(), cores),
        Fact::new("threads", Mark::Plain, format!("{threads}   (KILN_THREADS=n)"), threads),
        Fact::new(
            "code",
            if isa == Isa::Portable { Mark::Missing } else { Mark::Good },
            format!("{target} of {}   (KILN_CPU_ISA=name)", available.join(", ")),
            json!({"isa": target, "available": available}),
        ),
    ];
    let flags = machine::flags();
    let amx = (features.extension >= Extension::Amx).then_some("amx");
    let present: Vec<&str> = flags.iter().filter(|(_, here)| *here).map(|(name, _)| *name).chain(amx).collect();
    facts.push(Fact::new("features", Mark::Plain, present.join(" "), json!(present)));
    facts.push(Fact::new("l2 cache", Mark::Plain, format::bytes(features.l2_bytes as u64), features.l2_bytes));
    if let Some(memory) = machine::memory() {
        let text = format!("{}, {} free", format::bytes(memory.total), format::bytes(memory.available));
        facts.push(Fact::new(
            "memory",
            Mark::Plain,
            text,
            json!({"bytes": memory.total, "free_bytes": memory.available}),
        ));
    }
    if measured {
        let speed = machine::read_bandwidth(threads);
        let text = format!("{:.1} GB/s read with {}", speed / 1e9, format::plural(threads, "thread", "threads"));
        facts.push(Fact::new("bandwidth", Mark::Plain, text, json!({"bytes_per_s": speed})));
    }
    facts
}

fn cache() -> Vec<Fact> {
    let Some(folder) = disk::folder_from_environment() else {
        let text = "none: no KILN_CACHE_DIR, XDG_CACHE_HOME or HOME in the environment";
        return vec![Fact::new("folder", Mark::Missing, text, Value::Null)];
    };
    let shown = folder.display().to_string();
    let on = disk::store().is_some();
    let state = if on { "on" } else { "off   (KILN_CACHE=on)" };
    let mut facts =
        vec![Fact::plain("folder", shown), Fact::new("state", if on { Mark::Good } else { Mark::Missing }, state, on)];
    if !folder.exists() {
        facts.push(Fact::new("entries", Mark::Plain, "0, the folder is made when it is needed", 0));
        return facts;
    }
    let most = disk::most_bytes_from_environment();
    match Store::open(&folder, most).and_then(|store| store.list()) {
        Ok(list) => {
            let bytes: u64 = list.iter().map(|listed| listed.bytes).sum();
            let text = format!("{}, {} of {}", list.len(), format::bytes(bytes), format::bytes(most));
            facts.push(Fact::new(
                "entries",
                Mark::Plain,
                text,
                json!({"count": list.len(), "bytes": bytes, "max_bytes": most}),
            ));
        }
        Err(error) => facts.push(Fact::new("entries", Mark::Missing, error.to_string(), Value::Null)),
    }
    let (mark, text) = match machine::is_writable(&folder) {
        true => (Mark::Good, "yes"),
        false => (Mark::Missing, "no: programs are not kept"),
    };
    facts.push(Fact::new("writable", mark, text, mark == Mark::Good));
    facts
}

fn uses() -> Fact {
    let (isa, threads) = (Isa::get(), pool::threads());
    let code = match isa {
        Isa::Portable => "the portable executor: no machine code for this CPU".to_owned(),
        isa => format!("generated {} code", isa.name()),
    };
    let text = format!("cpu, {code}, {}", format::plural(threads, "thread", "threads"));
    Fact::new("device", Mark::Good, text, json!({"device": "cpu", "isa": isa.name(), "threads": threads}))
}
