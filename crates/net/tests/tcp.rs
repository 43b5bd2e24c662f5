#![allow(clippy::unwrap_used)]

//! Over the loopback: listeners of both families, the connection limit, socket options.

use dhow_net::{
    ConnLimit, ConnOptions, ConnectOptions, Connection, ListenOptions, Listener, NetShared, NoCalls, connect,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn listens_on_port_0_of_both_families_and_calls_cross() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let shared = Arc::new(NetShared::default());
        let limit = ConnLimit::new(8, 8);
        let listener = match Listener::bind(addr.parse().unwrap(), &ListenOptions::default(), limit, shared.clone()) {
            Ok(l) => l,
            // A machine without IPv6 cannot test it.
            Err(e) if addr.starts_with('[') => {
                eprintln!("no IPv6 here: {e}");
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        let at = listener.local_addr().unwrap();
        assert_ne!(at.port(), 0);
        let client = tokio::spawn(async move { connect(at, &ConnectOptions::default()).await.unwrap() });
        let (server, peer, _permit) = listener.accept().await.unwrap();
        let client = client.await.unwrap();
        assert_eq!(client.local_addr().unwrap(), peer);
        assert!(client.nodelay().unwrap() && server.nodelay().unwrap());
        let (r, w) = client.into_split();
        let (conn, driver) = Connection::new(r, w, Some(at), &ConnOptions::default(), shared.clone());
        tokio::spawn(async move { driver.run(&NoCalls).await });
        let call = conn.call(1, vec![[0, 0, 0, 1, 0, 0, 0, 0].to_vec().into()]);
        let (r, w) = server.into_split();
        let (back, driver) = Connection::new(r, w, Some(peer), &ConnOptions::default(), shared);
        tokio::spawn(async move { driver.run(&NoCalls).await });
        back.send(vec![[0, 0, 0, 1, 0, 0, 0, 1].to_vec().into()], Default::default());
        assert_eq!(call.await.unwrap().bytes.len(), 8);
    }
}

#[tokio::test]
async fn the_limit_of_connections_holds_and_recovers() {
    let shared = Arc::new(NetShared::default());
    let limit = ConnLimit::new(1, 8);
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any, &ListenOptions::default(), limit, shared.clone()).unwrap();
    let at = listener.local_addr().unwrap();
    let _first = connect(at, &ConnectOptions::default()).await.unwrap();
    let (_, _, permit) = listener.accept().await.unwrap();
    let mut second = connect(at, &ConnectOptions::default()).await.unwrap();
    let accept = tokio::spawn(async move { listener.accept().await.map(|a| a.1) });
    assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0, "closed at once");
    assert_eq!(shared.metrics.refused.load(Relaxed), 1);
    drop(permit);
    let third = connect(at, &ConnectOptions::default()).await.unwrap();
    assert_eq!(accept.await.unwrap().unwrap(), third.local_addr().unwrap());
}
