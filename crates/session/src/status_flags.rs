//! What the status flags of a SEQUENCE reply ask for (RFC 8881 section 18.46.3).

use dhow_proto::v4::ops::seq4_status::*;

/// What a client must do about the flags; several may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Actions {
    /// Bind a connection to the back channel (BIND_CONN_TO_SESSION).
    pub bind_backchannel: bool,
    /// Reclaim all state, then RECLAIM_COMPLETE.
    pub reclaim: bool,
    /// Take up a new client ID: nothing of the old one's state is left.
    pub new_client: bool,
    /// Find out which stateids were revoked (TEST_STATEID) and acknowledge them (FREE_STATEID).
    pub test_stateids: bool,
    /// Find out which filesystems moved with state of this client.
    pub find_moved: bool,
    /// Drain the session, destroy it and make a new one.
    pub replace_session: bool,
}

impl Actions {
    /// Reads flags. Bits that nobody knows, and those of features this client does not use (GSS contexts of the back
    /// channel, pNFS devices), ask for nothing.
    pub fn of(flags: u32) -> Self {
        let has = |bits: u32| flags & bits != 0;
        Self {
            bind_backchannel: has(CB_PATH_DOWN | CB_PATH_DOWN_SESSION),
            reclaim: has(RESTART_RECLAIM_NEEDED),
            new_client: has(EXPIRED_ALL_STATE_REVOKED),
            test_stateids: has(EXPIRED_SOME_STATE_REVOKED | ADMIN_STATE_REVOKED | RECALLABLE_STATE_REVOKED),
            find_moved: has(LEASE_MOVED),
            replace_session: has(BACKCHANNEL_FAULT),
        }
    }

    /// Whether nothing is to be done.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8881 section 18.46.3.
    #[test]
    fn each_flag_has_its_action() {
        assert!(Actions::of(0).is_empty());
        assert!(Actions::of(CB_GSS_CONTEXTS_EXPIRING | CB_GSS_CONTEXTS_EXPIRED | 0xffff_f800).is_empty());
        assert!(Actions::of(CB_PATH_DOWN).bind_backchannel && Actions::of(CB_PATH_DOWN_SESSION).bind_backchannel);
        assert_eq!(Actions::of(RESTART_RECLAIM_NEEDED), Actions { reclaim: true, ..Actions::default() });
        assert_eq!(Actions::of(EXPIRED_ALL_STATE_REVOKED), Actions { new_client: true, ..Actions::default() });
        for flag in [EXPIRED_SOME_STATE_REVOKED, ADMIN_STATE_REVOKED, RECALLABLE_STATE_REVOKED] {
            assert_eq!(Actions::of(flag), Actions { test_stateids: true, ..Actions::default() });
        }
        assert_eq!(Actions::of(LEASE_MOVED), Actions { find_moved: true, ..Actions::default() });
        assert_eq!(Actions::of(BACKCHANNEL_FAULT), Actions { replace_session: true, ..Actions::default() });
    }
}
