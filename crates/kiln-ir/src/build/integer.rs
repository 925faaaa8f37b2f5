//! Functions of whole numbers.

use super::{Built, Emit, abs, compare_scalar, div, fail, mul, rem, select};
use crate::{CompareOp, DType, TypeError};

/// Divisions that Euclid's algorithm takes at most for numbers of a dtype: consecutive Fibonacci numbers are its worst case,
/// and one step more puts the larger number first. `None` where there is no such dtype.
fn euclid_steps(dtype: DType) -> Option<usize> {
    let largest: i64 = match dtype {
        DType::I64 => i64::MAX,
        DType::I32 => i64::from(i32::MAX),
        DType::I16 => i64::from(i16::MAX),
        DType::I8 => i64::from(i8::MAX),
        DType::U8 => i64::from(u8::MAX),
        _ => return None,
    };
    let (mut a, mut b) = (1i64, 1i64);
    let mut steps = 0;
    while let Some(next) = a.checked_add(b).filter(|&n| n <= largest) {
        (a, b) = (b, next);
        steps += 1;
    }
    Some(steps + 1)
}

/// The greatest common divisor of whole numbers, not negative; that of 0 and x is |x|. Euclid's algorithm, unrolled as far as
/// the dtype can need (91 divisions for i64): for a few numbers, not for tensors of millions.
#[track_caller]
pub fn gcd<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let got = e.ty(x).dtype;
    let Some(steps) = euclid_steps(got) else {
        return fail::<_, E>("gcd", TypeError::WrongDType { operand: 0, got, expected: "an integer" });
    };
    let (x, y) = super::broadcast(e, x, y)?;
    let (mut a, mut b) = if got == DType::U8 { (x, y) } else { (abs(e, &x)?, abs(e, &y)?) };
    for _ in 0..steps {
        let done = compare_scalar(e, CompareOp::Eq, &b, 0.0)?;
        // 0 where b is 0 already, so that b stays 0.
        let rest = rem(e, &a, &b)?;
        a = select(e, &done, &a, &b)?;
        b = rest;
    }
    Ok(a)
}

/// The least common multiple of whole numbers, not negative; 0 if either is 0. As costly as [`gcd`].
#[track_caller]
pub fn lcm<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let divisor = gcd(e, x, y)?;
    let part = div(e, x, &divisor)?;
    let product = mul(e, &part, y)?;
    if e.ty(&product).dtype == DType::U8 { Ok(product) } else { abs(e, &product) }
}

#[cfg(test)]
mod tests {
    use super::euclid_steps;
    use crate::DType;

    #[test]
    fn as_many_steps_as_the_worst_pair_takes() {
        for (dtype, largest) in [(DType::U8, 255i64), (DType::I8, 127), (DType::I16, 32767)] {
            let (mut a, mut b) = (1i64, 1i64);
            while a + b <= largest {
                (a, b) = (b, a + b);
            }
            // The smaller first.
            let mut count = 0;
            while b != 0 {
                (a, b) = (b, a % b);
                count += 1;
            }
            assert_eq!(euclid_steps(dtype), Some(count));
        }
        assert_eq!(euclid_steps(DType::F32), None);
    }
}
