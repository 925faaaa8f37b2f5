//! Text of tokens that come one by one, up to a stop string.

use crate::tokenizer::Decoding;
use crate::{Result, Tokenizer};
use std::sync::Arc;

/// Text of tokens that come one by one. What may become a stop string is held back until it is clear that it does not, so
/// that no part of a stop string is ever given.
///
/// ```
/// # let opened = kiln_llm::embedded()?;
/// # let tokenizer = opened.tokenizer.unwrap();
/// let mut stream = kiln_llm::TextStream::new(tokenizer.clone(), &["there was".into()]);
/// let mut shown = String::new();
/// for id in tokenizer.encode("Once upon a time, there was a girl", false)? {
///     shown += &stream.push(id)?;
///     if stream.stopped().is_some() {
///         break;
///     }
/// }
/// assert_eq!(shown, "Once upon a time, ");
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    decoding: Decoding,
    stops: Vec<String>,
    /// Decoded but not given.
    held: String,
    stopped: Option<usize>,
}

impl TextStream {
    /// With these stop strings; empty ones are none.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: &[String]) -> TextStream {
        let (decoding, stops) = (Decoding::new(true), stops.to_vec());
        TextStream { tokenizer, decoding, stops, held: String::new(), stopped: None }
    }

    /// The same for tokens that follow these: the space before the first word of theirs is text then.
    ///
    /// ```
    /// # let opened = kiln_llm::embedded()?;
    /// # let tokenizer = opened.tokenizer.unwrap();
    /// let prompt = tokenizer.encode("Lily saw", true)?;
    /// let whole = tokenizer.encode("Lily saw a big box", true)?;
    /// let mut stream = kiln_llm::TextStream::new(tokenizer, &[]).after(&prompt)?;
    /// assert_eq!(stream.push(whole[prompt.len()])?, " a");
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn after(mut self, prompt: &[u32]) -> Result<TextStream> {
        /// Tokens that can be part of a character which is not whole yet, and one more.
        const MATTER: usize = 5;
        for &id in &prompt[prompt.len().saturating_sub(MATTER)..] {
            self.decoding.push(&self.tokenizer, id)?;
        }
        Ok(self)
    }

    /// The text that is certain with a further token; after a stop string there is none.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.stopped.is_some() {
            return Ok(String::new());
        }
        self.held += &self.decoding.push(&self.tokenizer, id)?;
        Ok(self.certain())
    }

    /// Which stop string came.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// What was held back, when no more tokens come.
    pub fn finish(mut self) -> Result<String> {
        if self.stopped.is_some() {
            return Ok(String::new());
        }
        self.held += &self.decoding.rest(&self.tokenizer)?;
        let certain = self.certain();
        Ok(certain + &self.held)
    }

    /// Takes from the text held what is before a stop string, and what can be no beginning of one.
    fn certain(&mut self) -> String {
        let stops = || self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops().filter_map(|(which, stop)| Some((self.held.find(stop.as_str())?, which))).min();
        if let Some((at, which)) = found {
            self.stopped = Some(which);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |rest: &str| stops().any(|(_, stop)| stop.starts_with(rest));
        let at = self.held.char_indices().map(|(at, _)| at).find(|&at| begins(&self.held[at..]));
        let rest = self.held.split_off(at.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_prompt_keeps_its_space() {
        let opened = crate::embedded().unwrap();
        let tokenizer = opened.tokenizer.unwrap();
        let text = "Tom and Lily had a € and a dog";
        let ids = tokenizer.encode(text, true).unwrap();
        for cut in 1..ids.len() {
            let mut stream = TextStream::new(tokenizer.clone(), &[]).after(&ids[..cut]).unwrap();
            let mut rest: String = ids[cut..].iter().map(|&id| stream.push(id).unwrap()).collect();
            rest += &stream.finish().unwrap();
            let before = tokenizer.decode(&ids[..cut], true).unwrap();
            if !before.contains(char::REPLACEMENT_CHARACTER) {
                assert_eq!(before + &rest, text, "cut after {cut} tokens");
            }
        }
    }

    /// Whatever the tokens and the stop strings, what is shown is the text up to the first stop string.
    #[test]
    fn what_is_shown_ends_before_the_first_stop_string() {
        let opened = crate::embedded().unwrap();
        let tokenizer = opened.tokenizer.unwrap();
        let text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park €5.";
        let ids = tokenizer.encode(text, false).unwrap();
        let text = tokenizer.decode(&ids, true).unwrap();
        let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for begin in (0..chars.len()).step_by(3) {
            for length in [1, 2, 5, 11] {
                let Some(&end) = chars.get(begin + length) else { continue };
                let stops = [text[chars[begin]..end].to_owned(), "never there".into(), String::new()];
                let mut stream = TextStream::new(tokenizer.clone(), &stops);
                let mut shown = String::new();
                for &id in &ids {
                    shown += &stream.push(id).unwrap();
                    assert!(text[..text.find(&stops[0]).unwrap()].starts_with(&shown), "{shown:?} {stops:?}");
                }
                assert_eq!(stream.stopped(), Some(0));
                assert_eq!(shown, text[..text.find(&stops[0]).unwrap()]);
            }
        }
        let mut stream = TextStream::new(tokenizer, &["5.!".into()]);
        let shown: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert!(shown.len() < text.len(), "the end may become a stop string");
        assert_eq!(shown + &stream.finish().unwrap(), text);
    }
}
