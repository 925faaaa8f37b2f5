//! Which pages of a pool belong to which text.

/// The free pages of a pool. Page 0 is nobody's: what fills up a batch is written there and read by no text.
#[derive(Debug, Clone)]
pub struct Pages {
    free: Vec<usize>,
    page: usize,
    count: usize,
}

/// The pages of one text, in the order of its tokens.
///
/// It gives its pages back through [`Pages::release`] only, so that they cannot be forgotten in a clone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<usize>);

impl Table {
    /// The pages.
    pub fn pages(&self) -> &[usize] {
        &self.0
    }
}

impl Pages {
    /// For a pool of `count` pages, the first included, of `page` tokens each.
    pub fn new(count: usize, page: usize) -> Pages {
        // From the end, so that the first ones are taken first.
        Pages { free: (1..count).rev().collect(), page, count }
    }

    /// Pages that no text has.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that texts may have.
    pub fn count(&self) -> usize {
        self.count.saturating_sub(1)
    }

    /// Tokens of a page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// How many further pages a table needs for so many tokens.
    pub fn missing(&self, table: &Table, tokens: usize) -> usize {
        tokens.div_ceil(self.page).saturating_sub(table.0.len())
    }

    /// Makes a table long enough for so many tokens; where pages are too few nothing changes and this is false.
    ///
    /// ```
    /// use kiln_llm::cache::{Pages, Table};
    /// let (mut pages, mut text, mut other) = (Pages::new(4, 16), Table::default(), Table::default());
    /// assert!(pages.reserve(&mut text, 17) && text.pages() == [1, 2]);
    /// assert!(!pages.reserve(&mut other, 17) && pages.reserve(&mut other, 16));
    /// pages.release(&mut text);
    /// assert_eq!((pages.free(), other.pages()), (2, &[3][..]));
    /// ```
    pub fn reserve(&mut self, table: &mut Table, tokens: usize) -> bool {
        let missing = self.missing(table, tokens);
        if missing > self.free.len() {
            return false;
        }
        table.0.extend(self.free.drain(self.free.len() - missing..).rev());
        true
    }

    /// Takes back the pages of a table that so many tokens do not need.
    pub fn shrink(&mut self, table: &mut Table, tokens: usize) {
        let needed = tokens.div_ceil(self.page).min(table.0.len());
        self.free.extend(table.0.drain(needed..).rev());
    }

    /// Takes the pages of a text back.
    pub fn release(&mut self, table: &mut Table) {
        self.free.extend(table.0.drain(..).rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is reserved and released, a page has one owner, page 0 has none, and no page is lost.
    #[test]
    fn a_page_has_one_owner() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for count in [0, 1, 2, 9, 40] {
            let mut pages = Pages::new(count, 8);
            let mut tables: Vec<(Table, usize)> = (0..7).map(|_| (Table::default(), 0)).collect();
            for _ in 0..2000 {
                let (table, tokens) = &mut tables[random(7)];
                if random(3) == 0 {
                    *tokens = if random(2) == 0 { 0 } else { random(*tokens + 1) };
                    pages.shrink(table, *tokens);
                    assert_eq!(table.pages().len(), tokens.div_ceil(8));
                } else if random(6) == 0 {
                    pages.release(table);
                    *tokens = 0;
                } else {
                    let (wanted, before) = (*tokens + random(30), (pages.free(), table.pages().to_vec()));
                    let missing = pages.missing(table, wanted);
                    if pages.reserve(table, wanted) {
                        *tokens = wanted;
                        assert_eq!(table.pages().len(), wanted.div_ceil(8));
                        assert!(table.pages().starts_with(&before.1), "what is written stays where it is");
                    } else {
                        assert!(missing > before.0);
                        assert_eq!((pages.free(), table.pages()), (before.0, &before.1[..]));
                    }
                }
                let mut owned: Vec<usize> = tables.iter().flat_map(|(table, _)| table.pages()).copied().collect();
                owned.extend(&pages.free);
                owned.sort_unstable();
                assert!(owned.iter().copied().eq(1..count.max(1)), "{owned:?}");
            }
        }
    }
}
