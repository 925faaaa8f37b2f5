//! Text with a place in it: what editing keys do to it, by whole characters as people see them.

use unicode_width::UnicodeWidthChar;

const JOINER: char = '\u{200d}';

/// Text and where the cursor is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffer {
    text: String,
    /// A byte of the text, at the beginning of a character.
    cursor: usize,
}

impl Buffer {
    /// With the cursor at the end.
    pub fn new(text: impl Into<String>) -> Buffer {
        let text = text.into();
        Buffer { cursor: text.len(), text }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes before the cursor.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Puts text where the cursor is.
    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    /// Takes away the text between the cursor and another place.
    fn cut(&mut self, other: usize) -> String {
        let (from, to) = (self.cursor.min(other), self.cursor.max(other));
        self.cursor = from;
        self.text.drain(from..to).collect()
    }

    /// Deletes the character before the cursor.
    pub fn backspace(&mut self) {
        self.cut(self.before());
    }

    /// Deletes the character behind the cursor.
    pub fn delete(&mut self) {
        self.cut(self.behind());
    }

    /// A character to the left.
    pub fn left(&mut self) {
        self.cursor = self.before();
    }

    /// A character to the right.
    pub fn right(&mut self) {
        self.cursor = self.behind();
    }

    /// To the beginning of the word.
    pub fn word_left(&mut self) {
        self.cursor = self.word_before(char::is_alphanumeric);
    }

    /// Behind the end of the word.
    pub fn word_right(&mut self) {
        self.cursor = self.word_behind();
    }

    /// To the beginning of the line.
    pub fn home(&mut self) {
        self.cursor = self.line_start();
    }

    /// To the end of the line.
    pub fn end(&mut self) {
        self.cursor = self.line_end();
    }

    /// A line up; false on the first one.
    pub fn up(&mut self) -> bool {
        let (start, column) = (self.line_start(), self.column());
        if start == 0 {
            return false;
        }
        self.cursor = start - 1;
        self.go_to_column(column);
        true
    }

    /// A line down; false on the last one.
    pub fn down(&mut self) -> bool {
        let (end, column) = (self.line_end(), self.column());
        if end == self.text.len() {
            return false;
        }
        self.cursor = end + 1;
        self.go_to_column(column);
        true
    }

    /// Deletes to the end of the line, or the end itself.
    pub fn kill_to_end(&mut self) -> String {
        let end = self.line_end();
        self.cut(if end == self.cursor { self.behind() } else { end })
    }

    /// Deletes to the beginning of the line, or the end of the line before.
    pub fn kill_to_start(&mut self) -> String {
        let start = self.line_start();
        self.cut(if start == self.cursor { self.before() } else { start })
    }

    /// Deletes back to the last white space.
    pub fn kill_word(&mut self) -> String {
        self.cut(self.word_before(|c| !c.is_whitespace()))
    }

    /// Deletes back to the beginning of the word.
    pub fn kill_word_left(&mut self) -> String {
        self.cut(self.word_before(char::is_alphanumeric))
    }

    /// Deletes to the end of the word.
    pub fn kill_word_right(&mut self) -> String {
        self.cut(self.word_behind())
    }

    /// Swaps the characters around the cursor; at the end of a line those before it.
    pub fn transpose(&mut self) {
        if self.cursor == self.line_end() && self.cursor > self.line_start() {
            self.left();
        }
        if self.cursor == self.line_start() || self.cursor == self.line_end() {
            return;
        }
        let first = self.cut(self.before());
        self.right();
        self.insert(&first);
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    /// Characters between the beginning of the line and the cursor.
    fn column(&self) -> usize {
        clusters(&self.text[self.line_start()..self.cursor]).count()
    }

    /// To this place of the line that the cursor is in, or to its end.
    fn go_to_column(&mut self, column: usize) {
        let start = self.line_start();
        let line = &self.text[start..self.line_end()];
        self.cursor = start + clusters(line).take(column).map(str::len).sum::<usize>();
    }

    fn before(&self) -> usize {
        self.cursor - clusters(&self.text[..self.cursor]).last().map_or(0, str::len)
    }

    fn behind(&self) -> usize {
        self.cursor + clusters(&self.text[self.cursor..]).next().map_or(0, str::len)
    }

    fn word_before(&self, is_word: impl Fn(char) -> bool) -> usize {
        let mut at = self.cursor;
        let mut inside = false;
        for (place, character) in self.text[..self.cursor].char_indices().rev() {
            if !is_word(character) && inside {
                break;
            }
            inside |= is_word(character);
            at = place;
        }
        at
    }

    fn word_behind(&self) -> usize {
        let mut inside = false;
        for (place, character) in self.text[self.cursor..].char_indices() {
            if !character.is_alphanumeric() && inside {
                return self.cursor + place;
            }
            inside |= character.is_alphanumeric();
        }
        self.text.len()
    }
}

/// The characters of a text as people see them: a letter with its accents, a picture with its modifiers.
pub fn clusters(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut characters = rest.char_indices();
        let (_, first) = characters.next()?;
        let (mut last, mut flags) = (first, usize::from(is_flag(first)));
        let end = characters.find(|&(_, character)| {
            let joins = character != '\n'
                && (last == JOINER || attaches(character) || (flags == 1 && is_flag(character)))
                && !first.is_control();
            flags = if is_flag(character) { flags + 1 } else { 0 };
            last = character;
            !joins
        });
        let (cluster, after) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        rest = after;
        Some(cluster)
    })
}

/// Whether a character belongs to the one before it: accents, joiners, variations, colours of skin.
fn attaches(character: char) -> bool {
    (character.width() == Some(0) && !character.is_control()) || matches!(character, '\u{1f3fb}'..='\u{1f3ff}')
}

/// Whether a character is half of a flag.
fn is_flag(character: char) -> bool {
    matches!(character, '\u{1f1e6}'..='\u{1f1ff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer written with `|` for the cursor.
    fn at(text: &str) -> Buffer {
        let cursor = text.find('|').unwrap();
        Buffer { text: text.replacen('|', "", 1), cursor }
    }

    fn shown(buffer: &Buffer) -> String {
        format!("{}|{}", &buffer.text[..buffer.cursor], &buffer.text[buffer.cursor..])
    }

    fn after(text: &str, edit: impl FnOnce(&mut Buffer)) -> String {
        let mut buffer = at(text);
        edit(&mut buffer);
        shown(&buffer)
    }

    #[test]
    fn characters_are_whole() {
        let family = "👨\u{200d}👩\u{200d}👧";
        let parts = ["e\u{301}", "漢", family, "🇫🇷", "🇩🇪", "👍🏽", "x", "\n", "y"];
        assert_eq!(clusters(&parts.concat()).collect::<Vec<_>>(), parts);
        assert_eq!(after(&format!("a{family}|b"), Buffer::backspace), "a|b");
        assert_eq!(after(&format!("a|{family}b"), Buffer::right), format!("a{family}|b"));
        assert_eq!(after("ae\u{301}|b", Buffer::left), "a|e\u{301}b");
        assert_eq!(after("|漢b", Buffer::delete), "|b");
    }

    #[test]
    fn edges_hold() {
        for edit in [Buffer::backspace, Buffer::delete, Buffer::left, Buffer::right, Buffer::home, Buffer::transpose] {
            assert_eq!(after("|", edit), "|");
        }
        assert_eq!(after("|a", Buffer::backspace), "|a");
        assert_eq!(after("a|", Buffer::delete), "a|");
    }

    #[test]
    fn words_lines_and_kills() {
        assert_eq!(after("one two-three |", Buffer::word_left), "one two-|three ");
        assert_eq!(after("one| two-three", Buffer::word_right), "one two|-three");
        assert_eq!(after("one two-three|", |b| drop(b.kill_word())), "one |");
        assert_eq!(after("one two-three|", |b| drop(b.kill_word_left())), "one two-|");
        assert_eq!(after("one| two", |b| drop(b.kill_word_right())), "one|");
        assert_eq!(after("ab\ncd|ef\ngh", Buffer::home), "ab\n|cdef\ngh");
        assert_eq!(after("ab\ncd|ef\ngh", Buffer::end), "ab\ncdef|\ngh");
        assert_eq!(after("ab\ncd|ef\ngh", |b| assert_eq!(b.kill_to_end(), "ef")), "ab\ncd|\ngh");
        assert_eq!(after("ab\ncd|\ngh", |b| assert_eq!(b.kill_to_end(), "\n")), "ab\ncd|gh");
        assert_eq!(after("ab\ncd|ef", |b| assert_eq!(b.kill_to_start(), "cd")), "ab\n|ef");
        assert_eq!(after("ab|c", Buffer::transpose), "acb|");
        assert_eq!(after("abc|", Buffer::transpose), "acb|");
    }

    #[test]
    fn up_and_down_keep_the_column() {
        assert_eq!(after("a漢c\nx|yz", |b| assert!(b.up())), "a|漢c\nxyz");
        assert_eq!(after("abc|\nx\nabc", |b| assert!(b.down())), "abc\nx|\nabc");
        assert_eq!(after("ab|c", |b| assert!(!b.up() && !b.down())), "ab|c");
    }
}
