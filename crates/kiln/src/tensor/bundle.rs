//! Arguments and results of compiled functions: tensors and plain values, in tuples, lists and maps.

use crate::Tensor;
use crate::tensor::scratch::Scratch;
use std::collections::{BTreeMap, HashMap};

/// A leaf of a [`Bundle`].
#[derive(Debug, Clone, Copy)]
pub enum Leaf<'a> {
    /// A tensor: its dtype, shape, strides and device are guarded, its elements are not.
    Tensor(&'a Tensor),
    /// A flag, guarded by value.
    Bool(bool),
    /// An integer, guarded by value.
    Int(i128),
    /// A float, guarded by its bits.
    Float(f64),
    /// Text, guarded by value.
    Text(&'a str),
    /// The number of parts that follow, where it may vary.
    Parts(usize),
}

impl Leaf<'_> {
    /// Whether it is a plain value that says more than a flag or a count of parts.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Leaf::Int(_) | Leaf::Float(_) | Leaf::Text(_))
    }

    /// The bytes of an integer or a float: what tells it from others.
    pub(crate) fn number_bytes(&self) -> Option<[u8; 16]> {
        match *self {
            Leaf::Int(value) => Some(value.to_le_bytes()),
            Leaf::Float(value) => Some(i128::from(value.to_bits()).to_le_bytes()),
            _ => None,
        }
    }

    /// Whether both are the same plain value; tensors are not.
    pub(crate) fn is_value(&self, other: &Leaf<'_>) -> bool {
        match (self, other) {
            (Leaf::Bool(a), Leaf::Bool(b)) => a == b,
            (Leaf::Int(a), Leaf::Int(b)) => a == b,
            (Leaf::Float(a), Leaf::Float(b)) => a.to_bits() == b.to_bits(),
            (Leaf::Text(a), Leaf::Text(b)) => a == b,
            (Leaf::Parts(a), Leaf::Parts(b)) => a == b,
            _ => false,
        }
    }
}

/// Arguments and results of compiled functions. Tensors, flags, numbers and strings are bundles, and so are tuples, arrays,
/// vectors, options and maps by name of bundles. `#[derive(Bundle)]` implements it for structs; by hand, it is implemented
/// field by field:
///
/// ```
/// use kiln::{Bundle, Leaf, Tensor};
/// struct Pair { left: Tensor, right: Tensor }
/// impl Bundle for Pair {
///     fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
///         self.left.leaves(each);
///         self.right.leaves(each);
///     }
///     fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Pair {
///         Pair { left: self.left.map_tensors(map), right: self.right.map_tensors(map) }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument, a result or a part of one of compiled functions",
    label = "is no `Bundle`",
    note = "tensors, flags, numbers, strings, and tuples, arrays, vectors, options and maps of them are; put `#[derive(kiln::Bundle)]` on a struct or an enum of such"
)]
pub trait Bundle: Sized {
    /// Visits each leaf, always in the same order.
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>));

    /// Returns the same bundle with each tensor replaced by `map` of it, called in the order of [`Bundle::leaves`].
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Self;
}

/// The parts of a bundle.
pub(crate) fn leaves_of<B: Bundle>(bundle: &B) -> Scratch<Leaf<'_>> {
    let mut leaves = Scratch::new();
    bundle.leaves(&mut |leaf| leaves.push(leaf));
    leaves
}

impl Bundle for Tensor {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Tensor(self));
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        map(self)
    }
}

macro_rules! plain_bundles {
    ($($type:ty, $value:ident => $leaf:expr;)*) => { $(
        impl Bundle for $type {
            fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
                let $value = self;
                each($leaf);
            }
            fn map_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Tensor) -> $type {
                self.clone()
            }
        }
    )* };
}
plain_bundles! {
    bool, v => Leaf::Bool(*v);
    i8, v => Leaf::Int((*v).into());
    i16, v => Leaf::Int((*v).into());
    i32, v => Leaf::Int((*v).into());
    i64, v => Leaf::Int((*v).into());
    u8, v => Leaf::Int((*v).into());
    u16, v => Leaf::Int((*v).into());
    u32, v => Leaf::Int((*v).into());
    u64, v => Leaf::Int((*v).into());
    usize, v => Leaf::Int(*v as i128);
    isize, v => Leaf::Int(*v as i128);
    f32, v => Leaf::Float((*v).into());
    f64, v => Leaf::Float(*v);
    String, v => Leaf::Text(v);
}

macro_rules! tuple_bundles {
    ($(($($t:ident $n:tt)*))*) => { $(
        impl<$($t: Bundle),*> Bundle for ($($t,)*) {
            #[allow(unused_variables)]
            fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
                $(self.$n.leaves(each);)*
            }
            #[allow(unused_variables, clippy::unused_unit)]
            fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                ($(self.$n.map_tensors(map),)*)
            }
        }
    )* };
}
tuple_bundles! {
    () (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5)
}

impl<T: Bundle> Bundle for Vec<T> {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Parts(self.len()));
        self.iter().for_each(|part| part.leaves(each));
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Vec<T> {
        self.iter().map(|part| part.map_tensors(map)).collect()
    }
}

impl<T: Bundle, const N: usize> Bundle for [T; N] {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        self.iter().for_each(|part| part.leaves(each));
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> [T; N] {
        self.each_ref().map(|part| part.map_tensors(map))
    }
}

impl<T: Bundle> Bundle for Option<T> {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Bool(self.is_some()));
        self.iter().for_each(|part| part.leaves(each));
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Option<T> {
        self.as_ref().map(|part| part.map_tensors(map))
    }
}

impl<T: Bundle> Bundle for BTreeMap<String, T> {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Parts(self.len()));
        for (name, part) in self {
            each(Leaf::Text(name));
            part.leaves(each);
        }
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> BTreeMap<String, T> {
        self.iter().map(|(name, part)| (name.clone(), part.map_tensors(map))).collect()
    }
}

/// By name: a hash map has no order of its own.
fn sorted<T>(map: &HashMap<String, T>) -> Vec<(&String, &T)> {
    let mut parts: Vec<(&String, &T)> = map.iter().collect();
    parts.sort_unstable_by_key(|(name, _)| *name);
    parts
}

impl<T: Bundle> Bundle for HashMap<String, T> {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Parts(self.len()));
        for (name, part) in sorted(self) {
            each(Leaf::Text(name));
            part.leaves(each);
        }
    }
    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> HashMap<String, T> {
        sorted(self).into_iter().map(|(name, part)| (name.clone(), part.map_tensors(map))).collect()
    }
}
