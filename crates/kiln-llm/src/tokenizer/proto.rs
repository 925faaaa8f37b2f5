//! The fields of protocol buffers, as SentencePiece writes its models. A message is foreign input: every length is checked.

use super::TokenizerError;

/// A field's value; the types that models do not use are passed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    /// A number, a flag or an enumeration.
    Number(u64),
    /// Four bytes: a float.
    Word([u8; 4]),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// Eight bytes.
    Double,
}

impl<'a> Field<'a> {
    /// A flag.
    pub(super) fn flag(self) -> Option<bool> {
        self.number().map(|number| number != 0)
    }

    /// A number that is not negative.
    pub(super) fn number(self) -> Option<u64> {
        if let Field::Number(number) = self { Some(number) } else { None }
    }

    /// A float.
    pub(super) fn float(self) -> Option<f32> {
        if let Field::Word(word) = self { Some(f32::from_le_bytes(word)) } else { None }
    }

    /// Bytes.
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        if let Field::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// A text.
    pub(super) fn text(self) -> Option<&'a str> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

/// The fields of a message with their numbers, in order. `begin` is where the message begins in its file.
pub(super) struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
    begin: usize,
}

impl<'a> Message<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Message<'a> {
        Message { bytes, at: 0, begin: 0 }
    }

    /// A message within the one whose fields were read up to here.
    pub(super) fn within(&self, bytes: &'a [u8]) -> Message<'a> {
        Message { bytes, at: 0, begin: self.begin + self.at - bytes.len() }
    }

    fn damaged(&self) -> TokenizerError {
        TokenizerError::Damaged { at: self.begin + self.at }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], TokenizerError> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(|| self.damaged())?;
        self.at += taken.len();
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.damaged())?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged())
    }

    /// The next field with its number; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, TokenizerError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Double
            }
            2 => {
                let count = self.varint()?;
                Field::Bytes(self.take(count)?)
            }
            5 => Field::Word(self.take(4)?.try_into().map_err(|_| self.damaged())?),
            _ => return Err(self.damaged()),
        };
        Ok(Some((key >> 3, field)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_damage_is_found() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 0, 0, 0x80, 0x3f, 0x21, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut message = Message::new(&bytes);
        assert_eq!(message.next().unwrap(), Some((1, Field::Number(150))));
        assert_eq!(message.next().unwrap().unwrap().1.text(), Some("hi"));
        assert_eq!(message.next().unwrap().unwrap().1.float(), Some(1.0));
        assert_eq!(message.next().unwrap(), Some((4, Field::Double)));
        assert_eq!(message.next().unwrap(), None);
        for end in 1..bytes.len() {
            let mut message = Message::new(&bytes[..end]);
            // Ends in an error or at a border between fields, never beyond the bytes.
            while let Ok(Some(_)) = message.next() {}
            assert!(message.at <= end);
        }
        let long = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(Message::new(&long).next().is_err());
        assert!(Message::new(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]).next().is_err());
        assert!(Message::new(&[0x0b]).next().is_err());
    }
}
