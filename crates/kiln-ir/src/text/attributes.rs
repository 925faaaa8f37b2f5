//! The attributes in braces, and the op that they make together with the result's type.

use super::cursor::Cursor;
use super::{ParseError, ParseErrorKind};
use crate::{Branches, ConvDims, DType, DotDims, Literal, Op, OpKind, Region, TensorType, WindowDims};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The attributes of one node that are not read yet.
pub(super) struct Attributes<'a> {
    kind: OpKind,
    /// The position of the op.
    op: Cursor<'a>,
    /// Where each name and its value stand.
    values: BTreeMap<&'a str, (Cursor<'a>, Cursor<'a>)>,
}

impl<'a> Attributes<'a> {
    /// Reads `{name=value, …}`, if it stands here.
    pub(super) fn read(cursor: &mut Cursor<'a>, kind: OpKind, op: Cursor<'a>) -> Result<Self, ParseError> {
        let mut values = BTreeMap::new();
        if cursor.eat("{") && !cursor.eat("}") {
            loop {
                cursor.skip_space();
                let place = *cursor;
                let name = cursor.word();
                if name.is_empty() {
                    return Err(place.expected("the name of an attribute"));
                }
                cursor.expect("=")?;
                let start = *cursor;
                cursor.skip_value();
                if values.insert(name, (place, start.until(*cursor))).is_some() {
                    return Err(place.error(ParseErrorKind::RepeatedAttribute { name: name.to_owned() }));
                }
                if cursor.eat("}") {
                    break;
                }
                if !cursor.eat(",") {
                    return Err(cursor.expected(", or }"));
                }
            }
        }
        Ok(Attributes { kind, op, values })
    }

    /// The attribute of that name, read to its end.
    fn take<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        let Some((_, mut value)) = self.values.remove(name) else {
            return Err(self.op.error(ParseErrorKind::MissingAttribute { op: self.kind.name(), name }));
        };
        let read = read(&mut value)?;
        value.expect_end(", or }")?;
        Ok(read)
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, ParseError> {
        if self.values.contains_key(name) { self.take(name, Cursor::flag) } else { Ok(false) }
    }

    fn axis(&mut self) -> Result<usize, ParseError> {
        self.take("axis", Cursor::integer)
    }

    fn naturals(&mut self, name: &'static str) -> Result<Vec<usize>, ParseError> {
        self.take(name, |value| value.list(Cursor::integer))
    }

    /// No attribute may be left.
    pub(super) fn finish(self) -> Result<(), ParseError> {
        match self.values.into_iter().next() {
            Some((name, (place, _))) => {
                let (op, name) = (self.kind.name(), name.to_owned());
                Err(place.error(ParseErrorKind::UnknownAttribute { op, name }))
            }
            None => Ok(()),
        }
    }
}

/// The op of that kind; `first` is the type of its first operand, and `depth` says in how many bodies it stands.
pub(super) fn build(
    kind: OpKind,
    declared: &TensorType,
    first: Option<&TensorType>,
    operands: usize,
    depth: usize,
    attributes: &mut Attributes<'_>,
) -> Result<Op, ParseError> {
    let shape = || declared.shape.clone();
    Ok(match kind {
        // Not reached from text, which declares inputs in the header; the graph refuses it.
        OpKind::Input => Op::Input { index: 0 },
        OpKind::Full => Op::Full { value: attributes.take("value", |v| v.scalar(declared.dtype))?, shape: shape() },
        OpKind::Constant => Op::Constant(attributes.take("value", |v| constant(v, declared))?),
        OpKind::Iota => Op::Iota { dtype: declared.dtype, shape: shape(), axis: attributes.axis()? },
        OpKind::RandomBits => Op::RandomBits { shape: shape(), stream: attributes.take("stream", Cursor::integer)? },
        OpKind::Unary(op) => Op::Unary(op),
        OpKind::Binary(op) => Op::Binary(op),
        OpKind::Compare(op) => Op::Compare(op),
        OpKind::Select => Op::Select,
        OpKind::Cast => Op::Cast(declared.dtype),
        OpKind::Bitcast => Op::Bitcast(declared.dtype),
        OpKind::Reduce(kind) => Op::Reduce { kind, axes: attributes.naturals("axes")? },
        OpKind::ArgReduce(kind) => Op::ArgReduce { kind, axis: attributes.axis()? },
        OpKind::Scan(kind) => Op::Scan { kind, axis: attributes.axis()?, reverse: attributes.flag("reverse")? },
        OpKind::SortIndices => Op::SortIndices {
            axis: attributes.axis()?,
            descending: attributes.flag("descending")?,
            count: attributes.take("count", Cursor::dim)?,
        },
        OpKind::Reshape => Op::Reshape { shape: shape() },
        OpKind::Permute => Op::Permute { order: attributes.naturals("order")? },
        OpKind::Expand => Op::Expand { shape: shape() },
        OpKind::Slice => Op::Slice {
            start: attributes.take("start", |v| v.list(Cursor::dim))?,
            size: attributes.take("size", |v| v.list(Cursor::dim))?,
            step: attributes.take("step", |v| v.list(Cursor::integer))?,
        },
        OpKind::Pad => {
            let dtype = first.map_or(declared.dtype, |ty| ty.dtype);
            Op::Pad {
                low: attributes.take("low", |v| v.list(Cursor::dim))?,
                high: attributes.take("high", |v| v.list(Cursor::dim))?,
                value: attributes.take("value", |v| v.scalar(dtype))?,
            }
        }
        OpKind::Flip => Op::Flip { axes: attributes.naturals("axes")? },
        OpKind::Unfold => Op::Unfold {
            axis: attributes.axis()?,
            size: attributes.take("size", Cursor::integer)?,
            stride: attributes.take("stride", Cursor::integer)?,
            dilation: attributes.take("dilation", Cursor::integer)?,
        },
        OpKind::Concat => Op::Concat { axis: attributes.axis()? },
        OpKind::Gather => Op::Gather { axis: attributes.axis()? },
        OpKind::Scatter(kind) => Op::Scatter { axis: attributes.axis()?, kind },
        OpKind::Dot => Op::Dot {
            dims: DotDims {
                lhs_batch: attributes.naturals("lhs_batch")?,
                rhs_batch: attributes.naturals("rhs_batch")?,
                lhs_contract: attributes.naturals("lhs_contract")?,
                rhs_contract: attributes.naturals("rhs_contract")?,
            }
            .into(),
            out: declared.dtype,
        },
        OpKind::Dequantize => Op::Dequantize { format: attributes.take("format", Cursor::format)? },
        OpKind::Conv => Op::Conv(
            ConvDims {
                stride: attributes.naturals("stride")?,
                padding: attributes.take("padding", |v| v.list(Cursor::pair))?,
                dilation: attributes.naturals("dilation")?,
                input_dilation: attributes.naturals("input_dilation")?,
                groups: attributes.take("groups", Cursor::integer)?,
            }
            .into(),
        ),
        OpKind::ReduceWindow(kind) => Op::ReduceWindow {
            kind,
            dims: WindowDims {
                size: attributes.naturals("size")?,
                stride: attributes.naturals("stride")?,
                dilation: attributes.naturals("dilation")?,
                padding: attributes.take("padding", |v| v.list(Cursor::pair))?,
            }
            .into(),
        },
        OpKind::Attention => Op::Attention {
            causal: attributes.flag("causal")?,
            scale: attributes.take("scale", |v| v.scalar(DType::F64))?,
            mask: operands == 4,
        },
        OpKind::AttentionLogsumexp => Op::AttentionLogsumexp {
            causal: attributes.flag("causal")?,
            scale: attributes.take("scale", |v| v.scalar(DType::F64))?,
            mask: operands == 3,
        },
        OpKind::AttentionGradient(of) => Op::AttentionGradient {
            of,
            causal: attributes.flag("causal")?,
            scale: attributes.take("scale", |v| v.scalar(DType::F64))?,
            mask: operands == 7,
        },
        OpKind::Loop if attributes.flag("while")? => {
            let result = attributes.take("result", Cursor::integer)?;
            let body = attributes.take("body", |body| super::parse::nested(body, depth))?;
            Op::Loop { region: Arc::new(Region::conditional(body)), result }
        }
        OpKind::Cond => {
            let result = attributes.take("result", Cursor::integer)?;
            let then = attributes.take("then", |body| super::parse::nested(body, depth))?;
            let otherwise = attributes.take("otherwise", |body| super::parse::nested(body, depth))?;
            Op::Cond { branches: Arc::new(Branches::new(then, otherwise)), result }
        }
        OpKind::Loop => {
            let turns = attributes.take("turns", Cursor::dim)?;
            let carried = attributes.take("carried", Cursor::integer)?;
            let scanned = attributes.take("scanned", Cursor::integer)?;
            let reverse = attributes.flag("reverse")?;
            let result = attributes.take("result", Cursor::integer)?;
            let body = attributes.take("body", |body| super::parse::nested(body, depth))?;
            Op::Loop { region: Arc::new(Region::new(body, turns, carried, scanned, reverse)), result }
        }
    })
}

/// `[element, …]` or `0x…`, as the type says. Reads no more than is written.
fn constant(value: &mut Cursor<'_>, ty: &TensorType) -> Result<Literal, ParseError> {
    value.skip_space();
    let start = *value;
    let wrong = |got| start.error(ParseErrorKind::ElementCount { ty: ty.clone(), got });
    let shape = ty.fixed_shape();
    if value.peek() == Some(b'[') {
        let elements = value.list(|v| v.scalar(ty.dtype))?;
        let got = elements.len();
        return shape.and_then(|shape| Literal::from_elements(ty.dtype, &shape, elements)).ok_or_else(|| wrong(got));
    }
    let bytes = value.bytes()?;
    let got = bytes.len() * 8 / ty.dtype.size_in_bits();
    match shape {
        Some(shape) => Ok(Literal { dtype: ty.dtype, shape, bytes: bytes.into() }),
        None => Err(wrong(got)),
    }
}
