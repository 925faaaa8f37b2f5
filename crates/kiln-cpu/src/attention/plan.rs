//! The work of a launch of few queries: the tiles of keys with a key visible to some row of a group. Each is a unit of work
//! with a result of its own, so that neither the number of threads nor the visible keys of other groups change a single bit.

use super::run::Job;
use super::visible::{self, VisibleKeys};
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One tile of keys for the queries of one key head.
pub(super) struct Unit {
    /// Batch and key head in one number.
    pub group: usize,
    /// The visible keys of the tile.
    pub visible_keys: VisibleKeys,
}

/// The units of a group, which follow each other.
pub(super) struct Group {
    /// The first.
    pub first: usize,
    /// The number of units, at least one.
    pub count: usize,
    /// The number of units without a result yet.
    left: AtomicUsize,
}

impl Group {
    /// Marks a unit as done; true for the last.
    pub(super) fn is_last(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// All units of a launch.
#[derive(Default)]
pub(super) struct Plan {
    pub units: Vec<Unit>,
    pub groups: Vec<Group>,
    /// Keys of all units.
    pub keys: usize,
}

thread_local! {
    static KEPT: RefCell<Plan> = RefCell::default();
}

impl Plan {
    /// The plan of a launch with tiles of this many keys, in memory that this thread keeps.
    ///
    /// # Safety
    /// The mask is readable.
    pub(super) unsafe fn new(job: &Job<'_>, tile: usize) -> Plan {
        let mut plan = KEPT.try_with(RefCell::take).unwrap_or_default();
        plan.units.clear();
        plan.groups.clear();
        plan.keys = 0;
        for group in 0..job.g.batch * job.g.kv_heads {
            // SAFETY: the caller's promise.
            unsafe { plan.add(job, group, tile) };
        }
        plan
    }

    /// Keeps the memory for the next one.
    pub(super) fn keep(self) {
        let _ = KEPT.try_with(|kept| kept.replace(self));
    }

    unsafe fn add(&mut self, job: &Job<'_>, group: usize, tile: usize) {
        let (g, first) = (job.g, self.units.len());
        let (batch, kv_head) = (group / g.kv_heads, group % g.kv_heads);
        let same = match &g.mask {
            None => group > 0,
            Some(mask) => mask.strides[1] == 0 && (kv_head > 0 || (group > 0 && mask.strides[0] == 0)),
        };
        if same && let Some(last) = self.groups.last() {
            let (from, count) = (last.first, last.count);
            for at in from..from + count {
                let visible_keys = self.units[at].visible_keys.clone();
                self.push(group, visible_keys);
            }
        } else {
            // The last query has the most visible keys.
            let end = g.visible(g.queries - 1);
            for start in (0..end).step_by(tile) {
                let keys = start..end.min(start + tile);
                let visible_keys = match &g.mask {
                    None => VisibleKeys::all(keys),
                    // SAFETY: the caller's promise.
                    Some(mask) => unsafe {
                        // Where heads share the mask, the visible keys of one are those of all.
                        let rows = if mask.strides[1] == 0 { g.queries } else { g.group_rows() };
                        visible::of_rows(g, mask, [batch, kv_head], 0..rows, &keys, |_| 0..g.keys, |_, _| ())
                    },
                };
                if !visible_keys.keys.is_empty() {
                    self.push(group, visible_keys);
                }
            }
        }
        if self.units.len() == first {
            self.push(group, VisibleKeys::all(0..0));
        }
        let count = self.units.len() - first;
        self.groups.push(Group { first, count, left: AtomicUsize::new(count) });
    }

    fn push(&mut self, group: usize, visible_keys: VisibleKeys) {
        self.keys += visible_keys.keys.len();
        self.units.push(Unit { group, visible_keys });
    }
}
