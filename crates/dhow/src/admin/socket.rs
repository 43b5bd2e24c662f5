//! The admin socket of a running server: who may write to its state directory may give it orders.
//!
//! A Unix socket with mode 0600 in the state directory (mode 0700), never the network; besides, the peer must be root or
//! the server's own user (SO_PEERCRED). One order for each connection: a JSON object in one line, answered by one line,
//! `{"ok":...}` or `{"error":"..."}`. Both are bounded, and so is the time for each, so that a peer that says nothing, or
//! takes no answer, costs one of a few places for a while and nobody else anything.

use super::orders;
use crate::serve::Site;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Bytes of an order.
const ORDER: u64 = 16 << 10;

/// Bytes of an answer that a client takes.
const ANSWER: u64 = 64 << 20;

/// How long an order may take to come, and its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// Peers at once.
const PEERS: usize = 16;

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the socket of a server with this state directory is.
pub fn path(state: &Path) -> PathBuf {
    state.join("admin")
}

/// Runs `f` with a name of the socket that is short enough for `sun_path`, however long that of the directory is.
fn at<T>(state: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let dir = File::open(state)?;
    f(Path::new(&format!("/proc/self/fd/{}/admin", dir.as_raw_fd())))
}

/// Makes the socket; one that an earlier server has left is removed (the directory belongs to one server at a time).
///
/// # Errors
/// As of the file system.
pub fn open(state: &Path) -> io::Result<UnixListener> {
    remove(state);
    let listener = at(state, |path| UnixListener::bind(path))?;
    fs::set_permissions(path(state), fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes the socket.
pub fn remove(state: &Path) {
    // It may not be there; who connects to one without a server is told so anyway.
    let _ = fs::remove_file(path(state));
}

/// Takes orders for ever.
pub async fn serve(listener: UnixListener, site: Arc<Site>) {
    let places = Arc::new(Semaphore::new(PEERS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let site = Arc::clone(&site);
                tokio::spawn(async move {
                    if let Err(error) = one(stream, &site).await {
                        tracing::debug!(%error, "admin socket");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin socket");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One order and its answer.
async fn one(stream: UnixStream, site: &Arc<Site>) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    if peer != 0 && peer != own {
        return Err(io::Error::other(format!("user {peer} may not give orders")));
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(ORDER));
    tokio::time::timeout(PATIENCE, read.read_line(&mut line)).await??;
    let answer = match serde_json::from_str::<Value>(&line) {
        Ok(order) if line.ends_with('\n') => orders::carry_out(site, &order).await,
        _ => Err("not an order".into()),
    };
    let answer = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(why) => json!({ "error": why }),
    };
    let text = format!("{answer}\n");
    tokio::time::timeout(PATIENCE, async {
        write.write_all(text.as_bytes()).await?;
        write.shutdown().await
    })
    .await?
}

/// Gives an order to the server with this state directory.
///
/// # Errors
/// Nobody listens there, or it is not for this user.
pub async fn give(state: &Path, order: &Value) -> io::Result<Value> {
    let stream = at(state, |path| std::os::unix::net::UnixStream::connect(path))?;
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    stream.write_all(format!("{order}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER).read_to_string(&mut answer).await?;
    serde_json::from_str(&answer).map_err(|_| io::Error::other("the server gave no answer"))
}
