//! The programs of eager operations, kept for the process: found by what they compute and their operands' dtypes, shapes
//! and strides.

use super::{Operation, Param};
use crate::tensor::compiled_graph::CompiledGraph;
use crate::tensor::tape::Rule;
use crate::{DType, Device, Tensor};
use kiln_ir::{Op, TensorType};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, RwLock};

/// A program, with what it is for.
struct Entry {
    what: OwnedOperation,
    operands: Vec<Operand>,
    device: Device,
    kept: Arc<Kept>,
    used: AtomicU64,
    bytes: usize,
}

/// A program, and the rule for its gradient once that was wanted.
pub(super) struct Kept {
    pub(super) compiled: Arc<CompiledGraph>,
    pub(super) rule: OnceLock<Arc<Rule>>,
}

/// What a program computes, kept.
pub(super) enum OwnedOperation {
    Op(Op),
    Composite(&'static str, Vec<Param>),
    Update(&'static str, Vec<Param>),
    Gradient(u64),
}

impl OwnedOperation {
    pub(super) fn of(what: Operation<'_>) -> OwnedOperation {
        match what {
            Operation::Op(op) => OwnedOperation::Op(op.clone()),
            Operation::Composite(name, params) => OwnedOperation::Composite(name, params.to_vec()),
            Operation::Update(name, params) => OwnedOperation::Update(name, params.to_vec()),
            Operation::Gradient(id) => OwnedOperation::Gradient(id),
        }
    }

    pub(super) fn is(&self, what: Operation<'_>) -> bool {
        match (self, what) {
            (OwnedOperation::Op(a), Operation::Op(b)) => a == b,
            (OwnedOperation::Composite(a, p), Operation::Composite(b, q))
            | (OwnedOperation::Update(a, p), Operation::Update(b, q)) => *a == b && p == q,
            (OwnedOperation::Gradient(a), Operation::Gradient(b)) => *a == b,
            _ => false,
        }
    }
}

struct Operand {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

/// Programs by the hash of what they are for; equal hashes share a list.
static PROGRAMS: LazyLock<RwLock<Programs>> = LazyLock::new(RwLock::default);

#[derive(Default)]
struct Programs {
    map: HashMap<u64, Vec<Entry>, Hashed>,
    count: usize,
    bytes: usize,
}

/// Counts lookups, so that programs have an age.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Programs kept. Beyond that, the half unused for longest goes.
const PROGRAMS_KEPT: usize = 4096;
/// Bytes of programs kept; the same happens beyond it.
const BYTES_KEPT: usize = 128 << 20;

/// Programs in the cache of eager operations.
pub fn cached_programs() -> usize {
    PROGRAMS.read().unwrap_or_else(PoisonError::into_inner).count
}

/// Gradients that nobody can ask for any more: their programs go.
static ENDED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Ended gradients from which on programs are looked through for theirs.
const ENDED_KEPT: usize = 64;

/// Nobody can ask for this gradient any more. May be called with any lock held.
pub(crate) fn end_gradient(id: u64) {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(id);
}

/// Drops the programs of gradients that nobody can ask for any more.
pub(crate) fn sweep() {
    let ended: HashSet<u64> =
        std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect();
    if ended.is_empty() {
        return;
    }
    let is_ended = |entry: &Entry| matches!(entry.what, OwnedOperation::Gradient(id) if ended.contains(&id));
    let mut programs = PROGRAMS.write().unwrap_or_else(PoisonError::into_inner);
    let dropped = programs.drop_if(is_ended);
    drop(programs);
    // What they hold may itself end gradients.
    drop(dropped);
}

impl Programs {
    /// Takes out the programs that are to go; they are dropped by the caller, without the lock.
    fn drop_if(&mut self, goes: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let mut dropped = Vec::new();
        self.map.retain(|_, list| {
            dropped.extend(list.extract_if(.., |entry| goes(entry)));
            !list.is_empty()
        });
        self.count -= dropped.len();
        self.bytes -= dropped.iter().map(|entry| entry.bytes).sum::<usize>();
        dropped
    }

    /// Takes out the half of the programs that was not used for longest.
    fn drop_half(&mut self) -> Vec<Entry> {
        let mut ages: Vec<u64> = self.map.values().flatten().map(|e| e.used.load(Ordering::Relaxed)).collect();
        if ages.is_empty() {
            return Vec::new();
        }
        let middle = ages.len() / 2;
        let (_, &mut oldest, _) = ages.select_nth_unstable(middle);
        self.drop_if(|entry| entry.used.load(Ordering::Relaxed) < oldest)
    }
}

/// A rule, with the operation and the operands' types it is for.
type KeptRule = (OwnedOperation, Vec<TensorType>, Arc<Rule>);

/// The rules of operations that were recorded, by the hash of what they are for.
static RULES: LazyLock<RwLock<HashMap<u64, Vec<KeptRule>, Hashed>>> = LazyLock::new(RwLock::default);
/// Rules kept; beyond that all are forgotten, which costs at most their making again.
const RULES_KEPT: usize = 1024;

fn rule_hash(what: Operation<'_>, types: &[TensorType]) -> u64 {
    let mut hasher = Mix::default();
    (what, types).hash(&mut hasher);
    hasher.finish()
}

/// The rule of an operation on operands of these types, if it is there.
pub(super) fn find_rule(what: Operation<'_>, types: &[TensorType]) -> Option<Arc<Rule>> {
    let rules = RULES.read().unwrap_or_else(PoisonError::into_inner);
    let list = rules.get(&rule_hash(what, types))?;
    list.iter().find(|(own, of, _)| own.is(what) && of == types).map(|(_, _, rule)| rule.clone())
}

/// Keeps the rule of an operation on operands of these types.
pub(super) fn keep_rule(what: Operation<'_>, types: Vec<TensorType>, rule: Arc<Rule>) {
    let mut rules = RULES.write().unwrap_or_else(PoisonError::into_inner);
    if rules.len() >= RULES_KEPT {
        rules.clear();
    }
    rules.entry(rule_hash(what, &types)).or_default().push((OwnedOperation::of(what), types, rule));
}

/// The program for these operands, if it is there.
pub(super) fn find(hash: u64, what: Operation<'_>, operands: &[&Tensor], device: Device) -> Option<Arc<Kept>> {
    let programs = PROGRAMS.read().unwrap_or_else(PoisonError::into_inner);
    let entry = programs.map.get(&hash)?.iter().find(|entry| entry.is_for(what, operands, device))?;
    entry.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    Some(entry.kept.clone())
}

/// Keeps a program; gives the one that is kept, which another thread may have been faster with.
pub(super) fn keep(
    hash: u64,
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    compiled: Arc<CompiledGraph>,
) -> Arc<Kept> {
    if ENDED.lock().unwrap_or_else(PoisonError::into_inner).len() >= ENDED_KEPT {
        sweep();
    }
    let bytes = compiled.bytes();
    let mut programs = PROGRAMS.write().unwrap_or_else(PoisonError::into_inner);
    let is_full = programs.count >= PROGRAMS_KEPT || programs.bytes + bytes > BYTES_KEPT;
    let dropped = if is_full { programs.drop_half() } else { Vec::new() };
    let list = programs.map.entry(hash).or_default();
    if let Some(other) = list.iter().find(|entry| entry.is_for(what, operands, device)) {
        return other.kept.clone();
    }
    let kept = Arc::new(Kept { compiled, rule: OnceLock::new() });
    list.push(Entry {
        what: OwnedOperation::of(what),
        operands: operands.iter().map(|t| Operand::of(t)).collect(),
        device,
        kept: kept.clone(),
        used: AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed)),
        bytes,
    });
    programs.count += 1;
    programs.bytes += bytes;
    drop(programs);
    drop(dropped);
    kept
}

impl Operand {
    fn of(tensor: &Tensor) -> Operand {
        Operand { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), strides: tensor.strides().to_vec() }
    }
}

impl Entry {
    fn is_for(&self, what: Operation<'_>, operands: &[&Tensor], device: Device) -> bool {
        let same_operand = |(own, tensor): (&Operand, &&Tensor)| {
            own.dtype == tensor.dtype()
                && own.shape == tensor.shape()
                && own.strides.iter().zip(tensor.strides()).zip(&own.shape).all(|((a, b), &n)| a == b || n < 2)
        };
        self.what.is(what)
            && device == self.device
            && self.operands.len() == operands.len()
            && self.operands.iter().zip(operands).all(same_operand)
    }
}

/// The hash of a key.
pub(super) fn hash_of(what: Operation<'_>, operands: &[&Tensor], device: Device) -> u64 {
    let mut hasher = Mix(0);
    what.hash(&mut hasher);
    device.hash(&mut hasher);
    for tensor in operands {
        tensor.dtype().hash(&mut hasher);
        for (&size, &stride) in tensor.shape().iter().zip(tensor.strides()) {
            hasher.write_usize(size);
            if size > 1 {
                hasher.write_isize(stride);
            }
        }
    }
    hasher.finish()
}

/// A multiply-and-fold hash: keys are short and come from the program itself, so speed is all that is asked of it.
#[derive(Default, Clone, Copy)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, v: u8) {
        self.write_u64(v.into());
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
    fn write_u64(&mut self, v: u64) {
        let word = self.0.rotate_left(23) ^ v ^ 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(word) * 0xe703_7ed1_a0b4_28db;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// For keys that are hashes already.
type Hashed = BuildHasherDefault<Same>;

#[derive(Default, Clone, Copy)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
