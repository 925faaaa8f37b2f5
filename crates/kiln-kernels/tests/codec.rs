//! What a schedule is written as reads back as an equal schedule, and nothing else does any harm.

use kiln_ir::codec::{from_bytes, to_bytes};
use kiln_ir::decompose::decompose;
use kiln_ir::examples::Random;
use kiln_ir::{Op, generate};
use kiln_kernels::schedule::Schedule;
use kiln_kernels::{InputLayout, ScheduleOptions, schedule};

fn schedules(count: u64) -> impl Iterator<Item = Schedule> {
    (0..count).filter_map(|seed| {
        let graph = generate::graph(seed, &generate::Options { symbolic: seed % 2 == 0, ..Default::default() });
        let graph = decompose(&graph, &|op| !matches!(op, Op::Conv(_) | Op::ReduceWindow { .. })).unwrap();
        let layouts: Vec<InputLayout> =
            graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        schedule(&graph, &layouts, &ScheduleOptions::default()).ok()
    })
}

#[test]
fn schedules_of_random_graphs_come_back() {
    let mut kernels = 0;
    for made in schedules(400) {
        assert_eq!(from_bytes::<Schedule>(&to_bytes(&made)).as_ref(), Ok(&made));
        kernels += made.steps.len();
    }
    assert!(kernels > 400, "{kernels}");
}

#[test]
fn changed_bytes_never_panic() {
    let mut random = Random(3);
    for made in schedules(40) {
        let bytes = to_bytes(&made);
        for _ in 0..200 {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(changed.len());
                match random.below(3) {
                    0 => changed[at] = random.bits() as u8,
                    1 => changed.truncate(at + 1),
                    _ => changed.insert(at, random.bits() as u8 % 8),
                }
            }
            if let Ok(read) = from_bytes::<Schedule>(&changed) {
                let count = read.buffers.len();
                assert!(read.steps.iter().flat_map(|step| &step.args).all(|id| id.index() < count));
            }
        }
    }
}
