//! Random and mutated requests at the whole server: it never panics, answers only what the operation table allows, and
//! goes on serving a well-behaved client. Seeded, so that a failure comes again; `DHOW_FUZZ_ROUNDS` makes it longer and
//! `DHOW_FUZZ_SEED` another.

use crate::common::Srv;
use bytes::Bytes;
use dhow_proto::NFS_PROGRAM;
use dhow_proto::v4::ops::*;
use dhow_proto::v4::{
    ArgOp, Attrs, Bitmap, ClientId, DelegationType, FileHandle, FileType, LockType, ModeMasked, NetLoc, NfsTime, OpNum,
    PROC_COMPOUND, ResOp, SessionId, SetTime, SpecData, StableHow, StateOwner, Stateid, Status, VERSION, Verifier,
};
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Callbacks, Client, ClientOptions, Wire, call_bytes, check, compound_bytes, op, sys};
use dhow_xdr::Decode;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// xorshift64*: small, and the same everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n.max(1)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number that is likely to be at some border.
    fn number(&mut self) -> u64 {
        const BORDERS: [u64; 16] = [
            0,
            1,
            2,
            3,
            4095,
            4096,
            4097,
            65_536,
            1 << 20,
            0x7fff_ffff,
            0xffff_ffff,
            1 << 32,
            (1 << 63) - 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        if self.chance(70) { *self.pick(&BORDERS) } else { self.next() >> self.below(64) }
    }

    fn word(&mut self) -> u32 {
        self.number() as u32
    }
}

pub fn seed_and_rounds(rounds: usize) -> (u64, usize) {
    let var = |n: &str| std::env::var(n).ok().and_then(|v| v.parse::<u64>().ok());
    (var("DHOW_FUZZ_SEED").unwrap_or(1), var("DHOW_FUZZ_ROUNDS").map_or(rounds, |r| r as usize))
}

/// What a client has learnt so far: material for requests that get somewhere.
pub struct Pool {
    fhs: Vec<FileHandle>,
    stateids: Vec<Stateid>,
    /// Stateids with the file they belong to.
    opens: Vec<(FileHandle, Stateid)>,
    client: ClientId,
    session: SessionId,
    cookies: Vec<u64>,
    /// Offsets and lengths that take storage are below this.
    pub span: u64,
}

impl Pool {
    fn learn(&mut self, results: &[ResOp]) {
        let mut last = None;
        for r in results {
            if let (ResOp::GetFh(Ok(ok)), Some(stateid)) = (r, last.take()) {
                self.opens.push((ok.object.clone(), stateid));
            }
            match r {
                ResOp::GetFh(Ok(ok)) => self.fhs.push(ok.object.clone()),
                ResOp::Open(Ok(ok)) => last = Some(ok.stateid),
                _ => {}
            }
            if let ResOp::Lock(LockRes::Ok(s)) = r {
                last = Some(*s);
            }
            match r {
                ResOp::Open(Ok(ok)) => self.stateids.push(ok.stateid),
                ResOp::Lock(LockRes::Ok(s)) => self.stateids.push(*s),
                ResOp::Locku(Ok(ok)) => self.stateids.push(ok.lock_stateid),
                ResOp::OpenDowngrade(Ok(ok)) => self.stateids.push(ok.open_stateid),
                ResOp::Copy(CopyRes::Ok(ok)) => self.stateids.extend(ok.response.callback_id.first()),
                ResOp::Readdir(Ok(ok)) => self.cookies.extend(ok.entries.iter().map(|e| e.cookie)),
                _ => {}
            }
        }
        // What was learnt last is used most: old things are dropped.
        let keep = |len: usize| len.saturating_sub(40);
        self.fhs.drain(1..keep(self.fhs.len()).max(1));
        self.stateids.drain(..keep(self.stateids.len()));
        self.opens.drain(..keep(self.opens.len()));
        self.cookies.drain(..keep(self.cookies.len()));
    }

    fn fh(&self, r: &mut Rng) -> FileHandle {
        if r.chance(95) { r.pick(&self.fhs).clone() } else { FileHandle(bytes(r, 128)) }
    }

    fn stateid(&self, r: &mut Rng) -> Stateid {
        match r.below(10) {
            0 => Stateid::ANONYMOUS,
            1 => Stateid::READ_BYPASS,
            2 => Stateid::CURRENT,
            3 => Stateid { seqid: r.word(), other: [r.next() as u8; 12] },
            _ if self.stateids.is_empty() => Stateid::ANONYMOUS,
            4 => Stateid { seqid: r.word(), ..*r.pick(&self.stateids) },
            5 => Stateid { seqid: 0, ..*r.pick(&self.stateids) },
            _ => *r.pick(&self.stateids),
        }
    }

    fn owner(&self, r: &mut Rng) -> StateOwner {
        let client = if r.chance(90) { self.client } else { ClientId(r.next()) };
        StateOwner { client, owner: Bytes::from(format!("owner {}", r.below(4))) }
    }
}

fn bytes(r: &mut Rng, most: usize) -> Bytes {
    let len = r.below(most + 1);
    (0..len).map(|_| r.next() as u8).collect::<Vec<u8>>().into()
}

fn name(r: &mut Rng) -> Bytes {
    match r.below(20) {
        0 => bytes(r, 300),
        1 => Bytes::from_static(b".."),
        2 => Bytes::new(),
        _ => Bytes::from(format!("n{}", r.below(6))),
    }
}

fn bitmap(r: &mut Rng) -> Bitmap {
    let mut b = Bitmap::EMPTY;
    for _ in 0..r.below(12) {
        b.set(r.below(90) as u32);
    }
    b
}

fn attrs(r: &mut Rng) -> Attrs {
    let mut a = Attrs::default();
    let time = |r: &mut Rng| match r.below(3) {
        0 => SetTime::Server,
        _ => SetTime::Client(NfsTime { secs: r.number() as i64, nanos: r.word() }),
    };
    for _ in 0..r.below(4) {
        match r.below(10) {
            0 => a.mode = Some(r.word() & 0o7777),
            1 => a.size = Some(r.number() % (1 << 22)),
            2 => a.size = Some(r.number()),
            3 => a.owner = Some(Bytes::from(r.below(3).to_string())),
            4 => a.owner_group = Some(bytes(r, 12)),
            5 => a.time_modify_set = Some(time(r)),
            6 => a.time_access_set = Some(time(r)),
            7 => a.mode_set_masked = Some(ModeMasked { value: r.word(), mask: r.word() }),
            8 => a.fileid = Some(r.next()),
            _ => a.hidden = Some(true),
        }
    }
    a
}

fn time_op(pool: &Pool, r: &mut Rng) -> ArgOp {
    let (stateid, offset, length) = (pool.stateid(r), r.number(), r.number());
    match r.below(8) {
        0 => ArgOp::Allocate(AllocateArgs { stateid, offset: offset % pool.span, length: length % pool.span }),
        1 => ArgOp::Allocate(AllocateArgs { stateid, offset, length: 1 << 62 }),
        2 => ArgOp::Deallocate(AllocateArgs { stateid, offset, length }),
        3 => op::seek(stateid, offset, DataContent(r.below(3) as u32)),
        4 => op::clone(stateid, pool.stateid(r), offset & !4095, r.number() & !4095, length),
        5 => ArgOp::ReadPlus(ReadPlusArgs { stateid, offset, count: r.word() % (1 << 20) }),
        6 => ArgOp::IoAdvise(IoAdviseArgs { stateid, offset, count: length, hints: bitmap(r) }),
        _ => ArgOp::Copy(CopyArgs {
            src_stateid: stateid,
            dst_stateid: pool.stateid(r),
            src_offset: offset,
            dst_offset: r.number() % pool.span,
            count: length,
            consecutive: r.chance(50),
            synchronous: r.chance(50),
            source_server: if r.chance(10) { vec![NetLoc::Name(name(r))] } else { vec![] },
        }),
    }
}

fn session_op(pool: &Pool, r: &mut Rng) -> ArgOp {
    let stateid = pool.stateid(r);
    match r.below(12) {
        0 => ArgOp::TestStateid(TestStateidArgs { stateids: (0..r.below(20)).map(|_| pool.stateid(r)).collect() }),
        1 => ArgOp::FreeStateid(FreeStateidArgs { stateid }),
        2 => ArgOp::OffloadStatus(OffloadArgs { stateid }),
        3 => ArgOp::OffloadCancel(OffloadArgs { stateid }),
        4 => ArgOp::Delegreturn(DelegreturnArgs { stateid }),
        5 => ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: r.chance(50) }),
        6 => ArgOp::DestroySession(DestroySessionArgs { session_id: SessionId([r.next() as u8; 16]) }),
        7 => ArgOp::DestroyClientid(DestroyClientidArgs { client_id: ClientId(r.next()) }),
        8 => ClientOptions::named(format!("fuzz {}", r.below(5))).exchange_id(),
        9 => ClientOptions::default().create_session(ClientId(r.next()), r.word()),
        10 => ArgOp::Sequence(SequenceArgs {
            session_id: pool.session,
            sequence_id: r.word(),
            slot_id: r.word(),
            highest_slot_id: r.word(),
            cache_this: r.chance(50),
        }),
        _ => ArgOp::BackchannelCtl(BackchannelCtlArgs { cb_program: r.word(), sec_parms: vec![CallbackSec::None] }),
    }
}

fn open_op(pool: &Pool, r: &mut Rng) -> ArgOp {
    let verifier = Verifier([r.below(3) as u8; 8]);
    let how = match r.below(7) {
        0 => OpenHow::Create(CreateHow::Guarded(attrs(r).into())),
        1 => OpenHow::Create(CreateHow::Exclusive(verifier)),
        2 => OpenHow::Create(CreateHow::Exclusive41 { verifier, attrs: attrs(r).into() }),
        3 => OpenHow::NoCreate,
        _ => OpenHow::Create(CreateHow::Unchecked(attrs(r).into())),
    };
    let claim = match r.below(12) {
        0 => OpenClaim::Fh,
        1 => OpenClaim::Previous(DelegationType(r.below(4) as u32)),
        2 => OpenClaim::DelegateCur { stateid: pool.stateid(r), file: name(r) },
        3 => OpenClaim::DelegCurFh(pool.stateid(r)),
        _ => OpenClaim::Null(name(r)),
    };
    let access = if r.chance(90) { 1 + r.below(3) as u32 } else { r.word() };
    let deny = if r.chance(90) { r.below(2) as u32 } else { r.word() };
    op::open(pool.owner(r), access, deny, how, claim)
}

/// Operations that belong together: with a good chance a file and its stateid, a directory and a name.
fn operations(pool: &Pool, r: &mut Rng) -> Vec<ArgOp> {
    let root = &pool.fhs[0];
    if r.chance(25) {
        let dir = op::put(if r.chance(70) { root } else { r.pick(&pool.fhs) });
        return match r.below(6) {
            0..=2 => vec![dir, open_op(pool, r), ArgOp::GetFh],
            3 => vec![op::put(r.pick(&pool.fhs)), ArgOp::SaveFh, dir, ArgOp::Link(LinkArgs { new_name: name(r) })],
            4 => vec![dir, ArgOp::SaveFh, ArgOp::Rename(RenameArgs { old_name: name(r), new_name: name(r) })],
            _ => vec![dir, ArgOp::Lookup(LookupArgs { name: name(r) }), ArgOp::GetFh, ArgOp::Readlink],
        };
    }
    if r.chance(40) || pool.opens.is_empty() {
        return vec![operation(pool, r)];
    }
    let (fh, stateid) = r.pick(&pool.opens).clone();
    let (other_fh, other) = r.pick(&pool.opens).clone();
    let stateid = if r.chance(80) { Stateid { seqid: 0, ..stateid } } else { stateid };
    let put = op::put(&fh);
    let (offset, length) = (r.number() % pool.span, r.number() % pool.span);
    match r.below(14) {
        0 => vec![put, op::read(stateid, offset, r.word())],
        1 => vec![put, op::write(stateid, offset, StableHow(r.below(3) as u32), bytes(r, 9000))],
        2 => vec![put, op::close(stateid)],
        3 => vec![put, op::downgrade(stateid, 1 + r.below(3) as u32, 0)],
        4 => vec![
            put,
            op::lock_new(stateid, pool.owner(r), LockType(1 + r.below(4) as u32), offset, r.number()),
            ArgOp::GetFh,
        ],
        5 => vec![put, op::locku(stateid, offset, r.number())],
        6 => vec![ArgOp::FreeStateid(FreeStateidArgs { stateid })],
        7 => vec![put, ArgOp::Allocate(AllocateArgs { stateid, offset, length })],
        8 => vec![put, ArgOp::Deallocate(AllocateArgs { stateid, offset, length })],
        9 => vec![put, op::seek(stateid, offset, DataContent(r.below(2) as u32))],
        10 => vec![put, ArgOp::ReadPlus(ReadPlusArgs { stateid, offset, count: length as u32 })],
        11 => {
            vec![put, ArgOp::SaveFh, op::put(&other_fh), op::clone(stateid, other, offset & !4095, length & !4095, 0)]
        }
        12 => vec![put, ArgOp::SaveFh, op::put(&other_fh), op::copy(stateid, other, (offset, length), 0, r.chance(50))],
        _ => vec![put, op::setattr_with(stateid, attrs(r)), op::commit(offset, r.word())],
    }
}

/// An operation with arguments that may well make sense.
fn operation(pool: &Pool, r: &mut Rng) -> ArgOp {
    let stateid = pool.stateid(r);
    let verifier = Verifier([r.below(2) as u8; 8]);
    match r.below(40) {
        0..=4 => op::put(&pool.fh(r)),
        5 => ArgOp::PutRootFh,
        6 => ArgOp::SaveFh,
        7 => ArgOp::RestoreFh,
        8 | 9 => ArgOp::GetFh,
        10 => ArgOp::Lookup(LookupArgs { name: name(r) }),
        11 => ArgOp::Lookupp,
        12 => ArgOp::Getattr(GetattrArgs { attr_request: bitmap(r) }),
        13 => ArgOp::Setattr(SetattrArgs { stateid, attrs: attrs(r).into() }),
        14 => {
            let dev = SpecData { major: r.word(), minor: r.word() };
            let kind = match r.below(8) {
                0 => CreateType::Link(bytes(r, 100)),
                1 => CreateType::Block(dev),
                2 => CreateType::Fifo,
                3 => CreateType::Other(FileType(r.word())),
                _ => CreateType::Dir,
            };
            ArgOp::Create(CreateArgs { kind, name: name(r), attrs: attrs(r).into() })
        }
        15 => ArgOp::Remove(RemoveArgs { target: name(r) }),
        16 => ArgOp::Rename(RenameArgs { old_name: name(r), new_name: name(r) }),
        17 => ArgOp::Link(LinkArgs { new_name: name(r) }),
        18 => ArgOp::Readdir(ReaddirArgs {
            cookie: if r.chance(50) || pool.cookies.is_empty() { r.number() } else { *r.pick(&pool.cookies) },
            verifier,
            dircount: r.word(),
            maxcount: r.word(),
            attr_request: bitmap(r),
        }),
        19 | 20 => op::read(stateid, r.number(), r.word()),
        21 | 22 => {
            let offset = if r.chance(80) { r.number() % pool.span } else { r.number() };
            op::write(stateid, offset, StableHow(r.below(4) as u32), bytes(r, 9000))
        }
        23 => op::commit(r.number(), r.word()),
        24..=26 => open_op(pool, r),
        27 => op::close(stateid),
        28 => op::downgrade(stateid, r.below(4) as u32, r.below(4) as u32),
        29 => op::lock_new(stateid, pool.owner(r), LockType(r.below(6) as u32), r.number(), r.number()),
        30 => op::lock_more(stateid, LockType(r.below(6) as u32), r.number(), r.number()),
        31 => op::lockt(pool.owner(r), LockType(r.below(6) as u32), r.number(), r.number()),
        32 => op::locku(stateid, r.number(), r.number()),
        33 => op::access(r.word()),
        34 => match r.below(6) {
            0 => ArgOp::Secinfo(SecinfoArgs { name: name(r) }),
            1 => ArgOp::SecinfoNoName(SecinfoNoNameArgs { style: SecinfoStyle(r.below(3) as u32) }),
            2 => ArgOp::Verify(VerifyArgs { attrs: attrs(r).into() }),
            3 => ArgOp::Nverify(VerifyArgs { attrs: attrs(r).into() }),
            4 => ArgOp::Readlink,
            _ => ArgOp::Openattr(OpenattrArgs { create_dir: r.chance(50) }),
        },
        35 => match r.below(4) {
            0 => ArgOp::Getxattr(GetxattrArgs { name: name(r) }),
            1 => ArgOp::Setxattr(SetxattrArgs {
                option: SetxattrOption(r.below(4) as u32),
                name: name(r),
                value: bytes(r, 300),
            }),
            2 => ArgOp::Listxattrs(ListxattrsArgs { cookie: r.number(), maxcount: r.word() }),
            _ => ArgOp::Removexattr(RemovexattrArgs { name: name(r) }),
        },
        36 | 37 => time_op(pool, r),
        _ => session_op(pool, r),
    }
}

/// Changes bytes from `from` on: what a wire, a bug or an enemy may do to a request.
fn mutate(r: &mut Rng, request: &mut Vec<u8>, from: usize) {
    for _ in 0..=r.below(4) {
        let len = request.len();
        if len <= from {
            return;
        }
        let at = from + r.below(len - from);
        let word = from + (at - from) / 4 * 4;
        match r.below(8) {
            0 => request[at] ^= 1 << r.below(8),
            1 => request[at] = r.next() as u8,
            2 | 3 if word + 4 <= len => request[word..word + 4].copy_from_slice(&r.word().to_be_bytes()),
            4 => request.truncate(word),
            5 => {
                let extra = bytes(r, 40);
                request.splice(word..word, extra);
            }
            6 => {
                let copy = request[word..(word + 64).min(len)].to_vec();
                request.extend(copy);
            }
            _ => {
                let until = (word + 4 * (1 + r.below(8))).min(len);
                request.drain(word..until);
            }
        }
    }
}

/// A client whose session goes on whatever it sends.
pub struct Fuzz {
    c: Client,
    pub pool: Pool,
    /// Operations that have succeeded.
    succeeded: BTreeSet<OpNum>,
}

impl Fuzz {
    pub async fn new(srv: &Srv, name: &str, uid: u32) -> Self {
        let wire = srv.wire().await.with_cred(sys(uid, uid, &[7]));
        let mut c = Client::over(wire, ClientOptions::named(name)).await;
        let root = loop {
            // The storage may be failing already.
            let res = c.run(&[op::root(), op::getfh()]).await;
            if let Some(ResOp::GetFh(Ok(ok))) = res.results.into_iter().next_back() {
                break ok.object;
            }
        };
        let pool = Pool {
            fhs: vec![root],
            stateids: vec![],
            opens: vec![],
            client: c.id,
            session: c.session.id(),
            cookies: vec![],
            span: 1 << 24,
        };
        Self { c, pool, succeeded: BTreeSet::new() }
    }

    /// Sends one COMPOUND in the session; with `mutated`, what follows SEQUENCE is changed on the way.
    pub async fn round(&mut self, srv: &Srv, r: &mut Rng, mutated: bool) {
        let minor = if r.chance(80) { 2 } else { 1 };
        let sequence = SequenceArgs { cache_this: r.chance(50), ..self.c.session.sequence(0, false) };
        let mut ops = vec![ArgOp::Sequence(sequence), op::put(&self.pool.fh(r))];
        for _ in 0..=r.below(7) {
            ops.extend(operations(&self.pool, r));
        }
        let head = compound_bytes(minor, &ops[..1]).len();
        let mut args = compound_bytes(minor, &ops).to_vec();
        if mutated {
            mutate(r, &mut args, head);
        }
        let xid = self.c.wire.send_call(NFS_PROGRAM, VERSION, PROC_COMPOUND, &args).await;
        let Some(reply) = self.c.wire.try_reply(xid).await else {
            self.c.wire = srv.wire().await.with_cred(self.c.wire.cred.clone());
            // Whether the sequence id was used is not known: ask.
            self.resync().await;
            return;
        };
        if reply.refusal().is_some() {
            self.c.session.next[0] = self.c.session.next[0].wrapping_sub(1);
            return;
        }
        let res = dhow_proto::v4::CompoundRes::from_bytes(reply.body.clone()).expect("results decode");
        check(&res, minor);
        match res.results.first() {
            Some(ResOp::Sequence(Ok(_))) => {}
            _ => self.c.session.next[0] = self.c.session.next[0].wrapping_sub(1),
        }
        self.succeeded.extend(res.results.iter().filter(|r| r.status().is_ok()).map(ResOp::op));
        self.pool.learn(&res.results);
    }

    /// Finds the sequence id that is due on slot 0.
    async fn resync(&mut self) {
        for back in [0, 1] {
            let next = self.c.session.next[0];
            self.c.session.next[0] = next.wrapping_sub(back);
            if self.c.status(&[op::root()]).await.is_ok() {
                return;
            }
            self.c.session.next[0] = next;
        }
        panic!("the session is lost");
    }
}

/// A server whose filesystem is small: copies of copies would fill memory.
pub async fn small() -> Srv {
    Srv::with(Options { max_bytes: 128 << 20, max_files: 10_000, ..Options::default() }, |_| {}).await
}

/// Nothing panicked, and a client that behaves is served, whatever has filled the filesystem.
pub async fn still_well(srv: &Srv, good: &mut Client, round: usize) {
    assert_eq!(srv.running.shared().metrics.panics.load(Ordering::Relaxed), 0, "a panic by round {round}");
    let name = format!("good-{round}");
    let root = good.walk("").await;
    let dir = good.mkdir(&root, &name).await;
    let f = good.create(&dir, "f").await;
    let write = op::write(f.stateid, 0, StableHow::UNSTABLE, b"good");
    let written = good.status(&[op::put(&f.fh), write]).await;
    assert!(matches!(written, Status::OK | Status::NOSPC), "{written:?}");
    let read = if written.is_ok() { "good" } else { "" };
    assert_eq!(good.read(&f, 0, 10).await.0, read);
    good.close(&f).await;
}

/// Requests that make sense more or less, in every order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_requests() {
    let srv = small().await;
    let (seed, rounds) = seed_and_rounds(6000);
    let mut r = Rng::new(seed);
    let mut good = srv.client("good").await;
    let mut bad = [Fuzz::new(&srv, "bad", 0).await, Fuzz::new(&srv, "worse", 1000).await];
    for round in 0..rounds {
        bad[round % 2].round(&srv, &mut r, false).await;
        if round % 1000 == 999 {
            still_well(&srv, &mut good, round).await;
        }
    }
    still_well(&srv, &mut good, rounds).await;
    let succeeded: BTreeSet<_> = bad.iter().flat_map(|b| &b.succeeded).collect();
    assert!(succeeded.len() >= 38, "too little of it made sense: {succeeded:?}");
}

/// The same, changed on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mutated_requests() {
    let srv = small().await;
    let (seed, rounds) = seed_and_rounds(6000);
    let mut r = Rng::new(seed ^ 0xabcd);
    let mut good = srv.client("good").await;
    let mut bad = [Fuzz::new(&srv, "bad", 0).await, Fuzz::new(&srv, "worse", 1000).await];
    for round in 0..rounds {
        bad[round % 2].round(&srv, &mut r, round % 4 != 0).await;
        if round % 1000 == 999 {
            still_well(&srv, &mut good, round).await;
        }
    }
    still_well(&srv, &mut good, rounds).await;
}

/// Whole messages changed anywhere, RPC header included, and calls outside of sessions.
#[tokio::test]
async fn mutated_messages() {
    let srv = small().await;
    let (seed, rounds) = seed_and_rounds(4000);
    let mut r = Rng::new(seed ^ 0x1234);
    let mut good = srv.client("good").await;
    let mut w = srv.wire().await;
    w.on_callback = Callbacks::Keep;
    let pool = Pool {
        fhs: vec![good.walk("").await],
        stateids: vec![],
        opens: vec![],
        client: good.id,
        session: SessionId([1; 16]),
        cookies: vec![],
        span: 1 << 24,
    };
    for round in 0..rounds {
        let first = if r.chance(50) { session_op(&pool, &mut r) } else { operation(&pool, &mut r) };
        let mut ops = vec![first];
        for _ in 0..r.below(3) {
            ops.push(operation(&pool, &mut r));
        }
        let cred = sys(r.word(), r.word(), &[1, 2, 3]).to_opaque().unwrap();
        let args = compound_bytes(r.below(4) as u32, &ops);
        let mut call = call_bytes(round as u32, cred, NFS_PROGRAM, VERSION, PROC_COMPOUND, &args);
        mutate(&mut r, &mut call, 0);
        let broken = call.is_empty() || w.send_record(&call).await.is_err();
        // Not every message has an answer: a call that does is waited for behind it.
        if broken || (r.chance(20) && !answers(&mut w).await) {
            w = srv.wire().await;
            w.on_callback = Callbacks::Keep;
        }
        if round % 1000 == 999 {
            still_well(&srv, &mut good, round).await;
        }
    }
    still_well(&srv, &mut good, rounds).await;
}

async fn answers(w: &mut Wire) -> bool {
    let xid = 0xffff_0000 | w.xid();
    let null = call_bytes(xid, dhow_rpc::OpaqueAuth::NONE, NFS_PROGRAM, VERSION, 0, &[]);
    w.send_record(&null).await.is_ok() && w.try_reply(xid).await.is_some()
}

/// Bytes that are nothing at all.
#[tokio::test]
async fn noise() {
    let srv = small().await;
    let (seed, rounds) = seed_and_rounds(300);
    let mut r = Rng::new(seed ^ 0x5555);
    let mut good = srv.client("good").await;
    for round in 0..rounds {
        let mut w = srv.wire().await;
        let mut noise = bytes(&mut r, 2000).to_vec();
        if r.chance(50) && noise.len() >= 4 {
            // A record mark that is right, and noise in the record.
            let mark = dhow_rpc::record_mark(noise.len() - 4);
            noise[..4].copy_from_slice(&mark);
        }
        let _ = w.send_raw(&noise).await;
        if round % 100 == 99 {
            still_well(&srv, &mut good, round).await;
        }
    }
    still_well(&srv, &mut good, rounds).await;
}
