//! Functions of whole numbers.

use super::{Built, Emit, abs, div, gcd, mul};
use crate::DType;

/// The least common multiple of whole numbers, not negative; 0 if either is 0.
#[track_caller]
pub fn lcm<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let divisor = gcd(e, x, y)?;
    let part = div(e, x, &divisor)?;
    let product = mul(e, &part, y)?;
    if e.ty(&product).dtype == DType::U8 { Ok(product) } else { abs(e, &product) }
}
