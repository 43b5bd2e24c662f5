//! State that the server's administrator takes away: the library learns of it, tells the application, and frees what it
//! lost (RFC 8881 8.5, 18.38, 18.48).

use crate::common::{Place, connect};
use bytes::Bytes;
use dhow_client::v4::{StableHow, Status};
use dhow_client::{Create, Error, OpenOptions};
use std::time::Duration;

#[tokio::test]
async fn an_open_that_is_taken_away() {
    let place = Place::new();
    let running = place.start().await;
    let client = connect(running.addresses()[0]).await;
    let rw = OpenOptions::read_write().create(Create::IfMissing, 0o644);
    let (file, other) = (client.fs().open("f", &rw).await.unwrap(), client.fs().open("g", &rw).await.unwrap());
    file.write_all_at(0, Bytes::from_static(b"data"), StableHow::FILE_SYNC).await.unwrap();
    let shared = running.shared();
    let key = shared.admin_file("/f").await.unwrap();
    let held: Vec<_> = shared.state.states_where(|_| true);
    let of_file: Vec<_> = held.iter().filter(|s| shared.state.file_of(s).as_ref() == Some(&key)).collect();
    assert_eq!((held.len(), of_file.len()), (2, 1));
    shared.admin_revoke(of_file[0]).await.unwrap();
    let revoked = || shared.admin_clients(None, 10).items[0].info.revoked;
    assert_eq!(revoked(), 1);
    let error = file.read_at(0, 4).await.unwrap_err();
    assert!(matches!(error, Error::StateLost { status: Status::ADMIN_REVOKED, .. }), "{error}");
    // Whatever it does next shows it the flag of SEQUENCE; then it asks, and frees.
    for _ in 0..1000 {
        if revoked() == 0 {
            break;
        }
        other.read_at(0, 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(revoked(), 0, "it was not freed");
    let again = client.fs().open("f", &rw).await.unwrap();
    assert_eq!(again.read_at(0, 4).await.unwrap().data, "data");
    again.close().await.unwrap();
    other.close().await.unwrap();
    let _ = file.close().await;
    client.close().await.unwrap();
    running.shutdown().await;
}
