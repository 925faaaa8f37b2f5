//! Finished texts whose pages are kept for a text with the same prefix.

use crate::cache::{KvCache, Pages, Table};
use std::collections::VecDeque;

/// Ended texts, the oldest first. They have no claim to their pages: whoever needs them gets them.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<Ended>);

#[derive(Debug)]
struct Ended {
    /// Those whose keys and values are in the pages.
    tokens: Vec<u32>,
    table: Table,
}

impl Kept {
    /// Pages of all of them.
    pub fn pages(&self) -> usize {
        self.0.iter().map(|ended| ended.table.pages().len()).sum()
    }

    /// Keeps a text with those of its tokens that are in its pages.
    pub fn keep(&mut self, pages: &mut Pages, tokens: &[u32], mut table: Table) {
        pages.shrink(&mut table, tokens.len());
        if !table.pages().is_empty() {
            self.0.push_back(Ended { tokens: tokens.to_vec(), table });
        }
    }

    /// Takes the pages of the text with the longest common prefix, of at least one page, and returns them with the number
    /// of common tokens.
    pub fn take(&mut self, cache: &KvCache, text: &[u32]) -> Option<(Table, usize)> {
        let common = |ended: &Ended| {
            // Behind a border positions turn otherwise from the beginning on.
            let alike = cache.borders_before(ended.tokens.len()) == cache.borders_before(text.len());
            let same = ended.tokens.iter().zip(text).take_while(|(a, b)| a == b).count();
            if alike { same.min(text.len().saturating_sub(1)) } else { 0 }
        };
        let (at, same) = self.0.iter().map(common).enumerate().max_by_key(|&(_, same)| same)?;
        let ended = if same >= cache.shape().page { self.0.remove(at)? } else { return None };
        Some((ended.table, same))
    }

    /// Frees pages of the oldest texts until so many are free, or none is left.
    pub fn make_room(&mut self, pages: &mut Pages, wanted: usize) {
        while pages.free() < wanted
            && let Some(mut ended) = self.0.pop_front()
        {
            pages.release(&mut ended.table);
        }
    }
}
