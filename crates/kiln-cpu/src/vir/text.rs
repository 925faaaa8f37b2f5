//! The text of a function, for people and tests.

use super::*;
use std::fmt;

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut depth = 0;
        for inst in &self.insts {
            if inst.op == Op::End {
                depth -= 1;
            }
            write!(f, "{:1$}", "", 2 * depth)?;
            if inst.dst.is_some() {
                write!(f, "{:?}: {} = ", inst.dst, self.types[inst.dst.index()].name())?;
            }
            write!(f, "{inst}")?;
            if matches!(inst.op, Op::Loop { .. } | Op::If) {
                depth += 1;
                f.write_str(" {")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Ty {
    /// The name in the text.
    pub const fn name(self) -> &'static str {
        match self {
            Ty::F32 => "f32",
            Ty::F64 => "f64",
            Ty::I32 => "i32",
            Ty::I64 => "i64",
            Ty::I16 => "i16",
            Ty::I8 => "i8",
            Ty::Mask => "mask",
            Ty::Int => "int",
        }
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.args;
        match self.op {
            Op::Number(n) => return write!(f, "{n}"),
            Op::Const(bits) => {
                return match self.ty {
                    Ty::F32 => write!(f, "const {:?}", f32::from_bits(bits as u32)),
                    Ty::F64 => write!(f, "const {:?}", f64::from_bits(bits)),
                    Ty::I32 => write!(f, "const {}", bits as i32),
                    _ => write!(f, "const {}", bits as i64),
                };
            }
            Op::Loop { inclusive, step } => {
                let cond = if inclusive { "<=" } else { "<" };
                return match step {
                    Step::Elements(n) => write!(f, "loop {a:?} {cond} {b:?} step {n}"),
                    Step::Vectors(n) => write!(f, "loop {a:?} {cond} {b:?} step {n}·lanes"),
                };
            }
            Op::If => return write!(f, "if {a:?} < {b:?}"),
            Op::End => return f.write_str("}"),
            Op::Load(m) | Op::Store(m) => {
                f.write_str(if matches!(self.op, Op::Load(_)) { "load" } else { "store" })?;
                let kind = match m.access {
                    Access::Contiguous => "",
                    Access::Pairs => ".pairs",
                    Access::Single => ".single",
                    Access::Strided => ".strided",
                    Access::Indexed => ".indexed",
                };
                write!(f, "{kind}.{} [{a:?}", m.dtype)?;
                if b.is_some() {
                    write!(f, " + {b:?}")?;
                }
                if m.vectors != 0 {
                    write!(f, " + {}·lanes", m.vectors)?;
                }
                if m.disp != 0 {
                    write!(f, " + {} bytes", m.disp)?;
                }
                f.write_str("]")?;
                if c.is_some() {
                    write!(f, " where {c:?}")?;
                }
                if d.is_some() {
                    write!(f, ", {d:?}")?;
                }
                return Ok(());
            }
            Op::Int(op) => write!(f, "{}", format!("{op:?}").to_lowercase())?,
            Op::Bin(op) => write!(f, "{}", format!("{op:?}").to_lowercase())?,
            Op::Un(op) => write!(f, "{}", format!("{op:?}").to_lowercase())?,
            Op::Fma(op) => write!(f, "fma.{}", format!("{op:?}").to_lowercase())?,
            Op::Compare(op) => write!(f, "compare.{}", op.name())?,
            other => write!(f, "{}", format!("{other:?}").to_lowercase())?,
        }
        let mut sep = " ";
        for v in self.args.into_iter().filter(|v| v.is_some()) {
            write!(f, "{sep}{v:?}")?;
            sep = ", ";
        }
        Ok(())
    }
}
