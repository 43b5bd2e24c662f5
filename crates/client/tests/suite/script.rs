//! A server that does as a test says, good or bad.

use bytes::{Bytes, BytesMut};
use dhow_proto::NFS4_CALLBACK_PROGRAM;
use dhow_proto::v4::cb::{CB_PROC_COMPOUND, CB_VERSION, CbArgOp, CbCompoundRes, CbSequenceArgs};
use dhow_proto::v4::ops::*;
use dhow_proto::v4::{
    ArgOp, ClientId, CompoundArgs, CompoundRes, FileHandle, ResOp, SessionId, Status, Verifier, cbtable,
};
use dhow_rpc::{AuthStat, CallHeader, Credential, ReplyHeader, denied_reply};
use dhow_xdr::{Decode, Encode, Reader, Writer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What to do with a request.
pub enum Act {
    /// Answer the operations after SEQUENCE, which succeeds.
    Ops(Vec<ResOp>),
    /// As `Ops`, with these status flags in the answer to SEQUENCE.
    Flagged(u32, Vec<ResOp>),
    /// Refuse the call by RPC.
    Denied(AuthStat),
    /// Answer SEQUENCE with an error.
    Sequence(Status),
    /// Answer with these bytes in place of the whole COMPOUND result.
    Raw(Bytes),
    /// Send these bytes on the stream as they are.
    Bytes(Vec<u8>),
    /// Say nothing.
    Silence,
    /// Hang up.
    HangUp,
    /// Execute, but lose the answer: a retry gets these results.
    LoseReply(Vec<ResOp>),
    /// Send this callback first, wait for its answer, then answer so.
    CallBack(CbArgOp, Vec<ResOp>),
    /// The same with the operation as bytes, number included.
    CallBackBytes(Bytes, Vec<ResOp>),
}

/// A request as the script sees it.
pub struct Req {
    pub minor: u32,
    pub sequence: Option<SequenceArgs>,
    /// Without SEQUENCE.
    pub ops: Vec<ArgOp>,
}

type Script = dyn Fn(&Req) -> Option<Act> + Send + Sync;

pub struct Scripted {
    pub addr: SocketAddr,
    pub log: Arc<Log>,
}

/// What happened.
#[derive(Default)]
pub struct Log {
    /// Raw records of sequenced requests, in order of arrival.
    pub records: Mutex<Vec<Bytes>>,
    /// Answers to callbacks.
    pub callbacks: Mutex<Vec<CbCompoundRes>>,
    /// Every operation that came outside sessions.
    pub setup: Mutex<Vec<ArgOp>>,
    lost: Mutex<Vec<(u32, u32, Vec<ResOp>)>>,
}

/// Slots the script grants, and the highest it tells in replies.
pub const SLOTS: u32 = 16;
pub const SESSION: SessionId = SessionId([7; 16]);

/// Starts a server; `script` sees every COMPOUND first and may leave it to the default by `None`.
pub async fn start(script: impl Fn(&Req) -> Option<Act> + Send + Sync + 'static) -> Scripted {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let log = Arc::new(Log::default());
    let script: Arc<Script> = Arc::new(script);
    let shared = log.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, log) = (script.clone(), shared.clone());
            tokio::spawn(async move { serve(stream, script, log).await });
        }
    });
    Scripted { addr, log }
}

async fn read_record(read: &mut OwnedReadHalf) -> Option<Bytes> {
    let mut out = BytesMut::new();
    loop {
        let mark = read.read_u32().await.ok()?;
        let len = (mark & 0x7fff_ffff) as usize;
        let start = out.len();
        out.resize(start + len, 0);
        read.read_exact(&mut out[start..]).await.ok()?;
        if mark & 0x8000_0000 != 0 {
            return Some(out.freeze());
        }
    }
}

async fn write_record(write: &mut OwnedWriteHalf, record: &[u8]) {
    let mut all = (record.len() as u32 | 0x8000_0000).to_be_bytes().to_vec();
    all.extend_from_slice(record);
    let _ = write.write_all(&all).await;
}

async fn serve(stream: TcpStream, script: Arc<Script>, log: Arc<Log>) {
    let (mut read, mut write) = stream.into_split();
    while let Some(record) = read_record(&mut read).await {
        let mut r = Reader::new(record.clone());
        let header = CallHeader::decode(&mut r).unwrap();
        if header.body.unwrap().proc == 0 {
            write_record(&mut write, &ReplyHeader::success(header.xid).to_bytes()).await;
            continue;
        }
        let args = CompoundArgs::decode(&mut r).unwrap();
        let mut ops = args.ops;
        let sequence = match ops.first() {
            Some(ArgOp::Sequence(s)) => Some(s.clone()),
            _ => None,
        };
        if sequence.is_some() {
            ops.remove(0);
            log.records.lock().unwrap().push(record.clone());
        } else {
            log.setup.lock().unwrap().extend(ops.iter().cloned());
        }
        let replay = sequence.as_ref().and_then(|s| {
            let lost = log.lost.lock().unwrap();
            lost.iter().find(|l| (l.0, l.1) == (s.slot_id, s.sequence_id)).map(|l| l.2.clone())
        });
        let req = Req { minor: args.minorversion, sequence, ops };
        let act = match replay {
            Some(results) => Act::Ops(results),
            None => script(&req).unwrap_or_else(|| by_default(&req)),
        };
        let mut body = Writer::new();
        ReplyHeader::success(header.xid).encode(&mut body);
        let act = match act {
            Act::CallBack(op, results) => Act::CallBackBytes(op.to_bytes(), results),
            act => act,
        };
        match act {
            Act::HangUp => return,
            Act::Silence => {}
            Act::Bytes(bytes) => {
                let _ = write.write_all(&bytes).await;
            }
            Act::Raw(bytes) => {
                body.raw(bytes);
                write_record(&mut write, &body.into_bytes()).await;
            }
            Act::LoseReply(results) => {
                let s = req.sequence.unwrap();
                log.lost.lock().unwrap().push((s.slot_id, s.sequence_id, results));
                return;
            }
            Act::Sequence(status) => {
                let results = vec![ResOp::Sequence(Err(status))];
                CompoundRes { status, tag: Bytes::new(), results }.encode(&mut body);
                write_record(&mut write, &body.into_bytes()).await;
            }
            Act::Ops(results) => {
                answer(&req, results).encode(&mut body);
                write_record(&mut write, &body.into_bytes()).await;
            }
            Act::Flagged(flags, results) => {
                let mut res = answer(&req, results);
                if let Some(ResOp::Sequence(Ok(ok))) = res.results.first_mut() {
                    ok.status_flags = flags;
                }
                res.encode(&mut body);
                write_record(&mut write, &body.into_bytes()).await;
            }
            Act::Denied(why) => write_record(&mut write, &denied_reply(header.xid, why).to_bytes()).await,
            Act::CallBack(..) => unreachable!("made bytes above"),
            Act::CallBackBytes(op, results) => {
                let n = log.callbacks.lock().unwrap().len() as u32 + 1;
                write_record(&mut write, &callback(n, req.minor, &op)).await;
                let reply = read_record(&mut read).await.unwrap();
                let mut r = Reader::new(reply);
                assert!(ReplyHeader::decode(&mut r).unwrap().is_success());
                let answered = CbCompoundRes::decode(&mut r).unwrap();
                // The table of callbacks binds every answer, whatever the test looks at (RFC 8881 15.3).
                for res in &answered.results {
                    let (op, status) = (res.op(), res.status());
                    assert!(cbtable::allows(op, req.minor, status), "{op:?} was answered by {status}");
                }
                log.callbacks.lock().unwrap().push(answered);
                answer(&req, results).encode(&mut body);
                write_record(&mut write, &body.into_bytes()).await;
            }
        }
    }
}

fn callback(n: u32, minor: u32, op: &[u8]) -> Bytes {
    let mut w = Writer::new();
    CallHeader::new(0x1000 + n, NFS4_CALLBACK_PROGRAM, CB_VERSION, CB_PROC_COMPOUND, &Credential::None)
        .unwrap()
        .encode(&mut w);
    let sequence = CbArgOp::Sequence(CbSequenceArgs {
        session_id: SESSION,
        sequence_id: n,
        slot_id: 0,
        highest_slot_id: 0,
        cache_this: false,
        referring_call_lists: Vec::new(),
    });
    w.opaque(b"");
    w.u32(minor);
    w.u32(0); // callback_ident
    w.u32(2);
    sequence.encode(&mut w);
    w.fixed(op);
    w.into_bytes()
}

/// The whole result of a COMPOUND.
pub fn answer(req: &Req, results: Vec<ResOp>) -> CompoundRes {
    let status = results.last().map_or(Status::OK, ResOp::status);
    let mut all = Vec::new();
    if let Some(s) = &req.sequence {
        all.push(ResOp::Sequence(Ok(SequenceOk {
            session_id: s.session_id,
            sequence_id: s.sequence_id,
            slot_id: s.slot_id,
            highest_slot_id: SLOTS - 1,
            target_highest_slot_id: SLOTS - 1,
            status_flags: 0,
        })));
    }
    all.extend(results);
    CompoundRes { status, tag: Bytes::new(), results: all }
}

/// A server without files: sessions work, everything else is NOTSUPP.
fn by_default(req: &Req) -> Act {
    Act::Ops(req.ops.iter().map_while(default_result).collect::<Vec<_>>())
}

pub fn default_result(op: &ArgOp) -> Option<ResOp> {
    let channel = |slots| ChannelAttrs {
        header_pad_size: 0,
        max_request_size: 1 << 20,
        max_response_size: 1 << 20,
        max_response_size_cached: 4096,
        max_operations: 32,
        max_requests: slots,
        rdma_ird: Vec::new(),
    };
    Some(match op {
        ArgOp::ExchangeId(_) => ResOp::ExchangeId(Ok(ExchangeIdOk {
            client_id: ClientId(1),
            sequence_id: 1,
            flags: exchgid::USE_NON_PNFS,
            state_protect: StateProtectRes::None,
            server_owner: ServerOwner { minor_id: 0, major_id: Bytes::from_static(b"scripted") },
            server_scope: Bytes::from_static(b"scripted"),
            impl_id: Vec::new(),
        })),
        ArgOp::CreateSession(args) => ResOp::CreateSession(Ok(CreateSessionOk {
            session_id: SESSION,
            sequence: args.sequence,
            flags: create_session::CONN_BACK_CHAN,
            fore_chan: channel(SLOTS),
            back_chan: channel(4),
        })),
        ArgOp::BindConnToSession(args) => ResOp::BindConnToSession(Ok(BindConnToSessionOk {
            session_id: args.session_id,
            dir: ChannelDirFromServer::BOTH,
            use_rdma: false,
        })),
        ArgOp::ReclaimComplete(_) => ResOp::ReclaimComplete(Ok(())),
        ArgOp::DestroySession(_) => ResOp::DestroySession(Ok(())),
        ArgOp::DestroyClientid(_) => ResOp::DestroyClientid(Ok(())),
        ArgOp::PutRootFh => ResOp::PutRootFh(Ok(())),
        ArgOp::PutFh(_) => ResOp::PutFh(Ok(())),
        ArgOp::SaveFh => ResOp::SaveFh(Ok(())),
        ArgOp::Lookup(_) => ResOp::Lookup(Ok(())),
        ArgOp::GetFh => ResOp::GetFh(Ok(GetFhOk { object: FileHandle(Bytes::from_static(b"handle")) })),
        ArgOp::Getattr(_) => ResOp::Getattr(Ok(GetattrOk {
            attrs: Box::new(dhow_proto::v4::Attrs {
                file_type: Some(dhow_proto::v4::FileType::REG),
                size: Some(1 << 30),
                lease_time: Some(60),
                ..Default::default()
            }),
        })),
        ArgOp::Open(_) => ResOp::Open(Ok(OpenOk {
            stateid: dhow_proto::v4::Stateid { seqid: 1, other: [3; 12] },
            cinfo: Default::default(),
            rflags: 0,
            attrset: Default::default(),
            delegation: Delegation::None,
        })),
        ArgOp::Setattr(_) => ResOp::Setattr(SetattrRes { status: Status::OK, attrsset: Default::default() }),
        ArgOp::Close(_) => ResOp::Close(Ok(CloseOk { open_stateid: dhow_proto::v4::Stateid::INVALID })),
        ArgOp::Commit(_) => ResOp::Commit(Ok(CommitOk { verifier: Verifier([0; 8]) })),
        _ => return None,
    })
}

/// The default results of everything before the operation that `pick` answers.
pub fn results(req: &Req, pick: impl Fn(&ArgOp) -> Option<ResOp>) -> Vec<ResOp> {
    let mut out = Vec::new();
    for op in &req.ops {
        match pick(op).or_else(|| default_result(op)) {
            Some(res) => {
                let failed = !res.status().is_ok();
                out.push(res);
                if failed {
                    break;
                }
            }
            None => break,
        }
    }
    out
}
