//! The lock manager for names in directories: which updates of a namespace may run at once.
//!
//! # Rules
//!
//! An update claims everything it needs **in one request**, and the request is granted as a whole or waits as a whole:
//!
//! | update | claims |
//! |---|---|
//! | create, mkdir, symlink, mknod of a name | the directory *shared*, (directory, name) *exclusive* |
//! | link | the same, of the new name (the file comes by its handle, no name of it is touched) |
//! | remove of a file | the same |
//! | remove of a directory | the same, and the removed directory *exclusive* |
//! | rename | both directories *shared*, both names *exclusive* |
//! | … over a directory | and the directory that is replaced *exclusive*: it is removed |
//! | … of a directory to another directory | and the *moves* of the filesystem *exclusive* |
//! | lookup, readdir, getattr, open of what is there | nothing |
//!
//! 1. **Different names never wait for each other**: both hold their directory shared. They wait only for one who takes
//!    the directory as a whole, to remove it, and who is through as soon as those before it are.
//! 2. **Nobody waits while holding.** Therefore no order of two names is needed: whoever waits holds nothing that
//!    another could wait for, and a request waits only for requests that came before it. The graph of who waits for
//!    whom follows the order of arrival and has no cycle, whatever is claimed together.
//!    A user that learns under its claims that it needs more (the name turns out to lead to a directory) gives them
//!    back, requests all anew, and looks again. It must never request while it holds.
//! 3. **First come, first served**, per key: a request does not overtake one that came earlier and conflicts with it. So
//!    a remove of a busy directory is not starved by the names in it, nor a name by its neighbours.
//! 4. **One move of a directory at a time** in a filesystem. Two moves that are each harmless (`a` into `b/x`, `b` into
//!    `a/y`) make a cycle together; with one at a time, whoever checks the ancestors of the destination (the local
//!    kernel does, and so does the origin of a re-export) checks a tree in which no directory moves meanwhile through
//!    this server. Moves of files cannot make a cycle, and a rename within one directory cannot either.
//! 5. **A removed directory has no update inside**: the remove holds it exclusive, creates in it hold it shared.
//! 6. **Dropping is giving back**: a [`Held`] that is dropped lets the next ones in, a [`Request`] that is dropped
//!    (its caller timed out, its client is gone) leaves the queue, whether it was granted meanwhile or not, and those
//!    who waited only for it go on. How long to wait is the caller's to decide: there is no clock here.
//! 7. **Nothing is kept for idle keys**: a key is in the table while somebody holds it or waits for it.
//!
//! # How it is done
//!
//! One mutex around one table, held for table work alone (a few comparisons per claim), never across a wake-up. Each
//! request has a *ticket*, rising in order of arrival. Each key has the tickets that claim it, held and waiting alike:
//! a shared claim is free when no exclusive ticket of its key is lower, an exclusive one when none is lower at all. A
//! request is granted when all its claims are free; that never becomes false again, for later tickets are higher. When
//! a ticket leaves, those behind it at its keys are looked at again.
//!
//! The table knows nothing of time, tasks or threads but [`std::task::Waker`]; under test its mutex is that of shuttle,
//! which explores the interleavings (`explore.rs`).

mod dirs;
mod sync;
mod table;

#[cfg(test)]
mod explore;

pub use dirs::{Claims, DirLocks, Key};
pub use table::{Claim, Held, Locks, Mode, Request};
