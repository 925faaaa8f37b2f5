//! Text that comes in pieces, laid out in lines of whole words behind a margin.

use super::visible_width;

/// A column of text.
#[derive(Debug, Clone)]
pub struct Column {
    margin: String,
    width: usize,
    /// Columns taken in this line, the margin not counted.
    taken: usize,
    /// A word that may not be whole yet.
    word: String,
    /// White space before it.
    gap: bool,
    begun: bool,
}

impl Column {
    /// Of this width, with this before each line.
    pub fn new(margin: impl Into<String>, width: usize) -> Column {
        let margin = margin.into();
        let width = width.saturating_sub(visible_width(&margin)).max(8);
        Column { margin, width, taken: 0, word: String::new(), gap: false, begun: false }
    }

    /// What can be shown with a further piece: all but its last word, which may go on.
    pub fn push(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for character in piece.chars() {
            if !character.is_whitespace() {
                self.word.push(character);
                continue;
            }
            self.place(&mut out);
            if character == '\n' && self.begun {
                out.push('\n');
                (self.begun, self.gap, self.taken) = (false, false, 0);
            } else {
                self.gap = self.begun;
            }
        }
        out
    }

    /// The rest, with the end of the line.
    pub fn finish(mut self) -> String {
        let mut out = String::new();
        self.place(&mut out);
        if self.begun {
            out.push('\n');
        }
        out
    }

    /// Places the word.
    fn place(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let length = visible_width(&self.word);
        let gap = usize::from(self.gap);
        if self.begun && self.taken + gap + length > self.width {
            out.push('\n');
            (self.begun, self.taken) = (false, 0);
        }
        if !self.begun {
            out.push_str(&self.margin);
            self.begun = true;
        } else if self.gap {
            out.push(' ');
            self.taken += 1;
        }
        out.push_str(&self.word);
        self.taken += length;
        self.word.clear();
        self.gap = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole_however_they_come() {
        let text = "Once upon a time, there was\na kiln.";
        let expected = "| Once upon\n| a time,\n| there was\n| a kiln.\n";
        for size in [1, 2, 5, 100] {
            let mut column = Column::new("| ", 12);
            let pieces: Vec<char> = text.chars().collect();
            let shown: String =
                pieces.chunks(size).map(|piece| column.push(&piece.iter().collect::<String>())).collect();
            assert_eq!(shown + &column.finish(), expected, "pieces of {size}");
        }
    }
}
