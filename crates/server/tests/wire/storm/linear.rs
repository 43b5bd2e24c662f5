//! Is there an order of operations, each at one moment between its call and its reply, in which every reply is right?
//! (Wing and Gong's search, with the states that led nowhere remembered.)

use super::model::{Op, Reply, Tree};
use std::collections::HashSet;

/// An operation as a client saw it: between these two moments.
#[derive(Clone, Debug)]
pub struct Event {
    /// For whoever reads the report of a failure.
    #[allow(dead_code)]
    pub client: usize,
    pub called: u64,
    pub replied: u64,
    pub op: Op,
    pub reply: Reply,
}

/// What the search came to.
#[derive(Debug)]
pub enum Verdict {
    /// An order was found, and leads to this namespace.
    Linear(Box<Tree>),
    /// There is none. The most operations that could be put in order, and where that led.
    NotLinear(Vec<usize>, Box<Tree>),
    /// The search was given up.
    TooLong,
}

/// States looked at before the search is given up.
const MOST: usize = 400_000;

/// Looks for an order that begins with `start` and ends in a namespace that `end` accepts.
pub fn check(events: &[Event], start: &Tree, end: impl Fn(&Tree) -> bool) -> Verdict {
    assert!(events.len() <= 64);
    let all = if events.len() == 64 { u64::MAX } else { (1 << events.len()) - 1 };
    let mut seen: HashSet<(u64, Tree)> = HashSet::new();
    let mut stack = vec![(0_u64, start.clone(), Vec::new())];
    let mut best = (Vec::new(), start.clone());
    while let Some((done, tree, order)) = stack.pop() {
        if done == all && end(&tree) {
            return Verdict::Linear(Box::new(tree));
        }
        if order.len() > best.0.len() {
            best = (order.clone(), tree.clone());
        }
        if seen.len() > MOST {
            return Verdict::TooLong;
        }
        let left = || (0..events.len()).filter(|i| done & (1 << i) == 0);
        // Whoever was called after somebody's reply comes after it.
        let Some(first_reply) = left().map(|i| events[i].replied).min() else { continue };
        // Those that were answered first are tried first, being last on the stack, if the events are in that order.
        for i in left().filter(|i| events[*i].called <= first_reply).collect::<Vec<_>>().into_iter().rev() {
            let Some(next) = tree.step(&events[i].op, &events[i].reply) else { continue };
            let state = (done | 1 << i, next);
            if seen.insert(state.clone()) {
                let mut order = order.clone();
                order.push(i);
                stack.push((state.0, state.1, order));
            }
        }
    }
    Verdict::NotLinear(best.0, Box::new(best.1))
}

#[cfg(test)]
mod tests {
    use super::super::model::{Mode, Node};
    use super::*;
    use dhow_proto::v4::Status;

    fn start() -> Tree {
        let mut tree = Tree::default();
        for root in [1, 2] {
            tree.nodes.insert(root, Node { dir: true, verifier: None });
            tree.roots.insert(root);
        }
        tree
    }

    fn event(called: u64, replied: u64, op: Op, reply: Reply) -> Event {
        Event { client: 0, called, replied, op, reply }
    }

    fn is_linear(events: &[Event]) -> bool {
        matches!(check(events, &start(), |_| true), Verdict::Linear(_))
    }

    /// The checker itself: what it must find, it finds.
    #[test]
    fn wrong_histories_are_found() {
        let create = Op::Create { dir: 1, name: 0, mode: Mode::Guarded };
        let (lookup, remove) = (Op::Lookup { dir: 1, name: 0 }, Op::Remove { dir: 1, name: 0 });
        let exist = Err(Status::EXIST);
        assert!(is_linear(&[event(1, 4, create, Ok(Some(9))), event(2, 3, create, exist)]));
        assert!(is_linear(&[event(1, 4, create, exist), event(2, 3, create, Ok(Some(9)))]));
        assert!(!is_linear(&[event(1, 4, create, Ok(Some(9))), event(2, 3, create, Ok(Some(8)))]), "made twice");
        assert!(!is_linear(&[event(1, 2, create, exist), event(3, 4, create, Ok(Some(9)))]), "before it was there");
        // Seen, then not, then removed: the removal cannot come before its call.
        let gone = Err(Status::NOENT);
        let history = |at| {
            [
                event(1, 2, create, Ok(Some(9))),
                event(3, 4, lookup, Ok(Some(9))),
                event(5, 6, lookup, gone),
                event(at, at + 5, remove, Ok(None)),
            ]
        };
        assert!(is_linear(&history(3)) && !is_linear(&history(7)));
        // Two renames of one name cannot both succeed.
        let rename = |new| Op::Rename { from: 1, old: 0, to: 2, new };
        let both =
            [event(1, 2, create, Ok(Some(9))), event(3, 9, rename(1), Ok(None)), event(3, 9, rename(2), Ok(None))];
        assert!(!is_linear(&both));
        // A directory into itself, by two moves.
        let mkdir = |name| Op::Mkdir { dir: 1, name };
        let cycle = [
            event(1, 2, mkdir(0), Ok(Some(8))),
            event(1, 2, mkdir(1), Ok(Some(9))),
            event(3, 9, Op::Rename { from: 1, old: 0, to: 9, new: 0 }, Ok(None)),
            event(3, 9, Op::Rename { from: 1, old: 1, to: 8, new: 0 }, Ok(None)),
        ];
        assert!(!is_linear(&cycle));
        // A create in a directory that was removed.
        let lost = [
            event(1, 2, mkdir(0), Ok(Some(8))),
            event(3, 9, Op::Remove { dir: 1, name: 0 }, Ok(None)),
            event(3, 9, Op::Create { dir: 8, name: 0, mode: Mode::Unchecked }, Ok(Some(9))),
        ];
        assert!(!is_linear(&lost));
    }
}
