//! The peer of benchmarks: a Python with PyTorch.

use super::{Fact, Mark};
use kiln_runtime::environment;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A Python interpreter that answered.
pub struct Python {
    /// The command.
    pub command: String,
    /// Its version.
    pub version: String,
    /// Packages that the benchmark can measure against, with their versions.
    pub peers: Vec<(&'static str, Option<String>)>,
    /// Where its packages are.
    pub packages: Vec<PathBuf>,
}

const PEERS: [&str; 3] = ["torch", "transformers", "llama-cpp-python"];

/// Asks for versions without importing, which would take seconds.
const SCRIPT: &str = "
import importlib.metadata as m, json, site, sys
def version(name):
    try: return m.version(name)
    except Exception: return None
folders = [p for p in sys.path if p.endswith('-packages')]
print(json.dumps({'version': sys.version.split()[0], 'packages': folders, 'peers': [version(n) for n in sys.argv[1:]]}))";

/// Asks the Python that a benchmark would start.
pub fn look(asked: Option<&str>) -> Option<Python> {
    let command = asked.map(str::to_owned).or_else(|| environment::PYTHON.get()).unwrap_or("python3".into());
    let output = Command::new(&command).arg("-c").arg(SCRIPT).args(PEERS).output().ok()?;
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    let peer = |(place, name)| (name, answer["peers"][place].as_str().map(str::to_owned));
    let packages = answer["packages"].as_array()?;
    Some(Python {
        version: answer["version"].as_str()?.to_owned(),
        peers: PEERS.into_iter().enumerate().map(peer).collect(),
        packages: packages.iter().filter_map(Value::as_str).map(PathBuf::from).collect(),
        command,
    })
}

/// Describes the Python interpreter.
pub fn facts(found: Option<&Python>) -> Vec<Fact> {
    let Some(found) = found else {
        let text = "not found; benchmarks run without a peer   (KILN_PYTHON=file)";
        return vec![Fact::new("python", Mark::Missing, text, Value::Null)];
    };
    let text = format!("{} ({})", found.version, found.command);
    let mut facts = vec![Fact::new("python", Mark::Good, text, found.version.clone())];
    for (name, version) in &found.peers {
        facts.push(match version {
            Some(version) => {
                Fact::new(name.strip_suffix("-python").unwrap_or(name), Mark::Good, version, version.clone())
            }
            None => Fact::new(name.strip_suffix("-python").unwrap_or(name), Mark::Missing, "not found", Value::Null),
        });
    }
    facts
}
