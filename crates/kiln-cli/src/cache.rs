//! `kiln cache`: what is on disk, why it is there, and how to ship it.

use kiln_runtime::disk::{self, Listed, Store};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::format::bytes as size;
use kiln_terminal::{Align, Paint, Table, columns, hung};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Options of `kiln cache`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln cache ls\n  kiln cache export warm.kilncache   # on the build machine\n  kiln cache import warm.kilncache   # where it runs"
)]
pub struct Arguments {
    #[command(subcommand)]
    what: Action,
    /// The folder, instead of the one of the environment
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List entries, those used last first
    #[command(after_help = "Examples:\n  kiln cache ls\n  kiln cache ls --json --dir /var/cache/kiln")]
    Ls,
    /// Show what an entry is, what its key was made of, and how it differs from the nearest other one
    #[command(after_help = "Examples:\n  kiln cache why 3fa9    # the beginning of a key of `kiln cache ls`")]
    Why {
        /// The key, or the beginning of it
        key: String,
    },
    /// Remove every entry
    #[command(after_help = "Examples:\n  kiln cache clear")]
    Clear,
    /// Remove what was not used for longest, down to a size
    #[command(after_help = "Examples:\n  kiln cache prune\n  kiln cache prune --max-bytes 100000000")]
    Prune {
        /// Bytes that may stay; the bound of the cache if not given
        #[arg(long)]
        max_bytes: Option<u64>,
    },
    /// Write all entries to one file
    #[command(after_help = "Examples:\n  kiln cache export warm.kilncache")]
    Export {
        /// The file
        file: PathBuf,
    },
    /// Take in the entries of a file, each checked
    #[command(after_help = "Examples:\n  kiln cache import warm.kilncache")]
    Import {
        /// The file
        file: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let folder = arguments.dir.clone().or_else(disk::folder_from_environment);
    let folder = folder.ok_or_else(|| {
        Failure::unusable("no KILN_CACHE_DIR, XDG_CACHE_HOME or HOME in the environment").advise("--dir FOLDER")
    })?;
    let store = Store::open(&folder, disk::most_bytes_from_environment())
        .map_err(|error| Failure::unusable(folder.display().to_string()).caused_by(error))?;
    let json = arguments.json;
    match &arguments.what {
        Action::Ls => list(&store, json),
        Action::Why { key } => why(&store, key, json),
        Action::Clear => {
            let (entries, bytes) = store.clear()?;
            report(json, json!({"removed": entries, "bytes": bytes}), || {
                format!("removed {entries} entries, {}", size(bytes))
            })
        }
        Action::Prune { max_bytes } => {
            let most = max_bytes.unwrap_or(store.most_bytes());
            let (entries, bytes) = store.prune(most)?;
            report(json, json!({"removed": entries, "bytes": bytes, "max_bytes": most}), || {
                format!("removed {entries} entries, {}; {} may stay", size(bytes), size(most))
            })
        }
        Action::Export { file } => export(&store, file, json),
        Action::Import { file } => import(&store, file, json),
    }
}

fn report(json: bool, value: Value, text: impl Fn() -> String) -> Outcome {
    if json {
        println!("{value}");
    } else {
        say(text());
    }
    Ok(())
}

/// Prints a line, with what is too long for the terminal beneath.
fn say(line: String) {
    println!("{}", hung(&line, columns(), 2));
}

fn list(store: &Store, json: bool) -> Outcome {
    let list = store.list()?;
    let bytes = list.iter().map(|listed| listed.bytes).sum();
    let folder = store.folder().display().to_string();
    if json {
        let entries: Vec<Value> = list.iter().map(entry).collect();
        println!("{}", json!({"folder": folder, "bytes": bytes, "max_bytes": store.most_bytes(), "entries": entries}));
        return Ok(());
    }
    if !list.is_empty() {
        let left = ["key", "kind"].map(|title| (title, Align::Left));
        let right = ["size", "used", "uses"].map(|title| (title, Align::Right));
        let mut table = Table::new(&[&left[..], &right, &[("label", Align::Left)]].concat());
        for listed in &list {
            let target = listed.about.get("target").map(|target| format!(", {target}")).unwrap_or_default();
            table.row([
                listed.key[..listed.key.len().min(12)].to_owned(),
                listed.kind.name().to_owned(),
                size(listed.bytes),
                age(listed.used),
                listed.uses.to_string(),
                format!("{}{}", kiln::shown(label(listed)), kiln::shown(&target)),
            ]);
        }
        print!("{}", table.render(Paint::stdout()));
    }
    say(format!("{} entries, {} of {} in {folder}", list.len(), size(bytes), size(store.most_bytes())));
    Ok(())
}

fn why(store: &Store, key: &str, json: bool) -> Outcome {
    let list = store.list()?;
    let wanted = key.to_ascii_lowercase();
    let found: Vec<&Listed> = list.iter().filter(|listed| listed.key.starts_with(&wanted)).collect();
    let listed = match found[..] {
        [listed] => listed,
        [] => {
            let hint = "nothing is known of a key that was never stored; KILN_LOG=cache names the keys of a run";
            let failure = Failure::unusable(format!("no entry's key begins with '{key}'; {hint}"));
            return Err(failure.advise("kiln cache ls").into());
        }
        _ => {
            let failure = Failure::unusable(format!("the keys of {} entries begin with '{key}'", found.len()));
            return Err(failure.advise("more of the key").into());
        }
    };
    let whole = store.read(listed);
    let others = list.iter().filter(|other| other.kind == listed.kind && other.key != listed.key);
    let nearest = others.min_by_key(|other| listed.about.differences(&other.about).len());
    let differences = nearest.map(|other| listed.about.differences(&other.about)).unwrap_or_default();
    if json {
        let mut value = entry(listed);
        value["damage"] = whole.as_ref().err().map(|damage| damage.to_string()).into();
        value["nearest"] = nearest.map(|other| other.key.clone()).into();
        let difference = |(name, here, there): &(&str, Option<&str>, Option<&str>)| json!({"part": name, "here": here, "there": there});
        value["differences"] = differences.iter().map(difference).collect();
        println!("{value}");
        return Ok(());
    }
    println!("{} {}", listed.kind.name(), listed.key);
    say(format!(
        "{}, used {} ago, {} times, {}",
        size(listed.bytes),
        age(listed.used),
        listed.uses,
        kiln::printable(&listed.file.display().to_string())
    ));
    if let Err(damage) = &whole {
        println!("damaged: {damage}; the next look-up removes it");
    }
    for (title, in_key) in [("\nthe key was made of", true), ("\nfor people", false)] {
        println!("{title}");
        for fact in listed.about.facts().iter().filter(|fact| fact.in_key == in_key) {
            println!("{}", hung(&format!("  {:<10} {}", fact.name, kiln::printable(&fact.value)), columns(), 11));
        }
    }
    let Some(other) = nearest else {
        println!("\nthere is no other {} to be nearest", listed.kind.name());
        return Ok(());
    };
    println!(
        "\nthe nearest other {} is {} ({})",
        listed.kind.name(),
        &other.key[..12.min(other.key.len())],
        label(other)
    );
    for (name, here, there) in differences {
        let (here, there) = (here.unwrap_or("(none)"), there.unwrap_or("(none)"));
        println!("{}", hung(&format!("  {name:<10} here   {}", kiln::printable(here)), columns(), 18));
        println!("{}", hung(&format!("  {:<10} there  {}", "", kiln::printable(there)), columns(), 18));
    }
    Ok(())
}

fn export(store: &Store, file: &Path, json: bool) -> Outcome {
    let at = |error: std::io::Error| Failure::file(file, error);
    let mut out = BufWriter::new(File::create(file).map_err(at)?);
    let exported = store.export(&store.list()?, &mut out).map_err(at)?;
    out.flush().map_err(at)?;
    let left_out: Vec<String> = exported.left_out.iter().map(|damage| damage.to_string()).collect();
    report(json, json!({"entries": exported.entries, "bytes": exported.bytes, "left_out": left_out}), || {
        let damaged =
            if left_out.is_empty() { String::new() } else { format!("; {} damaged left out", left_out.len()) };
        format!("wrote {} entries, {}, to {}{damaged}", exported.entries, size(exported.bytes), file.display())
    })
}

fn import(store: &Store, file: &Path, json: bool) -> Outcome {
    let opened = kiln::files::open(file).map_err(|error| Failure::file(file, error))?;
    let imported = store.import_archive(&mut BufReader::new(opened));
    let imported = imported.map_err(|error| format!("{}: {error}", file.display()))?;
    let refused: Vec<String> = imported.refused.iter().map(|damage| damage.to_string()).collect();
    report(json, json!({"entries": imported.entries, "bytes": imported.bytes, "refused": refused}), || {
        let damaged = if refused.is_empty() { String::new() } else { format!("; {} damaged refused", refused.len()) };
        let folder = store.folder().display();
        format!("took in {} entries, {}, to {folder}{damaged}", imported.entries, size(imported.bytes))
    })
}

fn entry(listed: &Listed) -> Value {
    let fact = |fact: &disk::Fact| json!({"name": fact.name, "value": fact.value, "in_key": fact.in_key});
    let about: Vec<Value> = listed.about.facts().iter().map(fact).collect();
    let seconds = listed.used.elapsed().map_or(0.0, |age| age.as_secs_f64());
    json!({
        "key": listed.key, "kind": listed.kind.name(), "bytes": listed.bytes, "used_seconds_ago": seconds,
        "uses": listed.uses, "label": label(listed), "about": about,
    })
}

fn label(listed: &Listed) -> &str {
    listed.about.get("label").unwrap_or("(unreadable)")
}

fn age(at: SystemTime) -> String {
    let seconds = at.elapsed().map_or(0, |age| age.as_secs());
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}
