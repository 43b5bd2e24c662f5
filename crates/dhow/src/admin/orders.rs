//! The orders of the admin socket: from JSON to `dhow_server::admin`, and back.
//!
//! Numbers that clients and stateids are known by are text in hexadecimal, for JSON's numbers are too small for them.

use crate::output::printable;
use crate::serve::{Site, told};
use dhow_server::admin::{AdminError, ClientView};
use dhow_server::exports::OpenToken;
use dhow_state::{ClientId, CopyInfo, DelegKind, Detail, LockKind, Share, StateFilter, StateInfo, Stateid};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Entries of one answer.
const PAGE: usize = 200;

/// How long the names of the files of one answer are waited for.
const NAMES: Duration = Duration::from_secs(2);

/// Stateids revoked by one order.
const MOST: usize = 10_000;

type Answer = Result<Value, String>;

/// A client ID as text.
pub fn client_text(id: ClientId) -> String {
    format!("{:#018x}", id.0)
}

/// A client ID from its text.
pub fn client_id(text: &str) -> Result<ClientId, String> {
    let number = text.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    number.map(ClientId).ok_or_else(|| format!("`{text}` is not a client; `dhow admin clients` shows what they are"))
}

/// A stateid as text: what it is known by, without the part that counts its changes.
pub fn stateid_text(stateid: &Stateid) -> String {
    stateid.other.iter().map(|b| format!("{b:02x}")).collect()
}

/// A stateid from its text.
pub fn stateid(text: &str) -> Result<Stateid, String> {
    let wrong = || format!("`{text}` is not a stateid; `dhow admin state` and `copies` show what they are");
    let mut other = [0; 12];
    if text.len() != 24 || !text.is_ascii() {
        return Err(wrong());
    }
    for (byte, at) in other.iter_mut().zip((0..).step_by(2)) {
        *byte = text.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or_else(wrong)?;
    }
    Ok(Stateid { seqid: 0, other })
}

/// Carries an order out.
pub async fn carry_out(site: &Arc<Site>, order: &Value) -> Answer {
    let shared = &site.shared;
    let text = |key: &str| order.get(key).and_then(Value::as_str);
    let needed = |key: &str| text(key).ok_or_else(|| format!("the order lacks `{key}`"));
    let failed = |e: AdminError| e.to_string();
    let after = text("after").map(stateid).transpose();
    match needed("order")? {
        "status" => Ok(status(site)),
        "clients" => {
            let after = text("after").map(client_id).transpose()?;
            let page = shared.admin_clients(after, PAGE);
            Ok(json!({ "clients": page.items.iter().map(client).collect::<Vec<_>>(), "more": page.more }))
        }
        "state" => {
            let page = shared.admin_states(&filter(site, order).await?, after?.as_ref(), PAGE);
            Ok(json!({ "state": states(&page.items).await, "more": page.more }))
        }
        "copies" => {
            let page = shared.admin_copies(after?.as_ref(), PAGE);
            Ok(json!({ "copies": page.items.iter().map(copy).collect::<Vec<_>>(), "more": page.more }))
        }
        "expire" => {
            shared.admin_expire(client_id(needed("client")?)?).await.map_err(failed)?;
            Ok(json!({}))
        }
        "revoke" => revoke(site, order).await,
        "end-grace" => {
            shared.admin_end_grace().await.map_err(failed)?;
            Ok(json!({}))
        }
        "counters" => {
            let reset = order.get("reset").and_then(Value::as_bool).unwrap_or(false);
            let counters = shared.admin_counters(reset);
            let values: Map<String, Value> = counters.values.into_iter().map(|(k, v)| (k, json!(v))).collect();
            Ok(json!({ "seconds": counters.since.as_secs(), "counters": values }))
        }
        "cancel-copy" => {
            shared.admin_cancel_copy(&stateid(needed("stateid")?)?).map_err(failed)?;
            Ok(json!({}))
        }
        "reload" => {
            let done = site.reload().await.map_err(|f| f.message)?;
            let text = format!("reloaded{}", told(&done));
            Ok(json!({ "told": text, "added": done.added, "removed": done.removed, "revoked": done.revoked }))
        }
        other => Err(format!("`{other}` is not an order of this server")),
    }
}

async fn filter(site: &Arc<Site>, order: &Value) -> Result<StateFilter, String> {
    let text = |key: &str| order.get(key).and_then(Value::as_str);
    let client = text("client").map(client_id).transpose()?;
    let file = match text("file") {
        Some(path) => Some(site.shared.admin_file(path).await.map_err(|e| e.to_string())?),
        None => None,
    };
    Ok(StateFilter { client, file })
}

/// Revokes stateids that are named, or all of a file.
async fn revoke(site: &Arc<Site>, order: &Value) -> Answer {
    let shared = &site.shared;
    if let Some(text) = order.get("stateid").and_then(Value::as_str) {
        shared.admin_revoke(&stateid(text)?).await.map_err(|e| e.to_string())?;
        return Ok(json!({ "revoked": 1 }));
    }
    let filter = filter(site, order).await?;
    if filter.file.is_none() {
        return Err("name a stateid, or a file".into());
    }
    let (mut revoked, mut failed, mut after) = (0, Vec::new(), None);
    loop {
        let page = shared.admin_states(&filter, after.as_ref(), dhow_server::admin::PAGE);
        // Locks go with their opens.
        let wanted = page.items.iter().filter(|s| !matches!(s.detail, Detail::Lock { .. })).map(|s| s.stateid);
        let (done, not) = shared.admin_revoke_all(wanted.collect()).await.map_err(|e| e.to_string())?;
        revoked += done;
        failed.extend(not);
        after = page.items.last().map(|s| s.stateid);
        if !page.more || revoked >= MOST {
            break;
        }
    }
    match failed.first() {
        Some(e) => Err(format!("{revoked} revoked, {} not: {e}", failed.len())),
        None => Ok(json!({ "revoked": revoked })),
    }
}

fn status(site: &Arc<Site>) -> Value {
    let shared = &site.shared;
    let counts = shared.state.counts();
    let exports: Vec<Value> = shared
        .exports()
        .list()
        .iter()
        .map(|e| json!({ "name": e.path, "access": if e.options.read_only { "ro" } else { "rw" } }))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "seconds": shared.now().as_millis() / 1000,
        "exports": exports,
        "grace": shared.state.in_grace(),
        "connections": shared.conns.lock().len(),
        "clients": counts.clients,
        "sessions": counts.sessions,
        "opens": counts.opens,
        "lock_states": counts.lock_states,
        "delegations": counts.delegations,
        "copies": counts.copies,
    })
}

fn client(view: &ClientView) -> Value {
    let c = &view.info;
    let state = match c {
        c if c.dying => "ending",
        c if !c.confirmed => "unconfirmed",
        c if c.expired => "expired",
        c if !c.reclaim_complete => "reclaiming",
        _ => "live",
    };
    json!({
        "client": client_text(c.id),
        "name": printable(&c.owner.0),
        "state": state,
        "addresses": view.peers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "lease_age_seconds": c.lease_age.as_secs(),
        "sessions": c.sessions,
        "callbacks": c.back_channel,
        "opens": c.opens,
        "locks": c.locks,
        "delegations": c.delegations,
        "copies": c.copies,
        "copy_notifies": c.copy_notifies,
        "revoked": c.revoked,
    })
}

fn copy(c: &CopyInfo) -> Value {
    json!({
        "stateid": stateid_text(&c.stateid),
        "client": client_text(c.client),
        "bytes": c.bytes,
        "state": c.complete.map_or_else(|| "running".to_owned(), |status| format!("{status:?}")),
    })
}

fn share(share: Share) -> &'static str {
    match (share.read(), share.write()) {
        (true, true) => "rw",
        (true, false) => "r",
        (false, true) => "w",
        (false, false) => "-",
    }
}

/// Files by name, as far as their backends tell soon.
async fn states(items: &[StateInfo<OpenToken>]) -> Vec<Value> {
    let names = futures_util::future::join_all(items.iter().map(|s| async {
        let path = tokio::time::timeout(NAMES, s.token.export.backend.path_of(&s.token.handle)).await.ok()??;
        let path = std::path::Path::new(&s.token.export.path).join(path);
        Some(printable(path.as_os_str().as_encoded_bytes()))
    }));
    names.await.into_iter().zip(items).map(|(name, s)| state(s, name)).collect()
}

fn state(s: &StateInfo<OpenToken>, name: Option<String>) -> Value {
    let mut out = json!({
        "stateid": stateid_text(&s.stateid),
        "client": client_text(s.client),
        "export": s.token.export.path,
        "file": name,
    });
    let more = match &s.detail {
        Detail::Open { access, deny, lock_states } => json!({
            "kind": "open", "access": share(*access), "deny": share(*deny), "lock_owners": lock_states,
            "user": s.token.uid, "owner": printable(&s.owner),
        }),
        Detail::Lock { ranges, count } => {
            let ranges = ranges.iter().map(|(range, kind)| {
                let kind = if *kind == LockKind::Read { "r" } else { "w" };
                json!({ "first": range.first, "last": range.last, "kind": kind })
            });
            let ranges: Vec<Value> = ranges.collect();
            json!({ "kind": "lock", "ranges": ranges, "count": count, "owner": printable(&s.owner) })
        }
        Detail::Delegation { kind, recalled } => {
            let access = if *kind == DelegKind::Read { "r" } else { "w" };
            json!({ "kind": "delegation", "access": access, "recalled": recalled })
        }
    };
    if let (Value::Object(out), Value::Object(more)) = (&mut out, more) {
        out.extend(more);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        let id = ClientId(0x0000_0007_0000_0001);
        assert_eq!(client_id(&client_text(id)), Ok(id));
        let s = Stateid { seqid: 0, other: [1, 2, 3, 0xab, 5, 6, 7, 8, 9, 10, 11, 255] };
        assert_eq!(stateid(&stateid_text(&s)), Ok(s));
        for bad in ["", "0x1", "zz", "0102030405060708090a0b", "+1020304050607080900a0b0c", "äöüäöüäöüäöü"]
        {
            assert!(stateid(bad).is_err(), "{bad}");
        }
        assert!(client_id("7").is_err() && client_id("0x").is_err());
    }
}
