//! One program for many sizes of tensors that are no row-major ones: transposed, channels last, parts of larger ones.

use kiln::{Compiled, DType, Device, Dynamic, Generator, Options, Result, Tensor, compile, compile_with};

fn random(shape: &[usize], seed: usize) -> Tensor {
    Generator::new(seed as u64).randn(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, what: &str) {
    assert_eq!(a.shape(), b.shape(), "{what}");
    for (x, y) in a.to_vec::<f32>().unwrap().iter().zip(b.to_vec::<f32>().unwrap()) {
        assert!((x - y).abs() < 1e-4, "{what}: {x} and {y}");
    }
}

type Compute = fn(&Tensor) -> Result<Tensor>;

/// A graph, and one that reads an element on its way.
fn functions() -> [(&'static str, Compute); 2] {
    [
        ("whole", |x: &Tensor| x.mul(2.0)?.tanh()?.add(x)?.sum(-1)),
        ("broken", |x: &Tensor| {
            let h = x.mul(2.0)?.tanh()?;
            let is_positive = h.sum(..)?.gt(0.0)?.item::<bool>()?;
            if is_positive { h.exp()?.add(x)?.sum(-1) } else { h.sub(x)?.amax(-1) }
        }),
    ]
}

/// How tensors of a size are made.
type Make = fn(usize) -> Tensor;

const LAYOUTS: [(&str, Make); 12] = [
    ("reversed", |n| random(&[n], n).flip(0).unwrap()),
    ("reversed rows", |n| random(&[n, 5], n).flip(0).unwrap()),
    ("both axes reversed", |n| random(&[n, n + 2], n).flip([0, 1]).unwrap()),
    ("reversed columns of a transposed part", |n| {
        random(&[7, n + 3], n).narrow(1, 1, n).unwrap().t().unwrap().flip(1).unwrap()
    }),
    ("transposed", |n| random(&[6, n], n).t().unwrap()),
    ("transposed, both change", |n| random(&[n, n + 3], n).t().unwrap()),
    ("columns of a wider matrix", |n| random(&[n, 11], n).narrow(1, 3, 5).unwrap()),
    ("fewer columns of a wider matrix", |n| random(&[4, 40], n).narrow(1, 1, n).unwrap()),
    ("all columns but the last", |n| random(&[4, n + 1], n).narrow(1, 0, n).unwrap()),
    ("every other row", |n| random(&[2 * n, 6], n).slice(0, 0, 2 * n, 2).unwrap()),
    ("channels last", |n| random(&[2, n, n + 1, 3], n).permute([0, 3, 1, 2]).unwrap()),
    ("repeated and transposed", |n| random(&[6, n], n).t().unwrap().unsqueeze(0).unwrap().expand((3, n, 6)).unwrap()),
];

#[test]
fn sizes_are_symbols() {
    for (name, f) in functions() {
        for (layout, make) in LAYOUTS {
            let fast: Compiled<_, Tensor, Tensor> = compile(f);
            for n in [2, 3, 5, 9, 4, 17, 8, 21, 3] {
                let x = make(n);
                assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("{name}, {layout}, {n}"));
            }
            let stats = fast.stats();
            assert_eq!((stats.compiles, stats.fallbacks), (2, 0), "{name}, {layout}");
        }
    }
}

/// The strides of two tensors of one size are not of one program: what other sizes say decides.
#[test]
fn a_layout_that_changes() {
    for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::range("n", 0..=100).at(0, 0).into()] {
        for (name, f) in functions() {
            let fast = compile_with(f, Options { dynamic: dynamic.clone(), ..Options::default() });
            let sizes = [3, 4, 0, 7, 1, 2, 9, 0, 1, 30];
            for (call, &n) in sizes.iter().chain(&sizes).enumerate() {
                let x = match call % 4 {
                    0 => random(&[6, n], call).t().unwrap(),
                    1 => random(&[n, 6], call),
                    2 => random(&[n, 9], call).narrow(1, 3, 6).unwrap(),
                    _ => random(&[n, 6], call).flip(0).unwrap(),
                };
                // The greatest of nothing is none.
                match f(&x) {
                    Ok(expected) => assert_close(&fast.call(&x).unwrap(), &expected, &format!("{name}, {call}, {n}")),
                    Err(_) => assert!(fast.call(&x).is_err(), "{name}, {call}, {n}"),
                }
            }
        }
    }
}

/// Operations by themselves get programs for all sizes, too.
#[test]
fn eager_operations() {
    for (layout, make) in LAYOUTS {
        for n in [2, 3, 5, 9, 4, 17, 8, 21, 3, 30, 31, 32] {
            let x = make(n);
            let own = x.contiguous().unwrap();
            assert_close(&x.mul(3.0).unwrap(), &own.mul(3.0).unwrap(), layout);
            assert_close(&x.sum(0).unwrap(), &own.sum(0).unwrap(), layout);
            assert_close(&x.softmax(-1).unwrap(), &own.softmax(-1).unwrap(), layout);
            assert_close(&x.add(&own).unwrap(), &own.mul(2.0).unwrap(), layout);
        }
    }
}

#[test]
fn guards_say_strides() {
    let fast = compile(|x: &Tensor| x.tanh());
    for n in [3, 5, 8] {
        fast.call(&random(&[6, n], n).t().unwrap()).unwrap();
    }
    let guards = fast.programs().iter().flat_map(|program| program.guards.clone()).collect::<Vec<_>>().join("; ");
    assert!(guards.contains("f32[s0, 6] with strides [1, s0] on cpu"), "{guards}");
}
