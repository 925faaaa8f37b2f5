//! Scalar functions that vector code calls lane by lane, where a polynomial in registers would not pay.

use super::{IntOp, Ty};
use kiln_ir::{BinaryOp, DType, UnaryOp, float8};

/// A function of one or two scalars.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScalarFn {
    /// A function of the table of ops.
    Unary(UnaryOp),
    /// A function of the table of ops.
    Binary(BinaryOp),
    /// Quotient towards −∞; 0 where y is 0.
    FloorDiv,
    /// Remainder with the sign of y; 0 where y is 0.
    Modulo,
    /// Rounded to F8E4M3.
    RoundE4M3,
    /// Rounded to F8E5M2.
    RoundE5M2,
    /// The byte as F8E4M3, as the bits of the result.
    EncodeE4M3,
    /// The byte as F8E5M2, as the bits of the result.
    EncodeE5M2,
}

/// The C signature: result, operands, number of lanes; each points to packed lanes. The last argument is [`ScalarFn::number`].
pub type LanesFn = unsafe extern "C" fn(dst: *mut u8, a: *const u8, b: *const u8, lanes: usize, function: usize);

/// Those that are in no table.
const OTHERS: [ScalarFn; 6] = {
    use ScalarFn::*;
    [FloorDiv, Modulo, RoundE4M3, RoundE5M2, EncodeE4M3, EncodeE5M2]
};

impl ScalarFn {
    /// On floats, computed in 64 bits; functions of integers give NaN.
    pub fn float(self, x: f64, y: f64) -> f64 {
        match self {
            ScalarFn::Unary(op) => op.row().float.map_or(f64::NAN, |f| f(x)),
            ScalarFn::Binary(op) => op.row().float.map_or(f64::NAN, |f| f(x, y)),
            ScalarFn::FloorDiv => (x / y).floor(),
            ScalarFn::Modulo => x - y * (x / y).floor(),
            ScalarFn::RoundE4M3 => float8::round(DType::F8E4M3, x),
            ScalarFn::RoundE5M2 => float8::round(DType::F8E5M2, x),
            // Exact: a denormal f32 is a number of f64.
            ScalarFn::EncodeE4M3 => f32::from_bits(float8::encode(DType::F8E4M3, x).into()).into(),
            ScalarFn::EncodeE5M2 => f32::from_bits(float8::encode(DType::F8E5M2, x).into()).into(),
        }
    }

    /// On integers of 64 bits; functions of floats give 0.
    pub fn integer(self, x: i64, y: i64) -> i64 {
        match self {
            ScalarFn::Unary(op) => op.row().int.map_or(0, |f| f(DType::I64, x)),
            ScalarFn::Binary(op) => op.row().int.map_or(0, |f| f(DType::I64, x, y)),
            ScalarFn::FloorDiv => IntOp::FloorDiv.eval(x, y),
            ScalarFn::Modulo => IntOp::Modulo.eval(x, y),
            _ => 0,
        }
    }

    /// The function that vector code of that type calls.
    pub fn pointer(ty: Ty) -> LanesFn {
        match ty {
            Ty::F32 => over_f32,
            Ty::F64 => over_f64,
            Ty::I32 => over_i32,
            _ => over_i64,
        }
    }

    /// A number that identifies the function.
    pub fn number(self) -> usize {
        match self {
            ScalarFn::Unary(op) => op as usize,
            ScalarFn::Binary(op) => UnaryOp::ALL.len() + op as usize,
            other => {
                let place = OTHERS.iter().position(|f| *f == other).unwrap_or_default();
                UnaryOp::ALL.len() + BinaryOp::ALL.len() + place
            }
        }
    }

    /// The function of that number; that of the last for one that is none.
    fn numbered(number: usize) -> ScalarFn {
        let (unary, binary) = (UnaryOp::ALL.len(), BinaryOp::ALL.len());
        if number < unary {
            ScalarFn::Unary(UnaryOp::ALL[number])
        } else if number < unary + binary {
            ScalarFn::Binary(BinaryOp::ALL[number - unary])
        } else {
            OTHERS[(number - unary - binary).min(OTHERS.len() - 1)]
        }
    }
}

/// # Safety
/// Each pointer points to `lanes` packed lanes.
unsafe fn each<T>(dst: *mut u8, a: *const u8, b: *const u8, lanes: usize, f: impl Fn(T, T) -> T) {
    for i in 0..lanes {
        // SAFETY: by the caller's promise.
        unsafe { dst.cast::<T>().add(i).write(f(a.cast::<T>().add(i).read(), b.cast::<T>().add(i).read())) };
    }
}

/// Those that are a few instructions have a loop of their own.
macro_rules! over {
    ($name:ident, $lane:ty, $meaning:ident, $($short:ident)*) => {
        unsafe extern "C" fn $name(dst: *mut u8, a: *const u8, b: *const u8, lanes: usize, function: usize) {
            // SAFETY: by the caller's promise.
            unsafe {
                match ScalarFn::numbered(function) {
                    $(ScalarFn::$short => each(dst, a, b, lanes, |x: $lane, y: $lane| {
                        ScalarFn::$short.$meaning(x.into(), y.into()) as $lane
                    }),)*
                    ScalarFn::Binary(BinaryOp::Gcd) => each(dst, a, b, lanes, |x: $lane, y: $lane| {
                        ScalarFn::Binary(BinaryOp::Gcd).$meaning(x.into(), y.into()) as $lane
                    }),
                    f => each(dst, a, b, lanes, |x: $lane, y: $lane| f.$meaning(x.into(), y.into()) as $lane),
                }
            }
        }
    };
}
over!(over_f32, f32, float, RoundE4M3 RoundE5M2 EncodeE4M3 EncodeE5M2);
over!(over_f64, f64, float,);
over!(over_i32, i32, integer, FloorDiv Modulo);
over!(over_i64, i64, integer, FloorDiv Modulo);
