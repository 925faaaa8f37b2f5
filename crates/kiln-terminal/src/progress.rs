//! Progress on standard error: a line that comes when the work takes long, moves while it does, and is gone when it is done.
//! Where standard error is no terminal there is nothing to see.

use super::{Paint, format, visible_width, width};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work shorter than this is not worth a line.
const PATIENCE: Duration = Duration::from_millis(150);
/// Between two pictures.
const FRAME: Duration = Duration::from_millis(80);
/// Columns of a bar.
const BAR: usize = 24;

/// What the line shows.
#[derive(Debug, Clone, Default)]
struct State {
    label: String,
    done: u64,
    /// 0: not known.
    total: u64,
    note: String,
}

/// A line about work that goes on; dropping it clears the line.
#[derive(Debug)]
pub struct Progress {
    state: Arc<Mutex<State>>,
    /// The thread that draws, and what ends it; none where nobody looks.
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins: "loading", "compiling". A bar appears once [`Progress::set`] has told how much there is.
    pub fn start(label: impl Into<String>) -> Progress {
        Progress::on(label, stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"))
    }

    fn on(label: impl Into<String>, seen: bool) -> Progress {
        // Names of models are in it.
        let label = kiln::shown(&label.into()).to_string();
        let state = Arc::new(Mutex::new(State { label, ..State::default() }));
        let drawing = seen.then(|| {
            let (sender, receiver) = channel();
            let (state, began, paint) = (state.clone(), Instant::now(), Paint::stderr());
            let draw = move || {
                let mut wait = PATIENCE;
                let mut shown = false;
                for frame in 0.. {
                    if receiver.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                    let state = state.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    eprint!("\r\x1b[K{}", line(&state, frame, began.elapsed(), width(), paint));
                    (wait, shown) = (FRAME, true);
                }
                if shown {
                    eprint!("\r\x1b[K");
                }
            };
            (sender, std::thread::spawn(draw))
        });
        Progress { state, drawing }
    }

    /// So much of so much is done.
    pub fn set(&self, done: u64, total: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.done, state.total) = (done, total);
    }

    /// Words at the end of the line: the file, the kernel.
    pub fn note(&self, note: impl Into<String>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).note = note.into();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.drawing.take() {
            drop(sender);
            // A drawing that failed has left nothing to clear.
            let _ = thread.join();
        }
    }
}

/// The line, cut to the width of the terminal.
fn line(state: &State, frame: usize, elapsed: Duration, width: usize, paint: Paint) -> String {
    const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    let mut text = format!("{} {}", paint.ember(SPINNER[frame % SPINNER.len()]), state.label);
    if state.total > 0 {
        let share = (state.done as f64 / state.total as f64).clamp(0.0, 1.0);
        let full = (share * BAR as f64).round() as usize;
        let (done, rest) = (paint.ember("━".repeat(full)), paint.dim("━".repeat(BAR - full)));
        text.push_str(&format!("  {done}{rest} {:>3.0} %", share * 100.0));
    }
    let tail = format!("  {}", format::seconds(elapsed.as_secs_f64()));
    let room = width.saturating_sub(visible_width(&text) + visible_width(&tail) + 3);
    if !state.note.is_empty() && room > 8 {
        let note: String = state.note.chars().take(room).collect();
        text.push_str(&format!("  {}", paint.dim(note)));
    }
    text.push_str(&paint.dim(tail));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_share_and_fits() {
        let state = State { label: "loading".into(), done: 1, total: 4, note: "model.safetensors".repeat(9) };
        let text = line(&state, 0, Duration::from_millis(1500), 72, Paint::off());
        assert!(text.starts_with("⠋ loading  ━━━━━━━━━━━━━━━━━━━━━━━━  25 %  model"), "{text}");
        assert!(text.ends_with("  1.50 s") && visible_width(&text) < 72, "{text}");
        let text = line(&State { label: "compiling".into(), ..State::default() }, 1, Duration::ZERO, 72, Paint::off());
        assert_eq!(text, "⠙ compiling  0.00 ns");
    }

    #[test]
    fn nothing_is_drawn_where_nobody_looks() {
        let progress = Progress::on("loading", false);
        progress.set(1, 2);
        progress.note("here");
        assert!(progress.drawing.is_none());
    }
}
