//! Programs as text: Rust, but for what every test has around it.

use super::program::{Binary, Block, Expression, HELD_VARIABLES, Program, Statement, Tapes, Test, Unary, ValueNumber};
use std::fmt::{self, Display, Formatter};

/// Values at a point of a function, by name.
struct Names {
    values: Vec<String>,
    next: usize,
}

impl Names {
    fn of(&self, place: ValueNumber) -> &str {
        self.values.get(place % self.values.len().max(1)).map_or("held0", String::as_str)
    }

    fn add(&mut self) -> String {
        let name = format!("t{}", self.next);
        self.next += 1;
        self.values.push(name.clone());
        name
    }

    fn list(&self, places: &[ValueNumber]) -> String {
        places.iter().map(|&place| self.of(place)).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "// seed {}, {}, {:?}", self.seed, self.dtype, self.choices)?;
        for call in &self.calls {
            let x = match call.tapes {
                Tapes::None => "x",
                Tapes::Start => "x.requires_grad()",
                Tapes::Variable => "x + outer.get()",
            };
            let mut around = vec![format!("setting = {}", call.setting)];
            around.extend(call.transposed.then(|| "x transposed".to_owned()));
            around.extend(call.toggles.then(|| "a.requires_grad toggled".to_owned()));
            around.extend(call.zeroes.then(|| "gradients forgotten".to_owned()));
            around.extend(call.no_grad.then(|| "in no_grad".to_owned()));
            around.extend(call.backward.then(|| "then backward of the results".to_owned()));
            writeln!(f, "// call with {x}, y: [{}, 3] of {}; {}", call.rows, call.data, around.join(", "))?;
        }
        let mut names = Names { values: vec!["x".into(), "y".into()], next: 0 };
        writeln!(f, "|(x, y)| {{")?;
        block(f, &self.body, &mut names, 1)?;
        writeln!(f, "    Ok(({}))", names.list(&self.returns))?;
        f.write_str("}")
    }
}

fn block(f: &mut Formatter<'_>, statements: &Block, names: &mut Names, depth: usize) -> fmt::Result {
    statements.iter().try_for_each(|each| statement(f, each, names, depth))
}

/// A block whose values end with it.
fn inside(f: &mut Formatter<'_>, statements: &Block, names: &mut Names, depth: usize) -> fmt::Result {
    let before = names.values.len();
    block(f, statements, names, depth + 1)?;
    names.values.truncate(before);
    Ok(())
}

fn var(number: ValueNumber) -> String {
    match number.checked_sub(HELD_VARIABLES) {
        None => ["a", "b", "c"][number].to_owned(),
        Some(made) => format!("made({made})"),
    }
}

fn statement(f: &mut Formatter<'_>, statement: &Statement, names: &mut Names, depth: usize) -> fmt::Result {
    let indent = "    ".repeat(depth);
    f.write_str(&indent)?;
    match statement {
        Statement::Let(value) => {
            let value = expression(value, names);
            writeln!(f, "let mut {} = {value};", names.add())
        }
        Statement::Assign(place, value) => writeln!(f, "{} = {};", names.of(*place), expression(value, names)),
        Statement::Make(place, trained) => {
            writeln!(f, "made.push(Var::new(row({})).requires_grad({trained}));", names.of(*place))
        }
        Statement::Set(to, place) => writeln!(f, "{}.set(row({}))?;", var(*to), names.of(*place)),
        Statement::Add(to, place) => writeln!(f, "{}.add_assign(row({}))?;", var(*to), names.of(*place)),
        Statement::Scale(to, factor) => writeln!(f, "{}.mul_assign({factor})?;", var(*to)),
        Statement::SetFirst(to, place) => {
            writeln!(f, "{}.slice_assign(0..1, row({})[0..1])?;", var(*to), names.of(*place))
        }
        Statement::ZeroGrad(of) => writeln!(f, "{}.zero_grad();", var(*of)),
        Statement::SetGrad(to, place) => {
            writeln!(f, "{}.set_grad(Some(row({}).detach()))?;", var(*to), names.of(*place))
        }
        Statement::Backward(place, true) => writeln!(f, "{}.sum(..)?.backward()?;", names.of(*place)),
        Statement::Backward(place, false) => writeln!(f, "let _ = {}.sum(..)?.backward();", names.of(*place)),
        Statement::Step => writeln!(f, "sgd.step()?; clamp([a, b])?;"),
        Statement::If(test, then, otherwise) => {
            let test = match test {
                Test::Sum(place, number) => format!("{}.sum(..)?.item()? > {number}", names.of(*place)),
                Test::First(place) => format!("{}.to_vec()?[0] > 0", names.of(*place)),
                Test::Setting(number) => format!("setting.get() == {number}"),
                Test::HasGrad(of) => format!("{}.grad().is_some()", var(*of)),
                Test::Rows(rows) => format!("{}.dim(0)? > {rows}", names.of(0)),
                Test::Float(place, number) => format!("{}.sum(..)?.item_float()? > {number}", names.of(*place)),
                Test::Size(rows) => format!("{}.size(0)?.is_above({rows})", names.of(0)),
            };
            writeln!(f, "if {test} {{")?;
            inside(f, then, names, depth)?;
            if !otherwise.is_empty() {
                writeln!(f, "{indent}}} else {{")?;
                inside(f, otherwise, names, depth)?;
            }
            writeln!(f, "{indent}}}")
        }
        Statement::Repeat(turns, body) => {
            writeln!(f, "for _ in 0..{turns} {{")?;
            inside(f, body, names, depth)?;
            writeln!(f, "{indent}}}")
        }
        Statement::While(place, body) => {
            writeln!(f, "while {}.sum(..)?.item()? > 0 {{ // at most 3 turns", names.of(*place))?;
            inside(f, body, names, depth)?;
            writeln!(f, "{indent}}}")
        }
        Statement::NoGrad(body) => {
            writeln!(f, "no_grad(|| {{")?;
            inside(f, body, names, depth)?;
            writeln!(f, "{indent}}})?;")
        }
        Statement::Disabled(inputs, body, outputs) => function(f, "disable", inputs, body, outputs, names, depth),
        Statement::Nested(number, inputs, body, outputs) => {
            function(f, &format!("compile_{number}"), inputs, body, outputs, names, depth)
        }
        Statement::Fail => writeln!(f, "{}.reshape(/* an error */)?;", names.of(0)),
    }
}

/// A function of its own, and a call of it.
fn function(
    f: &mut Formatter<'_>,
    what: &str,
    inputs: &[ValueNumber],
    body: &Block,
    outputs: &[ValueNumber],
    names: &mut Names,
    depth: usize,
) -> fmt::Result {
    let given = names.list(inputs);
    let mut own = Names { values: Vec::new(), next: names.next + outputs.len() };
    let parameters: Vec<String> = inputs.iter().map(|_| own.add()).collect();
    let results: Vec<String> = outputs.iter().map(|_| names.add()).collect();
    writeln!(f, "let (mut {}) = {what}(|({})| {{", results.join(", mut "), parameters.join(", "))?;
    block(f, body, &mut own, depth + 1)?;
    let indent = "    ".repeat(depth);
    writeln!(f, "{indent}    Ok(({}))", own.list(outputs))?;
    names.next = own.next;
    writeln!(f, "{indent}}}).call(({given}))?;")
}

fn expression(expression: &Expression, names: &Names) -> String {
    let of = |place: &ValueNumber| names.of(*place);
    match expression {
        Expression::Unary(op, place) => unary(*op, of(place)),
        Expression::Binary(Binary::Add, a, b) => format!("({} + {})?", of(a), of(b)),
        Expression::Binary(Binary::Sub, a, b) => format!("({} - {})?", of(a), of(b)),
        Expression::Binary(Binary::Mul, a, b) => format!("({} * {})?.clamp(-8, 8)?", of(a), of(b)),
        Expression::Binary(Binary::Max, a, b) => format!("({} * 2)?.maximum(({} * 2 + 1)?)?", of(a), of(b)),
        Expression::Where(test, a, b) => format!("{}.gt(0)?.where_({}, {})?", of(test), of(a), of(b)),
        Expression::Scaled(by, place) => format!("({} * {}.sum(..)?.item()?)?.clamp(-8, 8)?", of(place), of(by)),
        Expression::Selected(mask, place) => {
            format!("{}.masked_select({}.gt(0)?)?.sum(..)? // of one shape", of(place), of(mask))
        }
        Expression::Counted(mask, place) => {
            let (x, y) = (of(mask), of(place));
            format!("({y} * count)?.clamp(-8, 8)? // of a disabled part's half of {x}.masked_select({x}.gt(0)?)?")
        }
        Expression::Rows(mask, place) => {
            format!("{}.index_select(0, {}.sum(-1)?.gt(0)?.nonzero()?.squeeze(1)?)?.sum(0)?", of(place), of(mask))
        }
        Expression::Cut(by, place) => {
            let (x, y) = (of(by), of(place));
            format!("{y}.narrow(0, 0, {x}.sum(..)?.abs()?.to_dtype(I64)?.item_size()?.min({y}.size(0)?))?.sum(0)?")
        }
        Expression::Decided(by, place) => {
            let (n, x) = (of(by), of(place));
            format!("decided({n}.sum(..)?.item_float()?, {x}.sum(..)?.item_float()?, {x})?.clamp(-8, 8)?")
        }
        Expression::Halved(by, place) => {
            format!("{{ while halves({}.sum(..)?.item_float()?) {{ {x} - 1 }} }}.clamp(-8, 8)?", of(by), x = of(place))
        }
        Expression::Scan(place) => {
            format!("last_plus_sum(scan(|(sum, x)| (sum + x).clamp(-8, 8)).call(zeros, {})?)?", of(place))
        }
        Expression::Loop(kind, place, chain) => {
            let chain = chain.iter().fold("v".to_owned(), |inner, op| unary(*op, &inner));
            format!("loop_{kind:?}(|v| {chain}.clamp(-8, 8), {})?", of(place))
        }
        Expression::Get(from) => format!("{}.get()", var(*from)),
        Expression::Grad(from) => format!("{}.grad().unwrap_or(zeros)", var(*from)),
        Expression::Held(place) => format!("held{}", place % 3),
        Expression::Random => "numbers.randint(-3, 4, 3)?".to_owned(),
        Expression::Cond(test, place, a, b) => {
            let side = |op: &Unary| unary(*op, &format!("row({})", of(place)));
            format!("cond({}.sum(..)?.gt(0)?, || {}.sum(..), || {}.sum(..))?", of(test), side(a), side(b))
        }
        Expression::GradOf(place, chain, twice) => {
            let chain = chain.iter().fold("v".to_owned(), |inner, op| unary(*op, &inner));
            let slope = format!("grad(|v| {chain}.sum(..))");
            match twice {
                true => format!("grad(|u| ({slope}(u)? * u)?.sum(..))({})?", of(place)),
                false => format!("{slope}({})?", of(place)),
            }
        }
        Expression::Jvp(place, chain) => {
            let chain = chain.iter().fold("v".to_owned(), |inner, op| unary(*op, &inner));
            let x = of(place);
            format!("sum_of_both(jvp(|v| {chain}, {x}, ({x} + 1)?.detach())?)?.clamp(-8, 8)?")
        }
        Expression::Gradients(from, by, on_tape) => {
            let name = if *on_tape { "gradients_on_tape" } else { "gradients" };
            let by = of(by);
            format!("{}.sum(..)?.{name}(&[&{by}])?.get(&{by}).unwrap_or(zeros)", of(from))
        }
    }
}

fn unary(op: Unary, x: &str) -> String {
    match op {
        Unary::Neg => format!("{x}.neg()?"),
        Unary::Double => format!("({x} * 2)?"),
        Unary::Next => format!("({x} + 1)?"),
        Unary::Half => format!("{x}.narrow(0, 0, ({x}.size(0)? + 1) / 2)?.sum(0)?"),
        Unary::Count => format!("({x} + {x}.size(0)?)?"),
        Unary::Abs => format!("{x}.abs()?"),
        Unary::Relu => format!("{x}.relu()?"),
        Unary::Square => format!("{x}.square()?.clamp(-8, 8)?"),
        Unary::Sum => format!("{x}.sum(..)?"),
        Unary::SumRows => format!("{x}.sum(0 if rank 2)?"),
        Unary::Product => format!("{x}.matmul(matrix)?"),
        Unary::Detach => format!("{x}.detach()"),
        Unary::RequiresGrad => format!("{x}.requires_grad()"),
        Unary::Flip => format!("{x}.flip(-1)?"),
        Unary::Integer => format!("{x}.to_dtype(I64)?.to_dtype(float)?"),
        Unary::Own => format!("apply(Own, {x})?"),
        Unary::Hook => format!("{x}.with_hook(neg)?"),
    }
}
