//! State that the server lost or revoked, one status and one flag after the other, against a server that does as told:
//! the table in `recover.rs` (RFC 8881 sections 2.10.13, 8.4, 8.5, 15.1, 18.38, 18.46.3, 18.48).

use crate::common::config;
use crate::script::{Act, Req, Scripted, default_result, start};
use bytes::Bytes;
use dhow_client::v4::ops::*;
use dhow_client::v4::{
    Ace, ArgOp, ClientId, DelegationType, LockType, OpNum, ResOp, SessionId, StableHow, Stateid, Status, TO_EOF,
    Verifier,
};
use dhow_client::{
    CallOptions, Client, CopyBegun, CopyOptions, Create, DelegationState, Error, File, Lost, OpenOptions,
    WantDelegation,
};
use dhow_rpc::AuthStat;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server does with one operation that comes.
enum Once {
    Status(Status),
    HangUp,
    Denied,
    /// Crashes: everything that was given is forgotten, and nobody knows whether this was executed.
    Crash,
    /// Executes it, and does not answer.
    Silence,
    /// Forgets the session alone, before or after the operation was executed.
    EndSession {
        executed: bool,
    },
}

/// A server of one client with files of any name, whose state can be revoked.
#[derive(Default)]
struct Fake {
    /// Every operation, in order.
    seen: Vec<ArgOp>,
    /// Stateids given so far.
    given: u8,
    clients: u64,
    /// What stateids answer that are good no more.
    gone: HashMap<[u8; 12], Status>,
    flags: u32,
    /// The flags go when the last of `gone` was acknowledged.
    flags_go: bool,
    /// Only the next such operation.
    once: Vec<(OpNum, Once)>,
    /// Of the next SEQUENCEs of requests with operations.
    sequence: VecDeque<Status>,
    reclaims: Option<Status>,
    lock_reclaims: Option<Status>,
    anew: Option<Status>,
    /// Every stateid that was given is unknown when it is used.
    forgets: bool,
    /// Sessions made so far: the number of one is its ID.
    sessions: u8,
    /// Those up to this one are not known any more.
    dead: u8,
    /// Nothing is answered that is asked within the session.
    mute: bool,
    /// In seconds, if another one than usual.
    lease: Option<u32>,
    delegates: bool,
    /// What was closed is not known any more.
    remembers_closed: bool,
    closed: Vec<[u8; 12]>,
    /// The session alone ends with the COMPOUND in which such an operation came for the time given, and was executed.
    after: Vec<(OpNum, usize)>,
    /// CLOSE is to come later.
    busy: bool,
}

type Shared = Arc<Mutex<Fake>>;

fn ok_or<T>(status: Option<Status>, ok: T) -> Result<T, Status> {
    status.map_or(Ok(ok), Err)
}

impl Fake {
    fn stateid(&mut self) -> Stateid {
        self.given += 1;
        Stateid { seqid: 1, other: [self.given; 12] }
    }

    fn check(&self, stateid: &Stateid) -> Option<Status> {
        match self.gone.get(&stateid.other) {
            Some(status) => Some(*status),
            None => (self.forgets && !stateid.is_special()).then_some(Status::BAD_STATEID),
        }
    }

    fn result(&mut self, op: &ArgOp) -> ResOp {
        match op {
            ArgOp::ExchangeId(_) => {
                self.clients += 1;
                let Some(ResOp::ExchangeId(Ok(ok))) = default_result(op) else { unreachable!() };
                ResOp::ExchangeId(Ok(ExchangeIdOk { client_id: ClientId(self.clients), ..ok }))
            }
            ArgOp::CreateSession(_) => {
                self.sessions += 1;
                let Some(ResOp::CreateSession(Ok(mut ok))) = default_result(op) else { unreachable!() };
                ok.session_id = SessionId([self.sessions; 16]);
                ResOp::CreateSession(Ok(ok))
            }
            ArgOp::Open(args) => {
                let refused = match args.claim {
                    OpenClaim::Previous(_) => self.reclaims,
                    OpenClaim::Fh => self.anew,
                    _ => None,
                };
                if let Some(status) = refused {
                    return ResOp::Open(Err(status));
                }
                let stateid = self.stateid();
                let wanted = args.share_access & share::WANT_READ_DELEG != 0;
                let reclaimed = matches!(args.claim, OpenClaim::Previous(DelegationType::READ));
                let delegation = if self.delegates && (wanted || reclaimed) {
                    let permissions = Ace { ace_type: 0, flags: 0, mask: 0, who: Bytes::new() };
                    Delegation::Read(ReadDelegation { stateid: self.stateid(), recall: false, permissions })
                } else {
                    Delegation::None
                };
                let (cinfo, attrset) = Default::default();
                ResOp::Open(Ok(OpenOk { stateid, cinfo, rflags: 0, attrset, delegation }))
            }
            ArgOp::Write(a) => ResOp::Write(ok_or(
                self.check(&a.stateid),
                WriteOk { count: a.data.len() as u32, committed: a.stable, verifier: Verifier([1; 8]) },
            )),
            ArgOp::Read(a) => {
                ResOp::Read(ok_or(self.check(&a.stateid), ReadOk { eof: true, data: Bytes::from_static(b"x") }))
            }
            ArgOp::Lock(a) => {
                let known = match &a.locker {
                    Locker::New(new) => self.check(&new.open_stateid),
                    Locker::Existing(held) => self.check(&held.lock_stateid),
                };
                match known.or(self.lock_reclaims.filter(|_| a.reclaim)) {
                    Some(status) => ResOp::Lock(LockRes::Err(status)),
                    None => ResOp::Lock(LockRes::Ok(match &a.locker {
                        Locker::New(_) => self.stateid(),
                        Locker::Existing(held) => Stateid { seqid: held.lock_stateid.seqid + 1, ..held.lock_stateid },
                    })),
                }
            }
            ArgOp::Locku(a) => {
                ResOp::Locku(ok_or(self.check(&a.lock_stateid), LockuOk { lock_stateid: a.lock_stateid }))
            }
            ArgOp::Close(a) if !a.open_stateid.is_special() && self.check(&a.open_stateid).is_some() => {
                ResOp::error(OpNum::CLOSE, self.check(&a.open_stateid).unwrap())
            }
            ArgOp::Close(_) if self.busy => ResOp::error(OpNum::CLOSE, Status::DELAY),
            ArgOp::Close(a) if self.remembers_closed => {
                self.gone.insert(a.open_stateid.other, Status::BAD_STATEID);
                self.closed.push(a.open_stateid.other);
                default_result(op).unwrap()
            }
            ArgOp::TestStateid(a) => {
                let codes = a.stateids.iter().map(|s| self.check(s).unwrap_or(Status::OK)).collect();
                ResOp::TestStateid(Ok(TestStateidOk { status_codes: codes }))
            }
            ArgOp::FreeStateid(a) => {
                self.gone.insert(a.stateid.other, Status::BAD_STATEID);
                let revoked = |s: &Status| *s != Status::BAD_STATEID;
                if self.flags_go && !self.gone.values().any(revoked) {
                    self.flags = 0;
                }
                ResOp::FreeStateid(Ok(()))
            }
            ArgOp::Delegreturn(a) => ResOp::Delegreturn(ok_or(self.check(&a.stateid), ())),
            ArgOp::Copy(_) => {
                let callback_id = vec![self.stateid()];
                let (count, committed, verifier) = (0, StableHow::UNSTABLE, Verifier([1; 8]));
                let response = WriteResponse { callback_id, count, committed, verifier };
                let requirements = CopyRequirements { consecutive: true, synchronous: false };
                ResOp::Copy(CopyRes::Ok(CopyOk { response, requirements }))
            }
            ArgOp::Rename(_) => {
                let (source_cinfo, target_cinfo) = Default::default();
                ResOp::Rename(Ok(RenameOk { source_cinfo, target_cinfo }))
            }
            op => {
                let mut res = default_result(op).unwrap_or_else(|| ResOp::error(op.op(), Status::NOTSUPP));
                if let ResOp::Getattr(Ok(ok)) = &mut res {
                    ok.attrs.lease_time = self.lease.or(ok.attrs.lease_time);
                }
                res
            }
        }
    }

    /// Loses session, client ID and all state, as a restart does.
    fn crash(&mut self) {
        self.revoke(Status::BAD_STATEID);
        self.dead = self.sessions;
        self.once.push((OpNum::CREATE_SESSION, Once::Status(Status::STALE_CLIENTID)));
    }

    fn act(&mut self, req: &Req) -> Act {
        if req.sequence.as_ref().is_some_and(|s| s.session_id.0[0] <= self.dead) {
            return Act::Sequence(Status::BADSESSION);
        }
        if self.mute && req.sequence.is_some() {
            self.seen.extend(req.ops.iter().cloned());
            return Act::Silence;
        }
        if req.sequence.is_some()
            && !req.ops.is_empty()
            && let Some(status) = self.sequence.pop_front()
        {
            return Act::Sequence(status);
        }
        let mut results = Vec::new();
        for op in &req.ops {
            self.seen.push(op.clone());
            let once = self.once.iter().position(|(at, _)| *at == op.op()).map(|at| self.once.remove(at).1);
            let res = match once {
                Some(Once::HangUp) => return Act::HangUp,
                Some(Once::Crash) => {
                    self.crash();
                    return Act::HangUp;
                }
                Some(Once::Silence) => {
                    self.result(op);
                    return Act::Silence;
                }
                Some(Once::EndSession { executed }) => {
                    if executed {
                        self.result(op);
                    }
                    self.dead = self.sessions;
                    return Act::HangUp;
                }
                Some(Once::Denied) => return Act::Denied(AuthStat::TOOWEAK),
                Some(Once::Status(status)) => ResOp::error(op.op(), status),
                None => self.result(op),
            };
            let failed = !res.status().is_ok();
            results.push(res);
            let times = self.ops(op.op());
            if let Some(at) = self.after.iter().position(|after| *after == (op.op(), times)) {
                self.after.remove(at);
                self.dead = self.sessions;
                return Act::HangUp;
            }
            if failed {
                break;
            }
        }
        Act::Flagged(self.flags, results)
    }

    /// Everything given so far answers this from now on.
    fn revoke(&mut self, status: Status) {
        for n in 1..=self.given {
            self.gone.entry([n; 12]).or_insert(status);
        }
    }

    fn count(&self, of: impl Fn(&ArgOp) -> bool) -> usize {
        self.seen.iter().filter(|op| of(op)).count()
    }

    fn ops(&self, number: OpNum) -> usize {
        self.count(|op| op.op() == number)
    }

    fn claims(&self, claim: impl Fn(&OpenClaim) -> bool) -> usize {
        self.count(|op| matches!(op, ArgOp::Open(args) if claim(&args.claim)))
    }

    fn reclaimed(&self) -> usize {
        self.claims(|c| matches!(c, OpenClaim::Previous(_)))
    }

    fn opened_anew(&self) -> usize {
        self.claims(|c| matches!(c, OpenClaim::Fh))
    }
}

async fn serve() -> (Scripted, Shared, Client) {
    serve_as(Fake::default()).await
}

async fn serve_as(fake: Fake) -> (Scripted, Shared, Client) {
    let fake = Shared::new(Mutex::new(fake));
    let shared = fake.clone();
    let server = start(move |req| Some(shared.lock().unwrap().act(req))).await;
    let client = Client::connect(config(server.addr)).await.unwrap();
    // What a client asks by itself is asked: the tests count.
    client.session_info().await.unwrap();
    (server, fake, client)
}

fn rw() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing, 0o644)
}

async fn open(client: &Client) -> File {
    client.fs().open("f", &rw()).await.unwrap()
}

async fn open_denying(client: &Client) -> File {
    client.fs().open("f", &rw().deny(share::DENY_WRITE)).await.unwrap()
}

async fn open_locked(client: &Client) -> File {
    let file = open(client).await;
    assert!(file.try_lock(true, 0, 10).await.unwrap().is_none());
    file
}

async fn write(file: &File) -> Result<(), Error> {
    file.write_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.map(drop)
}

#[track_caller]
fn is_lost(done: Result<(), Error>, of: Lost, why: Status) {
    match done {
        Err(Error::StateLost { what, status }) => assert_eq!((what, status), (of, why)),
        other => panic!("{other:?}"),
    }
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..1000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("did not happen in twenty seconds");
}

/// Section 8.2.2: the stateid is the right one, of an older version.
#[tokio::test]
async fn an_old_stateid_is_sent_as_the_newest() {
    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    for op in [OpNum::WRITE, OpNum::LOCK, OpNum::LOCKU] {
        fake.lock().unwrap().once.push((op, Once::Status(Status::OLD_STATEID)));
    }
    write(&file).await.unwrap();
    assert!(file.try_lock(true, 20, 10).await.unwrap().is_none());
    file.unlock(0, TO_EOF).await.unwrap();
    let fake = fake.lock().unwrap();
    let newest = |op: &ArgOp| match op {
        ArgOp::Lock(LockArgs { locker: Locker::Existing(l), .. }) => l.lock_stateid.seqid == 0,
        ArgOp::Locku(l) => l.lock_stateid.seqid == 0,
        _ => false,
    };
    assert_eq!(fake.count(newest), 2);
    assert_eq!(fake.ops(OpNum::WRITE), 2);
    assert_eq!(fake.ops(OpNum::TEST_STATEID), 0, "nothing is lost");
}

/// Sections 8.4.3, 15.1.5, 18.46.3: what a plain open promises is as true after it was opened anew.
#[tokio::test]
async fn a_plain_open_is_opened_anew() {
    for status in [Status::EXPIRED, Status::BAD_STATEID] {
        let (_server, fake, client) = serve().await;
        let file = open(&client).await;
        fake.lock().unwrap().revoke(status);
        write(&file).await.unwrap();
        write(&file).await.unwrap();
        let fake = fake.lock().unwrap();
        assert_eq!((fake.opened_anew(), fake.reclaimed()), (1, 0));
        // What the server remembers for our sake alone is freed (section 18.38).
        assert_eq!(fake.ops(OpNum::FREE_STATEID), usize::from(status == Status::EXPIRED));
        assert_eq!(fake.ops(OpNum::EXCHANGE_ID), 1, "the client ID is good");
    }
}

/// What a lock or a DENY promised may have been broken: that is an error for good, whatever is called.
#[tokio::test]
async fn what_was_guarded_is_reported() {
    for status in [Status::EXPIRED, Status::BAD_STATEID, Status::ADMIN_REVOKED] {
        let (_server, fake, client) = serve().await;
        let locked = open_locked(&client).await;
        let denying = open_denying(&client).await;
        fake.lock().unwrap().revoke(status);
        is_lost(write(&locked).await, Lost::Lock, status);
        let share = if status == Status::ADMIN_REVOKED { Lost::Open } else { Lost::Share };
        is_lost(write(&denying).await, share, status);
        is_lost(locked.read_at(0, 1).await.map(drop), Lost::Lock, status);
        is_lost(locked.unlock(0, 10).await, Lost::Lock, status);
        is_lost(locked.try_lock(true, 0, 10).await.map(drop), Lost::Lock, status);
        is_lost(locked.commit(0, 0).await.map(drop), Lost::Lock, status);
        assert_eq!(fake.lock().unwrap().opened_anew(), 0);
        // CLOSE says it too, to whoever did not listen.
        is_lost(locked.close().await, Lost::Lock, status);
        is_lost(denying.commit_and_close().await.map(drop), share, status);
        // The next open begins afresh.
        let again = open_locked(&client).await;
        write(&again).await.unwrap();
    }
}

/// Sections 9.5, 18.2 and 18.38: who wrote under a lock or a share reservation and hears of its loss only by CLOSE is told
/// then, and what the server remembers of it is freed. Without them nobody could tell the difference.
#[tokio::test]
async fn a_close_that_finds_the_loss_tells_of_it() {
    for status in [Status::EXPIRED, Status::BAD_STATEID, Status::ADMIN_REVOKED] {
        let (_server, fake, client) = serve().await;
        let (plain, committed, unlocked) = (open(&client).await, open(&client).await, open_locked(&client).await);
        let (locked, denying, named) =
            (open_locked(&client).await, open_denying(&client).await, open_locked(&client).await);
        unlocked.unlock(0, TO_EOF).await.unwrap();
        fake.lock().unwrap().revoke(status);
        let revoked = fake.lock().unwrap().given;
        let admin = status == Status::ADMIN_REVOKED;
        for file in [plain, unlocked] {
            match file.close().await {
                Ok(()) => assert!(!admin),
                done => is_lost(done, Lost::Open, Status::ADMIN_REVOKED),
            }
        }
        match committed.commit_and_close().await {
            Ok(verifier) => assert!(!admin && verifier == Verifier([0; 8])),
            done => is_lost(done.map(drop), Lost::Open, Status::ADMIN_REVOKED),
        }
        is_lost(locked.close().await, Lost::Lock, status);
        is_lost(denying.close().await, if admin { Lost::Open } else { Lost::Share }, status);
        // A file that others may have written does not get its final name.
        let dir = named.fh().clone();
        let done = named.close_as(None, &dir, Bytes::from_static(b"a"), Bytes::from_static(b"b")).await;
        is_lost(done, Lost::Lock, status);
        let fake = fake.lock().unwrap();
        assert_eq!((fake.ops(OpNum::RENAME), fake.opened_anew()), (0, 0));
        let freed = if status == Status::BAD_STATEID { 0 } else { revoked.into() };
        assert_eq!(fake.ops(OpNum::FREE_STATEID), freed, "{status}");
    }
}

/// Section 15.1.5.1: somebody decided that this client is not to have it.
#[tokio::test]
async fn what_an_administrator_revoked_is_not_opened_anew() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    fake.lock().unwrap().revoke(Status::ADMIN_REVOKED);
    is_lost(write(&file).await, Lost::Open, Status::ADMIN_REVOKED);
    is_lost(write(&file).await, Lost::Open, Status::ADMIN_REVOKED);
    let fake = fake.lock().unwrap();
    assert_eq!((fake.opened_anew(), fake.ops(OpNum::FREE_STATEID)), (0, 1));
}

/// Sections 8.2.5 and 9.1.2: I/O of who holds locks is sent with the lock's stateid, so that it fails when the lock alone
/// is lost.
#[tokio::test]
async fn the_loss_of_a_lock_alone_is_seen_by_io() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    let opens = fake.lock().unwrap().given;
    assert!(file.try_lock(true, 0, 10).await.unwrap().is_none());
    fake.lock().unwrap().gone.insert([opens + 1; 12], Status::EXPIRED);
    is_lost(file.read_at(0, 1).await.map(drop), Lost::Lock, Status::EXPIRED);
    // Without locks it is the open's.
    let other = open_locked(&client).await;
    other.unlock(0, TO_EOF).await.unwrap();
    let n = fake.lock().unwrap().given;
    fake.lock().unwrap().gone.insert([n; 12], Status::EXPIRED);
    write(&other).await.unwrap();
}

/// A lock state without locks, which a server may drop, is none to miss.
#[tokio::test]
async fn a_forgotten_lock_owner_without_locks_begins_anew() {
    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    file.unlock(0, TO_EOF).await.unwrap();
    let n = fake.lock().unwrap().given;
    fake.lock().unwrap().gone.insert([n; 12], Status::BAD_STATEID);
    assert!(file.try_lock(true, 0, 10).await.unwrap().is_none());
    let fake = fake.lock().unwrap();
    let new = |op: &ArgOp| matches!(op, ArgOp::Lock(LockArgs { locker: Locker::New(_), .. }));
    assert_eq!((fake.count(new), fake.opened_anew()), (2, 0));
}

/// A server that knows no stateid is not asked for ever.
#[tokio::test]
async fn a_server_that_forgets_every_stateid_ends_in_an_error() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    fake.lock().unwrap().forgets = true;
    is_lost(write(&file).await, Lost::Open, Status::BAD_STATEID);
    assert!(fake.lock().unwrap().opened_anew() < 10);
}

/// Section 18.46.3: the flags alone have everything looked at, and acknowledged.
#[tokio::test]
async fn flags_of_revoked_state_have_it_found() {
    use seq4_status::*;
    let kinds = [
        (EXPIRED_SOME_STATE_REVOKED, Status::EXPIRED),
        (ADMIN_STATE_REVOKED, Status::ADMIN_REVOKED),
        (RECALLABLE_STATE_REVOKED, Status::DELEG_REVOKED),
    ];
    for (flag, status) in kinds {
        let (_server, fake, client) = serve().await;
        fake.lock().unwrap().delegates = status == Status::DELEG_REVOKED;
        let (file, delegation) = if status == Status::DELEG_REVOKED {
            let file = client.fs().open("f", &rw().delegation(WantDelegation::Read)).await.unwrap();
            let delegation = file.delegation().unwrap();
            (file, Some(delegation))
        } else {
            (open_locked(&client).await, None)
        };
        {
            let mut fake = fake.lock().unwrap();
            match status {
                Status::DELEG_REVOKED => drop(fake.gone.insert([2; 12], status)),
                _ => fake.revoke(status),
            }
            (fake.flags, fake.flags_go) = (flag, true);
        }
        // Of another file: its reply carries the flag.
        client.fs().stat("g").await.unwrap();
        until(|| fake.lock().unwrap().flags == 0).await;
        match delegation {
            // The open goes on without it (section 10.4.6).
            Some(delegation) => {
                assert_eq!(delegation.state(), DelegationState::Lost);
                write(&file).await.unwrap();
            }
            None => is_lost(file.unlock(0, 10).await, Lost::Lock, status),
        }
        assert!(fake.lock().unwrap().ops(OpNum::FREE_STATEID) >= 1);
    }
}

/// A flag about state that is not known here does not double every call.
#[tokio::test]
async fn flags_that_stay_are_not_heeded_after_every_reply() {
    use seq4_status::*;
    let (server, fake, client) = serve().await;
    let _file = open(&client).await;
    fake.lock().unwrap().flags = ADMIN_STATE_REVOKED | CB_PATH_DOWN | CB_PATH_DOWN_SESSION;
    for _ in 0..100 {
        client.fs().stat("g").await.unwrap();
    }
    assert!(fake.lock().unwrap().ops(OpNum::TEST_STATEID) <= 20);
    let binds = || fake.lock().unwrap().ops(OpNum::BIND_CONN_TO_SESSION);
    until(|| binds() > 0).await;
    assert!(binds() <= 20, "{} BIND_CONN_TO_SESSIONs", binds());
    drop(server);
}

/// Section 18.46.3: all is revoked. A new client instance; nothing is reclaimed, since others may have had it.
#[tokio::test]
async fn all_state_revoked_begins_anew() {
    let (server, fake, client) = serve().await;
    let (plain, locked, denying) = (open(&client).await, open_locked(&client).await, open_denying(&client).await);
    {
        let mut fake = fake.lock().unwrap();
        fake.revoke(Status::EXPIRED);
        fake.flags = seq4_status::EXPIRED_ALL_STATE_REVOKED;
    }
    let shared = fake.clone();
    // The flag goes with the old client ID.
    let clear = tokio::spawn(async move {
        loop {
            {
                let mut fake = shared.lock().unwrap();
                if fake.clients >= 2 {
                    fake.flags = 0;
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    write(&plain).await.unwrap();
    clear.await.unwrap();
    is_lost(write(&locked).await, Lost::Lock, Status::EXPIRED);
    is_lost(write(&denying).await, Lost::Share, Status::EXPIRED);
    assert_eq!(fake.lock().unwrap().reclaimed(), 0);
    let setup = server.log.setup.lock().unwrap();
    let verifiers: Vec<_> = setup
        .iter()
        .filter_map(|op| match op {
            ArgOp::ExchangeId(args) => Some(args.client_owner.verifier),
            _ => None,
        })
        .collect();
    assert!(verifiers.len() >= 2 && verifiers[0] != verifiers[1], "{verifiers:?}");
}

/// A server that says so of each new client ID does not have one after the other taken up without end.
#[tokio::test]
async fn all_state_revoked_again_and_again_does_not_spin() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    fake.lock().unwrap().flags = seq4_status::EXPIRED_ALL_STATE_REVOKED;
    let began = std::time::Instant::now();
    for _ in 0..100 {
        write(&file).await.unwrap();
    }
    let (clients, seconds) = (fake.lock().unwrap().clients, began.elapsed().as_secs());
    assert!(clients <= 2 * seconds + 4, "{clients} client IDs in {seconds} s");
}

/// Sections 15.1.16.5 and 18.46.3: the server restarted and kept the session: reclaims in the same session.
#[tokio::test]
async fn a_session_that_outlives_a_restart_has_state_reclaimed() {
    for by_flag in [false, true] {
        let (_server, fake, client) = serve().await;
        let file = open_locked(&client).await;
        {
            let mut fake = fake.lock().unwrap();
            fake.revoke(Status::STALE_STATEID);
            if by_flag {
                fake.flags = seq4_status::RESTART_RECLAIM_NEEDED;
            }
        }
        let shared = fake.clone();
        let clear = tokio::spawn(async move {
            while shared.lock().unwrap().ops(OpNum::RECLAIM_COMPLETE) < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            shared.lock().unwrap().flags = 0;
        });
        write(&file).await.unwrap();
        clear.await.unwrap();
        file.unlock(0, 10).await.unwrap();
        let fake = fake.lock().unwrap();
        let locks = |op: &ArgOp| matches!(op, ArgOp::Lock(LockArgs { reclaim: true, .. }));
        assert_eq!((fake.ops(OpNum::EXCHANGE_ID), fake.ops(OpNum::CREATE_SESSION)), (1, 1));
        assert!(fake.reclaimed() >= 1 && fake.count(locks) >= 1);
        assert_eq!(fake.opened_anew(), 0);
    }
}

fn restart(fake: &Shared) {
    fake.lock().unwrap().crash();
}

/// Section 8.4.2.1: what was being unlocked, or made a shared lock, when the server restarted is not reclaimed: it may
/// have been granted to somebody else before.
#[tokio::test]
async fn what_is_being_unlocked_is_not_reclaimed() {
    let reclaims = |fake: &Shared| -> Vec<(LockType, u64, u64)> {
        let seen = fake.lock().unwrap();
        let locks = seen.seen.iter().filter_map(|op| match op {
            ArgOp::Lock(LockArgs { reclaim: true, lock_type, offset, length, .. }) => {
                Some((*lock_type, *offset, *length))
            }
            _ => None,
        });
        locks.collect()
    };
    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    restart(&fake);
    file.unlock(0, TO_EOF).await.unwrap();
    assert_eq!(reclaims(&fake), []);
    write(&file).await.unwrap();
    file.close().await.unwrap();

    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    restart(&fake);
    file.unlock(0, 4).await.unwrap();
    assert_eq!(reclaims(&fake), [(LockType::WRITE, 4, 6)]);
    restart(&fake);
    assert!(file.try_lock(false, 6, 10).await.unwrap().is_none());
    assert_eq!(reclaims(&fake)[1..], [(LockType::WRITE, 4, 2), (LockType::READ, 6, 4)]);
    file.close().await.unwrap();
}

/// A way in which files are closed.
#[derive(Debug, Clone, Copy)]
enum Closing {
    Alone,
    Committed,
    Named,
    Dropped,
    /// In one COMPOUND with another file, behind that one and its RENAME.
    Second,
    /// With the client.
    Goodbye,
}

/// Closes `file` in one of the ways; what was said.
async fn close_by(how: Closing, client: &Client, file: File, first: Option<File>) -> Result<(), Error> {
    let dir = file.fh().clone();
    let name = Bytes::from_static;
    match how {
        Closing::Alone => file.close().await,
        Closing::Committed => file.commit_and_close().await.map(drop),
        Closing::Named => file.close_as(None, &dir, name(b"f"), name(b"g")).await,
        Closing::Second => first.unwrap().close_both_as(file, None, &dir, name(b"f"), name(b"g")).await.1,
        Closing::Dropped => {
            drop(file);
            Ok(())
        }
        Closing::Goodbye => {
            client.clone().close().await.unwrap();
            drop(file);
            Ok(())
        }
    }
}

/// The file that [`Closing::Second`] comes behind.
async fn first_of(how: Closing, client: &Client) -> Option<File> {
    match how {
        Closing::Second => Some(open(client).await),
        _ => None,
    }
}

/// Section 8.4.2.1: the CLOSE was out when the server crashed. It may have been executed, and somebody else been granted
/// since what the open denied: it is not reclaimed. Nothing was lost by that: it is closed.
#[tokio::test]
async fn what_is_being_closed_is_not_reclaimed() {
    use Closing::*;
    for how in [Alone, Committed, Named, Dropped, Second, Goodbye] {
        for locked in [false, true] {
            let (_server, fake, client) = serve().await;
            let file = if locked { open_locked(&client).await } else { open_denying(&client).await };
            let (first, other) = (first_of(how, &client).await, open_denying(&client).await);
            fake.lock().unwrap().once.push((OpNum::CLOSE, Once::Crash));
            match (how, close_by(how, &client, file, first).await) {
                // RENAME cannot be asked for again, and says so.
                (Named | Second, Ok(()) | Err(Error::OutcomeUnknown { op: OpNum::RENAME })) => {}
                (_, done) => done.unwrap_or_else(|e| panic!("{how:?}: {e}")),
            }
            if let Goodbye = how {
                continue;
            }
            write(&other).await.unwrap();
            other.close().await.unwrap();
            let fake = fake.lock().unwrap();
            assert_eq!(fake.reclaimed(), 1, "{how:?}: the other one");
            let locks = |op: &ArgOp| matches!(op, ArgOp::Lock(LockArgs { reclaim: true, .. }));
            assert_eq!(fake.count(locks), 0);
        }
    }
}

/// Section 8.4.2.1: the server had crashed before the CLOSE came. What is held until then is reclaimed, so that it is
/// known whether others had it, and the CLOSE is that of the open that was reclaimed.
#[tokio::test]
async fn what_was_not_closed_is_reclaimed_and_closed() {
    use Closing::*;
    for how in [Alone, Committed, Named, Dropped, Second] {
        let (_server, fake, client) = serve().await;
        let (first, file) = (first_of(how, &client).await, open_denying(&client).await);
        let opens = 1 + usize::from(first.is_some());
        restart(&fake);
        close_by(how, &client, file, first).await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        let closed = |fake: &Shared| {
            let fake = fake.lock().unwrap();
            let good = |op: &ArgOp| matches!(op, ArgOp::Close(a) if fake.check(&a.open_stateid).is_none());
            fake.count(good)
        };
        until(|| closed(&fake) == opens).await;
        assert_eq!(fake.lock().unwrap().reclaimed(), opens, "{how:?}");

        // Too late, and whoever closes it is told.
        let (_server, fake, client) = serve().await;
        let (first, file) = (first_of(how, &client).await, open_denying(&client).await);
        fake.lock().unwrap().reclaims = Some(Status::NO_GRACE);
        restart(&fake);
        let done = close_by(how, &client, file, first).await;
        if !matches!(how, Dropped) {
            is_lost(done, Lost::Share, Status::NO_GRACE);
        }
    }
}

/// How many CLOSEs came for opens that the server held.
fn closed(fake: &Shared) -> usize {
    let fake = fake.lock().unwrap();
    let given: std::collections::HashSet<_> = fake.closed.iter().collect();
    given.len()
}

/// Sections 2.10.6.1 and 2.10.13.1.4: the session ends with the CLOSE in it, the client ID and its state go on. Executed or
/// not, the file is closed in the end, also where what came behind the CLOSE cannot be asked for again, and nothing is
/// called lost.
#[tokio::test]
async fn what_is_being_closed_when_a_session_ends_is_closed() {
    use Closing::*;
    for how in [Alone, Committed, Named, Dropped, Second, Goodbye] {
        for executed in [false, true] {
            for locked in [false, true] {
                let (_server, fake, client) = serve().await;
                fake.lock().unwrap().remembers_closed = true;
                let file = if locked { open_locked(&client).await } else { open_denying(&client).await };
                let first = first_of(how, &client).await;
                let opens = 1 + usize::from(first.is_some());
                fake.lock().unwrap().once.push((OpNum::CLOSE, Once::EndSession { executed }));
                match (how, close_by(how, &client, file, first).await) {
                    (Named, Err(Error::OutcomeUnknown { op: OpNum::RENAME })) => {}
                    (_, done) => done.unwrap_or_else(|e| panic!("{how:?}, executed {executed}: {e}")),
                }
                until(|| closed(&fake) == opens).await;
                assert_eq!(fake.lock().unwrap().reclaimed(), 0);
            }
        }
    }
}

/// As above, and the second of two files was closed in the lost COMPOUND, with a DENY: that it is not known then is no loss.
#[tokio::test]
async fn a_second_file_that_was_closed_is_not_lost() {
    let (_server, fake, client) = serve().await;
    fake.lock().unwrap().remembers_closed = true;
    let (first, second) = (open(&client).await, open_denying(&client).await);
    {
        let mut fake = fake.lock().unwrap();
        fake.after.push((OpNum::CLOSE, 2));
    }
    let (dir, name) = (first.fh().clone(), Bytes::from_static);
    let (named, other) = first.close_both_as(second, None, &dir, name(b"f"), name(b"g")).await;
    assert!(matches!(named, Err(Error::OutcomeUnknown { op: OpNum::RENAME })), "{named:?}");
    other.unwrap();
    assert_eq!(closed(&fake), 2);
}

/// Section 8.4.2.1: two CLOSEs are out, since a caller gave up waiting for the first, which was executed. That the second was
/// not says nothing of it: the open may be somebody else's, and is not reclaimed.
#[tokio::test]
async fn of_two_closes_the_first_counts_too() {
    let (_server, fake, client) = serve().await;
    fake.lock().unwrap().remembers_closed = true;
    let (file, other) = (open_denying(&client).await, open_denying(&client).await);
    fake.lock().unwrap().once.push((OpNum::CLOSE, Once::Silence));
    let waits = tokio::spawn(file.close());
    until(|| closed(&fake) == 1).await;
    // The server restarts, and keeps the session.
    {
        let mut fake = fake.lock().unwrap();
        fake.gone.clear();
        fake.revoke(Status::STALE_STATEID);
    }
    waits.abort();
    until(|| fake.lock().unwrap().ops(OpNum::RECLAIM_COMPLETE) >= 2).await;
    write(&other).await.unwrap();
    assert_eq!(fake.lock().unwrap().reclaimed(), 1, "the other one");
    other.close().await.unwrap();
}

/// A caller who waits for CLOSE no longer leaves no open behind at the server.
#[tokio::test]
async fn a_close_that_takes_too_long_is_done_in_the_background() {
    let fake = Shared::new(Mutex::new(Fake { remembers_closed: true, ..Fake::default() }));
    let shared = fake.clone();
    let server = start(move |req| Some(shared.lock().unwrap().act(req))).await;
    let mut config = config(server.addr);
    config.call_timeout = Some(Duration::from_secs(1));
    let client = Client::connect(config).await.unwrap();
    let file = open_denying(&client).await;
    fake.lock().unwrap().busy = true;
    let done = file.close().await;
    assert!(matches!(done, Err(Error::TimedOut(_))), "{done:?}");
    // For longer than a call may take.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    fake.lock().unwrap().busy = false;
    until(|| closed(&fake) == 1).await;
}

/// Section 8.4.2.1: the lease had run out when the CLOSE was sent, to a server of which nothing had been heard. Whether
/// somebody else was granted what the open denied before that cannot be known: its holder is told.
#[tokio::test]
async fn what_was_closed_too_late_is_reported() {
    let (_server, fake, client) = serve_as(Fake { lease: Some(1), ..Fake::default() }).await;
    let (plain, denying) = (open(&client).await, open_denying(&client).await);
    fake.lock().unwrap().mute = true;
    // Longer than a lease.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let closes = [tokio::spawn(plain.close()), tokio::spawn(denying.close())];
    until(|| fake.lock().unwrap().ops(OpNum::CLOSE) >= 2).await;
    {
        let mut fake = fake.lock().unwrap();
        fake.mute = false;
        fake.once.push((OpNum::GETATTR, Once::Crash));
    }
    client.fs().stat("g").await.unwrap();
    let [plain, denying] = closes;
    plain.await.unwrap().unwrap();
    is_lost(denying.await.unwrap(), Lost::Share, Status::BAD_STATEID);
    assert_eq!(fake.lock().unwrap().reclaimed(), 0);
}

/// An open that is lost can only be closed: others may have had what it promised, and it is not taken from them.
#[tokio::test]
async fn what_is_lost_is_not_reclaimed() {
    let (_server, fake, client) = serve().await;
    let (denying, locked) = (open_denying(&client).await, open_locked(&client).await);
    fake.lock().unwrap().revoke(Status::EXPIRED);
    is_lost(write(&denying).await, Lost::Share, Status::EXPIRED);
    is_lost(write(&locked).await, Lost::Lock, Status::EXPIRED);
    let other = open_denying(&client).await;
    restart(&fake);
    write(&other).await.unwrap();
    assert_eq!(fake.lock().unwrap().reclaimed(), 1);
    is_lost(denying.close().await, Lost::Share, Status::EXPIRED);
    is_lost(locked.close().await, Lost::Lock, Status::EXPIRED);
}

/// Section 8.4.2.1 and 15.1.9: a reclaim is refused. Plain opens are opened anew, and only after RECLAIM_COMPLETE; what
/// was guarded is reported with the server's reason.
#[tokio::test]
async fn refused_reclaims_are_made_up_for_or_reported() {
    for status in [Status::NO_GRACE, Status::RECLAIM_BAD, Status::RECLAIM_CONFLICT, Status::ACCESS, Status::STALE] {
        let (_server, fake, client) = serve().await;
        let (plain, locked, denying) = (open(&client).await, open_locked(&client).await, open_denying(&client).await);
        fake.lock().unwrap().reclaims = Some(status);
        restart(&fake);
        write(&plain).await.unwrap();
        is_lost(write(&locked).await, Lost::Lock, status);
        is_lost(write(&denying).await, Lost::Share, status);
        let fake = fake.lock().unwrap();
        assert_eq!((fake.reclaimed(), fake.opened_anew()), (3, 1));
        let at = |of: &dyn Fn(&ArgOp) -> bool| fake.seen.iter().rposition(of).unwrap();
        let complete = at(&|op| op.op() == OpNum::RECLAIM_COMPLETE);
        assert!(complete < at(&|op| matches!(op, ArgOp::Open(args) if args.claim == OpenClaim::Fh)));
    }
}

/// Sections 8.4.2.1 and 18.51.3: after RECLAIM_COMPLETE an ordinary OPEN may have to wait for the end of the grace period.
/// Calls about that file wait with it; all others go on, and what was guarded is lost at once.
#[tokio::test]
async fn a_refused_reclaim_holds_up_its_own_file_alone() {
    let (_server, fake, client) = serve().await;
    let (plain, closed, dropped) = (open(&client).await, open(&client).await, open(&client).await);
    let locked = open_locked(&client).await;
    {
        let mut fake = fake.lock().unwrap();
        fake.reclaims = Some(Status::NO_GRACE);
        fake.anew = Some(Status::GRACE);
    }
    restart(&fake);
    client.fs().stat("g").await.unwrap();
    is_lost(write(&locked).await, Lost::Lock, Status::NO_GRACE);
    let other = open(&client).await;
    write(&other).await.unwrap();
    other.close().await.unwrap();
    // Nothing is open there that would have to be closed.
    until(|| fake.lock().unwrap().opened_anew() >= 3).await;
    let closes = fake.lock().unwrap().ops(OpNum::CLOSE);
    closed.close().await.unwrap();
    drop(dropped);
    let written = tokio::spawn(async move {
        write(&plain).await.unwrap();
        plain
    });
    client.fs().stat("g").await.unwrap();
    assert!(!written.is_finished(), "the grace period is not over");
    fake.lock().unwrap().anew = None;
    let plain = written.await.unwrap();
    plain.close().await.unwrap();
    // Those that were opened in vain are closed again, beside `plain`.
    until(|| fake.lock().unwrap().ops(OpNum::CLOSE) == closes + 3).await;
}

/// Neither reclaimed nor opened anew.
#[tokio::test]
async fn an_open_that_cannot_be_had_again_is_reported() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    fake.lock().unwrap().reclaims = Some(Status::NO_GRACE);
    fake.lock().unwrap().anew = Some(Status::STALE);
    restart(&fake);
    is_lost(write(&file).await, Lost::Open, Status::STALE);
    is_lost(file.commit_and_close().await.map(drop), Lost::Open, Status::STALE);
}

/// The open comes back, its lock does not.
#[tokio::test]
async fn a_lock_that_cannot_be_reclaimed_is_reported() {
    for status in [Status::RECLAIM_CONFLICT, Status::NO_GRACE, Status::RECLAIM_BAD] {
        let (_server, fake, client) = serve().await;
        let (file, plain) = (open_locked(&client).await, open(&client).await);
        fake.lock().unwrap().lock_reclaims = Some(status);
        restart(&fake);
        is_lost(write(&file).await, Lost::Lock, status);
        write(&plain).await.unwrap();
        // It is known to the server, and closed there.
        let closes = fake.lock().unwrap().ops(OpNum::CLOSE);
        is_lost(file.close().await, Lost::Lock, status);
        assert_eq!(fake.lock().unwrap().ops(OpNum::CLOSE), closes + 1);
    }
}

/// One user's credential is refused at the reclaim: that user's open is lost, the client and the others go on.
#[tokio::test]
async fn a_refused_credential_loses_its_own_open_alone() {
    let (_server, fake, client) = serve().await;
    let (one, other) = (open_locked(&client).await, open_locked(&client).await);
    fake.lock().unwrap().once.push((OpNum::OPEN, Once::Denied));
    restart(&fake);
    let done = [write(&one).await, write(&other).await];
    assert_eq!(done.iter().filter(|d| d.is_ok()).count(), 1, "{done:?}");
    assert!(matches!(
        done.into_iter().find_map(Result::err),
        Some(Error::StateLost { what: Lost::Lock, status: Status::ACCESS })
    ));
    assert!(client.ended().is_none());
}

/// Section 2.10.6.1.3: the connection breaks while a reclaim is under way, and the server has not kept its reply. The
/// reclaim is made again; the client does not end over it.
#[tokio::test]
async fn a_reclaim_whose_reply_was_not_kept_is_made_again() {
    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    {
        let mut fake = fake.lock().unwrap();
        fake.once.push((OpNum::OPEN, Once::HangUp));
        fake.once.push((OpNum::OPEN, Once::Status(Status::RETRY_UNCACHED_REP)));
    }
    restart(&fake);
    write(&file).await.unwrap();
    assert!(client.ended().is_none());
    assert_eq!(fake.lock().unwrap().reclaimed(), 3);
}

/// Section 2.10.13.1.4: the session alone is lost; state belongs to the client ID and is left as it is.
#[tokio::test]
async fn a_lost_session_keeps_state() {
    for status in [Status::BADSESSION, Status::DEADSESSION] {
        let (_server, fake, client) = serve().await;
        let file = open_locked(&client).await;
        fake.lock().unwrap().sequence.push_back(status);
        write(&file).await.unwrap();
        file.unlock(0, 10).await.unwrap();
        let fake = fake.lock().unwrap();
        assert_eq!((fake.ops(OpNum::CREATE_SESSION), fake.ops(OpNum::EXCHANGE_ID)), (2, 1));
        assert_eq!((fake.reclaimed(), fake.opened_anew(), fake.ops(OpNum::RECLAIM_COMPLETE)), (0, 0, 1));
    }
}

/// Section 2.10.3.1: the connection is bound again, and the request done once.
#[tokio::test]
async fn an_unbound_connection_is_bound() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    let binds = fake.lock().unwrap().ops(OpNum::BIND_CONN_TO_SESSION);
    fake.lock().unwrap().sequence.push_back(Status::CONN_NOT_BOUND_TO_SESSION);
    write(&file).await.unwrap();
    let fake = fake.lock().unwrap();
    assert_eq!((fake.ops(OpNum::BIND_CONN_TO_SESSION), fake.ops(OpNum::WRITE)), (binds + 1, 1));
    assert_eq!(fake.ops(OpNum::CREATE_SESSION), 1);
}

/// Section 15.1.3: the counts of a slot differ. The request goes in another slot; when no slot is left, in another
/// session, after the old one was destroyed.
#[tokio::test]
async fn misordered_slots_are_done_without() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    fake.lock().unwrap().sequence.push_back(Status::SEQ_MISORDERED);
    write(&file).await.unwrap();
    assert_eq!(fake.lock().unwrap().ops(OpNum::CREATE_SESSION), 1);
    fake.lock().unwrap().sequence.extend([Status::SEQ_MISORDERED; crate::script::SLOTS as usize]);
    write(&file).await.unwrap();
    let fake = fake.lock().unwrap();
    assert_eq!((fake.ops(OpNum::CREATE_SESSION), fake.ops(OpNum::DESTROY_SESSION)), (2, 1));
    assert_eq!((fake.ops(OpNum::WRITE), fake.ops(OpNum::EXCHANGE_ID)), (2, 1));
}

/// Section 18.36.4: the counts of CREATE_SESSION differ. Only a new instance of the client has a count that both know.
#[tokio::test]
async fn a_misordered_create_session_takes_a_new_client() {
    let (_server, fake, client) = serve().await;
    let file = open(&client).await;
    {
        let mut fake = fake.lock().unwrap();
        fake.sequence.push_back(Status::BADSESSION);
        fake.once.push((OpNum::CREATE_SESSION, Once::Status(Status::SEQ_MISORDERED)));
    }
    write(&file).await.unwrap();
    assert_eq!(fake.lock().unwrap().clients, 2);
}

/// Section 8.4.2: GRACE is waited for.
#[tokio::test]
async fn grace_is_waited_for() {
    let (_server, fake, client) = serve().await;
    fake.lock().unwrap().once.extend([
        (OpNum::OPEN, Once::Status(Status::GRACE)),
        (OpNum::OPEN, Once::Status(Status::GRACE)),
        (OpNum::LOCK, Once::Status(Status::GRACE)),
    ]);
    let file = open_locked(&client).await;
    write(&file).await.unwrap();
}

/// Section 18.46.3, BACKCHANNEL_FAULT: no more requests in the session, what is out ends, the session is destroyed, and
/// another one made.
#[tokio::test]
async fn a_session_with_a_broken_back_channel_is_replaced() {
    let (_server, fake, client) = serve().await;
    let file = open_locked(&client).await;
    fake.lock().unwrap().flags = seq4_status::BACKCHANNEL_FAULT;
    let shared = fake.clone();
    let clear = tokio::spawn(async move {
        while shared.lock().unwrap().ops(OpNum::DESTROY_SESSION) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        shared.lock().unwrap().flags = 0;
    });
    write(&file).await.unwrap();
    clear.await.unwrap();
    file.unlock(0, 10).await.unwrap();
    let fake = fake.lock().unwrap();
    let order: Vec<OpNum> = fake
        .seen
        .iter()
        .map(ArgOp::op)
        .filter(|op| matches!(*op, OpNum::CREATE_SESSION | OpNum::DESTROY_SESSION | OpNum::EXCHANGE_ID))
        .collect();
    assert_eq!(order[..3], [OpNum::EXCHANGE_ID, OpNum::CREATE_SESSION, OpNum::DESTROY_SESSION]);
    assert_eq!(order[3], OpNum::CREATE_SESSION);
    assert_eq!(fake.reclaimed(), 0);
}

/// Section 10.2.1 and 18.38: revoked while it was being returned.
#[tokio::test]
async fn a_delegation_revoked_on_its_way_back_is_acknowledged() {
    let (_server, fake, client) = serve().await;
    fake.lock().unwrap().delegates = true;
    let file = client.fs().open("f", &rw().delegation(WantDelegation::Read)).await.unwrap();
    let delegation = file.delegation().unwrap();
    fake.lock().unwrap().gone.insert([2; 12], Status::DELEG_REVOKED);
    delegation.give_back().await.unwrap();
    assert_eq!(delegation.state(), DelegationState::Lost);
    assert_eq!(fake.lock().unwrap().ops(OpNum::FREE_STATEID), 1);
    write(&file).await.unwrap();
}

/// A delegation is reclaimed with its open, or lost with it (sections 9.11 and 10.2.1).
#[tokio::test]
async fn delegations_share_the_fate_of_reclaims() {
    for refused in [None, Some(Status::NO_GRACE)] {
        let (_server, fake, client) = serve().await;
        fake.lock().unwrap().delegates = true;
        let file = client.fs().open("f", &rw().delegation(WantDelegation::Read)).await.unwrap();
        let delegation = file.delegation().unwrap();
        fake.lock().unwrap().reclaims = refused;
        restart(&fake);
        write(&file).await.unwrap();
        let state = if refused.is_some() { DelegationState::Lost } else { DelegationState::Held };
        assert_eq!(delegation.state(), state);
    }
}

/// An asynchronous copy ends with the client ID under which it was begun; of a server that cannot be asked how far it is
/// nobody would ever hear (RFC 7862 sections 4.9 and 15.9).
#[tokio::test]
async fn a_copy_of_a_lost_client_is_lost() {
    let (_server, fake, client) = serve().await;
    let (source, target) = (open(&client).await, open(&client).await);
    let copy = source.begin_copy(0, &target, 0, 1, &CopyOptions::default()).await.unwrap();
    let CopyBegun::Running(copy) = copy else { panic!("it runs on") };
    let waits = tokio::spawn(async move { copy.wait(|_| {}).await });
    restart(&fake);
    client.compound(vec![ArgOp::PutRootFh], CallOptions::default()).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), waits).await.expect("it is told").unwrap();
    assert!(matches!(ended, Err(Error::CopyLost)), "{ended:?}");
}
