//! What Kiln says while a test does something.

use kiln::Result;
use kiln::runtime::event::{self, Category, Event};
use std::sync::{Arc, Mutex, PoisonError};

/// What is said to be slow on this thread while `work` is done.
pub fn slow(work: impl FnOnce() -> Result<()>) -> Result<String> {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let (into, own) = (events.clone(), std::thread::current().id());
    let listening = event::listen(&[Category::Perf], move |event: &Event| {
        if std::thread::current().id() == own && matches!(event, Event::Slow { .. }) {
            into.lock().unwrap_or_else(PoisonError::into_inner).push(event.to_string());
        }
    });
    work()?;
    drop(listening);
    Ok(events.lock().unwrap_or_else(PoisonError::into_inner).join("\n"))
}
