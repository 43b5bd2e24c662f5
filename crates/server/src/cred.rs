//! Who calls: the credential of a call, and whom the backend is to act as.

use crate::config::{ExportOptions, Squash};
use crate::ids::Ids;
use bytes::Bytes;
use dhow_net::is_reserved_port;
use dhow_rpc::{AuthStat, AuthSys, Credential, Flavor, OpaqueAuth};
use dhow_vfs::{Cred, Cx};
use std::net::SocketAddr;
use std::sync::Arc;

/// The caller of one RPC call.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Flavor of the credential.
    pub flavor: Flavor,
    /// The numbers of an AUTH_SYS credential.
    pub sys: Option<AuthSys>,
    /// The credential's body as it came, for backends that forward it.
    pub body: Bytes,
    /// All groups of the user, where they are looked up: in place of those of the credential.
    pub groups: Option<Arc<[u32]>>,
    /// Where the call came from; `None` on a virtual network.
    pub peer: Option<SocketAddr>,
}

/// Why an export is closed to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// The peer is in none of the networks allowed.
    Network,
    /// The peer's port is not reserved, and the export is `secure`.
    Port,
}

impl Caller {
    /// Reads a credential.
    ///
    /// # Errors
    /// What to answer: BADCRED for an AUTH_SYS body that does not parse or has more than 16 groups (case B37),
    /// REJECTEDCRED for flavors that are not served (RFC 5531 9).
    pub fn new(auth: OpaqueAuth, peer: Option<SocketAddr>) -> Result<Self, AuthStat> {
        let body = auth.body.clone();
        let (flavor, sys) = match Credential::parse(auth)? {
            Credential::None => (Flavor::NONE, None),
            Credential::Sys(sys) => (Flavor::SYS, Some(sys)),
            Credential::Other(_) => return Err(AuthStat::REJECTEDCRED),
        };
        Ok(Self { flavor, sys, body, groups: None, peer })
    }

    /// Looks the groups of an AUTH_SYS user up, where that is switched on: a credential has room for 16 (RFC 5531 A).
    /// Without an answer the credential's own stand (case B37).
    pub(crate) async fn look_groups_up(&mut self, ids: &Ids) {
        if let Some(sys) = &self.sys {
            self.groups = ids.groups(sys.uid).await;
        }
    }

    /// Equal bytes for two calls of one principal, as far as ownership of client IDs goes (RFC 8881 2.10.8.3).
    pub fn principal(&self) -> Bytes {
        let mut out = self.flavor.0.to_be_bytes().to_vec();
        if let Some(sys) = &self.sys {
            out.extend(sys.uid.to_be_bytes());
        }
        out.into()
    }

    /// Whom the backend of an export with these options acts as.
    ///
    /// # Errors
    /// The export is closed to this caller. What the client is told depends on the operation: crossing into the export
    /// by LOOKUP is ACCESS, a filehandle of it is STALE, as with knfsd, to which the export then does not exist.
    pub fn user(&self, options: &ExportOptions) -> Result<Cx, Barred> {
        if let Some(peer) = self.peer {
            let ip = peer.ip();
            if !options.clients.is_empty() && !options.clients.iter().any(|net| net.contains(ip)) {
                return Err(Barred::Network);
            }
            if options.secure && !is_reserved_port(peer) {
                return Err(Barred::Port);
            }
        }
        // Copied: a long copy keeps this, and must not keep the record that the call came in.
        let body = Bytes::copy_from_slice(&self.body);
        Ok(Cx { cred: self.squashed(options), wire: Some((self.flavor.0, body)) })
    }

    /// Squash rules (case B38): user 0 and group 0 become the anonymous ones wherever they stand, other groups stay;
    /// "all" replaces everything; a call without identity is anonymous on every export.
    fn squashed(&self, options: &ExportOptions) -> Cred {
        let anon = Cred::user(options.anon_uid, options.anon_gid);
        let Some(sys) = &self.sys else { return anon };
        let gids = self.groups.as_deref().unwrap_or(&sys.gids);
        match options.squash {
            Squash::All => anon,
            Squash::None => Cred { uid: sys.uid, gid: sys.gid, groups: gids.into() },
            Squash::Root => {
                let group = |g: u32| if g == 0 { options.anon_gid } else { g };
                Cred {
                    uid: if sys.uid == 0 { options.anon_uid } else { sys.uid },
                    gid: group(sys.gid),
                    groups: gids.iter().copied().map(group).collect(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dhow_xdr::Encode;

    fn sys(uid: u32, gid: u32, gids: &[u32]) -> OpaqueAuth {
        let sys = AuthSys { stamp: 1, machine: Bytes::from_static(b"m"), uid, gid, gids: gids.into() };
        OpaqueAuth { flavor: Flavor::SYS, body: sys.to_bytes() }
    }

    fn cred(auth: OpaqueAuth, options: &ExportOptions) -> Cred {
        Caller::new(auth, None).unwrap().user(options).unwrap().cred
    }

    #[test]
    fn squash_rules_case_b38() {
        let with = |squash| ExportOptions { squash, anon_uid: 77, anon_gid: 88, ..ExportOptions::default() };
        let root = sys(0, 0, &[0, 2000]);
        assert_eq!(cred(root.clone(), &with(Squash::Root)), Cred { uid: 77, gid: 88, groups: [88, 2000][..].into() });
        assert_eq!(cred(root.clone(), &with(Squash::All)), Cred::user(77, 88));
        assert_eq!(cred(root, &with(Squash::None)), Cred { uid: 0, gid: 0, groups: [0, 2000][..].into() });
        let user = sys(5, 6, &[7, 0]);
        assert_eq!(cred(user, &with(Squash::Root)), Cred { uid: 5, gid: 6, groups: [7, 88][..].into() });
        assert_eq!(cred(OpaqueAuth::NONE, &with(Squash::None)), Cred::user(77, 88));
    }

    /// Case B38: the rules hold for groups that were looked up too.
    #[test]
    fn groups_that_were_looked_up_are_squashed_too() {
        let mut caller = Caller::new(sys(5, 6, &[7]), None).unwrap();
        caller.groups = Some((0..20).collect());
        let cred = |squash| {
            let options = ExportOptions { squash, anon_uid: 77, anon_gid: 88, ..ExportOptions::default() };
            caller.user(&options).unwrap().cred
        };
        let groups: Vec<u32> = (0..20).collect();
        assert_eq!(cred(Squash::None), Cred { uid: 5, gid: 6, groups: groups[..].into() });
        assert_eq!(cred(Squash::Root).groups[..2], [88, 1]);
        assert_eq!(cred(Squash::All), Cred::user(77, 88));
    }

    #[test]
    fn credentials_that_are_refused() {
        let groups: Vec<u32> = (0..17).collect();
        assert!(Caller::new(sys(1, 1, &groups[..16]), None).is_ok());
        // 17 groups cannot be made with our types: patch the count and add one (case B37).
        let mut body = sys(1, 1, &groups[..16]).body.to_vec();
        let at = body.len() - 16 * 4 - 1;
        body[at] = 17;
        body.extend([0; 4]);
        let auth = OpaqueAuth { flavor: Flavor::SYS, body: body.into() };
        assert_eq!(Caller::new(auth, None).unwrap_err(), AuthStat::BADCRED);
        for flavor in [Flavor::SHORT, Flavor::DH, Flavor::RPCSEC_GSS, Flavor::TLS, Flavor(99)] {
            let auth = OpaqueAuth { flavor, body: Bytes::new() };
            assert_eq!(Caller::new(auth, None).unwrap_err(), AuthStat::REJECTEDCRED, "{flavor}");
        }
    }

    #[test]
    fn networks_and_ports() {
        let from = |peer: &str| Caller::new(OpaqueAuth::NONE, Some(peer.parse().unwrap())).unwrap();
        let nets = vec!["192.0.2.0/24".parse().unwrap(), "::1".parse().unwrap()];
        let o = ExportOptions { clients: nets, secure: true, ..ExportOptions::default() };
        assert!(from("192.0.2.1:700").user(&o).is_ok());
        assert!(from("[::1]:1023").user(&o).is_ok());
        assert_eq!(from("192.0.2.1:1024").user(&o).unwrap_err(), Barred::Port);
        assert_eq!(from("192.0.3.1:700").user(&o).unwrap_err(), Barred::Network);
    }
}
