//! Drives the PyTorch yardstick: a Python process that answers one JSON line a request, so that both sides are measured
//! in one run, turn by turn.

use super::clock::Turn;
use kiln_terminal::failure::Failure;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Why the peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The interpreter could not be started.
    #[error("cannot start '{python}': {cause} (set --python or KILN_PYTHON to a Python with torch)")]
    Start {
        /// The command tried.
        python: String,
        /// The system's word.
        cause: std::io::Error,
    },
    /// The process went away or spoke something else.
    #[error("the torch peer stopped answering (does '{python}' have torch?)")]
    Gone {
        /// The command.
        python: String,
    },
    /// The process reported an exception.
    #[error("torch: {0}")]
    Failed(String),
}

/// Returns an error if there is no such Python: measuring without it was not requested.
pub fn can_start(python: &str) -> Result<(), Failure> {
    let mut command = Command::new(python);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(_) => Ok(()),
        Err(cause) => {
            let failure = Failure::unusable(format!("cannot start '{python}'")).caused_by(cause);
            Err(failure.advise("--python or KILN_PYTHON, a Python that has the peer"))
        }
    }
}

/// What a process says of a case that it built.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Seconds of each mode's first call; NaN of one that is unknown.
    pub first: Vec<f64>,
    /// Why a mode will have no samples.
    pub note: Option<String>,
}

/// A running PyTorch process.
pub struct TorchPeer {
    python: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The version it reported last.
    pub version: String,
}

/// Times calls of functions.
pub const SCRIPT: &str =
    concat!(include_str!("peers/lines.py"), include_str!("torch_models.py"), include_str!("torch_peer.py"));

impl TorchPeer {
    /// Starts `python` on a script that answers requests.
    pub fn start(python: &str, script: &str) -> Result<TorchPeer, PeerError> {
        let start = |cause| PeerError::Start { python: python.to_owned(), cause };
        let mut child = Command::new(python)
            .args(["-u", "-c", script])
            // What another process compiled before must not count.
            .env("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(start)?;
        let gone = || PeerError::Gone { python: python.to_owned() };
        let to = child.stdin.take().ok_or_else(gone)?;
        let from = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        Ok(TorchPeer { python: python.to_owned(), child, to, from, version: String::new() })
    }

    fn ask(&mut self, request: Value) -> Result<Value, PeerError> {
        let gone = || PeerError::Gone { python: self.python.clone() };
        writeln!(self.to, "{request}").map_err(|_| gone())?;
        self.to.flush().map_err(|_| gone())?;
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|_| gone())?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| gone())?;
        if let Some(version) = answer["torch"].as_str() {
            self.version = version.to_owned();
        }
        match answer["error"].as_str() {
            Some(error) => Err(PeerError::Failed(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// Builds a case in some modes.
    pub fn setup(&mut self, case: Value, threads: usize, modes: &[&str]) -> Result<Setup, PeerError> {
        let answer = self.ask(json!({"do": "setup", "case": case, "threads": threads, "modes": modes}))?;
        let first = modes.iter().map(|mode| answer[format!("{mode}_first_s")].as_f64().unwrap_or(f64::NAN)).collect();
        Ok(Setup { first, note: answer["note"].as_str().map(str::to_owned) })
    }

    /// Times one mode for a turn; gives seconds a call in the order they were taken.
    pub fn time(&mut self, mode: &str, turn: &Turn) -> Result<Vec<f64>, PeerError> {
        let Turn { seconds, repeats, limit } = turn;
        let request = json!({"do": "time", "mode": mode, "seconds": seconds, "repeats": repeats, "limit": limit});
        let answer = self.ask(request)?;
        Ok(answer["samples_s"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect())
    }
}

impl Drop for TorchPeer {
    fn drop(&mut self) {
        // Nothing to do about a process that will not die; the bench is over.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
