//! COPY_NOTIFY (RFC 7862 15.3): lets another server read the current file in the caller's name. See
//! `crate::copy::partners`; the stateid's life is that of `dhow_state`'s entry.

use super::copy::regular_size;
use crate::copy::CheckDestination;
use crate::copy::addresses::best_first;
use crate::copy::netloc::{allowed, from_netloc, to_netloc};
use crate::copy::partners::Behalf;
use crate::exports::OpenToken;
use crate::metrics::count;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{CopyNotifyArgs, CopyNotifyOk};
use dhow_proto::v4::{NetLoc, NfsTime, Status};
use std::net::IpAddr;
use std::sync::Arc;

pub(crate) async fn run(cx: &OpCx, args: &CopyNotifyArgs) -> OpResult<CopyNotifyOk> {
    if !cx.server.copy().inter.enabled {
        return Err(Status::NOTSUPP);
    }
    let fh = cx.current()?;
    regular_size(fh).await?;
    let stateid = cx.state_arg(args.src_stateid)?;
    let destination = destination(cx, &args.destination_server)?;
    let source_server = addresses(cx, destination);
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
        watch: None,
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
    let copy = cx.server.copy();
    let inter = &copy.inter;
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

/// Where the destination finds this server: as configured, else as `crate::copy::addresses` says.
fn addresses(cx: &OpCx, destination: Option<IpAddr>) -> Vec<NetLoc> {
    let copy = cx.server.copy();
    let inter = &copy.inter;
    if !inter.addresses.is_empty() {
        return inter.addresses.iter().copied().map(to_netloc).collect();
    }
    let listening = cx.server.listening.get().map_or(&[][..], Vec::as_slice);
    let interfaces = match listening.iter().any(|a| a.ip().is_unspecified()) {
        true => cx.server.partners.interfaces.get(inter.interfaces),
        false => Vec::new(),
    };
    best_first(listening, &interfaces, cx.conn.local, destination).into_iter().map(to_netloc).collect()
}
