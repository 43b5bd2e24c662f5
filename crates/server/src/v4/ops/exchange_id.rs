//! EXCHANGE_ID (RFC 8881 18.35): a client gets its client ID.

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{ExchangeIdArgs, ExchangeIdOk, ServerOwner, StateProtectArgs, StateProtectRes, exchgid};
use dhow_state::{ClientOwnerId, ExchangeId, Principal};

pub(crate) async fn run(cx: &OpCx, args: ExchangeIdArgs) -> OpResult<ExchangeIdOk> {
    if args.flags & !exchgid::MASK_ARGS != 0 {
        return Err(Status::INVAL);
    }
    match &args.state_protect {
        StateProtectArgs::None => {}
        // Both need RPCSEC_GSS, the first one at the call itself (18.35.3).
        StateProtectArgs::MachCred(_) => return Err(Status::INVAL),
        StateProtectArgs::Ssv(p) if p.hash_algs.is_empty() || p.encr_algs.is_empty() || p.window == 0 => {
            return Err(Status::INVAL);
        }
        StateProtectArgs::Ssv(_) => return Err(Status::ENCR_ALG_UNSUPP),
    }
    let server = &cx.server;
    let got = server.state.exchange_id(
        &ExchangeId {
            owner: ClientOwnerId(args.client_owner.owner_id),
            verifier: args.client_owner.verifier,
            principal: Principal(cx.caller.principal()),
            update: args.flags & exchgid::UPD_CONFIRMED_REC_A != 0,
        },
        server.now(),
    )?;
    if let Some(id) = got.retire {
        // Its state is in nobody's way by itself: what needs it gone waits for that.
        let server = server.clone();
        tokio::spawn(async move { server.retire(id).await });
    }
    let confirmed = if got.confirmed { exchgid::CONFIRMED_R } else { 0 };
    Ok(ExchangeIdOk {
        client_id: got.client,
        sequence_id: got.sequence_id,
        flags: exchgid::USE_NON_PNFS | confirmed,
        state_protect: StateProtectRes::None,
        server_owner: ServerOwner { minor_id: 0, major_id: server.identity.major_id.clone() },
        server_scope: server.identity.scope.clone(),
        impl_id: Vec::new(),
    })
}
