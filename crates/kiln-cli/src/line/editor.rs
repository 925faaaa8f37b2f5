//! What keys do: a state that takes one key after the other, without a terminal.

use super::buffer::Buffer;
use super::history::History;
use super::keys::Key;
use super::turn;

/// What is to be done after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Show the text, and go on.
    Edit,
    /// The text is whole.
    Submit(String),
    /// Ctrl-C: the text is given up. Says whether there was one.
    Interrupt(bool),
    /// Ctrl-D on an empty line.
    End,
    /// Clear the screen, and go on.
    ClearScreen,
    /// Ctrl-Z.
    Suspend,
}

/// Looking for something that was said before.
#[derive(Debug, Clone)]
struct Search {
    query: String,
    /// The entry that is shown.
    found: Option<usize>,
    /// What there was to begin with.
    before: Buffer,
}

/// A text that is being written.
#[derive(Debug, Default)]
pub struct Editor {
    buffer: Buffer,
    /// The entry of the history that is shown, and what was written before.
    browsing: Option<(usize, Buffer)>,
    search: Option<Search>,
    /// What was cut last.
    killed: String,
}

impl Editor {
    /// A text that is whole.
    pub fn showing(text: &str) -> Editor {
        Editor { buffer: Buffer::new(text), ..Editor::default() }
    }

    /// The text and the cursor.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// What is being looked for, and whether it was found.
    pub fn searching(&self) -> Option<(&str, bool)> {
        let search = self.search.as_ref()?;
        Some((&search.query, search.found.is_some() || search.query.is_empty()))
    }

    /// Takes a key.
    pub fn press(&mut self, key: Key, history: &History) -> Step {
        if self.search.is_some() {
            match self.press_in_search(key, history) {
                Ok(step) => return step,
                Err(key) => return self.press(key, history),
            }
        }
        match key {
            Key::Enter => return self.enter(),
            Key::Ctrl('c') => {
                let was_there = !self.buffer.text().is_empty();
                *self = Editor { killed: std::mem::take(&mut self.killed), ..Editor::default() };
                return Step::Interrupt(was_there);
            }
            Key::Ctrl('d') if self.buffer.text().is_empty() => return Step::End,
            Key::Ctrl('l') => return Step::ClearScreen,
            Key::Ctrl('z') => return Step::Suspend,
            Key::Ctrl('r') => {
                let before = self.buffer.clone();
                self.search = Some(Search { query: String::new(), found: None, before });
            }
            Key::Up if !self.buffer.up() => self.older(history),
            Key::Down if !self.buffer.down() => self.newer(history),
            Key::Ctrl('p') => self.older(history),
            Key::Ctrl('n') => self.newer(history),
            Key::Up | Key::Down => {}
            other => self.edit(other),
        }
        Step::Edit
    }

    fn edit(&mut self, key: Key) {
        let buffer = &mut self.buffer;
        match key {
            Key::Char(character) => buffer.insert(character.encode_utf8(&mut [0; 4])),
            Key::Paste(text) => buffer.insert(&pasted(&text)),
            Key::Alt('\r') => buffer.insert("\n"),
            Key::Backspace => buffer.backspace(),
            Key::Delete | Key::Ctrl('d') => buffer.delete(),
            Key::Left | Key::Ctrl('b') => buffer.left(),
            Key::Right | Key::Ctrl('f') => buffer.right(),
            Key::WordLeft | Key::Alt('b') => buffer.word_left(),
            Key::WordRight | Key::Alt('f') => buffer.word_right(),
            Key::Home | Key::Ctrl('a') => buffer.home(),
            Key::End | Key::Ctrl('e') => buffer.end(),
            Key::Ctrl('t') => buffer.transpose(),
            Key::Ctrl('y') => buffer.insert(&self.killed),
            Key::Ctrl('k') => self.killed = buffer.kill_to_end(),
            Key::Ctrl('u') => self.killed = buffer.kill_to_start(),
            Key::Ctrl('w') => self.killed = buffer.kill_word(),
            Key::Alt('\x08') => self.killed = buffer.kill_word_left(),
            Key::Alt('d') => self.killed = buffer.kill_word_right(),
            _ => {}
        }
    }

    /// The text is whole, unless it says that it goes on.
    fn enter(&mut self) -> Step {
        if turn::is_open(self.buffer.text()) {
            self.buffer = Buffer::new(format!("{}\n", self.buffer.text()));
            return Step::Edit;
        }
        let done = std::mem::take(self);
        self.killed = done.killed;
        Step::Submit(done.buffer.text().to_owned())
    }

    /// The entry before the one that is shown.
    fn older(&mut self, history: &History) {
        let now = self.browsing.as_ref().map_or(history.entries().len(), |(at, _)| *at);
        let Some(at) = now.checked_sub(1) else { return };
        let written = self.browsing.take().map_or_else(|| self.buffer.clone(), |(_, written)| written);
        self.buffer = Buffer::new(&history.entries()[at]);
        self.browsing = Some((at, written));
    }

    /// The entry behind the one that is shown, and at last what was being written.
    fn newer(&mut self, history: &History) {
        let Some((at, written)) = self.browsing.take() else { return };
        match history.entries().get(at + 1) {
            Some(entry) => {
                self.buffer = Buffer::new(entry);
                self.browsing = Some((at + 1, written));
            }
            None => self.buffer = written,
        }
    }

    /// A key while something is looked for; one that has another meaning ends that and comes back.
    fn press_in_search(&mut self, key: Key, history: &History) -> Result<Step, Key> {
        let Some(mut search) = self.search.take() else { return Err(key) };
        let from = match key {
            Key::Char(character) => {
                search.query.push(character);
                history.entries().len()
            }
            Key::Backspace => {
                search.query.pop();
                history.entries().len()
            }
            Key::Ctrl('r') => search.found.unwrap_or(history.entries().len()),
            Key::Ctrl('g' | 'c') => {
                self.buffer = search.before;
                return Ok(Step::Edit);
            }
            Key::Escape => return Ok(Step::Edit),
            other => return Err(other),
        };
        let matches = |entry: &String| !search.query.is_empty() && entry.contains(&search.query);
        let found = history.entries()[..from].iter().rposition(matches);
        // An older one that is not there leaves the one that is shown.
        search.found = found.or(search.found.filter(|&at| matches(&history.entries()[at])));
        if let Some(at) = search.found {
            self.buffer = Buffer::new(&history.entries()[at]);
        }
        self.search = Some(search);
        Ok(Step::Edit)
    }
}

/// What is inserted of a paste: line ends of one kind, and no control characters.
fn pasted(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().filter(|&c| c == '\n' || c == '\t' || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::keys::Decoder;
    use super::*;

    fn history(entries: &[&str]) -> History {
        let mut history = History::at(None);
        entries.iter().for_each(|entry| history.add(entry));
        history
    }

    /// Types bytes as a terminal sends them; the steps that were more than editing.
    fn typed(editor: &mut Editor, bytes: &str, history: &History) -> Vec<Step> {
        let mut decoder = Decoder::default();
        let mut keys: Vec<Key> = bytes.bytes().filter_map(|byte| decoder.push(byte)).collect();
        keys.extend(decoder.flush());
        keys.into_iter().map(|key| editor.press(key, history)).filter(|step| *step != Step::Edit).collect()
    }

    /// The text after these bytes, with the cursor.
    fn text(bytes: &str, entries: &[&str]) -> String {
        let mut editor = Editor::default();
        assert_eq!(typed(&mut editor, bytes, &history(entries)), []);
        let (text, cursor) = (editor.buffer.text(), editor.buffer.cursor());
        format!("{}|{}", &text[..cursor], &text[cursor..])
    }

    fn submitted(bytes: &str) -> String {
        match &typed(&mut Editor::default(), bytes, &history(&[]))[..] {
            [Step::Submit(text)] => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_edit_as_people_expect() {
        assert_eq!(text("helo\x1b[Dl", &[]), "hell|o");
        assert_eq!(text("world\x01hello \x05!", &[]), "hello world!|");
        assert_eq!(text("one two three\x17\x17four", &[]), "one four|");
        assert_eq!(text("one two\x01\x0b", &[]), "|");
        assert_eq!(text("one two\x15x\x19", &[]), "xone two|");
        assert_eq!(text("one two\x1bb\x0b\x01\x19", &[]), "two|one ");
        assert_eq!(text("ab\x1b[H\x1b[3~", &[]), "|b");
        assert_eq!(text("漢字\x7f", &[]), "漢|");
        assert_eq!(text("ab\x14", &[]), "ba|");
        // Keys that mean nothing change nothing.
        assert_eq!(text("ab\x1b[5~\x00\x1bx\x1b", &[]), "ab|");
    }

    #[test]
    fn up_and_down_go_through_what_was_said() {
        let said = ["first", "second\nline"];
        assert_eq!(text("dra\x1b[A", &said), "second\nline|");
        // In a text of lines the arrows move between them first.
        assert_eq!(text("dra\x1b[A\x1b[A", &said), "seco|nd\nline");
        assert_eq!(text("dra\x1b[A\x1b[A\x1b[A", &said), "first|");
        assert_eq!(text("dra\x10\x10\x10\x10", &said), "first|");
        assert_eq!(text("dra\x10\x10\x0e\x0e", &said), "dra|");
        assert_eq!(text("dra\x1b[B", &said), "dra|");
        assert_eq!(text("\x1b[A", &[]), "|");
    }

    #[test]
    fn ctrl_r_finds_what_was_said() {
        let said = ["tell me a story", "what is a kiln?", "tell me more"];
        assert_eq!(text("\x12tell\x1b", &said), "tell me more|");
        assert_eq!(text("\x12tell\x12\x05", &said), "tell me a story|");
        assert_eq!(text("\x12tell\x12\x12\x12\x05", &said), "tell me a story|");
        assert_eq!(text("\x12kilnx\x7f\x05", &said), "what is a kiln?|");
        assert_eq!(text("draft\x12kiln\x07", &said), "draft|");
        assert_eq!(text("draft\x12zz\x1b", &said), "draft|");
        let mut editor = Editor::default();
        assert_eq!(typed(&mut editor, "\x12kiln\r", &history(&said)), [Step::Submit("what is a kiln?".into())]);
        typed(&mut editor, "\x12zz", &history(&said));
        assert_eq!(editor.searching(), Some(("zz", false)));
    }

    #[test]
    fn several_lines_are_one_text() {
        assert_eq!(submitted("one\\\rtwo\r"), "one\\\ntwo");
        assert_eq!(submitted("one\x1b\rtwo\r"), "one\ntwo");
        assert_eq!(submitted("\"\"\"one\rtwo\"\"\"\r"), "\"\"\"one\ntwo\"\"\"");
        assert_eq!(submitted("say: \x1b[200~one\r\ntwo\x1b[31m\r\x1b[201~\r"), "say: one\ntwo[31m\n");
        // Enter takes the whole text, wherever the cursor is.
        assert_eq!(submitted("abc\x01\r"), "abc");
    }

    #[test]
    fn control_keys_end_things() {
        let none = history(&[]);
        let mut editor = Editor::default();
        assert_eq!(typed(&mut editor, "abc\x03", &none), [Step::Interrupt(true)]);
        assert_eq!(typed(&mut editor, "\x03\x04", &none), [Step::Interrupt(false), Step::End]);
        assert_eq!(typed(&mut editor, "ab\x01\x04", &none), []);
        assert_eq!(editor.buffer.text(), "b");
        assert_eq!(typed(&mut editor, "\x0c\x1a", &none), [Step::ClearScreen, Step::Suspend]);
        assert_eq!(editor.buffer.text(), "b");
    }
}
