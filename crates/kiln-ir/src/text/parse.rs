//! Text to graph: one pass from the first character to the last. Bodies of loops are graphs in a graph, a few deep at the most.

use super::attributes::{Attributes, build};
use super::cursor::Cursor;
use super::{ParseError, ParseErrorKind};
use crate::verify::verify_outputs;
use crate::{Error, Graph, NodeId, OpKind, Source, TensorType};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::OnceLock;

/// An input that the header declares.
struct Parameter {
    number: u32,
    ty: TensorType,
    source: Source,
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    graph: Graph,
    /// Every number that has a meaning, inputs to come included.
    defined: HashSet<u32>,
    nodes: HashMap<u32, NodeId>,
    /// Inputs that are not nodes yet. An input becomes one just before the first node of a higher number, which is where it
    /// stood when the graph was printed, or when it is used.
    parameters: VecDeque<Parameter>,
    /// In how many bodies of loops it stands.
    depth: usize,
}

/// How deep loops may nest in text.
const DEPTH_MOST: usize = 16;

pub(super) fn graph(text: &str) -> Result<Graph, ParseError> {
    let mut cursor = Cursor::new(text);
    let graph = at(&mut cursor, 0)?;
    cursor.expect_end("the end")?;
    Ok(graph)
}

/// The body of a loop that stands in `depth` others.
pub(super) fn nested(cursor: &mut Cursor<'_>, depth: usize) -> Result<Graph, ParseError> {
    if depth >= DEPTH_MOST {
        return Err(cursor.error(ParseErrorKind::TooDeep { most: DEPTH_MOST }));
    }
    cursor.skip_space();
    at(cursor, depth + 1)
}

/// The graph that stands here.
fn at(cursor: &mut Cursor<'_>, depth: usize) -> Result<Graph, ParseError> {
    let mut parser = Parser {
        cursor: *cursor,
        graph: Graph::new(),
        defined: HashSet::new(),
        nodes: HashMap::new(),
        parameters: VecDeque::new(),
        depth,
    };
    parser.header()?;
    parser.cursor.expect("{")?;
    while parser.cursor.peek() == Some(b'%') {
        parser.node()?;
    }
    parser.add_inputs_below(u64::MAX)?;
    let end = parser.outputs()?;
    parser.cursor.expect("}")?;
    cursor.pass(parser.cursor);
    match verify_outputs(&parser.graph) {
        Ok(()) => Ok(parser.graph),
        Err(error) => Err(end.error(ParseErrorKind::Graph(Box::new(error)))),
    }
}

impl<'a> Parser<'a> {
    fn header(&mut self) -> Result<(), ParseError> {
        let start = self.cursor;
        if self.cursor.word() != "graph" {
            return Err(start.expected("graph"));
        }
        self.cursor.expect("(")?;
        if self.cursor.eat(")") {
            return Ok(());
        }
        loop {
            self.cursor.skip_space();
            let number = self.define()?;
            self.cursor.expect(":")?;
            let ty = self.cursor.ty()?;
            let source = self.cursor.source()?;
            self.parameters.push_back(Parameter { number, ty, source });
            if self.cursor.eat(")") {
                return Ok(());
            }
            if !self.cursor.eat(",") {
                return Err(self.cursor.expected(", or )"));
            }
        }
    }

    /// A number that has no meaning yet.
    fn define(&mut self) -> Result<u32, ParseError> {
        let start = self.cursor;
        let number = self.cursor.node()?;
        match self.defined.insert(number) {
            true => Ok(number),
            false => Err(start.error(ParseErrorKind::Redefined { number })),
        }
    }

    fn add_input(&mut self, parameter: Parameter) -> Result<(), ParseError> {
        let id = self.graph.input(parameter.ty, parameter.source).map_err(|error| self.rule(error))?;
        self.nodes.insert(parameter.number, id);
        Ok(())
    }

    fn add_inputs_below(&mut self, number: u64) -> Result<(), ParseError> {
        while let Some(parameter) = self.parameters.pop_front_if(|p| u64::from(p.number) < number) {
            self.add_input(parameter)?;
        }
        Ok(())
    }

    fn rule(&self, error: Error) -> ParseError {
        self.cursor.error(ParseErrorKind::Graph(Box::new(error)))
    }

    /// The node of that number; makes nodes of the inputs up to it where it is one of those to come.
    fn lookup(&mut self, start: Cursor<'_>, number: u32) -> Result<NodeId, ParseError> {
        if !self.nodes.contains_key(&number) && self.parameters.iter().any(|p| p.number == number) {
            while let Some(parameter) = self.parameters.pop_front() {
                let found = parameter.number == number;
                self.add_input(parameter)?;
                if found {
                    break;
                }
            }
        }
        self.nodes.get(&number).copied().ok_or_else(|| start.error(ParseErrorKind::UnknownNode { number }))
    }

    fn node(&mut self) -> Result<(), ParseError> {
        let number = self.define()?;
        self.add_inputs_below(number.into())?;
        self.cursor.expect(":")?;
        self.cursor.skip_space();
        let type_start = self.cursor;
        let declared = self.cursor.ty()?;
        self.cursor.expect("=")?;
        self.cursor.skip_space();
        let op_start = self.cursor;
        let kind = self.op_kind()?;
        let operands = self.operands()?;
        let mut attributes = Attributes::read(&mut self.cursor, kind, op_start)?;
        let first = operands.first().map(|&id| self.graph.ty(id));
        let op = build(kind, &declared, first, operands.len(), self.depth, &mut attributes)?;
        attributes.finish()?;
        let source = self.cursor.source()?;
        let id = self.graph.add(op, &operands, source).map_err(|error| match error {
            Error::Type { op, cause, .. } => op_start.error(ParseErrorKind::Type { op, cause }),
            other => op_start.error(ParseErrorKind::Graph(Box::new(other))),
        })?;
        let inferred = self.graph.ty(id);
        if *inferred != declared {
            let (op, inferred) = (kind.name(), inferred.clone());
            return Err(type_start.error(ParseErrorKind::WrongType { op, declared, inferred }));
        }
        self.nodes.insert(number, id);
        Ok(())
    }

    fn op_kind(&mut self) -> Result<OpKind, ParseError> {
        static KINDS: OnceLock<HashMap<String, OpKind>> = OnceLock::new();
        let kinds = KINDS.get_or_init(|| OpKind::all().into_iter().map(|kind| (kind.name(), kind)).collect());
        let start = self.cursor;
        match self.cursor.word() {
            "" => Err(start.expected("an op")),
            // Inputs are declared in the header.
            name => match kinds.get(name).filter(|kind| **kind != OpKind::Input) {
                Some(kind) => Ok(*kind),
                None => Err(start.error(ParseErrorKind::UnknownOp { name: name.to_owned() })),
            },
        }
    }

    fn operands(&mut self) -> Result<Vec<NodeId>, ParseError> {
        let mut operands = Vec::new();
        // Another node may follow without operands in between: `%1: …` is the next statement, not an operand.
        let mut ahead = self.cursor;
        if ahead.peek() != Some(b'%') || (ahead.node().is_ok() && ahead.peek() == Some(b':')) {
            return Ok(operands);
        }
        loop {
            self.cursor.skip_space();
            let start = self.cursor;
            let number = self.cursor.node()?;
            operands.push(self.lookup(start, number)?);
            if !self.cursor.eat(",") {
                return Ok(operands);
            }
        }
    }

    /// The return statement; gives the place where it starts.
    fn outputs(&mut self) -> Result<Cursor<'a>, ParseError> {
        self.cursor.skip_space();
        let start = self.cursor;
        if self.cursor.word() != "return" {
            return Err(start.expected("a node or return"));
        }
        if self.cursor.peek() == Some(b'}') {
            return Ok(start);
        }
        loop {
            self.cursor.skip_space();
            let place = self.cursor;
            let number = self.cursor.node()?;
            let node = self.lookup(place, number)?;
            if self.cursor.eat("->") {
                self.cursor.expect("input")?;
                let input = self.cursor.integer()?;
                self.graph.update(node, input);
            } else {
                self.graph.output(node);
            }
            if !self.cursor.eat(",") {
                return Ok(start);
            }
        }
    }
}
