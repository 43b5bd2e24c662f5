//! A raw client for odd and hostile calls: every byte, number and length is the test's to choose.
//!
//! [`Wire`] is a connection: bytes, records, calls, replies. [`Client`] is a client ID and a session on one, with the
//! calls that most tests need. Every result that either decodes is held against the operation table: a status that an
//! operation must not return ends the test (case B24).

mod client;
pub mod op;

pub use client::{Client, ClientOptions, Open, Session};

use bytes::{Bytes, BytesMut};
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::cb::{CbCompoundArgs, CbCompoundRes, CbResOp, CbSequenceOk};
use dhow_proto::v4::{ArgOp, CompoundArgs, CompoundRes, PROC_COMPOUND, PROC_NULL, Status, VERSION, optable};
use dhow_rpc::{AuthSys, CallBody, CallHeader, Credential, OpaqueAuth, ReplyBody, ReplyHeader, record_mark};
use dhow_xdr::{Decode, Encode, Reader, Writer};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Both directions of a byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An AUTH_SYS credential.
pub fn sys(uid: u32, gid: u32, gids: &[u32]) -> Credential {
    let machine = Bytes::from_static(b"testkit");
    Credential::Sys(AuthSys { stamp: 1, machine, uid, gid, gids: gids.iter().copied().collect() })
}

/// A reply: its header, and what follows it.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The header.
    pub header: ReplyHeader,
    /// The results, not looked into.
    pub body: Bytes,
}

/// A call that the server sent.
#[derive(Debug, Clone)]
pub struct CallBack {
    /// The header.
    pub header: CallHeader,
    /// The arguments, not looked into.
    pub body: Bytes,
}

/// What the wire does with calls of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callbacks {
    /// Answers them with success, and keeps them in [`Wire::callbacks`].
    Answer,
    /// Keeps them unanswered.
    Keep,
}

/// A connection to a server.
pub struct Wire {
    io: Box<dyn Stream>,
    next_xid: u32,
    replies: HashMap<u32, VecDeque<Reply>>,
    /// Credential of the calls.
    pub cred: Credential,
    /// Calls that the server sent, oldest first.
    pub callbacks: VecDeque<CallBack>,
    /// What is done with them.
    pub on_callback: Callbacks,
    /// How long a reply may take before the test fails: a bound against hanging, no measure.
    pub patience: Duration,
    /// Largest record accepted.
    pub limit: usize,
}

impl Wire {
    /// A connection over `io`, calling as the superuser.
    pub fn new(io: impl Stream + 'static) -> Self {
        Self {
            io: Box::new(io),
            next_xid: 0x1000,
            replies: HashMap::new(),
            cred: sys(0, 0, &[]),
            callbacks: VecDeque::new(),
            on_callback: Callbacks::Answer,
            patience: Duration::from_secs(30),
            limit: 16 << 20,
        }
    }

    /// A TCP connection.
    ///
    /// # Errors
    /// As of connecting.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    /// Calls as this user from now on.
    pub fn with_cred(mut self, cred: Credential) -> Self {
        self.cred = cred;
        self
    }

    /// A transaction number that was not used yet.
    pub fn xid(&mut self) -> u32 {
        self.next_xid += 1;
        self.next_xid
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match timeout(self.patience, self.io.write_all(bytes)).await {
            Ok(done) => done,
            Err(_) => panic!("the server takes no bytes"),
        }
    }

    /// Sends a record of one fragment.
    ///
    /// # Errors
    /// As [`Wire::send_raw`].
    pub async fn send_record(&mut self, body: &[u8]) -> io::Result<()> {
        self.send_fragments(&[body]).await
    }

    /// Sends a record in these fragments, in one write.
    ///
    /// # Errors
    /// As [`Wire::send_raw`].
    pub async fn send_fragments(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut out = BytesMut::new();
        for (i, part) in parts.iter().enumerate() {
            let mut mark = record_mark(part.len());
            if i + 1 < parts.len() {
                mark[0] &= 0x7f;
            }
            out.extend_from_slice(&mark);
            out.extend_from_slice(part);
        }
        self.send_raw(&out).await
    }

    /// Sends a call of this credential, and says its transaction number.
    pub async fn send_call(&mut self, prog: u32, vers: u32, proc: u32, args: &[u8]) -> u32 {
        let xid = self.xid();
        let cred = self.cred.to_opaque().expect("a valid credential");
        self.send_call_as(xid, cred, prog, vers, proc, args).await;
        xid
    }

    /// Sends a call with every part chosen.
    pub async fn send_call_as(&mut self, xid: u32, cred: OpaqueAuth, prog: u32, vers: u32, proc: u32, args: &[u8]) {
        let record = call_bytes(xid, cred, prog, vers, proc, args);
        self.send_record(&record).await.expect("the connection takes a call");
    }

    /// Sends a COMPOUND, and says its transaction number.
    pub async fn send_compound(&mut self, minor: u32, ops: &[ArgOp]) -> u32 {
        let args = compound_bytes(minor, ops);
        self.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &args).await
    }

    /// The next record, whole; `None` once the server has closed the connection.
    ///
    /// # Panics
    /// Nothing comes within [`Wire::patience`].
    pub async fn recv_record(&mut self) -> Option<Bytes> {
        match timeout(self.patience, recv_record(&mut self.io, self.limit)).await {
            Ok(record) => record,
            Err(_) => panic!("no record came"),
        }
    }

    /// Takes one record in: a reply is kept, a call of the server answered or kept. `false`: the connection is closed.
    pub async fn pump(&mut self) -> bool {
        let Some(record) = self.recv_record().await else { return false };
        let mut r = Reader::new(record);
        match dhow_rpc::message::is_call(&r) {
            Some(false) => {
                let header = ReplyHeader::decode(&mut r).expect("a well-formed reply");
                let body = r.rest();
                self.replies.entry(header.xid).or_default().push_back(Reply { header, body });
            }
            Some(true) => {
                let header = CallHeader::decode(&mut r).expect("a well-formed call of the server");
                let call = CallBack { header, body: r.rest() };
                if self.on_callback == Callbacks::Answer {
                    self.answer(&call).await;
                }
                self.callbacks.push_back(call);
            }
            None => panic!("neither a call nor a reply"),
        }
        true
    }

    /// The reply to `xid`; `None` if the connection was closed before.
    pub async fn try_reply(&mut self, xid: u32) -> Option<Reply> {
        loop {
            if let Some(reply) = self.replies.get_mut(&xid).and_then(VecDeque::pop_front) {
                return Some(reply);
            }
            if !self.pump().await {
                return None;
            }
        }
    }

    /// The reply to `xid`.
    ///
    /// # Panics
    /// The connection was closed.
    pub async fn reply(&mut self, xid: u32) -> Reply {
        self.try_reply(xid).await.expect("a reply, but the connection was closed")
    }

    /// The results of the COMPOUND `xid`, checked against the operation table.
    pub async fn compound_reply(&mut self, minor: u32, xid: u32) -> CompoundRes {
        self.reply(xid).await.compound(minor)
    }

    /// Sends a COMPOUND and waits for its results.
    pub async fn compound(&mut self, minor: u32, ops: &[ArgOp]) -> CompoundRes {
        let xid = self.send_compound(minor, ops).await;
        self.compound_reply(minor, xid).await
    }

    /// Calls the procedure that does nothing.
    pub async fn null(&mut self) -> Reply {
        let xid = self.send_call(NFS_PROGRAM, VERSION, PROC_NULL, &[]).await;
        self.reply(xid).await
    }

    /// Waits until the server closes the connection, dropping what it sends before.
    pub async fn closed(&mut self) {
        while self.recv_record().await.is_some() {}
    }

    /// Waits for the next call of the server.
    ///
    /// # Panics
    /// The connection was closed.
    pub async fn callback(&mut self) -> CallBack {
        loop {
            if let Some(call) = self.callbacks.pop_front() {
                return call;
            }
            assert!(self.pump().await, "a callback, but the connection was closed");
        }
    }

    /// Answers a call of the server with success in every operation.
    pub async fn answer(&mut self, call: &CallBack) {
        let mut w = Writer::new();
        ReplyHeader::success(call.header.xid).encode(&mut w);
        if call.header.body.as_ref().is_some_and(|b| b.proc == dhow_proto::v4::cb::CB_PROC_COMPOUND) {
            call.success().encode(&mut w);
        }
        let bytes = w.into_bytes();
        // The server may have gone meanwhile.
        let _ = self.send_record(&bytes).await;
    }
}

impl CallBack {
    /// The operations of a CB_COMPOUND.
    pub fn compound(&self) -> CbCompoundArgs {
        CbCompoundArgs::from_bytes(self.body.clone()).expect("a well-formed CB_COMPOUND")
    }

    /// The results that say yes to everything.
    pub fn success(&self) -> CbCompoundRes {
        use dhow_proto::v4::cb::CbArgOp;
        let args = self.compound();
        let results = args.ops.iter().map(|op| match op {
            CbArgOp::Sequence(s) => CbResOp::Sequence(Ok(CbSequenceOk {
                session_id: s.session_id,
                sequence_id: s.sequence_id,
                slot_id: s.slot_id,
                highest_slot_id: s.highest_slot_id,
                target_highest_slot_id: s.highest_slot_id,
            })),
            CbArgOp::Offload(_) => CbResOp::Offload(Ok(())),
            CbArgOp::Recall(_) => CbResOp::Recall(Ok(())),
            CbArgOp::RecallAny(_) => CbResOp::RecallAny(Ok(())),
            CbArgOp::RecallSlot(_) => CbResOp::RecallSlot(Ok(())),
            CbArgOp::NotifyLock(_) => CbResOp::NotifyLock(Ok(())),
            other => CbResOp::error(other.op(), Status::NOTSUPP),
        });
        CbCompoundRes { status: Status::OK, tag: args.tag.clone(), results: results.collect() }
    }
}

impl Reply {
    /// The results of a COMPOUND, checked: whole, nothing left over, every status allowed for its operation, and the
    /// overall status that of the last result.
    ///
    /// # Panics
    /// Where one of these is not so.
    pub fn compound(&self, minor: u32) -> CompoundRes {
        assert!(self.header.is_success(), "{:?}", self.header);
        let res = CompoundRes::from_bytes(self.body.clone())
            .unwrap_or_else(|e| panic!("results that do not decode: {e}: {:02x?}", &self.body[..]));
        check(&res, minor);
        res
    }

    /// Why the call was not executed; `None` if it was.
    pub fn refusal(&self) -> Option<&ReplyBody> {
        (!self.header.is_success()).then_some(&self.header.body)
    }
}

/// Holds results against the operation table.
///
/// # Panics
/// A status that the operation must not return in this minor version, or an overall status that is not the last one's.
pub fn check(res: &CompoundRes, minor: u32) {
    for (i, result) in res.results.iter().enumerate() {
        let (op, status) = (result.op(), result.status());
        assert!(optable::allows(op, minor, status), "{op:?} must not return {status:?} in 4.{minor}: {res:?}");
        assert!(status.is_ok() || i + 1 == res.results.len(), "a result after a failure: {res:?}");
    }
    match res.results.last() {
        Some(last) => assert_eq!(res.status, last.status(), "the overall status: {res:?}"),
        None => assert!(
            res.status.is_ok() || optable::COMPOUND_ERRORS.contains(&res.status),
            "COMPOUND must not return {:?}",
            res.status
        ),
    }
}

/// The bytes of a call, without record mark.
pub fn call_bytes(xid: u32, cred: OpaqueAuth, prog: u32, vers: u32, proc: u32, args: &[u8]) -> Vec<u8> {
    let body = CallBody { prog, vers, proc, cred, verf: OpaqueAuth::NONE };
    let mut w = Writer::new();
    CallHeader { xid, rpcvers: dhow_rpc::RPC_VERSION, body: Some(body) }.encode(&mut w);
    w.fixed(args);
    w.into_bytes().to_vec()
}

/// The bytes of the arguments of a COMPOUND.
pub fn compound_bytes(minor: u32, ops: &[ArgOp]) -> Bytes {
    CompoundArgs { tag: Bytes::from_static(b"testkit"), minorversion: minor, ops: ops.to_vec() }.to_bytes()
}

async fn recv_record(io: &mut (impl AsyncRead + Unpin), limit: usize) -> Option<Bytes> {
    let mut record = BytesMut::new();
    loop {
        let mut mark = [0; 4];
        match io.read_exact(&mut mark).await {
            Ok(_) => {}
            // Closed or reset, at a record's border or within.
            Err(_) => return None,
        }
        let mark = u32::from_be_bytes(mark);
        let len = (mark & 0x7fff_ffff) as usize;
        assert!(record.len() + len <= limit, "a record of {} bytes from the server", record.len() + len);
        let at = record.len();
        record.resize(at + len, 0);
        io.read_exact(&mut record[at..]).await.ok()?;
        if mark & 0x8000_0000 != 0 {
            return Some(record.freeze());
        }
    }
}
