//! Text laid out in lines of whole words: as it comes in pieces, behind a margin; or whole, with further lines hung beneath.

use super::visible_width;
use unicode_width::UnicodeWidthChar;

/// The parts of a text that take no columns, and the characters that do.
fn pieces(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = match first {
            // A colour ends at its first letter.
            '\x1b' => rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |at| at + 1),
            _ => first.len_utf8(),
        };
        let (piece, after) = rest.split_at(length);
        rest = after;
        Some((piece, if first == '\x1b' { 0 } else { first.width().unwrap_or(0) }))
    })
}

/// A text in lines of at most so many columns: broken between words, and inside of words that are too long. A colour that the whole
/// text has is each line's.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    if visible_width(text) <= width {
        return vec![text.to_owned()];
    }
    let (open, inside, close) = colour(text);
    broken_after(inside, width, width).into_iter().map(|line| format!("{open}{line}{close}")).collect()
}

/// Lines of at most so many columns, the first of another width than the rest.
fn broken_after(text: &str, first: usize, rest: usize) -> Vec<String> {
    let (mut lines, mut line, mut taken) = (Vec::new(), String::new(), 0);
    let mut width = first;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let needed = visible_width(word);
        if taken > 0 && taken + 1 + needed > width {
            lines.push(std::mem::take(&mut line));
            (taken, width) = (0, rest);
        }
        if taken > 0 {
            line.push(' ');
            taken += 1;
        }
        for (piece, columns) in pieces(word) {
            if taken > 0 && taken + columns > width {
                lines.push(std::mem::take(&mut line));
                (taken, width) = (0, rest);
            }
            line.push_str(piece);
            taken += columns;
        }
    }
    lines.push(line);
    lines
}

/// The colour of a whole text, the text, and the end of the colour.
fn colour(text: &str) -> (&str, &str, &str) {
    const END: &str = "\x1b[0m";
    let begin = if text.starts_with('\x1b') { text.find('m').map_or(0, |at| at + 1) } else { 0 };
    match text[begin..].strip_suffix(END) {
        Some(inside) if begin > 0 && !inside.contains('\x1b') => (&text[..begin], inside, END),
        _ => ("", text, ""),
    }
}

/// Columns of the longest word of a text.
pub fn longest_word(text: &str) -> usize {
    text.split(' ').map(visible_width).max().unwrap_or(0)
}

/// Lines of a text, those that are too long hung beneath their beginnings, so many columns behind them.
pub fn hung(text: &str, limit: Option<usize>, deeper: usize) -> String {
    let Some(limit) = limit else { return text.to_owned() };
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if visible_width(line) <= limit {
            out.push_str(line);
        } else {
            let plain = line.trim_start_matches(' ');
            let indent = (line.len() - plain.len()).min(limit / 2);
            // Where little room is left beneath, it begins further left.
            let hang = if indent + deeper + 16 > limit { indent.min(limit / 4) } else { indent + deeper };
            let lines = broken_after(plain, limit - indent, limit - hang);
            for (number, line) in lines.iter().enumerate() {
                let (end, indent) = if number == 0 { ("", indent) } else { ("\n", hang) };
                out.push_str(&format!("{end}{}{line}", " ".repeat(indent)));
            }
        }
        out.push_str(end);
    }
    out
}

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
    fn lines_that_are_too_long_hang() {
        let text = "short\n  a list of words that is too long\n  ok\n";
        assert_eq!(hung(text, Some(24), 4), "short\n  a list of words that\n      is too long\n  ok\n");
        // Where little room is left, further lines begin where the first does.
        assert_eq!(hung(text, Some(20), 4), "short\n  a list of words\n  that is too long\n  ok\n");
        assert_eq!(hung(text, None, 4), text);
        let path = format!("at {}", "x".repeat(50));
        for limit in 5..60 {
            let lines = hung(&path, Some(limit), 4);
            assert!(lines.lines().all(|line| visible_width(line) <= limit), "{limit}: {lines}");
            assert_eq!(lines.chars().filter(|&c| c == 'x').count(), 50);
        }
    }

    #[test]
    fn a_colour_is_that_of_each_line() {
        assert_eq!(broken("\x1b[2mone two\x1b[0m", 4), ["\x1b[2mone\x1b[0m", "\x1b[2mtwo\x1b[0m"]);
        assert_eq!(broken("漢字漢字", 5), ["漢字", "漢字"]);
        assert_eq!((broken("one", 4), broken("", 4)), (vec!["one".to_owned()], vec![String::new()]));
    }

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
