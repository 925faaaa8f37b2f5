//! Runs vector IR without generating code: one instruction at a time over a block of lanes. It is what other processors
//! than x86-64 use, and what the code generator is compared with everywhere.

mod ops;

use crate::element;
use crate::vir::*;
use ops::{binary, compare, convert, fused, reduce, unary};

/// Lanes of a vector here. Any number would do; sixteen amortise the dispatch well enough.
pub const LANES: usize = 16;

type Lanes = [u64; LANES];

/// A function made ready to run: brackets know their partners.
#[derive(Debug)]
pub struct Portable {
    function: Function,
    /// For each instruction that opens or closes: the index of its partner.
    partner: Vec<usize>,
}

impl Portable {
    /// Makes a function ready.
    pub fn new(function: Function) -> Portable {
        let mut partner = vec![0; function.insts.len()];
        let mut open = Vec::new();
        for (at, inst) in function.insts.iter().enumerate() {
            match inst.op {
                Op::Loop { .. } | Op::If => open.push(at),
                Op::End => {
                    let from = open.pop().expect("brackets match");
                    partner[from] = at;
                    partner[at] = from;
                }
                _ => {}
            }
        }
        Portable { function, partner }
    }

    /// The function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Runs the function.
    ///
    /// # Safety
    /// As the generated code: everything the function reads and writes through `context` must be valid for it.
    pub unsafe fn run(&self, context: *const Context, begin: i64, end: i64) {
        let values = self.function.types.len();
        let mut machine = Machine {
            types: &self.function.types,
            ints: vec![0; values],
            vectors: vec![[0; LANES]; values],
            args: [context as i64, begin, end],
            local: vec![0; self.function.local_bytes as usize],
        };
        let mut at = 0;
        while let Some(inst) = self.function.insts.get(at) {
            let [a, b, ..] = inst.args;
            match inst.op {
                Op::Loop { inclusive, .. } => {
                    let (x, y) = (machine.int(a), machine.int(b));
                    if !(x < y || inclusive && x == y) {
                        at = self.partner[at];
                    }
                }
                Op::If => {
                    if machine.int(a) >= machine.int(b) {
                        at = self.partner[at];
                    }
                }
                Op::End => {
                    let open = self.partner[at];
                    let from = &self.function.insts[open];
                    if let Op::Loop { inclusive, step } = from.op {
                        let grow = match step {
                            Step::Elements(n) => n as i64,
                            Step::Vectors(n) => n as i64 * LANES as i64,
                        };
                        let counter = &mut machine.ints[from.args[0].index()];
                        *counter += grow;
                        let (x, y) = (*counter, machine.int(from.args[1]));
                        if x < y || inclusive && x == y {
                            at = open;
                        }
                    }
                }
                // SAFETY: by the caller's promise.
                _ => unsafe { machine.step(inst) },
            }
            at += 1;
        }
    }
}

struct Machine<'a> {
    types: &'a [Ty],
    ints: Vec<i64>,
    vectors: Vec<Lanes>,
    args: [i64; 3],
    local: Vec<u8>,
}

impl Machine<'_> {
    fn int(&self, v: V) -> i64 {
        self.ints[v.index()]
    }

    fn vector(&self, v: V) -> &Lanes {
        &self.vectors[v.index()]
    }

    /// The mask, where there is one.
    fn mask(&self, v: V) -> Lanes {
        if v.is_some() { *self.vector(v) } else { [1; LANES] }
    }

    /// # Safety
    /// See [`Portable::run`].
    unsafe fn step(&mut self, inst: &Inst) {
        let [a, b, c, d] = inst.args;
        if inst.dst.is_some() && self.types[inst.dst.index()] == Ty::Int {
            // SAFETY: by the caller's promise.
            self.ints[inst.dst.index()] = unsafe { self.scalar(inst) };
            return;
        }
        let ty = inst.ty;
        let out: Lanes = match inst.op {
            Op::StoreInt { dtype, disp } => {
                // SAFETY: by the caller's promise.
                unsafe {
                    let at = (self.int(a) as *mut u8).offset(disp as isize);
                    let index = if b.is_some() { self.int(b) } else { 0 };
                    element::write(dtype, at, index, self.int(c) as u64);
                }
                return;
            }
            Op::Transpose(bytes) => {
                let f = transpose(bytes.into(), false);
                // SAFETY: by the caller's promise.
                unsafe { f(self.int(a) as *const u8, self.int(b), self.int(c) as *mut u8, self.int(d) as u64, LANES) };
                return;
            }
            Op::Store(m) => {
                // SAFETY: by the caller's promise.
                unsafe { self.store(m, inst) };
                return;
            }
            // SAFETY: by the caller's promise.
            Op::Load(m) => unsafe { self.load(m, inst) },
            Op::Const(bits) => [bits; LANES],
            Op::Copy => *self.vector(a),
            Op::Splat => [narrow(ty, self.int(a)); LANES],
            Op::LaneIndex(vectors) => {
                let start = self.int(a) + vectors as i64 * LANES as i64;
                std::array::from_fn(|i| narrow(ty, start + i as i64))
            }
            Op::TailMask => {
                let (start, end) = (self.int(a), self.int(b));
                std::array::from_fn(|i| (start + (i as i64) < end).into())
            }
            Op::CompareInt(op) => [compare(op, Ty::I64, self.int(a) as u64, self.int(b) as u64); LANES],
            Op::Bin(op) => binary(op, ty, self.vector(a), self.vector(b)),
            Op::Fma(op) => fused(op, ty, self.vector(a), self.vector(b), self.vector(c)),
            Op::Un(op) => unary(op, ty, self.vector(a)),
            Op::Compare(op) => {
                let (x, y) = (self.vector(a), self.vector(b));
                std::array::from_fn(|i| compare(op, ty, x[i], y[i]))
            }
            Op::Select => {
                let (m, x, y) = (self.vector(a), self.vector(b), self.vector(c));
                std::array::from_fn(|i| if m[i] != 0 { x[i] } else { y[i] })
            }
            Op::Convert(Ty::Int) => [convert(ty, Ty::I64, self.int(a) as u64); LANES],
            Op::Convert(from) => self.vector(a).map(|x| convert(ty, from, x)),
            Op::RoundTo(dtype) => self.vector(a).map(|x| element::round(dtype, x as u32).into()),
            Op::Permute => {
                let (x, lanes) = (self.vector(a), self.vector(b));
                std::array::from_fn(|i| x[lanes[i] as usize % LANES])
            }
            Op::PackBf16 => {
                let (x, y) = (self.vector(a), self.vector(b));
                let round = |v: u64| u64::from(element::round(DType::Bf16, v as u32));
                std::array::from_fn(|i| round(x[i]) >> 16 | round(y[i]))
            }
            Op::Scale => {
                let (x, y) = (self.vector(a), self.vector(b));
                std::array::from_fn(|i| ops::scale(ty, x[i], y[i]))
            }
            Op::Reduce(kind) => [reduce(kind, ty, self.vector(a)); LANES],
            Op::Call(f) => {
                let (x, y) = (*self.vector(a), if b.is_some() { *self.vector(b) } else { [0; LANES] });
                let mask = self.mask(c);
                let other = if c.is_some() { *self.vector(d) } else { x };
                std::array::from_fn(|i| if mask[i] != 0 { ops::call(f, ty, x[i], y[i]) } else { other[i] })
            }
            Op::CheckIndex => {
                let (size, record) = (self.int(b), self.int(d));
                let active = self.mask(c);
                let values = *self.vector(a);
                std::array::from_fn(|i| {
                    let index = convert(Ty::I64, ty, values[i]) as i64;
                    // SAFETY: by the caller's promise.
                    unsafe { check_index(index, size, active[i] != 0, record) as u64 }
                })
            }
            _ => unreachable!("{inst} gives no vector"),
        };
        self.vectors[inst.dst.index()] = out;
    }

    /// # Safety
    /// See [`Portable::run`].
    unsafe fn scalar(&mut self, inst: &Inst) -> i64 {
        let [a, b, c, d] = inst.args;
        match inst.op {
            Op::Arg(n) => self.args[n as usize],
            Op::Number(n) => n,
            Op::Local(at) => self.local.as_mut_ptr().wrapping_add(at as usize) as i64,
            // SAFETY: by the caller's promise.
            Op::Field(disp) => unsafe {
                (self.int(a) as *const u8).offset(disp as isize).cast::<i64>().read_unaligned()
            },
            Op::Int(op) => op.eval(self.int(a), self.int(b)),
            Op::Address { scale, disp } => {
                let index = if b.is_some() { self.int(b).wrapping_mul(scale.into()) } else { 0 };
                self.int(a).wrapping_add(index).wrapping_add(disp.into())
            }
            Op::MulLanes(n) => self.int(a) * n as i64 * LANES as i64,
            Op::AddLanes(n) => self.int(a) + n as i64 * LANES as i64,
            Op::Choose => self.int(if self.vector(a)[0] != 0 { b } else { c }),
            Op::Copy => self.int(a),
            Op::FirstLane => convert(Ty::I64, inst.ty, self.vector(a)[0]) as i64,
            Op::LoadInt { dtype, disp } => {
                // SAFETY: by the caller's promise.
                let bits = unsafe {
                    let at = (self.int(a) as *const u8).offset(disp as isize);
                    element::read(dtype, at, if b.is_some() { self.int(b) } else { 0 })
                };
                if dtype == DType::I64 { bits as i64 } else { bits as i32 as i64 }
            }
            // SAFETY: by the caller's promise.
            Op::CheckIndex => unsafe {
                let active = self.mask(c)[0] != 0;
                check_index(self.int(a), self.int(b), active, self.int(d))
            },
            _ => unreachable!("{inst} gives no scalar"),
        }
    }

    /// Base and per-lane element index of a memory operand.
    fn addresses(&self, m: Memory, inst: &Inst) -> (*mut u8, [i64; LANES]) {
        let [a, b, ..] = inst.args;
        let base = self.int(a).wrapping_add(m.disp.into()) as *mut u8;
        let index = match m.access {
            Access::Indexed => {
                let from = if m.wide_index { Ty::I64 } else { Ty::I32 };
                self.vector(b).map(|x| convert(Ty::I64, from, x) as i64)
            }
            // Counted in 32-bit lanes from where the elements start.
            Access::Pairs => {
                let start = if b.is_some() { self.int(b) } else { 0 } + m.vectors as i64 * LANES as i64;
                return ((base as i64).wrapping_add(2 * start) as *mut u8, std::array::from_fn(|i| i as i64));
            }
            Access::Contiguous => {
                let start = if b.is_some() { self.int(b) } else { 0 } + m.vectors as i64 * LANES as i64;
                std::array::from_fn(|i| start + i as i64)
            }
            Access::Strided => {
                let stride = self.int(b);
                std::array::from_fn(|i| stride * i as i64)
            }
            Access::Single => [if b.is_some() { self.int(b) } else { 0 }; LANES],
        };
        (base, index)
    }

    unsafe fn load(&self, m: Memory, inst: &Inst) -> Lanes {
        let (base, index) = self.addresses(m, inst);
        let m = m.as_stored();
        let mask = self.mask(inst.args[2]);
        std::array::from_fn(|i| {
            if mask[i] == 0 {
                return 0;
            }
            // SAFETY: by the caller's promise, where the mask is true.
            let bits = unsafe { element::read(m.dtype, base, index[i]) };
            // A short integer in memory may be wanted as a 64-bit one.
            if inst.ty == Ty::I64 && m.dtype != DType::I64 { bits as i32 as i64 as u64 } else { bits }
        })
    }

    unsafe fn store(&self, m: Memory, inst: &Inst) {
        let (base, index) = self.addresses(m, inst);
        let m = m.as_stored();
        let mask = self.mask(inst.args[2]);
        let value = self.vector(inst.args[3]);
        let lanes = if m.access == Access::Single { 1 } else { LANES };
        for i in (0..lanes).filter(|&i| mask[i] != 0) {
            let bits = if m.dtype == DType::I64 { convert(Ty::I64, inst.ty, value[i]) } else { value[i] };
            // SAFETY: by the caller's promise, where the mask is true.
            unsafe { element::write(m.dtype, base, index[i], bits) };
        }
    }
}

fn narrow(ty: Ty, x: i64) -> u64 {
    if ty == Ty::I32 { u64::from(x as u32) } else { x as u64 }
}

unsafe fn check_index(index: i64, size: i64, active: bool, record: i64) -> i64 {
    if (0..size).contains(&index) {
        return index;
    }
    if active {
        // SAFETY: the caller's record is valid and this thread's own.
        unsafe { (record as *mut IndexRecord).write(IndexRecord { set: 1, index, size }) };
    }
    0
}
