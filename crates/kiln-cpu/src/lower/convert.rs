//! Casts between compute types, rounding to short types, eight-bit floats, and random numbers.

use super::*;

impl Lowerer<'_> {
    /// A value of dtype `from` as dtype `to`, both compute types.
    pub(super) fn cast(&mut self, value: Value, from: DType, to: DType) -> Value {
        if from == to {
            return value;
        }
        let uniform = value.uniform;
        let held = match (from, to) {
            (DType::Bool, DType::I64) => {
                let mask = self.as_vector(value, from);
                let (one, zero) = (self.b.bits(Ty::I32, 1), self.b.bits(Ty::I32, 0));
                Representation::Narrow(self.b.select(Ty::I32, mask, one, zero))
            }
            (DType::Bool, _) => {
                let ty = Ty::of(to);
                let mask = self.as_vector(value, from);
                let (one, zero) = (self.b.splat(ty, 1.0), self.b.splat(ty, 0.0));
                Representation::Vector(self.b.select(ty, mask, one, zero))
            }
            (DType::I32, DType::I64) => {
                let v = self.as_vector(value, from);
                if uniform {
                    Representation::Scalar(self.b.pure(Op::FirstLane, Ty::I32, Ty::Int, &[v]))
                } else {
                    Representation::Vector(self.b.convert(Ty::I64, Ty::I32, v))
                }
            }
            (DType::I64, DType::Bool) => {
                let v = self.as_wide(value);
                let zero = self.b.bits(Ty::I64, 0);
                Representation::Vector(self.b.compare(CompareOp::Ne, Ty::I64, v, zero))
            }
            (_, DType::Bool) => {
                let (ty, v) = (Ty::of(from), self.as_vector(value, from));
                let zero = self.b.splat(ty, 0.0);
                Representation::Vector(self.b.compare(CompareOp::Ne, ty, v, zero))
            }
            (DType::I64, DType::I32) => Representation::Vector(match value.held {
                Representation::Narrow(v) => v,
                Representation::Scalar(v) => self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[v]),
                Representation::Vector(v) => self.b.convert(Ty::I32, Ty::I64, v),
            }),
            (DType::I64, _) => {
                let ty = Ty::of(to);
                Representation::Vector(match value.held {
                    Representation::Narrow(v) => self.b.convert(ty, Ty::I32, v),
                    Representation::Scalar(v) => self.b.pure(Op::Convert(Ty::Int), ty, ty, &[v]),
                    Representation::Vector(v) => self.b.convert(ty, Ty::I64, v),
                })
            }
            (DType::F32 | DType::F64, DType::I32 | DType::I64) => {
                let v = self.as_vector(value, from);
                Representation::Vector(self.truncate(v, Ty::of(from), Ty::of(to)))
            }
            _ => {
                let v = self.as_vector(value, from);
                Representation::Vector(self.b.convert(Ty::of(to), Ty::of(from), v))
            }
        };
        Value { held, uniform }
    }

    /// Towards zero, saturating, NaN to 0. The hardware gives the lowest integer where the value does not fit.
    fn truncate(&mut self, v: V, from: Ty, to: Ty) -> V {
        let (limit, highest) =
            if to == Ty::I32 { (2f64.powi(31), i32::MAX as u64) } else { (2f64.powi(63), i64::MAX as u64) };
        let plain = self.b.convert(to, from, v);
        let (limit, highest, zero) = (self.b.splat(from, limit), self.b.bits(to, highest), self.b.bits(to, 0));
        let over = self.b.compare(CompareOp::Ge, from, v, limit);
        let number = self.b.compare(CompareOp::Eq, from, v, v);
        let capped = self.b.select(to, over, highest, plain);
        self.b.select(to, number, capped, zero)
    }

    /// Rounds an F32 to a short float, or wraps an I32 to a short integer.
    pub(super) fn round(&mut self, v: V, to: DType) -> V {
        let wrap = |low: &mut Self, bits: u32, op: BinOp| {
            let up = low.b.shift(BinOp::Shl, Ty::I32, v, bits);
            low.b.shift(op, Ty::I32, up, bits)
        };
        match to {
            DType::F16 | DType::Bf16 => self.b.pure(Op::RoundTo(to), Ty::F32, Ty::F32, &[v]),
            DType::F8E4M3 => self.b.pure(Op::Call(ScalarFn::RoundE4M3), Ty::F32, Ty::F32, &[v]),
            DType::F8E5M2 => self.b.pure(Op::Call(ScalarFn::RoundE5M2), Ty::F32, Ty::F32, &[v]),
            DType::I8 => wrap(self, 24, BinOp::Sar),
            DType::I16 => wrap(self, 16, BinOp::Sar),
            DType::U8 => wrap(self, 24, BinOp::Shr),
            DType::I4 => wrap(self, 28, BinOp::Sar),
            _ => v,
        }
    }

    /// The value of an eight-bit float from its byte in an I32.
    pub(super) fn decode_float8(&mut self, dtype: DType, byte: V) -> V {
        let b = &mut self.b;
        let sign_bit = b.bits(Ty::I32, 0x80);
        let sign = b.and(Ty::I32, byte, sign_bit);
        let sign = b.shift(BinOp::Shl, Ty::I32, sign, 24);
        let rest_bits = b.bits(Ty::I32, 0x7f);
        let rest = b.and(Ty::I32, byte, rest_bits);
        // The exponent and mantissa at an f32's position, then a factor for the difference in bias: denormals are converted
        // correctly.
        let (shift, factor) = if dtype == DType::F8E4M3 { (20, 120) } else { (21, 112) };
        let bits = b.shift(BinOp::Shl, Ty::I32, rest, shift);
        let factor = b.splat(Ty::F32, 2f64.powi(factor));
        let mut value = b.mul(Ty::F32, bits, factor);
        let nan = b.splat(Ty::F32, f64::NAN);
        let special = if dtype == DType::F8E4M3 {
            b.compare(CompareOp::Eq, Ty::I32, rest, rest_bits)
        } else {
            let infinite = b.bits(Ty::I32, 0x7c);
            let infinity = b.splat(Ty::F32, f64::INFINITY);
            let is = b.compare(CompareOp::Eq, Ty::I32, rest, infinite);
            value = b.select(Ty::F32, is, infinity, value);
            b.compare(CompareOp::Gt, Ty::I32, rest, infinite)
        };
        let value = b.select(Ty::F32, special, nan, value);
        b.or(Ty::F32, value, sign)
    }

    /// The byte of an F32 as an eight-bit float, in an I32.
    pub(super) fn encode_float8(&mut self, dtype: DType, value: Value) -> V {
        let v = self.as_vector(value, DType::F32);
        let f = if dtype == DType::F8E4M3 { ScalarFn::EncodeE4M3 } else { ScalarFn::EncodeE5M2 };
        self.b.pure(Op::Call(f), Ty::F32, Ty::F32, &[v])
    }

    /// Word 0 of Philox-4x32-10.
    pub(super) fn random(&mut self, seed: ValueId, position: &Dim, stream: u32) -> Result<Value, LowerError> {
        let key = self.value(seed)?;
        let (mut k0, mut k1) = self.words(key);
        let at = self.index_value(position)?;
        let (mut c0, mut c1) = if matches!(at.held, Representation::Narrow(_)) && position.is_nonneg(&self.ranges) {
            (self.as_vector(at, DType::I32), self.b.bits(Ty::I32, 0))
        } else {
            self.words(at)
        };
        let b = &mut self.b;
        let (c2, c3) = (b.bits(Ty::I32, stream.into()), b.bits(Ty::I32, 0));
        if key.uniform && at.uniform {
            // All lanes are equal, and so are even and odd ones.
            let word = philox(b, [c0, c1, c2, c3], [k0, k1]);
            let odd = b.bin(BinOp::ZipEven, Ty::I32, word, word);
            return Ok(Value { held: Representation::Vector(odd), uniform: true });
        }
        // Products of 32 bits by 32 fill two lanes, so even and odd lanes go their own ways.
        let even = philox(b, [c0, c1, c2, c3], [k0, k1]);
        for (word, uniform) in
            [(&mut c0, at.uniform), (&mut c1, at.uniform), (&mut k0, key.uniform), (&mut k1, key.uniform)]
        {
            if !uniform && b.as_const(*word).is_none() {
                *word = b.un(UnOp::OddToEven, Ty::I32, *word);
            }
        }
        let odd = philox(b, [c0, c1, c2, c3], [k0, k1]);
        let both = b.bin(BinOp::ZipEven, Ty::I32, even, odd);
        Ok(Value { held: Representation::Vector(both), uniform: false })
    }

    /// Low and high words of an I64 value.
    fn words(&mut self, value: Value) -> (V, V) {
        match value.held {
            Representation::Scalar(v) => {
                let low = self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[v]);
                let word = self.b.number(1 << 32);
                let high = self.b.int(IntOp::FloorDiv, v, word);
                (low, self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[high]))
            }
            Representation::Narrow(v) => (v, self.b.shift(BinOp::Sar, Ty::I32, v, 31)),
            Representation::Vector(v) => {
                let low = self.b.convert(Ty::I32, Ty::I64, v);
                let high = self.b.shift(BinOp::Shr, Ty::I64, v, 32);
                (low, self.b.convert(Ty::I32, Ty::I64, high))
            }
        }
    }
}

/// The first word of Philox 4×32 with ten rounds, in the even lanes; odd lanes hold anything.
fn philox(b: &mut Builder, [mut c0, mut c1, mut c2, mut c3]: [V; 4], [mut k0, mut k1]: [V; 2]) -> V {
    let ty = Ty::I32;
    let (m0, m1) = (b.bits(ty, 0xD251_1F53), b.bits(ty, 0xCD9E_8D57));
    let (w0, w1) = (b.bits(ty, 0x9E37_79B9), b.bits(ty, 0xBB67_AE85));
    for round in 0..10 {
        if round > 0 {
            k0 = b.add(ty, k0, w0);
            k1 = b.add(ty, k1, w1);
        }
        let (p0, p1) = (b.bin(BinOp::MulEven, ty, c0, m0), b.bin(BinOp::MulEven, ty, c2, m1));
        let (high0, high1) = (b.un(UnOp::OddToEven, ty, p0), b.un(UnOp::OddToEven, ty, p1));
        // What is known before the products comes first.
        let (n0, n2) = (b.xor(ty, c1, k0), b.xor(ty, c3, k1));
        (c0, c1, c2, c3) = (b.xor(ty, high1, n0), p1, b.xor(ty, high0, n2), p0);
    }
    c0
}
