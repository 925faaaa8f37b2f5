//! What modules are made of, and the walk over it by name.

use super::Mode;
use crate::tensor::bundle::Leaf;
use crate::tensor::ops::product::{Conv, Pool};
use crate::{DType, Device, Tensor, Var};
use std::collections::{BTreeMap, HashMap};

/// What a module keeps a variable for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// To be trained.
    Parameter,
    /// Saved with the parameters, not trained: running statistics.
    Buffer,
    /// Neither saved nor trained: a cache, a table.
    Transient,
}

/// A thing met on a walk over a module.
#[derive(Debug)]
pub enum Met<'a> {
    /// A variable.
    Var {
        /// Its name in the state dict.
        name: &'a str,
        /// What it is for.
        role: Role,
        /// The variable.
        var: &'a Var,
    },
    /// A plain value, of which the module's results may depend.
    Value(Leaf<'a>),
    /// A flag that says whether the module is being trained.
    Mode(&'a Mode),
}

/// A thing met on a walk over a module that may change it.
#[derive(Debug)]
pub enum MetMut<'a> {
    /// A variable.
    Var {
        /// Its name in the state dict.
        name: &'a str,
        /// What it is for.
        role: Role,
        /// The variable.
        var: &'a mut Var,
    },
    /// A constant tensor.
    Tensor(&'a mut Tensor),
}

/// Where a walk is.
#[derive(Debug)]
struct Place {
    name: String,
    role: Role,
}

impl Place {
    /// Goes on to a part; gives what [`Place::leave`] needs.
    fn enter(&mut self, name: &str, role: Option<Role>) -> (usize, Role) {
        let before = (self.name.len(), self.role);
        if !name.is_empty() {
            if !self.name.is_empty() {
                self.name.push('.');
            }
            self.name.push_str(name);
        }
        // A part of a buffer is one too.
        if let (Role::Parameter, Some(role)) = (self.role, role) {
            self.role = role;
        }
        before
    }

    fn leave(&mut self, (length, role): (usize, Role)) {
        self.name.truncate(length);
        self.role = role;
    }
}

macro_rules! walk {
    ($(#[$doc:meta])* $walk:ident, $met:ident, $visit:ident $(, $mutable:ident)?) => {
        $(#[$doc])*
        pub struct $walk<'w> {
            place: Place,
            each: &'w mut dyn FnMut($met<'_>),
        }

        impl<'w> $walk<'w> {
            /// A walk that starts at a whole module.
            pub fn new(each: &'w mut dyn FnMut($met<'_>)) -> $walk<'w> {
                $walk { place: Place { name: String::new(), role: Role::Parameter }, each }
            }

            /// Goes on to a part. With an empty name its parts are named as if they were this module's own.
            pub fn part(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, None, part);
            }

            /// Goes on to a part whose variables are buffers.
            pub fn buffer(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, Some(Role::Buffer), part);
            }

            /// Goes on to a part whose variables are buffers that are not saved.
            pub fn transient(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, Some(Role::Transient), part);
            }

            fn enter(&mut self, name: &str, role: Option<Role>, part: &$($mutable)? (impl Part + ?Sized)) {
                let before = self.place.enter(name, role);
                part.$visit(self);
                self.place.leave(before);
            }

            /// Shows a variable that is named as the walk's place.
            pub fn var(&mut self, var: &$($mutable)? Var) {
                (self.each)($met::Var { name: &self.place.name, role: self.place.role, var });
            }
        }
    };
}

walk! {
    /// A walk over a module: what a [`Part`] shows itself to.
    Visit, Met, visit
}

walk! {
    /// A walk over a module that may change it.
    VisitMut, MetMut, visit_mut, mut
}

impl Visit<'_> {
    /// Shows a plain value.
    pub fn value(&mut self, value: Leaf<'_>) {
        (self.each)(Met::Value(value));
    }

    /// Shows a flag that says whether the module is being trained.
    pub fn mode(&mut self, mode: &Mode) {
        (self.each)(Met::Mode(mode));
    }
}

impl VisitMut<'_> {
    /// Shows a constant tensor.
    pub fn tensor(&mut self, tensor: &mut Tensor) {
        (self.each)(MetMut::Tensor(tensor));
    }
}

/// What can be a field of a module: a [`Var`], a constant tensor, a plain value, a [`Mode`], another module, and options,
/// boxes, arrays, vectors, tuples and maps by name of them. `#[derive(Module)]` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a module",
    label = "is no `Part`",
    note = "put `#[derive(kiln::nn::Module)]` on a struct or an enum of variables, tensors, plain values and modules, or `#[module(skip)]` on a field that is none"
)]
pub trait Part {
    /// Shows every part, always in the same order.
    fn visit(&self, visit: &mut Visit<'_>);

    /// Shows every variable and constant so that it can be replaced, in the order and under the names of [`Part::visit`].
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>);
}

impl Part for Var {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.var(self);
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        visit.var(self);
    }
}

/// A constant, which a state dict does not hold. It moves with the module.
impl Part for Tensor {
    fn visit(&self, _: &mut Visit<'_>) {}
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        visit.tensor(self);
    }
}

impl Part for Mode {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.mode(self);
    }
    fn visit_mut(&mut self, _: &mut VisitMut<'_>) {}
}

macro_rules! plain_parts {
    ($($type:ty, $value:ident => $leaf:expr;)*) => { $(
        impl Part for $type {
            fn visit(&self, visit: &mut Visit<'_>) {
                let $value = self;
                visit.value($leaf);
            }
            fn visit_mut(&mut self, _: &mut VisitMut<'_>) {}
        }
    )* };
}
plain_parts! {
    bool, v => Leaf::Bool(*v);
    i32, v => Leaf::Int((*v).into());
    i64, v => Leaf::Int((*v).into());
    u8, v => Leaf::Int((*v).into());
    u32, v => Leaf::Int((*v).into());
    u64, v => Leaf::Int((*v).into());
    usize, v => Leaf::Int(*v as i128);
    isize, v => Leaf::Int(*v as i128);
    f32, v => Leaf::Float((*v).into());
    f64, v => Leaf::Float(*v);
    String, v => Leaf::Text(v);
    &'static str, v => Leaf::Text(v);
    DType, v => Leaf::Text(v.name());
    Device, v => Leaf::Text(&v.to_string());
}

macro_rules! tuple_parts {
    ($(($($t:ident $n:tt)*))*) => { $(
        impl<$($t: Part),*> Part for ($($t,)*) {
            #[allow(unused_variables)]
            fn visit(&self, visit: &mut Visit<'_>) {
                $(visit.part(stringify!($n), &self.$n);)*
            }
            #[allow(unused_variables)]
            fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
                $(visit.part(stringify!($n), &mut self.$n);)*
            }
        }
    )* };
}
tuple_parts! { () (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) }

impl<P: Part + ?Sized> Part for Box<P> {
    fn visit(&self, visit: &mut Visit<'_>) {
        (**self).visit(visit);
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        (**self).visit_mut(visit);
    }
}

impl<P: Part> Part for Option<P> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.value(Leaf::Bool(self.is_some()));
        self.iter().for_each(|part| part.visit(visit));
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        self.iter_mut().for_each(|part| part.visit_mut(visit));
    }
}

impl<P: Part> Part for Vec<P> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.value(Leaf::Parts(self.len()));
        self.iter().enumerate().for_each(|(number, part)| visit.part(&number.to_string(), part));
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        self.iter_mut().enumerate().for_each(|(number, part)| visit.part(&number.to_string(), part));
    }
}

impl<P: Part, const N: usize> Part for [P; N] {
    fn visit(&self, visit: &mut Visit<'_>) {
        self.iter().enumerate().for_each(|(number, part)| visit.part(&number.to_string(), part));
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        self.iter_mut().enumerate().for_each(|(number, part)| visit.part(&number.to_string(), part));
    }
}

impl<P: Part> Part for BTreeMap<String, P> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.value(Leaf::Parts(self.len()));
        self.iter().for_each(|(name, part)| visit.part(name, part));
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        self.iter_mut().for_each(|(name, part)| visit.part(name, part));
    }
}

/// In the order of the names.
impl<P: Part> Part for HashMap<String, P> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.value(Leaf::Parts(self.len()));
        let mut parts: Vec<(&String, &P)> = self.iter().collect();
        parts.sort_unstable_by_key(|(name, _)| *name);
        parts.into_iter().for_each(|(name, part)| visit.part(name, part));
    }
    fn visit_mut(&mut self, visit: &mut VisitMut<'_>) {
        let mut parts: Vec<(&String, &mut P)> = self.iter_mut().collect();
        parts.sort_unstable_by_key(|(name, _)| *name);
        parts.into_iter().for_each(|(name, part)| visit.part(name, part));
    }
}

impl<const N: usize> Part for Conv<N> {
    fn visit(&self, visit: &mut Visit<'_>) {
        let Conv { stride, padding, dilation, groups, output_padding } = self;
        for sizes in [stride, padding, dilation, output_padding] {
            sizes.visit(visit);
        }
        groups.visit(visit);
    }
    fn visit_mut(&mut self, _: &mut VisitMut<'_>) {}
}

impl<const N: usize> Part for Pool<N> {
    fn visit(&self, visit: &mut Visit<'_>) {
        let Pool { size, stride, padding, dilation, ceil, count_padding } = self;
        for sizes in [size, stride, padding, dilation] {
            sizes.visit(visit);
        }
        ceil.visit(visit);
        count_padding.visit(visit);
    }
    fn visit_mut(&mut self, _: &mut VisitMut<'_>) {}
}
