//! Programs are kept on disk: a new process that captures the same graph finds its code there.

use kiln::runtime::{disk, kernel_cache};
use kiln::{DType, Device, Result, Tensor};
use std::time::Instant;

/// Four layers, so that there is something to compile.
fn network(x: &Tensor, weights: &[Tensor]) -> Result<Tensor> {
    weights.iter().try_fold(x.clone(), |x, w| x.add(&x.rms_norm(1, None, 1e-5)?.matmul(w)?.silu()?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Usually the folder is $KILN_CACHE_DIR or the user's cache folder; this example brings its own.
    let folder = std::env::temp_dir().join(format!("kiln-example-cache-{}", std::process::id()));
    disk::set_store(Some(disk::Store::open(&folder, disk::DEFAULT_MOST_BYTES)?));

    let weights: Vec<Tensor> =
        (0..4).map(|_| Tensor::randn([64, 64], DType::F32, Device::Cpu)?.mul(0.1)).collect::<Result<_>>()?;
    let x = Tensor::randn([8, 64], DType::F32, Device::Cpu)?;
    let mut results = Vec::new();
    for process in ["first", "second"] {
        // As in a new process: nothing in memory.
        kernel_cache::clear();
        let fast = kiln::compile(|x: &Tensor| network(x, &weights));
        let (before, start) = (disk::stats(), Instant::now());
        results.push(fast.call(&x)?.to_vec::<f32>()?);
        let (now, took) = (disk::stats(), start.elapsed());
        println!(
            "{process} process: first call {took:.1?}; {} found on disk, {} kept",
            now.hits - before.hits,
            now.stored - before.stored
        );
    }
    assert_eq!(results[0], results[1]);

    // What `kiln cache ls` shows.
    let store = disk::store().expect("it was set above");
    for entry in store.list()?.iter().take(3) {
        println!("{:<8} {} {:>6} bytes", format!("{:?}", entry.kind), &entry.key[..12], entry.bytes);
    }
    println!("{} entries in all", store.list()?.len());
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
