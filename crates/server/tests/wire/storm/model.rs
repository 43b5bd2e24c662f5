//! What a namespace is: names in directories that lead to objects. Each operation either changes it or fails, in one
//! step; which failures are right follows from what is there.

use dhow_proto::v4::Status;
use std::collections::{BTreeMap, BTreeSet};

/// An object, known by its filehandle; the number is the storm's.
pub type Id = u32;

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub dir: bool,
    /// Verifier of the exclusive create that made it.
    pub verifier: Option<u64>,
}

/// A namespace. Objects that no name leads to are gone.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<Id, Node>,
    pub names: BTreeMap<(Id, u8), Id>,
    /// Directories that are never removed.
    pub roots: BTreeSet<Id>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Unchecked,
    Guarded,
    Exclusive(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Create { dir: Id, name: u8, mode: Mode },
    Mkdir { dir: Id, name: u8 },
    Remove { dir: Id, name: u8 },
    Rename { from: Id, old: u8, to: Id, new: u8 },
    Link { file: Id, dir: Id, name: u8 },
    Lookup { dir: Id, name: u8 },
}

/// What the server said: the object, for operations that name one.
pub type Reply = Result<Option<Id>, Status>;

const GONE: [Status; 2] = [Status::NOENT, Status::STALE];

impl Tree {
    fn is_dir(&self, id: Id) -> bool {
        self.nodes.get(&id).is_some_and(|n| n.dir)
    }

    fn is_empty(&self, dir: Id) -> bool {
        self.names.range((dir, 0)..=(dir, u8::MAX)).next().is_none()
    }

    fn is_within(&self, mut dir: Id, above: Id) -> bool {
        for _ in 0..=self.nodes.len() {
            if dir == above {
                return true;
            }
            match self.names.iter().find(|(_, id)| **id == dir) {
                Some(((parent, _), _)) => dir = *parent,
                None => return false,
            }
        }
        panic!("a cycle in the model");
    }

    /// A name leads to `id` no more.
    fn unname(&mut self, key: (Id, u8)) {
        let Some(id) = self.names.remove(&key) else { return };
        if !self.names.values().any(|other| *other == id) {
            self.nodes.remove(&id);
        }
    }

    fn with(&self, key: (Id, u8), id: Id, node: Node) -> Option<Tree> {
        // A new object has a filehandle that no other has.
        if self.nodes.contains_key(&id) {
            return None;
        }
        let mut tree = self.clone();
        tree.nodes.insert(id, node);
        tree.names.insert(key, id);
        Some(tree)
    }

    /// The namespace after `op`, if `reply` is right for it now.
    pub fn step(&self, op: &Op, reply: &Reply) -> Option<Tree> {
        let same = |right: bool| right.then(|| self.clone());
        let dirs = match *op {
            Op::Rename { from, to, .. } => [from, to],
            Op::Create { dir, .. } | Op::Mkdir { dir, .. } | Op::Remove { dir, .. } => [dir, dir],
            Op::Link { dir, .. } | Op::Lookup { dir, .. } => [dir, dir],
        };
        if !dirs.iter().all(|dir| self.is_dir(*dir)) {
            return same(matches!(reply, Err(status) if GONE.contains(status)));
        }
        match (*op, *reply) {
            (Op::Lookup { dir, name }, reply) => match (self.names.get(&(dir, name)), reply) {
                (Some(id), Ok(found)) => same(found == Some(*id)),
                (None, Err(status)) => same(status == Status::NOENT),
                _ => None,
            },
            (Op::Create { dir, name, mode }, reply) => match (self.names.get(&(dir, name)), reply, mode) {
                (None, Ok(Some(id)), _) => {
                    let verifier = if let Mode::Exclusive(v) = mode { Some(v) } else { None };
                    self.with((dir, name), id, Node { dir: false, verifier })
                }
                (Some(id), reply, Mode::Unchecked) if self.is_dir(*id) => same(reply == Err(Status::ISDIR)),
                (Some(id), Ok(found), Mode::Unchecked) => same(found == Some(*id)),
                (Some(id), reply, Mode::Exclusive(v)) if self.nodes[id].verifier == Some(v) => {
                    same(reply == Ok(Some(*id)))
                }
                (Some(_), Err(Status::EXIST), Mode::Guarded | Mode::Exclusive(_)) => Some(self.clone()),
                _ => None,
            },
            (Op::Mkdir { dir, name }, reply) => match (self.names.get(&(dir, name)), reply) {
                (None, Ok(Some(id))) => self.with((dir, name), id, Node { dir: true, verifier: None }),
                (Some(_), Err(status)) => same(status == Status::EXIST),
                _ => None,
            },
            (Op::Remove { dir, name }, reply) => match (self.names.get(&(dir, name)), reply) {
                (None, Err(status)) => same(status == Status::NOENT),
                (Some(id), Err(status)) => same(status == Status::NOTEMPTY && self.is_dir(*id) && !self.is_empty(*id)),
                (Some(id), Ok(_)) if !self.is_dir(*id) || self.is_empty(*id) => {
                    let mut tree = self.clone();
                    tree.unname((dir, name));
                    Some(tree)
                }
                _ => None,
            },
            (Op::Link { file, dir, name }, reply) => {
                let gone = !self.nodes.contains_key(&file);
                let taken = self.names.contains_key(&(dir, name));
                match reply {
                    Ok(_) if !gone && !taken => {
                        let mut tree = self.clone();
                        tree.names.insert((dir, name), file);
                        Some(tree)
                    }
                    Err(status) => same((gone && GONE.contains(&status)) || (taken && status == Status::EXIST)),
                    Ok(_) => None,
                }
            }
            (Op::Rename { from, old, to, new }, reply) => {
                let right = self.rename_errors(from, old, to, new);
                match reply {
                    Err(status) => same(right.contains(&status)),
                    Ok(_) if !right.is_empty() => None,
                    Ok(_) => {
                        let mut tree = self.clone();
                        let moved = self.names[&(from, old)];
                        // Two names of one object: nothing happens (RFC 8881 18.26.3).
                        if self.names.get(&(to, new)) != Some(&moved) {
                            tree.unname((to, new));
                            tree.names.insert((to, new), moved);
                            tree.names.remove(&(from, old));
                        }
                        Some(tree)
                    }
                }
            }
        }
    }

    /// What a rename may fail with; empty if it must succeed.
    fn rename_errors(&self, from: Id, old: u8, to: Id, new: u8) -> Vec<Status> {
        let Some(&moved) = self.names.get(&(from, old)) else { return vec![Status::NOENT] };
        let mut right = Vec::new();
        if self.is_dir(moved) && self.is_within(to, moved) {
            right.push(Status::INVAL);
        }
        match self.names.get(&(to, new)) {
            Some(&target) if target != moved => {
                if self.is_dir(target) != self.is_dir(moved) {
                    right.extend([Status::EXIST, Status::NOTDIR, Status::NOTEMPTY]);
                } else if self.is_dir(target) && !self.is_empty(target) {
                    right.extend([Status::EXIST, Status::NOTEMPTY]);
                }
            }
            _ => {}
        }
        right
    }
}
