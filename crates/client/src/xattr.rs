//! Extended attributes (RFC 8276).

use std::collections::HashSet;

use bytes::Bytes;
use dhow_proto::v4::ops::{GetxattrArgs, ListxattrsArgs, RemovexattrArgs, SetxattrArgs, SetxattrOption};
use dhow_proto::v4::{ArgOp, ResOp};

use crate::{Error, Fs, Place, Result};

/// Bytes of names in one reply.
const PAGE_BYTES: u32 = 64 << 10;

impl Fs {
    /// The value of an extended attribute; `name` without the prefix `user.`.
    ///
    /// # Errors
    ///
    /// NOXATTR, NOTSUPP, others of the server.
    pub async fn getxattr(&self, place: impl Into<Place>, name: impl AsRef<[u8]>) -> Result<Bytes> {
        let place = place.into();
        let name = Bytes::copy_from_slice(name.as_ref());
        let tail = self.run_at(&place, vec![ArgOp::Getxattr(GetxattrArgs { name })], false).await?;
        match tail.ok(&place)?.results.pop() {
            Some(ResOp::Getxattr(Ok(ok))) => Ok(ok.value),
            _ => Err(Error::protocol("no GETXATTR in the reply")),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// EXIST or NOXATTR as `option` says; XATTR2BIG, NOTSUPP, others of the server.
    pub async fn setxattr(
        &self,
        place: impl Into<Place>,
        name: impl AsRef<[u8]>,
        value: Bytes,
        option: SetxattrOption,
    ) -> Result<()> {
        let place = place.into();
        let name = Bytes::copy_from_slice(name.as_ref());
        let set = ArgOp::Setxattr(SetxattrArgs { option, name, value });
        self.run_at(&place, vec![set], true).await?.ok(&place).map(|_| ())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// NOXATTR, NOTSUPP, others of the server.
    pub async fn removexattr(&self, place: impl Into<Place>, name: impl AsRef<[u8]>) -> Result<()> {
        let place = place.into();
        let name = Bytes::copy_from_slice(name.as_ref());
        let remove = ArgOp::Removexattr(RemovexattrArgs { name });
        self.run_at(&place, vec![remove], true).await?.ok(&place).map(|_| ())
    }

    /// The names of all extended attributes, without the prefix `user.`.
    ///
    /// # Errors
    ///
    /// NOTSUPP, others of the server; [`Error::Protocol`] when its cookies do not advance.
    pub async fn listxattrs(&self, place: impl Into<Place>) -> Result<Vec<Bytes>> {
        let place = place.into();
        let (largest, _) = self.client().io_limits().await?;
        let (mut cookie, mut seen, mut all) = (0, HashSet::from([0]), Vec::new());
        loop {
            let list = ArgOp::Listxattrs(ListxattrsArgs { cookie, maxcount: PAGE_BYTES.min(largest) });
            let tail = self.run_at(&place, vec![list], false).await?;
            let Some(ResOp::Listxattrs(Ok(page))) = tail.ok(&place)?.results.pop() else {
                return Err(Error::protocol("no LISTXATTRS in the reply"));
            };
            all.extend(page.names.0);
            if page.eof {
                return Ok(all);
            }
            cookie = page.cookie;
            // Case B50.
            if !seen.insert(cookie) {
                return Err(Error::protocol("LISTXATTRS goes in circles: its cookies do not advance"));
            }
        }
    }
}
