//! Memory of a long-running process: what is read at a break is data, not part of programs that pile up. Alone in its process, for it is
//! the memory of the process that is measured.
#![cfg(target_os = "linux")]

use kiln::{DType, Device, Generator, Tensor, compile};

/// Bytes of the process in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

const MB: usize = 1 << 20;

/// `masked_select` on new data grew by twice the size of the data at each call, and kept half of it after the function was gone.
#[test]
fn selecting_from_new_data_takes_no_more_memory() {
    let generator = Generator::new(3);
    let fresh = || generator.randn([1 << 20], DType::F32, Device::Cpu).unwrap();
    let f = |x: &Tensor| x.masked_select(&x.gt(0.0)?)?.mul(2.0)?.sum(..);
    drop(f(&fresh()).unwrap());
    let start = resident();
    let fast = compile(f);
    let mut most = 0;
    for turn in 0..80 {
        let x = fresh();
        let (a, b) = (fast.call(&x).unwrap().item::<f64>().unwrap(), f(&x).unwrap().item::<f64>().unwrap());
        assert!((a - b).abs() < 1e-3 * b.abs(), "{a} and {b} at turn {turn}");
        most = most.max(resident().saturating_sub(start));
    }
    // 640 MB before.
    assert!(most < 350 * MB, "{} MB more after 80 calls on 4 MB", most / MB);
    let stats = fast.stats();
    assert!(stats.bytes < 128 * MB && stats.branches <= 16, "{stats:?}");
    fast.reset();
    assert_eq!((fast.stats().bytes, fast.stats().nodes), (0, 0));
    let left = resident().saturating_sub(start);
    assert!(left < 60 * MB, "{} MB are left after a reset", left / MB);
    // And the same without a reset, when the function goes.
    for _ in 0..20 {
        fast.call(&fresh()).unwrap();
    }
    drop(fast);
    let left = resident().saturating_sub(start);
    assert!(left < 60 * MB, "{} MB are left of a function that is gone", left / MB);
}
