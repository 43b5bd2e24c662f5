//! What the operations on opens and locks share.

use super::OpCx;
use crate::reaper::owner_bytes;
use dhow_proto::v4::{Stateid, Status};
use dhow_state::{OwnerKey, Share};
use dhow_vfs::{Deny, OpenAccess, OpenHow};

impl OpCx {
    /// The stateid that an argument of LOCK, LOCKU or I/O means: the current stateid comes with seqid 0, that is, as
    /// the most recent (RFC 8881 8.2.3; CLOSE and OPEN_DOWNGRADE take it as it is).
    ///
    /// # Errors
    /// BAD_STATEID.
    pub fn state_arg(&self, stateid: Stateid) -> Result<Stateid, Status> {
        let meant = self.resolve(stateid)?;
        Ok(match stateid {
            Stateid::CURRENT if !meant.is_special() => Stateid { seqid: 0, ..meant },
            Stateid::CURRENT => return Err(Status::BAD_STATEID),
            _ => meant,
        })
    }
}

/// An open for the backend.
pub(crate) fn open_how(access: Share, deny: Share, owner: &OwnerKey, reclaim: bool) -> OpenHow {
    OpenHow {
        access: OpenAccess { read: access.read(), write: access.write() },
        deny: Deny { read: deny.read(), write: deny.write() },
        owner: owner_bytes(owner),
        reclaim,
    }
}
