//! Users and groups by the system's own data bases (`/etc/passwd`, LDAP, ...; what `nsswitch.conf` names).

use dhow_server::NameService;
use dhow_sys::names;
use std::io;

/// The system's users and groups.
#[derive(Clone, Copy, Debug)]
pub struct SystemPeople;

impl NameService for SystemPeople {
    fn user_id(&self, name: &str) -> io::Result<Option<u32>> {
        names::user_id(name)
    }

    fn group_id(&self, name: &str) -> io::Result<Option<u32>> {
        names::group_id(name)
    }

    fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
        names::user_name(uid)
    }

    fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
        names::group_name(gid)
    }

    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        names::groups_of(uid)
    }
}
