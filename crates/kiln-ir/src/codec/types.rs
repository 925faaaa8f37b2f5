//! The bytes of this crate's types.

use super::{Codec, DecodeError, Reader, write_number};
use crate::{
    ArgKind, BinaryOp, BlockFormat, CompareOp, DType, Literal, NodeId, ReduceKind, Scalar, ScatterKind, Symbol,
    TensorType, UnaryOp, codec_struct,
};

codec_struct! {
    Literal { dtype, shape, bytes }
    TensorType { dtype, shape }
}

/// Names without fields: their place in the list of all of them.
macro_rules! codec_names {
    ($($type:ident),*) => { $(
        impl Codec for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn decode(from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                let at = usize::from(from.byte()?);
                $type::ALL.get(at).copied().ok_or_else(|| from.invalid(stringify!($type)))
            }
        }
    )* };
}
codec_names!(BlockFormat, DType, UnaryOp, BinaryOp, CompareOp, ReduceKind, ArgKind, ScatterKind);

impl Codec for NodeId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<NodeId, DecodeError> {
        u32::decode(from).map(NodeId)
    }
}

impl Codec for Symbol {
    fn encode(&self, out: &mut Vec<u8>) {
        super::write_bytes(self.as_str().as_bytes(), out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Symbol, DecodeError> {
        let name = super::read_bytes(from)?;
        std::str::from_utf8(name).ok().and_then(Symbol::new).ok_or_else(|| from.invalid("symbol"))
    }
}

impl Codec for Scalar {
    fn encode(&self, out: &mut Vec<u8>) {
        self.dtype().encode(out);
        match self {
            Scalar::Float(_, value) => out.extend_from_slice(&value.to_bits().to_le_bytes()),
            Scalar::Int(_, value) => write_number(*value as u64, out),
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Scalar, DecodeError> {
        let dtype = DType::decode(from)?;
        if dtype.is_float() {
            let bits = from.take(8)?.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
            return Ok(Scalar::Float(dtype, f64::from_bits(bits)));
        }
        Ok(Scalar::Int(dtype, from.number()? as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;
    use crate::codec::{from_bytes, to_bytes};

    fn round_trip<T: Codec + PartialEq + std::fmt::Debug>(value: T) {
        let bytes = to_bytes(&value);
        assert_eq!(from_bytes::<T>(&bytes).as_ref(), Ok(&value));
        for cut in 0..bytes.len() {
            assert!(from_bytes::<T>(&bytes[..cut]).is_err(), "{value:?} cut at {cut}");
        }
    }

    #[test]
    fn values_come_back() {
        DType::ALL.into_iter().for_each(round_trip);
        BlockFormat::ALL.into_iter().for_each(round_trip);
        [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN].into_iter().for_each(round_trip);
        [0, 127, 128, u64::MAX].into_iter().for_each(round_trip);
        for dtype in DType::ALL {
            round_trip(Scalar::int(dtype, -3));
            round_trip(Scalar::float(dtype, f64::NAN));
        }
        round_trip(Scalar::float(DType::F64, f64::from_bits(0xfff8_0000_0000_1234)));
        round_trip(Literal { dtype: DType::I8, shape: vec![3], bytes: vec![1, 2, 3].into() });
        round_trip((Some("é".to_owned()), vec![Symbol::axis(12)]));
        round_trip(TensorType::new(DType::F32, vec![Dim::symbol("b").unwrap(), Dim::from(4096)]));
    }

    #[test]
    fn sizes_come_back() {
        let texts = [
            "0",
            "-7",
            "9223372036854775807",
            "b",
            "b*t*4096 + 3*i0 - 1",
            "(t + 63) // 64",
            "((i0*64 + i1) // t) % 8",
            "min(a, b + 1, max(c, 3))*2 + a*b*c*d*e",
            "undefined",
        ];
        for text in texts {
            round_trip(Dim::parse(text).unwrap());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut random = crate::examples::Random(7);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.below(24)).map(|_| random.bits() as u8 % 9).collect();
            if let Ok(dim) = from_bytes::<Dim>(&bytes) {
                round_trip(dim);
            }
            let _ = from_bytes::<Vec<TensorType>>(&bytes);
            let _ = from_bytes::<Vec<Vec<String>>>(&bytes);
        }
        assert!(from_bytes::<Vec<u8>>(&[255, 255, 255, 255, 15]).is_err());
        assert!(from_bytes::<bool>(&[0, 0]).is_err());
    }
}
