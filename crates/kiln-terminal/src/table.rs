//! Tables: a dim head, a rule beneath it, columns as wide as what is in them. Where that is wider than the terminal, words are
//! wrapped, then columns go that may; where even that is too wide, each row becomes a block of lines, a cell a line, with nothing
//! left out.

use super::wrap::{broken, longest_word};
use super::{Paint, columns, visible_width};

/// Which side the cells of a column keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// A table that is shown when all of it is known.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// Columns that may be left out, those that go first first.
    spare: Vec<usize>,
}

/// Columns of words are not made narrower than this.
const NARROWEST: usize = 12;
/// Beside blocks, what is before a title and between the longest of them and the cells.
const BLOCK: usize = 2;

impl Table {
    /// With these columns.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns.iter().map(|&(title, align)| (title.into(), align)).collect();
        Table { columns, rows: Vec::new(), spare: Vec::new() }
    }

    /// Columns of these titles may be left out where that makes room for the others, in this order; they are told elsewhere too.
    pub fn may_drop(mut self, titles: &[&str]) -> Table {
        let place = |title: &&str| self.columns.iter().position(|(known, _)| known == title);
        self.spare = titles.iter().filter_map(place).collect();
        self
    }

    /// The same without some columns.
    fn without(&self, dropped: &[usize]) -> Table {
        fn kept<T: Clone>(all: &[T], dropped: &[usize]) -> Vec<T> {
            all.iter().enumerate().filter(|(at, _)| !dropped.contains(at)).map(|(_, item)| item.clone()).collect()
        }
        let rows = self.rows.iter().map(|row| kept(row, dropped)).collect();
        Table { columns: kept(&self.columns, dropped), rows, spare: Vec::new() }
    }

    /// One more row; a cell that is missing is empty, and may have colours.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Table {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
        self
    }

    /// Renders the lines, each with its line end, to the width of standard output.
    pub fn render(&self, paint: Paint) -> String {
        self.render_in(paint, columns())
    }

    /// Renders the lines, each with its line end, to so many columns; `None` means no limit.
    pub fn render_in(&self, paint: Paint, limit: Option<usize>) -> String {
        let Some(limit) = limit else { return self.lined(paint, &self.widths(), 2) };
        for dropped in 0..=self.spare.len() {
            let table = self.without(&self.spare[..dropped]);
            for gap in [2, 1] {
                if let Some(widths) = table.fitted(limit, gap) {
                    return table.lined(paint, &widths, gap);
                }
            }
        }
        self.blocks(paint, limit)
    }

    /// What each column takes.
    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| visible_width(&row[at]));
            cells.chain([visible_width(&self.columns[at].0)]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }

    /// What each column takes so that all fit beside each other: columns of words give way, the widest first.
    fn fitted(&self, limit: usize, gap: usize) -> Option<Vec<usize>> {
        let mut widths = self.widths();
        let least: Vec<usize> = (0..widths.len())
            .map(|at| match self.columns[at].1 {
                // Of figures only the title has words.
                Align::Right => {
                    let cells = self.rows.iter().map(|row| visible_width(&row[at])).max().unwrap_or(0);
                    cells.max(longest_word(&self.columns[at].0))
                }
                Align::Left => {
                    let words = self.rows.iter().map(|row| longest_word(&row[at])).max().unwrap_or(0);
                    words.max(NARROWEST).max(visible_width(&self.columns[at].0)).min(widths[at])
                }
            })
            .collect();
        loop {
            let too_much = (2 + widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)).checked_sub(limit);
            let Some(too_much) = too_much.filter(|&more| more > 0) else { return Some(widths) };
            let spare = |at: &usize| widths[*at] - least[*at];
            let widest = (0..widths.len()).filter(|at| spare(at) > 0).max_by_key(|&at| widths[at])?;
            widths[widest] -= spare(&widest).min(too_much);
        }
    }

    /// Columns beside each other.
    fn lined(&self, paint: Paint, widths: &[usize], gap: usize) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<Vec<String>> = cells.iter().zip(widths).map(|(cell, &width)| broken(cell, width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(1);
            let mut text = String::new();
            for row in 0..height {
                let mut line = String::from("  ");
                for ((cell, &width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
                    let cell = cell.get(row).map_or("", String::as_str);
                    let filling = " ".repeat(width.saturating_sub(visible_width(cell)));
                    match align {
                        Align::Left => line.push_str(&format!("{cell}{filling}")),
                        Align::Right => line.push_str(&format!("{filling}{cell}")),
                    }
                    line.push_str(&" ".repeat(gap));
                }
                text.push_str(line.trim_end());
                text.push('\n');
            }
            text
        };
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.clone()).collect();
        let head = line(&titles);
        let rule = "─".repeat(2 + widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1));
        let mut text = String::new();
        head.lines().for_each(|head| text.push_str(&format!("{}\n", paint.dim(head))));
        text.push_str(&format!(" {}\n", paint.dim(&rule[..rule.len() - "─".len()])));
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }

    /// Renders rows one after another, one line per cell.
    fn blocks(&self, paint: Paint, limit: usize) -> String {
        let titles = self.columns.iter().map(|(title, _)| visible_width(title)).max().unwrap_or(0);
        // Beside titles that leave no room, cells have lines of their own.
        let beside = limit.saturating_sub(2 * BLOCK + titles) >= NARROWEST;
        let (margin, room) = if beside {
            (2 * BLOCK + titles, limit - 2 * BLOCK - titles)
        } else {
            (2 * BLOCK, limit.saturating_sub(2 * BLOCK))
        };
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            for ((title, _), cell) in self.columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
                let before = format!("{}{}", " ".repeat(BLOCK), paint.dim(title));
                let mut lines = broken(cell, room.max(1)).into_iter();
                if beside {
                    let filling = " ".repeat(margin - BLOCK - visible_width(title));
                    text.push_str(&format!("{before}{filling}{}\n", lines.next().unwrap_or_default()));
                } else if !title.is_empty() {
                    text.push_str(&format!("{before}\n"));
                }
                lines.for_each(|line| text.push_str(&format!("{}{line}\n", " ".repeat(margin))));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&[("mode", Align::Left), ("tok/s", Align::Right)]);
        table.row(["eager", "\x1b[1m7\x1b[0m"]).row(["default"]);
        let text = table.render_in(Paint::off(), None);
        assert_eq!(text, "  mode     tok/s\n ───────────────\n  eager        \x1b[1m7\x1b[0m\n  default\n");
    }

    fn sample() -> Table {
        let titles = [("model", Align::Left), ("parameters", Align::Right), ("what it is", Align::Left)];
        let mut table = Table::new(&titles);
        table.row(["stories260K", "260 K", "\x1b[2ma story teller of 260 thousand parameters, trained\x1b[0m"]);
        table.row(["llama-3.2-1b", "1.2 B", "Llama 3.2: 16 layers of 2048, grouped heads, 128 thousand tokens"]);
        table
    }

    /// At every width each line fits and every word is there.
    #[test]
    fn a_table_fits_any_terminal_and_loses_nothing() {
        let words = ["stories260K", "260 K", "thousand", "trained", "llama-3.2-1b", "1.2 B", "grouped", "tokens"];
        for limit in 14..130 {
            let text = sample().render_in(Paint::off(), Some(limit));
            for line in text.lines() {
                assert!(visible_width(line) <= limit, "{limit}: '{line}'");
            }
            for word in words.iter().filter(|word| word.len() + 4 <= limit) {
                assert!(text.contains(word), "{limit} lacks {word}:\n{text}");
            }
        }
    }

    #[test]
    fn columns_that_may_go_do_before_rows_become_blocks() {
        let titles = ["mode", "first call", "mean", "× best peer"].map(|title| (title, Align::Right));
        let mut table = Table::new(&titles).may_drop(&["mean", "first call"]);
        table.row(["eager", "1.23 s", "12.3 ms", "1.00×"]);
        let shown = |limit| table.render_in(Paint::off(), Some(limit));
        // Titles wrap first.
        assert!(shown(41).contains("first call") && shown(41).contains("× best peer"), "{}", shown(41));
        assert!(shown(31).contains("12.3 ms") && !shown(31).contains("× best peer"), "{}", shown(31));
        assert!(!shown(24).contains("12.3 ms") && shown(24).contains("1.23 s"), "{}", shown(24));
        assert!(shown(16).contains("1.00×") && !shown(16).contains("1.23 s"), "{}", shown(16));
        for limit in 20..60 {
            assert!(shown(limit).lines().all(|line| visible_width(line) <= limit), "{limit}:\n{}", shown(limit));
        }
    }

    #[test]
    fn words_wrap_before_rows_become_blocks() {
        assert_eq!(
            sample().render_in(Paint::off(), Some(60)),
            "  model         parameters  what it is\n \
             ───────────────────────────────────────────────────────────\n  \
             stories260K        260 K  \x1b[2ma story teller of 260 thousand\x1b[0m\n                            \
             \x1b[2mparameters, trained\x1b[0m\n  \
             llama-3.2-1b       1.2 B  Llama 3.2: 16 layers of 2048,\n                            \
             grouped heads, 128 thousand\n                            tokens\n"
        );
        assert_eq!(
            sample().render_in(Paint::off(), Some(34)),
            "  model       stories260K\n  parameters  260 K\n  what it is  \x1b[2ma story teller of\x1b[0m\n              \
             \x1b[2m260 thousand\x1b[0m\n              \x1b[2mparameters, trained\x1b[0m\n\n  \
             model       llama-3.2-1b\n  parameters  1.2 B\n  what it is  Llama 3.2: 16 layers\n              \
             of 2048, grouped\n              heads, 128 thousand\n              tokens\n"
        );
    }
}
