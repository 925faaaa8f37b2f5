//! A text on a screen: rows as wide as the terminal, and the escape codes that put them in place of what was there.

use super::buffer::clusters;
use unicode_width::UnicodeWidthStr;

/// Columns of a tab.
const TAB: usize = 4;

/// Text laid out in rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// What each row shows, colours included.
    pub rows: Vec<String>,
    /// Columns that each row takes.
    pub widths: Vec<usize>,
    /// The row and column of the cursor.
    pub cursor: (usize, usize),
}

/// What stands before a text: before its first line, and before the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Margins {
    /// As they are shown, colours included.
    pub texts: [String; 2],
    /// Columns that they take.
    pub widths: [usize; 2],
}

impl Margins {
    /// Of a prompt, with as much space before further lines.
    pub fn new(shown: impl Into<String>, width: usize) -> Margins {
        Margins { texts: [shown.into(), " ".repeat(width)], widths: [width, width] }
    }
}

/// Lays out a text with the cursor behind so many bytes of it, on a terminal of so many columns.
pub fn layout(margins: &Margins, text: &str, cursor: usize, columns: usize) -> Frame {
    // The widest character has to fit beside the margin.
    let columns = columns.max(2);
    let mut frame = Frame::default();
    let (mut place, mut at) = (0, None);
    for (number, line) in text.split('\n').enumerate() {
        let side = usize::from(number > 0);
        let narrow = margins.widths[side] + 2 > columns;
        let (mut row, mut width) =
            if narrow { (String::new(), 0) } else { (margins.texts[side].clone(), margins.widths[side]) };
        for cluster in clusters(line) {
            let (shown, takes) = cell(cluster);
            if width + takes > columns {
                frame.rows.push(std::mem::take(&mut row));
                frame.widths.push(std::mem::take(&mut width));
            }
            if place == cursor {
                at = Some((frame.rows.len(), width));
            }
            row.push_str(&shown);
            width += takes;
            place += cluster.len();
        }
        frame.rows.push(row);
        frame.widths.push(width);
        if place == cursor && at.is_none() {
            // Behind a full row the cursor is at the beginning of the next.
            if width >= columns {
                frame.rows.push(String::new());
                frame.widths.push(0);
            }
            at = Some((frame.rows.len() - 1, if width >= columns { 0 } else { width }));
        }
        place += 1;
    }
    frame.cursor = at.unwrap_or((frame.rows.len() - 1, 0));
    frame
}

/// A character as it is shown, and its columns.
fn cell(cluster: &str) -> (String, usize) {
    match cluster.chars().next() {
        Some('\t') => (" ".repeat(TAB), TAB),
        Some(first) if first.is_control() => ("\u{fffd}".to_owned(), 1),
        _ => (cluster.to_owned(), cluster.width().min(2)),
    }
}

impl Frame {
    /// The rows around the cursor that fit a terminal of this height.
    fn clipped(mut self, height: usize) -> Frame {
        let height = height.max(1);
        if self.rows.len() > height {
            let top = (self.cursor.0 + 1).saturating_sub(height).min(self.rows.len() - height);
            self.rows = self.rows.split_off(top);
            self.widths = self.widths.split_off(top);
            self.rows.truncate(height);
            self.widths.truncate(height);
            self.cursor.0 -= top;
        }
        self
    }
}

/// What of a text is on the screen now.
#[derive(Debug, Default)]
pub struct Screen {
    frame: Frame,
}

impl Screen {
    /// Escape codes that show a frame in place of the one before. `columns` and `height` are the terminal's now; it may have
    /// had others, and has then wrapped what was there in its own way.
    pub fn draw(&mut self, frame: Frame, columns: usize, height: usize) -> String {
        let mut out = self.to_top(columns);
        let frame = frame.clipped(height);
        out.push_str(&frame.rows.join("\r\n"));
        let (row, column) = frame.cursor;
        let up = frame.rows.len() - 1 - row;
        if up > 0 {
            out.push_str(&format!("\x1b[{up}A"));
        }
        out.push('\r');
        if column > 0 {
            out.push_str(&format!("\x1b[{column}C"));
        }
        self.frame = frame;
        out
    }

    /// Escape codes that go behind the text, to a line of its own; nothing is replaced any more.
    pub fn leave(&mut self) -> String {
        let down = (self.frame.rows.len()).saturating_sub(1 + self.frame.cursor.0);
        self.frame = Frame::default();
        let mut out = if down > 0 { format!("\x1b[{down}B") } else { String::new() };
        out.push_str("\r\n");
        out
    }

    /// What is shown is gone, and so is all else.
    pub fn clear(&mut self) -> String {
        self.frame = Frame::default();
        "\x1b[H\x1b[2J".to_owned()
    }

    /// To the first row of what is shown, and all of it cleared.
    fn to_top(&self, columns: usize) -> String {
        let columns = columns.max(1);
        let (row, column) = self.frame.cursor;
        // Rows that are wider than the terminal is now take several of it.
        let above: usize = self.frame.widths.iter().take(row).map(|width| width.div_ceil(columns).max(1)).sum();
        let up = above + column / columns;
        if up > 0 { format!("\x1b[{up}A\r\x1b[J") } else { "\r\x1b[J".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, cursor: usize, columns: usize) -> (Vec<String>, (usize, usize)) {
        let frame = layout(&Margins::new("> ", 2), text, cursor, columns);
        assert_eq!(frame.rows.len(), frame.widths.len());
        assert!(frame.widths.iter().all(|&width| width <= columns.max(2)), "{frame:?}");
        (frame.rows, frame.cursor)
    }

    #[test]
    fn text_is_wrapped_and_the_cursor_is_in_its_place() {
        assert_eq!(rows("", 0, 10), (vec!["> ".into()], (0, 2)));
        assert_eq!(rows("abc", 1, 10), (vec!["> abc".into()], (0, 3)));
        assert_eq!(rows("abcdefghij", 10, 8), (vec!["> abcdef".into(), "ghij".into()], (1, 4)));
        // The cursor before the first character of a row is in that row.
        assert_eq!(rows("abcdefgh", 6, 8).1, (1, 0));
        // Behind a full row it is in the next, which is there for it.
        assert_eq!(rows("abcdef", 6, 8), (vec!["> abcdef".into(), String::new()], (1, 0)));
        assert_eq!(rows("ab\ncd", 3, 8), (vec!["> ab".into(), "  cd".into()], (1, 2)));
        assert_eq!(rows("ab\n", 3, 8), (vec!["> ab".into(), "  ".into()], (1, 2)));
        assert_eq!(rows("ab\ncd", 2, 8).1, (0, 4));
    }

    #[test]
    fn wide_and_joined_characters_take_the_columns_they_take() {
        // Three of two columns do not fit five.
        assert_eq!(rows("漢字漢字", 12, 7), (vec!["> 漢字".into(), "漢字".into()], (1, 4)));
        assert_eq!(rows("e\u{301}x", 3, 10), (vec!["> e\u{301}x".into()], (0, 3)));
        assert_eq!(rows("\tx", 1, 10).1, (0, 6));
        assert_eq!(rows("漢", 3, 1), (vec!["漢".into(), String::new()], (1, 0)));
    }

    /// A terminal that knows what frames use.
    struct Terminal {
        cells: Vec<Vec<char>>,
        at: (usize, usize),
        columns: usize,
    }

    impl Terminal {
        fn new(columns: usize, height: usize) -> Terminal {
            Terminal { cells: vec![Vec::new(); height], at: (0, 0), columns }
        }

        fn write(&mut self, text: &str) {
            let mut characters = text.chars();
            while let Some(character) = characters.next() {
                match character {
                    '\r' => self.at.1 = 0,
                    '\n' if self.at.0 + 1 == self.cells.len() => {
                        self.cells.remove(0);
                        self.cells.push(Vec::new());
                    }
                    '\n' => self.at.0 += 1,
                    '\x1b' => {
                        assert_eq!(characters.next(), Some('['));
                        let code: String = characters.by_ref().take_while_inclusive();
                        self.escape(&code);
                    }
                    _ => {
                        let row = &mut self.cells[self.at.0];
                        row.resize(row.len().max(self.at.1 + 1), ' ');
                        row[self.at.1] = character;
                        self.at.1 += 1;
                        assert!(self.at.1 <= self.columns, "wraps by itself");
                    }
                }
            }
        }

        fn escape(&mut self, code: &str) {
            let number = code[..code.len() - 1].parse().unwrap_or(1);
            match code.as_bytes()[code.len() - 1] {
                b'A' => self.at.0 = self.at.0.saturating_sub(number),
                b'B' => self.at.0 = (self.at.0 + number).min(self.cells.len() - 1),
                b'C' => self.at.1 = (self.at.1 + number).min(self.columns - 1),
                b'J' => {
                    self.cells[self.at.0].truncate(self.at.1);
                    self.cells[self.at.0 + 1..].iter_mut().for_each(Vec::clear);
                }
                _ => panic!("unknown code {code}"),
            }
        }

        fn text(&self) -> String {
            let rows: Vec<String> =
                self.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect();
            rows.join("\n").trim_end().to_owned()
        }
    }

    trait Inclusive {
        fn take_while_inclusive(self) -> String;
    }

    impl Inclusive for &mut std::str::Chars<'_> {
        /// An escape code, its letter included.
        fn take_while_inclusive(self) -> String {
            let mut code = String::new();
            for character in self {
                code.push(character);
                if character.is_ascii_alphabetic() {
                    break;
                }
            }
            code
        }
    }

    #[test]
    fn a_frame_takes_the_place_of_the_one_before() {
        let (mut screen, mut terminal) = (Screen::default(), Terminal::new(8, 6));
        terminal.write("before\r\n");
        for (text, cursor, shown, at) in [
            ("abc", 3, "before\n> abc", (1, 5)),
            ("abcdefghij", 10, "before\n> abcdef\nghij", (2, 4)),
            ("abcdefghij", 0, "before\n> abcdef\nghij", (1, 2)),
            ("x", 1, "before\n> x", (1, 3)),
            ("one\ntwo", 5, "before\n> one\n  two", (2, 3)),
        ] {
            let frame = layout(&Margins::new("> ", 2), text, cursor, 8);
            let codes = screen.draw(frame, 8, 6);
            terminal.write(&codes);
            assert_eq!((terminal.text().as_str(), terminal.at), (shown, at), "{text}");
        }
        let codes = screen.leave();
        terminal.write(&codes);
        assert_eq!(terminal.at, (3, 0));
    }

    #[test]
    fn a_text_taller_than_the_terminal_shows_the_rows_around_the_cursor() {
        let (mut screen, mut terminal) = (Screen::default(), Terminal::new(8, 3));
        let text = "1\n2\n3\n4\n5";
        for (cursor, shown) in [(9, "  3\n  4\n  5"), (0, "> 1\n  2\n  3"), (5, "> 1\n  2\n  3"), (9, "  3\n  4\n  5")]
        {
            let frame = layout(&Margins::new("> ", 2), text, cursor, 8);
            let codes = screen.draw(frame, 8, 3);
            terminal.write(&codes);
            assert_eq!(terminal.text(), shown, "cursor {cursor}");
        }
    }

    #[test]
    fn a_narrower_terminal_has_wrapped_what_was_there() {
        let mut screen = Screen::default();
        let margins = Margins::new("> ", 2);
        screen.draw(layout(&margins, "abcdefghijklmnop", 16, 20), 20, 10);
        // 18 columns are three rows of eight; the cursor, in column 18, is in the third.
        let codes = screen.draw(layout(&margins, "abcdefghijklmnop", 16, 8), 8, 10);
        assert!(codes.starts_with("\x1b[2A\r\x1b[J> abcdef\r\n"), "{}", codes.escape_debug());
    }
}
