//! The letters that byte-level vocabularies write bytes with: printable ones for themselves, the others from U+0100 on.

use std::sync::LazyLock;

/// A letter for each byte.
static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return byte as char;
        }
        next += 1;
        // All of them are below U+0144.
        char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
});

/// The text with each byte written as a letter.
pub(super) fn to_letters(text: &str) -> String {
    text.bytes().map(|byte| LETTERS[byte as usize]).collect()
}

/// The byte that a letter stands for.
pub(super) fn to_byte(letter: char) -> Option<u8> {
    match letter as u32 {
        0x100..0x144 => LETTERS.iter().position(|&l| l == letter).map(|byte| byte as u8),
        code @ 0..0x100 if LETTERS[code as usize] == letter => Some(code as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        for byte in 0..=255 {
            assert_eq!(to_byte(LETTERS[byte as usize]), Some(byte));
        }
        assert_eq!(to_letters(" a\n"), "ĠaĊ");
        assert_eq!(to_byte(' '), None);
    }
}
