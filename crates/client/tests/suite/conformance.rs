//! The round that runs against foreign servers, here against ours.

#[allow(dead_code, missing_docs)]
#[path = "../../examples/conformance.rs"]
mod round;

use crate::common::Place;
use dhow_client::NfsUrl;

/// The whole round, in the newest minor version that both have.
#[test]
fn every_call_works() {
    whole(&[2, 1]);
}

/// The same in NFSv4.1: what that has works, and what it has not is told to be missing.
#[test]
fn every_call_of_minor_version_1_works() {
    whole(&[1]);
}

/// The round is one future, too large in a debug build for the stack of a test's thread.
fn whole(minors: &'static [u32]) {
    let round = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let place = Place::new();
            let running = place.start().await;
            let url: NfsUrl = format!("nfs://{}/", running.addresses()[0]).parse().unwrap();
            assert!(round::run(round::At { url: &url, minors }, None).await.unwrap(), "a check failed; see above");
            running.shutdown().await;
        });
    };
    std::thread::Builder::new().stack_size(64 << 20).spawn(round).unwrap().join().unwrap();
}
