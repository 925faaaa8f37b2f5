//! Tables: a dim head, a rule beneath it, columns as wide as what is in them.

use super::{Paint, visible_width};

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
}

impl Table {
    /// With these columns.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table { columns: columns.iter().map(|&(title, align)| (title.into(), align)).collect(), rows: Vec::new() }
    }

    /// One more row; a cell that is missing is empty, and may have colours.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Table {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
        self
    }

    /// The lines, each with its end.
    pub fn render(&self, paint: Paint) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| visible_width(&row[at]));
            cells.chain([visible_width(&self.columns[at].0)]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            let mut text = String::from(" ");
            for ((cell, &width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                let filling = " ".repeat(width - visible_width(cell));
                match align {
                    Align::Left => text.push_str(&format!(" {cell}{filling} ")),
                    Align::Right => text.push_str(&format!(" {filling}{cell} ")),
                }
            }
            text.trim_end().to_owned()
        };
        let head = line(&mut self.columns.iter().map(|(title, _)| title));
        let rule = "─".repeat(widths.iter().map(|width| width + 2).sum());
        let mut text = format!("{}\n {}\n", paint.dim(head), paint.dim(rule));
        for row in &self.rows {
            text.push_str(&line(&mut row.iter()));
            text.push('\n');
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
        let text = table.render(Paint::off());
        assert_eq!(text, "  mode     tok/s\n ────────────────\n  eager        \x1b[1m7\x1b[0m\n  default\n");
    }
}
