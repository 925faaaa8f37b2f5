//! Rule by rule, then random expressions against plain evaluation.

use super::*;

fn dim(text: &str) -> Dim {
    Dim::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn sym(name: &str) -> Symbol {
    Symbol::new(name).expect("a valid name")
}

#[track_caller]
fn check(text: &str, normal: &str) {
    assert_eq!(dim(text).to_string(), normal, "normal form of {text}");
}

#[track_caller]
fn check_within(text: &str, ranges: &Ranges, normal: &str) {
    assert_eq!(dim(text).simplify(ranges).to_string(), normal, "{text} simplified");
}

#[test]
fn symbols_are_small_identifiers_ordered_by_name() {
    assert_eq!(size_of::<Symbol>(), 16);
    for bad in ["", "1a", "a-b", "a b", "é", "sixteen_letters_", "undefined"] {
        assert_eq!(Symbol::new(bad), None, "{bad}");
    }
    assert_eq!(sym("fifteen_letters").as_str(), "fifteen_letters");
    let mut names = ["b", "ab", "a", "_", "a1", "B", "i10", "i2"].map(sym);
    names.sort();
    assert_eq!(names.map(|s| s.to_string()), ["B", "_", "a", "a1", "ab", "b", "i10", "i2"]);
    assert_eq!(Symbol::axis(0).as_str(), "i0");
    assert_eq!(Symbol::axis(120), sym("i120"));
    assert_eq!(Symbol::axis(99_999_999_999_999).as_str(), "i99999999999999");
}

#[test]
fn constants_stay_inline() {
    assert_eq!(size_of::<Dim>(), 16);
    assert_eq!(Dim::default(), 0);
    assert_eq!(Dim::from(3usize) * 4 - 2, 10);
    assert!((dim("a + 1") - dim("a")).is_one());
    assert!(dim("a - a").is_zero());
    assert_eq!(dim("a").as_const(), None);
    assert_eq!(dim("a").as_symbol(), Some(sym("a")));
    assert_eq!(dim("a*2").as_symbol(), None);
    assert_eq!(Dim::from(7).as_usize(), Some(7));
    assert_eq!(Dim::from(-7).as_usize(), None);
}

#[test]
fn sums_and_products_are_polynomials() {
    check("3 + b*4096", "b*4096 + 3");
    check("(a + b)*(a - b)", "a*a - b*b");
    check("-(b - 3)", "-b + 3");
    check("2*(x + 1) - 2*x", "2");
    check("z*y*x*2", "x*y*z*2");
    check("-x*2 - 1", "-x*2 - 1");
    check("(a + 1)*(a + 1)*(a + 1)", "a*a*a + a*a*3 + a*3 + 1");
    assert_eq!(5 - dim("a"), dim("5 - a"));
    assert_eq!([dim("a"), dim("2"), dim("b")].iter().product::<Dim>(), dim("a*b*2"));
    assert_eq!([dim("a"), dim("2"), dim("b")].into_iter().sum::<Dim>(), dim("a + b + 2"));
}

#[test]
fn division_rules() {
    check("x // 1", "x");
    check("0 // x", "0");
    check("x // x", "1");
    check("-7 // 2", "-4");
    check("7 // -2", "-4");
    check("(64*j + i) // 64", "j + i // 64");
    check("(x*4 + 7) // 4", "x + 1");
    check("(x + 7) // 4", "(x + 3) // 4 + 1");
    check("(x - 1) // 4", "(x + 3) // 4 - 1");
    check("x // 4 // 16", "x // 64");
    check("(x // 4 + 3) // 16", "(x + 12) // 64");
    check("x // t // 4", "x // (t*4)");
    check("x*6 // 4", "x + x // 2");
    check("(x*2 + y*6 + 3) // 8", "(x + y*3 + 1) // 4");
    check("x // -4", "(-x) // 4");
    check("(x % 64) // 16", "(x // 16) % 4");
    check("(x % 16) // 64", "0");
    check("(b*t) // t", "b");
    check("(t*j + i) // t", "j + i // t");
    check("(a*t + b*t) // (t*c)", "(a + b) // c");
    check("(t*t - 1) // (t + 1)", "t - 1");
    check("x // -t", "(-x) // t");
}

#[test]
fn remainder_rules() {
    check("x % 1", "0");
    check("x % x", "0");
    check("-7 % 4", "1");
    check("7 % -4", "-1");
    check("(64*j + i) % 64", "i % 64");
    check("(x + 7) % 4", "(x + 3) % 4");
    check("(x % 16) % 4", "x % 4");
    check("(x % 16 + y) % 4", "(x + y) % 4");
    check("(x % 4) % 16", "x % 4");
    check("(x % 4 * y) % 8 % 2", "(x*y) % 2");
    check("x*4 % 8", "(x % 2)*4");
    check("(x*4 + 3) % 8", "(x % 2)*4 + 3");
    check("x % -4", "-((-x) % 4)");
    check("(b*t + i) % t", "i % t");
    check("(x % t + y) % t", "(x + y) % t");
    check("(a*t) % (t*c)", "t*(a % c)");
}

#[test]
fn ceiling_division() {
    check("(t + 63) // 64", "(t + 63) // 64");
    assert_eq!(dim("t").ceil_div(&64.into()), dim("(t + 63) // 64"));
    assert_eq!(dim("t*64").ceil_div(&64.into()), dim("t"));
    assert_eq!(Dim::from(7).ceil_div(&Dim::from(-2)), -3);
    assert_eq!(dim("a").ceil_div(&dim("t")).eval(&|s| Some(if s == sym("a") { 9 } else { 4 })), Some(3));
}

#[test]
fn minimum_and_maximum_rules() {
    check("min(b, a)", "min(a, b)");
    check("min(a, min(b, 3), 5)", "min(3, a, b)");
    check("max(a, max(b, 3), 5, a)", "max(5, a, b)");
    check("min(a, a)", "a");
    check("min(a + 3, a)", "a");
    check("max(a + 3, a)", "a + 3");
    check("min(7, 3)", "3");
    check("max(min(a, 4), 0)", "max(0, min(4, a))");
    check("min(a, b)*2 + 1", "min(a, b)*2 + 1");
    // By value and by reference, the method is the one on values and not the one of the structural order.
    assert_eq!(dim("b").min(dim("a")), dim("min(a, b)"));
    let (a, b) = (&dim("a"), &dim("b"));
    assert_eq!(b.max(a), dim("max(a, b)"));
}

#[test]
fn overflow_is_undefined_and_absorbs() {
    let max = Dim::from(i64::MAX);
    for bad in [&max + 1, &max * 2, dim("a") * i64::MAX * 2, Dim::from(i64::MIN) * -1, max.floor_div(&Dim::from(0))] {
        assert!(bad.is_undefined());
        assert_eq!(bad.eval(&|_| Some(1)), None);
        assert_eq!(bad.bounds(&Ranges::new()), (None, None));
        for absorbed in [&bad * Dim::default(), &bad - &bad, bad.modulo(&Dim::from(1)), bad.clone().min(Dim::from(0))] {
            assert!(absorbed.is_undefined());
        }
        assert_eq!(dim(&bad.to_string()), bad);
        assert_eq!(bad.simplify(&Ranges::new()), bad);
        assert_eq!(bad.linear_in(sym("a")), None);
        assert_eq!(bad.div_exact(&Dim::from(1)), None);
    }
    assert_eq!(dim("a*b").eval(&|_| Some(i64::MAX)), None);
    assert_eq!(dim("a*b - a*c").eval(&|_| Some(i64::MAX)), Some(0));
    assert_eq!(dim("a // b").eval(&|_| Some(0)), None);
    assert_eq!(dim("a // b").eval(&|s| (s == sym("a")).then_some(1)), None);
    assert_eq!(Dim::from(-5) - Dim::from(i64::MIN), i64::MAX - 4);
}

#[test]
fn size_limits_hold() {
    let wide: Dim = (0..100).map(Dim::axis).sum();
    assert!((&wide * &wide).is_undefined());
    let power = (0..8).fold(dim("a"), |acc, _| &acc * &acc);
    assert!(power.is_undefined());
    let deep = (0..100).fold(dim("a"), |acc, n| (acc + Dim::axis(n)).floor_div(&dim("t")));
    assert!(deep.is_undefined());
    let nested = (0..64).fold(dim("a"), |acc, n| (acc + Dim::axis(n)).floor_div(&dim("t")));
    assert_eq!(dim(&nested.to_string()), nested);
    assert_eq!(nested.simplify(&some_ranges()).eval(&|_| Some(1)), Some(65));
    let doubling = (0..60).fold(dim("a"), |acc, n| acc.floor_div(&dim("t")) * Dim::axis(n) + acc.modulo(&dim("t")));
    assert!(doubling.is_undefined());
}

#[test]
fn exact_division() {
    let exact = |a: &str, b: &str| dim(a).div_exact(&dim(b)).map(|q| q.to_string());
    assert_eq!(exact("b*t*4096", "t*64").as_deref(), Some("b*64"));
    assert_eq!(exact("(a + b)*(c + 3)*(a - 7)", "(a + b)*(a - 7)").as_deref(), Some("c + 3"));
    assert_eq!(exact("((t + 63) // 64)*b*2", "(t + 63) // 64").as_deref(), Some("b*2"));
    assert_eq!(exact("0", "a").as_deref(), Some("0"));
    assert_eq!(exact("12", "-4").as_deref(), Some("-3"));
    for (a, b) in [("b*t + 1", "t"), ("b*3", "2"), ("7", "2"), ("a", "0"), ("1", "a"), ("a*a + 1", "a + 1")] {
        assert_eq!(exact(a, b), None, "{a} / {b}");
    }
}

#[test]
fn symbols_substitution_and_linearity() {
    let d = dim("b*t + (t + 63) // 64 + min(k, 4)");
    assert_eq!(d.symbols(), ["b", "k", "t"].map(sym));
    assert!(d.contains(sym("k")) && !d.contains(sym("z")));
    let with = |s: Symbol| match s.as_str() {
        "t" => Some(dim("u*64 + 1")),
        "k" => Some(Dim::from(9)),
        _ => None,
    };
    assert_eq!(d.substitute(&with), dim("b*u*64 + b + u + 5"));
    let swap = |s: Symbol| Some(if s == sym("a") { dim("b") } else { dim("a") });
    assert_eq!(dim("a - b*2").substitute(&swap), dim("b - a*2"));

    let linear = dim("i*b*4 + i + b + 3").linear_in(sym("i"));
    assert_eq!(linear, Some((dim("b*4 + 1"), dim("b + 3"))));
    assert_eq!(dim("b").linear_in(sym("i")), Some((dim("0"), dim("b"))));
    for not in ["i*i", "i + i // 4", "min(i, 3)", "i*(i % 2)"] {
        assert_eq!(dim(not).linear_in(sym("i")), None, "{not}");
    }
}

/// `0 ≤ i < 64`, `0 ≤ k < 4`, `0 ≤ r < t`, `0 ≤ q < n`, `0 ≤ s < p + 2`, `1 ≤ t ≤ 4096`, `n ≥ 1`, `p ≥ 0`.
fn some_ranges() -> Ranges {
    let mut ranges = Ranges::new();
    ranges.set(sym("i"), 0, Some(63));
    ranges.set(sym("k"), 0, Some(3));
    ranges.set(sym("t"), 1, Some(4096));
    ranges.set(sym("n"), 1, None);
    ranges.set_below(sym("r"), dim("t"));
    ranges.set_below(sym("q"), dim("n"));
    ranges.set(sym("p"), 0, None);
    ranges.set_below(sym("s"), dim("p + 2"));
    ranges
}

#[test]
fn interval_bounds() {
    let ranges = some_ranges();
    let bounds = |text: &str| dim(text).bounds(&ranges);
    assert_eq!(bounds("i*4 + k"), (Some(0), Some(255)));
    assert_eq!(bounds("k - i"), (Some(-63), Some(3)));
    assert_eq!(bounds("r"), (Some(0), Some(4095)));
    assert_eq!(bounds("q"), (Some(0), None));
    assert_eq!(bounds("(t + 63) // 64"), (Some(1), Some(64)));
    assert_eq!(bounds("x % 8"), (Some(0), Some(7)));
    assert_eq!(bounds("x"), (None, None));
    assert_eq!(bounds("(i - 32) // k"), (None, None));
    assert_eq!(bounds("(i - 32) // t"), (Some(-32), Some(31)));
    assert_eq!(bounds("min(x, i)"), (None, Some(63)));
    assert_eq!(bounds("max(x, i)"), (Some(0), None));
    // Sound, not tight: the product is expanded before its terms are bounded one by one (tight: -168, 21).
    assert_eq!(bounds("(k - 3)*(i - 7)"), (Some(-189), Some(210)));
    assert_eq!(bounds("min(k, 3)*max(i, -7)"), (Some(0), Some(189)));
    assert_eq!(ranges.get(sym("r")), Some((0, Some(4095))));
    assert_eq!(ranges.get(sym("x")), None);
}

#[test]
fn ranges_remove_divisions() {
    let ranges = some_ranges();
    for (text, normal) in [
        ("(64*j + i) // 64", "j"),
        ("(64*j + i) % 64", "i"),
        ("i // 64", "0"),
        ("i % 64", "i"),
        ("(i + 64) // 64", "1"),
        ("(i - 64) % 64", "i"),
        ("(4*j + k) // 16", "j // 4"),
        ("(4*j + k) % 16", "k + (j % 4)*4"),
        ("(t*j + r) // t", "j"),
        ("(t*j + r) % t", "r"),
        ("r // t", "0"),
        ("(n*t*j + n*r + q) // (n*t)", "j"),
        ("(n*t*j + n*r + q) % (n*t)", "n*r + q"),
        ("((n*t*j + n*r + q) // n) % t", "r"),
        ("(64*j + i) // (64*t)", "j // t"),
        ("(j*(p + 2) + min(p, 5) % (p + 2)) // (p + 2)", "j"),
        ("(j*(p + 2) + s) // (p + 2)", "j"),
        ("(j*(p + 2) + s) % (p + 2)", "s"),
        ("(x + r // 2) // n // t", "(x + r // 2) // (n*t)"),
        ("min(i, 64)", "i"),
        ("max(i, 0)", "i"),
        ("min(r, t)", "r"),
        ("min(i, 63)", "i"),
        ("min(i, 62)", "min(62, i)"),
        ("x // 8 * 8 + x % 8", "x"),
        ("b*(x // 8)*16 + b*(x % 8)*2", "b*x*2"),
        ("(x // t)*t + x % t", "x"),
        ("(x // 4)*4 + x % 4 + x % 8", "x + x % 8"),
    ] {
        check_within(text, &ranges, normal);
    }
    let mut one = Ranges::new();
    one.set(sym("i"), 5, Some(5));
    check_within("a // (i - 5) + b // (i - 6)", &one, "a // (i - 5) + b // (i - 6)");
    check_within("b // (i - 6)", &one, "-b");
    check_within("i*b + i // 2", &one, "b*5 + 2");
}

#[test]
fn proofs() {
    let ranges = some_ranges();
    let less = |a: &str, b: &str| dim(a).is_less(&dim(b), &ranges);
    assert_eq!(less("i", "64"), Some(true));
    assert_eq!(less("i", "63"), None);
    assert_eq!(less("i", "0"), Some(false));
    assert_eq!(less("r", "t"), Some(true));
    assert_eq!(less("t", "r"), Some(false));
    assert_eq!(less("n*r + q", "n*t"), Some(true));
    assert_eq!(less("n*r + q + 1", "n*t"), None);
    assert_eq!(less("x", "x + 1"), Some(true));
    assert_eq!(less("x", "y"), None);
    assert!(dim("x % t").is_nonneg(&ranges));
    assert_eq!(less("x % t", "t"), Some(true));
    assert_eq!(less("i % 5", "i + 1"), Some(true));
    assert_eq!(less("n*(r // 2) + q", "n*t"), Some(true));
    assert_eq!(less("r // 64", "(t + 63) // 64"), Some(true));
    assert_eq!(less("r // 64", "t // 64"), None);
    assert_eq!(less("(x // t)*t", "x + 1"), Some(true));
    assert_eq!(less("(x // t)*t", "x"), None);
    assert_eq!(less("min(x, r)", "t"), Some(true));
    assert_eq!(less("r", "max(x, t)"), Some(true));
    assert_eq!(less("r", "min(x, t)"), None);
    let mut circular = Ranges::new();
    circular.set_below(sym("a"), dim("b + 5"));
    circular.set_below(sym("b"), dim("a + 5"));
    assert!(dim("a - b + 4").is_nonneg(&circular));
    assert!(!dim("a - b + 3").is_nonneg(&circular));
    assert_eq!(dim("a").bounds(&circular), (Some(0), None));
}

#[test]
fn parse_errors_say_where() {
    let error = |text: &str| Dim::parse(text).expect_err(text);
    assert_eq!(error(""), DimParseError::Expected { expected: "a number, a name or `(`", at: 0 });
    assert_eq!(error("a b"), DimParseError::Expected { expected: "an operator or the end", at: 2 });
    assert_eq!(error("a / b"), DimParseError::Expected { expected: "`//`", at: 2 });
    assert_eq!(error("(a"), DimParseError::Expected { expected: "`)`", at: 2 });
    assert_eq!(error("min(a"), DimParseError::Expected { expected: "`,` or `)`", at: 5 });
    assert_eq!(error("1 + 9223372036854775808"), DimParseError::NumberTooLarge { at: 4 });
    assert_eq!(error("a // 0"), DimParseError::Undefined { at: 2 });
    assert_eq!(error("9223372036854775807 + 1"), DimParseError::Undefined { at: 20 });
    assert!(matches!(error("a_name_with_16_c"), DimParseError::NameTooLong { at: 0, .. }));
    assert!(matches!(error(&"(".repeat(100_000)), DimParseError::TooDeep { .. }));
    let wide = format!("({})*({0})", (0..70).map(|n| format!("i{n}")).collect::<Vec<_>>().join("+"));
    assert!(matches!(error(&wide), DimParseError::Undefined { .. }));
    assert_eq!(dim(&format!("{}1", "-".repeat(100_000))), 1);
    for most in ["-9223372036854775808", "a*-9223372036854775808", "a*b + c*-9223372036854775808 - 1"] {
        assert_eq!(dim(most).to_string(), most);
    }
}

/// The written expression, evaluated without any normalising.
enum Written {
    Const(i64),
    Sym(usize),
    Binary(u8, Box<Written>, Box<Written>),
}

const NAMES: [&str; 4] = ["a", "b", "i", "t"];

impl Written {
    fn random(rng: &mut Rng, depth: u32) -> Written {
        if depth == 0 || rng.below(6) == 0 {
            return if rng.below(3) == 0 {
                Written::Const(*rng.pick(&[-9, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 16, 64]))
            } else {
                Written::Sym(rng.below(NAMES.len()))
            };
        }
        let left = Written::random(rng, depth - 1);
        let right = match rng.below(3) {
            0 => Written::Const(*rng.pick(&[2, 4, 6, 8, 16, -4, 3])),
            _ => Written::random(rng, depth - 1),
        };
        Written::Binary(*rng.pick(b"++--**//%%mM"), Box::new(left), Box::new(right))
    }

    /// Every constant moved next to an end of the 64-bit range or to half of it.
    fn stretch(&mut self, rng: &mut Rng) {
        match self {
            Written::Const(c) => {
                let end = *rng.pick(&[0, i64::MIN, i64::MAX, i64::MIN / 2, i64::MAX / 2, 1 << 32]);
                *c = end.saturating_add(*c);
            }
            Written::Sym(_) => {}
            Written::Binary(_, a, b) => {
                a.stretch(rng);
                b.stretch(rng);
            }
        }
    }

    fn dim(&self) -> Dim {
        match self {
            Written::Const(c) => (*c).into(),
            Written::Sym(n) => sym(NAMES[*n]).into(),
            Written::Binary(operator, a, b) => {
                let (a, b) = (a.dim(), b.dim());
                match operator {
                    b'+' => a + b,
                    b'-' => a - b,
                    b'*' => a * b,
                    b'/' => a.floor_div(&b),
                    b'%' => a.modulo(&b),
                    b'm' => a.min(b),
                    _ => a.max(b),
                }
            }
        }
    }

    fn eval(&self, at: &[i64; 4]) -> Option<i128> {
        match self {
            Written::Const(c) => Some((*c).into()),
            Written::Sym(n) => Some(at[*n].into()),
            Written::Binary(operator, a, b) => {
                let (a, b) = (a.eval(at)?, b.eval(at)?);
                match operator {
                    b'+' => a.checked_add(b),
                    b'-' => a.checked_sub(b),
                    b'*' => a.checked_mul(b),
                    b'/' => floor_div_wide(a, b),
                    b'%' => modulo_wide(a, b),
                    b'm' => Some(a.min(b)),
                    _ => Some(a.max(b)),
                }
            }
        }
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn between(&mut self, lo: i64, hi: i64) -> i64 {
        lo + self.below((hi - lo + 1) as usize) as i64
    }
}

fn value_at(at: &[i64; 4]) -> impl Fn(Symbol) -> Option<i64> {
    let at = *at;
    move |symbol| NAMES.iter().position(|name| *name == symbol.as_str()).map(|n| at[n])
}

/// Wherever the written expression has a value, the `Dim` has the same one.
#[track_caller]
fn agree(written: &Written, dim: &Dim, at: &[i64; 4], what: &str) -> bool {
    match written.eval(at).and_then(|v| i64::try_from(v).ok()) {
        Some(value) => {
            assert_eq!(dim.eval(&value_at(at)), Some(value), "{what}: {dim} at {at:?}, written {}", written.dim());
            true
        }
        None => false,
    }
}

const CASES: usize = 20_000;

#[test]
fn random_normal_forms_keep_their_value() {
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let mut compared = 0;
    for _ in 0..CASES {
        let depth = 1 + rng.below(4) as u32;
        let written = Written::random(&mut rng, depth);
        let dim = written.dim();
        if dim.is_undefined() {
            continue;
        }
        for _ in 0..6 {
            let at = [0; 4].map(|_| rng.between(-70, 70));
            compared += usize::from(agree(&written, &dim, &at, "normal form"));
        }
    }
    assert!(compared > CASES * 2, "only {compared} points compared");
}

#[test]
fn random_extremes_never_give_a_wrong_value() {
    let mut rng = Rng(0x2D35_8DCC_AA6C_78A5);
    let mut compared = 0;
    for _ in 0..CASES {
        let depth = 1 + rng.below(4) as u32;
        let mut written = Written::random(&mut rng, depth);
        written.stretch(&mut rng);
        let expr = written.dim();
        assert_eq!(Dim::parse(&expr.to_string()).as_ref(), Ok(&expr));
        let mut ranges = Ranges::new();
        ranges.set(sym("a"), i64::MIN, Some(i64::MAX));
        ranges.set(sym("b"), i64::MAX - 9, None);
        ranges.set_below(sym("i"), dim("t"));
        ranges.set(sym("t"), 1, Some(i64::MAX));
        let simple = expr.simplify(&ranges);
        for _ in 0..4 {
            let t = *rng.pick(&[1, 2, i64::MAX - 1, i64::MAX]);
            let i = *rng.pick(&[0, t / 2, t - 1]);
            let at = [*rng.pick(&[i64::MIN, -1, 0, i64::MAX]), i64::MAX - rng.between(0, 9), i, t];
            let Some(value) = written.eval(&at).and_then(|v| i64::try_from(v).ok()) else { continue };
            for form in [&expr, &simple] {
                let got = form.eval(&value_at(&at));
                assert!(got.is_none_or(|got| got == value), "{form} is {got:?} at {at:?}, not {value}: {expr}");
                compared += usize::from(got.is_some());
            }
            let (lo, hi) = expr.bounds(&ranges);
            assert!(lo.is_none_or(|lo| lo <= value) && hi.is_none_or(|hi| value <= hi), "{expr}: {lo:?} {hi:?}");
        }
    }
    assert!(compared > CASES, "only {compared} values compared");
}

#[test]
fn random_texts_parse_back() {
    let mut rng = Rng(0xD1B5_4A32_D192_ED03);
    for _ in 0..CASES {
        let depth = 1 + rng.below(4) as u32;
        let dim = Written::random(&mut rng, depth).dim();
        let text = dim.to_string();
        assert_eq!(Dim::parse(&text).as_ref(), Ok(&dim), "{text}");
    }
}

#[test]
fn random_words_parse_or_say_where() {
    let mut rng = Rng(0x1FE2_91F3_5A0C_44B7);
    let words = [
        "a",
        "t",
        "min(",
        "max(",
        "(",
        ")",
        ")",
        ",",
        " ",
        "+",
        "-",
        "*",
        "//",
        "/",
        "%",
        "0",
        "7",
        "64",
        "é",
        "undefined",
    ];
    let mut parsed = 0;
    for _ in 0..CASES {
        let len = 1 + rng.below(12);
        let text: String = (0..len).map(|_| *rng.pick(&words)).collect();
        match Dim::parse(&text) {
            Ok(dim) => {
                assert_eq!(Dim::parse(&dim.to_string()), Ok(dim), "{text}");
                parsed += 1;
            }
            Err(
                DimParseError::Expected { at, .. }
                | DimParseError::NumberTooLarge { at }
                | DimParseError::NameTooLong { at, .. }
                | DimParseError::TooDeep { at }
                | DimParseError::Undefined { at },
            ) => assert!(at <= text.len(), "{text}: {at}"),
        }
    }
    assert!(parsed > CASES / 50, "only {parsed} texts were expressions");
}

#[test]
fn random_substitutions_keep_their_value() {
    let mut rng = Rng(0xA076_1D64_78BD_642F);
    let mut compared = 0;
    for _ in 0..CASES {
        let (outer, inner) = (Written::random(&mut rng, 3), Written::random(&mut rng, 2));
        let (outer, inner) = (outer.dim(), inner.dim());
        let replaced = outer.substitute(&|s| (s == sym("i")).then(|| inner.clone()));
        if replaced.is_undefined() {
            continue;
        }
        for _ in 0..4 {
            let mut at = [0; 4].map(|_| rng.between(-70, 70));
            let Some(value) = inner.eval(&value_at(&at)) else { continue };
            let got = replaced.eval(&value_at(&at));
            at[2] = value;
            if let Some(expected) = outer.eval(&value_at(&at)) {
                assert_eq!(got, Some(expected), "{outer} with i = {inner} gave {replaced}");
                compared += 1;
            }
        }
    }
    assert!(compared > CASES, "only {compared} points compared");
}

#[test]
fn random_simplifications_keep_their_value_within_the_ranges() {
    let mut rng = Rng(0xE703_7ED1_A0B4_28DB);
    let (mut compared, mut shorter) = (0, 0);
    for _ in 0..CASES {
        let depth = 1 + rng.below(4) as u32;
        let written = Written::random(&mut rng, depth);
        let expr = written.dim();
        if expr.is_undefined() {
            continue;
        }
        let mut ranges = Ranges::new();
        let (a_lo, a_hi) = (rng.between(-20, 20), rng.between(0, 30));
        let t_lo = rng.between(1, 9);
        ranges.set(sym("a"), a_lo, Some(a_lo + a_hi));
        ranges.set(sym("t"), t_lo, None);
        ranges.set_below(sym("i"), if rng.below(2) == 0 { dim("t") } else { dim("t*b") });
        ranges.set(sym("b"), 1, Some(9));
        let simple = expr.simplify(&ranges);
        shorter += usize::from(simple != expr);
        let (lo, hi) = expr.bounds(&ranges);
        let nonneg = expr.is_nonneg(&ranges);
        for _ in 0..6 {
            let (b, t) = (rng.between(1, 9), rng.between(t_lo, t_lo + 20));
            let mut at = [rng.between(a_lo, a_lo + a_hi), b, 0, t];
            let below = ranges.below(sym("i")).and_then(|d| d.eval(&value_at(&at))).expect("i has a bound");
            at[2] = rng.between(0, below - 1);
            if agree(&written, &simple, &at, "simplified") {
                let value = expr.eval(&value_at(&at)).expect("compared above");
                assert!(
                    lo.is_none_or(|lo| lo <= value) && hi.is_none_or(|hi| value <= hi),
                    "{expr} bounds {lo:?} {hi:?}"
                );
                assert!(!nonneg || value >= 0, "{expr} is {value} at {at:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > CASES * 2, "only {compared} points compared");
    assert!(shorter > CASES / 20, "only {shorter} were simplified");
}

#[test]
fn random_exact_quotients() {
    let mut rng = Rng(0x8EBC_6AF0_9C88_C6E3);
    let mut divided = 0;
    for _ in 0..CASES {
        let (a, b) = (Written::random(&mut rng, 2).dim(), Written::random(&mut rng, 2).dim());
        let product = &a * &b;
        if b.is_zero() || product.is_undefined() {
            continue;
        }
        assert_eq!(product.div_exact(&b), Some(a.clone()), "({a})*({b})");
        if let Some(quotient) = a.div_exact(&b) {
            assert_eq!(&quotient * &b, a);
        }
        divided += 1;
    }
    assert!(divided > CASES / 2, "only {divided} divided");
}

#[test]
fn random_sums_and_products_obey_the_laws_of_rings() {
    let mut rng = Rng(0x5899_65CC_7537_4CC3);
    for _ in 0..CASES / 4 {
        let [a, b, c] = [0; 3].map(|_| Written::random(&mut rng, 2).dim());
        assert_eq!(&a + &b, &b + &a);
        assert_eq!(&a * &b, &b * &a);
        assert_eq!((&a + &b) + &c, &a + (&b + &c));
        assert_eq!((&a * &b) * &c, &a * (&b * &c));
        assert_eq!((&a + &b) * &c, &a * &c + &b * &c);
        assert_eq!(&a - &b, &a + &-&b);
        assert_eq!(a == b, a.cmp(&b).is_eq());
    }
}
