//! Verifier of kernels: the contract that [`crate::kernel`] states, rule by rule.
//!
//! ```text
//!  scope    buffers, values, temporaries and symbols: declared, in range, defined before use, visible where they are used
//!  insts    dtypes of every instruction, order of loads and stores
//!  views    attention and routines: ranks, dtypes and accesses of strided views
//!  repeat   loops: launches that are kernels, and refer to what there is
//!  bounds   addresses of a launch that are outside of their buffer for all sizes
//! ```

mod bounds;
mod insts;
mod repeat;
mod scope;
mod views;

pub(super) use bounds::bounds;

use crate::kernel::{Access, Axis, Domain, Inst, Kernel, KernelBody, LoopBody, MatmulBody, Precision, ValueId};
use crate::schedule::BufferId;
use insts::Checker;
use kiln_ir::{DType, Dim, Symbol};
use scope::Scope;
use std::fmt;

/// A rule that a kernel breaks, and where. Always a fault of the scheduler, or of bytes that were changed on disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {rule}")]
pub struct KernelViolation {
    /// The part of the kernel.
    pub at: Location,
    /// The rule that is violated.
    pub rule: Rule,
}

/// A place in a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The part of the body.
    pub part: Part,
    /// The number of the instruction or reduction in its part, and its text.
    pub inst: Option<(usize, String)>,
}

/// A part of a kernel's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The kernel as a whole: its buffers, sizes and axes; attention and routines.
    Kernel,
    /// A stage of a loop.
    Stage(usize),
    /// The reductions of a stage.
    Reductions(usize),
    /// The prologue of a product's left operand.
    Lhs,
    /// The prologue of a product's right operand.
    Rhs,
    /// The epilogue of a product.
    Epilogue,
}

impl Part {
    /// What its instructions are called.
    fn unit(self) -> &'static str {
        match self {
            Part::Reductions(_) => "reduction",
            _ => "instruction",
        }
    }
}

impl Location {
    fn of(part: Part, number: usize, inst: &Inst) -> Location {
        Location { part, inst: Some((number, inst.to_string())) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Kernel => f.write_str("kernel")?,
            Part::Stage(stage) => write!(f, "stage {stage}")?,
            Part::Reductions(stage) => write!(f, "stage {stage}")?,
            Part::Lhs => f.write_str("left prologue")?,
            Part::Rhs => f.write_str("right prologue")?,
            Part::Epilogue => f.write_str("epilogue")?,
        }
        match &self.inst {
            Some((number, text)) => write!(f, ", {} {number} ({text})", self.part.unit()),
            None => Ok(()),
        }
    }
}

/// A rule of kernels that is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A buffer number that is too large.
    #[error("buffer {buffer} of {buffers}")]
    UnknownBuffer {
        /// The number.
        buffer: usize,
        /// The number of buffers.
        buffers: usize,
    },
    /// A buffer is read or written against its declaration.
    #[error("buffer {buffer} is {}, but declared {access:?}", if *written { "written" } else { "read" })]
    Access {
        /// The buffer.
        buffer: usize,
        /// The declared access.
        access: Access,
        /// Whether the kernel writes it.
        written: bool,
    },
    /// A buffer that is declared as written has no store.
    #[error("buffer {buffer} is declared as written and never stored to")]
    NeverWritten {
        /// The buffer.
        buffer: usize,
    },
    /// A value is defined twice.
    #[error("{value} is defined again")]
    Redefined {
        /// The value.
        value: ValueId,
    },
    /// A value is not numbered in the order of definition.
    #[error("{value} is defined after {last}")]
    Numbering {
        /// The value.
        value: ValueId,
        /// A larger number before it.
        last: ValueId,
    },
    /// A value is used that nothing before defines.
    #[error("{value} is used before it is defined")]
    Undefined {
        /// The value.
        value: ValueId,
    },
    /// A value of a row stage is used in another stage.
    #[error("{value} is a value of stage {stage}, which ends with it")]
    NotVisible {
        /// The value.
        value: ValueId,
        /// The stage that defines it.
        stage: usize,
    },
    /// A type that values do not have.
    #[error("{dtype} is not a compute type")]
    NotCompute {
        /// The type.
        dtype: DType,
    },
    /// A value or buffer of another type than the rule says.
    #[error("{what} is {found}, expected {expected}")]
    DType {
        /// What has the type, as text.
        what: &'static str,
        /// The type that it should have.
        expected: DType,
        /// The type that it has.
        found: DType,
    },
    /// An op that does not exist for a type.
    #[error("{op} of {dtype}")]
    NoSuchOp {
        /// The op.
        op: &'static str,
        /// The type.
        dtype: DType,
    },
    /// A symbol that is neither a size of the kernel nor a variable of an open axis.
    #[error("{symbol} in {dim} is no size and no variable here")]
    UnknownSymbol {
        /// The symbol.
        symbol: Symbol,
        /// The expression.
        dim: Dim,
    },
    /// An expression without a value.
    #[error("an expression is undefined")]
    UndefinedDim,
    /// Two axes or sizes with one symbol.
    #[error("{symbol} names two axes or sizes")]
    DuplicateSymbol {
        /// The symbol.
        symbol: Symbol,
    },
    /// An axis with one step.
    #[error("the axis {var} has size one")]
    UnitAxis {
        /// Its variable.
        var: Symbol,
    },
    /// A load after a store in one stage.
    #[error("a load of buffer {buffer} after a store in the same stage")]
    LoadAfterStore {
        /// The buffer that is loaded.
        buffer: usize,
    },
    /// A temporary number that is too large.
    #[error("temporary {temp} of {temps}")]
    UnknownTemp {
        /// The number.
        temp: usize,
        /// The number of temporaries.
        temps: usize,
    },
    /// A temporary is read before it is written.
    #[error("temporary {temp} is read before it is written")]
    UnwrittenTemp {
        /// The number.
        temp: usize,
    },
    /// A buffer that one of several parallel bodies writes and another one touches.
    #[error("buffer {buffer} is written by one of the parallel bodies and touched by another")]
    Shared {
        /// The number of the argument.
        buffer: usize,
    },
    /// An instruction in a part that does not have it.
    #[error("{what} does not belong here")]
    Misplaced {
        /// The instruction, as text.
        what: &'static str,
    },
    /// A list of another length than the rule says.
    #[error("{what}: {found}, expected {expected}")]
    Count {
        /// What is counted, as text.
        what: &'static str,
        /// The number there should be.
        expected: usize,
        /// The number there is.
        found: usize,
    },
    /// A place that is outside of its buffer for all sizes. Only launches know how large buffers are.
    #[error("element {position} of {buffer}, which has {elements}")]
    Outside {
        /// The buffer of the schedule.
        buffer: BufferId,
        /// An element that is touched.
        position: Dim,
        /// The number of elements of the buffer.
        elements: Dim,
    },
    /// A number out of its range.
    #[error("{what} is {value}")]
    OutOfRange {
        /// What is out of range, as text.
        what: &'static str,
        /// Its value.
        value: Dim,
    },
}

impl Kernel {
    /// Checks every rule of the contract in [`crate::kernel`] that does not depend on a launch.
    ///
    /// ```
    /// use kiln_kernels::kernel::{Access, BufferArg, Kernel, KernelBody, LoopBody};
    /// let body = LoopBody { grid: vec![], row: vec![], stages: vec![], temps: vec![] };
    /// let buffers = vec![BufferArg { dtype: kiln_ir::DType::F32, access: Access::Write }];
    /// let kernel = Kernel { buffers, sizes: vec![], body: KernelBody::Loop(body) };
    /// assert_eq!(kernel.verify().unwrap_err().to_string(), "kernel: buffer 0 is declared as written and never stored to");
    /// ```
    pub fn verify(&self) -> Result<(), KernelViolation> {
        let mut written = vec![false; self.buffers.len()];
        match &self.body {
            KernelBody::Parallel(bodies) => verify_parallel(self, bodies, &mut written)?,
            body => verify_body(self, body, &mut written)?,
        }
        let never = |(decl, written): (&crate::kernel::BufferArg, &bool)| decl.access != Access::Read && !written;
        match self.buffers.iter().zip(&written).position(never) {
            Some(buffer) => Err(of_kernel(Rule::NeverWritten { buffer })),
            None => Ok(()),
        }
    }
}

fn of_kernel(rule: Rule) -> KernelViolation {
    KernelViolation { at: Location { part: Part::Kernel, inst: None }, rule }
}

fn verify_body(kernel: &Kernel, body: &KernelBody, written: &mut [bool]) -> Result<(), KernelViolation> {
    match body {
        KernelBody::Loop(body) => {
            let mut scope = Scope::new(kernel, &[&body.grid, &body.row]).map_err(of_kernel)?;
            verify_stages(kernel, body, &mut scope, written).map(|_| ())
        }
        KernelBody::Matmul(body) => verify_matmul(kernel, body, written),
        KernelBody::Attention(body) => views::attention(kernel, body, written).map_err(of_kernel),
        KernelBody::AttentionBackward(body) => views::attention_backward(kernel, body, written).map_err(of_kernel),
        KernelBody::Routine(body) => views::routine(kernel, body, written).map_err(of_kernel),
        KernelBody::Repeat(body) => repeat::verify(kernel, body, written),
        KernelBody::Parallel(_) => Err(of_kernel(Rule::Misplaced { what: "parallel bodies in one of them" })),
    }
}

/// Two bodies or more, and what one writes no other touches.
fn verify_parallel(kernel: &Kernel, bodies: &[KernelBody], written: &mut [bool]) -> Result<(), KernelViolation> {
    if bodies.len() < 2 {
        let rule = Rule::Count { what: "parallel bodies", expected: 2, found: bodies.len() };
        return Err(of_kernel(rule));
    }
    let mut touched: Vec<Option<usize>> = vec![None; kernel.buffers.len()];
    for (number, body) in bodies.iter().enumerate() {
        let mut own = vec![false; kernel.buffers.len()];
        verify_body(kernel, body, &mut own)?;
        for buffer in body.buffers() {
            let shared = *touched[buffer].get_or_insert(number) != number;
            if shared && kernel.buffers[buffer].access != Access::Read {
                return Err(of_kernel(Rule::Shared { buffer }));
            }
        }
        written.iter_mut().zip(&own).for_each(|(all, own)| *all |= own);
    }
    Ok(())
}

fn verify_stages<'k>(
    kernel: &'k Kernel,
    body: &LoopBody,
    scope: &mut Scope<'k>,
    written: &mut [bool],
) -> Result<Vec<bool>, KernelViolation> {
    if body.row.is_empty()
        && let Some(stage) = body.stages.iter().position(|stage| stage.domain == Domain::Row)
    {
        let at = Location { part: Part::Stage(stage), inst: None };
        return Err(KernelViolation { at, rule: Rule::Misplaced { what: "a stage over a row without axes" } });
    }
    if let Some(dtype) = body.temps.iter().find(|dtype| dtype.compute_type() != **dtype) {
        return Err(of_kernel(Rule::NotCompute { dtype: *dtype }));
    }
    let mut temps = vec![false; body.temps.len()];
    for (number, stage) in body.stages.iter().enumerate() {
        let is_row = stage.domain == Domain::Row;
        let axes: &[&[Axis]] = if is_row { &[&body.grid, &body.row] } else { &[&body.grid] };
        scope.open(number, is_row, axes);
        let mut checker = Checker::new(kernel, scope, written, Part::Stage(number));
        checker.temps = is_row.then_some((&body.temps, &mut temps));
        checker.run(&stage.insts)?;
        let part = Part::Reductions(number);
        for (at, reduction) in stage.reductions.iter().enumerate() {
            let located =
                |rule| KernelViolation { at: Location { part, inst: Some((at, reduction.to_string())) }, rule };
            insts::reduction(scope, reduction, is_row).map_err(located)?;
        }
        scope.close(&stage.reductions).map_err(|rule| KernelViolation { at: Location { part, inst: None }, rule })?;
    }
    Ok(temps)
}

fn verify_matmul(kernel: &Kernel, body: &MatmulBody, written: &mut [bool]) -> Result<(), KernelViolation> {
    let (batch, m, n, k) = (&body.batch, &body.m, &body.n, &body.k);
    let mut scope = Scope::new(kernel, &[batch, m, n, k]).map_err(of_kernel)?;
    if !matches!(body.acc, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
        return Err(of_kernel(Rule::NoSuchOp { op: "matmul", dtype: body.acc }));
    }
    if body.acc != DType::F32 && body.precision != Precision::Highest {
        return Err(of_kernel(Rule::Misplaced { what: "a precision of a product that is not one of f32" }));
    }
    let mut temps = Vec::new();
    if let Some(before) = &body.before {
        let [grid, outer] = [before.grid.iter().collect::<Vec<_>>(), batch.iter().chain(m).collect()];
        if grid != outer || before.row != *k {
            return Err(of_kernel(Rule::Misplaced { what: "a loop over other axes before a product" }));
        }
        let mut none = vec![false; kernel.buffers.len()];
        temps = verify_stages(kernel, before, &mut scope, &mut none)?;
        if none.contains(&true) {
            return Err(of_kernel(Rule::Misplaced { what: "a store before a product" }));
        }
    }
    if body.rhs.is_empty() {
        return Err(of_kernel(Rule::Count { what: "right operands", expected: 1, found: 0 }));
    }
    let types: &[DType] = body.before.as_ref().map_or(&[], |before| &before.temps);
    let right = body.rhs.iter().map(|rhs| (Part::Rhs, rhs, [batch, k, n]));
    for (part, prologue, axes) in [(Part::Lhs, &body.lhs, [batch, m, k])].into_iter().chain(right) {
        scope.open_apart(&axes.map(Vec::as_slice));
        let mut checker = Checker::new(kernel, &mut scope, written, part);
        checker.temps = (part == Part::Lhs).then_some((types, &mut temps));
        // Blocks are the whole of the right prologue, and the summed axis counts their elements.
        checker.block = match (part, &prologue.insts[..], &k[..]) {
            (Part::Rhs, [inst], [axis]) if inst.id == prologue.value => Some(axis.var),
            _ => None,
        };
        checker.run(&prologue.insts)?;
        let value = scope.value(prologue.value).and_then(|dtype| insts::same("an operand", body.acc, dtype));
        value.map_err(|rule| KernelViolation { at: Location { part, inst: None }, rule })?;
    }
    scope.open_apart(&[batch, m, n]);
    let mut checker = Checker::new(kernel, &mut scope, written, Part::Epilogue);
    checker.accumulators = (body.rhs.len(), body.acc);
    checker.run(&body.epilogue)
}
