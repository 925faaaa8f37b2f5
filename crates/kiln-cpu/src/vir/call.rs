//! Scalar functions that vector code calls lane by lane, where a polynomial in registers would not pay.

use super::Ty;
use kiln_ir::interpret::special;
use kiln_ir::{DType, float8};

/// A function of one or two scalars.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScalarFn {
    /// eˣ
    Exp,
    /// 2ˣ
    Exp2,
    /// eˣ − 1
    Expm1,
    /// ln x
    Log,
    /// log₂ x
    Log2,
    /// ln(1 + x)
    Log1p,
    /// sin x
    Sin,
    /// cos x
    Cos,
    /// tan x
    Tan,
    /// arc sine
    Asin,
    /// arc cosine
    Acos,
    /// arc tangent
    Atan,
    /// tanh x
    Tanh,
    /// Error function.
    Erf,
    /// Its inverse.
    ErfInv,
    /// ln|Γ(x)|
    Lgamma,
    /// xʸ
    Pow,
    /// The angle of (y, x).
    Atan2,
    /// Remainder with the sign of x; integers: 0 where y is 0.
    Rem,
    /// Integer quotient towards zero; 0 where y is 0.
    Div,
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

/// The C signature: result, operands, number of lanes; each points to packed lanes.
pub type LanesFn = unsafe extern "C" fn(dst: *mut u8, a: *const u8, b: *const u8, lanes: usize);

impl ScalarFn {
    /// On floats, computed in 64 bits.
    pub fn float(self, x: f64, y: f64) -> f64 {
        match self {
            ScalarFn::Exp => x.exp(),
            ScalarFn::Exp2 => x.exp2(),
            ScalarFn::Expm1 => x.exp_m1(),
            ScalarFn::Log => x.ln(),
            ScalarFn::Log2 => x.log2(),
            ScalarFn::Log1p => x.ln_1p(),
            ScalarFn::Sin => x.sin(),
            ScalarFn::Cos => x.cos(),
            ScalarFn::Tan => x.tan(),
            ScalarFn::Asin => x.asin(),
            ScalarFn::Acos => x.acos(),
            ScalarFn::Atan => x.atan(),
            ScalarFn::Tanh => x.tanh(),
            ScalarFn::Erf => special::erf(x),
            ScalarFn::ErfInv => special::erf_inv(x),
            ScalarFn::Lgamma => special::lgamma(x),
            ScalarFn::Pow => x.powf(y),
            ScalarFn::Atan2 => x.atan2(y),
            ScalarFn::Rem => x % y,
            ScalarFn::Div => x / y,
            ScalarFn::FloorDiv => (x / y).floor(),
            ScalarFn::Modulo => x - y * (x / y).floor(),
            ScalarFn::RoundE4M3 => float8::round(DType::F8E4M3, x),
            ScalarFn::RoundE5M2 => float8::round(DType::F8E5M2, x),
            // Exact: a denormal f32 is a number of f64.
            ScalarFn::EncodeE4M3 => f32::from_bits(float8::encode(DType::F8E4M3, x).into()).into(),
            ScalarFn::EncodeE5M2 => f32::from_bits(float8::encode(DType::F8E5M2, x).into()).into(),
        }
    }

    /// On integers; functions of floats give 0.
    pub fn integer(self, x: i64, y: i64) -> i64 {
        match self {
            ScalarFn::Div if y != 0 => x.wrapping_div(y),
            ScalarFn::Rem if y != 0 => x.wrapping_rem(y),
            ScalarFn::FloorDiv => super::IntOp::FloorDiv.eval(x, y),
            ScalarFn::Modulo => super::IntOp::Modulo.eval(x, y),
            _ => 0,
        }
    }

    /// The function that vector code of that type calls.
    pub fn pointer(self, ty: Ty) -> LanesFn {
        macro_rules! table {
            ($($name:ident)*) => {
                match self { $(ScalarFn::$name => match ty {
                    Ty::F32 => over_f32::<{ ScalarFn::$name as u8 }>,
                    Ty::F64 => over_f64::<{ ScalarFn::$name as u8 }>,
                    Ty::I32 => over_i32::<{ ScalarFn::$name as u8 }>,
                    _ => over_i64::<{ ScalarFn::$name as u8 }>,
                },)* }
            };
        }
        table!(Exp Exp2 Expm1 Log Log2 Log1p Sin Cos Tan Asin Acos Atan Tanh Erf ErfInv Lgamma Pow Atan2 Rem Div FloorDiv Modulo RoundE4M3 RoundE5M2 EncodeE4M3 EncodeE5M2)
    }

    pub(crate) const ALL: [ScalarFn; 26] = {
        use ScalarFn::*;
        [
            Exp, Exp2, Expm1, Log, Log2, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Tanh, Erf, ErfInv, Lgamma, Pow, Atan2,
            Rem, Div, FloorDiv, Modulo, RoundE4M3, RoundE5M2, EncodeE4M3, EncodeE5M2,
        ]
    };
}

macro_rules! over {
    ($name:ident, $lane:ty, $body:expr) => {
        unsafe extern "C" fn $name<const F: u8>(dst: *mut u8, a: *const u8, b: *const u8, lanes: usize) {
            let f = ScalarFn::ALL[F as usize];
            for i in 0..lanes {
                // SAFETY: the caller passes `lanes` packed lanes behind each pointer.
                unsafe {
                    let (x, y) = (a.cast::<$lane>().add(i).read(), b.cast::<$lane>().add(i).read());
                    dst.cast::<$lane>().add(i).write($body(f, x, y));
                }
            }
        }
    };
}
over!(over_f32, f32, |f: ScalarFn, x: f32, y: f32| f.float(x.into(), y.into()) as f32);
over!(over_f64, f64, |f: ScalarFn, x: f64, y: f64| f.float(x, y));
over!(over_i32, i32, |f: ScalarFn, x: i32, y: i32| f.integer(x.into(), y.into()) as i32);
over!(over_i64, i64, |f: ScalarFn, x: i64, y: i64| f.integer(x, y));
