//! Builds a [`Function`]: instructions are emitted in place, and hoisted to the outermost loop they can be in.
//!
//! Each open loop or part is a *region*. A pure instruction goes to the innermost region in which one of its operands is
//! defined, so everything that does not change inside a loop is computed before it. One table per region holds what was
//! computed there, so nothing is computed twice. Code may be hoisted out of a loop only because callers ensure that loops run
//! at least once in total (kernels with empty rows never get here).

use super::*;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A multiplicative hash: instructions are small and trusted.
#[derive(Default, Clone, Copy)]
pub struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, v: u8) {
        self.write_u64(v.into());
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// A map with the fast hash.
pub type FastMap<K, T> = HashMap<K, T, BuildHasherDefault<FastHasher>>;

/// Depth of a variable: wherever it is read.
const VARIABLE: u16 = u16::MAX;

struct Region {
    insts: Vec<Inst>,
    known: FastMap<Inst, V>,
    /// The instruction that opens it; absent for the function itself.
    open: Option<Inst>,
}

impl Region {
    fn new(open: Option<Inst>) -> Region {
        Region { insts: Vec::new(), known: FastMap::default(), open }
    }
}

/// See the module's text.
pub struct Builder {
    types: Vec<Ty>,
    depths: Vec<u16>,
    /// The instruction that defines a number or a vector constant, for folding.
    constants: FastMap<V, Op>,
    regions: Vec<Region>,
    local_bytes: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// An empty function.
    pub fn new() -> Builder {
        Builder {
            types: Vec::with_capacity(256),
            depths: Vec::with_capacity(256),
            constants: FastMap::default(),
            regions: vec![Region::new(None)],
            local_bytes: 0,
        }
    }

    fn fresh(&mut self, ty: Ty, depth: u16) -> V {
        self.types.push(ty);
        self.depths.push(depth);
        V(self.types.len() as u32 - 1)
    }

    /// The type of a value.
    pub fn ty(&self, v: V) -> Ty {
        self.types[v.index()]
    }

    /// How many loops and parts are open.
    pub fn depth(&self) -> usize {
        self.regions.len() - 1
    }

    fn depth_of(&self, v: V) -> usize {
        match self.depths[v.index()] {
            VARIABLE => self.depth(),
            d => d as usize,
        }
    }

    /// The region a value is defined in, counted from the outermost; smaller means that it changes less often.
    pub fn level(&self, v: V) -> usize {
        self.depth_of(v)
    }

    /// Emits a pure instruction, or finds the value it would compute.
    pub fn pure(&mut self, op: Op, ty: Ty, result: Ty, args: &[V]) -> V {
        let mut list = [V::NONE; 4];
        list[..args.len()].copy_from_slice(args);
        let depth = args.iter().filter(|v| v.is_some()).map(|&v| self.depth_of(v)).max().unwrap_or(0);
        let varies = args.iter().any(|v| v.is_some() && self.depths[v.index()] == VARIABLE);
        let key = Inst { op, ty, dst: V::NONE, args: list };
        if !varies && let Some(&v) = self.regions[depth].known.get(&key) {
            return v;
        }
        let dst = self.fresh(result, depth as u16);
        let region = &mut self.regions[depth];
        if !varies {
            region.known.insert(key, dst);
        }
        region.insts.push(Inst { dst, ..key });
        if matches!(op, Op::Number(_) | Op::Const(_)) {
            self.constants.insert(dst, op);
        }
        dst
    }

    /// Emits an instruction here that must not move or be shared, such as a load from memory that is also written.
    pub fn fixed(&mut self, op: Op, ty: Ty, result: Ty, args: &[V]) -> V {
        let mut list = [V::NONE; 4];
        list[..args.len()].copy_from_slice(args);
        let depth = self.depth() as u16;
        let dst = self.fresh(result, depth);
        self.here(Inst { op, ty, dst, args: list });
        dst
    }

    /// Emits an instruction without a result here.
    pub fn effect(&mut self, op: Op, ty: Ty, args: &[V]) {
        let mut list = [V::NONE; 4];
        list[..args.len()].copy_from_slice(args);
        self.here(Inst { op, ty, dst: V::NONE, args: list });
    }

    fn here(&mut self, inst: Inst) {
        self.regions.last_mut().expect("the function's own region is always open").insts.push(inst);
    }

    /// A new variable of the value's type that starts as that value.
    pub fn variable(&mut self, init: V) -> V {
        let ty = self.ty(init);
        let dst = self.fresh(ty, VARIABLE);
        self.here(Inst { op: Op::Copy, ty, dst, args: [init, V::NONE, V::NONE, V::NONE] });
        dst
    }

    /// The value a variable has here.
    pub fn read(&mut self, variable: V) -> V {
        let ty = self.ty(variable);
        self.fixed(Op::Copy, ty, ty, &[variable])
    }

    /// Assigns a variable. The instruction that has just computed `value` writes the variable directly if nothing else can
    /// have seen its result.
    pub fn assign(&mut self, variable: V, value: V) {
        let ty = self.ty(variable);
        let region = self.regions.last_mut().expect("the function's own region is always open");
        // Only instructions that read a variable are kept out of the table, and so cannot be found again.
        if let Some(last) = region.insts.last_mut()
            && last.dst == value
            && last.args.iter().any(|v| v.is_some() && self.depths[v.index()] == VARIABLE)
        {
            last.dst = variable;
            return;
        }
        self.here(Inst { op: Op::Copy, ty, dst: variable, args: [value, V::NONE, V::NONE, V::NONE] });
    }

    /// A counter for loops to come; inside a loop at the depth after next it is a plain value of that loop.
    pub fn counter(&mut self, start: V) -> V {
        let depth = self.regions.len() as u16;
        let dst = self.fresh(Ty::Int, depth);
        self.here(Inst { op: Op::Copy, ty: Ty::Int, dst, args: [start, V::NONE, V::NONE, V::NONE] });
        dst
    }

    /// Opens a loop over `counter`, made by [`Builder::counter`] in the region that is open now.
    pub fn open_loop(&mut self, counter: V, bound: V, inclusive: bool, step: Step) {
        let open = Inst {
            op: Op::Loop { inclusive, step },
            ty: Ty::Int,
            dst: V::NONE,
            args: [counter, bound, V::NONE, V::NONE],
        };
        self.regions.push(Region::new(Some(open)));
    }

    /// Opens a part that runs if `a < b`.
    pub fn open_if(&mut self, a: V, b: V) {
        let open = Inst { op: Op::If, ty: Ty::Int, dst: V::NONE, args: [a, b, V::NONE, V::NONE] };
        self.regions.push(Region::new(Some(open)));
    }

    /// Closes the innermost open loop or part.
    pub fn close(&mut self) {
        let region = self.regions.pop().expect("close matches an open");
        let open = region.open.expect("the function's own region is never closed");
        let parent = &mut self.regions.last_mut().expect("the function's own region is always open").insts;
        parent.reserve(region.insts.len() + 2);
        parent.push(open);
        parent.extend(region.insts);
        parent.push(Inst { op: Op::End, ty: Ty::Int, dst: V::NONE, args: [V::NONE; 4] });
    }

    /// The finished function: unused instructions are gone.
    pub fn finish(mut self) -> Function {
        assert_eq!(self.regions.len(), 1, "every region is closed");
        let insts = self.regions.pop().expect("checked above").insts;
        let depths = self.depths;
        let function = super::finish::finish(insts, self.types, &|v: V| depths[v.index()] == VARIABLE);
        Function { local_bytes: self.local_bytes, ..function }
    }

    /// The number a scalar is known to be.
    pub fn as_number(&self, v: V) -> Option<i64> {
        match self.constants.get(&v) {
            Some(Op::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// The bits a vector is known to hold in every lane.
    pub fn as_const(&self, v: V) -> Option<u64> {
        match self.constants.get(&v) {
            Some(Op::Const(bits)) => Some(*bits),
            _ => None,
        }
    }
}

/// Scalars.
impl Builder {
    /// A number.
    pub fn number(&mut self, n: i64) -> V {
        self.pure(Op::Number(n), Ty::Int, Ty::Int, &[])
    }

    /// A function argument.
    pub fn arg(&mut self, n: u8) -> V {
        self.pure(Op::Arg(n), Ty::Int, Ty::Int, &[])
    }

    /// The address of fresh memory of the function's own, of at most some KiB.
    pub fn local(&mut self, bytes: u32) -> V {
        let at = self.local_bytes;
        self.local_bytes += bytes.next_multiple_of(64);
        self.pure(Op::Local(at), Ty::Int, Ty::Int, &[])
    }

    /// 64 bits at `[base + disp]` that never change.
    pub fn field(&mut self, base: V, disp: i32) -> V {
        self.pure(Op::Field(disp), Ty::Int, Ty::Int, &[base])
    }

    /// Scalar arithmetic, folded where it can be.
    pub fn int(&mut self, op: IntOp, a: V, b: V) -> V {
        let (x, y) = (self.as_number(a), self.as_number(b));
        if let (Some(x), Some(y)) = (x, y) {
            return self.number(op.eval(x, y));
        }
        match (op, x, y) {
            (IntOp::Add, Some(0), _) | (IntOp::Mul, Some(1), _) => return b,
            (IntOp::Add | IntOp::Sub, _, Some(0)) | (IntOp::Mul | IntOp::FloorDiv, _, Some(1)) => return a,
            (IntOp::Mul, Some(0), _) | (IntOp::Mul, _, Some(0)) | (IntOp::Modulo, _, Some(1)) => return self.number(0),
            (IntOp::Add | IntOp::Mul | IntOp::Min | IntOp::Max, Some(_), None) => {
                return self.pure(Op::Int(op), Ty::Int, Ty::Int, &[b, a]);
            }
            _ => {}
        }
        self.pure(Op::Int(op), Ty::Int, Ty::Int, &[a, b])
    }

    /// `a + b · scale` as an address; `b` may be absent.
    pub fn address(&mut self, a: V, b: V, scale: u8, disp: i32) -> V {
        if let Some(n) = b.is_some().then(|| self.as_number(b)).flatten()
            && let Some(bytes) = n.checked_mul(scale.into()).and_then(|n| n.checked_add(disp.into()))
            && let Ok(disp) = i32::try_from(bytes)
        {
            return if disp == 0 { a } else { self.pure(Op::Address { scale: 1, disp }, Ty::Int, Ty::Int, &[a]) };
        }
        self.pure(Op::Address { scale, disp }, Ty::Int, Ty::Int, &[a, b])
    }

    /// `a + n · lanes`
    pub fn add_lanes(&mut self, a: V, n: i32) -> V {
        self.pure(Op::AddLanes(n), Ty::Int, Ty::Int, &[a])
    }

    /// `a · n · lanes`
    pub fn mul_lanes(&mut self, a: V, n: i32) -> V {
        self.pure(Op::MulLanes(n), Ty::Int, Ty::Int, &[a])
    }
}

impl IntOp {
    /// The operation on numbers; sums and products wrap.
    pub fn eval(self, a: i64, b: i64) -> i64 {
        match self {
            IntOp::Add => a.wrapping_add(b),
            IntOp::Sub => a.wrapping_sub(b),
            IntOp::Mul => a.wrapping_mul(b),
            IntOp::FloorDiv if b == 0 => 0,
            IntOp::Modulo if b == 0 => 0,
            IntOp::FloorDiv => {
                let q = a.wrapping_div(b);
                if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
            }
            IntOp::Modulo => {
                let r = a.wrapping_rem(b);
                if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
            }
            IntOp::Min => a.min(b),
            IntOp::Max => a.max(b),
        }
    }
}

/// Vectors.
impl Builder {
    /// Bits in every lane.
    pub fn bits(&mut self, ty: Ty, bits: u64) -> V {
        self.pure(Op::Const(bits), ty, ty, &[])
    }

    /// A number in every lane, rounded to the type.
    pub fn splat(&mut self, ty: Ty, value: f64) -> V {
        let bits = match ty {
            Ty::F32 => u64::from((value as f32).to_bits()),
            Ty::F64 => value.to_bits(),
            Ty::I32 => value as i32 as u32 as u64,
            Ty::I64 => value as i64 as u64,
            Ty::I16 => u64::from(value as i16 as u16),
            Ty::I8 => u64::from(value as i8 as u8),
            Ty::Mask | Ty::Int => (value != 0.0) as u64,
        };
        self.bits(ty, bits)
    }

    /// `a ∘ b`
    pub fn bin(&mut self, op: BinOp, ty: Ty, a: V, b: V) -> V {
        if ty == Ty::Mask {
            return self.mask_bin(op, a, b);
        }
        self.pure(Op::Bin(op), ty, ty, &[a, b])
    }

    fn mask_bin(&mut self, op: BinOp, a: V, b: V) -> V {
        let truth = |b: &Builder, v| b.as_const(v).map(|bits| bits != 0);
        match (op, truth(self, a), truth(self, b)) {
            (BinOp::And, Some(true), _) | (BinOp::Or | BinOp::Xor, Some(false), _) => b,
            (BinOp::And, _, Some(true)) | (BinOp::Or | BinOp::Xor, _, Some(false)) => a,
            (BinOp::And, Some(false), _) | (BinOp::Or, Some(true), _) => a,
            (BinOp::And, _, Some(false)) | (BinOp::Or, _, Some(true)) => b,
            _ => self.pure(Op::Bin(op), Ty::Mask, Ty::Mask, &[a, b]),
        }
    }

    /// Fused product and sum.
    pub fn fma_op(&mut self, op: FmaOp, ty: Ty, a: V, b: V, c: V) -> V {
        self.pure(Op::Fma(op), ty, ty, &[a, b, c])
    }

    /// `a · b + c`, rounded once
    pub fn fma(&mut self, ty: Ty, a: V, b: V, c: V) -> V {
        self.fma_op(FmaOp::Add, ty, a, b, c)
    }

    /// `c − a · b`, rounded once
    pub fn fnma(&mut self, ty: Ty, a: V, b: V, c: V) -> V {
        self.fma_op(FmaOp::NegAdd, ty, a, b, c)
    }

    /// A function of one operand.
    pub fn un(&mut self, op: UnOp, ty: Ty, a: V) -> V {
        self.pure(Op::Un(op), ty, ty, &[a])
    }

    /// A comparison of vectors.
    pub fn compare(&mut self, op: CompareOp, ty: Ty, a: V, b: V) -> V {
        self.pure(Op::Compare(op), ty, Ty::Mask, &[a, b])
    }

    /// `mask ? a : b`
    pub fn select(&mut self, ty: Ty, mask: V, a: V, b: V) -> V {
        match self.as_const(mask) {
            Some(0) => b,
            Some(_) => a,
            None if a == b => a,
            None if ty == Ty::Mask => {
                let yes = self.bin(BinOp::And, Ty::Mask, mask, a);
                let no = self.bin(BinOp::AndNot, Ty::Mask, mask, b);
                self.bin(BinOp::Or, Ty::Mask, yes, no)
            }
            None => self.pure(Op::Select, ty, ty, &[mask, a, b]),
        }
    }

    /// Conversion of vectors.
    pub fn convert(&mut self, to: Ty, from: Ty, a: V) -> V {
        if to == from {
            return a;
        }
        self.pure(Op::Convert(from), to, to, &[a])
    }

    /// `a + b`
    pub fn add(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Add, ty, a, b)
    }
    /// `a − b`
    pub fn sub(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Sub, ty, a, b)
    }
    /// `a · b`
    pub fn mul(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Mul, ty, a, b)
    }
    /// `a / b`
    pub fn div(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Div, ty, a, b)
    }
    /// Bits of both.
    pub fn and(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::And, ty, a, b)
    }
    /// Bits of either.
    pub fn or(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Or, ty, a, b)
    }
    /// Bits of one but not both.
    pub fn xor(&mut self, ty: Ty, a: V, b: V) -> V {
        self.bin(BinOp::Xor, ty, a, b)
    }
    /// Shift by a constant.
    pub fn shift(&mut self, op: BinOp, ty: Ty, a: V, by: u32) -> V {
        let by = self.bits(ty.as_int(), by.into());
        self.bin(op, ty.as_int(), a, by)
    }
    /// Opposite of a mask.
    pub fn not(&mut self, mask: V) -> V {
        match self.as_const(mask) {
            Some(bits) => self.bits(Ty::Mask, (bits == 0).into()),
            None => self.un(UnOp::Not, Ty::Mask, mask),
        }
    }
}
