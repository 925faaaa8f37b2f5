//! Device memory that is kept and given out again. Everything runs on one stream, so memory that is given back may be used by whatever
//! is queued next.

use crate::driver::{DevicePtr, DriverError, Result};
use kiln_runtime::environment;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Sizes are rounded up to a multiple of this, and above `LARGE` of that.
const SMALL: usize = 512;
const LARGE: usize = 2 << 20;

/// Where a pool gets its memory.
pub(crate) trait Blocks {
    /// A new block.
    fn allocate(&self, bytes: usize) -> Result<DevicePtr>;

    /// Gives a block back that nothing queued uses.
    fn free(&self, address: DevicePtr) -> Result<()>;

    /// Waits until everything queued is done.
    fn wait(&self) -> Result<()>;

    /// Free and total bytes of the device.
    fn free_and_total(&self) -> Result<(usize, usize)>;
}

/// The memory of one GPU.
#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    /// Bytes that may be held, used and kept together.
    budget: OnceLock<Option<usize>>,
}

#[derive(Default)]
struct State {
    /// Free blocks by size.
    free: BTreeMap<usize, Vec<DevicePtr>>,
    /// Bytes that are given out, and bytes that are free.
    used: usize,
    kept: usize,
    most_used: usize,
}

/// What a pool holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBytes {
    /// Given out.
    pub used: usize,
    /// Free, and kept for what comes next.
    pub kept: usize,
    /// The most that was ever given out at once.
    pub most_used: usize,
}

fn rounded(bytes: usize) -> usize {
    let unit = if bytes > LARGE { LARGE } else { SMALL };
    bytes.max(1).next_multiple_of(unit)
}

/// The budget of `KILN_CUDA_MEMORY` for a device of so many bytes.
fn budget(text: &str, total: usize) -> Option<usize> {
    match text.parse::<usize>() {
        Ok(bytes) if bytes > 1 => Some(bytes),
        _ => text.parse::<f64>().ok().map(|part| (part * total as f64) as usize),
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn budget(&self, blocks: &impl Blocks) -> Option<usize> {
        *self.budget.get_or_init(|| budget(&environment::CUDA_MEMORY.get()?, blocks.free_and_total().ok()?.1))
    }

    /// A block of at least `bytes` bytes. Where the device or the budget has no room for it, the blocks that are kept go first.
    pub(crate) fn take(&self, blocks: &impl Blocks, bytes: usize) -> Result<DevicePtr> {
        let (size, budget) = (rounded(bytes), self.budget(blocks));
        let mut state = self.lock();
        let found = state.free.get_mut(&size).and_then(Vec::pop);
        let address = match found {
            Some(address) => {
                state.kept -= size;
                address
            }
            None => {
                let is_over = |state: &State| budget.is_some_and(|budget| state.used + state.kept + size > budget);
                let kept = state.kept;
                let made = if is_over(&state) { Err(DriverError::out_of_memory()) } else { blocks.allocate(size) };
                match made {
                    Err(error) if error.is_out_of_memory() => {
                        state.release_free(blocks)?;
                        let again = if is_over(&state) { Err(error) } else { blocks.allocate(size) };
                        again.map_err(|error| state.explain(blocks, bytes, kept, budget, error))?
                    }
                    other => other?,
                }
            }
        };
        state.used += size;
        state.most_used = state.most_used.max(state.used);
        Ok(address)
    }

    /// Takes a block of `bytes` bytes back.
    pub(crate) fn give(&self, address: DevicePtr, bytes: usize) {
        let size = rounded(bytes);
        let mut state = self.lock();
        state.free.entry(size).or_default().push(address);
        state.used -= size;
        state.kept += size;
    }

    /// Gives free blocks back to the driver.
    pub(crate) fn release(&self, blocks: &impl Blocks) -> Result<()> {
        self.lock().release_free(blocks)
    }

    pub(crate) fn bytes(&self) -> PoolBytes {
        let state = self.lock();
        PoolBytes { used: state.used, kept: state.kept, most_used: state.most_used }
    }
}

impl State {
    fn release_free(&mut self, blocks: &impl Blocks) -> Result<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        blocks.wait()?;
        for (size, addresses) in std::mem::take(&mut self.free) {
            for address in addresses {
                blocks.free(address)?;
                self.kept -= size;
            }
        }
        Ok(())
    }

    /// Says what is held beside what the driver says.
    fn explain(
        &self,
        blocks: &impl Blocks,
        bytes: usize,
        kept: usize,
        budget: Option<usize>,
        error: DriverError,
    ) -> DriverError {
        let (free, total) = blocks.free_and_total().unwrap_or_default();
        let (asked, used, kept) = (mib(bytes), mib(self.used), mib(kept));
        let mut message = format!(
            "{asked} MiB were requested; tensors and programs of this process hold {used} MiB, {kept} MiB of cached blocks were \
             given back, and {} of the device's {} MiB are free",
            mib(free),
            mib(total)
        );
        if let Some(budget) = budget {
            message += &format!("; the budget of this process is {} MiB (KILN_CUDA_MEMORY)", mib(budget));
        }
        DriverError { message, ..error }
    }
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    const MIB: usize = 1 << 20;

    /// A device with so many bytes.
    struct Device {
        total: usize,
        held: RefCell<HashMap<DevicePtr, usize>>,
        next: Cell<DevicePtr>,
        waits: Cell<usize>,
    }

    impl Device {
        fn new(total: usize) -> Device {
            Device { total, held: RefCell::default(), next: Cell::new(1), waits: Cell::new(0) }
        }

        fn used(&self) -> usize {
            self.held.borrow().values().sum()
        }
    }

    impl Blocks for Device {
        fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
            if self.used() + bytes > self.total {
                return Err(DriverError::out_of_memory());
            }
            let address = self.next.replace(self.next.get() + 1);
            self.held.borrow_mut().insert(address, bytes);
            Ok(address)
        }

        fn free(&self, address: DevicePtr) -> Result<()> {
            self.held.borrow_mut().remove(&address).expect("a block of this device");
            Ok(())
        }

        fn wait(&self) -> Result<()> {
            self.waits.set(self.waits.get() + 1);
            Ok(())
        }

        fn free_and_total(&self) -> Result<(usize, usize)> {
            Ok((self.total - self.used(), self.total))
        }
    }

    fn pool(budget: Option<usize>) -> Pool {
        Pool { budget: OnceLock::from(budget), ..Pool::default() }
    }

    #[test]
    fn blocks_are_kept_and_used_again() {
        let (device, pool) = (Device::new(64 * MIB), pool(None));
        let address = pool.take(&device, 1000).unwrap();
        pool.give(address, 1000);
        assert_eq!(pool.bytes(), PoolBytes { used: 0, kept: 1024, most_used: 1024 });
        assert_eq!(pool.take(&device, 900), Ok(address));
        pool.give(address, 900);
        pool.release(&device).unwrap();
        assert_eq!((pool.bytes().kept, device.used()), (0, 0));
    }

    #[test]
    fn kept_blocks_make_room_once_everything_queued_is_done() {
        let (device, pool) = (Device::new(64 * MIB), pool(None));
        let first = pool.take(&device, 40 * MIB).unwrap();
        pool.give(first, 40 * MIB);
        pool.take(&device, 50 * MIB).unwrap();
        assert_eq!((device.waits.get(), device.used(), pool.bytes().kept), (1, 50 * MIB, 0));
    }

    #[test]
    fn an_error_says_what_was_asked_held_and_cached() {
        let (device, pool) = (Device::new(64 * MIB), pool(None));
        pool.take(&device, 30 * MIB).unwrap();
        let cached = pool.take(&device, 20 * MIB).unwrap();
        pool.give(cached, 20 * MIB);
        let error = pool.take(&device, 40 * MIB).unwrap_err();
        assert!(error.is_out_of_memory());
        for said in ["40 MiB were requested", "hold 30 MiB", "20 MiB of cached blocks", "34 of the device's 64 MiB"] {
            assert!(error.message.contains(said), "{error}");
        }
        // It is as it was, less what was cached.
        assert_eq!((pool.bytes().used, pool.bytes().kept), (30 * MIB, 0));
        pool.take(&device, 34 * MIB).unwrap();
    }

    #[test]
    fn the_budget_holds_and_counts_what_is_kept() {
        let (device, pool) = (Device::new(640 * MIB), pool(Some(60 * MIB)));
        let first = pool.take(&device, 40 * MIB).unwrap();
        pool.give(first, 40 * MIB);
        pool.take(&device, 50 * MIB).unwrap();
        assert_eq!(device.used(), 50 * MIB, "what was kept went first");
        let error = pool.take(&device, 20 * MIB).unwrap_err();
        assert!(error.message.contains("budget of this process is 60 MiB (KILN_CUDA_MEMORY)"), "{error}");
        assert_eq!(device.used(), 50 * MIB);
    }

    #[test]
    fn a_budget_is_bytes_or_a_part() {
        assert_eq!([budget("1000", 50), budget("0.5", 50), budget("1", 50)], [Some(1000), Some(25), Some(50)]);
    }
}
