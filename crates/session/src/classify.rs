//! What a status means for whoever sent the request.

use dhow_proto::v4::Status;

/// Kinds of answer, from the point of view of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Success.
    Ok,
    /// Wait a little, then send the request again as a new one.
    Delay,
    /// As `Delay`, for as long as the server's grace period.
    Grace,
    /// The session is gone; the client ID may be there.
    SessionLost,
    /// The client ID is gone, and with it sessions and state.
    ClientLost,
    /// The connection must be bound to the session first.
    BindConnection,
    /// The state behind a stateid is gone or was replaced: it must be opened again (or reclaimed).
    StateLost,
    /// An earlier version of a stateid was used; the current one works.
    StateBehind,
    /// A final answer about the object or the request.
    Final,
}

/// Classifies a status (RFC 8881 section 15.1).
pub fn classify(status: Status) -> Class {
    match status {
        Status::OK => Class::Ok,
        Status::DELAY | Status::LAYOUTTRYLATER => Class::Delay,
        Status::GRACE => Class::Grace,
        Status::BADSESSION | Status::DEADSESSION => Class::SessionLost,
        Status::STALE_CLIENTID => Class::ClientLost,
        Status::CONN_NOT_BOUND_TO_SESSION => Class::BindConnection,
        Status::EXPIRED
        | Status::BAD_STATEID
        | Status::STALE_STATEID
        | Status::ADMIN_REVOKED
        | Status::DELEG_REVOKED => Class::StateLost,
        Status::OLD_STATEID => Class::StateBehind,
        _ => Class::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_status_has_one_class() {
        let count = |class| Status::ALL.iter().filter(|s| classify(**s) == class).count();
        assert_eq!(count(Class::Ok), 1);
        assert_eq!(count(Class::SessionLost), 2);
        assert_eq!(count(Class::StateLost), 5);
        assert_eq!(count(Class::Delay) + count(Class::Grace), 3);
        assert_eq!(classify(Status(99_999)), Class::Final, "unknown numbers are final");
    }
}
