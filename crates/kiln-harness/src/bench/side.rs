//! A side of a comparison: a process of its own that answers one JSON line a request. Kiln's modes and the peers speak the
//! same language, so that every first call is cold, every peak of memory is its own, and all of them take turns in one run.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why a side has no figures.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// The process could not be started.
    #[error("cannot start '{program}': {cause} (set --python or KILN_PYTHON to a Python with the peer)")]
    Start {
        /// The command tried.
        program: String,
        /// The system's word.
        cause: std::io::Error,
    },
    /// The process went away.
    #[error("'{program}' went away: {last}")]
    Gone {
        /// The command.
        program: String,
        /// The last line of its errors.
        last: String,
    },
    /// The process reported an error.
    #[error("{0}")]
    Failed(String),
    /// No answer came in time.
    #[error("no answer within {0} s")]
    Late(u64),
}

/// A running side.
pub struct Side {
    program: String,
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    errors: Arc<Mutex<VecDeque<String>>>,
}

/// Lines of a side's errors that are kept.
const ERRORS: usize = 8;

impl Side {
    /// This program, as the side of one mode of `kiln bench WHAT`.
    pub fn kiln(what: &str, overlap: bool) -> Result<Side, SideError> {
        let start = |cause| SideError::Start { program: "kiln".into(), cause };
        let mut command = Command::new(std::env::current_exe().map_err(start)?);
        // What another process compiled before must not count.
        command.args(["bench", what, "--side"]).env("KILN_CACHE", "off");
        if !overlap {
            command.env("KILN_CUDA_OVERLAP", "off");
        }
        Side::start("kiln", command)
    }

    /// A script in Python.
    pub fn python(python: &str, script: &str) -> Result<Side, SideError> {
        let mut command = Command::new(python);
        command
            .args(["-u", "-c", script])
            .env("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
            .env("TOKENIZERS_PARALLELISM", "false")
            .env("HF_HUB_OFFLINE", "1");
        Side::start(python, command)
    }

    fn start(program: &str, mut command: Command) -> Result<Side, SideError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| SideError::Start { program: program.to_owned(), cause })?;
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let gone = || SideError::Gone { program: program.to_owned(), last: "it has no pipes".into() };
        let to = child.stdin.take().ok_or_else(gone)?;
        let output = child.stdout.take().ok_or_else(gone)?;
        let complaints = child.stderr.take().ok_or_else(gone)?;
        let (send, from) = channel();
        // Both end with the process.
        std::thread::spawn(move || {
            // Libraries print to the same place; only objects are answers.
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for answer in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()).filter(Value::is_object) {
                if send.send(answer).is_err() {
                    break;
                }
            }
        });
        let kept = errors.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(complaints).lines().map_while(Result::ok).filter(|line| !line.trim().is_empty())
            {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == ERRORS {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        Ok(Side { program: program.to_owned(), child, to, from, errors })
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value, SideError> {
        if writeln!(self.to, "{request}").and_then(|()| self.to.flush()).is_err() {
            return Err(self.gone());
        }
        let answer = match self.from.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => return Err(SideError::Late(limit.as_secs())),
            Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
        };
        match answer["error"].as_str() {
            Some(error) => Err(SideError::Failed(error.to_owned())),
            None => Ok(answer),
        }
    }

    fn gone(&mut self) -> SideError {
        // Its end closes the pipe, after which its last words are there.
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::thread::sleep(Duration::from_millis(20));
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let last = errors.back().cloned().unwrap_or_else(|| "without a word".into());
        SideError::Gone { program: self.program.clone(), last }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Nothing to do about a process that will not die; the bench is over.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers requests from standard input until it ends; what `--side` does.
pub fn serve(
    mut answer: impl FnMut(&Value) -> Result<Value, Box<dyn std::error::Error>>,
) -> kiln_terminal::failure::Outcome {
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = answer(&request).unwrap_or_else(|error| json!({"error": error.to_string()}));
        println!("{answer}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Side {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Side::start("sh", command).expect("a shell")
    }

    #[test]
    fn only_objects_are_answers() {
        let mut side = shell("read x; echo noise; echo 3; echo '{\"a\": 1}'; read x; echo '{\"error\": \"no\"}'");
        assert_eq!(side.ask(&json!({}), Duration::from_secs(10)).expect("an answer")["a"], 1);
        assert!(matches!(side.ask(&json!({}), Duration::from_secs(10)), Err(SideError::Failed(why)) if why == "no"));
    }

    #[test]
    fn the_last_words_of_a_side_are_kept() {
        let mut side = shell("read x; echo one >&2; echo 'no torch' >&2; exit 3");
        match side.ask(&json!({}), Duration::from_secs(10)) {
            Err(SideError::Gone { last, .. }) => assert_eq!(last, "no torch"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_side_that_does_not_answer_is_not_waited_for() {
        let mut side = shell("read x; exec sleep 60");
        assert!(matches!(side.ask(&json!({}), Duration::from_millis(50)), Err(SideError::Late(_))));
    }
}
