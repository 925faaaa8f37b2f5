//! How a result lies in memory: PyTorch says with which strides its caller expects it.

use crate::graph::Meta;
use kiln_ir::{Dim, Symbol};
use std::collections::BTreeMap;

/// The memory of a tensor with given strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredAs {
    /// Its axes in this order are row-major without gaps; `repeated` ones have stride 0, and memory has one index of them.
    Dense {
        /// The axes, the outermost first.
        order: Vec<usize>,
        /// The axes of stride 0.
        repeated: Vec<usize>,
    },
    /// Anything else: there are gaps, or elements overlap.
    Strided,
}

impl StoredAs {
    /// How a tensor lies in memory. Where the order of strides cannot be proven the sizes of `hints` decide; that the strides are
    /// those of a dense tensor is then proven for every size.
    pub fn of(meta: &Meta, hints: &BTreeMap<Symbol, i64>) -> StoredAs {
        let Meta { shape, strides, .. } = meta;
        let identity = || StoredAs::Dense { order: (0..shape.len()).collect(), repeated: vec![] };
        if shape.iter().any(Dim::is_zero) {
            return identity();
        }
        let repeated: Vec<usize> = (0..shape.len()).filter(|&a| strides[a].is_zero() && !shape[a].is_one()).collect();
        let is_moving = |axis: &usize| !shape[*axis].is_one() && !repeated.contains(axis);
        let hint = |dim: &Dim| dim.eval(&|symbol| hints.get(&symbol).copied()).unwrap_or(i64::MAX);
        let mut moving: Vec<usize> = (0..shape.len()).filter(is_moving).collect();
        moving.sort_by_key(|&axis| (std::cmp::Reverse(hint(&strides[axis])), std::cmp::Reverse(hint(&shape[axis]))));
        let mut stride = Dim::from(1);
        for &axis in moving.iter().rev() {
            if strides[axis] != stride {
                return StoredAs::Strided;
            }
            stride *= &shape[axis];
        }
        let is_ascending = moving.is_sorted();
        if is_ascending && repeated.is_empty() {
            return identity();
        }
        let mut order: Vec<usize> = (0..shape.len()).filter(|axis| !is_moving(axis)).collect();
        order.extend(moving);
        StoredAs::Dense { order, repeated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Element;
    use kiln_ir::DType;

    fn stored(shape: &[&str], strides: &[&str]) -> StoredAs {
        let dims = |list: &[&str]| list.iter().map(|text| crate::parse_size(text).unwrap()).collect();
        let meta = Meta { element: Element::real(DType::F32), shape: dims(shape), strides: dims(strides) };
        StoredAs::of(&meta, &BTreeMap::from([(Symbol::new("s0").unwrap(), 5)]))
    }

    fn dense(order: &[usize], repeated: &[usize]) -> StoredAs {
        StoredAs::Dense { order: order.to_vec(), repeated: repeated.to_vec() }
    }

    #[test]
    fn dense_layouts_are_permutations() {
        assert_eq!(stored(&["2", "3", "4"], &["12", "4", "1"]), dense(&[0, 1, 2], &[]));
        assert_eq!(stored(&["2", "3", "4", "5"], &["60", "1", "15", "3"]), dense(&[0, 2, 3, 1], &[]));
        assert_eq!(stored(&["s0", "3"], &["1", "s0"]), dense(&[1, 0], &[]));
        assert_eq!(stored(&["2", "1", "4"], &["4", "77", "1"]), dense(&[0, 1, 2], &[]));
        assert_eq!(stored(&["2", "3", "4"], &["4", "0", "1"]), dense(&[1, 0, 2], &[1]));
        assert_eq!(stored(&[], &[]), dense(&[], &[]));
        assert_eq!(stored(&["0", "3"], &["9", "9"]), dense(&[0, 1], &[]));
    }

    #[test]
    fn gaps_and_overlaps_are_strided() {
        assert_eq!(stored(&["2", "3"], &["4", "1"]), StoredAs::Strided);
        assert_eq!(stored(&["3", "2"], &["1", "1"]), StoredAs::Strided);
        assert_eq!(stored(&["s0", "3"], &["4", "1"]), StoredAs::Strided);
    }
}
