//! TEST_STATEID (RFC 8881 18.48).

use crate::v4::{OpCx, OpResult};
use dhow_proto::v4::ops::{TestStateidArgs, TestStateidOk};

pub(crate) fn run(cx: &OpCx, args: &TestStateidArgs) -> OpResult<TestStateidOk> {
    let client = cx.client()?;
    let status_codes = args.stateids.iter().map(|s| cx.server.state.test_stateid(client, s)).collect();
    Ok(TestStateidOk { status_codes })
}
