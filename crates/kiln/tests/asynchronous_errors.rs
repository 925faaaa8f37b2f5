//! Errors of launches that returned before they were done. A process of its own: `kiln::synchronize` tells what any device reported
//! to whoever calls it first, and tests of other things call it at the same time.

use kiln::runtime::QueuedBackend;
use kiln::{DType, Device, Options, Result, Tensor, compile_with};
use std::sync::Arc;
use std::time::Duration;

/// What an earlier launch reported when a condition was read is told as that launch's error.
#[test]
fn errors_before_a_condition_keep_their_line() -> Result<()> {
    let device = Device::Cuda(100);
    let backend = QueuedBackend::new(kiln::backend(Device::Cpu), device, Duration::from_millis(3));
    assert!(kiln::backend::install(Arc::new(backend)), "the device is in use");
    let counted = kiln::while_loop(|x: &Tensor| x.amax(..)?.lt(10.0), |x: &Tensor| x.add(1.0));
    let f =
        compile_with(move |(x, index): &(Tensor, Tensor)| counted.call(x.index_select(0, index)?), Options::default());
    let x = Tensor::arange(4, DType::F32, device)?;
    let index = |at: i64| Tensor::new([at, 0], device);
    assert_eq!(f.call(&(x.clone(), index(3)?))?.to_vec::<f32>()?, [10.0, 7.0]);
    let error = f.call(&(x.clone(), index(7)?)).expect_err("an index out of range").to_string();
    assert!(error.contains("index 7 is out of range for an axis of 4"), "{error}");
    assert_eq!(f.call(&(x, index(2)?))?.to_vec::<f32>()?, [10.0, 8.0]);
    Ok(())
}
