//! Verifier of vector IR: what the code generators take for granted, checked from scratch.
//!
//! Values are defined on every path before they are used: what is first defined inside a loop or a part ends with it, since either
//! may not run. Only variables, which a `Copy` defines first, are assigned again; the counter and the bound of a loop
//! are not assigned inside it. Each instruction has the operands that it needs, of the kind that it needs, and no others.

use super::*;
use std::mem::{offset_of, size_of};

/// A rule that a function breaks, and where. Always a fault of the lowering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vector IR, instruction {at} ({inst}): {rule}")]
pub struct VirViolation {
    /// The number of the instruction.
    pub at: usize,
    /// Its text.
    pub inst: String,
    /// The rule.
    pub rule: VirRule,
}

/// A rule of vector IR that is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VirRule {
    /// A value without a type.
    #[error("{value:?} is no value of this function")]
    Unknown {
        /// The value.
        value: V,
    },
    /// A value is used where it is not defined on every path.
    #[error("{value:?} is not defined here")]
    Undefined {
        /// The value.
        value: V,
    },
    /// A value that is no variable is assigned again.
    #[error("{value:?} is assigned again, but is no variable")]
    Redefined {
        /// The value.
        value: V,
    },
    /// The counter or the bound of an open loop is assigned.
    #[error("{value:?} is the counter or the bound of an open loop")]
    LoopControl {
        /// The value.
        value: V,
    },
    /// A loop whose counter is no variable, or does not grow.
    #[error("{value:?} is no counter, or does not grow")]
    Counter {
        /// The counter.
        value: V,
    },
    /// An operand or the result is absent where there must be one, or there where there must be none.
    #[error("{what} is {}", if *present { "there" } else { "absent" })]
    Presence {
        /// The operand, as text.
        what: &'static str,
        /// Whether it is present.
        present: bool,
    },
    /// An operand or the result is of another kind than the instruction works on.
    #[error("{what} is {found:?}, expected {expected:?}")]
    Type {
        /// The operand, as text.
        what: &'static str,
        /// The type worked on.
        expected: Ty,
        /// The value's type.
        found: Ty,
    },
    /// An instruction that does not exist for its type.
    #[error("there is no such instruction for {ty:?}")]
    NoSuchOp {
        /// The type.
        ty: Ty,
    },
    /// A constant part out of its range.
    #[error("{what} is {value}")]
    OutOfRange {
        /// The part, as text.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// A loop or part is closed that is not open, or never closed.
    #[error("loops and parts do not nest")]
    Nesting,
    /// The function is said to have 64-bit vectors and has none, or the other way round.
    #[error("the function is said to be wide: {said}")]
    Wide {
        /// The flag of the function.
        said: bool,
    },
}

/// Checks a function that is called with so many buffers and sizes.
pub fn verify(f: &Function, buffers: usize, sizes: usize) -> Result<(), VirViolation> {
    let mut checker = Checker {
        f,
        lengths: [buffers, sizes],
        origins: vec![Origin::Other; f.types.len()],
        numbers: vec![None; f.types.len()],
        state: vec![State::Undefined; f.types.len()],
        regions: vec![Region::default()],
    };
    for (at, inst) in f.insts.iter().enumerate() {
        checker.inst(inst).map_err(|rule| VirViolation { at, inst: inst.to_string(), rule })?;
    }
    let end = |rule| VirViolation { at: f.insts.len(), inst: "end of the function".to_owned(), rule };
    if checker.regions.len() != 1 {
        return Err(end(VirRule::Nesting));
    }
    let bytes = |ty: Ty| ty.lane_bytes() == 8;
    let wide = f.insts.iter().any(|inst| {
        let result = inst.dst.is_some() && bytes(f.types[inst.dst.index()]);
        result || bytes(inst.ty) || matches!(inst.op, Op::Convert(from) if bytes(from))
    });
    if wide == f.wide { Ok(()) } else { Err(end(VirRule::Wide { said: f.wide })) }
}

/// What a scalar points to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Context,
    Buffers,
    Sizes,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Undefined,
    /// Assigned once and for all.
    Defined,
    /// May be assigned again.
    Variable,
    /// Was defined in a region that is closed.
    Ended,
}

/// A loop or part that is open.
#[derive(Default)]
struct Region {
    defined: Vec<V>,
    /// Counter and bound, of a loop.
    control: Option<[V; 2]>,
}

struct Checker<'a> {
    f: &'a Function,
    /// Buffers and sizes of a launch.
    lengths: [usize; 2],
    origins: Vec<Origin>,
    numbers: Vec<Option<u64>>,
    state: Vec<State>,
    regions: Vec<Region>,
}

/// Whether values of two types may stand for each other.
fn alike(a: Ty, b: Ty) -> bool {
    a.as_int() == b.as_int()
}

fn is_vector(ty: Ty) -> bool {
    ty.lane_bytes() != 0
}

fn is_packed(ty: Ty) -> bool {
    matches!(ty, Ty::I16 | Ty::I8)
}

/// Whether a memory operand is of elements that are moved as they are.
fn moves(m: Memory, ty: Ty) -> bool {
    let beside = matches!(m.access, Access::Contiguous | Access::Single);
    is_packed(ty)
        && beside
        && matches!(m.dtype, DType::I16 | DType::U8)
        && m.dtype.size_in_bits() == 8 * ty.lane_bytes()
}

const NAMES: [&str; 4] = ["operand a", "operand b", "operand c", "operand d"];

/// The expected type of an operand.
#[derive(Clone, Copy)]
enum Expected {
    Is(Ty),
    /// Or absent.
    Maybe(Ty),
}

impl Checker<'_> {
    fn ty(&self, value: V) -> Result<Ty, VirRule> {
        self.f.types.get(value.index()).copied().ok_or(VirRule::Unknown { value })
    }

    /// Checks the operands; those that are not named are absent.
    fn args(&self, inst: &Inst, wants: &[Expected]) -> Result<(), VirRule> {
        for (at, (&value, what)) in inst.args.iter().zip(NAMES).enumerate() {
            let (expected, optional) = match wants.get(at) {
                Some(Expected::Is(ty)) => (*ty, false),
                Some(Expected::Maybe(ty)) => (*ty, true),
                None if value.is_some() => return Err(VirRule::Presence { what, present: true }),
                None => continue,
            };
            if !value.is_some() {
                if optional {
                    continue;
                }
                return Err(VirRule::Presence { what, present: false });
            }
            let found = self.ty(value)?;
            if !alike(found, expected) {
                return Err(VirRule::Type { what, expected, found });
            }
            if !matches!(self.state[value.index()], State::Defined | State::Variable) {
                return Err(VirRule::Undefined { value });
            }
        }
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), VirRule> {
        match inst.op {
            Op::Loop { step, .. } => return self.open_loop(inst, step),
            Op::If => {
                self.args(inst, &[Expected::Is(Ty::Int), Expected::Is(Ty::Int)])?;
                self.regions.push(Region::default());
                return self.result(inst, None);
            }
            Op::End => {
                self.args(inst, &[])?;
                if self.regions.len() < 2 {
                    return Err(VirRule::Nesting);
                }
                for v in self.regions.pop().unwrap_or_default().defined {
                    self.state[v.index()] = State::Ended;
                }
                return self.result(inst, None);
            }
            _ => {}
        }
        let result = self.operands(inst)?;
        self.result(inst, result)
    }

    fn open_loop(&mut self, inst: &Inst, step: Step) -> Result<(), VirRule> {
        self.args(inst, &[Expected::Is(Ty::Int), Expected::Is(Ty::Int)])?;
        let [counter, bound, ..] = inst.args;
        let grows = !matches!(step, Step::Elements(0) | Step::Vectors(0));
        // A counter that an outer loop grows would grow twice.
        let taken = self.regions.iter().filter_map(|region| region.control).flatten().any(|v| v == counter);
        if self.state[counter.index()] != State::Variable || !grows || taken {
            return Err(VirRule::Counter { value: counter });
        }
        self.regions.push(Region { defined: Vec::new(), control: Some([counter, bound]) });
        self.result(inst, None)
    }

    /// Checks and assigns the result.
    fn result(&mut self, inst: &Inst, ty: Option<Ty>) -> Result<(), VirRule> {
        let what = "the result";
        let (value, expected) = match (inst.dst.is_some(), ty) {
            (false, None) => return Ok(()),
            (true, Some(ty)) => (inst.dst, ty),
            (present, _) => return Err(VirRule::Presence { what, present }),
        };
        let found = self.ty(value)?;
        if !alike(found, expected) {
            return Err(VirRule::Type { what, expected, found });
        }
        if self.regions.iter().filter_map(|region| region.control).flatten().any(|v| v == value) {
            return Err(VirRule::LoopControl { value });
        }
        let state = &mut self.state[value.index()];
        match *state {
            State::Variable => return Ok(()),
            State::Undefined => {}
            State::Defined | State::Ended => return Err(VirRule::Redefined { value }),
        }
        *state = if inst.op == Op::Copy { State::Variable } else { State::Defined };
        if let Some(region) = self.regions.last_mut() {
            region.defined.push(value);
        }
        match inst.op {
            Op::Arg(0) => self.origins[value.index()] = Origin::Context,
            Op::Field(disp) if self.origin(inst.args[0]) == Origin::Context => {
                self.origins[value.index()] = match disp as usize {
                    at if at == offset_of!(Context, buffers) => Origin::Buffers,
                    at if at == offset_of!(Context, sizes) => Origin::Sizes,
                    _ => Origin::Other,
                };
            }
            Op::Const(bits) => self.numbers[value.index()] = Some(bits),
            _ => {}
        }
        Ok(())
    }

    fn origin(&self, v: V) -> Origin {
        self.origins.get(v.index()).copied().unwrap_or(Origin::Other)
    }

    /// Checks the operands of an instruction and gives the type of its result.
    fn operands(&self, inst: &Inst) -> Result<Option<Ty>, VirRule> {
        use Expected::{Is, Maybe};
        let (int, mask, ty) = (Ty::Int, Ty::Mask, inst.ty);
        let such = |valid: bool| if valid { Ok(()) } else { Err(VirRule::NoSuchOp { ty }) };
        let range =
            |what, value: i64, valid: bool| if valid { Ok(()) } else { Err(VirRule::OutOfRange { what, value }) };
        // Elements that are moved as they are fill a register: no vector has other lanes.
        such(self.f.packed == 0 || !is_vector(ty) || ty.lane_bytes() == usize::from(self.f.packed))?;
        Ok(Some(match inst.op {
            Op::Loop { .. } | Op::If | Op::End => return Ok(None),
            Op::Arg(n) => {
                range("the argument's number", n.into(), n < 3)?;
                self.args(inst, &[])?;
                int
            }
            Op::Number(_) => {
                self.args(inst, &[])?;
                int
            }
            Op::Local(at) => {
                range("the byte of local memory", at.into(), at < self.f.local_bytes)?;
                self.args(inst, &[])?;
                int
            }
            Op::Field(disp) => {
                self.args(inst, &[Is(int)])?;
                let room = match self.origin(inst.args[0]) {
                    Origin::Context => size_of::<Context>(),
                    Origin::Buffers => 8 * self.lengths[0],
                    Origin::Sizes => 8 * self.lengths[1],
                    Origin::Other => usize::MAX,
                };
                let inside = usize::try_from(disp).is_ok_and(|at| at.is_multiple_of(8) && at < room);
                range("the place of a field", disp.into(), inside)?;
                int
            }
            Op::Int(_) => {
                self.args(inst, &[Is(int), Is(int)])?;
                int
            }
            Op::Address { scale, .. } => {
                range("the scale", scale.into(), matches!(scale, 1 | 2 | 4 | 8))?;
                self.args(inst, &[Is(int), Maybe(int)])?;
                int
            }
            Op::AddLanes(_) | Op::MulLanes(_) => {
                self.args(inst, &[Is(int)])?;
                int
            }
            Op::Choose => {
                self.args(inst, &[Is(mask), Is(int), Is(int)])?;
                int
            }
            Op::FirstLane => {
                such(ty != int)?;
                self.args(inst, &[Is(ty)])?;
                int
            }
            Op::LoadInt { dtype, .. } => {
                such(is_whole_int(dtype))?;
                self.args(inst, &[Is(int), Maybe(int)])?;
                int
            }
            Op::StoreInt { dtype, .. } => {
                such(is_whole_int(dtype))?;
                self.args(inst, &[Is(int), Maybe(int), Is(int)])?;
                return Ok(None);
            }
            Op::Copy => {
                self.args(inst, &[Is(ty)])?;
                ty
            }
            Op::Transpose(bytes) => {
                range("the bytes of an element", bytes.into(), matches!(bytes, 1 | 2 | 4 | 8))?;
                self.args(inst, &[Is(int); 4])?;
                return Ok(None);
            }
            Op::Const(_) => {
                such(ty != int)?;
                self.args(inst, &[])?;
                ty
            }
            Op::Splat => {
                such(is_vector(ty))?;
                self.args(inst, &[Is(int)])?;
                ty
            }
            Op::LaneIndex(_) => {
                such(is_vector(ty) && !ty.is_float())?;
                self.args(inst, &[Is(int)])?;
                ty
            }
            Op::TailMask | Op::CompareInt(_) => {
                self.args(inst, &[Is(int), Is(int)])?;
                mask
            }
            Op::Load(m) => {
                self.memory(m, inst)?;
                such(moves(m, ty) || alike(ty, Ty::of(m.as_stored().dtype)))?;
                // One element fills every lane, and pairs are whole: neither is masked.
                let wants = [Is(int), index(m), Maybe(mask)];
                self.args(inst, &wants[..if matches!(m.access, Access::Single | Access::Pairs) { 2 } else { 3 }])?;
                ty
            }
            Op::Store(m) => {
                self.memory(m, inst)?;
                let widened = m.dtype == DType::I64 && ty == Ty::I32;
                such(widened || moves(m, ty) || alike(ty, Ty::of(m.as_stored().dtype)))?;
                self.args(inst, &[Is(int), index(m), Maybe(mask), Is(ty)])?;
                if m.access == Access::Pairs && inst.args[2].is_some() {
                    return Err(VirRule::Presence { what: NAMES[2], present: true });
                }
                return Ok(None);
            }
            Op::Bin(op) => {
                such(has_binary(op, ty))?;
                self.args(inst, &[Is(ty), Is(ty)])?;
                let bits = 8 * ty.lane_bytes() as u64;
                if let (BinOp::Shl | BinOp::Sar | BinOp::Shr, Some(by)) = (op, self.numbers[inst.args[1].index()]) {
                    range("the shift", by as i64, by < bits)?;
                }
                ty
            }
            Op::Fma(_) => {
                such(ty.is_float())?;
                self.args(inst, &[Is(ty); 3])?;
                ty
            }
            Op::Un(op) => {
                such(match op {
                    UnOp::Not => ty == mask,
                    UnOp::AbsInt => is_vector(ty) && !ty.is_float() && !is_packed(ty),
                    UnOp::OddToEven => ty == Ty::I32,
                    UnOp::Reverse => is_packed(ty),
                    UnOp::Sqrt | UnOp::Round | UnOp::Floor | UnOp::Ceil | UnOp::Trunc => ty.is_float(),
                })?;
                self.args(inst, &[Is(ty)])?;
                ty
            }
            Op::Compare(_) => {
                such(is_vector(ty))?;
                self.args(inst, &[Is(ty), Is(ty)])?;
                mask
            }
            Op::Select => {
                such(is_vector(ty))?;
                self.args(inst, &[Is(mask), Is(ty), Is(ty)])?;
                ty
            }
            Op::Convert(from) => {
                such(if from == int { ty.is_float() } else { is_vector(ty) && is_vector(from) && from != ty })?;
                self.args(inst, &[Is(from)])?;
                ty
            }
            Op::RoundTo(dtype) => {
                such(ty == Ty::F32 && matches!(dtype, DType::F16 | DType::Bf16))?;
                self.args(inst, &[Is(ty)])?;
                ty
            }
            Op::Permute => {
                such(is_vector(ty))?;
                self.args(inst, &[Is(ty), Is(ty.as_int())])?;
                ty
            }
            Op::PackBf16 => {
                such(ty == Ty::F32)?;
                self.args(inst, &[Is(ty), Is(ty)])?;
                Ty::I32
            }
            Op::Scale => {
                such(ty.is_float())?;
                self.args(inst, &[Is(ty), Is(ty)])?;
                ty
            }
            Op::Reduce(kind) => {
                such(is_vector(ty) || ty == mask && matches!(kind, Combine::Min | Combine::Max))?;
                self.args(inst, &[Is(ty)])?;
                ty
            }
            Op::Call(function) => {
                let (both, integers) = arity(function);
                such(ty.is_float() || is_vector(ty) && integers)?;
                let second = if both { Is(ty) } else { Maybe(ty) };
                let masked = inst.args[2].is_some();
                let wants = [Is(ty), second, Is(mask), Is(ty)];
                self.args(inst, &wants[..if masked { 4 } else { 2 }])?;
                ty
            }
            Op::CheckIndex => {
                such(ty == int || is_vector(ty) && !ty.is_float())?;
                self.args(inst, &[Is(ty), Is(int), Maybe(mask), Is(int)])?;
                ty
            }
        }))
    }

    /// Checks a memory operand by itself.
    fn memory(&self, m: Memory, inst: &Inst) -> Result<(), VirRule> {
        let sixteen = m.dtype.size_in_bits() == 16;
        if !m.dtype.size_in_bits().is_multiple_of(8)
            || matches!(m.dtype, DType::F8E4M3 | DType::F8E5M2)
            || m.access == Access::Pairs && !sixteen
        {
            return Err(VirRule::NoSuchOp { ty: inst.ty });
        }
        if m.vectors != 0 && !matches!(m.access, Access::Contiguous | Access::Pairs) {
            return Err(VirRule::OutOfRange { what: "the number of vectors further", value: m.vectors.into() });
        }
        Ok(())
    }
}

/// The index operand that an access has.
fn index(m: Memory) -> Expected {
    match m.access {
        Access::Indexed if m.wide_index => Expected::Is(Ty::I64),
        Access::Indexed => Expected::Is(Ty::I32),
        Access::Strided => Expected::Is(Ty::Int),
        Access::Contiguous | Access::Pairs | Access::Single => Expected::Maybe(Ty::Int),
    }
}

fn is_whole_int(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32 | DType::I64 | DType::Bool)
}

/// Whether the code generators have an operation for a type.
fn has_binary(op: BinOp, ty: Ty) -> bool {
    let logic = matches!(op, BinOp::And | BinOp::Or | BinOp::Xor | BinOp::AndNot);
    match op {
        _ if ty == Ty::Mask => logic,
        _ if !is_vector(ty) => false,
        BinOp::Div if !is_packed(ty) => ty != Ty::I64,
        BinOp::Shl | BinOp::Sar | BinOp::Shr if !is_packed(ty) => !ty.is_float(),
        BinOp::MinBytes => matches!(ty, Ty::I32 | Ty::I8),
        // What is only moved is not computed with.
        _ if is_packed(ty) => false,
        BinOp::MulEven | BinOp::ZipEven => ty == Ty::I32,
        _ => true,
    }
}

/// Whether a function has two operands, and whether it is defined for integers.
fn arity(function: ScalarFn) -> (bool, bool) {
    match function {
        ScalarFn::Unary(op) => (false, op.row().int.is_some()),
        ScalarFn::Binary(op) => (true, op.row().int.is_some()),
        ScalarFn::FloorDiv | ScalarFn::Modulo => (true, true),
        _ => (false, false),
    }
}
