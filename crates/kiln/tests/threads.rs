//! Eight threads at once: the same ops, shared tensors, a shared program, everything compiled for the first time.

use kiln::ir::Graph;
use kiln::{DType, Device, Tensor};

#[test]
fn eager_code_on_eight_threads() {
    let shared = Tensor::arange(1000, DType::F32, Device::Cpu).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let shared = &shared;
            scope.spawn(move || {
                for round in 0..40usize {
                    let n = 10 + (round * 7 + thread) % 50;
                    let x = shared.narrow(0, round, n).unwrap();
                    let y = ((&x * 2.0).unwrap() + &x).unwrap().reshape([1, n]).unwrap();
                    let total = y.sum(..).unwrap().item::<f64>().unwrap();
                    let want: f64 = (round..round + n).map(|i| 3.0 * i as f64).sum();
                    assert_eq!(total, want, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn one_compiled_graph_on_eight_threads() {
    let graph = Graph::parse(
        "graph(%0: f32[n, 16], %1: f32[n, 16]) {
  %2: f32[n, 16] = mul %0, %1
  %3: f32[n, 16] = add %2, %1
  %4: f32[n, 1] = reduce_sum %3 {axes=[1]}
  return %4, %3
}",
    )
    .unwrap();
    let compiled = kiln::compile_graph(&graph, &[]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let compiled = &compiled;
            scope.spawn(move || {
                for n in (0..30).map(|i| (i * 3 + thread) % 9) {
                    let x = Tensor::full([n, 16], thread, DType::F32, Device::Cpu).unwrap();
                    let y = Tensor::full([n, 16], 2, DType::F32, Device::Cpu).unwrap();
                    let out = compiled.run(&[x, y]).unwrap();
                    assert_eq!(out[0].to_vec::<f32>().unwrap(), vec![(thread * 2 + 2) as f32 * 16.0; n]);
                    assert_eq!(out[1].shape(), [n, 16]);
                }
            });
        }
    });
}

/// The number of threads may change at any time, also while kernels run, and changes no bit of any result.
#[test]
fn the_number_of_threads_changes_no_result() {
    let before = kiln::threads();
    let f = |x: &Tensor| x.matmul(&x.t()?)?.softmax(-1)?.matmul(x)?.sum(0);
    let x = Tensor::arange(300 * 200, DType::F32, Device::Cpu).unwrap().mul(1e-5).unwrap().reshape([300, 200]).unwrap();
    let fast = kiln::compile(f);
    kiln::set_threads(1).unwrap();
    assert_eq!(kiln::threads(), 1);
    let expected = (f(&x).unwrap().to_vec::<f32>().unwrap(), fast.call(&x).unwrap().to_vec::<f32>().unwrap());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..30 {
                        assert_eq!(f(&x).unwrap().to_vec::<f32>().unwrap(), expected.0);
                        assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), expected.1);
                    }
                })
            })
            .collect();
        let mut threads = 0;
        while !running.iter().all(|thread| thread.is_finished()) {
            threads = threads % 5 + 1;
            kiln::set_threads(threads).unwrap();
            std::thread::yield_now();
        }
    });
    assert!(matches!(kiln::set_threads(0), Err(kiln::Error::NoThreads { .. })));
    kiln::set_threads(1_000_000).unwrap();
    assert_eq!(kiln::threads(), kiln::threads::MOST_THREADS, "beyond the most it is the most");
    kiln::set_threads(before).unwrap();
}
