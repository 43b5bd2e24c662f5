//! The locks of names, as operations take them. The rules are in `dhow_dirlock`; here stands how an operation finds out
//! what it must claim, and how long it waits.
//!
//! Whether a name leads to a directory, which asks for more claims, is looked up *under* the claims of the name, for only
//! then the answer stays true. One who needs more gives everything back, requests all anew and looks again; files, the
//! usual case, need one look and one request. A name that leads to another directory each time ends in DELAY.
//!
//! A wait ends in DELAY after [`GATE_WAIT`] or the time of a lease, whichever is less, and with the client: then nobody
//! is there to be answered, and the place in the queue is given up. A request that is dropped while it waits does the
//! same (a server that shuts down).

use super::{Fh, OpCx};
use crate::gates::{GATE_WAIT, HeldNames};
use crate::metrics::count;
use bytes::Bytes;
use dhow_dirlock::Claims;
use dhow_proto::v4::Status;
use dhow_vfs::{FileKind, FsId, Name, Node, ObjectId};

type NameClaims = Claims<ObjectId, Bytes, FsId>;

/// How often claims are extended for a name that leads somewhere else each time.
const TRIES: u32 = 4;

/// What a rename claims beyond its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Beyond {
    /// The directory that is replaced.
    replaced: Option<ObjectId>,
    /// A directory moves to another one, in this filesystem.
    moves: Option<FsId>,
}

fn bytes(name: &Name) -> Bytes {
    // Not a slice of the request, which would stay in memory for as long as somebody waits.
    Bytes::copy_from_slice(name.as_bytes())
}

impl OpCx {
    /// Locks a name for an update: those of one name follow each other, those of different names never wait for one
    /// another.
    ///
    /// # Errors
    /// DELAY after a bounded wait.
    pub async fn lock_name(&self, dir: &Fh, name: &Name) -> Result<HeldNames, Status> {
        self.lock(NameClaims::name(dir.object(), bytes(name))).await
    }

    /// Locks a name that is to be removed, and if it leads to a directory, that directory too: nothing is created in it
    /// meanwhile.
    ///
    /// # Errors
    /// DELAY after a bounded wait.
    pub async fn lock_removal(&self, dir: &Fh, name: &Name) -> Result<HeldNames, Status> {
        let claims = NameClaims::name(dir.object(), bytes(name));
        let mut have = None;
        for _ in 0..TRIES {
            let held = self.lock(have.iter().cloned().fold(claims.clone(), NameClaims::removing)).await?;
            let need = self.look(dir, name).await.filter(is_directory).map(|node| dir.sibling(node.handle).object());
            if need.is_none() || need == have {
                return Ok(held);
            }
            have = need;
        }
        Err(Status::DELAY)
    }

    /// Locks both names of a rename, the directory that it replaces, and if it moves a directory to another one, all
    /// such moves in the filesystem.
    ///
    /// # Errors
    /// DELAY after a bounded wait.
    pub async fn lock_rename(&self, from: (&Fh, &Name), to: (&Fh, &Name)) -> Result<HeldNames, Status> {
        let ((from, old), (to, new)) = (from, to);
        let (a, b) = (from.object(), to.object());
        let across = a != b;
        let claims = NameClaims::names((a, bytes(old)), (b, bytes(new)));
        let mut have = Beyond::default();
        for _ in 0..TRIES {
            let mut all = claims.clone();
            if let Some(dir) = &have.replaced {
                all = all.removing(dir.clone());
            }
            if let Some(filesystem) = have.moves {
                all = all.moving(filesystem);
            }
            let held = self.lock(all).await?;
            let mut need = Beyond::default();
            // Only a directory replaces a directory.
            if let Some(moved) = self.look(from, old).await.filter(is_directory) {
                need.moves = across.then_some(moved.attr.fsid);
                let replaced = self.look(to, new).await.filter(is_directory);
                need.replaced = replaced.map(|node| to.sibling(node.handle).object());
            }
            let enough = |need: bool, same: bool| !need || same;
            if enough(need.replaced.is_some(), need.replaced == have.replaced)
                && enough(need.moves.is_some(), need.moves == have.moves)
            {
                return Ok(held);
            }
            have = need;
        }
        Err(Status::DELAY)
    }

    /// What a name leads to. Whatever stands in the way of looking is found again, and reported, by the update itself.
    async fn look(&self, dir: &Fh, name: &Name) -> Option<Node> {
        let backend = dir.backend();
        match backend.try_lookup(&dir.user, &dir.handle, name) {
            Some(node) => node.ok(),
            None => backend.lookup(&dir.user, &dir.handle, name).await.ok(),
        }
    }

    async fn lock(&self, claims: NameClaims) -> Result<HeldNames, Status> {
        let request = match self.server.gates.names.request(claims.into_vec()).now() {
            Ok(held) => return Ok(held),
            Err(request) => request,
        };
        count(&self.server.metrics.name_waits);
        let wait = GATE_WAIT.min(self.server.state.limits().lease);
        let client = self.slot.as_ref().map(|slot| slot.client().end());
        let gone = async {
            match client {
                Some(end) => end.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            held = request => return Ok(held),
            () = gone => {}
            () = tokio::time::sleep(wait) => {}
        }
        count(&self.server.metrics.name_wait_ends);
        Err(Status::DELAY)
    }
}

fn is_directory(node: &Node) -> bool {
    node.attr.kind == FileKind::Directory
}
