//! Filesystems that have moved to another server, and referrals (RFC 8881 sections 11.3 to 11.5, 11.13, 11.16).
//!
//! They are not followed: a client is one server's. What is done:
//!
//! * An operation that is answered by MOVED becomes [`Error::Moved`], which names the new places (`fs_locations`, which
//!   GETATTR tells of absent filesystems too). One more call, no loop: whoever was told may connect there.
//! * LEASE_MOVED says that state of this client is another server's now. One operation that meets MOVED and the location
//!   attribute of each such filesystem clear the flag (sections 11.11.9.2 and 11.13.1), so every filesystem with an open
//!   file is asked, once more after a while as long as the flag comes (section 11.13.2). The log names what was found.
//!   The lease there is not renewed: its opens and locks end with it, as after a loss of contact; every use of the
//!   files here says MOVED.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use dhow_proto::v4::ops::{GetattrArgs, PutFhArgs};
use dhow_proto::v4::{ArgOp, Bitmap, ByteStrings, CompoundRes, FsLocations, OpNum, ResOp, attr};

use crate::call::Request;
use crate::inner::Inner;
use crate::{DEFAULT_PORT, Error, NfsUrl, Result};

/// Places that are named at most: a server may list thousands.
const MOST_PLACES: usize = 16;
/// How long filesystems are not asked again after they were, at first and at last.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(64);

/// The error of a request that was answered by MOVED.
pub(crate) async fn error(inner: &Arc<Inner>, request: &Request, res: &CompoundRes) -> Error {
    let op = res.results.last().map_or(OpNum::SEQUENCE, ResOp::op);
    let mut ops = way_there(&request.ops, res.results.len());
    ops.push(ArgOp::Getattr(GetattrArgs { attr_request: Bitmap::of(&[attr::FSID, attr::FS_LOCATIONS]) }));
    let request = Request { cred: request.cred.clone(), caller: request.caller.clone(), ..Request::new(ops) };
    let to = match inner.execute(request).await {
        Ok(res) => match res.results.into_iter().last() {
            Some(ResOp::Getattr(Ok(ok))) => {
                ok.attrs.fs_locations.map(|found| places(inner, &found)).unwrap_or_default()
            }
            _ => Vec::new(),
        },
        Err(_) => Vec::new(),
    };
    Error::Moved { op, to: to.into(), path: None }
}

/// The operations by which the filesystem is reached whose object was answered for in result `answered` (counted from
/// one).
fn way_there(ops: &[ArgOp], answered: usize) -> Vec<ArgOp> {
    let ops = ops.get(..answered).unwrap_or(ops);
    let starts = |op: &ArgOp| matches!(op, ArgOp::PutFh(_) | ArgOp::PutRootFh | ArgOp::PutPubFh);
    let from = ops.iter().rposition(starts).unwrap_or(0);
    let steps = |op: &&ArgOp| starts(op) || matches!(op, ArgOp::Lookup(_) | ArgOp::Lookupp);
    ops.iter().skip(from).filter(steps).cloned().collect()
}

/// The places as URLs; those that make none are left out.
fn places(inner: &Inner, found: &FsLocations) -> Vec<NfsUrl> {
    let all = found.locations.iter().flat_map(|at| at.servers.0.iter().filter_map(|s| place(s, &at.root)));
    // An empty name is "the current address being used for the RPC call".
    let here = || inner.pick_primary().and_then(|conn| conn.peer());
    let named = all.filter_map(|(host, port, path)| match host.is_empty() {
        true => here().map(|here| NfsUrl::new(here.ip().to_string(), here.port(), path)),
        false => Some(NfsUrl::new(host, port, path)),
    });
    named.take(MOST_PLACES).collect()
}

/// Host, port and path of a location. The host is a name or a universal address without its netid: an IP address, with
/// the port as two more decimal bytes or without (section 11.16). Empty: this server.
fn place(server: &Bytes, root: &ByteStrings) -> Option<(String, u16, Bytes)> {
    let text = std::str::from_utf8(server).ok()?;
    let valid = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if !text.chars().all(valid) {
        return None;
    }
    let (host, port) = match universal(text) {
        Some((ip, port)) => (ip.to_string(), port),
        None if text.contains(':') => return None,
        None => (text.to_owned(), DEFAULT_PORT),
    };
    let mut path = Vec::new();
    for name in &root.0 {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Some((host, port, path.into()))
}

fn universal(text: &str) -> Option<(IpAddr, u16)> {
    if let Ok(ip) = text.parse() {
        return Some((ip, DEFAULT_PORT));
    }
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    let ip = ip.parse::<Ipv4Addr>().map(IpAddr::V4).or_else(|_| ip.parse::<Ipv6Addr>().map(IpAddr::V6));
    Some((ip.ok()?, port))
}

/// For messages: where something went.
pub(crate) struct Places<'a>(pub(crate) &'a [NfsUrl]);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("another server, which is not named"),
            [one] => write!(f, "{one}"),
            [one, others @ ..] => write!(f, "{one} and {} other places", others.len()),
        }
    }
}

/// Looks for filesystems that moved with state of ours whenever the server says that there are some.
pub(crate) async fn watch(inner: Weak<Inner>) {
    let mut pause = AGAIN;
    loop {
        let Some(strong) = inner.upgrade().filter(|i| !i.is_closed()) else { return };
        strong.moved.notified().await;
        // Every reply has the flag until all was found.
        pause = match discover(&strong).await {
            Ok(true) => AGAIN,
            Ok(false) => (pause * 2).min(SELDOM),
            Err(e) => {
                tracing::debug!(error = %e, "cannot look for filesystems that moved");
                AGAIN
            }
        };
        drop(strong);
        tokio::time::sleep(pause).await;
    }
}

/// Asks every filesystem with an open file for something that an absent one does not have. Whether any has moved.
async fn discover(inner: &Arc<Inner>) -> Result<bool> {
    let (mut asked, mut found) = (HashSet::new(), false);
    for open in inner.opens.all() {
        // Without an fsid each is asked for itself.
        if open.fsid().is_some_and(|fsid| !asked.insert(fsid)) {
            continue;
        }
        let ops = vec![
            ArgOp::PutFh(PutFhArgs { object: open.fh.clone() }),
            ArgOp::Getattr(GetattrArgs { attr_request: Bitmap::of(&[attr::FSID, attr::LEASE_TIME]) }),
        ];
        match inner.execute_patiently(open.request(ops, None)).await {
            Err(Error::Moved { to, .. }) => {
                found = true;
                tracing::warn!(server = %inner.config.server, to = %Places(&to), "a filesystem with open files has moved");
            }
            Err(e @ Error::Closed) => return Err(e),
            // Its own misfortune.
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &'static str, names: &[&'static str]) -> Option<String> {
        let root = ByteStrings(names.iter().map(|n| Bytes::from_static(n.as_bytes())).collect());
        place(&Bytes::from_static(server.as_bytes()), &root).map(|(h, p, path)| NfsUrl::new(h, p, path).to_string())
    }

    /// RFC 8881 section 11.16.
    #[test]
    fn locations_are_urls() {
        assert_eq!(at("serv2", &["a", "b c"]).unwrap(), "nfs://serv2/a/b%20c");
        assert_eq!(at("10.0.0.7", &[]).unwrap(), "nfs://10.0.0.7/");
        assert_eq!(at("10.0.0.7.8.2", &["x"]).unwrap(), "nfs://10.0.0.7:2050/x");
        assert_eq!(at("2001:db8::7", &["x"]).unwrap(), "nfs://[2001:db8::7]/x");
        assert_eq!(at("2001:db8::7.8.1", &["x"]).unwrap(), "nfs://[2001:db8::7]/x");
        assert_eq!(at("a.b.c.8.1", &["x"]).unwrap(), "nfs://a.b.c.8.1/x");
        for bad in ["a b", "x\u{1b}[1m", "a:b", "u@h"] {
            assert_eq!(at(bad, &["x"]), None, "{bad}");
        }
    }
}
