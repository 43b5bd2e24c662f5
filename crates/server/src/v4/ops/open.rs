//! OPEN (RFC 8881 18.16).
//!
//! Order: look the name up, or create it exclusively → pass the file's gate → reserve (share reservations, grace,
//! limits) → open as the user → truncate → record the client → commit. A file made by an OPEN that fails afterwards
//! stays: the client may have lost the reply, and what it would find is what it asked for. An open that is granted
//! keeps its access whatever the mode says (case B01). Whether a delegation comes with it is in `crate::deleg`; one that
//! stands in the way is recalled, and waited for a little, with no gate held.

use super::getattr;
use crate::attrs::{self, SetFor};
use crate::deleg::{self, Wanted};
use crate::errmap::IntoStatus;
use crate::exports::OpenToken;
use crate::v4::state_cx::open_how;
use crate::v4::{Fh, OpCx, OpResult, change_info, stateid};
use crate::walk;
use crate::way::Way;
use bytes::Bytes;
use dhow_proto::v4::ops::{
    CreateHow as WireCreate, Delegation, OpenArgs, OpenClaim, OpenHow as WireHow, OpenOk, open_result, share,
};
use dhow_proto::v4::{Bitmap, ChangeInfo, DelegationType, Stateid, Status};
use dhow_state::{Claim, Holds, IoKind, OpenRequest, Refused, Share};
use dhow_vfs::{Attr, CreateHow, ErrorKind, Name, OpenFile, SetAttr};

/// Bits of `share_access` that are understood, besides the access itself: wishes for delegations.
const WANTS: u32 = share::WANT_DELEG_MASK
    | share::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
    | share::WANT_PUSH_DELEG_WHEN_UNCONTENDED
    | share::WANT_DELEG_TIMESTAMPS
    | share::WANT_OPEN_XOR_DELEGATION;

/// How often a name that comes and goes is looked up and created in turn.
const TRIES: u32 = 4;

/// What is opened.
struct Target {
    fh: Fh,
    /// The file was made by this OPEN (or by an earlier try of it): open already, for reading and writing.
    made: Option<OpenFile>,
    cinfo: ChangeInfo,
    attrset: Bitmap,
    /// To be truncated once it is open.
    truncate: bool,
}

/// What is asked for, checked.
struct Wish {
    owner: Bytes,
    access: Share,
    deny: Share,
    claim: Claim,
    /// As it came: access, and wishes for delegations.
    share_access: u32,
    /// The claim as it came, for what it says of delegations.
    by: OpenClaim,
}

pub(crate) async fn run(cx: &mut OpCx, args: OpenArgs) -> OpResult<OpenOk> {
    // The name's lock is not held while the file is opened. If the file is removed in between, the name leads elsewhere
    // or nowhere by now: look again, as if the OPEN had come a moment later.
    if matches!(args.claim, OpenClaim::Null(_))
        && matches!(args.how, WireHow::NoCreate | WireHow::Create(WireCreate::Unchecked(_)))
    {
        for _ in 1..TRIES {
            match run_once(cx, args.clone()).await {
                Err(Status::STALE) => {}
                done => return done,
            }
        }
    }
    run_once(cx, args).await
}

async fn run_once(cx: &mut OpCx, args: OpenArgs) -> OpResult<OpenOk> {
    let access = Share::from_bits(args.share_access & !WANTS).filter(|a| !a.is_empty()).ok_or(Status::INVAL)?;
    let deny = Share::from_bits(args.share_deny).ok_or(Status::INVAL)?;
    // One wish or none (RFC 8881 18.16.3).
    if args.share_access & share::WANT_DELEG_MASK > share::WANT_CANCEL {
        return Err(Status::INVAL);
    }
    let claim = match &args.claim {
        OpenClaim::Previous(_) => Claim::Reclaim,
        OpenClaim::DelegateCur { stateid, .. } | OpenClaim::DelegCurFh(stateid) => {
            Claim::Delegated(cx.resolve(*stateid)?)
        }
        _ => Claim::New,
    };
    if let OpenClaim::Previous(DelegationType::READ | DelegationType::WRITE) = args.claim {
        cx.server.state.may_reclaim_delegation(cx.client()?, &cx.current()?.key())?;
    }
    let (share_access, by) = (args.share_access, args.claim.clone());
    let wish = Wish { owner: args.owner.owner, access, deny, claim, share_access, by };
    let target = match (args.claim, args.how) {
        (OpenClaim::Null(name), how) => by_name(cx, name, how, &wish).await?,
        (_, WireHow::Create(_)) => return Err(Status::INVAL),
        (OpenClaim::Fh | OpenClaim::Previous(_) | OpenClaim::DelegCurFh(_), WireHow::NoCreate) => by_handle(cx).await?,
        (OpenClaim::DelegateCur { file, .. }, how) => by_name(cx, file, how, &wish).await?,
        // Neither is one kept over a restart of the client; OPEN has no NOTSUPP.
        (OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh, _) => return Err(Status::RECLAIM_BAD),
    };
    let (cinfo, attrset, fh) = (target.cinfo, target.attrset, target.fh.clone());
    let (stateid, delegation) = open(cx, target, &wish).await?;
    let beyond = fh.backend().locks_reach_beyond();
    cx.set_current(fh);
    cx.set_stateid(stateid);
    let mut rflags = open_result::LOCKTYPE_POSIX;
    // The end of a lock that a local program holds is not told: then a client should rather ask by itself.
    if cx.client()?.can_be_called() && !beyond {
        rflags |= open_result::MAY_NOTIFY_LOCK;
    }
    Ok(OpenOk { stateid, cinfo, rflags, attrset, delegation })
}

async fn attr_of(fh: &Fh) -> OpResult<Attr> {
    match fh.backend().try_getattr(&fh.user, &fh.handle) {
        Some(attr) => attr.or_status(),
        None => fh.backend().getattr(&fh.user, &fh.handle).await.or_status(),
    }
}

/// CLAIM_FH and CLAIM_PREVIOUS: the current filehandle is the file.
async fn by_handle(cx: &OpCx) -> OpResult<Target> {
    let fh = cx.current()?.clone();
    getattr::regular(attr_of(&fh).await?.kind)?;
    let cinfo = ChangeInfo::default();
    Ok(Target { fh, made: None, cinfo, attrset: Bitmap::default(), truncate: false })
}

/// CLAIM_NULL: a name in the current directory.
async fn by_name(cx: &OpCx, name: Bytes, how: WireHow, wish: &Wish) -> OpResult<Target> {
    let name = Name::new(name).or_status()?;
    let dir = cx.current()?.clone();
    let WireHow::Create(create) = how else {
        let (fh, attr) = walk::lookup(cx, &dir, &name).await?;
        getattr::regular(attr.kind)?;
        let change = attr_of(&dir).await?.change;
        let cinfo = ChangeInfo { atomic: false, before: change, after: change };
        return Ok(Target { fh, made: None, cinfo, attrset: Bitmap::default(), truncate: false });
    };
    // Before anything is created: an OPEN that cannot succeed should leave no file behind.
    let client = cx.client()?;
    cx.server.state.may_take_state(client, wish.claim)?;
    let (fattr, verifier) = match &create {
        WireCreate::Unchecked(f) | WireCreate::Guarded(f) => (Some(f), None),
        WireCreate::Exclusive(v) => (None, Some(v.0)),
        WireCreate::Exclusive41 { verifier, attrs } => (Some(attrs), Some(verifier.0)),
    };
    if let WireCreate::Exclusive41 { attrs: f, .. } = &create
        && !f.mask.is_subset(&attrs::exclusive_create(&attrs::supported(&dir.export, cx.minor)))
    {
        // RFC 8881 18.16.3: MUST.
        return Err(Status::INVAL);
    }
    let set = match fattr {
        Some(f) => attrs::to_set(&cx.server, &dir.export, cx.minor, f, SetFor::Create).await?,
        None => SetAttr::default(),
    };
    let unchecked = matches!(create, WireCreate::Unchecked(_));
    if !unchecked {
        walk::not_covered(cx, &dir, &name, Status::EXIST)?;
    }
    let _name = cx.lock_name(&dir, &name).await?;
    for _ in 0..TRIES {
        // What is there, for UNCHECKED; the other modes learn it from the create itself.
        if unchecked {
            match walk::lookup(cx, &dir, &name).await {
                Ok((fh, attr)) => return found(&dir, fh, &attr, &set).await,
                Err(Status::NOENT) => {}
                Err(status) => return Err(status),
            }
        }
        let how = CreateHow { set: set.clone(), verifier };
        match dir.backend().create(&dir.user, &dir.handle, &name, &how).await {
            Ok(made) => {
                let attrset = fattr.map_or_else(Bitmap::default, |f| attrs::applied(&f.mask, &made.applied));
                return Ok(Target {
                    fh: dir.sibling(made.node.handle),
                    made: Some(made.open),
                    cinfo: change_info(made.change),
                    attrset,
                    truncate: false,
                });
            }
            // Somebody beyond this server was quicker.
            Err(e) if e.kind() == ErrorKind::Exists && unchecked => {}
            Err(e) => return Err(crate::errmap::status(&e)),
        }
    }
    Err(Status::DELAY)
}

/// UNCHECKED and the file is there: its attributes stay, but size 0 truncates it (RFC 8881 18.16.3).
async fn found(dir: &Fh, fh: Fh, attr: &Attr, set: &SetAttr) -> OpResult<Target> {
    getattr::regular(attr.kind)?;
    let change = attr_of(dir).await?.change;
    let truncate = set.size == Some(0);
    let attrset = if truncate { Bitmap::of(&[dhow_proto::v4::attr::SIZE]) } else { Bitmap::default() };
    let cinfo = ChangeInfo { atomic: false, before: change, after: change };
    Ok(Target { fh, made: None, cinfo, attrset, truncate })
}

/// Reserves, opens, truncates, commits; waits a little for delegations and ended clients that are in the way.
async fn open(cx: &OpCx, target: Target, wish: &Wish) -> OpResult<(Stateid, Delegation)> {
    let fh = &target.fh;
    let mut way = Way::default();
    let result = loop {
        match open_gated(cx, &target, wish).await {
            Ok(done) => break Ok(done),
            Err(refused) => {
                if let Err(status) = way.clear(&cx.server, refused).await {
                    break Err(status);
                }
            }
        }
    };
    if result.is_err()
        && let Some(made) = target.made.clone()
    {
        fh.backend().close(made).await;
    }
    result
}

async fn open_gated(cx: &OpCx, target: &Target, wish: &Wish) -> Result<(Stateid, Delegation), Refused> {
    let Target { fh, made, truncate, .. } = target;
    let (server, client, key) = (&cx.server, cx.client()?, fh.key());
    let request =
        OpenRequest { file: &key, owner: &wish.owner, access: wish.access, deny: wish.deny, claim: wish.claim };
    let _gate = cx.file_gate(fh).await?;
    let plan = server.state.plan_open(client, &request, server.now())?;
    let backend = fh.backend();
    let how = open_how(plan.access(), plan.deny(), plan.owner(), wish.claim == Claim::Reclaim);
    let uid = fh.user.cred.uid;
    let (file, uid) = match (plan.existing(), made) {
        (None, Some(made)) => (made.clone(), uid),
        (None, None) => (backend.open(&fh.user, &fh.handle, &how).await.or_status()?, uid),
        (Some(old), _) => {
            // The same owner, but another user: what the open has already is no proof of what this one may.
            if old.uid != uid && made.is_none() {
                let mut own = how.clone();
                own.access = open_how(wish.access, wish.deny, plan.owner(), false).access;
                let probe = backend.open(&fh.user, &fh.handle, &own).await.or_status()?;
                backend.close(probe).await;
            }
            (backend.reopen(&fh.user, &old.file, &how).await.or_status()?, old.uid)
        }
    };
    let fresh = plan.existing().is_none();
    let (export, handle) = (fh.export.clone(), fh.handle.clone());
    let token = OpenToken { export, handle, file, uid, behalf: None, watch: None };
    let ready = async {
        if *truncate {
            // Without write access of its own the truncation is like a SETATTR under the anonymous stateid.
            let _hold = match wish.access.write() {
                true => None,
                false => Some(stateid::try_grant(cx, fh, Stateid::ANONYMOUS, IoKind::Write)?),
            };
            let open = wish.access.write().then_some(&token.file);
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            backend.setattr(&fh.user, &fh.handle, open, &set).await.or_status()?;
        }
        // What stands against changes after a restart is recorded before it is there.
        let denials = Holds::DENIALS.when(wish.deny.write());
        let exclusive = backend.caps().exclusive;
        let mut wanted = deleg::wanted(fh.export.options.delegations, exclusive, wish.share_access, &wish.by);
        if wanted.is_ok() && server.ensure_recorded(client, denials | Holds::DELEGATIONS).await.is_err() {
            // A client that was recorded before goes on, without.
            wanted = Err(deleg::no_room(wish.share_access));
        }
        server.ensure_recorded(client, denials).await?;
        Ok(wanted)
    };
    let ready: Result<Result<Wanted, Delegation>, Refused> = ready.await;
    let refused = match ready {
        Ok(wanted) => {
            // Last of all, for it may cost descriptors and watches.
            let offer = match wanted {
                Ok(wanted) => deleg::offer(cx, fh, &plan, wanted, wish.share_access).await,
                Err(declined) => Err(declined),
            };
            let (offer, declined) = match offer {
                Ok(offer) => (Some(offer), Delegation::None),
                Err(declined) => (None, declined),
            };
            let kind = offer.as_ref().map(|o| (o.kind, o.recalled));
            match plan.commit_with(token, offer) {
                Ok(done) => {
                    // An exclusive create that was sent again: the open of before goes on in its place.
                    if !fresh && let Some(made) = made {
                        backend.close(made.clone()).await;
                    }
                    let delegation = match kind {
                        Some(kind) => deleg::answer(cx, fh, kind, wish.share_access, done.deleg).await,
                        None => declined,
                    };
                    return Ok((done.stateid, delegation));
                }
                Err((status, token, offer)) => {
                    if let Some(offer) = offer {
                        backend.close(offer.token.file).await;
                    }
                    (status.into(), token)
                }
            }
        }
        Err(refused) => (refused, token),
    };
    // What was opened for this OPEN alone ends with it; what was there before stays.
    if fresh && made.is_none() {
        backend.close(refused.1.file).await;
    }
    Err(refused.0)
}
