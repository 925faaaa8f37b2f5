//! Nothing that a function read is written to the disk cache.

use kiln::runtime::disk::{self, Store};
use kiln::{Device, Options, Result, Tensor, compile, compile_with, disable};
use std::path::Path;

/// Every byte in a folder, file after file.
fn contents(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        bytes.extend(if path.is_dir() { contents(&path) } else { std::fs::read(path).unwrap() });
    }
    bytes
}

fn has(folder: &Path, needle: &[u8]) -> bool {
    contents(folder).windows(needle.len()).any(|window| window == needle)
}

/// A long chain, so that kernels are large enough to be kept by themselves.
fn chain(x: &Tensor) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..12 {
        y = y.mul(1.25)?.tanh()?.add(0.5)?;
    }
    Ok(y)
}

#[test]
fn what_was_read_stays_in_the_process() {
    let folder = std::env::temp_dir().join(format!("kiln-private-{}", std::process::id()));
    disk::set_store(Some(Store::open(&folder, disk::DEFAULT_MOST_BYTES).unwrap()));
    let x = Tensor::from_slice(&[7_654_321.5f32, 1.0, -3.0, 0.25], 4, Device::Cpu).unwrap();

    // A number that is read, in the graph after it.
    let number = compile(|x: &Tensor| chain(&x.mul(x.amax(..)?.item::<f64>()?)?));
    number.call(&x).unwrap();
    assert!(disk::stats().stored > 0, "what comes before the read is kept");
    assert!(!has(&folder, &7_654_321.5f32.to_le_bytes()) && !has(&folder, &7_654_321.5f64.to_le_bytes()));

    // Many, in a constant after it; with frozen weights too.
    let list = |x: &Tensor| {
        let read: Vec<f32> = x.to_vec::<f32>()?.iter().map(|v| v * 2.0).collect();
        chain(&x.add(&Tensor::from_slice(&read, read.len(), Device::Cpu)?)?)
    };
    compile(list).call(&x).unwrap();
    let weight = Tensor::from_slice(&[1f32, 2., 3., 4.], 4, Device::Cpu).unwrap();
    let frozen = move |x: &Tensor| list(&x.mul(&weight.exp()?)?);
    compile_with(frozen, Options { freeze: true, ..Options::default() }).call(&x).unwrap();
    assert!(!has(&folder, &(2.0 * 7_654_321.5f32).to_le_bytes()));

    // What a disabled part read, in a number that it gives.
    let part = disable(|x: &Tensor| Ok((x.exp()?, x.amax(..)?.item::<f64>()?)));
    let disabled = compile(move |x: &Tensor| {
        let (y, most) = part.call(x)?;
        chain(&y.add(most)?)
    });
    disabled.call(&x).unwrap();
    assert!(!has(&folder, &7_654_321.5f32.to_le_bytes()) && !has(&folder, &7_654_321.5f64.to_le_bytes()));

    // A decision is no data: what follows it is kept, and found again.
    let decided = |x: &Tensor| {
        let is_large = x.amax(..)?.gt(10.0)?.item::<bool>()?;
        if is_large { x.mul(0.125)?.sin() } else { x.neg() }
    };
    let before = disk::stats();
    compile(decided).call(&x).unwrap();
    let stored = disk::stats().stored - before.stored;
    assert!(stored >= 2, "{stored} entries");
    let before = disk::stats();
    compile(decided).call(&x).unwrap();
    assert!(disk::stats().hits - before.hits >= 2, "{:?}", disk::stats());

    // New data at each call does not fill the cache.
    let size = contents(&folder).len();
    let select = compile(|x: &Tensor| x.masked_select(&x.gt(0.0)?)?.exp());
    for turn in 0..20 {
        let values: Vec<f32> = (0..10_000).map(|i| ((i * (turn + 3)) % 17) as f32 - 8.0).collect();
        select.call(&Tensor::from_slice(&values, values.len(), Device::Cpu).unwrap()).unwrap();
    }
    let grown = contents(&folder).len() - size;
    assert!(grown < 20_000, "{grown} bytes more");
    let _ = std::fs::remove_dir_all(folder);
}

/// Data that is read is an input of what follows: other data of the same shape takes no other program.
#[test]
fn data_of_the_same_shape_shares_a_program() {
    let f = |x: &Tensor| {
        let order = x.argsort(0, false)?.to_vec::<i64>()?;
        x.index_select(0, &Tensor::from_slice(&order, order.len(), Device::Cpu)?)?.mul(3.0)
    };
    let fast = compile(f);
    for turn in 0..8 {
        let values: Vec<f32> = (0..20).map(|i| ((i * (2 * turn + 3)) % 20) as f32).collect();
        let x = Tensor::from_slice(&values, values.len(), Device::Cpu).unwrap();
        assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
    }
    let segments = &fast.programs()[0].segments;
    assert!(segments.len() >= 8, "a branch each");
    let after = segments.iter().filter(|segment| segment.inputs.iter().any(|input| input.starts_with("data i64[20]")));
    let programs: std::collections::HashSet<_> =
        after.map(|segment| std::sync::Arc::as_ptr(segment.code.as_ref().unwrap())).collect();
    assert_eq!(programs.len(), 1, "one program for all of them");
}
