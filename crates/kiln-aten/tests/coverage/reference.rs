//! Reads `reference.txt`: calls of PyTorch ops with what they gave. `make_reference.py` says how it is written.

use kiln_ir::{DType, HostTensor};
use std::collections::BTreeMap;

/// An argument that is no tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Word(String),
    List(Vec<Attribute>),
}

/// A tensor as PyTorch had it; one of complex numbers has a last axis of 2 more here.
#[derive(Debug, Clone)]
pub struct Reference {
    pub data: HostTensor,
    pub complex: bool,
}

/// The result of an op.
#[derive(Debug, Clone)]
pub enum Expected {
    /// These elements.
    Value(Reference),
    /// A tensor of this dtype and shape; its elements are not promised.
    Undefined(DType, Vec<usize>),
    /// Random elements of this mean and variance between these bounds.
    Random { dtype: DType, shape: Vec<usize>, mean: f64, variance: f64, low: f64, high: f64 },
    /// Nothing, or nothing to look at.
    Nothing,
}

/// One call of an op.
#[derive(Debug, Clone, Default)]
pub struct Call {
    pub op: String,
    pub line: usize,
    pub attributes: BTreeMap<String, Attribute>,
    /// Tensors by the name of their argument; a list's members have one name.
    pub tensors: Vec<(String, Option<Reference>)>,
    pub expected: Vec<Expected>,
}

/// Every call of the file.
pub fn parse(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(kind) = words.next().filter(|kind| !kind.starts_with('#')) else { continue };
        if kind == "case" {
            let op = words.next().expect("a case has an op").to_owned();
            let attributes = words.map(|word| {
                let (name, value) = word.split_once('=').expect("attributes are name=value");
                (name.to_owned(), attribute(value))
            });
            calls.push(Call { op, line: number + 1, attributes: attributes.collect(), ..Call::default() });
            continue;
        }
        let call = calls.last_mut().expect("a case comes first");
        match kind {
            "in" => {
                let name = words.next().expect("an input has a name").to_owned();
                let ty = words.next().expect("an input has a type");
                call.tensors.push((name, (ty != "none").then(|| tensor(ty, words))));
            }
            "out" => {
                let ty = words.next().expect("a result has a type");
                call.expected.push(Expected::Value(tensor(ty, words)));
            }
            "undefined" => {
                let (name, shape) = tensor_type(words.next().expect("a result has a type"));
                call.expected.push(Expected::Undefined(name.parse().unwrap(), shape));
            }
            "random" => {
                let (name, shape) = tensor_type(words.next().expect("a result has a type"));
                let numbers: Vec<f64> = words.map(|word| word.parse().unwrap()).collect();
                let [mean, variance, low, high] = numbers[..] else { panic!("{line}") };
                let dtype = name.parse().unwrap();
                call.expected.push(Expected::Random { dtype, shape, mean, variance, low, high });
            }
            "nothing" => call.expected.push(Expected::Nothing),
            other => panic!("line {}: {other}", number + 1),
        }
    }
    calls
}

fn attribute(text: &str) -> Attribute {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').expect("a list ends");
        return Attribute::List(inner.split(',').filter(|part| !part.is_empty()).map(attribute).collect());
    }
    match text {
        "none" => Attribute::None,
        "true" => Attribute::Bool(true),
        "false" => Attribute::Bool(false),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(value), _) => Attribute::Int(value),
            (_, Ok(value)) => Attribute::Float(value),
            _ => Attribute::Word(text.to_owned()),
        },
    }
}

fn tensor_type(text: &str) -> (&str, Vec<usize>) {
    let (name, shape) = text.split_once('[').expect("a type is dtype[shape]");
    let shape = shape.strip_suffix(']').expect("a type is dtype[shape]");
    (name, shape.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().unwrap()).collect())
}

fn tensor<'a>(ty: &str, words: impl Iterator<Item = &'a str>) -> Reference {
    let (name, mut shape) = tensor_type(ty);
    let (dtype, complex) = match name {
        "c64" => (DType::F32, true),
        "c128" => (DType::F64, true),
        name => (name.parse().unwrap(), false),
    };
    if complex {
        shape.push(2);
    }
    let count: usize = shape.iter().product();
    let words: Vec<&str> = words.collect();
    let at = |i: usize| if words.len() == 1 { words[0] } else { words[i] };
    assert!(words.len() == 1 || words.len() == count, "{ty} has {} elements", words.len());
    let data = if dtype.is_float() {
        let values: Vec<f64> = (0..count).map(|i| at(i).parse().unwrap()).collect();
        HostTensor::from_f64(dtype, &shape, &values)
    } else {
        let values: Vec<i64> = (0..count).map(|i| at(i).parse().unwrap()).collect();
        HostTensor::from_i64(dtype, &shape, &values)
    };
    Reference { data: data.unwrap(), complex }
}
