//! Bytes of a terminal into keys: UTF-8, control characters, escape sequences, pastes.

/// A key, or a paste as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A letter with Ctrl.
    Ctrl(char),
    /// A letter with Alt; Alt-Enter is `'\r'`.
    Alt(char),
    /// Text that was pasted, with the line ends it had.
    Paste(String),
    /// Return.
    Enter,
    /// The key that deletes backwards.
    Backspace,
    /// The key that deletes forwards.
    Delete,
    /// Arrows and their kin.
    Left,
    /// To the right.
    Right,
    /// Up.
    Up,
    /// Down.
    Down,
    /// To the beginning.
    Home,
    /// To the end.
    End,
    /// A word to the left (Ctrl or Alt with the arrow).
    WordLeft,
    /// A word to the right.
    WordRight,
    /// Escape on its own.
    Escape,
    /// A key that means nothing here.
    Other,
}

/// Bytes of an escape sequence at the most; a longer one is none.
const LONGEST_SEQUENCE: usize = 32;
/// Bytes of one paste at the most; the rest is dropped.
const LONGEST_PASTE: usize = 1 << 20;
const PASTE_END: &[u8] = b"\x1b[201~";

/// What the bytes so far are the beginning of.
#[derive(Debug, Default)]
enum State {
    #[default]
    Ground,
    /// A character of several bytes.
    Utf8(Vec<u8>, usize),
    /// Escape was read.
    Escape,
    /// `ESC [` and what came behind it.
    Csi(Vec<u8>),
    /// `ESC O`.
    Ss3,
    Paste(Vec<u8>),
}

/// Turns bytes into keys, however they are cut.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
}

impl Decoder {
    /// Whether an escape was read that may be a key of its own or the beginning of a sequence: time tells.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Escape)
    }

    /// No byte came behind an escape.
    pub fn flush(&mut self) -> Option<Key> {
        self.is_waiting().then(|| {
            self.state = State::Ground;
            Key::Escape
        })
    }

    /// A further byte; the key that it completes.
    pub fn push(&mut self, byte: u8) -> Option<Key> {
        match std::mem::take(&mut self.state) {
            State::Ground => self.ground(byte),
            State::Utf8(bytes, length) => self.utf8(bytes, length, byte),
            State::Escape => self.escape(byte),
            State::Csi(bytes) => self.csi(bytes, byte),
            State::Ss3 => Some(arrow(byte, false)),
            State::Paste(bytes) => self.paste(bytes, byte),
        }
    }

    fn ground(&mut self, byte: u8) -> Option<Key> {
        match byte {
            0x1b => {
                self.state = State::Escape;
                None
            }
            // Enter is a line feed where it was typed before the terminal was in raw mode.
            b'\r' | b'\n' => Some(Key::Enter),
            0x7f | 0x08 => Some(Key::Backspace),
            b'\t' => Some(Key::Char('\t')),
            1..=26 => Some(Key::Ctrl((byte - 1 + b'a') as char)),
            0 | 0x1c..=0x1f => Some(Key::Other),
            0x20..=0x7e => Some(Key::Char(byte as char)),
            _ => match byte {
                0xc2..=0xdf => self.more(byte, 2),
                0xe0..=0xef => self.more(byte, 3),
                0xf0..=0xf4 => self.more(byte, 4),
                // No character begins so.
                _ => Some(Key::Other),
            },
        }
    }

    fn more(&mut self, byte: u8, length: usize) -> Option<Key> {
        self.state = State::Utf8(vec![byte], length);
        None
    }

    fn utf8(&mut self, mut bytes: Vec<u8>, length: usize, byte: u8) -> Option<Key> {
        if byte & 0xc0 != 0x80 {
            // Cut off: what comes now is a key of its own.
            return self.push(byte);
        }
        bytes.push(byte);
        if bytes.len() < length {
            self.state = State::Utf8(bytes, length);
            return None;
        }
        let character = std::str::from_utf8(&bytes).ok().and_then(|text| text.chars().next());
        Some(character.filter(|c| !c.is_control()).map_or(Key::Other, Key::Char))
    }

    fn escape(&mut self, byte: u8) -> Option<Key> {
        match byte {
            b'[' => {
                self.state = State::Csi(Vec::new());
                None
            }
            b'O' => {
                self.state = State::Ss3;
                None
            }
            0x1b => {
                self.state = State::Escape;
                Some(Key::Escape)
            }
            b'\r' | b'\n' => Some(Key::Alt('\r')),
            0x7f | 0x08 => Some(Key::Alt('\x08')),
            0x20..=0x7e => Some(Key::Alt((byte as char).to_ascii_lowercase())),
            _ => Some(Key::Other),
        }
    }

    fn csi(&mut self, mut bytes: Vec<u8>, byte: u8) -> Option<Key> {
        match byte {
            0x40..=0x7e => self.sequence(&bytes, byte),
            0x20..=0x3f if bytes.len() < LONGEST_SEQUENCE => {
                bytes.push(byte);
                self.state = State::Csi(bytes);
                None
            }
            // No sequence goes on so; an escape begins another.
            0x1b => {
                self.state = State::Escape;
                None
            }
            _ => Some(Key::Other),
        }
    }

    fn sequence(&mut self, parameters: &[u8], last: u8) -> Option<Key> {
        let text = std::str::from_utf8(parameters).unwrap_or_default();
        let mut numbers = text.split(';').map(|number| number.parse::<u32>().unwrap_or(0));
        let (first, modifier) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        // 1 + shift 1, alt 2, ctrl 4.
        let with_word = modifier.saturating_sub(1) & 6 != 0;
        Some(match (last, first) {
            (b'~', 200) => {
                self.state = State::Paste(Vec::new());
                return None;
            }
            (b'~', 1 | 7) => Key::Home,
            (b'~', 4 | 8) => Key::End,
            (b'~', 3) => Key::Delete,
            (b'~', _) => Key::Other,
            _ => arrow(last, with_word),
        })
    }

    fn paste(&mut self, mut bytes: Vec<u8>, byte: u8) -> Option<Key> {
        bytes.push(byte);
        if bytes.ends_with(PASTE_END) {
            bytes.truncate((bytes.len() - PASTE_END.len()).min(LONGEST_PASTE));
            return Some(Key::Paste(String::from_utf8_lossy(&bytes).into_owned()));
        }
        if bytes.len() > LONGEST_PASTE + PASTE_END.len() {
            bytes.remove(LONGEST_PASTE);
        }
        self.state = State::Paste(bytes);
        None
    }
}

fn arrow(byte: u8, with_word: bool) -> Key {
    match (byte, with_word) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', false) => Key::Right,
        (b'D', false) => Key::Left,
        (b'C', true) => Key::WordRight,
        (b'D', true) => Key::WordLeft,
        (b'H', _) => Key::Home,
        (b'F', _) => Key::End,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::examples::Random;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut decoder = Decoder::default();
        let mut keys: Vec<Key> = bytes.iter().filter_map(|&byte| decoder.push(byte)).collect();
        keys.extend(decoder.flush());
        keys
    }

    #[test]
    fn letters_controls_and_utf_8() {
        assert_eq!(keys("aé漢🙂".as_bytes()), ['a', 'é', '漢', '🙂'].map(Key::Char));
        assert_eq!(
            keys(b"\x01\x05\x7f\x08\r\n\t"),
            [Key::Ctrl('a'), Key::Ctrl('e'), Key::Backspace, Key::Backspace, Key::Enter, Key::Enter, Key::Char('\t')]
        );
        // A character that is cut off, one that is none, and one behind them.
        assert_eq!(keys(b"\xe6\xbca\xffb"), [Key::Char('a'), Key::Other, Key::Char('b')]);
    }

    #[test]
    fn sequences_of_several_terminals() {
        for (bytes, key) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b[C", Key::Right),
            (b"\x1b[D", Key::Left),
            (b"\x1b[H", Key::Home),
            (b"\x1b[1~", Key::Home),
            (b"\x1b[7~", Key::Home),
            (b"\x1bOF", Key::End),
            (b"\x1b[4~", Key::End),
            (b"\x1b[3~", Key::Delete),
            (b"\x1b[1;5C", Key::WordRight),
            (b"\x1b[1;3D", Key::WordLeft),
            (b"\x1b[1;2D", Key::Left),
            (b"\x1bb", Key::Alt('b')),
            (b"\x1bF", Key::Alt('f')),
            (b"\x1b\r", Key::Alt('\r')),
            (b"\x1b[5~", Key::Other),
            (b"\x1b[99;99;99X", Key::Other),
            (b"\x1b", Key::Escape),
        ] {
            assert_eq!(keys(bytes), [key], "{}", bytes.escape_ascii());
        }
        assert_eq!(keys(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
    }

    #[test]
    fn a_paste_is_one_key_whatever_is_in_it() {
        assert_eq!(
            keys(b"a\x1b[200~one\r\ntwo\x03\x1b[Athree\x1b[201~b"),
            [Key::Char('a'), Key::Paste("one\r\ntwo\x03\x1b[Athree".into()), Key::Char('b')]
        );
        let long = [&b"\x1b[200~"[..], &vec![b'x'; LONGEST_PASTE + 1000], b"\x1b[201~y"].concat();
        let found = keys(&long);
        assert!(matches!(&found[..], [Key::Paste(text), Key::Char('y')] if text.len() == LONGEST_PASTE));
    }

    /// Any bytes are keys, in bounded memory and without a panic; afterwards letters are letters again.
    #[test]
    fn any_bytes_are_keys() {
        let mut random = Random(1);
        for _ in 0..2000 {
            let mut decoder = Decoder::default();
            for _ in 0..64 {
                let any = random.bits() as u8;
                decoder.push(*random.choose(&[any, 0x1b, b'[', b'O', b';', b'~', b'2']));
            }
            PASTE_END.iter().for_each(|&byte| drop(decoder.push(byte)));
            decoder.push(b'~');
            decoder.flush();
            assert_eq!(decoder.push(b'k'), Some(Key::Char('k')));
        }
    }
}
