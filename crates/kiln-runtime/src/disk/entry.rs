//! The file of one entry. Everything but the count of uses is covered by the digest, the key included: a file that was renamed,
//! truncated, corrupted or written by another program is detected before its payload is read.
//!
//! ```text
//!  0  magic     8   "KILNdisk"
//!  8  version   4   of this layout
//! 12  kind      4
//! 16  about     8   bytes of text
//! 24  payload   8   bytes
//! 32  key      32
//! 64  blake3   32   of bytes 0..64, about and payload
//! 96  uses      8   not under the digest: counted in place, which also marks the file as lately used
//! 104 about, payload
//! ```

use super::Kind;
use super::key::About;
use std::io::{self, Read};

const MAGIC: &[u8; 8] = b"KILNdisk";
/// The version of the file's layout; that of a payload is part of the key.
const VERSION: u32 = 1;
/// Bytes before the text.
pub(super) const HEADER: usize = 104;
/// Offset of the count of uses.
pub(super) const USES_AT: u64 = 96;
/// The most bytes of the text.
const ABOUT_MOST: u64 = 64 << 10;

/// An error of reading an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Not a file, or not an entry.
    #[error("it is no entry of this cache")]
    Foreign,
    /// Of another version of the layout.
    #[error("it has version {found} of the file's layout and not {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Of another kind or for another key.
    #[error("it is an entry for another key")]
    OtherKey,
    /// Shorter or longer than it says.
    #[error("it has {found} bytes and not {expected}")]
    Length {
        /// The number of bytes that its header declares.
        expected: u64,
        /// The actual number of bytes.
        found: u64,
    },
    /// The bytes are not those that were written.
    #[error("its digest does not match")]
    Digest,
    /// Intact, but the payload does not decode.
    #[error("its payload does not decode: {reason}")]
    Payload {
        /// The problem.
        reason: String,
    },
}

/// A decoded entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: Kind,
    /// The digest of its key.
    pub key: [u8; 32],
    /// A description of it.
    pub about: About,
    /// The payload.
    pub payload: Vec<u8>,
    /// About how often it was used.
    pub uses: u64,
}

/// The bytes of an entry's file.
pub(super) fn encode(kind: Kind, key: &[u8; 32], about: &About, payload: &[u8]) -> Vec<u8> {
    let about = about.to_text();
    let mut bytes = Vec::with_capacity(HEADER + about.len() + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&kind.number().to_le_bytes());
    bytes.extend_from_slice(&(about.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    let digest = digest(&bytes, about.as_bytes(), payload);
    bytes.extend_from_slice(&digest);
    bytes.extend_from_slice(&0u64.to_le_bytes());
    bytes.extend_from_slice(about.as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn digest(header: &[u8], about: &[u8], payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(about).update(payload);
    *hasher.finalize().as_bytes()
}

/// A header, before the digest is checked.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) key: [u8; 32],
    about: usize,
    payload: usize,
    digest: [u8; 32],
    covered: [u8; 64],
    uses: u64,
}

impl Header {
    /// Reads the header of a file of `length` bytes.
    pub(super) fn parse(bytes: &[u8], length: u64) -> Result<Header, Damage> {
        let Some(bytes) = bytes.get(..HEADER) else {
            let ours = bytes.len() >= MAGIC.len() && bytes.starts_with(MAGIC);
            return Err(if ours { Damage::Length { expected: HEADER as u64, found: length } } else { Damage::Foreign });
        };
        let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let half = |at: usize| bytes[at..at + 4].iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b));
        if !bytes.starts_with(MAGIC) {
            return Err(Damage::Foreign);
        }
        if half(8) != VERSION {
            return Err(Damage::Version { found: half(8) });
        }
        let kind = Kind::from_number(half(12)).ok_or(Damage::Foreign)?;
        let (about, payload) = (word(16), word(24));
        let expected = (HEADER as u64).saturating_add(about).saturating_add(payload);
        if expected != length || about > ABOUT_MOST {
            return Err(Damage::Length { expected, found: length });
        }
        let mut header = Header {
            kind,
            key: [0; 32],
            about: about as usize,
            payload: usize::try_from(payload).map_err(|_| Damage::Length { expected, found: length })?,
            digest: [0; 32],
            covered: [0; 64],
            uses: word(USES_AT as usize),
        };
        header.key.copy_from_slice(&bytes[32..64]);
        header.digest.copy_from_slice(&bytes[64..96]);
        header.covered.copy_from_slice(&bytes[..64]);
        Ok(header)
    }

    /// The entry, once the digest is checked.
    pub(super) fn verify(self, mut rest: Vec<u8>) -> Result<Entry, Damage> {
        let expected = self.about + self.payload;
        if rest.len() != expected {
            let length = |n: usize| (n + HEADER) as u64;
            return Err(Damage::Length { expected: length(expected), found: length(rest.len()) });
        }
        let (about, payload) = rest.split_at(self.about);
        if digest(&self.covered, about, payload) != self.digest {
            return Err(Damage::Digest);
        }
        let about = About::from_text(&String::from_utf8_lossy(about));
        rest.drain(..self.about);
        Ok(Entry { kind: self.kind, key: self.key, about, payload: rest, uses: self.uses })
    }

    /// Bytes of the whole file.
    pub(super) fn length(&self) -> u64 {
        (HEADER + self.about + self.payload) as u64
    }

    /// Only the description of an entry, unchecked: for listings.
    pub(super) fn read_about(&self, file: &mut dyn Read) -> io::Result<About> {
        let mut text = vec![0; self.about];
        file.read_exact(&mut text)?;
        Ok(About::from_text(&String::from_utf8_lossy(&text)))
    }

    pub(super) fn uses(&self) -> u64 {
        self.uses
    }
}

/// Decodes an entry.
pub(super) fn decode(bytes: &[u8]) -> Result<Entry, Damage> {
    let header = Header::parse(bytes, bytes.len() as u64)?;
    header.verify(bytes[HEADER..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Key;

    #[test]
    fn every_flip_and_every_cut_is_seen() {
        let key = Key::build().part("target", "test").note("label", "add").finish();
        let bytes = encode(Kind::Tuning, key.digest(), key.about(), b"0123456789");
        let whole = decode(&bytes).unwrap();
        assert_eq!((whole.kind, whole.payload.as_slice(), whole.uses), (Kind::Tuning, b"0123456789".as_slice(), 0));
        assert_eq!((&whole.key, &whole.about), (key.digest(), key.about()));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let counter = (USES_AT as usize..HEADER).contains(&at);
                assert_eq!(decode(&flipped).is_ok(), counter, "byte {at}");
            }
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(decode(&longer), Err(Damage::Length { .. })));
        let mut newer = bytes;
        newer[8] = 9;
        assert_eq!(decode(&newer), Err(Damage::Version { found: 9 }));
        assert_eq!(decode(b"#!/bin/sh"), Err(Damage::Foreign));
    }
}
