//! One operation, one file.

pub(crate) mod getfh;
pub(crate) mod putfh;
pub(crate) mod putpubfh;
pub(crate) mod putrootfh;
pub(crate) mod restorefh;
pub(crate) mod savefh;
pub(crate) mod sequence;
