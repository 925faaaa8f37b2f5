//! Functions as code: the operations of [`Float`] on values of the vector IR, each of which emits an instruction.

use super::lanes::*;
use crate::vir::*;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// Where code goes, and the type of its floats.
pub(super) struct Coder<'b> {
    builder: RefCell<&'b mut Builder>,
    ty: Ty,
}

impl<'b> Coder<'b> {
    pub(super) fn new(builder: &'b mut Builder, ty: Ty) -> Coder<'b> {
        Coder { builder: RefCell::new(builder), ty }
    }

    /// A vector of floats as an operand.
    pub(super) fn float<'a>(&'a self, v: V) -> Value<'a, 'b, Floats> {
        Value { coder: self, v, kind: PhantomData }
    }
}

/// Floats.
#[derive(Clone, Copy)]
pub(super) struct Floats;
/// Integers of the same width.
#[derive(Clone, Copy)]
pub(super) struct Ints;
/// Truth values.
#[derive(Clone, Copy)]
pub(super) struct Masks;

/// A value of the vector IR that knows where code goes.
#[derive(Clone, Copy)]
pub(super) struct Value<'a, 'b, K> {
    coder: &'a Coder<'b>,
    pub(super) v: V,
    kind: PhantomData<K>,
}

impl<'a, 'b, K> Value<'a, 'b, K> {
    /// Emits code for a value of any kind.
    fn emit<T>(self, f: impl FnOnce(&mut Builder, Ty) -> V) -> Value<'a, 'b, T> {
        let v = f(&mut self.coder.builder.borrow_mut(), self.coder.ty);
        Value { coder: self.coder, v, kind: PhantomData }
    }

    fn int_const(self, value: i64) -> Value<'a, 'b, Ints> {
        self.emit(|b, ty| {
            let bits = value as u64;
            b.bits(ty.as_int(), if ty.lane_bytes() == 4 { bits & 0xffff_ffff } else { bits })
        })
    }
}

/// `a ∘ b` as an instruction on a kind's type.
macro_rules! operators {
    ($kind:ty, $of:expr, $($trait:ident $method:ident $op:expr),*) => {$(
        impl $trait for Value<'_, '_, $kind> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                let of: fn(Ty) -> Ty = $of;
                self.emit(|b, ty| b.bin($op, of(ty), self.v, other.v))
            }
        }
    )*};
}
operators!(Floats, |ty| ty, Add add BinOp::Add, Sub sub BinOp::Sub, Mul mul BinOp::Mul, Div div BinOp::Div);
operators!(Ints, Ty::as_int, Add add BinOp::Add, Sub sub BinOp::Sub, BitAnd bitand BinOp::And, BitOr bitor BinOp::Or, BitXor bitxor BinOp::Xor);
operators!(Masks, |_| Ty::Mask, BitAnd bitand BinOp::And, BitOr bitor BinOp::Or);

impl Not for Value<'_, '_, Masks> {
    type Output = Self;
    fn not(self) -> Self {
        self.emit(|b, _| b.not(self.v))
    }
}

impl Mask for Value<'_, '_, Masks> {}

impl Neg for Value<'_, '_, Floats> {
    type Output = Self;
    fn neg(self) -> Self {
        self.flip(self.sign_mask())
    }
}

impl<'a, 'b> Value<'a, 'b, Floats> {
    fn fused(self, op: FmaOp, y: Self, z: Self) -> Self {
        self.emit(|b, ty| b.fma_op(op, ty, self.v, y.v, z.v))
    }
    fn binary(self, op: BinOp, y: Self) -> Self {
        self.emit(|b, ty| b.bin(op, ty, self.v, y.v))
    }
    fn unary(self, op: UnOp) -> Self {
        self.emit(|b, ty| b.un(op, ty, self.v))
    }
    fn compare(self, op: CompareOp, y: Self) -> Value<'a, 'b, Masks> {
        self.emit(|b, ty| b.compare(op, ty, self.v, y.v))
    }
}

impl<'a, 'b> Float for Value<'a, 'b, Floats> {
    type Int = Value<'a, 'b, Ints>;
    type Mask = Value<'a, 'b, Masks>;

    fn lit(self, value: f64) -> Self {
        self.emit(|b, ty| b.splat(ty, value))
    }
    fn int(self, value: i64) -> Self::Int {
        self.int_const(value)
    }
    fn mul_add(self, y: Self, z: Self) -> Self {
        self.fused(FmaOp::Add, y, z)
    }
    fn mul_sub(self, y: Self, z: Self) -> Self {
        self.fused(FmaOp::Sub, y, z)
    }
    fn neg_mul_add(self, y: Self, z: Self) -> Self {
        self.fused(FmaOp::NegAdd, y, z)
    }
    fn abs(self) -> Self {
        self.emit(|b, ty| super::abs(b, ty, self.v))
    }
    fn sqrt(self) -> Self {
        self.unary(UnOp::Sqrt)
    }
    fn round(self) -> Self {
        self.unary(UnOp::Round)
    }
    fn trunc(self) -> Self {
        self.unary(UnOp::Trunc)
    }
    fn min(self, other: Self) -> Self {
        self.binary(BinOp::Min, other)
    }
    fn max(self, other: Self) -> Self {
        self.binary(BinOp::Max, other)
    }
    fn scale(self, n: Self) -> Self {
        self.emit(|b, ty| b.pure(Op::Scale, ty, ty, &[self.v, n.v]))
    }
    fn bits(self) -> Self::Int {
        self.emit(|_, _| self.v)
    }
    fn lt(self, other: Self) -> Self::Mask {
        self.compare(CompareOp::Lt, other)
    }
    fn gt(self, other: Self) -> Self::Mask {
        self.compare(CompareOp::Gt, other)
    }
    fn eq(self, other: Self) -> Self::Mask {
        self.compare(CompareOp::Eq, other)
    }
    fn ne(self, other: Self) -> Self::Mask {
        self.compare(CompareOp::Ne, other)
    }
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        yes.emit(|b, ty| b.select(ty, mask.v, yes.v, no.v))
    }
    fn unless(self, mask: Self::Mask, f: ScalarFn, x: Self, y: Self) -> Self {
        self.emit(|b, ty| b.pure(Op::Call(f), ty, ty, &[x.v, y.v, mask.v, self.v]))
    }
    fn call(f: ScalarFn, x: Self, y: Self) -> Self {
        x.emit(|b, ty| b.pure(Op::Call(f), ty, ty, &[x.v, y.v]))
    }
}

impl<'a, 'b> Int for Value<'a, 'b, Ints> {
    type Float = Value<'a, 'b, Floats>;
    type Mask = Value<'a, 'b, Masks>;

    fn lit(self, value: i64) -> Self {
        self.int_const(value)
    }
    fn float(self) -> Self::Float {
        self.emit(|_, _| self.v)
    }
    fn to_float(self) -> Self::Float {
        if self.coder.ty == Ty::F64 {
            // AVX2 has no conversion: the bits are added to those of 1.5·2⁵², which is taken off again.
            const MAGIC: f64 = 6_755_399_441_055_744.0;
            let sum = (self + self.lit(MAGIC.to_bits() as i64)).float();
            return sum - sum.lit(MAGIC);
        }
        self.emit(|b, ty| b.convert(ty, ty.as_int(), self.v))
    }
    fn shl(self, bits: u32) -> Self {
        self.emit(|b, ty| b.shift(BinOp::Shl, ty, self.v, bits))
    }
    fn shr(self, bits: u32) -> Self {
        self.emit(|b, ty| b.shift(BinOp::Shr, ty, self.v, bits))
    }
    fn sar(self, bits: u32) -> Self {
        self.emit(|b, ty| b.shift(BinOp::Sar, ty, self.v, bits))
    }
    fn gt(self, other: Self) -> Self::Mask {
        self.emit(|b, ty| b.compare(CompareOp::Gt, ty.as_int(), self.v, other.v))
    }
    fn eq(self, other: Self) -> Self::Mask {
        self.emit(|b, ty| b.compare(CompareOp::Eq, ty.as_int(), self.v, other.v))
    }
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        yes.emit(|b, ty| b.select(ty.as_int(), mask.v, yes.v, no.v))
    }
}
