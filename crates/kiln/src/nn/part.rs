//! The parts of modules, and the visitors that name them.

use super::Mode;
use crate::tensor::bundle::Leaf;
use crate::tensor::ops::product::{Conv, Pool};
use crate::{DType, Device, Tensor, Var};
use std::collections::{BTreeMap, HashMap};

/// The role of a variable in its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Trained.
    Parameter,
    /// Saved with the parameters, not trained: running statistics.
    Buffer,
    /// Neither saved nor trained: a cache, a table.
    Transient,
}

/// An item that a visitor receives.
#[derive(Debug)]
pub enum Met<'a> {
    /// A variable.
    Var {
        /// Its name in the state dict.
        name: &'a str,
        /// Its role.
        role: Role,
        /// The variable.
        var: &'a Var,
    },
    /// A plain value that the module's results may depend on.
    Value(Leaf<'a>),
    /// A training flag.
    Mode(&'a Mode),
}

/// An item that a mutable visitor receives.
#[derive(Debug)]
pub enum MetMut<'a> {
    /// A variable.
    Var {
        /// Its name in the state dict.
        name: &'a str,
        /// Its role.
        role: Role,
        /// The variable.
        var: &'a mut Var,
    },
    /// A constant tensor.
    Tensor(&'a mut Tensor),
}

/// The name and role of the part that is being visited.
#[derive(Debug)]
struct Position {
    name: String,
    role: Role,
}

impl Position {
    /// Enters a part; returns what [`Position::leave`] needs.
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
            position: Position,
            each: &'w mut dyn FnMut($met<'_>),
        }

        impl<'w> $walk<'w> {
            /// Makes a visitor that starts at a whole module.
            pub fn new(each: &'w mut dyn FnMut($met<'_>)) -> $walk<'w> {
                $walk { position: Position { name: String::new(), role: Role::Parameter }, each }
            }

            /// Visits a part. With an empty name, its parts are named as if they were this module's own.
            pub fn part(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, None, part);
            }

            /// Visits a part whose variables are buffers.
            pub fn buffer(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, Some(Role::Buffer), part);
            }

            /// Visits a part whose variables are buffers that are not saved.
            pub fn transient(&mut self, name: &str, part: &$($mutable)? (impl Part + ?Sized)) {
                self.enter(name, Some(Role::Transient), part);
            }

            fn enter(&mut self, name: &str, role: Option<Role>, part: &$($mutable)? (impl Part + ?Sized)) {
                let before = self.position.enter(name, role);
                part.$visit(self);
                self.position.leave(before);
            }

            /// Visits a variable under the current name.
            pub fn var(&mut self, var: &$($mutable)? Var) {
                (self.each)($met::Var { name: &self.position.name, role: self.position.role, var });
            }
        }
    };
}

walk! {
    /// A visitor of the parts of a module.
    Visit, Met, visit
}

walk! {
    /// A visitor that may replace the variables and constants of a module.
    VisitMut, MetMut, visit_mut, mut
}

impl Visit<'_> {
    /// Visits a plain value.
    pub fn value(&mut self, value: Leaf<'_>) {
        (self.each)(Met::Value(value));
    }

    /// Visits a training flag.
    pub fn mode(&mut self, mode: &Mode) {
        (self.each)(Met::Mode(mode));
    }
}

impl VisitMut<'_> {
    /// Visits a constant tensor.
    pub fn tensor(&mut self, tensor: &mut Tensor) {
        (self.each)(MetMut::Tensor(tensor));
    }
}

/// A type that can be a field of a module: a [`Var`], a constant tensor, a plain value, a [`Mode`], another module, or an
/// option, box, array, vector, tuple or map by name of parts. `#[derive(Module)]` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a module",
    label = "is no `Part`",
    note = "put `#[derive(kiln::nn::Module)]` on a struct or an enum of variables, tensors, plain values and modules, or `#[module(skip)]` on a field that is none"
)]
pub trait Part {
    /// Visits every part, always in the same order.
    fn visit(&self, visit: &mut Visit<'_>);

    /// Visits every variable and constant so that it can be replaced, in the order and under the names of [`Part::visit`].
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
