//! Instructions as C statements: one constant a value, in the order of the kernel.

use super::index::{Names, Width, constant};
use super::vector::Vector;
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, ReduceKind, Scalar, UnaryOp};
use kiln_kernels::kernel::{Inst, InstKind, Kernel, Place, ValueId};
use std::fmt::Write;

/// Where row temporaries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temps<'a> {
    /// In registers, by the number of the step.
    Registers,
    /// In memory, by the position in the row.
    Memory,
    /// In memory as elements of these types, by the position in the row.
    Elements(&'a [DType]),
    /// Wide values of such elements, of which this is element `e`.
    Wide(&'a [DType]),
    /// Likewise, where what is stored is gathered, to be stored at once: `st…` has it.
    Gathered(&'a [DType]),
}

/// Writes the statements of one body.
pub(crate) struct Statements<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) names: &'a Names,
    pub(crate) width: Width,
    /// Begins the name of every value, so that several bodies stay apart.
    pub(crate) prefix: &'a str,
    /// Where stores happen: a condition beside their own guard.
    pub(crate) stores: Option<&'a str>,
    pub(crate) temps: Temps<'a>,
    /// Whether an index that is out of range is reported.
    pub(crate) reports: bool,
    /// Wide accesses, of which this is element `e`.
    pub(crate) vector: Option<&'a Vector>,
    /// The expressions for the accumulators of a product.
    pub(crate) accumulators: Vec<String>,
    pub(crate) out: String,
}

/// The type of a compute dtype.
pub(crate) fn value_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::I64 => "long long",
        DType::Bool => "bool",
        _ if dtype.is_float() => "float",
        _ => "int",
    }
}

/// The type of an element in memory.
pub(crate) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 | DType::Bf16 => "unsigned short",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::I4 => "unsigned char",
    }
}

/// A constant of a compute dtype.
pub(crate) fn scalar(value: Scalar) -> String {
    match value {
        Scalar::Float(DType::F64, v) if v.is_finite() => format!("{v:?}"),
        Scalar::Float(DType::F64, v) => format!("__longlong_as_double(0x{:016x}LL)", v.to_bits()),
        Scalar::Float(_, v) if v.is_finite() => format!("{:?}f", v as f32),
        Scalar::Float(_, v) => format!("__int_as_float(0x{:08x})", (v as f32).to_bits()),
        Scalar::Int(DType::Bool, v) => (v != 0).to_string(),
        Scalar::Int(DType::I64, v) => format!("(long long){}", constant(v)),
        Scalar::Int(_, v) if v == i64::from(i32::MIN) => "(-2147483647-1)".to_owned(),
        Scalar::Int(_, v) => v.to_string(),
    }
}

/// The element that an expression of a memory type stands for, in its compute type.
pub(crate) fn widened(dtype: DType, element: &str) -> String {
    match dtype {
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => element.to_owned(),
        DType::I8 | DType::I16 | DType::U8 => format!("(int){element}"),
        DType::Bool => format!("({element}!=0)"),
        DType::F16 => format!("from_f16({element})"),
        DType::Bf16 => format!("from_bf16({element})"),
        DType::F8E4M3 => format!("from_f8<3,7,false>({element})"),
        DType::F8E5M2 => format!("from_f8<2,15,true>({element})"),
        DType::I4 => format!("(((int){element}<<28)>>28)"),
    }
}

/// A value as an element in memory.
pub(crate) fn narrowed(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => value.to_owned(),
        DType::F16 => format!("to_f16({value})"),
        DType::Bf16 => format!("to_bf16({value})"),
        DType::F8E4M3 => format!("to_f8<3,7,false>({value})"),
        DType::F8E5M2 => format!("to_f8<2,15,true>({value})"),
        DType::I8 | DType::I16 | DType::U8 | DType::Bool | DType::I4 => format!("({}){value}", memory_type(dtype)),
    }
}

/// The element at a position of a buffer.
pub(crate) fn load(dtype: DType, buffer: usize, position: &str) -> String {
    match dtype {
        DType::I4 => format!("load_i4(b{buffer},{position})"),
        _ => widened(dtype, &format!("b{buffer}[{position}]")),
    }
}

/// The statement that stores a value at a position of a buffer.
pub(crate) fn store(dtype: DType, buffer: usize, position: &str, value: &str) -> String {
    match dtype {
        DType::I4 => format!("store_i4(b{buffer},{position},{value});"),
        _ => format!("b{buffer}[{position}]={};", narrowed(dtype, value)),
    }
}

/// The combination of two values of a reduction.
pub(crate) fn combined(kind: ReduceKind, dtype: DType, x: &str, y: &str) -> String {
    binary(kind.combine(), dtype, x, y)
}

impl<'a> Statements<'a> {
    /// None yet, with temporaries in registers.
    pub(crate) fn new(kernel: &'a Kernel, names: &'a Names, width: Width, prefix: &'a str) -> Statements<'a> {
        let (temps, accumulators) = (Temps::Registers, Vec::new());
        let (stores, vector, out) = (None, None, String::new());
        Statements { kernel, names, width, prefix, stores, temps, reports: true, vector, accumulators, out }
    }

    pub(crate) fn value(&self, id: ValueId) -> String {
        format!("{}{}", self.prefix, id.0)
    }

    pub(crate) fn index(&self, dim: &Dim) -> String {
        self.names.text(dim, self.width)
    }

    /// The position of a place, in elements.
    pub(crate) fn position(&self, place: &Place) -> String {
        let mut text = self.index(&place.offset);
        for (value, stride) in &place.indirect {
            let _ = write!(text, "+{}*{}", self.value(*value), self.index(stride));
        }
        text
    }

    /// All instructions, in order.
    pub(crate) fn all(&mut self, insts: &[Inst]) {
        for inst in insts {
            self.inst(inst);
        }
    }

    pub(crate) fn inst(&mut self, inst: &Inst) {
        if let InstKind::Store { place, value, guard } = &inst.kind {
            if let Some(vector) = self.vector.filter(|vector| vector.has(inst.id)) {
                let element = narrowed(self.kernel.buffers[place.buffer].dtype, &self.value(*value));
                let _ = writeln!(self.out, "{}={element};", vector.element(self.prefix, inst.id));
                return;
            }
            let conditions = guard.map(|guard| self.value(guard)).into_iter().chain(self.stores.map(str::to_owned));
            let condition = conditions.reduce(|a, b| format!("{a}&&{b}"));
            let dtype = self.kernel.buffers[place.buffer].dtype;
            let statement = store(dtype, place.buffer, &self.position(place), &self.value(*value));
            let _ = match condition {
                Some(condition) => writeln!(self.out, "if({condition}){{{statement}}}"),
                None => writeln!(self.out, "{statement}"),
            };
            return;
        }
        if let InstKind::StoreTemp(temp, value) = &inst.kind {
            let value = self.value(*value);
            let (place, value) = match self.temps {
                Temps::Elements(dtypes) => (self.temp(*temp), narrowed(dtypes[*temp], &value)),
                Temps::Gathered(dtypes) => (format!("st{temp}.v[e]"), narrowed(dtypes[*temp], &value)),
                _ => (self.temp(*temp), value),
            };
            let _ = writeln!(self.out, "{place}={value};");
            return;
        }
        let (ty, name, expression) = (value_type(inst.dtype), self.value(inst.id), self.expression(inst));
        let _ = writeln!(self.out, "const {ty} {name}={expression};");
    }

    fn temp(&self, temp: usize) -> String {
        match self.temps {
            Temps::Registers => format!("t{temp}[step]"),
            Temps::Memory | Temps::Elements(_) | Temps::Gathered(_) => format!("t{temp}[at]"),
            Temps::Wide(_) => format!("wt{temp}.at(e)"),
        }
    }

    /// The expression of an instruction that defines a value.
    pub(crate) fn expression(&self, inst: &Inst) -> String {
        let value = |id: &ValueId| self.value(*id);
        match &inst.kind {
            InstKind::Const(constant) => scalar(*constant),
            InstKind::Index(dim) => format!("({}){}", value_type(inst.dtype), self.index(dim)),
            InstKind::InRange { expr, low, high } => {
                let at = self.index(expr);
                format!("({}<={at}&&{at}<{})", self.index(low), self.index(high))
            }
            InstKind::Load { place, guard } => {
                if let Some(vector) = self.vector.filter(|vector| vector.has(inst.id)) {
                    let dtype = self.kernel.buffers[place.buffer].dtype;
                    return widened(dtype, &vector.element(self.prefix, inst.id));
                }
                let element = load(self.kernel.buffers[place.buffer].dtype, place.buffer, &self.position(place));
                match guard {
                    Some(guard) => format!("({}?{element}:({})0)", value(guard), value_type(inst.dtype)),
                    None => element,
                }
            }
            InstKind::LoadBlock { place, element, format } => {
                let (position, element) = (self.position(place), self.index(element));
                let (elements, bytes, name) = (format.elements(), format.bytes(), format.name());
                format!("{name}(b{}+{position}+{element}/{elements}*{bytes},{element}%{elements})", place.buffer)
            }
            InstKind::LoadTemp(temp) => match self.temps {
                Temps::Elements(dtypes) | Temps::Gathered(dtypes) | Temps::Wide(dtypes) => {
                    widened(dtypes[*temp], &self.temp(*temp))
                }
                Temps::Registers | Temps::Memory => self.temp(*temp),
            },
            InstKind::Unary(op, x) => unary(*op, self.dtype_of_operand(inst), &value(x)),
            InstKind::Binary(op, x, y) => binary(*op, inst.dtype, &value(x), &value(y)),
            InstKind::Compare(op, x, y) => format!("({}{}{})", value(x), comparison(*op), value(y)),
            InstKind::Select(c, x, y) => format!("({}?{}:{})", value(c), value(x), value(y)),
            InstKind::Cast(x) if inst.dtype == DType::F32 && self.byte_as_float(*x).is_some() => {
                self.byte_as_float(*x).unwrap_or_default()
            }
            InstKind::Cast(x) => format!("cast_{}({})", short_name(inst.dtype), value(x)),
            InstKind::Bitcast(x) => format!("bits_{}({})", short_name(inst.dtype), value(x)),
            InstKind::Round(x, DType::Bf16) => format!("round_bf16({})", value(x)),
            InstKind::Round(x, to) => widened(*to, &narrowed(*to, &value(x))),
            InstKind::CheckIndex { value: x, size } if self.reports => {
                format!("check_index({},{},fault,site)", value(x), self.index(size))
            }
            InstKind::CheckIndex { value: x, size } => {
                format!("(0<={0}&&{0}<{1}?{0}:0)", value(x), self.index(size))
            }
            InstKind::Random { seed, position, stream } => {
                format!("philox({},(long long){},{stream}u)", value(seed), self.index(position))
            }
            InstKind::Accumulator(number) => self.accumulators.get(*number).cloned().unwrap_or_default(),
            InstKind::Store { .. } | InstKind::StoreTemp(..) => String::new(),
        }
    }

    /// The expression of a value as a float, if it is a byte of a wide load.
    fn byte_as_float(&self, id: ValueId) -> Option<String> {
        self.vector?.byte_as_float(self.kernel, self.prefix, id)
    }

    /// The dtype that a function of one operand is applied at: its result's, but for those that give a bool.
    fn dtype_of_operand(&self, inst: &Inst) -> DType {
        match &inst.kind {
            InstKind::Unary(op, _) if op.row().gives_bool => DType::F32,
            _ => inst.dtype,
        }
    }
}

fn short_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::I64 => "i64",
        DType::Bool => "bool",
        _ if dtype.is_float() => "f32",
        _ => "i32",
    }
}

fn comparison(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Eq => "==",
        CompareOp::Ne => "!=",
        CompareOp::Lt => "<",
        CompareOp::Le => "<=",
        CompareOp::Gt => ">",
        CompareOp::Ge => ">=",
    }
}

fn unary(op: UnaryOp, dtype: DType, x: &str) -> String {
    if !dtype.is_float() {
        return match (op, dtype) {
            (UnaryOp::Not, DType::Bool) => format!("!{x}"),
            (UnaryOp::Not, _) => format!("~{x}"),
            _ => format!("int_{}({x})", op.name()),
        };
    }
    let f = float_suffix(dtype);
    match op {
        UnaryOp::Neg => format!("-{x}"),
        UnaryOp::Recip => format!("(1/{x})"),
        UnaryOp::IsNan => format!("({x}!={x})"),
        UnaryOp::Sign => format!("float_sign({x})"),
        UnaryOp::Abs => format!("fabs{f}({x})"),
        UnaryOp::Round => format!("rint{f}({x})"),
        UnaryOp::ErfInv => format!("erfinv{f}({x})"),
        _ => format!("{}{f}({x})", op.name()),
    }
}

/// The end of the names of C's functions of a float type.
pub(crate) fn float_suffix(dtype: DType) -> &'static str {
    if dtype == DType::F64 { "" } else { "f" }
}

fn binary(op: BinaryOp, dtype: DType, x: &str, y: &str) -> String {
    if dtype == DType::Bool {
        let operator = match op {
            BinaryOp::Add | BinaryOp::Max | BinaryOp::Or => "||",
            BinaryOp::Xor => "!=",
            _ => "&&",
        };
        return format!("({x}{operator}{y})");
    }
    let unsigned = if dtype == DType::I64 { "unsigned long long" } else { "unsigned" };
    let operator = match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::And => return format!("({x}&{y})"),
        BinaryOp::Or => return format!("({x}|{y})"),
        BinaryOp::Xor => return format!("({x}^{y})"),
        BinaryOp::Div if dtype.is_float() => "/",
        BinaryOp::Div | BinaryOp::Rem | BinaryOp::Gcd if !dtype.is_float() => {
            return format!("int_{}({x},{y})", op.name());
        }
        BinaryOp::Rem => return format!("fmod{}({x},{y})", float_suffix(dtype)),
        BinaryOp::Pow => return format!("power({x},{y})"),
        BinaryOp::Max | BinaryOp::Min if !dtype.is_float() => {
            return format!("({x}{}{y}?{x}:{y})", if op == BinaryOp::Max { ">" } else { "<" });
        }
        BinaryOp::Max => return format!("larger({x},{y})"),
        BinaryOp::Min => return format!("smaller({x},{y})"),
        BinaryOp::Atan2 => return format!("atan2{}({x},{y})", float_suffix(dtype)),
        _ => return format!("{}({x},{y})", op.name()),
    };
    if dtype.is_float() {
        format!("({x}{operator}{y})")
    } else {
        format!("({})(({unsigned}){x}{operator}({unsigned}){y})", value_type(dtype))
    }
}
