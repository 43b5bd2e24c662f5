//! The suite that every [`Backend`] passes: the promises of the trait, one check per group of them.
//!
//! A check panics where a promise is broken; the name of the check that runs is printed before it.

mod io;
mod listing;
mod names;
mod users;

use bytes::Bytes;
use dhow_vfs::{
    Attr, Backend, CreateHow, Created, Cred, Cx, Error, ErrorKind, Handle, IoRef, Make, Name, Node, OpenAccess,
    OpenFile, OpenHow, Result, SetAttr, Stability,
};
use std::sync::Arc;

/// Runs the whole suite, each check on a backend of its own with an empty root that everybody may change.
///
/// # Panics
/// Where the backend breaks a promise.
pub async fn backend_conformance(make: impl Fn() -> Arc<dyn Backend>) {
    Suite::new(make).run().await;
}

/// The suite, and what it may expect of a backend.
pub struct Suite<F> {
    make: F,
    owner: Cred,
    users: bool,
    only: Option<String>,
}

impl<F: Fn() -> Arc<dyn Backend>> Suite<F> {
    /// A suite that acts as the superuser, and as other users where a check is about them.
    pub fn new(make: F) -> Self {
        Self { make, owner: Cred::root(), users: true, only: None }
    }

    /// Acts as `owner` alone: for a backend that cannot take on other identities.
    pub fn single_user(mut self, owner: Cred) -> Self {
        self.owner = owner;
        self.users = false;
        self
    }

    /// Only the checks whose names contain `part`.
    pub fn only(mut self, part: &str) -> Self {
        self.only = Some(part.to_owned());
        self
    }

    /// Runs the checks.
    ///
    /// # Panics
    /// Where the backend breaks a promise.
    pub async fn run(&self) {
        macro_rules! checks {
            ($($module:ident: $($check:ident),* ;)*) => { $($(
                let name = concat!(stringify!($module), "::", stringify!($check));
                if self.only.as_ref().is_none_or(|part| name.contains(part.as_str())) {
                    eprintln!("conformance {name}");
                    $module::$check(&self.fresh().await).await;
                }
            )*)* };
        }
        checks! {
            names: names_are_bytes, lengths_of_names_and_targets, create_and_look_up, walking_up, wrong_kinds_of_objects,
                hard_links, renames, renames_that_are_refused, handles_survive_renames, handles_go_stale,
                special_files, one_of_many_creates_wins, directory_changes_are_told;
            listing: pages_make_up_the_directory, cookies_hold_while_the_directory_changes, limits_of_pages,
                listed_attributes_are_those_of_getattr, replaced_names_are_listed_once;
            io: ends_of_files, exclusive_creates, stability_and_verifiers, holes, allocation, copies, clones, sizes, times,
                change_attributes, open_files_outlive_their_names, opens, extended_attributes, space,
                creation_attributes;
        }
        if self.users {
            checks! {
                users: mode_bits, the_owner_may_always_read_and_write, creates_open_whatever_the_mode_says,
                    groups, who_may_set_what, sticky_directories, set_id_bits, access_answers;
            }
        }
    }

    async fn fresh(&self) -> T {
        let b = (self.make)();
        let cx = Cx::new(self.owner.clone());
        let root = b.root(&cx).await.expect("a root").handle;
        T { b, cx, root }
    }
}

/// One check's backend, with short forms of the calls.
struct T {
    b: Arc<dyn Backend>,
    cx: Cx,
    root: Handle,
}

fn name(n: impl AsRef<[u8]>) -> Name {
    Name::new(Bytes::copy_from_slice(n.as_ref())).expect("a valid name")
}

fn kind<V>(r: Result<V>) -> ErrorKind {
    match r {
        Ok(_) => panic!("succeeded, but should have failed"),
        Err(e) => e.kind(),
    }
}

fn is_one_of<V>(r: std::result::Result<V, Error>, kinds: &[ErrorKind]) {
    let k = kind(r);
    assert!(kinds.contains(&k), "{k:?}, but one of {kinds:?} was due");
}

fn user(uid: u32) -> Cx {
    Cx::new(Cred::user(uid, uid))
}

const BOTH: OpenAccess = OpenAccess { read: true, write: true };
const READ: OpenAccess = OpenAccess { read: true, write: false };
const WRITE: OpenAccess = OpenAccess { read: false, write: true };

fn how(access: OpenAccess) -> OpenHow {
    OpenHow { access, ..OpenHow::default() }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// A file with the open that its creation made.
struct F {
    h: Handle,
    open: OpenFile,
}

impl F {
    fn io(&self) -> IoRef<'_> {
        IoRef { handle: &self.h, open: Some(&self.open) }
    }
}

impl T {
    async fn lookup(&self, dir: &Handle, n: &str) -> Result<Node> {
        self.b.lookup(&self.cx, dir, &name(n)).await
    }

    async fn attr(&self, h: &Handle) -> Attr {
        let attr = self.b.getattr(&self.cx, h).await.expect("attributes");
        if let Some(fast) = self.b.try_getattr(&self.cx, h) {
            assert_eq!(fast.expect("attributes at once").fileid, attr.fileid);
        }
        attr
    }

    async fn create_as(&self, cx: &Cx, dir: &Handle, n: &str, bits: u32) -> Result<Created> {
        self.b.create(cx, dir, &name(n), &CreateHow { set: mode(bits), verifier: None }).await
    }

    async fn file(&self, dir: &Handle, n: &str) -> F {
        let made = self.create_as(&self.cx, dir, n, 0o644).await.expect("a new file");
        F { h: made.node.handle, open: made.open }
    }

    async fn mkdir(&self, dir: &Handle, n: &str) -> Handle {
        self.make(dir, n, Make::Directory).await.expect("a new directory")
    }

    async fn make(&self, dir: &Handle, n: &str, what: Make) -> Result<Handle> {
        let set = if matches!(what, Make::Symlink(_)) { SetAttr::default() } else { mode(0o755) };
        Ok(self.b.make(&self.cx, dir, &name(n), &what, &set).await?.node.handle)
    }

    async fn remove(&self, dir: &Handle, n: &str) -> Result<dhow_vfs::Removed> {
        self.b.remove(&self.cx, dir, &name(n)).await
    }

    async fn rename(&self, from: &Handle, old: &str, to: &Handle, new: &str) -> Result<dhow_vfs::Renamed> {
        self.b.rename(&self.cx, from, &name(old), to, &name(new)).await
    }

    async fn put(&self, f: &F, offset: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let rest = Bytes::copy_from_slice(&data[at..]);
            let w =
                self.b.write(&self.cx, f.io(), offset + at as u64, rest, Stability::Unstable).await.expect("a write");
            assert!(w.count > 0, "a write of nothing");
            at += w.count as usize;
        }
    }

    /// `len` bytes from `offset`, or what there is up to the end.
    async fn get(&self, f: &F, offset: u64, len: u32) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < len as usize {
            let r = self.read(f.io(), offset + out.len() as u64, len - out.len() as u32).await;
            out.extend_from_slice(&r.data);
            if r.eof {
                break;
            }
            assert!(!r.data.is_empty(), "no data and no end of the file");
        }
        out
    }

    async fn read(&self, io: IoRef<'_>, offset: u64, len: u32) -> dhow_vfs::ReadData {
        match self.b.try_read(&self.cx, io, offset, len) {
            Some(r) => r.expect("a read at once"),
            None => self.b.read(&self.cx, io, offset, len).await.expect("a read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemFs;
    use crate::memfs::Options;

    #[tokio::test]
    async fn mem_fs_keeps_the_promises() {
        backend_conformance(|| MemFs::new()).await;
    }

    #[tokio::test]
    async fn mem_fs_keeps_them_with_long_handles_and_without_the_fast_calls() {
        let options =
            Options { handle_len: 104, fast: false, clone: false, metadata_sync: false, ..Options::default() };
        backend_conformance(|| MemFs::with(options.clone())).await;
    }

    #[tokio::test]
    async fn the_fault_decorator_keeps_them() {
        backend_conformance(|| crate::Fault::new(MemFs::new())).await;
    }

    /// A backend of which one call always fails, or does its work and then fails, does not pass.
    #[test]
    fn every_broken_call_is_noticed() {
        use crate::fault::{Action, Call, Fault};
        let calls = [
            Call::Root,
            Call::GetAttr,
            Call::SetAttr,
            Call::Access,
            Call::Lookup,
            Call::Parent,
            Call::ReadLink,
            Call::Create,
            Call::Make,
            Call::Link,
            Call::Remove,
            Call::Rename,
            Call::ReadDir,
            Call::Open,
            Call::Reopen,
            Call::Read,
            Call::Write,
            Call::Commit,
            Call::Allocate,
            Call::Deallocate,
            Call::Seek,
            Call::CloneRange,
            Call::CopyRange,
            Call::StatFs,
            Call::GetXattr,
            Call::SetXattr,
            Call::ListXattr,
            Call::RemoveXattr,
        ];
        for call in calls {
            for action in [Action::Fail(ErrorKind::Io), Action::FailAfter(ErrorKind::Io)] {
                let suite = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    runtime.block_on(backend_conformance(|| {
                        let fault = Fault::new(MemFs::with(Options { fast: false, ..Options::default() }));
                        fault.always(call, action.clone());
                        fault
                    }));
                });
                assert!(suite.join().is_err(), "{call:?} failed and the suite passed");
            }
        }
    }
}
