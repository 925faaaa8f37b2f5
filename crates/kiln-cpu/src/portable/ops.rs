//! Arithmetic on blocks of lanes.

use super::{LANES, Lanes};
use crate::vir::*;

fn f32s(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn f64s(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn map2<T>(a: &Lanes, b: &Lanes, read: impl Fn(u64) -> T, f: impl Fn(T, T) -> u64) -> Lanes {
    std::array::from_fn(|i| f(read(a[i]), read(b[i])))
}

pub(super) fn binary(op: BinOp, ty: Ty, a: &Lanes, b: &Lanes) -> Lanes {
    if let Some(lanes) = op.moved_lanes(LANES) {
        let mut moved = [0; LANES];
        moved.iter_mut().zip(lanes).for_each(|(to, from)| *to = if from < LANES { a[from] } else { b[from - LANES] });
        return moved;
    }
    match (op, ty) {
        (BinOp::And, _) => std::array::from_fn(|i| a[i] & b[i]),
        (BinOp::Or, _) => std::array::from_fn(|i| a[i] | b[i]),
        (BinOp::Xor, _) => std::array::from_fn(|i| a[i] ^ b[i]),
        (BinOp::AndNot, _) => std::array::from_fn(|i| !a[i] & b[i]),
        (BinOp::MulEven, _) => std::array::from_fn(|i| {
            let product = u64::from(a[i & !1] as u32) * u64::from(b[i & !1] as u32);
            if i % 2 == 0 { u64::from(product as u32) } else { product >> 32 }
        }),
        (BinOp::MinBytes, _) => std::array::from_fn(|i| {
            let (x, y) = ((a[i] as u32).to_le_bytes(), (b[i] as u32).to_le_bytes());
            u32::from_le_bytes(std::array::from_fn(|byte| x[byte].min(y[byte]))).into()
        }),
        (BinOp::ZipEven, _) => std::array::from_fn(|i| if i % 2 == 0 { a[i] } else { b[i - 1] }),
        (_, Ty::F32) => map2(a, b, f32s, |x, y| float32(op, x, y).to_bits().into()),
        (_, Ty::F64) => map2(a, b, f64s, |x, y| float64(op, x, y).to_bits()),
        (_, Ty::I32) => map2(a, b, |x| x as i32, |x, y| u64::from(int32(op, x, y) as u32)),
        _ => map2(a, b, |x| x as i64, |x, y| int64(op, x, y) as u64),
    }
}

macro_rules! float_ops {
    ($name:ident, $t:ty) => {
        fn $name(op: BinOp, x: $t, y: $t) -> $t {
            match op {
                BinOp::Add => x + y,
                BinOp::Sub => x - y,
                BinOp::Mul => x * y,
                BinOp::Div => x / y,
                BinOp::Min if x < y => x,
                BinOp::Max if x > y => x,
                BinOp::MinNan if x < y || x.is_nan() => x,
                BinOp::MaxNan if x > y || x.is_nan() => x,
                BinOp::Min | BinOp::Max | BinOp::MinNan | BinOp::MaxNan => y,
                _ => unreachable!("{op:?} of floats"),
            }
        }
    };
}
float_ops!(float32, f32);
float_ops!(float64, f64);

macro_rules! int_ops {
    ($name:ident, $t:ty, $u:ty) => {
        fn $name(op: BinOp, x: $t, y: $t) -> $t {
            match op {
                BinOp::Add => x.wrapping_add(y),
                BinOp::Sub => x.wrapping_sub(y),
                BinOp::Mul => x.wrapping_mul(y),
                BinOp::Div if y == 0 => 0,
                BinOp::Div => x.wrapping_div(y),
                BinOp::Min | BinOp::MinNan => x.min(y),
                BinOp::Max | BinOp::MaxNan => x.max(y),
                BinOp::Shl => x.wrapping_shl(y as u32),
                BinOp::Sar => x.wrapping_shr(y as u32),
                BinOp::Shr => (x as $u).wrapping_shr(y as u32) as $t,
                _ => unreachable!("{op:?} of integers"),
            }
        }
    };
}
int_ops!(int32, i32, u32);
int_ops!(int64, i64, u64);

pub(super) fn fused(op: FmaOp, ty: Ty, a: &Lanes, b: &Lanes, c: &Lanes) -> Lanes {
    macro_rules! lanes {
        ($read:ident) => {
            std::array::from_fn(|i| {
                let (x, y, z) = ($read(a[i]), $read(b[i]), $read(c[i]));
                let r = match op {
                    FmaOp::Add => x.mul_add(y, z),
                    FmaOp::Sub => x.mul_add(y, -z),
                    FmaOp::NegAdd => (-x).mul_add(y, z),
                };
                r.to_bits() as u64
            })
        };
    }
    if ty == Ty::F32 { lanes!(f32s) } else { lanes!(f64s) }
}

pub(super) fn unary(op: UnOp, ty: Ty, a: &Lanes) -> Lanes {
    macro_rules! float {
        ($x:expr) => {
            match op {
                UnOp::Sqrt => $x.sqrt(),
                UnOp::Round => $x.round_ties_even(),
                UnOp::Floor => $x.floor(),
                UnOp::Ceil => $x.ceil(),
                _ => $x.trunc(),
            }
            .to_bits() as u64
        };
    }
    if op == UnOp::OddToEven {
        return std::array::from_fn(|i| if i % 2 == 0 { a[i + 1] } else { 0 });
    }
    a.map(|x| match (op, ty) {
        (UnOp::Not, _) => (x == 0).into(),
        (UnOp::AbsInt, Ty::I32) => (x as i32).wrapping_abs() as u32 as u64,
        (UnOp::AbsInt, _) => (x as i64).wrapping_abs() as u64,
        (_, Ty::F32) => float!(f32s(x)),
        _ => float!(f64s(x)),
    })
}

pub(super) fn compare(op: CompareOp, ty: Ty, a: u64, b: u64) -> u64 {
    let holds = match ty {
        Ty::F32 => op.holds(f32s(a), f32s(b)),
        Ty::F64 => op.holds(f64s(a), f64s(b)),
        Ty::I32 => op.holds(a as i32, b as i32),
        _ => op.holds(a as i64, b as i64),
    };
    holds.into()
}

pub(super) fn convert(to: Ty, from: Ty, x: u64) -> u64 {
    /// What x86 gives where a float does not fit.
    fn to_i32(x: f64) -> u64 {
        let fits = x > -2147483649.0 && x < 2147483648.0;
        u64::from(if fits { x as i32 as u32 } else { 1 << 31 })
    }
    fn to_i64(x: f64) -> u64 {
        let fits = (-9223372036854775808.0..9223372036854775808.0).contains(&x);
        if fits { x as i64 as u64 } else { 1 << 63 }
    }
    match (from, to) {
        (Ty::F32, Ty::F64) => f64::from(f32s(x)).to_bits(),
        (Ty::F32, Ty::I32) => to_i32(f32s(x).into()),
        (Ty::F32, Ty::I64) => to_i64(f32s(x).into()),
        (Ty::F64, Ty::F32) => (f64s(x) as f32).to_bits().into(),
        (Ty::F64, Ty::I32) => to_i32(f64s(x)),
        (Ty::F64, Ty::I64) => to_i64(f64s(x)),
        (Ty::I32, Ty::F32) => (x as i32 as f32).to_bits().into(),
        (Ty::I32, Ty::F64) => f64::from(x as i32).to_bits(),
        (Ty::I32, Ty::I64) => x as i32 as i64 as u64,
        (Ty::I64, Ty::F32) => (x as i64 as f32).to_bits().into(),
        (Ty::I64, Ty::F64) => (x as i64 as f64).to_bits(),
        (Ty::I64, Ty::I32) => x & 0xffff_ffff,
        _ => x,
    }
}

pub(super) fn scale(ty: Ty, x: u64, n: u64) -> u64 {
    // In two steps, so that neither factor leaves the range of f64; for F32 the sum of both is exact before the rounding.
    if ty == Ty::F32 {
        let n = f32s(n) as i32;
        return ((f64::from(f32s(x)) * f64::from_bits((1023 + n.clamp(-1000, 1000)) as u64 * (1 << 52))) as f32)
            .to_bits()
            .into();
    }
    let mut n = (f64s(n) as i64).clamp(-2200, 2200);
    let mut x = f64s(x);
    while n > 1000 {
        x *= f64::from_bits((1023 + 1000) << 52);
        n -= 1000;
    }
    // Stay clear of the denormals until the last product, which rounds once.
    while n < -900 && x.abs() > 1e-10 {
        x *= f64::from_bits((1023 - 900) << 52);
        n += 900;
    }
    if n < -1022 {
        return if x.is_nan() { x } else { 0f64.copysign(x) }.to_bits();
    }
    (x * f64::from_bits(((1023 + n) as u64) << 52)).to_bits()
}

pub(super) fn reduce(kind: Combine, ty: Ty, a: &Lanes) -> u64 {
    if ty == Ty::Mask {
        return match kind {
            Combine::Max => a.iter().any(|&x| x != 0).into(),
            _ => a.iter().all(|&x| x != 0).into(),
        };
    }
    let op = match kind {
        Combine::Add => BinOp::Add,
        Combine::Mul => BinOp::Mul,
        Combine::Min => BinOp::MinNan,
        Combine::Max => BinOp::MaxNan,
    };
    // By halves, as the generated code does.
    let mut a = *a;
    let mut n = LANES / 2;
    while n > 0 {
        let high: Lanes = std::array::from_fn(|i| a[(i + n) % LANES]);
        a = binary(op, ty, &a, &high);
        n /= 2;
    }
    a[0]
}

pub(super) fn call(f: ScalarFn, ty: Ty, x: u64, y: u64) -> u64 {
    match ty {
        Ty::F32 => (f.float(f32s(x).into(), f32s(y).into()) as f32).to_bits().into(),
        Ty::F64 => f.float(f64s(x), f64s(y)).to_bits(),
        Ty::I32 => u64::from(f.integer(x as i32 as i64, y as i32 as i64) as u32),
        _ => f.integer(x as i64, y as i64) as u64,
    }
}
