//! Loop kernels ready to launch: code (or the portable executor), and the split of a launch into tasks for the pool.

use crate::choices::Choices;
use crate::emit::{Call, Emitted, emit};
use crate::features::Isa;
use crate::gemm::Scratch;
use crate::lower::{LowerError, Lowered, Options, Split, lower, split, stores_where_data_say, without_row};
use crate::memory::{Code, CodeArena, MemoryError};
use crate::pool;
use crate::portable::Portable;
use crate::regalloc::AllocationViolation;
use crate::saved::Piece;
use crate::small_vec::SmallVec;
use crate::vir::{Context, IndexRecord, VirViolation, verify};
use kiln_ir::verify::verifiers_run;
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Kernel, KernelBody, LoopBody};
use kiln_runtime::{LaunchError, RawBuffer};
use std::cell::RefCell;
use std::sync::{Mutex, OnceLock, PoisonError};

/// An error of compiling a loop kernel.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// It has no vector IR.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Its vector IR breaks a rule: a fault of this crate.
    #[error(transparent)]
    Vir(Box<VirViolation>),
    /// Its values are not where they are read from: a fault of this crate.
    #[error(transparent)]
    Allocation(Box<AllocationViolation>),
    /// The code could not be installed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A reduction of at most so many units is split where its rows are long.
const FEW_UNITS: i64 = 16;
/// The same, where tuning selects it.
const MOST_UNITS: i64 = 256;
/// The fewest points of a long row.
const LONG_ROW: i64 = 1 << 14;
/// The most parts of a row.
const MOST_PARTS: i64 = 64;

type Entry = unsafe extern "C" fn(*const Context, i64, i64);

enum Executor {
    Code { code: Code, calls: Vec<Call> },
    Portable(Portable),
}

/// The target and choices of code, and the code that is available from before.
#[derive(Clone, Copy)]
pub struct Build<'a> {
    /// The target.
    pub isa: Isa,
    /// The choices.
    pub options: Options,
    /// Code that need not be compiled again.
    pub ready: &'a [Piece],
}

impl Build<'_> {
    /// The code of a loop nest: the available one, or new code.
    pub fn compile(&self, kernel: &Kernel, body: &LoopBody) -> Result<LoopKernel, CompileError> {
        if !self.ready.is_empty() {
            let content = Piece::content_of(kernel, body, self.isa, self.options);
            let ready = self.ready.iter().find(|piece| piece.content == content);
            if let Some((piece, emitted)) = ready.and_then(|piece| Some((piece, piece.emitted()?))) {
                let executor = Executor::install(&emitted)?;
                let shape = Shape {
                    units: piece.units.clone(),
                    row: piece.row.clone(),
                    scratch: piece.scratch.clone(),
                    cost: piece.cost,
                    unit_is_lane: piece.unit_is_lane,
                };
                return Ok(LoopKernel::new(kernel, body, self.isa, self.options, executor, shape));
            }
        }
        LoopKernel::compile(kernel, body, self.isa, self.options)
    }
}

impl Executor {
    fn install(emitted: &Emitted) -> Result<Executor, MemoryError> {
        let code = if emitted.calls.is_empty() {
            CodeArena::global().install(&emitted.bytes)?
        } else {
            CodeArena::global().install(&emitted.linked())?
        };
        Ok(Executor::Code { code, calls: emitted.calls.clone() })
    }
}

/// How a launch is split.
struct Shape {
    units: Dim,
    row: Dim,
    scratch: Dim,
    /// Rough cost of a unit and row point, in units of 1/16 ns.
    cost: u64,
    unit_is_lane: bool,
}

/// A compiled loop kernel.
pub struct LoopKernel {
    kernel: Kernel,
    body: LoopBody,
    isa: Isa,
    options: Options,
    choices: Choices,
    executor: Executor,
    shape: Shape,
    /// Stores have data-dependent addresses, two of which may be equal: points are taken in order.
    in_order: bool,
    /// Set where every launch is one call on the caller's thread.
    small: Option<SingleCall>,
    /// The code for a row without points; compiled when first needed.
    rowless: OnceLock<Result<Box<LoopKernel>, CompileError>>,
    /// The code for few units with long rows; compiled when first needed, `None` where it cannot be.
    parts: OnceLock<Option<Box<Parts>>>,
}

/// A launch of known sizes that is not worth a second thread.
#[derive(Clone, Copy)]
struct SingleCall {
    units: i64,
    /// Bytes.
    scratch: usize,
}

/// A reduction in two kernels; see [`crate::lower::split`].
struct Parts {
    first: LoopKernel,
    second: LoopKernel,
    partials: Vec<DType>,
    length: Dim,
}

impl LoopKernel {
    /// Compiles a loop kernel's body for a target.
    pub fn compile(kernel: &Kernel, body: &LoopBody, isa: Isa, options: Options) -> Result<LoopKernel, CompileError> {
        let Lowered { function, units, row, scratch, weight, unit_is_lane } = lower(kernel, body, options.on(isa))?;
        if verifiers_run() {
            let checked = verify(&function, kernel.buffers.len(), kernel.sizes.len());
            checked.map_err(|violation| CompileError::Vir(Box::new(violation)))?;
        }
        // About two vector instructions per nanosecond.
        let lanes = match isa {
            Isa::Portable => 1,
            Isa::Avx2 => function.lanes(32) as u64,
            Isa::Avx512 => function.lanes(64) as u64,
        };
        let cost = (u64::from(weight.max(1)) * 8).div_ceil(lanes);
        let executor = match isa {
            Isa::Portable => Executor::Portable(Portable::new(function)),
            _ => {
                let emitted = emit(&function, isa);
                Executor::install(&emitted.map_err(|violation| CompileError::Allocation(Box::new(violation)))?)?
            }
        };
        let shape = Shape { units, row, scratch, cost, unit_is_lane };
        Ok(LoopKernel::new(kernel, body, isa, options, executor, shape))
    }

    fn new(
        kernel: &Kernel,
        body: &LoopBody,
        isa: Isa,
        options: Options,
        executor: Executor,
        shape: Shape,
    ) -> LoopKernel {
        let (kernel, body) = (kernel.clone(), body.clone());
        let choices = Choices::default();
        let in_order = stores_where_data_say(&body);
        let kernel = LoopKernel {
            kernel,
            body,
            isa,
            options,
            choices,
            executor,
            shape,
            in_order,
            small: None,
            rowless: OnceLock::new(),
            parts: OnceLock::new(),
        };
        kernel.choosing(choices)
    }

    /// The code in a form that another process can run; `None` without any.
    pub fn to_piece(&self) -> Option<Piece> {
        let Executor::Code { calls, .. } = &self.executor else { return None };
        let mut bytes = self.code().to_vec();
        for call in calls {
            bytes[call.at..call.at + 8].fill(0);
        }
        let Shape { units, row, scratch, cost, unit_is_lane } = &self.shape;
        Some(Piece {
            content: Piece::content_of(&self.kernel, &self.body, self.isa, self.options),
            bytes: bytes.into(),
            calls: calls.clone(),
            units: units.clone(),
            row: row.clone(),
            scratch: scratch.clone(),
            cost: *cost,
            unit_is_lane: *unit_is_lane,
        })
    }

    /// The same with some choices made about how launches are split.
    pub(crate) fn choosing(self, choices: Choices) -> LoopKernel {
        let chosen = LoopKernel { choices, ..self };
        LoopKernel { small: chosen.small(), ..chosen }
    }

    /// What a launch needs to know where it is always one call.
    fn small(&self) -> Option<SingleCall> {
        let size = |dim: &Dim| dim.as_const().filter(|n| *n >= 0);
        let (units, row, scratch) = (size(&self.shape.units)?, size(&self.shape.row)?, size(&self.shape.scratch)?);
        let whole = self.kernel.sizes.is_empty() && units > 0 && row > 0 && !self.in_parts(units, row);
        // As many threads as may be.
        (whole && self.pieces(units, row, usize::MAX) <= 1).then_some(SingleCall { units, scratch: scratch as usize })
    }

    /// Whether a reduction is run in parts, if it can be.
    fn in_parts(&self, units: i64, row: i64) -> bool {
        match self.choices.parts {
            Some(parts) => parts > 0 && units <= MOST_UNITS,
            None => units <= FEW_UNITS && row >= LONG_ROW && units.saturating_mul(row) >= LONG_ROW * 4,
        }
    }

    /// Bytes of machine code; 0 without any.
    pub fn code_bytes(&self) -> usize {
        match &self.executor {
            Executor::Code { code, .. } => code.len(),
            Executor::Portable(_) => 0,
        }
    }

    /// The machine code; empty without any.
    pub fn code(&self) -> &[u8] {
        match &self.executor {
            // SAFETY: installed code is readable and lives as long as `self`.
            Executor::Code { code, .. } => unsafe { std::slice::from_raw_parts(code.as_ptr(), code.len()) },
            Executor::Portable(_) => &[],
        }
    }

    /// The machine code as text; `None` without any.
    pub fn disassembly(&self) -> Option<String> {
        (!self.code().is_empty()).then(|| crate::disassembly::disassemble(self.code()))
    }

    /// The vector IR that the code was made of, as text.
    pub fn vector_ir(&self) -> Option<String> {
        lower(&self.kernel, &self.body, self.options.on(self.isa)).ok().map(|lowered| lowered.function.to_string())
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// As [`kiln_runtime::Executable::launch`].
    pub unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let wrong = |what, expected, got| LaunchError::WrongArguments { what, expected, got };
        if buffers.len() != self.kernel.buffers.len() {
            return Err(wrong("buffers", self.kernel.buffers.len(), buffers.len()));
        }
        if sizes.len() != self.kernel.sizes.len() {
            return Err(wrong("sizes", self.kernel.sizes.len(), sizes.len()));
        }
        if let Some(small) = &self.small {
            // SAFETY: the caller's promise.
            return unsafe { self.launch_small(small, buffers) };
        }
        if let Some(&value) = sizes.iter().find(|n| **n < 0) {
            return Err(LaunchError::BadSize { value });
        }
        let (units, row) = (self.eval(&self.shape.units, sizes)?, self.eval(&self.shape.row, sizes)?);
        if units == 0 {
            return Ok(());
        }
        if row == 0 && self.body.row.is_empty() {
            return Ok(());
        }
        if row == 0 {
            let made = self.rowless.get_or_init(|| {
                let body = without_row(&self.body);
                LoopKernel::compile(&self.kernel, &body, self.isa, self.options).map(Box::new)
            });
            return match made {
                // SAFETY: the same promise; what is left of the kernel touches no more memory than the whole.
                Ok(kernel) => unsafe { kernel.launch(buffers, sizes) },
                Err(_) => Err(LaunchError::BadSize { value: 0 }),
            };
        }
        if self.in_parts(units, row) {
            // SAFETY: the caller's promise.
            if let Some(done) = unsafe { self.launch_parts(buffers, sizes, units, row) } {
                return done;
            }
        }
        let scratch = self.eval(&self.shape.scratch, sizes)? as usize;
        let pointers: SmallVec<*mut u8> = buffers.iter().map(|b| b.ptr).collect();
        let bad: Mutex<Option<IndexRecord>> = Mutex::new(None);
        let failed: Mutex<Option<usize>> = Mutex::new(None);
        let shared = Shared(&pointers, sizes);
        let piece = |begin: i64, end: i64| {
            let shared = &shared;
            // SAFETY: pieces are disjoint parts of the grid, whose points are independent; the rest is the caller's promise.
            match unsafe { self.piece(shared, scratch, begin, end) } {
                Ok(record) if record.set != 0 => *bad.lock().unwrap_or_else(PoisonError::into_inner) = Some(record),
                Ok(_) => {}
                Err(bytes) => *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes),
            }
        };
        let threads = self.choices.threads_of(pool::threads());
        let pieces = self.pieces(units, row, threads);
        if pieces <= 1 {
            piece(0, units);
        } else {
            // Lanes are cut at multiples of 64, so that pieces begin with whole vectors and cache lines.
            let grain = if self.shape.unit_is_lane { 64 } else { 1 };
            let blocks = (units + grain - 1) / grain;
            pool::run(pieces as usize, threads, &|n| {
                let at = |n: i64| ((blocks as i128 * n as i128 / pieces as i128) as i64 * grain).min(units);
                let (begin, end) = (at(n as i64), at(n as i64 + 1));
                if begin < end {
                    piece(begin, end);
                }
            });
        }
        if let Some(bytes) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(LaunchError::OutOfMemory { bytes });
        }
        match bad.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(record) => Err(LaunchError::IndexOutOfRange { index: record.index, size: record.size }),
            None => Ok(()),
        }
    }

    /// Runs all of it in one call.
    ///
    /// # Safety
    /// As [`LoopKernel::launch`].
    unsafe fn launch_small(&self, small: &SingleCall, buffers: &[RawBuffer]) -> Result<(), LaunchError> {
        let pointers: SmallVec<*mut u8> = buffers.iter().map(|b| b.ptr).collect();
        // SAFETY: passed on from the caller.
        match unsafe { self.piece(&Shared(&pointers, &[]), small.scratch, 0, small.units) } {
            Ok(record) if record.set != 0 => {
                Err(LaunchError::IndexOutOfRange { index: record.index, size: record.size })
            }
            Ok(_) => Ok(()),
            Err(bytes) => Err(LaunchError::OutOfMemory { bytes }),
        }
    }

    /// Runs the whole grid on this thread, without checks. For kernels that are parts of others.
    ///
    /// # Safety
    /// The context holds what the kernel was compiled for, `sizes` are those it points to, none is 0, and the kernel needs no
    /// more scratch memory than the context has.
    pub unsafe fn call_whole(&self, context: &Context, sizes: &[i64]) {
        if let Ok(units) = self.eval(&self.shape.units, sizes) {
            // SAFETY: by the caller's promise.
            unsafe { self.call(context, 0, units) }
        }
    }

    /// Runs some units on this thread. Which points of the grid a unit stands for is the compiler's choice.
    ///
    /// # Safety
    /// The context holds what the kernel was compiled for, `begin..end` are units, and the row, if any, has points.
    unsafe fn call(&self, context: &Context, begin: i64, end: i64) {
        match &self.executor {
            Executor::Code { code, .. } => {
                // SAFETY: the code was made for this signature and lives as long as `self`.
                let entry: Entry = unsafe { std::mem::transmute(code.as_ptr()) };
                // SAFETY: by the caller's promise.
                unsafe { entry(context, begin, end) }
            }
            // SAFETY: by the caller's promise.
            Executor::Portable(portable) => unsafe { portable.run(context, begin, end) },
        }
    }

    /// Runs a reduction in parts; `None` where it is not worth it. Whether and how a row is split depends on sizes alone, so
    /// that results do not change with the number of threads.
    ///
    /// # Safety
    /// As [`LoopKernel::launch`].
    unsafe fn launch_parts(
        &self,
        buffers: &[RawBuffer],
        sizes: &[i64],
        units: i64,
        row: i64,
    ) -> Option<Result<(), LaunchError>> {
        let parts = self.parts.get_or_init(|| self.compile_parts().map(Box::new)).as_ref()?;
        let length = self.eval(&parts.length, sizes).ok()?;
        // Points of the row at one point of the axis that is split; whole vectors per part where it is the only axis.
        let points = (row / length.max(1)).max(1);
        let grain = if points == 1 { 64 } else { 1 };
        let least = (2048 / points).max(length / MOST_PARTS) + 1;
        let chunk = (least + grain - 1) / grain * grain;
        let count = (length + chunk - 1) / chunk;
        if count < 2 {
            return None;
        }
        let each = (units * count) as usize;
        let memory = Scratch::take::<u64>(parts.partials.len() * each);
        let partial = |i: usize| RawBuffer { ptr: memory.ptr::<u64>().wrapping_add(i * each).cast(), bytes: 8 * each };
        let all = buffers.iter().copied().chain((0..parts.partials.len()).map(partial));
        let buffers: SmallVec<RawBuffer> = all.collect();
        let sizes: SmallVec<i64> = sizes.iter().copied().chain([chunk, count]).collect();
        // SAFETY: the caller's promise; the partial results have room for one element per unit and part.
        Some(unsafe { parts.first.launch(&buffers, &sizes).and_then(|()| parts.second.launch(&buffers, &sizes)) })
    }

    fn compile_parts(&self) -> Option<Parts> {
        let Split { first, second, partials, length } = split(&self.kernel, &self.body)?;
        let compile = |kernel: &Kernel| match &kernel.body {
            KernelBody::Loop(body) => LoopKernel::compile(kernel, body, self.isa, self.options).ok(),
            _ => None,
        };
        Some(Parts { first: compile(&first)?, second: compile(&second)?, partials, length })
    }

    fn eval(&self, e: &Dim, sizes: &[i64]) -> Result<i64, LaunchError> {
        if let Some(c) = e.as_const() {
            return Ok(c);
        }
        let value = |s: Symbol| self.kernel.sizes.iter().position(|own| *own == s).map(|at| sizes[at]);
        e.eval(&value).ok_or(LaunchError::BadSize { value: i64::MAX })
    }

    /// The number of tasks of a launch: one below some microseconds of work, else a few per thread.
    fn pieces(&self, units: i64, row: i64, threads: usize) -> i64 {
        const WORTH: u64 = 8_000 * 16;
        let work = (units as u64).saturating_mul(row.max(1) as u64).saturating_mul(self.shape.cost);
        let most = if self.shape.unit_is_lane { units / 64 } else { units };
        if self.in_order {
            return 1;
        }
        if let Some(tasks) = self.choices.tasks.filter(|_| threads > 1) {
            return (tasks as i64).saturating_mul(i64::try_from(threads).unwrap_or(i64::MAX)).min(most);
        }
        if threads < 2 || work < WORTH {
            return 1;
        }
        ((work / (WORTH / 4)) as i64).min(i64::try_from(threads).unwrap_or(i64::MAX).saturating_mul(4)).min(most)
    }

    unsafe fn piece(&self, shared: &Shared<'_>, scratch: usize, begin: i64, end: i64) -> Result<IndexRecord, usize> {
        thread_local! {
            static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
        }
        let mut record = IndexRecord::default();
        let error = &raw mut record;
        let run = |scratch: *mut u8| {
            let context = Context { buffers: shared.0.as_ptr(), sizes: shared.1.as_ptr(), scratch, error };
            // SAFETY: by the caller's promise.
            unsafe { self.call(&context, begin, end) }
        };
        if scratch == 0 {
            run(std::ptr::null_mut());
            return Ok(record);
        }
        SCRATCH.with(|cell| {
            let lines = scratch.div_ceil(64);
            let mut area = cell.borrow_mut();
            if area.len() < lines {
                let more = lines - area.len();
                area.try_reserve_exact(more).map_err(|_| scratch)?;
                area.resize(lines, Line { _bytes: [0; 64] });
            }
            run(area.as_mut_ptr().cast());
            if area.len() > LINES_KEPT {
                *area = Vec::new();
            }
            Ok(record)
        })
    }
}

/// Lines of scratch memory that a thread keeps, 64 MiB of them: more are freed after the kernel.
const LINES_KEPT: usize = (64 << 20) / 64;

/// Scratch memory comes in cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// The arguments of every task of a launch.
struct Shared<'a>(&'a [*mut u8], &'a [i64]);

// SAFETY: the pointers are used under the promise of `launch`, which covers the pool's threads.
unsafe impl Sync for Shared<'_> {}
