//! COPY_NOTIFY (RFC 7862 15.3): lets another server read the current file in the caller's name. See
//! `crate::copy::partners`; the stateid's life is that of `dhow_state`'s entry.

use super::copy::regular_size;
use crate::copy::CheckDestination;
use crate::copy::netloc::{allowed, from_netloc, to_netloc};
use crate::copy::partners::Behalf;
use crate::exports::OpenToken;
use crate::metrics::count;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{CopyNotifyArgs, CopyNotifyOk};
use dhow_proto::v4::{NetLoc, NfsTime, Status};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) async fn run(cx: &OpCx, args: &CopyNotifyArgs) -> OpResult<CopyNotifyOk> {
    if !cx.server.copy.inter.enabled {
        return Err(Status::NOTSUPP);
    }
    let fh = cx.current()?;
    regular_size(fh).await?;
    let stateid = cx.state_arg(args.src_stateid)?;
    let destination = destination(cx, &args.destination_server)?;
    let source_server = addresses(cx);
    if source_server.is_empty() {
        tracing::info!("COPY_NOTIFY on a connection without an address, and copy.addresses is empty");
        return Err(Status::NOTSUPP);
    }
    let behalf = Arc::new(Behalf { user: Arc::clone(&fh.user), destination });
    // The export of the request, whose rules the user was squashed by, not that of the open.
    let token = |open: &OpenToken| OpenToken {
        export: Arc::clone(&fh.export),
        handle: fh.handle.clone(),
        behalf: Some(behalf),
        ..open.clone()
    };
    let now = cx.server.now();
    let stateid = cx.server.state.notify_begin(cx.client()?, &fh.key(), &stateid, token, now)?;
    let lease = cx.server.state.limits().lease;
    let secs = i64::try_from(lease.as_secs()).unwrap_or(i64::MAX);
    Ok(CopyNotifyOk { lease_time: NfsTime { secs, nanos: lease.subsec_nanos() }, stateid, source_server })
}

/// The address of the destination, if it can be told without asking anybody.
fn destination(cx: &OpCx, named: &NetLoc) -> OpResult<Option<IpAddr>> {
    let inter = &cx.server.copy.inter;
    let ip = from_netloc(named).map(|a| a.ip());
    let fine = match ip {
        Some(ip) => allowed(&inter.destinations, ip),
        // Who comes is looked at when it comes, except where that is not enough.
        None => {
            matches!(named, NetLoc::Name(_) | NetLoc::Url(_)) && inter.check_destination != CheckDestination::Enforce
        }
    };
    if fine && !inter.destinations.is_empty() {
        return Ok(ip);
    }
    count(&cx.server.metrics.inter.destination_refusals);
    tracing::info!(?named, "a client wants to copy to a server that copy.destinations does not allow");
    Err(Status::ACCESS)
}

/// Where destinations find this server: as configured; else where the client found it, then the other addresses
/// listened on that are addresses of their own.
fn addresses(cx: &OpCx) -> Vec<NetLoc> {
    let canonical = |a: &SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
    let mut list: Vec<SocketAddr> = cx.server.copy.inter.addresses.iter().map(canonical).collect();
    if list.is_empty() {
        let listening = cx.server.listening.get().into_iter().flatten();
        for addr in cx.conn.local.iter().chain(listening).map(canonical) {
            if !addr.ip().is_unspecified() && !list.contains(&addr) {
                list.push(addr);
            }
        }
    }
    list.into_iter().map(to_netloc).collect()
}
