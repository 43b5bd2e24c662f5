//! A client ID and a session over a [`Wire`].

use super::{Wire, op};
use bytes::Bytes;
use dhow_proto::v4::ops::{
    ChannelAttrs, ClientOwner, CreateSessionArgs, CreateSessionOk, ExchangeIdArgs, ExchangeIdOk, ReclaimCompleteArgs,
    SequenceArgs, StateProtectArgs, create_session, share,
};
use dhow_proto::v4::{
    ArgOp, Attrs, ClientId, CompoundRes, FileHandle, ResOp, SessionId, StableHow, StateOwner, Stateid, Status,
    Verifier, optable,
};
use std::net::SocketAddr;

/// How a client introduces itself.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `co_ownerid`: two clients of one server have different ones.
    pub owner: Bytes,
    /// `co_verifier`: of one incarnation of the client.
    pub verifier: Verifier,
    /// EXCHGID4 flags.
    pub exchange_flags: u32,
    /// CREATE_SESSION4 flags.
    pub session_flags: u32,
    /// Fore channel asked for.
    pub fore: ChannelAttrs,
    /// Back channel asked for.
    pub back: ChannelAttrs,
    /// Program of the callbacks.
    pub cb_program: u32,
    /// Minor version of every call.
    pub minor: u32,
    /// Send RECLAIM_COMPLETE.
    pub reclaim_complete: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            owner: Bytes::from_static(b"testkit client"),
            verifier: Verifier(*b"incarnat"),
            exchange_flags: 0,
            session_flags: create_session::CONN_BACK_CHAN,
            fore: channel(64),
            back: ChannelAttrs { max_request_size: 65_536, max_response_size: 65_536, ..channel(16) },
            cb_program: dhow_proto::NFS4_CALLBACK_PROGRAM,
            minor: 2,
            reclaim_complete: true,
        }
    }
}

impl ClientOptions {
    /// The default options with another `co_ownerid`.
    pub fn named(owner: impl AsRef<[u8]>) -> Self {
        Self { owner: Bytes::copy_from_slice(owner.as_ref()), ..Self::default() }
    }
}

/// Channel attributes with so many slots, and otherwise large.
pub(crate) fn channel(slots: u32) -> ChannelAttrs {
    ChannelAttrs {
        header_pad_size: 0,
        max_request_size: 1_060_000,
        max_response_size: 1_060_000,
        max_response_size_cached: 65_536,
        max_operations: 64,
        max_requests: slots,
        rdma_ird: Vec::new(),
    }
}

/// A session, and the next sequence id of each slot.
#[derive(Clone, Debug)]
pub struct Session {
    /// What the server granted.
    pub granted: CreateSessionOk,
    /// Sequence id of the next request on each slot.
    pub next: Vec<u32>,
}

impl Session {
    /// Its id.
    pub fn id(&self) -> SessionId {
        self.granted.session_id
    }

    /// SEQUENCE of the next request on `slot`; the slot advances.
    pub fn sequence(&mut self, slot: u32, cache_this: bool) -> SequenceArgs {
        let next = &mut self.next[slot as usize];
        let sequence_id = *next;
        *next = next.wrapping_add(1);
        let highest_slot_id = self.granted.fore_chan.max_requests - 1;
        SequenceArgs { session_id: self.id(), sequence_id, slot_id: slot, highest_slot_id, cache_this }
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub struct Open {
    /// The file.
    pub fh: FileHandle,
    /// The open.
    pub stateid: Stateid,
}

/// A client ID and a session on a connection.
pub struct Client {
    /// The connection.
    pub wire: Wire,
    /// The client ID.
    pub id: ClientId,
    /// The session.
    pub session: Session,
    /// Minor version of every call.
    pub minor: u32,
    /// Result of EXCHANGE_ID.
    pub exchanged: ExchangeIdOk,
}

impl Client {
    /// Connects, and sets client ID and session up.
    pub async fn connect(addr: SocketAddr, options: ClientOptions) -> Self {
        Self::over(Wire::connect(addr).await.expect("a connection"), options).await
    }

    /// Sets client ID and session up over `wire`.
    ///
    /// # Panics
    /// The server refuses.
    pub async fn over(mut wire: Wire, options: ClientOptions) -> Self {
        let exchanged = exchange_id(&mut wire, &options).await.expect("EXCHANGE_ID");
        let args = create_session_args(&options, exchanged.client_id, exchanged.sequence_id);
        let res = wire.compound(options.minor, &[ArgOp::CreateSession(args)]).await;
        let Some(ResOp::CreateSession(Ok(granted))) = res.results.into_iter().next() else {
            panic!("CREATE_SESSION: {:?}", res.status)
        };
        let session = Session { next: vec![1; granted.fore_chan.max_requests as usize], granted };
        let mut client = Self { wire, id: exchanged.client_id, session, minor: options.minor, exchanged };
        if options.reclaim_complete {
            let res = client.run(&[ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await;
            assert!(res.status.is_ok() || res.status == Status::COMPLETE_ALREADY, "RECLAIM_COMPLETE: {:?}", res.status);
        }
        client
    }

    /// Puts SEQUENCE of `slot` before the operations. The reply is to be cached if one of them is not idempotent: what
    /// only reads may well be too large for that.
    pub fn sequenced(&mut self, slot: u32, ops: &[ArgOp]) -> Vec<ArgOp> {
        let once = |op: &ArgOp| optable::lookup(op.op()).is_some_and(|info| !info.is_idempotent());
        let sequence = self.session.sequence(slot, ops.iter().any(once));
        std::iter::once(ArgOp::Sequence(sequence)).chain(ops.iter().cloned()).collect()
    }

    /// Sends operations in the session on `slot`, without waiting; says the transaction number.
    pub async fn send(&mut self, slot: u32, ops: &[ArgOp]) -> u32 {
        let ops = self.sequenced(slot, ops);
        self.wire.send_compound(self.minor, &ops).await
    }

    /// The results of what [`Client::send`] sent.
    pub async fn wait(&mut self, xid: u32) -> CompoundRes {
        self.wire.compound_reply(self.minor, xid).await
    }

    /// Runs operations in the session, on slot 0. The first result is that of SEQUENCE.
    pub async fn run(&mut self, ops: &[ArgOp]) -> CompoundRes {
        let xid = self.send(0, ops).await;
        self.wait(xid).await
    }

    /// Runs operations that must succeed; the results come without that of SEQUENCE.
    ///
    /// # Panics
    /// One fails.
    pub async fn ok(&mut self, ops: &[ArgOp]) -> Vec<ResOp> {
        let res = self.run(ops).await;
        assert!(res.status.is_ok(), "{:?} for {ops:?}", res.results.last());
        assert_eq!(res.results.len(), ops.len() + 1, "a result for each operation");
        res.results.into_iter().skip(1).collect()
    }

    /// Runs operations, and says the overall status.
    pub async fn status(&mut self, ops: &[ArgOp]) -> Status {
        self.run(ops).await.status
    }

    /// The filehandle at a path of plain names from the root.
    pub async fn walk(&mut self, path: &str) -> FileHandle {
        let mut ops = vec![op::root()];
        ops.extend(path.split('/').filter(|p| !p.is_empty()).map(op::lookup));
        ops.push(op::getfh());
        match self.ok(&ops).await.pop() {
            Some(ResOp::GetFh(Ok(fh))) => fh.object,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a directory.
    pub async fn mkdir(&mut self, dir: &FileHandle, name: impl AsRef<[u8]>) -> FileHandle {
        match self.ok(&[op::put(dir), op::mkdir(name), op::getfh()]).await.pop() {
            Some(ResOp::GetFh(Ok(fh))) => fh.object,
            other => panic!("{other:?}"),
        }
    }

    /// An owner of this client.
    pub fn owner(&self, name: impl AsRef<[u8]>) -> StateOwner {
        op::owner(self.id, name)
    }

    /// Opens a file for reading and writing, and creates it if need be; the owner is called "owner".
    pub async fn create(&mut self, dir: &FileHandle, name: impl AsRef<[u8]>) -> Open {
        let owner = self.owner("owner");
        self.open(dir, op::open_create(owner, share::ACCESS_BOTH, share::DENY_NONE, name, 0o644)).await
    }

    /// Opens as `open` says.
    pub async fn open(&mut self, dir: &FileHandle, open: ArgOp) -> Open {
        let mut results = self.ok(&[op::put(dir), open, op::getfh()]).await;
        match (results.pop(), results.pop()) {
            (Some(ResOp::GetFh(Ok(fh))), Some(ResOp::Open(Ok(ok)))) => Open { fh: fh.object, stateid: ok.stateid },
            other => panic!("{other:?}"),
        }
    }

    /// Closes.
    pub async fn close(&mut self, open: &Open) {
        self.ok(&[op::put(&open.fh), op::close(open.stateid)]).await;
    }

    /// Writes all of `data`, unstable.
    pub async fn write(&mut self, open: &Open, offset: u64, data: &[u8]) {
        let write = op::write(open.stateid, offset, StableHow::UNSTABLE, data);
        match self.ok(&[op::put(&open.fh), write]).await.pop() {
            Some(ResOp::Write(Ok(ok))) => assert_eq!(ok.count as usize, data.len()),
            other => panic!("{other:?}"),
        }
    }

    /// Reads up to `count` bytes; the second value is `eof`.
    pub async fn read(&mut self, open: &Open, offset: u64, count: u32) -> (Bytes, bool) {
        match self.ok(&[op::put(&open.fh), op::read(open.stateid, offset, count)]).await.pop() {
            Some(ResOp::Read(Ok(ok))) => (ok.data, ok.eof),
            other => panic!("{other:?}"),
        }
    }

    /// Attributes.
    pub async fn attrs(&mut self, fh: &FileHandle, bits: &[u32]) -> Attrs {
        match self.ok(&[op::put(fh), op::getattr(bits)]).await.pop() {
            Some(ResOp::Getattr(Ok(ok))) => *ok.attrs,
            other => panic!("{other:?}"),
        }
    }
}

/// Arguments of EXCHANGE_ID.
pub(crate) fn exchange_id_args(options: &ClientOptions) -> ExchangeIdArgs {
    ExchangeIdArgs {
        client_owner: ClientOwner { verifier: options.verifier, owner_id: options.owner.clone() },
        flags: options.exchange_flags,
        state_protect: StateProtectArgs::None,
        impl_id: Vec::new(),
    }
}

/// Arguments of CREATE_SESSION.
pub(crate) fn create_session_args(options: &ClientOptions, client_id: ClientId, sequence: u32) -> CreateSessionArgs {
    CreateSessionArgs {
        client_id,
        sequence,
        flags: options.session_flags,
        fore_chan: options.fore.clone(),
        back_chan: options.back.clone(),
        cb_program: options.cb_program,
        sec_parms: vec![dhow_proto::v4::ops::CallbackSec::None],
    }
}

async fn exchange_id(wire: &mut Wire, options: &ClientOptions) -> Result<ExchangeIdOk, Status> {
    let res = wire.compound(options.minor, &[ArgOp::ExchangeId(exchange_id_args(options))]).await;
    match res.results.into_iter().next() {
        Some(ResOp::ExchangeId(done)) => done,
        _ => Err(res.status),
    }
}

impl ClientOptions {
    /// EXCHANGE_ID of these options.
    pub fn exchange_id(&self) -> ArgOp {
        ArgOp::ExchangeId(exchange_id_args(self))
    }

    /// CREATE_SESSION of these options.
    pub fn create_session(&self, client: ClientId, sequence: u32) -> ArgOp {
        ArgOp::CreateSession(create_session_args(self, client, sequence))
    }
}
