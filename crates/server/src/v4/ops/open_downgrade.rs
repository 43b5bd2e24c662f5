//! OPEN_DOWNGRADE (RFC 8881 18.18).

use crate::errmap::IntoStatus;
use crate::exports::OpenToken;
use crate::v4::state_cx::open_how;
use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::Status;
use dhow_proto::v4::ops::{OpenDowngradeArgs, OpenDowngradeOk, share};
use dhow_state::Share;

pub(crate) async fn run(cx: &mut OpCx, args: OpenDowngradeArgs) -> OpResult<OpenDowngradeOk> {
    let access = Share::from_bits(args.share_access & !share::WANT_DELEG_MASK).ok_or(Status::INVAL)?;
    let deny = Share::from_bits(args.share_deny).ok_or(Status::INVAL)?;
    let fh = cx.current()?.clone();
    // With its seqid, if it is the current stateid (8.2.3).
    let stateid = cx.resolve(args.open_stateid)?;
    let server = cx.server.clone();
    let _gate = cx.file_gate(&fh).await?;
    let plan = server.state.plan_downgrade(cx.client()?, &fh.key(), &stateid, access, deny)?;
    let old = plan.open().clone();
    let how = open_how(access, deny, plan.owner(), false);
    let file = fh.backend().reopen(&fh.user, &old.file, &how).await.or_status()?;
    match plan.commit(OpenToken { file, ..old }) {
        Ok(done) => {
            cx.set_stateid(done.stateid);
            Ok(OpenDowngradeOk { open_stateid: done.stateid })
        }
        Err((status, _token)) => Err(status),
    }
}
