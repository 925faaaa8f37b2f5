//! Encodes values as bytes and decodes them, for caches that outlive the process. Made for one compiler build reading what the
//! same build wrote: there are no field names, no versions and no skipping, which the owner of the bytes has to provide.
//!
//! ```text
//!  integers  LEB128, signed ones zig-zag     lists   length, elements
//!  enums     number of the variant, fields   text    length, UTF-8
//! ```
//!
//! Decoding never panics and never reserves more memory than the bytes can fill, for any bytes.

mod types;

use std::sync::Arc;

/// An error of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("the bytes end too early, at byte {at}")]
    End {
        /// The offset.
        at: usize,
    },
    /// Bytes that no value is written as.
    #[error("no {what} at byte {at}")]
    Invalid {
        /// The expected value, as text.
        what: &'static str,
        /// The offset.
        at: usize,
    },
    /// Bytes left over.
    #[error("{bytes} bytes are left over")]
    LeftOver {
        /// The number of bytes.
        bytes: usize,
    },
}

/// A value that can be written as bytes.
///
/// ```
/// use kiln_ir::codec::{Codec, from_bytes, to_bytes};
/// use kiln_ir::Dim;
/// let size = Dim::parse("(t + 63) // 64").unwrap();
/// assert_eq!(from_bytes::<Dim>(&to_bytes(&size)), Ok(size));
/// assert!(from_bytes::<Dim>(&[255; 5]).is_err());
/// ```
pub trait Codec: Sized {
    /// Appends the value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a value.
    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The bytes of a value.
pub fn to_bytes<T: Codec>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// The value of these bytes, all of them.
pub fn from_bytes<T: Codec>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Bytes being read.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

/// How deep values may nest in themselves.
const DEPTH_MOST: u32 = 256;

impl<'a> Reader<'a> {
    /// Reads from the first byte on.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, depth: 0 }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(DecodeError::End { at: self.at })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    /// An unsigned number.
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return if shift == 63 && byte > 1 { Err(self.invalid("number")) } else { Ok(value) };
            }
        }
        Err(self.invalid("number"))
    }

    /// The length of a list: as every element takes a byte at least, no longer than what is left.
    pub fn length(&mut self) -> Result<usize, DecodeError> {
        let length = self.number()?;
        let left = self.bytes.len() - self.at;
        usize::try_from(length).ok().filter(|&n| n <= left).ok_or(DecodeError::End { at: self.at })
    }

    /// Reads something that may contain itself.
    pub fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.depth >= DEPTH_MOST {
            return Err(self.invalid("value of bounded depth"));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// The error of bytes that are not a `what`.
    pub fn invalid(&self, what: &'static str) -> DecodeError {
        DecodeError::Invalid { what, at: self.at }
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            bytes => Err(DecodeError::LeftOver { bytes }),
        }
    }
}

/// Appends an unsigned number.
pub fn write_number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a list of bytes.
pub fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads a list of bytes.
pub fn read_bytes<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = from.length()?;
    from.take(length)
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Codec for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                write_number(u64::from(*self), out);
            }
            fn decode(from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                let value = from.number()?;
                <$type>::try_from(value).map_err(|_| from.invalid(stringify!($type)))
            }
        }
    )* };
}
numbers!(u8, u32, u64);

impl Codec for usize {
    fn encode(&self, out: &mut Vec<u8>) {
        write_number(*self as u64, out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<usize, DecodeError> {
        let value = from.number()?;
        usize::try_from(value).map_err(|_| from.invalid("usize"))
    }
}

impl Codec for i64 {
    fn encode(&self, out: &mut Vec<u8>) {
        write_number(((self << 1) ^ (self >> 63)) as u64, out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<i64, DecodeError> {
        let value = from.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

impl Codec for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(from: &mut Reader<'_>) -> Result<bool, DecodeError> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(from.invalid("bool")),
        }
    }
}

impl Codec for String {
    fn encode(&self, out: &mut Vec<u8>) {
        write_bytes(self.as_bytes(), out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<String, DecodeError> {
        let bytes = read_bytes(from)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| from.invalid("text"))
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        write_number(self.len() as u64, out);
        self.iter().for_each(|value| value.encode(out));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        let length = from.length()?;
        // A byte may stand for an element of many: what is reserved stays in proportion to what was read.
        let mut list = Vec::with_capacity(length.min(1024));
        for _ in 0..length {
            list.push(T::decode(from)?);
        }
        Ok(list)
    }
}

impl<T: Codec> Codec for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode(self, out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Box<T>, DecodeError> {
        T::decode(from).map(Box::new)
    }
}

impl<T: Codec> Codec for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        Ok(if bool::decode(from)? { Some(T::decode(from)?) } else { None })
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

impl Codec for Arc<[u8]> {
    fn encode(&self, out: &mut Vec<u8>) {
        write_bytes(self, out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Arc<[u8]>, DecodeError> {
        Ok(read_bytes(from)?.into())
    }
}

/// Writes structs as their fields, in the order given: all of them, or it does not compile.
#[macro_export]
macro_rules! codec_struct {
    ($($type:ident { $($field:ident),* $(,)? })*) => { $(
        impl $crate::codec::Codec for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                let $type { $($field),* } = self;
                $($crate::codec::Codec::encode($field, out);)*
            }
            fn decode(from: &mut $crate::codec::Reader<'_>) -> Result<$type, $crate::codec::DecodeError> {
                Ok($type { $($field: $crate::codec::Codec::decode(from)?),* })
            }
        }
    )* };
}

/// Writes enums as the number given to a variant, then its fields: all of them, or it does not compile.
#[macro_export]
macro_rules! codec_enum {
    ($($type:ident {
        $($number:literal = $variant:ident $(($($item:ident),*))? $({ $($field:ident),* })?),* $(,)?
    })*) => { $(
        impl $crate::codec::Codec for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($($item),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::codec::Codec::encode($item, out);)*)?
                        $($($crate::codec::Codec::encode($field, out);)*)?
                    })*
                }
            }
            fn decode(from: &mut $crate::codec::Reader<'_>) -> Result<$type, $crate::codec::DecodeError> {
                Ok(match from.byte()? {
                    $($number => {
                        $($(let $item = $crate::codec::Codec::decode(from)?;)*)?
                        $($(let $field = $crate::codec::Codec::decode(from)?;)*)?
                        $type::$variant $(($($item),*))? $({ $($field),* })?
                    })*
                    _ => return Err(from.invalid(stringify!($type))),
                })
            }
        }
    )* };
}
