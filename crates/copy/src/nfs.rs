//! An NFS export, through the client library.
