//! Variables: in place when nobody else looks, snapshots that stay, many threads.

use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Error, Tensor, Var, step};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn counting(rows: usize, columns: usize) -> Tensor {
    Tensor::arange(rows * columns, DType::F32, Device::Cpu).unwrap().reshape([rows, columns]).unwrap()
}

fn address(var: &Var) -> *mut u8 {
    var.get().buffer().ptr()
}

fn values(var: &Var) -> Vec<f32> {
    var.get().to_vec().unwrap()
}

#[test]
fn updates_write_in_place() {
    let var = Var::new(&counting(3, 4));
    let start = address(&var);
    var.add_assign(1.0).unwrap();
    var.sub_assign(t(&[0., 1., 2., 3.])).unwrap();
    var.mul_assign(2).unwrap();
    assert_eq!(values(&var), [2., 2., 2., 2., 10., 10., 10., 10., 18., 18., 18., 18.]);
    var.slice_assign((.., 1..3), &counting(3, 2)).unwrap();
    assert_eq!(values(&var), [2., 0., 1., 2., 10., 2., 3., 10., 18., 4., 5., 18.]);
    let index = Tensor::new([2i64, 0], Device::Cpu).unwrap();
    var.index_copy(0, &index, &counting(2, 4)).unwrap();
    assert_eq!(values(&var), [4., 5., 6., 7., 10., 2., 3., 10., 0., 1., 2., 3.]);
    var.index_add(1, &index, &counting(3, 2)).unwrap();
    assert_eq!(values(&var), [5., 5., 6., 7., 13., 2., 5., 10., 5., 1., 6., 3.]);
    var.fill(9).unwrap();
    assert_eq!(values(&var), [9.; 12]);
    assert_eq!(address(&var), start, "an update moved the variable");
    assert_eq!(var.version(), 7);
}

#[test]
fn a_snapshot_keeps_its_elements() {
    let var = Var::new(&t(&[1., 2., 3.]));
    let snapshot = var.get();
    let tail = snapshot.narrow(0, 1, 2).unwrap();
    drop(snapshot);
    var.add_assign(10.0).unwrap();
    assert_eq!(tail.to_vec::<f32>().unwrap(), [2., 3.]);
    assert_eq!(values(&var), [11., 12., 13.]);
    let start = address(&var);
    var.add_assign(10.0).unwrap();
    assert_eq!(address(&var), start, "nobody looked any more");
    // An operand that is the variable's own value is a snapshot too.
    var.add_assign(var.get()).unwrap();
    assert_eq!(values(&var), [42., 44., 46.]);
}

#[test]
fn every_region() {
    let whole = counting(4, 6);
    let cases: Vec<(&str, Vec<kiln::Index>)> = vec![
        ("all", vec![(..).into(), (..).into()]),
        ("a row", vec![1.into()]),
        ("rows", vec![(1..3).into()]),
        ("columns", vec![(..).into(), (2..).into()]),
        ("a block", vec![(1..3).into(), (2..5).into()]),
        ("an element", vec![(-1).into(), (-2).into()]),
        ("every second", vec![step(0..4, 2), step(1.., 3)]),
        ("every second of some", vec![(1..3).into(), step(1..6, 2)]),
        ("nothing", vec![(2..2).into()]),
    ];
    for (name, parts) in cases {
        let indices = Parts(parts);
        let region = whole.i(indices.clone()).unwrap();
        let source = region.neg().unwrap().sub(100.0).unwrap();
        let functional = whole.slice_assign(indices.clone(), &source).unwrap();
        let var = Var::new(&whole.add(0.0).unwrap());
        let start = address(&var);
        var.slice_assign(indices.clone(), &source).unwrap();
        assert_eq!(address(&var), start, "{name}");
        let mut wanted: Vec<f32> = whole.to_vec().unwrap();
        for place in region.to_vec::<f32>().unwrap() {
            wanted[place as usize] = -place - 100.0;
        }
        assert_eq!(functional.to_vec::<f32>().unwrap(), wanted, "{name}");
        assert_eq!(values(&var), wanted, "{name}");
    }
}

#[derive(Clone)]
struct Parts(Vec<kiln::Index>);

impl kiln::Indices for Parts {
    fn indices(self) -> Vec<kiln::Index> {
        self.0
    }
}

#[test]
fn other_dtypes_round_once() {
    let var = Var::new(&t(&[1., 2.]).to_dtype(DType::Bf16).unwrap());
    var.add_assign(t(&[0.5, 0.25])).unwrap();
    assert_eq!(var.get().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [1.5, 2.25]);
    let count = Var::new(&Tensor::new([1i64, 2], Device::Cpu).unwrap());
    count.add_assign(1).unwrap();
    assert_eq!(count.get().to_vec::<i64>().unwrap(), [2, 3]);
    assert!(matches!(count.add_assign(0.5), Err(Error::DTypeMismatch { .. })));
    // A number is a number whatever the rank.
    let scalar = Var::new(&Tensor::new(1f32, Device::Cpu).unwrap());
    scalar.add_assign(Tensor::new(1f64, Device::Cpu).unwrap()).unwrap();
    assert_eq!(scalar.get().item::<f32>().unwrap(), 2.0);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let var = Var::new(&counting(2, 3));
    assert!(matches!(var.set(&counting(3, 2)), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(
        var.set(&Tensor::zeros([2, 3], DType::F64, Device::Cpu).unwrap()),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(var.add_assign(counting(3, 3)), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(var.slice_assign(5, &t(&[1.])), Err(Error::IndexOutOfRange { .. })));
    assert!(matches!(var.slice_assign((.., 2..7), &t(&[1.])), Err(Error::BadRange { .. })));
    assert!(matches!(var.slice_assign(0..1, &t(&[1., 2.])), Err(Error::ShapeMismatch { .. })));
    let far = Tensor::new([7i64], Device::Cpu).unwrap();
    let error = var.index_copy(0, &far, &t(&[1., 2., 3.])).unwrap_err();
    assert!(error.to_string().contains("index_copy: index 7 is out of range for an axis of 2"), "{error}");
    assert_eq!(values(&var), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn an_expanded_value_gets_memory_of_its_own() {
    let var = Var::new(&t(&[3.]).broadcast_to([4]).unwrap());
    var.slice_assign(1, &Tensor::new(5f32, Device::Cpu).unwrap()).unwrap();
    assert_eq!(values(&var), [3., 5., 3., 3.]);
}

#[test]
fn a_copy_is_reported() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    event::set_sink(&[Category::Perf], move |event| sink.lock().unwrap().push(event.to_string()));
    let var = Var::new(&t(&[1., 2., 3., 4., 5.]));
    let held = var.get();
    var.mul_assign(2.0).unwrap();
    let lines = seen.lock().unwrap().iter().filter(|line| line.contains("mul_assign: the variable's [5]")).count();
    assert_eq!(lines, 1, "{:?}", seen.lock().unwrap());
    assert_eq!(held.to_vec::<f32>().unwrap(), [1., 2., 3., 4., 5.]);
}

#[test]
fn threads_share_a_variable() {
    let var = Var::new(&Tensor::zeros(64, DType::F32, Device::Cpu).unwrap());
    let torn = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| var.add_assign(1.0).unwrap()));
            scope.spawn(|| {
                for _ in 0..100 {
                    let seen: Vec<f32> = var.get().to_vec().unwrap();
                    torn.fetch_add(usize::from(seen.iter().any(|&v| v != seen[0])), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(values(&var), [400.0; 64]);
    assert_eq!(torn.into_inner(), 0);
    assert_eq!(var.version(), 400);
}

#[test]
fn a_large_cache_is_written_where_it_changes() {
    let rows = 1 << 17;
    let cache = Var::new(&Tensor::zeros([1, rows, 64], DType::F32, Device::Cpu).unwrap());
    let start = address(&cache);
    let row = Tensor::arange(64, DType::F32, Device::Cpu).unwrap().reshape([1, 1, 64]).unwrap();
    let (inner, source) = (cache.clone(), row.clone());
    let append = kiln::compile(move |position: &Tensor| {
        inner.index_copy(1, position, &source)?;
        inner.get().index_select(1, position)?.sum(..)
    });
    let call = |i: usize| {
        let position = Tensor::new([i as i64], Device::Cpu).unwrap();
        assert_eq!(append.call(&position).unwrap().item::<f32>().unwrap(), 2016.0);
    };
    call(0);
    let kernels = append.programs().remove(0).kernels;
    assert!(!kernels.iter().any(|kernel| kernel.contains("copy")), "{kernels:?}");
    // Half of the time that writing all 32 MiB as often would take, or a second.
    let begin = std::time::Instant::now();
    (0..5).for_each(|_| drop(Tensor::ones([1, rows, 64], DType::F32, Device::Cpu).unwrap()));
    let limit = (begin.elapsed() * 30 / 5 / 2).max(std::time::Duration::from_secs(1));
    let begin = std::time::Instant::now();
    for i in 1..11 {
        call(i);
        cache.slice_assign((.., 100 + i), &row.squeeze(1).unwrap()).unwrap();
        cache.index_copy(1, &Tensor::new([200 + i as i64], Device::Cpu).unwrap(), &row).unwrap();
    }
    assert!(begin.elapsed() < limit, "30 rows took {:?}", begin.elapsed());
    assert_eq!(address(&cache), start);
    let sum = cache.get().sum(..).unwrap().item::<f32>().unwrap();
    assert_eq!(sum, 31.0 * 2016.0);
}

#[test]
fn what_a_compiled_function_reads_is_no_snapshot() {
    let (weight, count) = (Var::new(&t(&[1., 2., 3.])), Var::new(&t(&[0.])));
    let scaled = {
        let (weight, count) = (weight.clone(), count.clone());
        kiln::compile(move |x: &Tensor| {
            count.add_assign(1.0)?;
            x.mul(weight.get())
        })
    };
    let pure = {
        let weight = weight.clone();
        kiln::compile(move |x: &Tensor| x.add(weight.get()))
    };
    let (x, start) = (t(&[1., 1., 1.]), address(&weight));
    let check = |expected: [f32; 3]| {
        // Twice: what the first call read is there for the second.
        for _ in 0..2 {
            assert_eq!(scaled.call(&x).unwrap().to_vec::<f32>().unwrap(), expected);
            assert_eq!(pure.call(&x).unwrap().to_vec::<f32>().unwrap(), expected.map(|w| w + 1.0));
        }
    };
    check([1., 2., 3.]);
    weight.add_assign(1.0).unwrap();
    check([2., 3., 4.]);
    weight.slice_assign(0..1, &t(&[9.])).unwrap();
    check([9., 3., 4.]);
    assert_eq!(address(&weight), start, "an update copied what only compiled functions had read");
    let other = kiln::compile({
        let weight = weight.clone();
        move |x: &Tensor| {
            weight.mul_assign(x)?;
            Ok(x.clone())
        }
    });
    other.call(&t(&[2., 2., 2.])).unwrap();
    check([18., 6., 8.]);
    assert_eq!(address(&weight), start, "a program's update copied what only compiled functions had read");
    weight.set(&t(&[5., 5., 5.])).unwrap();
    check([5., 5., 5.]);
    assert_eq!(values(&count), [10.]);
}

#[test]
fn compiled_functions_see_every_update_of_other_threads() {
    let weight = Var::new(&t(&[0.]));
    let read = kiln::compile({
        let weight = weight.clone();
        move |x: &Tensor| x.add(weight.get())
    });
    let zero = t(&[0.]);
    read.call(&zero).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..500).for_each(|_| weight.add_assign(1.0).unwrap()));
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0.0;
                for _ in 0..500 {
                    let before = values(&weight)[0];
                    let now = read.call(&zero).unwrap().to_vec::<f32>().unwrap()[0];
                    assert!(now >= before && now >= last, "{now} after {before} and {last}");
                    last = now;
                }
            });
        }
    });
    assert_eq!(read.call(&zero).unwrap().to_vec::<f32>().unwrap(), [500.]);
}
