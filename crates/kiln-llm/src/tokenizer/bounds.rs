//! What a tokenizer may do to a text. The parts of `tokenizer.json` are foreign: replacements may make a text longer at every
//! step, and a regular expression may go back and forth in it for ever.

use super::TokenizerError;
use std::time::{Duration, Instant};

/// Bytes that any text may grow to.
const BYTES: usize = 1 << 20;
/// Times that a text may grow: NFKD makes 18 characters of one, 11 times its bytes, and letters of bytes twice that.
const TIMES: usize = 32;
/// Time that looking for patterns in any text may take, and what it may take a byte more. A slow machine takes about 1 µs a
/// byte for the patterns of models.
const TIME: Duration = Duration::from_secs(5);
const TIME_A_BYTE: Duration = Duration::from_micros(20);

/// The longest text of a token; models have some of a few hundred bytes, of spaces.
pub(super) const LONGEST_TOKEN: usize = 4096;
/// Steps of a normalizer, a pre-tokenizer or a decoder, and tokens around a text.
pub(super) const MOST_PARTS: usize = 64;
pub(super) const MOST_FRAME: usize = 1024;
/// Bytes that the regular expressions of a file may have together; those of models have some hundred.
pub(super) const MOST_PATTERNS: usize = 16 << 10;

/// What one call may do.
#[derive(Debug)]
pub(super) struct Bounds {
    most: usize,
    left: usize,
    until: Instant,
    time: Duration,
}

impl Bounds {
    /// For a text of so many bytes.
    pub(super) fn of(bytes: usize) -> Bounds {
        let most = BYTES.saturating_add(bytes.saturating_mul(TIMES));
        let time = TIME + TIME_A_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        Bounds { most, left: most, until: Instant::now() + time, time }
    }

    /// Whether a text may become so long.
    pub(super) fn fits(&self, part: &'static str, bytes: usize) -> Result<(), TokenizerError> {
        if bytes > self.left { Err(TokenizerError::TooLong { part, most: self.most }) } else { Ok(()) }
    }

    /// A text has become so long: others of the same call have so much less.
    pub(super) fn take(&mut self, part: &'static str, bytes: usize) -> Result<(), TokenizerError> {
        self.fits(part, bytes)?;
        self.left -= bytes;
        Ok(())
    }

    /// Whether there is time for more.
    pub(super) fn in_time(&self, pattern: &str) -> Result<(), TokenizerError> {
        if Instant::now() < self.until {
            return Ok(());
        }
        let message = format!("it takes longer than {:.0} s on this text", self.time.as_secs_f64());
        Err(TokenizerError::Pattern { pattern: pattern.into(), message })
    }
}

/// Refuses more parts than any file has.
pub(super) fn few(part: &'static str, count: usize, most: usize) -> Result<(), TokenizerError> {
    if count > most { Err(TokenizerError::TooMany { part, count, most }) } else { Ok(()) }
}
