//! Topological orders, writers before readers: the order of all groups at the end of fusion, and one that is kept up to date
//! while groups are merged, so that a merge that would close a cycle is found by searching between two groups.

use crate::hash::FastMap;

/// Sorts numbers topologically, each after those it needs (itself disregarded); or returns a cycle among them, each of which
/// needs the next and the last one the first.
pub(crate) fn topological(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut order = Vec::with_capacity(needs.len());
    let mut state = vec![State::New; needs.len()];
    for start in 0..needs.len() {
        let mut open = vec![(start, false)];
        while let Some((at, ready)) = open.pop() {
            if ready {
                state[at] = State::Done;
                order.push(at);
                continue;
            }
            if state[at] != State::New {
                continue;
            }
            state[at] = State::Open;
            open.push((at, true));
            // The open nodes are the path to `at`.
            if let Some(&again) = needs[at].iter().find(|&&n| n != at && state[n] == State::Open) {
                let path = open.iter().filter(|(_, ready)| *ready).map(|&(at, _)| at);
                return Err(path.skip_while(|&at| at != again).collect());
            }
            open.extend(needs[at].iter().rev().filter(|&&n| state[n] == State::New).map(|&n| (n, false)));
        }
    }
    Ok(order)
}

/// A topological order that is maintained while pairs of its members are merged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    /// Members in order; those that became part of another one leave holes.
    line: Vec<Option<usize>>,
    /// The position of each member in `line`.
    place: Vec<usize>,
}

/// The dependency between two members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Between {
    /// A third needs the earlier one and is needed by the later one: merging the two would close a cycle.
    Third,
    /// No third member does; these come after the earlier one and are needed by the later one.
    Acyclic(FastMap<usize, ()>),
}

impl Order {
    /// The order of `line`, which has every number below its length once.
    pub fn new(line: Vec<usize>) -> Order {
        let mut place = vec![0; line.len()];
        line.iter().enumerate().for_each(|(at, &member)| place[member] = at);
        Order { line: line.into_iter().map(Some).collect(), place }
    }

    fn sorted(&self, a: usize, b: usize) -> (usize, usize) {
        if self.place[a] < self.place[b] { (a, b) } else { (b, a) }
    }

    /// Looks for a third between two members. `needs` gives the dependencies of a member; for the two of them, those of their
    /// union.
    ///
    /// Every path from the earlier to the later one stays between them in the order, so only that part is searched.
    pub fn between(&self, a: usize, b: usize, needs: &dyn Fn(usize) -> Vec<usize>) -> Between {
        let (first, last) = self.sorted(a, b);
        let inside = |member: usize| self.place[member] > self.place[first] && member != last;
        let mut open: Vec<usize> = needs(last).into_iter().filter(|&n| inside(n)).collect();
        let mut seen: FastMap<usize, ()> = FastMap::default();
        while let Some(at) = open.pop() {
            if seen.insert(at, ()).is_some() {
                continue;
            }
            for need in needs(at) {
                if need == first || need == last {
                    return Between::Third;
                }
                if inside(need) {
                    open.push(need);
                }
            }
        }
        Between::Acyclic(seen)
    }

    /// Makes `gone` a part of `kept`, given the result of [`Order::between`] for them: what the later one needs comes before
    /// both, the rest of what was between them after.
    pub fn merge(&mut self, gone: usize, kept: usize, needed: &FastMap<usize, ()>) {
        let (first, last) = self.sorted(gone, kept);
        let (from, last) = (self.place[first], self.place[last]);
        // Dependencies of the merged member may come after both.
        let to = needed.keys().map(|&member| self.place[member]).fold(last, usize::max);
        let members = self.line[from + 1..=to].iter().flatten().copied().filter(|m| *m != gone && *m != kept);
        let (before, after): (Vec<usize>, Vec<usize>) = members.partition(|member| needed.contains_key(member));
        self.line[from..=to].fill(None);
        for (at, member) in before.into_iter().chain([kept]).chain(after).enumerate() {
            self.line[from + at] = Some(member);
            self.place[member] = from + at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::examples::Random;

    #[test]
    fn a_cycle_is_named() {
        let needs = [vec![], vec![0, 4], vec![1, 2], vec![2], vec![3]];
        assert_eq!(topological(&needs), Err(vec![1, 4, 3, 2]));
        let needs = [vec![], vec![0], vec![1, 2], vec![2, 0], vec![3, 1]];
        assert_eq!(topological(&needs), Ok(vec![0, 1, 2, 3, 4]));
    }

    /// Whether `from` needs `to`, directly or indirectly.
    fn reaches(needs: &[Vec<usize>], from: usize, to: usize) -> bool {
        let (mut open, mut seen) = (needs[from].clone(), vec![false; needs.len()]);
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            if !std::mem::replace(&mut seen[at], true) {
                open.extend(&needs[at]);
            }
        }
        false
    }

    /// Random graphs, merged at random: a merge is refused if and only if it closes a cycle, and the order stays one.
    #[test]
    fn merges_that_close_a_cycle_are_found() {
        let (mut merged, mut refused) = (0, 0);
        for seed in 0..300 {
            let mut random = Random(seed);
            let count = 3 + random.below(12);
            let mut needs: Vec<Vec<usize>> =
                (0..count).map(|at| (0..at).filter(|_| random.chance(2.0 / count as f64)).collect()).collect();
            let mut order = Order::new(topological(&needs).unwrap());
            let mut alive: Vec<usize> = (0..count).collect();
            for _ in 0..30 {
                let (a, b) = (*random.choose(&alive), *random.choose(&alive));
                if a == b {
                    continue;
                }
                let through = |from: usize, to: usize| {
                    let mut cut = needs.clone();
                    cut[from].retain(|&n| n != to);
                    reaches(&cut, from, to)
                };
                let cycle = through(a, b) || through(b, a);
                match order.between(a, b, &|at| needs[at].clone()) {
                    Between::Third => assert!(cycle, "seed {seed}: {a} and {b} of {needs:?}"),
                    Between::Acyclic(between) => {
                        assert!(!cycle, "seed {seed}: {a} and {b} of {needs:?}");
                        order.merge(a, b, &between);
                        let moved = std::mem::take(&mut needs[a]);
                        needs[b].extend(moved);
                        needs.iter_mut().flatten().filter(|n| **n == a).for_each(|n| *n = b);
                        needs[b].retain(|&n| n != b);
                        alive.retain(|&at| at != a);
                        merged += 1;
                    }
                }
                refused += usize::from(cycle);
                for &at in &alive {
                    assert!(needs[at].iter().all(|&n| order.place[n] < order.place[at]), "seed {seed}: {order:?}");
                }
            }
        }
        assert!(merged > 1000 && refused > 300, "{merged} {refused}");
    }
}
