//! What the operations of one COMPOUND share.

use crate::conn::ConnCx;
use crate::cred::{Barred, Caller};
use crate::exports::{Export, Exports};
use crate::fh::Place;
use crate::gates::Pass;
use crate::metrics::count;
use crate::shared::ServerShared;
use bytes::Bytes;
use dhow_proto::v4::{OpNum, Stateid, Status};
use dhow_state::{Client, ConnId, FileKey, SlotToken};
use dhow_vfs::{Backend, Cx, Handle, ObjectId};
use std::sync::Arc;

/// A filehandle with what is needed to use it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Fh {
    /// The export (or the pseudo-root).
    pub export: Arc<Export>,
    /// The backend's handle.
    pub handle: Handle,
    /// The caller, squashed by the rules of this export.
    pub user: Arc<Cx>,
}

impl Fh {
    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.export.backend
    }

    /// The identity of the object, which state is kept by.
    pub fn key(&self) -> FileKey {
        FileKey::new(self.export.backend.object_id(&self.handle).as_bytes())
    }

    /// As the backend tells it.
    pub fn object(&self) -> ObjectId {
        self.export.backend.object_id(&self.handle)
    }

    /// Another object of the same export.
    pub fn sibling(&self, handle: Handle) -> Self {
        Self { export: Arc::clone(&self.export), handle, user: Arc::clone(&self.user) }
    }

    /// Whether both lie in one export.
    pub fn same_export(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.export, &other.export)
    }
}

/// Facts about the request that SEQUENCE needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes of the whole record, RPC header included (`ca_maxrequestsize` counts it).
    pub len: usize,
    /// Operations that the client says follow.
    pub ops: u32,
    /// Digest of the arguments and the caller, to tell a retry from a false retry (RFC 8881 2.10.6.1.3.1, case B25).
    /// Of large requests only the ends are looked at.
    pub digest: u64,
}

/// Why there is no filehandle to use.
fn missing(foreign: &Option<Bytes>) -> Status {
    if foreign.is_some() { Status::STALE } else { Status::NOFILEHANDLE }
}

/// Context of one COMPOUND.
pub(crate) struct OpCx {
    /// The server.
    pub server: Arc<ServerShared>,
    /// What is served, as it was when the call came: a reload in between changes nothing for it.
    pub exports: Arc<Exports>,
    /// The connection the call came on.
    pub conn: Arc<ConnCx>,
    /// Who calls.
    pub caller: Caller,
    /// Minor version.
    pub minor: u32,
    /// The request.
    pub request: Request,
    /// Place of the operation that runs, from 0.
    pub index: u32,
    /// The slot, set by SEQUENCE; `None` in a COMPOUND without.
    pub slot: Option<SlotToken>,
    /// The request is a retry whose reply was not kept: nothing more is executed.
    pub uncached: bool,
    /// What large replies are charged to; one charge per COMPOUND, since one that held a charge while it waited for
    /// another could wait for ever.
    pub charge: Option<dhow_net::Charge>,
    /// Bytes of the reply that are left for this operation's result body, at most.
    pub room: usize,
    current: Option<Fh>,
    /// The current filehandle is one of another server: nothing but SAVEFH works with it.
    foreign: Option<Bytes>,
    saved: Option<(Fh, Option<Stateid>)>,
    /// The saved filehandle is one of another server: nothing but an inter-server COPY works with it.
    saved_foreign: Option<Bytes>,
    /// `None` stands for the invalid stateid: using it as "the current stateid" is BAD_STATEID.
    stateid: Option<Stateid>,
}

impl OpCx {
    pub fn new(server: Arc<ServerShared>, conn: Arc<ConnCx>, caller: Caller, minor: u32, request: Request) -> Self {
        Self {
            exports: server.exports(),
            server,
            conn,
            caller,
            minor,
            request,
            index: 0,
            slot: None,
            uncached: false,
            charge: None,
            room: usize::MAX,
            current: None,
            foreign: None,
            saved: None,
            saved_foreign: None,
            stateid: None,
        }
    }

    /// The client of the session.
    ///
    /// # Errors
    /// OP_NOT_IN_SESSION (the loop has seen to it that operations which need a session have one).
    pub fn client(&self) -> Result<&Arc<Client>, Status> {
        self.slot.as_ref().map(SlotToken::client).ok_or(Status::OP_NOT_IN_SESSION)
    }

    /// The connection, as the state knows it.
    pub fn conn_id(&self) -> ConnId {
        ConnId(self.conn.id)
    }

    /// The current filehandle.
    ///
    /// # Errors
    /// NOFILEHANDLE; STALE if it is that of another server (RFC 7862 15.2.3).
    pub fn current(&self) -> Result<&Fh, Status> {
        self.current.as_ref().ok_or(missing(&self.foreign))
    }

    /// The saved filehandle.
    ///
    /// # Errors
    /// NOFILEHANDLE; STALE if it is that of another server.
    pub fn saved(&self) -> Result<&Fh, Status> {
        self.saved.as_ref().map(|(fh, _)| fh).ok_or(missing(&self.saved_foreign))
    }

    /// The saved filehandle in its wire form, for a COPY whose source is elsewhere: there it means something whether
    /// it does here or not.
    ///
    /// # Errors
    /// NOFILEHANDLE.
    pub fn saved_wire(&self) -> Result<Bytes, Status> {
        match &self.saved_foreign {
            Some(wire) => Ok(wire.clone()),
            None => self.saved().map(|fh| self.wire_handle(fh.export.place, &fh.handle)),
        }
    }

    /// Whether the filehandles that `op` needs may be those of another server: SAVEFH after PUTFH, and the source of a
    /// COPY.
    pub fn may_be_foreign(&self, op: OpNum) -> bool {
        match op {
            OpNum::SAVEFH => self.foreign.is_some(),
            OpNum::COPY => self.saved_foreign.is_some() && self.current.is_some(),
            _ => false,
        }
    }

    /// PUTFH of a handle of another server, before SAVEFH.
    pub fn set_foreign(&mut self, wire: Bytes) {
        self.clear_current();
        self.foreign = Some(wire);
    }

    /// Sets the current filehandle; the current stateid is gone (RFC 8881 16.2.3.1.2). An operation that also returns
    /// a stateid calls [`OpCx::set_stateid`] afterwards.
    pub fn set_current(&mut self, fh: Fh) {
        self.current = Some(fh);
        self.foreign = None;
        self.stateid = None;
    }

    /// There is no current filehandle any more (after SECINFO, RFC 8881 2.6.3.1.1.8).
    pub fn clear_current(&mut self) {
        self.current = None;
        self.foreign = None;
        self.stateid = None;
    }

    /// Sets the current stateid: every operation that returns one does (RFC 8881 16.2.3.1.2).
    pub fn set_stateid(&mut self, stateid: Stateid) {
        self.stateid = Some(stateid);
    }

    /// The stateid that an argument means: itself, or the current stateid for (1, 0).
    ///
    /// # Errors
    /// BAD_STATEID: the current stateid is meant and there is none (RFC 8881 16.2.3.1.2, figure 6), or the argument is
    /// the invalid special stateid.
    pub fn resolve(&self, stateid: Stateid) -> Result<Stateid, Status> {
        match stateid {
            Stateid::CURRENT => self.stateid.ok_or(Status::BAD_STATEID),
            Stateid::INVALID => Err(Status::BAD_STATEID),
            other => Ok(other),
        }
    }

    /// SAVEFH.
    pub fn save(&mut self) -> Result<(), Status> {
        self.saved_foreign = self.foreign.clone();
        self.saved = match &self.foreign {
            Some(_) => None,
            None => Some((self.current()?.clone(), self.stateid)),
        };
        Ok(())
    }

    /// RESTOREFH.
    pub fn restore(&mut self) -> Result<(), Status> {
        let (fh, stateid) = self.saved.clone().ok_or(missing(&self.saved_foreign))?;
        self.set_current(fh);
        self.stateid = stateid;
        Ok(())
    }

    /// A filehandle in `export`, the caller being squashed by its rules.
    ///
    /// # Errors
    /// `barred` if the export is closed to this caller.
    pub fn enter(&self, export: &Arc<Export>, handle: Handle, barred: Status) -> Result<Fh, Status> {
        // Most COMPOUNDs stay in one export: use what was found out already.
        let known = self.current.iter().chain(self.saved.as_ref().map(|(fh, _)| fh));
        if let Some(fh) = known.into_iter().find(|fh| Arc::ptr_eq(&fh.export, export)) {
            return Ok(fh.sibling(handle));
        }
        match self.caller.user(&export.options) {
            Ok(user) => Ok(Fh { export: Arc::clone(export), handle, user: Arc::new(user) }),
            Err(why) => {
                count(&self.server.metrics.export_refusals);
                let peer = self.caller.peer;
                match why {
                    Barred::Network => tracing::debug!(path = %export.path, ?peer, "client is not allowed here"),
                    Barred::Port => tracing::debug!(path = %export.path, ?peer, "port is not reserved"),
                }
                Err(barred)
            }
        }
    }

    /// The filehandle that stands on the wire.
    ///
    /// # Errors
    /// BADHANDLE if nobody here made it, STALE if its export is gone or closed to this caller (the only statuses of
    /// PUTFH that fit, and what knfsd answers).
    pub fn open_handle(&self, wire: &[u8]) -> Result<Fh, Status> {
        let (place, handle) = self.server.handles.decode(wire).ok_or(Status::BADHANDLE)?;
        let export = self.exports.at(place).ok_or(Status::STALE)?;
        self.enter(export, handle, Status::STALE)
    }

    /// The wire form of a handle.
    pub fn wire_handle(&self, place: Place, handle: &Handle) -> Bytes {
        self.server.handles.encode(place, handle).into()
    }

    /// Passes the gate of a file. Whoever waits for it holds no lock of a name.
    ///
    /// # Errors
    /// DELAY after a bounded wait.
    pub async fn file_gate(&self, fh: &Fh) -> Result<Pass<ObjectId>, Status> {
        self.server.gates.file(&fh.object()).await.map_err(|_| Status::DELAY)
    }
}
